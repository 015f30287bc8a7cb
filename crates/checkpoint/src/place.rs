//! Finds every tensor that a spec needs, checks its shape, and notes where its rows are.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use dunlin_spec::{FfnSpec, LayerSpec, ModelSpec, WeightType};

use crate::{
    CheckpointError, Role,
    arch::{Architecture, NameRule, Part},
    container::{Container, TensorDesc, decode_floats},
    error::Result,
    matrix::{MatrixView, RowOrder},
    role::Shape,
};

/// Where a role's values are.
#[derive(Debug, Clone)]
pub(crate) struct Placed {
    pub tensor: String,
    pub ty: WeightType,
    pub shape: Shape,
    pub order: RowOrder,
    file: usize,
    offset: u64,
    bytes: u64,
    /// How many of the kind follow each other in the file: the experts of a stack, or one.
    stacked: u64,
    /// Added to every value of a vector.
    add: f32,
}

/// Layer and expert of tensors that have none.
const NONE: u32 = u32::MAX;

/// Every role's place.
#[derive(Debug, Default)]
pub(crate) struct Places(BTreeMap<(u32, Role, u32), Placed>);

impl Places {
    /// Finds the tensors of a spec.
    ///
    /// # Errors
    /// Missing tensors, wrong shapes and types, and tensors that nothing uses: a model with a
    /// part that is left out would answer, and wrongly.
    pub fn find(arch: &Architecture, spec: &ModelSpec, store: &dyn Container) -> Result<Self> {
        let mut finder =
            Finder { arch, spec, store, used: BTreeSet::new(), places: Self::default() };
        for role in Role::ALL {
            if let Some(shape) = role.global_shape(spec) {
                finder.place(role, None, None, shape)?;
            }
        }
        for (l, layer) in spec.layers.iter().enumerate() {
            for role in Role::ALL {
                let Some(shape) = role.layer_shape(spec.d_model, layer) else { continue };
                match &layer.ffn {
                    FfnSpec::Moe(m) if role.is_expert() => {
                        // Experts that are stacked in one tensor are placed by the first of them.
                        for e in 0..m.n_experts {
                            if finder.place(role, Some(l), Some(e), shape)? > 1 {
                                break;
                            }
                        }
                    }
                    _ => {
                        finder.place(role, Some(l), None, shape)?;
                    }
                }
            }
        }
        finder.refuse_unused()?;
        Ok(finder.places)
    }

    pub fn get(
        &self,
        role: Role,
        layer: Option<usize>,
        expert: Option<usize>,
    ) -> Option<Cow<'_, Placed>> {
        let layer = index(layer)?;
        if let Some(placed) = self.0.get(&(layer, role, index(expert)?)) {
            return Some(Cow::Borrowed(placed));
        }
        let stack = self.0.get(&(layer, role, 0))?;
        let expert = expert? as u64;
        (expert < stack.stacked).then(|| {
            let offset = stack.offset + expert * stack.bytes;
            Cow::Owned(Placed { offset, stacked: 1, ..stack.clone() })
        })
    }

    /// Every place with its role and layer: global roles last; a stack of experts as one.
    pub fn iter(&self) -> impl Iterator<Item = (Role, Option<usize>, &Placed)> {
        let back = |i: u32| (i != NONE).then_some(i as usize);
        self.0.iter().map(move |((l, role, _), placed)| (*role, back(*l), placed))
    }
}

fn index(i: Option<usize>) -> Option<u32> {
    match i {
        None => Some(NONE),
        Some(i) => u32::try_from(i).ok().filter(|i| *i != NONE),
    }
}

impl Placed {
    pub fn matrix<'a>(&self, store: &'a dyn Container) -> Option<MatrixView<'a>> {
        let Shape::Matrix(rows, cols) = self.shape else { return None };
        MatrixView::new(self.ty, rows, cols, self.data(store), self.order)
    }

    pub fn vector(&self, store: &dyn Container) -> Option<Vec<f32>> {
        let Shape::Vector(_) = self.shape else { return None };
        let values = decode_floats(self.ty, self.data(store))?;
        let order = self.order;
        Some((0..values.len()).map(|i| values[order.source_row(i)] + self.add).collect())
    }

    pub fn data<'a>(&self, store: &'a dyn Container) -> &'a [u8] {
        store.bytes(self.file, self.offset, self.bytes)
    }

    /// Bytes, of all that are stacked.
    pub fn bytes(&self) -> u64 {
        self.bytes * self.stacked
    }

    /// Values, of all that are stacked.
    pub fn elements(&self) -> u64 {
        let one = match self.shape {
            Shape::Vector(n) => n as u64,
            Shape::Matrix(rows, cols) => rows as u64 * cols as u64,
        };
        one * self.stacked
    }
}

struct Finder<'a> {
    arch: &'a Architecture,
    spec: &'a ModelSpec,
    store: &'a dyn Container,
    used: BTreeSet<String>,
    places: Places,
}

impl Finder<'_> {
    /// Places a tensor; gives how many of the kind it holds.
    fn place(
        &mut self,
        role: Role,
        layer: Option<usize>,
        expert: Option<usize>,
        shape: Shape,
    ) -> Result<u64> {
        let (l, e) = (layer.unwrap_or(0), expert.unwrap_or(0));
        let rules = self.arch.tensors.iter().filter(|r| r.role == role);
        let mut names = Vec::new();
        for rule in rules {
            let name = rule.name(l, e);
            if let Some(desc) = self.store.tensor(&name) {
                let spec = layer.map(|l| &self.spec.layers[l]);
                let placed = self.placed(rule, &name, &desc, spec, shape)?;
                self.used.insert(name);
                let stacked = placed.stacked;
                if let (Some(l), Some(e)) = (index(layer), index(expert)) {
                    self.places.0.insert((l, role, e), placed);
                }
                return Ok(stacked);
            }
            names.push(name);
        }
        if names.is_empty() {
            names.push(format!("for {role:?}, which this architecture has no name for,"));
        }
        Err(CheckpointError::MissingTensor { name: names.join(" or ") })
    }

    fn placed(
        &self,
        rule: &NameRule,
        name: &str,
        desc: &TensorDesc,
        layer: Option<&LayerSpec>,
        shape: Shape,
    ) -> Result<Placed> {
        let bad = |problem: String| CheckpointError::BadTensor { name: name.into(), problem };
        // First row of the role's own, and the shape that the whole tensor must have.
        let (first, whole) = whole_shape(rule, layer, shape);
        if squeezed(&desc.shape()) != squeezed(&whole) {
            return Err(bad(format!("has shape {:?}; expected {:?}", desc.shape(), whole)));
        }
        let (offset, bytes) = match shape {
            Shape::Vector(_) => {
                if !matches!(desc.ty, WeightType::F32 | WeightType::F16 | WeightType::BF16) {
                    return Err(bad(format!("is {}; norms and biases must be floats", desc.ty)));
                }
                (0, desc.bytes)
            }
            Shape::Matrix(rows, cols) => {
                let row = desc.ty.row_bytes(cols).ok_or_else(|| {
                    bad(format!("rows of {cols} values are not whole blocks of {}", desc.ty))
                })?;
                ((first * row) as u64, (rows * row) as u64)
            }
        };
        Ok(Placed {
            tensor: name.into(),
            ty: desc.ty,
            shape,
            order: self.order(rule.role, layer),
            file: desc.file,
            offset: desc.offset + offset,
            bytes,
            stacked: if rule.part == Part::ExpertStack { whole[0] as u64 } else { 1 },
            add: if rule.role.is_norm() { self.arch.norm_offset } else { 0.0 },
        })
    }

    fn order(&self, role: Role, layer: Option<&LayerSpec>) -> RowOrder {
        match layer {
            Some(l) if self.arch.interleaved_rope && role.is_rotated() => {
                RowOrder::Interleaved { head_dim: l.attn.head_dim, rotated: l.attn.rope.dim }
            }
            _ => RowOrder::Plain,
        }
    }

    fn refuse_unused(&self) -> Result<()> {
        for (name, _) in self.store.tensors() {
            let ignored = self
                .arch
                .ignored
                .iter()
                .any(|(head, tail)| name.starts_with(head) && name.ends_with(tail));
            if !ignored && !self.used.contains(name) {
                return Err(CheckpointError::UnsupportedFeature {
                    what: format!("tensor {name}, which {} does not use,", self.arch.name),
                    supported: String::new(),
                });
            }
        }
        Ok(())
    }
}

/// The first row of a role within its tensor, and the shape of that tensor.
fn whole_shape(rule: &NameRule, layer: Option<&LayerSpec>, shape: Shape) -> (usize, Vec<usize>) {
    let (rows, cols) = match shape {
        Shape::Vector(n) => return (0, vec![n]),
        Shape::Matrix(rows, cols) => (rows, cols),
    };
    let Some(layer) = layer else { return (0, vec![rows, cols]) };
    let a = &layer.attn;
    let (q, k, v) =
        (a.n_heads * a.head_dim, a.n_kv_heads * a.head_dim, a.n_kv_heads * a.v_head_dim);
    match (rule.part, rule.role) {
        (Part::Whole, _) => (0, vec![rows, cols]),
        (Part::Qkv, Role::K) => (q, vec![q + k + v, cols]),
        (Part::Qkv, Role::V) => (q + k, vec![q + k + v, cols]),
        (Part::Qkv, _) => (0, vec![q + k + v, cols]),
        (Part::GateUp, Role::Up) => (rows, vec![2 * rows, cols]),
        (Part::GateUp, _) => (0, vec![2 * rows, cols]),
        (Part::ExpertStack, _) => {
            let n = match &layer.ffn {
                FfnSpec::Moe(m) => m.n_experts,
                FfnSpec::Gated { .. } => 1,
            };
            (0, vec![n, rows, cols])
        }
    }
}

/// A shape without its outermost dimensions of size one: some writers drop them.
fn squeezed(shape: &[usize]) -> &[usize] {
    let ones = shape.iter().take_while(|d| **d == 1).count();
    &shape[ones.min(shape.len().saturating_sub(1))..]
}

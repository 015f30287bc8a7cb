//! From a model's spec to the program of its forward pass.
//!
//! Nothing here knows an architecture by name: where models differ, the spec differs. The last
//! layer keeps only the positions whose logits are wanted once its keys and values are stored,
//! since nothing after it reads the others.

use crate::weights::{self, MatrixKey, VectorKey, qkv_width};
use dunlin_checkpoint::Role;
use dunlin_kernels_cpu::pack::PackSpec;
use dunlin_kernels_cpu::program::{
    ActBuf, ActNeeds, FloatBuf, MatrixId, Op, Program, Rows, VectorId,
};
use dunlin_spec::{
    ActivationPrecision, FfnSpec, LayerSpec, ModelSpec, MoeSpec, RopeSpec, WeightType,
};
use std::collections::HashMap;

/// Builds the forward pass of `spec`, whose matrices (in [`weights::matrices`]' order) are stored
/// as `types`, without the layers `skipped` (which is then another model: one that drafts).
pub(crate) fn assemble(
    spec: &ModelSpec,
    types: &[WeightType],
    precision: ActivationPrecision,
    skipped: &[usize],
) -> Program {
    let matrices = weights::matrices(spec).into_iter().enumerate();
    let vectors = weights::vectors(spec).into_iter().enumerate();
    let mut a = Assembler {
        spec,
        precision,
        types,
        matrices: matrices.map(|(i, key)| (key, MatrixId(i))).collect(),
        vectors: vectors.map(|(i, (key, _))| (key, VectorId(i))).collect(),
        floats: HashMap::new(),
        acts: HashMap::new(),
        program: Program::default(),
    };
    a.run(skipped);
    a.program
}

/// What an f32 buffer is for; buffers of one use and shape are shared by all layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Use {
    Residual,
    Projected,
    Qkv,
    Attended,
    GateUp,
    Router,
    Logits,
}

struct Assembler<'a> {
    spec: &'a ModelSpec,
    precision: ActivationPrecision,
    types: &'a [WeightType],
    matrices: HashMap<MatrixKey, MatrixId>,
    vectors: HashMap<VectorKey, VectorId>,
    floats: HashMap<(Use, Rows, usize), FloatBuf>,
    acts: HashMap<(Rows, usize), ActBuf>,
    program: Program,
}

impl Assembler<'_> {
    fn run(&mut self, skipped: &[usize]) {
        let spec = self.spec;
        let last = (0..spec.layers.len()).rev().find(|i| !skipped.contains(i));
        let d = spec.d_model;
        let mut rows = Rows::Tokens;
        let mut x = self.float(Use::Residual, rows, d);
        let table = self.matrix(Role::TokenEmbd, 0, 0);
        self.push(Op::Embed { table, scale: spec.embed_scale, out: x });
        for (i, layer) in spec.layers.iter().enumerate().filter(|(i, _)| !skipped.contains(i)) {
            let mut attended = self.attention(i, layer, x);
            let dense = matches!(layer.ffn, FfnSpec::Gated { .. });
            if Some(i) == last && dense {
                rows = Rows::Wanted;
                attended = self.keep_wanted(Use::Attended, attended);
                x = self.keep_wanted(Use::Residual, x);
            }
            self.attention_output(i, layer, rows, attended, x);
            self.feed_forward(i, layer, rows, x);
        }
        if rows == Rows::Tokens {
            x = self.keep_wanted(Use::Residual, x);
        }
        self.head(x);
    }

    fn head(&mut self, x: FloatBuf) {
        let spec = self.spec;
        let acts = self.act(Rows::Wanted, spec.d_model);
        let weight = self.vector(VectorKey::One(Role::OutputNorm, 0));
        self.push(Op::Norm { x, weight, eps: spec.norm_eps, out: acts });
        self.program.hidden = Some((x, weight, spec.norm_eps));
        let role = if spec.tied_head { Role::TokenEmbd } else { Role::Output };
        let logits = self.float(Use::Logits, Rows::Full, spec.vocab_size);
        self.matmul(&[(role, 0)], (0, 0), acts, logits, false);
        let (scale, cap) = (spec.logit_scale, spec.logit_softcap);
        self.push(Op::Best { matrix: self.matrix(role, 0, 0), acts, scale, cap });
        if scale.is_some() || cap.is_some() {
            self.push(Op::Logits { x: logits, scale, cap });
        }
        self.program.logits = Some(logits);
    }

    /// Everything up to the attention's result, for all tokens.
    fn attention(&mut self, i: usize, layer: &LayerSpec, x: FloatBuf) -> FloatBuf {
        let (rows, eps) = (Rows::Tokens, self.spec.norm_eps);
        let spec = &layer.attn;
        let acts = self.act(rows, self.spec.d_model);
        let weight = self.vector(VectorKey::One(Role::AttnNorm, i));
        self.push(Op::Norm { x, weight, eps, out: acts });
        let (q, kv) = (spec.n_heads * spec.head_dim, spec.n_kv_heads * spec.head_dim);
        let qkv = self.float(Use::Qkv, rows, qkv_width(layer));
        let parts = [(Role::Q, 0), (Role::K, q), (Role::V, q + kv)];
        self.matmul(&parts, (i, 0), acts, qkv, false);
        let bias = spec.qkv_bias.then(|| self.vector(VectorKey::QkvBias(i)));
        let norms = spec.qk_norm.then(|| {
            let norm = |role| self.vector(VectorKey::One(role, i));
            (norm(Role::QNorm), norm(Role::KNorm), eps)
        });
        let rope = self.rope(&spec.rope);
        self.push(Op::Heads { layer: i, spec: spec.clone(), rope, qkv, bias, norms });
        let out = self.float(Use::Attended, rows, spec.n_heads * spec.v_head_dim);
        self.push(Op::Attend { layer: i, spec: spec.clone(), qkv, out });
        out
    }

    fn attention_output(
        &mut self,
        i: usize,
        layer: &LayerSpec,
        rows: Rows,
        attended: FloatBuf,
        x: FloatBuf,
    ) {
        let spec = &layer.attn;
        let acts = self.act(rows, spec.n_heads * spec.v_head_dim);
        self.push(Op::Quantize { x: attended, out: acts });
        let post = layer.post_attn_norm.then_some(Role::PostAttnNorm);
        let bias = spec.out_bias.then_some(Role::OBias);
        self.add_product(i, Role::O, rows, acts, x, bias, post);
    }

    fn feed_forward(&mut self, i: usize, layer: &LayerSpec, rows: Rows, x: FloatBuf) {
        let (d, eps) = (self.spec.d_model, self.spec.norm_eps);
        let acts = self.act(rows, d);
        let weight = self.vector(VectorKey::One(Role::FfnNorm, i));
        self.push(Op::Norm { x, weight, eps, out: acts });
        let post = layer.post_ffn_norm.then_some(Role::PostFfnNorm);
        match &layer.ffn {
            FfnSpec::Gated { d_ff, activation } => {
                let gate_up = self.float(Use::GateUp, rows, 2 * d_ff);
                self.matmul(&[(Role::Gate, 0), (Role::Up, *d_ff)], (i, 0), acts, gate_up, false);
                let out = self.act(rows, *d_ff);
                self.push(Op::Gated { gate_up, activation: *activation, out });
                self.add_product(i, Role::Down, rows, out, x, None, post);
            }
            FfnSpec::Moe(moe) => self.experts(i, moe, acts, x, post),
        }
    }

    fn experts(&mut self, i: usize, moe: &MoeSpec, acts: ActBuf, x: FloatBuf, post: Option<Role>) {
        let d = self.spec.d_model;
        let logits = self.float(Use::Router, Rows::Tokens, moe.n_experts);
        self.matmul(&[(Role::Router, 0)], (i, 0), acts, logits, false);
        let rows = Rows::Routed { per_token: moe.n_used };
        let routed = self.act(rows, d);
        self.push(Op::Route {
            logits,
            per_token: moe.n_used,
            renormalize: moe.renormalize,
            acts,
            out: routed,
        });
        let gate_up = self.float(Use::GateUp, rows, 2 * moe.d_ff);
        let gates = [(Role::ExpertGate, 0), (Role::ExpertUp, moe.d_ff)];
        self.expert_matmul(i, moe.n_experts, &gates, routed, gate_up);
        // The source and the gathered copy must be kept in the same precisions.
        let needs = self.program.acts[routed.0].2;
        merge(&mut self.program.acts[acts.0].2, needs);
        self.program.acts[routed.0].2 = self.program.acts[acts.0].2;
        let hidden = self.act(rows, moe.d_ff);
        self.push(Op::Gated { gate_up, activation: moe.activation, out: hidden });
        let y = self.float(Use::Projected, rows, d);
        self.expert_matmul(i, moe.n_experts, &[(Role::ExpertDown, 0)], hidden, y);
        let per_token = moe.n_used;
        match post {
            None => self.push(Op::Combine { y, per_token, x, replace: false }),
            Some(role) => {
                let sum = self.float(Use::Projected, Rows::Tokens, d);
                self.push(Op::Combine { y, per_token, x: sum, replace: true });
                let weight = self.vector(VectorKey::One(role, i));
                self.push(Op::NormAdd { y: sum, weight, eps: self.spec.norm_eps, x });
            }
        }
    }

    /// `x += post(acts * matrix + bias)`.
    #[allow(clippy::too_many_arguments, reason = "the parts of one formula")]
    fn add_product(
        &mut self,
        layer: usize,
        role: Role,
        rows: Rows,
        acts: ActBuf,
        x: FloatBuf,
        bias: Option<Role>,
        post: Option<Role>,
    ) {
        let target = match post {
            None => x,
            Some(_) => self.float(Use::Projected, rows, self.spec.d_model),
        };
        self.matmul(&[(role, 0)], (layer, 0), acts, target, post.is_none());
        if let Some(bias) = bias {
            let bias = self.vector(VectorKey::One(bias, layer));
            self.push(Op::AddBias { x: target, bias });
        }
        if let Some(post) = post {
            let weight = self.vector(VectorKey::One(post, layer));
            self.push(Op::NormAdd { y: target, weight, eps: self.spec.norm_eps, x });
        }
    }

    fn keep_wanted(&mut self, kind: Use, x: FloatBuf) -> FloatBuf {
        let width = self.program.floats[x.0].1;
        let out = self.float(kind, Rows::Wanted, width);
        self.push(Op::Select { x, out });
        out
    }

    fn matmul(
        &mut self,
        parts: &[(Role, usize)],
        (layer, expert): (usize, usize),
        acts: ActBuf,
        out: FloatBuf,
        add: bool,
    ) {
        let parts = self.parts(parts, layer, expert, acts);
        self.push(Op::MatMul { parts, acts, out, add });
    }

    fn expert_matmul(
        &mut self,
        layer: usize,
        n_experts: usize,
        parts: &[(Role, usize)],
        acts: ActBuf,
        out: FloatBuf,
    ) {
        let experts = (0..n_experts).map(|e| self.parts(parts, layer, e, acts)).collect();
        self.push(Op::ExpertMatMul { experts, acts, out });
    }

    /// Resolves matrices and notes what precision their weights need of `acts`.
    fn parts(
        &mut self,
        parts: &[(Role, usize)],
        layer: usize,
        expert: usize,
        acts: ActBuf,
    ) -> Vec<(MatrixId, usize)> {
        let mut resolved = Vec::with_capacity(parts.len());
        for &(role, at) in parts {
            let id = self.matrix(role, layer, expert);
            let float = PackSpec::of(self.types[id.0]).is_float();
            self.program.acts[acts.0].2.add(float, self.precision);
            resolved.push((id, at));
        }
        resolved
    }

    fn push(&mut self, op: Op) {
        self.program.ops.push(op);
    }

    fn matrix(&self, role: Role, layer: usize, expert: usize) -> MatrixId {
        self.matrices[&MatrixKey { role, layer, expert }]
    }

    fn vector(&self, key: VectorKey) -> VectorId {
        self.vectors[&key]
    }

    fn rope(&mut self, spec: &RopeSpec) -> usize {
        let ropes = &mut self.program.ropes;
        ropes.iter().position(|r| r == spec).unwrap_or_else(|| {
            ropes.push(spec.clone());
            ropes.len() - 1
        })
    }

    fn float(&mut self, kind: Use, rows: Rows, width: usize) -> FloatBuf {
        let floats = &mut self.program.floats;
        *self.floats.entry((kind, rows, width)).or_insert_with(|| {
            floats.push((rows, width));
            FloatBuf(floats.len() - 1)
        })
    }

    fn act(&mut self, rows: Rows, width: usize) -> ActBuf {
        let acts = &mut self.program.acts;
        *self.acts.entry((rows, width)).or_insert_with(|| {
            acts.push((rows, width, ActNeeds::default()));
            ActBuf(acts.len() - 1)
        })
    }
}

fn merge(a: &mut ActNeeds, b: ActNeeds) {
    a.float |= b.float;
    a.int8 = a.int8.or(b.int8);
}

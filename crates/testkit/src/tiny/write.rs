//! Writing tiny models to disk.

use std::fs;
use std::path::{Path, PathBuf};

use dunlin_checkpoint::gguf::{GgufWriter, MetaValue};
use dunlin_quant::quantize_row;
use dunlin_spec::WeightType;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::json;

use super::{Tensor, Tiny, tokens};

/// GGUF metadata in order.
#[derive(Debug, Clone, Default)]
pub struct MetaList(Vec<(String, MetaValue)>);

impl MetaList {
    /// Adds a key.
    pub fn add(&mut self, key: impl Into<String>, value: impl Into<MetaValue>) {
        self.0.push((key.into(), value.into()));
    }
}

impl Tiny {
    /// Writes the model as a GGUF file into `folder`; its path.
    pub fn write_gguf(&self, folder: &Path) -> PathBuf {
        let mut list = self.metadata.clone();
        tokens::gguf_metadata(&mut list);
        let mut writer = GgufWriter::new();
        for (key, value) in list.0 {
            writer.meta(key, value);
        }
        let mut data = Vec::new();
        for t in self.gguf_tensors() {
            let ty = self.stored_as(&t);
            let dims: Vec<u64> = t.shape.iter().rev().map(|d| *d as u64).collect();
            writer.tensor(&t.name, &dims, ty).expect("rows of whole blocks");
            data.push(encode(ty, &t));
        }
        let path = folder.join(format!("{}.gguf", self.name));
        fs::write(&path, writer.to_bytes(&data).expect("as declared")).expect("a writable folder");
        path
    }

    /// Writes the model as a Hugging Face folder below `folder`, its tensors in `shards` files; the
    /// new folder's path. `None` for types that such folders do not have.
    pub fn write_hf(&self, folder: &Path, shards: usize) -> Option<PathBuf> {
        let dtype = match self.ty {
            WeightType::F32 => Dtype::F32,
            WeightType::F16 => Dtype::F16,
            WeightType::BF16 => Dtype::BF16,
            _ => return None,
        };
        let path = folder.join(format!("{}-hf{shards}", self.name));
        fs::create_dir_all(&path).expect("a writable folder");
        let write = |name: &str, text: String| {
            fs::write(path.join(name), text).expect("a writable folder");
        };
        write("config.json", self.config.to_string());
        write("tokenizer.json", tokens::tokenizer_json().to_string());
        write("tokenizer_config.json", tokens::tokenizer_config().to_string());
        let mut map = serde_json::Map::new();
        for (i, part) in self.tensors.chunks(self.tensors.len().div_ceil(shards)).enumerate() {
            let file = match shards {
                1 => "model.safetensors".to_string(),
                n => format!("model-{:05}-of-{n:05}.safetensors", i + 1),
            };
            map.extend(part.iter().map(|t| (t.name.clone(), json!(file))));
            fs::write(path.join(file), self.safetensors(part, dtype)).expect("a writable folder");
        }
        if shards > 1 {
            let index = json!({"metadata": {}, "weight_map": map});
            write("model.safetensors.index.json", index.to_string());
        }
        Some(path)
    }

    /// Vectors are F32 in both containers, so that both hold the same values.
    fn stored_as(&self, t: &Tensor) -> WeightType {
        // A router is small and decides which experts run: files keep it in full.
        let full = t.shape.len() == 1
            || t.name.contains("ffn_gate_inp")
            || t.name.ends_with(".gate.weight");
        if full { WeightType::F32 } else { self.ty }
    }

    fn safetensors(&self, tensors: &[Tensor], dtype: Dtype) -> Vec<u8> {
        let stored: Vec<(Dtype, Vec<u8>)> = tensors
            .iter()
            .map(|t| match self.stored_as(t) {
                WeightType::F32 => (Dtype::F32, encode(WeightType::F32, t)),
                ty => (dtype, encode(ty, t)),
            })
            .collect();
        let views = tensors.iter().zip(&stored).map(|(t, (dtype, bytes))| {
            let view = TensorView::new(*dtype, t.shape.clone(), bytes).expect("sizes fit");
            (t.name.clone(), view)
        });
        safetensors::serialize(views, None).expect("a valid file")
    }
}

/// A tensor's rows as blocks of the type.
fn encode(ty: WeightType, t: &Tensor) -> Vec<u8> {
    let columns = *t.shape.last().expect("no tensor is a scalar");
    let row_bytes = ty.row_bytes(columns).expect("rows of whole blocks");
    let mut bytes = vec![0; row_bytes * (t.data.len() / columns)];
    for (values, row) in t.data.chunks_exact(columns).zip(bytes.chunks_exact_mut(row_bytes)) {
        quantize_row(ty, values, row).expect("finite values");
    }
    bytes
}

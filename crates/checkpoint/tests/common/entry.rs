//! What fuzzing and the tests of hostile files run on a file's bytes: read it, and, where it can be
//! read, use everything. Only a panic, an unbounded allocation or a broken promise is a failure.

use std::{collections::BTreeMap, sync::Arc};

use dunlin_checkpoint::{
    CheckpointError, ModelFile, Role, TokenizerSource,
    gguf::{Gguf, GgufParts},
    hf::MemoryFolder,
    source::MemorySource,
};
use dunlin_spec::{FfnSpec, KvType};

/// Reads bytes as a GGUF model; whether it could be read.
pub fn gguf(data: &[u8]) -> bool {
    match read_gguf(data) {
        Ok(file) => {
            use_all(&file);
            true
        }
        Err(error) => {
            check_message(&error);
            false
        }
    }
}

/// Reads bytes as a GGUF model, without using it.
pub fn read_gguf(data: &[u8]) -> Result<ModelFile, CheckpointError> {
    let gguf = Gguf::parse(Arc::new(MemorySource(data.to_vec())))?;
    for (key, value) in gguf.metadata() {
        assert!(!key.is_empty() && gguf.get(key).is_some());
        if let Some(array) = value.as_array() {
            assert_eq!(array.iter().count(), array.len(), "an array has all of its elements");
        }
    }
    for t in gguf.tensors() {
        assert_eq!(gguf.data(t).len() as u64, t.bytes, "a tensor lies within the file");
    }
    ModelFile::from_gguf(GgufParts::join(vec![gguf], Vec::new())?)
}

/// The files of a folder that a fuzzer's input holds, in this order, each behind its length (four
/// bytes, little-endian); empty ones are absent.
pub const HF_FILES: [&str; 8] = [
    "config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "part.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
];

/// Reads bytes as a Hugging Face folder; whether it could be read.
pub fn hf(data: &[u8]) -> bool {
    match ModelFile::from_folder(&unpack_folder(data)) {
        Ok(file) => {
            use_all(&file);
            true
        }
        Err(error) => {
            check_message(&error);
            false
        }
    }
}

fn unpack_folder(mut data: &[u8]) -> MemoryFolder {
    let mut files = BTreeMap::new();
    for name in HF_FILES {
        let Some((len, rest)) = data.split_first_chunk::<4>() else { break };
        let len = (u32::from_le_bytes(*len) as usize).min(rest.len());
        let (file, rest) = rest.split_at(len);
        if len > 0 {
            files.insert(name.into(), file.to_vec());
        }
        data = rest;
    }
    MemoryFolder(files)
}

/// A folder as a fuzzer's input.
pub fn pack_folder(folder: &MemoryFolder) -> Vec<u8> {
    let mut out = Vec::new();
    for name in HF_FILES {
        let file = folder.0.get(name).map_or(&[][..], |f| f);
        out.extend((file.len() as u32).to_le_bytes());
        out.extend(file);
    }
    out
}

fn check_message(error: &CheckpointError) {
    let message = error.to_string();
    assert!(!message.is_empty() && message.len() < 200_000, "{}", message.len());
}

/// Uses everything that a model that was accepted offers.
fn use_all(file: &ModelFile) {
    let spec = file.spec();
    spec.validate().expect("an accepted model has a valid spec");
    for (l, layer) in spec.layers.iter().enumerate() {
        let experts = match &layer.ffn {
            FfnSpec::Gated { .. } => 1,
            FfnSpec::Moe(m) => m.n_experts,
        };
        for role in Role::ALL {
            // The last expert as well as the first: stacks have an end.
            for expert in [0, experts - 1, experts] {
                if let Some(m) = file.matrix(role, l, expert) {
                    assert!(!role.is_expert() || expert < experts);
                    let row = m.ty.row_bytes(m.cols).expect("whole blocks");
                    for i in [0, m.rows / 2, m.rows - 1] {
                        assert_eq!(m.row(i).len(), row);
                    }
                }
                file.vector(role, l);
            }
        }
        assert!(file.matrix(Role::Q, l, 0).is_some() && file.vector(Role::AttnNorm, l).is_some());
    }
    assert!(file.matrix(Role::Q, spec.layers.len(), 0).is_none());
    assert!(file.matrix(Role::TokenEmbd, 0, 0).is_some());
    let facts = file.inspect();
    assert_eq!(facts.sizes.n_layers, spec.layers.len());
    file.memory_estimate(spec.context_length, KvType::F16).total();
    file.spec_for_context(1).validate().expect("valid for short contexts");
    let _ = file.chat_templates();
    let Some(TokenizerSource::Gguf(t)) = file.tokenizer() else { return };
    let _ = (t.model(), t.pre(), t.bos_id(), t.add_bos(), t.precompiled_charsmap());
    if let Ok(tokens) = t.tokens() {
        let (len, mut seen) = (tokens.len(), 0);
        tokens.for_each(|_| seen += 1);
        assert_eq!(seen, len);
    }
    if let Ok(Some(scores)) = t.scores() {
        scores.for_each(drop);
    }
    if let Ok(Some(types)) = t.token_types() {
        types.for_each(drop);
    }
}

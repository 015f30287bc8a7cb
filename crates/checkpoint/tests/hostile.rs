//! Files that lie: truncated, bit-flipped, and with every kind of number that does not fit.

mod common;

use common::{Rng, VOCAB, entry, folder, gguf_llama, gguf_metadata, hf_config, hf_llama, seed};
use dunlin_checkpoint::{ModelFile, gguf::GgufWriter, hf::MemoryFolder};
use dunlin_spec::WeightType;

/// A GGUF header put together by hand, so that every field can lie.
#[derive(Default)]
struct Raw(Vec<u8>);

impl Raw {
    fn new(tensors: u64, keys: u64) -> Self {
        Self::default().put(b"GGUF").u32(3).u64(tensors).u64(keys)
    }

    fn put(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    fn u32(self, v: u32) -> Self {
        self.put(&v.to_le_bytes())
    }

    fn u64(self, v: u64) -> Self {
        self.put(&v.to_le_bytes())
    }

    fn str(self, s: &str) -> Self {
        self.u64(s.len() as u64).put(s.as_bytes())
    }

    fn tensor(self, name: &str, dims: &[u64], ty: u32, offset: u64) -> Self {
        let head = self.str(name).u32(dims.len() as u32);
        dims.iter().fold(head, |r, d| r.u64(*d)).u32(ty).u64(offset)
    }

    /// Pads to the alignment and adds `n` bytes of data.
    fn data(mut self, n: usize) -> Self {
        self.0.resize(self.0.len().next_multiple_of(32) + n, 0);
        self
    }
}

#[test]
fn lying_headers_are_refused_by_name() {
    let array = |elem: u32, n: u64| Raw::new(0, 1).str("k").u32(9).u32(elem).u64(n);
    let deep = (0..6).fold(Raw::new(0, 1).str("k"), |r, _| r.u32(9).put(&[])).u32(0).0;
    let nested = (0..8).fold(Raw::new(0, 1).str("k").u32(9), |r, _| r.u32(9).u64(1)).data(999);
    let one = |dims: &[u64], ty: u32, offset: u64| {
        Raw::new(1, 0).tensor("t", dims, ty, offset).data(4096)
    };
    let two = |a: u64, b: u64| {
        Raw::new(2, 0).tensor("a", &[64], 0, a).tensor("b", &[64], 0, b).data(4096)
    };
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("nothing", vec![], "ends within a magic"),
        ("another file", b"PK\x03\x04 and so on".to_vec(), "does not begin with"),
        ("no more than a magic", b"GGUF".to_vec(), "ends within a version"),
        ("version 1", Raw::default().put(b"GGUF").u32(1).data(64).0, "version 1"),
        ("version 4", Raw::default().put(b"GGUF").u32(4).data(64).0, "version 4"),
        ("big-endian", Raw::default().put(b"GGUF\0\0\0\x03").data(64).0, "big-endian"),
        ("tensor count", Raw::new(1 << 60, 0).data(64).0, "do not fit"),
        ("key count", Raw::new(0, u64::MAX).data(64).0, "do not fit"),
        ("long key", Raw::new(0, 1).u64(1 << 62).data(64).0, "passes the end"),
        ("overlong key", Raw::new(0, 1).u64(70_000).data(80_000).0, "at most 65535"),
        ("empty key", Raw::new(0, 1).u64(0).u32(0).data(64).0, "key is empty"),
        ("key not UTF-8", Raw::new(0, 1).u64(1).put(b"\xff").data(64).0, "not UTF-8"),
        ("unknown value type", Raw::new(0, 1).str("k").u32(13).data(64).0, "value type 13"),
        ("long string", Raw::new(0, 1).str("k").u32(8).u64(u64::MAX).data(64).0, "passes the end"),
        ("no bool", Raw::new(0, 1).str("k").u32(7).put(&[2]).data(64).0, "no bool"),
        ("long array", array(4, 1 << 61).data(64).0, "passes the end"),
        ("array of strings", array(8, 1 << 59).data(64).0, "passes the end"),
        ("array of unknowns", array(77, 0).data(64).0, "value type 77"),
        ("array of no bools", array(7, 3).put(&[0, 1, 9]).data(64).0, "bools"),
        ("endless nesting", nested.0, "too deep"),
        ("nesting without end", deep, ""),
        (
            "the same key twice",
            {
                let r = Raw::new(0, 2).str("k").u32(0).put(&[1]);
                r.str("k").u32(0).put(&[1]).data(64).0
            },
            "appears twice",
        ),
        (
            "alignment 3",
            Raw::new(0, 1).str("general.alignment").u32(4).u32(3).data(64).0,
            "power of two",
        ),
        (
            "alignment 0",
            Raw::new(0, 1).str("general.alignment").u32(4).u32(0).data(64).0,
            "power of two",
        ),
        (
            "alignment 2^31",
            Raw::new(0, 1).str("general.alignment").u32(4).u32(1 << 31).data(64).0,
            "power of two",
        ),
        (
            "alignment as text",
            Raw::new(0, 1).str("general.alignment").u32(8).str("32").data(64).0,
            "power of two",
        ),
        ("no dimensions", one(&[], 0, 0).0, "0 dimensions"),
        ("five dimensions", one(&[1, 1, 1, 1, 1], 0, 0).0, "5 dimensions"),
        ("zero dimension", one(&[0], 0, 0).0, "is zero"),
        ("zero rows", one(&[32, 0], 0, 0).0, "is zero"),
        ("product overflow", one(&[1 << 40, 1 << 40], 0, 0).0, "overflows"),
        ("bytes overflow", one(&[1 << 62], 0, 0).0, "overflows"),
        ("partial block", one(&[33], 2, 0).0, "whole blocks of 32"),
        ("partial superblock", one(&[32], 12, 0).0, "whole blocks of 256"),
        ("type IQ2_XXS", one(&[256], 16, 0).0, "IQ2_XXS (id 16); supported types: F32, F16"),
        ("removed type", one(&[32], 4, 0).0, "Q4_2"),
        ("unknown type", one(&[32], 999, 0).0, "unknown (id 999)"),
        ("misaligned", one(&[32], 0, 4).0, "no multiple of the alignment"),
        ("past the end", one(&[1025], 0, 0).0, "pass the end"),
        ("offset past the end", one(&[32], 0, 1 << 63).0, "pass the end"),
        ("offset at the end of numbers", one(&[32], 0, u64::MAX - 31).0, "pass the end"),
        ("overlap", two(0, 128).0, "overlaps"),
        ("the same place", two(256, 256).0, "overlaps"),
        (
            "the same tensor twice",
            { Raw::new(2, 0).tensor("a", &[64], 0, 0).tensor("a", &[64], 0, 256).data(4096).0 },
            "appears twice",
        ),
        ("nameless tensor", Raw::new(1, 0).tensor("", &[32], 0, 0).data(4096).0, "name is empty"),
        ("no metadata", one(&[32], 0, 0).0, "general.architecture"),
    ];
    for (what, bytes, says) in cases {
        let error = entry::read_gguf(&bytes).expect_err(what).to_string();
        assert!(error.contains(says), "{what}: {error}");
    }
    assert!(entry::read_gguf(&two(0, 256).0).unwrap_err().to_string().contains("architecture"));
}

/// Every prefix of a small model.
#[test]
fn truncation_never_panics() {
    let whole = gguf_llama(&mut Rng(7)).gguf(gguf_metadata("llama"));
    assert!(entry::gguf(&whole));
    for len in 0..whole.len() {
        // The header byte by byte; the data, where all bytes are alike, in steps.
        if len < 6000 || len % 97 == 0 {
            assert!(!entry::gguf(&whole[..len]), "{len} of {} bytes", whole.len());
        }
    }
    let config = hf_config("LlamaForCausalLM", serde_json::json!({}));
    let files = folder(&config, &hf_llama(&mut Rng(7)));
    assert!(entry::hf(&entry::pack_folder(&files)));
    for (name, file) in &files.0 {
        for len in (0..file.len()).filter(|l| *l < 3000 || l % 97 == 0) {
            let mut cut = files.clone();
            cut.0.insert(name.clone(), file[..len].to_vec());
            assert!(!entry::hf(&entry::pack_folder(&cut)), "{name}: {len} of {}", file.len());
        }
    }
}

#[test]
fn flipped_bits_never_panic() {
    let mut rng = Rng(seed());
    let whole = gguf_llama(&mut Rng(7)).gguf(gguf_metadata("llama"));
    let header =
        whole.len() - gguf_llama(&mut Rng(7)).0.iter().map(|t| t.data.len() * 4).sum::<usize>();
    let mut refused = 0;
    for _ in 0..4000 {
        let mut bytes = whole.clone();
        for _ in 0..1 + rng.below(3) {
            bytes[rng.below(header)] ^= 1 << rng.below(8);
        }
        refused += usize::from(!entry::gguf(&bytes));
    }
    assert!(refused > 1000, "{refused} of 4000 were refused");
}

/// Counts of experts, layers and the like that the tensors do not bear out.
#[test]
fn metadata_that_lies_about_sizes_is_refused() {
    let tensors = gguf_llama(&mut Rng(9));
    for (key, value) in [
        ("block_count", 0u32),
        ("block_count", 1),
        ("block_count", 3),
        ("block_count", u32::MAX),
        ("context_length", 0),
        ("embedding_length", 0),
        ("embedding_length", 64),
        ("embedding_length", u32::MAX),
        ("feed_forward_length", 0),
        ("feed_forward_length", u32::MAX),
        ("attention.head_count", 0),
        ("attention.head_count", 3),
        ("attention.head_count", u32::MAX),
        ("attention.head_count_kv", 0),
        ("attention.head_count_kv", 3),
        ("attention.head_count_kv", 8),
        ("attention.key_length", 12),
        ("attention.key_length", u32::MAX),
        ("rope.dimension_count", 0),
        ("rope.dimension_count", 7),
        ("rope.dimension_count", 18),
        ("expert_count", 8),
        ("expert_count", u32::MAX),
        ("vocab_size", 17),
    ] {
        let error = with_key(&tensors, key, value).expect_err(key);
        assert!(!error.is_empty());
    }
    assert!(with_key(&tensors, "vocab_size", VOCAB as u32).is_ok());
    assert!(with_key(&tensors, "rope.dimension_count", 8).is_ok());
}

/// A tiny llama with one key more, which stands in for one of the usual ones.
fn with_key(tensors: &common::Tensors, key: &str, value: u32) -> Result<ModelFile, String> {
    let full = format!("llama.{key}");
    let mut w = GgufWriter::new();
    w.meta("general.architecture", "llama").meta("llama.attention.layer_norm_rms_epsilon", 1e-5f32);
    for (usual, v) in [
        ("block_count", common::LAYERS),
        ("context_length", 256),
        ("embedding_length", common::D),
        ("feed_forward_length", common::FF),
        ("attention.head_count", common::HEADS),
        ("attention.head_count_kv", common::KV_HEADS),
        ("attention.key_length", common::HEAD),
    ] {
        if usual != key {
            w.meta(format!("llama.{usual}"), v as u32);
        }
    }
    w.meta(full, value);
    entry::read_gguf(&tensors.gguf(w)).map_err(|e| e.to_string())
}

#[test]
fn what_is_wrong_with_tensors_is_named() {
    let tensors = gguf_llama(&mut Rng(11));
    let error = |change: &dyn Fn(&mut common::Tensors)| {
        let mut changed = tensors.clone();
        change(&mut changed);
        entry::read_gguf(&changed.gguf(gguf_metadata("llama"))).unwrap_err().to_string()
    };
    let missing = error(&|t| t.remove("blk.1.attn_v.weight"));
    assert!(missing.contains("blk.1.attn_v.weight") && missing.contains("missing"), "{missing}");
    let shape = error(&|t| {
        let at = t.0.iter_mut().find(|t| t.name == "blk.0.ffn_up.weight").unwrap();
        at.shape.reverse();
    });
    assert!(shape.contains("blk.0.ffn_up.weight") && shape.contains("[24, 32]"), "{shape}");
    let extra = error(&|t| {
        t.add(&mut Rng(1), "blk.0.ffn_gate_shexp.weight", &[24, 32]);
    });
    assert!(extra.contains("blk.0.ffn_gate_shexp.weight"), "{extra}");
    let mut w = gguf_metadata("llama");
    let mut data = Vec::new();
    for t in &tensors.0 {
        let quantized = t.name == "output_norm.weight";
        let ty = if quantized { WeightType::Q8_0 } else { WeightType::F32 };
        let dims: Vec<u64> = t.shape.iter().rev().map(|d| *d as u64).collect();
        w.tensor(&t.name, &dims, ty).unwrap();
        data.push(if quantized { vec![0; 34] } else { common::bytes(&t.data) });
    }
    let norm = entry::read_gguf(&w.to_bytes(&data).unwrap()).unwrap_err().to_string();
    assert!(norm.contains("output_norm.weight") && norm.contains("must be floats"), "{norm}");
}

#[test]
fn folders_that_lie_are_refused() {
    let config = hf_config("LlamaForCausalLM", serde_json::json!({}));
    let tensors = hf_llama(&mut Rng(13));
    let good = folder(&config, &tensors);
    assert!(ModelFile::from_folder(&good).is_ok());
    let spoiled = |name: &str, text: &str| {
        let mut files = good.clone();
        files.0.insert(name.into(), text.as_bytes().to_vec());
        ModelFile::from_folder(&files).unwrap_err().to_string()
    };
    let deep = "[".repeat(100_000);
    for (name, text, says) in [
        ("config.json", "", "JSON"),
        ("config.json", "[1, 2]", "architectures"),
        ("config.json", &*deep, "JSON"),
        ("config.json", "{\"architectures\": \"LlamaForCausalLM\"}", "begins with a name"),
        ("config.json", "{\"architectures\": [\"LlamaForCausalLM\"]}", "num_hidden_layers"),
        (
            "config.json",
            "{\"architectures\": [\"GPT2LMHeadModel\"]}",
            "supported: LlamaForCausalLM",
        ),
        ("config.json", "{\"architectures\": [\"Qwen2MoeForCausalLM\"]}", "shared experts"),
        ("tokenizer_config.json", "{", "tokenizer_config.json"),
        ("tokenizer_config.json", "{\"chat_template\": 7}", "tokenizer_config.json"),
        ("generation_config.json", "{\"eos_token_id\": -1}", "eos_token_id"),
        ("generation_config.json", "{\"eos_token_id\": [1, \"x\"]}", "eos_token_id"),
    ] {
        let error = spoiled(name, text);
        assert!(error.contains(says), "{name} {}: {error}", &text[..text.len().min(60)]);
    }
    let mut files = good.clone();
    files.0.insert("chat_template.jinja".into(), vec![0xff]);
    assert!(ModelFile::from_folder(&files).unwrap_err().to_string().contains("UTF-8"));
    let weights = files.0.remove("model.safetensors").unwrap();
    assert!(ModelFile::from_folder(&files).unwrap_err().to_string().contains("converted"));
    for (map, says) in [
        (r#"{"weight_map": {"a": "../model.safetensors"}}"#, "not one of this folder"),
        (r#"{"weight_map": {"a": "/etc/passwd"}}"#, "not one of this folder"),
        (r#"{"weight_map": {"a": "x\\y"}}"#, "not one of this folder"),
        (r#"{"weight_map": {"a": ".."}}"#, "not one of this folder"),
        (r#"{"weight_map": {"a": ""}}"#, "not one of this folder"),
        (r#"{"weight_map": {"a": "gone.safetensors"}}"#, "gone.safetensors is missing"),
        (r#"{"weight_map": {"a": "part.safetensors"}}"#, "tensor a is missing"),
        (r#"{"weight_map": [1]}"#, "JSON"),
    ] {
        let mut files = MemoryFolder(good.0.clone());
        files.0.remove("model.safetensors");
        files.0.insert("part.safetensors".into(), weights.clone());
        files.0.insert("model.safetensors.index.json".into(), map.as_bytes().to_vec());
        let error = ModelFile::from_folder(&files).unwrap_err().to_string();
        assert!(error.contains(says), "{map}: {error}");
    }
}

#[test]
fn paths_that_are_no_models_say_what_to_give() {
    let dir = tempfile::tempdir().unwrap();
    let open = |p: &std::path::Path| ModelFile::open(p).unwrap_err().to_string();
    assert!(open(dir.path()).contains("config.json is missing"));
    assert!(open(&dir.path().join("none.gguf")).contains("none.gguf"));
    let text = dir.path().join("notes.txt");
    std::fs::write(&text, "hello there").unwrap();
    let error = open(&text);
    assert!(error.contains("notes.txt") && error.contains("GGUF"), "{error}");
}

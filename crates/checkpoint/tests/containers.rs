//! GGUF containers: agreement with the reference package, round trips of the writer, split files.

mod common;

use std::sync::Arc;

use common::{Rng, entry, gguf_llama, gguf_metadata};
use dunlin_checkpoint::{
    CheckpointError, ModelFile, Role,
    gguf::{Gguf, GgufParts, GgufWriter, MetaValue, Value},
    source::MemorySource,
};
use dunlin_spec::WeightType;

fn parse(bytes: Vec<u8>) -> Gguf {
    Gguf::parse(Arc::new(MemorySource(bytes))).unwrap()
}

#[test]
fn the_reference_package_agrees() {
    let file = parse(include_bytes!("data/gguf-py.gguf").to_vec());
    let facts: serde_json::Value =
        serde_json::from_slice(include_bytes!("data/gguf-py.json")).unwrap();
    let keys: Vec<&str> = file.metadata().map(|(k, _)| k).collect();
    let want: Vec<&str> =
        facts["keys"].as_array().unwrap().iter().map(|k| k.as_str().unwrap()).collect();
    assert_eq!(keys, want);
    let tensors = facts["tensors"].as_array().unwrap();
    assert_eq!(file.tensors().len(), tensors.len());
    for want in tensors {
        let t = file.tensor(want["name"].as_str().unwrap()).unwrap();
        let dims: Vec<u64> =
            want["dims"].as_array().unwrap().iter().map(|d| d.as_u64().unwrap()).collect();
        assert_eq!((t.ty.name(), &t.dims), (want["type"].as_str().unwrap(), &dims));
        assert_eq!(
            (Some(t.offset), Some(t.bytes)),
            (want["offset"].as_u64(), want["bytes"].as_u64())
        );
        let hex: String = file.data(t).iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, want["hex"].as_str().unwrap(), "{}", t.name);
    }
    for (key, value) in [
        ("k.u8", Value::U8(255)),
        ("k.i8", Value::I8(-128)),
        ("k.u16", Value::U16(65535)),
        ("k.i16", Value::I16(-32768)),
        ("k.u32", Value::U32(u32::MAX)),
        ("k.i32", Value::I32(i32::MIN)),
        ("k.f32", Value::F32(0.1)),
        ("k.u64", Value::U64(u64::MAX)),
        ("k.i64", Value::I64(i64::MIN)),
        ("k.f64", Value::F64(0.1)),
        ("k.true", Value::Bool(true)),
        ("k.false", Value::Bool(false)),
        ("k.str", Value::Str(b"a\nb")),
        ("general.name", Value::Str("fixture — ü".as_bytes())),
    ] {
        assert_eq!(file.get(key), Some(value), "{key}");
    }
    let array = |key: &str| file.get(key).unwrap().as_array().unwrap();
    let strings: Vec<&[u8]> = array("k.strs").strings().unwrap().collect();
    assert_eq!(strings, [&b""[..], "Ġ".as_bytes(), b"three"]);
    assert_eq!(array("k.i32s").i32s().unwrap().collect::<Vec<_>>(), [1, -2, 3]);
    assert_eq!(array("k.f32s").f32s().unwrap().collect::<Vec<_>>(), [0.5, -0.25]);
    let bools: Vec<_> = array("k.bools").iter().collect();
    assert_eq!(bools, [Value::Bool(true), Value::Bool(false), Value::Bool(true)]);
    let nested: Vec<Vec<Option<u64>>> = array("k.nested")
        .iter()
        .map(|v| v.as_array().unwrap().iter().map(|x| x.as_u64()).collect())
        .collect();
    assert_eq!(nested, [vec![Some(1), Some(2)], vec![Some(3)]]);
    assert_eq!(file.get("k"), None);
    assert_eq!(file.get("k.u8x"), None);
}

#[test]
fn what_is_written_is_read() {
    let mut w = GgufWriter::new();
    let values: Vec<(&str, MetaValue)> = vec![
        ("a", 1u8.into()),
        ("b", MetaValue::I8(-1)),
        ("c", 500u16.into()),
        ("d", MetaValue::I16(-500)),
        ("e", 70_000u32.into()),
        ("f", (-70_000i32).into()),
        ("g", 0.25f32.into()),
        ("h", true.into()),
        ("i", "text".into()),
        ("j", (1u64 << 40).into()),
        ("k", (-(1i64 << 40)).into()),
        ("l", 1e300f64.into()),
        ("m", vec![1u32, 2].into()),
        ("n", vec![-1i32].into()),
        ("o", vec![0.5f32, f32::NAN].into()),
        ("p", vec![true, false].into()),
        ("q", vec!["x".to_owned(), String::new()].into()),
        ("r", vec![vec![0xff, 0xfe], vec![]].into()),
        ("s", Vec::<f32>::new().into()),
    ];
    for (key, value) in &values {
        w.meta(*key, value.clone());
    }
    let mut rng = Rng(3);
    let mut data = Vec::new();
    for (i, ty) in WeightType::ALL.into_iter().enumerate() {
        let rows = 1 + rng.below(3) as u64;
        w.tensor(format!("t{i}"), &[256, rows], ty).unwrap();
        let len = ty.row_bytes(256).unwrap() * rows as usize;
        data.push((0..len).map(|_| rng.next() as u8).collect::<Vec<u8>>());
    }
    let bytes = w.to_bytes(&data).unwrap();
    let file = parse(bytes.clone());
    assert_eq!((file.version(), file.alignment(), file.metadata().count()), (3, 32, values.len()));
    for (i, ty) in WeightType::ALL.into_iter().enumerate() {
        let t = file.tensor(&format!("t{i}")).unwrap();
        assert_eq!((t.ty, file.data(t)), (ty, &data[i][..]));
        assert_eq!(t.offset % 32, 0);
    }
    assert_eq!(file.get("i").unwrap().as_str(), Some("text"));
    assert_eq!(file.get("k").unwrap(), Value::I64(-(1 << 40)));
    let floats: Vec<f32> = file.get("o").unwrap().as_array().unwrap().f32s().unwrap().collect();
    assert!(floats[0] == 0.5 && floats[1].is_nan());
    let strings: Vec<_> = file.get("r").unwrap().as_array().unwrap().strings().unwrap().collect();
    assert_eq!(strings, [&[0xff, 0xfe][..], &[]]);
    assert_eq!(file.get("r").unwrap().as_str(), None);
    // Version 2 differs in the number alone.
    let mut older = bytes;
    older[4] = 2;
    assert_eq!(parse(older).version(), 2);
}

#[test]
fn the_writer_holds_to_what_was_declared() {
    let mut w = GgufWriter::new();
    assert!(w.tensor("t", &[33], WeightType::Q8_0).is_err(), "no whole blocks");
    assert!(w.tensor("t", &[1 << 40, 1 << 40], WeightType::F32).is_err(), "overflow");
    w.tensor("t", &[32], WeightType::Q8_0).unwrap();
    assert!(w.to_bytes(&[vec![0; 33]]).is_err(), "too short");
    assert!(w.to_bytes::<Vec<u8>>(&[]).is_err(), "missing");
    assert!(w.to_bytes(&[vec![0; 34], vec![0; 34]]).is_err(), "too many");
    assert!(w.to_bytes(&[vec![0; 34]]).is_ok());
}

/// Writes a tiny model in three parts; `change` may spoil a part's keys (number, count, total).
fn split(dir: &std::path::Path, change: impl Fn(u16, &mut [i64; 3])) -> Vec<std::path::PathBuf> {
    let tensors = gguf_llama(&mut Rng(5));
    let total = tensors.0.len();
    let per = total.div_ceil(3);
    let part = |no: u16| {
        let mut w = if no == 0 { gguf_metadata("llama") } else { GgufWriter::new() };
        let mut keys = [i64::from(no), 3, total as i64];
        change(no, &mut keys);
        w.meta("split.no", keys[0] as u16).meta("split.count", keys[1] as u16);
        w.meta("split.tensors.count", keys[2] as i32);
        let mine = tensors.0.iter().skip(usize::from(no) * per).take(per).cloned();
        let bytes = common::Tensors(mine.collect()).gguf(w);
        let path = dir.join(format!("tiny-{:05}-of-00003.gguf", no + 1));
        std::fs::write(&path, bytes).unwrap();
        path
    };
    (0..3).map(part).collect()
}

#[test]
fn split_models_are_joined() {
    let dir = tempfile::tempdir().unwrap();
    let paths = split(dir.path(), |_, _| {});
    let whole_bytes = gguf_llama(&mut Rng(5)).gguf(gguf_metadata("llama"));
    let whole = entry::read_gguf(&whole_bytes).unwrap();
    for path in &paths {
        let file = ModelFile::open(path).unwrap();
        assert_eq!(file.spec(), whole.spec());
        assert_eq!(file.files(), paths);
        for role in [Role::TokenEmbd, Role::Q, Role::Down] {
            let (a, b) = (file.matrix(role, 1, 0).unwrap(), whole.matrix(role, 1, 0).unwrap());
            assert!((0..a.rows).all(|i| a.row(i) == b.row(i)), "{role:?}");
        }
        assert_eq!(file.inspect().tensors.len(), whole.inspect().tensors.len());
    }
}

#[test]
fn parts_that_do_not_fit_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let check = |change: &dyn Fn(u16, &mut [i64; 3]), says: &str| {
        let paths = split(dir.path(), change);
        let error = ModelFile::open(&paths[0]).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    };
    check(&|no, k| k[0] = if no == 1 { 2 } else { k[0] }, "says it is number");
    check(&|no, k| k[1] = if no == 2 { 4 } else { k[1] }, "says it is number");
    check(&|_, k| k[1] = 5, "which its name does not");
    check(&|_, k| k[2] += 1, "announced");
    check(&|_, k| k[2] = -1, "no count");
    let paths = split(dir.path(), |_, _| {});
    std::fs::copy(&paths[1], dir.path().join("renamed.gguf")).unwrap();
    let error = ModelFile::open(&dir.path().join("renamed.gguf")).unwrap_err();
    assert!(matches!(error, CheckpointError::Split { .. }), "{error}");
    std::fs::remove_file(&paths[2]).unwrap();
    let error = ModelFile::open(&paths[0]).unwrap_err().to_string();
    assert!(error.contains("tiny-00003-of-00003.gguf"), "{error}");
    // The same tensors in two parts.
    let one = gguf_llama(&mut Rng(5));
    let part = |no: u16| {
        let mut w = gguf_metadata("llama");
        w.meta("split.no", no).meta("split.count", 2u16);
        parse(one.gguf(w))
    };
    let error = GgufParts::join(vec![part(0), part(1)], Vec::new()).unwrap_err().to_string();
    assert!(error.contains("in two files"), "{error}");
}

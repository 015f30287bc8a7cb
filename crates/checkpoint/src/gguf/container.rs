//! GGUF files seen as any model's files.

use super::{GgufParts, TensorInfo, Value};
use crate::{
    arch::{Datum, Lookup, MAX_LIST},
    container::{Container, TensorDesc},
};

impl Lookup for GgufParts {
    fn lookup(&self, key: &str) -> Option<Datum<'_>> {
        self.get(key).map(|v| datum(v, true))
    }
}

fn datum(value: Value<'_>, lists: bool) -> Datum<'_> {
    match value {
        Value::F32(v) => Datum::Float(v.into()),
        Value::F64(v) => Datum::Float(v),
        Value::Bool(v) => Datum::Bool(v),
        Value::Str(v) => Datum::Str(String::from_utf8_lossy(v)),
        Value::Array(a) if !lists => {
            Datum::Other(if a.is_empty() { "an empty list" } else { "a list" })
        }
        Value::Array(a) if a.len() > MAX_LIST => Datum::Other("a very long list"),
        Value::Array(a) => Datum::List(a.iter().map(|v| datum(v, false)).collect()),
        Value::I8(v) => Datum::Int(v.into()),
        Value::I16(v) => Datum::Int(v.into()),
        Value::I32(v) => Datum::Int(v.into()),
        Value::I64(v) => Datum::Int(v),
        Value::U8(v) => Datum::Int(v.into()),
        Value::U16(v) => Datum::Int(v.into()),
        Value::U32(v) => Datum::Int(v.into()),
        Value::U64(v) => i64::try_from(v).map_or(Datum::Other("a huge number"), Datum::Int),
    }
}

impl Container for GgufParts {
    fn tensor(&self, name: &str) -> Option<TensorDesc> {
        let (part, index) = self.find(name)?;
        Some(desc(&self.parts()[part].tensors()[index], part))
    }

    fn tensors(&self) -> Vec<(&str, TensorDesc)> {
        let parts = self.parts().iter().enumerate();
        parts.flat_map(|(p, g)| g.tensors().iter().map(move |t| (&*t.name, desc(t, p)))).collect()
    }

    fn bytes(&self, file: usize, offset: u64, len: u64) -> &[u8] {
        self.parts().get(file).and_then(|p| p.source().slice(offset, len)).unwrap_or(&[])
    }
}

/// Sizes fit: the reader has checked that their product does.
fn desc(t: &TensorInfo, file: usize) -> TensorDesc {
    let dim = |i: usize| t.dims.get(i).map_or(1, |d| *d as usize);
    TensorDesc {
        ty: t.ty,
        cols: dim(0),
        rows: dim(1),
        slices: dim(2) * dim(3),
        rank: t.dims.len(),
        file,
        offset: t.offset,
        bytes: t.bytes,
    }
}

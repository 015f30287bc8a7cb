//! Metadata values, as views into the file.

/// The type of a metadata value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the format's own")]
pub enum ValueType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Str,
    Array,
    U64,
    I64,
    F64,
}

impl ValueType {
    const ALL: [ValueType; 13] = {
        use ValueType::*;
        [U8, I8, U16, I16, U32, I32, F32, Bool, Str, Array, U64, I64, F64]
    };

    /// The type with this id in the file.
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(id).ok()?).copied()
    }

    /// The type's id in the file.
    pub fn id(self) -> u32 {
        self as u32
    }

    /// Bytes of a value, or `None` for strings and arrays.
    pub fn fixed_size(self) -> Option<u64> {
        use ValueType::*;
        match self {
            U8 | I8 | Bool => Some(1),
            U16 | I16 => Some(2),
            U32 | I32 | F32 => Some(4),
            U64 | I64 | F64 => Some(8),
            Str | Array => None,
        }
    }

    /// The fewest bytes that a value takes in the file.
    pub(crate) fn min_size(self) -> u64 {
        match self {
            Self::Str => 8,
            Self::Array => 12,
            _ => self.fixed_size().unwrap_or(1),
        }
    }
}

/// A metadata value; strings and arrays borrow the file.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs, reason = "the names are the format's own")]
pub enum Value<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    /// Not checked to be UTF-8: a vocabulary may hold arbitrary bytes.
    Str(&'a [u8]),
    Array(Array<'a>),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl<'a> Value<'a> {
    /// Any integer that is not negative.
    pub fn as_u64(&self) -> Option<u64> {
        use Value::*;
        match *self {
            U8(v) => Some(v.into()),
            U16(v) => Some(v.into()),
            U32(v) => Some(v.into()),
            U64(v) => Some(v),
            I8(v) => u64::try_from(v).ok(),
            I16(v) => u64::try_from(v).ok(),
            I32(v) => u64::try_from(v).ok(),
            I64(v) => u64::try_from(v).ok(),
            _ => None,
        }
    }

    /// A float of either width, or an integer that a float holds exactly.
    pub fn as_f64(&self) -> Option<f64> {
        use Value::*;
        match *self {
            F32(v) => Some(v.into()),
            F64(v) => Some(v),
            I8(v) => Some(v.into()),
            I16(v) => Some(v.into()),
            I32(v) => Some(v.into()),
            U64(_) | U32(_) | U16(_) | U8(_) => {
                self.as_u64().filter(|&v| v <= 1 << 53).map(|v| v as f64)
            }
            _ => None,
        }
    }

    /// A bool.
    pub fn as_bool(&self) -> Option<bool> {
        match *self {
            Value::Bool(v) => Some(v),
            _ => None,
        }
    }

    /// A string that is UTF-8.
    pub fn as_str(&self) -> Option<&'a str> {
        match *self {
            Value::Str(v) => std::str::from_utf8(v).ok(),
            _ => None,
        }
    }

    /// An array.
    pub fn as_array(&self) -> Option<Array<'a>> {
        match *self {
            Value::Array(v) => Some(v),
            _ => None,
        }
    }
}

/// An array of values of one type, still encoded. Only the reader makes these, after it has
/// checked that every element lies within `bytes`.
#[derive(Clone, Copy, PartialEq)]
pub struct Array<'a> {
    elem: ValueType,
    len: usize,
    bytes: &'a [u8],
}

impl std::fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "[{:?}; {}]", self.elem, self.len)
    }
}

impl<'a> Array<'a> {
    pub(crate) fn new(elem: ValueType, len: usize, bytes: &'a [u8]) -> Self {
        Self { elem, len, bytes }
    }

    /// The type of the elements.
    pub fn elem(&self) -> ValueType {
        self.elem
    }

    /// How many elements there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements as they lie in the file (strings with their lengths).
    pub fn raw(&self) -> &'a [u8] {
        self.bytes
    }

    /// The elements, in order.
    pub fn iter(&self) -> ArrayIter<'a> {
        ArrayIter { elem: self.elem, left: self.len, bytes: self.bytes }
    }

    /// The elements' bytes, where they are strings.
    pub fn strings(&self) -> Option<Strings<'a>> {
        (self.elem == ValueType::Str).then_some(Strings { left: self.len, bytes: self.bytes })
    }

    /// The elements, where they are 32-bit floats.
    pub fn f32s(&self) -> Option<impl ExactSizeIterator<Item = f32> + use<'a>> {
        (self.elem == ValueType::F32).then(|| self.words().map(f32::from_le_bytes))
    }

    /// The elements, where they are 32-bit integers of either sign; unsigned ones wrap.
    pub fn i32s(&self) -> Option<impl ExactSizeIterator<Item = i32> + use<'a>> {
        matches!(self.elem, ValueType::I32 | ValueType::U32)
            .then(|| self.words().map(i32::from_le_bytes))
    }

    fn words(&self) -> impl ExactSizeIterator<Item = [u8; 4]> + use<'a> {
        self.bytes.as_chunks::<4>().0.iter().copied()
    }
}

/// Iterates over the elements of an [`Array`].
#[derive(Debug, Clone)]
pub struct ArrayIter<'a> {
    elem: ValueType,
    left: usize,
    bytes: &'a [u8],
}

impl<'a> Iterator for ArrayIter<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        self.left = self.left.checked_sub(1)?;
        // The reader has checked the bytes, so decoding cannot fail; if it did, the iterator ends.
        let (value, rest) = decode(self.elem, self.bytes)?;
        self.bytes = rest;
        Some(value)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.left))
    }
}

/// Iterates over the strings of an array, as bytes.
#[derive(Debug, Clone)]
pub struct Strings<'a> {
    left: usize,
    bytes: &'a [u8],
}

impl<'a> Iterator for Strings<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        self.left = self.left.checked_sub(1)?;
        let (string, rest) = split_string(self.bytes)?;
        self.bytes = rest;
        Some(string)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Strings<'_> {}

fn split_string(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk::<8>()?;
    rest.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)
}

/// Decodes the value of a type at the front of `bytes`; also gives what follows it. `None` where
/// the bytes are too few. For arrays the elements are skipped one by one.
pub(crate) fn decode(ty: ValueType, bytes: &[u8]) -> Option<(Value<'_>, &[u8])> {
    macro_rules! number {
        ($t:ty, $variant:ident) => {{
            let (head, rest) = bytes.split_first_chunk()?;
            Some((Value::$variant(<$t>::from_le_bytes(*head)), rest))
        }};
    }
    match ty {
        ValueType::U8 => number!(u8, U8),
        ValueType::I8 => number!(i8, I8),
        ValueType::U16 => number!(u16, U16),
        ValueType::I16 => number!(i16, I16),
        ValueType::U32 => number!(u32, U32),
        ValueType::I32 => number!(i32, I32),
        ValueType::F32 => number!(f32, F32),
        ValueType::U64 => number!(u64, U64),
        ValueType::I64 => number!(i64, I64),
        ValueType::F64 => number!(f64, F64),
        ValueType::Bool => bytes.split_first().map(|(b, rest)| (Value::Bool(*b != 0), rest)),
        ValueType::Str => split_string(bytes).map(|(s, rest)| (Value::Str(s), rest)),
        ValueType::Array => {
            let (elem, rest) = bytes.split_first_chunk()?;
            let (len, rest) = rest.split_first_chunk()?;
            let elem = ValueType::from_id(u32::from_le_bytes(*elem))?;
            let len = usize::try_from(u64::from_le_bytes(*len)).ok()?;
            let mut after = rest;
            match elem.fixed_size() {
                Some(size) => {
                    let size = usize::try_from(size).ok()?.checked_mul(len)?;
                    after = rest.split_at_checked(size)?.1;
                }
                None => {
                    for _ in 0..len {
                        after = decode(elem, after)?.1;
                    }
                }
            }
            let body = &rest[..rest.len() - after.len()];
            Some((Value::Array(Array::new(elem, len, body)), after))
        }
    }
}

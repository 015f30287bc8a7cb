//! Weight types as compile-time constants, so that kernels are generic over them.

use crate::pack::{Codes, Scales};

/// A quantized weight type at compile time; must say what [`crate::pack::PackSpec`] says.
pub(super) trait Format {
    const CODES: Codes;
    const SCALES: Scales;
    /// Codes index a codebook of signed values.
    const BOOK: bool;
    /// Each half block has a scale.
    const HALVES: bool = Self::SCALES.halves();
    /// Stored codes are signed bytes, or become so through the codebook.
    const SIGNED: bool = Self::BOOK || matches!(Self::CODES, Codes::Bits8);
    /// What must be taken from each code once it is an unsigned byte.
    const UNSIGNED_OFFSET: i16;
    const MIN: Min = match Self::SCALES {
        Scales::BlockMin | Scales::SuperMin => Min::Block,
        Scales::SuperHalfMin => Min::Half,
        _ => Min::None,
    };
    /// Bytes of one block of a panel over all planes but the super scales.
    const BLOCK_BYTES: usize = {
        let (low, high) = Self::CODES.plane_bytes();
        let (scale, min, _) = Self::SCALES.plane_bytes();
        low + high + scale + min
    };
}

/// The kind of minimum a type has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Min {
    None,
    Block,
    Half,
}

macro_rules! formats {
    ($($name:ident $ty:ident $codes:ident $scales:ident $book:literal $offset:literal;)*) => {
        $(
            pub(super) struct $name;
            impl Format for $name {
                const CODES: Codes = Codes::$codes;
                const SCALES: Scales = Scales::$scales;
                const BOOK: bool = $book;
                const UNSIGNED_OFFSET: i16 = $offset;
            }
        )*

        /// Calls `$body` with `$F` bound to the type's format; float types are the caller's.
        macro_rules! with_format {
            ($type:expr, $F:ident => $body:expr) => {
                match $type {
                    $(dunlin_spec::WeightType::$ty => { type $F = $crate::matmul::format::$name; $body })*
                    _ => unreachable!("float weights have kernels of their own"),
                }
            };
        }
        pub(super) use with_format;

        #[cfg(test)]
        mod tests {
            use super::*;
            use crate::pack::PackSpec;
            use dunlin_spec::WeightType;

            #[test]
            fn constants_agree_with_the_pack() {
                $(
                    let spec = PackSpec::of(WeightType::$ty);
                    assert_eq!(spec.codes, $name::CODES);
                    assert_eq!(spec.scales, $name::SCALES);
                    assert_eq!(spec.codebook.is_some(), $name::BOOK);
                    let offset = if $name::SIGNED { 128 } else { spec.offset };
                    assert_eq!(offset, i32::from($name::UNSIGNED_OFFSET), "{}", spec.ty);
                )*
            }
        }
    };
}

formats! {
    Q40 Q4_0 Bits4 Block false 8;
    Q41 Q4_1 Bits4 BlockMin false 0;
    Q50 Q5_0 Bits5 Block false 16;
    Q51 Q5_1 Bits5 BlockMin false 0;
    Q80 Q8_0 Bits8 Block false 128;
    Q2K Q2_K Bits2 SuperHalfMin false 0;
    Q3K Q3_K Bits3 SuperHalf false 4;
    Q4K Q4_K Bits4 SuperMin false 0;
    Q5K Q5_K Bits5 SuperMin false 0;
    Q6K Q6_K Bits6 SuperHalf false 32;
    Iq4Nl IQ4_NL Bits4 Block true 128;
    Iq4Xs IQ4_XS Bits4 Super true 128;
    Mxfp4 MXFP4 Bits4 Exponent true 128;
}

//! Weight types as compile-time constants, so that kernels are generic over them.

use crate::pack::{Codes, PackSpec, Scales};

/// A quantized weight type at compile time; must say what [`crate::pack::PackSpec`] says.
pub(super) trait Format {
    const CODES: Codes;
    const SCALES: Scales;
    /// Codes index a codebook of signed values.
    const BOOK: bool;
    /// Each half block has a scale.
    const HALVES: bool = Self::SCALES.halves();
    /// Stored codes are signed bytes, or become so through the codebook.
    const SIGNED: bool = Self::BOOK || matches!(Self::CODES, Codes::Bits8 | Codes::Bits5And3);
    /// The codes are the five high bits of bytes, and stand for the middle of what the low bits may
    /// add: scales are eight times the byte's, and a block's minimum is 3.5 of them.
    const HIGH: bool = false;
    /// The codes lie in a buffer as [`super::generic::Dot::put_codes`] wrote them.
    const UNPACKED: bool = false;
    /// What must be taken from each code once it is an unsigned byte.
    const UNSIGNED_OFFSET: i16;
    const MIN: Min = match Self::SCALES {
        Scales::Block if Self::HIGH => Min::Block,
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

/// Which bits of the codes a product takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bits {
    /// All.
    All,
    /// The five high bits of codes that are split.
    High,
}

/// The five high bits of split bytes.
pub(super) struct Q80High;

impl Format for Q80High {
    const CODES: Codes = Codes::Bits5;
    const SCALES: Scales = Scales::Block;
    const BOOK: bool = false;
    const UNSIGNED_OFFSET: i16 = 16;
    const HIGH: bool = true;
}

/// Split bytes once they are unpacked.
pub(super) struct Unpacked;

impl Format for Unpacked {
    const CODES: Codes = Codes::Bits8;
    const SCALES: Scales = Scales::Block;
    const BOOK: bool = false;
    const UNSIGNED_OFFSET: i16 = 128;
    const UNPACKED: bool = true;
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

        /// The formats, to be matched.
        pub(super) enum Kind {
            $($name,)*
            Q80High,
        }

        impl Kind {
            /// The format of a packed matrix, or of its codes' high bits.
            ///
            /// # Panics
            /// Where the weights are floats, which have kernels of their own.
            pub fn of(spec: &PackSpec, bits: Bits) -> Kind {
                match (spec.ty, spec.codes) {
                    (dunlin_spec::WeightType::Q8_0, Codes::Bits5And3) if bits == Bits::High => {
                        Kind::Q80High
                    }
                    $((dunlin_spec::WeightType::$ty, Codes::$codes) => Kind::$name,)*
                    (ty, codes) => unreachable!("{ty} has no kernels with {codes:?}"),
                }
            }
        }

        /// Calls `$body` with `$F` bound to the format.
        macro_rules! with_format {
            ($kind:expr, $F:ident => $body:expr) => {
                match $kind {
                    $($crate::matmul::format::Kind::$name => {
                        type $F = $crate::matmul::format::$name;
                        $body
                    })*
                    $crate::matmul::format::Kind::Q80High => {
                        type $F = $crate::matmul::format::Q80High;
                        $body
                    }
                }
            };
        }
        pub(super) use with_format;

        #[cfg(test)]
        mod tests {
            use super::*;
            use dunlin_spec::WeightType;

            #[test]
            fn constants_agree_with_the_pack() {
                $(
                    let mut spec = PackSpec::of(WeightType::$ty);
                    if $name::CODES == Codes::Bits5And3 {
                        spec = PackSpec::of_head(WeightType::$ty);
                    }
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
    Q80Split Q8_0 Bits5And3 Block false 128;
    Q2K Q2_K Bits2 SuperHalfMin false 0;
    Q3K Q3_K Bits3 SuperHalf false 4;
    Q4K Q4_K Bits4 SuperMin false 0;
    Q5K Q5_K Bits5 SuperMin false 0;
    Q6K Q6_K Bits6 SuperHalf false 32;
    Iq4Nl IQ4_NL Bits4 Block true 128;
    Iq4Xs IQ4_XS Bits4 Super true 128;
    Mxfp4 MXFP4 Bits4 Exponent true 128;
}

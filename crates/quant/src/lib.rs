//! The block formats of [`WeightType`] as data: what the bits of a block mean, and how values
//! become blocks.
//!
//! A quantized block is unpacked to a [`RawBlock`]: codes in the order of the values, and integer
//! sub-block scales and minimums, with nothing rounded. [`repack`] is its exact inverse, so code
//! that wants another layout for the same weights (the CPU kernels do) never touches a bit pattern
//! of a file. [`dequantize_row`] defines each value in f32, and [`quantize_row`] makes rows.
//!
//! # What a block means
//! For value `i` of a block, in sub-block `s = i / sub_len(ty)`:
//!
//! ```text
//! value = (d * sub_scales[s]) * level(codes[i]) + min
//! level = codebook[code] where the type has a codebook, else code - code_offset
//! min   = +m                        Q4_1, Q5_1 (m is the field dmin)
//!       = -(dmin * sub_mins[s])     Q2_K, Q4_K, Q5_K
//!       = absent                    every other type
//! ```
//!
//! Every product and sum is rounded to f32 on its own, in the order of the parentheses, as ggml's
//! reference functions have it. In the types without sub-block scales `sub_scales[0]` is 1, which
//! changes no bit.
//!
//! | type | codes | offset | sub-block scales | minimums |
//! |---|---|---|---|---|
//! | Q4_0, Q5_0 | 4, 5 bits | 8, 16 | | |
//! | Q8_0 | 8 bits, the int8 with its sign bit flipped | 128 | | |
//! | Q4_1, Q5_1 | 4, 5 bits | 0 | | +m for the block |
//! | Q2_K | 2 bits | 0 | 16 of 4 bits | 16 of 4 bits, times -dmin |
//! | Q3_K | 3 bits | 4 | 16 of 6 bits, minus 32 | |
//! | Q4_K, Q5_K | 4, 5 bits | 0 | 8 of 6 bits | 8 of 6 bits, times -dmin |
//! | Q6_K | 6 bits | 32 | 16 of int8 | |
//! | IQ4_NL | 4 bits, index into a codebook | | | |
//! | IQ4_XS | the same | | 8 of 6 bits, minus 32 | |
//! | MXFP4 | the same, e2m1 | | | |
//!
//! This crate does not multiply matrices, read files or choose a type for a tensor, and its
//! quantizers look at weights alone: no calibration data.
#![forbid(unsafe_code)]

mod dequantize;
mod error;
mod float;
mod format;
mod pack;
mod quantize;

pub use dequantize::dequantize_row;
pub use dunlin_spec::WeightType;
pub use error::QuantError;
pub use float::{bf16_to_f32, e8m0_half_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
pub use format::{RawBlock, code_bits, code_offset, codebook, has_min, is_quantized, sub_len};
pub use pack::{repack, unpack, unpack_into};
pub use quantize::quantize_row;

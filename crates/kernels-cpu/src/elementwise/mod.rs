//! Everything between matrix products and attention: norms, activation functions, rotary
//! embedding, softmax, reductions over logits, and the quantization of activations.
//!
//! All of it works on one token (or one head) at a time and looks at nothing else, which is what
//! makes results independent of the batch. Sums use a fixed number of virtual lanes and a fixed
//! tree. Threads are the caller's business.

mod activation;
mod logits;
mod norm;
mod quantize;
mod rope;

pub use activation::{add, gelu_tanh_mul, scale, silu_mul, softcap};
pub use logits::{argmax, log_sum_exp, softmax};
pub use norm::{rms_norm, rms_norm_in_place};
pub use quantize::{
    QUANT_BLOCK, QUANT_MIN, QuantizedMut, SUM_GROUP, dequantize, quantize, quantize_split,
};
pub use rope::{RopeTable, rope_neox};

#[cfg(test)]
mod tests;

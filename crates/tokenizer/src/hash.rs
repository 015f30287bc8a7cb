//! The hash that places tokens and merges in the image's tables.
//!
//! It is part of the image format: the same bytes and seed give the same number on every machine.
//! It is not meant to resist an attacker by itself; the builder changes the seed until no probe
//! run is long, and readers bound every probe.

const K0: u64 = 0x9e37_79b9_7f4a_7c15;
const K1: u64 = 0xd6e8_feb8_6659_fd93;

#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let wide = u128::from(a) * u128::from(b);
    (wide as u64) ^ ((wide >> 64) as u64)
}

/// Hash of a byte string.
#[inline]
pub(crate) fn bytes(seed: u64, data: &[u8]) -> u64 {
    let mut state = seed ^ (data.len() as u64).wrapping_mul(K0);
    let mut chunks = data.chunks_exact(8);
    for chunk in &mut chunks {
        let mut word = [0; 8];
        word.copy_from_slice(chunk);
        state = fold(state ^ u64::from_le_bytes(word), K1);
    }
    let mut tail = 0u64;
    for (i, &byte) in chunks.remainder().iter().enumerate() {
        tail |= u64::from(byte) << (8 * i);
    }
    fold(state ^ tail ^ K1, K0)
}

/// Hash of a pair of symbol ids.
#[inline]
pub(crate) fn pair(seed: u64, left: u32, right: u32) -> u64 {
    fold((u64::from(left) << 32 | u64::from(right)) ^ seed, K0)
}

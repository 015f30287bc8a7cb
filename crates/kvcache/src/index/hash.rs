//! Hashes of chains of blocks.

use xxhash_rust::xxh3::xxh3_64;

use crate::Namespace;

/// Tokens that are hashed at a time: 64 bytes.
const CHUNK: usize = 16;

/// The hash of an empty chain of a namespace.
pub(crate) fn root(namespace: &Namespace, seed: u64) -> u64 {
    mix(namespace.seed(), seed)
}

/// The hash of the chain with hash `parent` and one more block of `tokens`. The tokens' own hash
/// does not wait for the parent's, so a processor works on several blocks at once.
pub(crate) fn extend(parent: u64, tokens: &[u32]) -> u64 {
    let (chunks, rest) = tokens.as_chunks::<CHUNK>();
    // Whole chunks have a length that the compiler knows: their bytes are one load each.
    let hash = chunks.iter().fold(parent, |hash, chunk| {
        let mut bytes = [0u8; 4 * CHUNK];
        for (four, token) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(chunk) {
            *four = token.to_le_bytes();
        }
        mix(hash, xxh3_64(&bytes))
    });
    if rest.is_empty() {
        return hash;
    }
    let mut bytes = [0u8; 4 * CHUNK];
    for (four, token) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(rest) {
        *four = token.to_le_bytes();
    }
    mix(hash, xxh3_64(&bytes[..4 * rest.len()]))
}

/// Depends on both, and on which is which.
fn mix(a: u64, b: u64) -> u64 {
    let wide = u128::from(a ^ 0x9E37_79B9_7F4A_7C15)
        * u128::from(b.rotate_left(29) ^ 0xD6E8_FEB8_6659_FD93);
    // The sum keeps either one where the other makes the product vanish.
    ((wide >> 64) as u64 ^ wide as u64).wrapping_add(a.rotate_left(17)).wrapping_add(b)
}

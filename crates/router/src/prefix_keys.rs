//! Names of a prompt's beginnings.

/// Appends to `into` a name for each beginning of `tokens` that is a whole number of `block_tokens`
/// long, the shortest first: equal beginnings have equal names, and others different ones but for
/// collisions of 64-bit hashes. A policy that mistakes one for another places a request less well,
/// and nothing else depends on it.
///
/// # Panics
/// Where a block has no tokens.
pub fn prefix_keys(tokens: &[u32], block_tokens: usize, into: &mut Vec<u64>) {
    let mut hash = 0x9E37_79B9_7F4A_7C15_u64;
    for block in tokens.chunks_exact(block_tokens) {
        for &token in block {
            hash = (hash ^ u64::from(token)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
            hash ^= hash >> 32;
        }
        into.push(hash);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_beginnings_and_no_others() {
        let a: Vec<u32> = (0..100).collect();
        let mut b = a.clone();
        b[37] = 7;
        let keys = |tokens: &[u32]| {
            let mut keys = Vec::new();
            prefix_keys(tokens, 8, &mut keys);
            keys
        };
        let (a, b) = (keys(&a), keys(&b));
        assert_eq!((a.len(), &a[..4]), (12, &b[..4]));
        assert!((4..12).all(|i| a[i] != b[i]));
    }
}

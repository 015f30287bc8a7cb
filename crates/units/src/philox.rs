//! The Philox4x32-10 generator (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as
//! 1, 2, 3", SC 2011): a keyed bijection of 128-bit counters.

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
/// Added to the key between rounds: the golden ratio and the square root of three, less one.
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// The 128 random bits of `counter` under `key`.
#[inline]
pub const fn philox4x32_10(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    let mut round = 0;
    while round < ROUNDS {
        if round > 0 {
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        let p0 = MULTIPLIERS[0] as u64 * counter[0] as u64;
        let p1 = MULTIPLIERS[1] as u64 * counter[2] as u64;
        counter = [
            (p1 >> 32) as u32 ^ counter[1] ^ key[0],
            p1 as u32,
            (p0 >> 32) as u32 ^ counter[3] ^ key[1],
            p0 as u32,
        ];
        round += 1;
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known-answer vectors that the authors publish with their reference implementation.
    #[test]
    fn agrees_with_the_published_vectors() {
        let ones = u32::MAX;
        let cases = [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([ones; 4], [ones; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, expected) in cases {
            assert_eq!(philox4x32_10(counter, key), expected, "counter {counter:x?}");
        }
    }
}

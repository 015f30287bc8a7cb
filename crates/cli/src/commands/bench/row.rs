//! What a row of the benchmark does.

use std::{fmt, str::FromStr};

/// Decode steps of a batched row.
pub const BATCH_STEPS: usize = 32;
/// Tokens that each sequence of a batched row holds before its first step.
pub const BATCH_DEPTH: usize = 128;

/// One row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Row {
    /// `ppN`: a prompt of N tokens, up to the logits of its last.
    Prefill {
        /// The prompt's length.
        tokens: usize,
    },
    /// `tgN` or `tgN@DEPTH`: N tokens one after another, from empty or after DEPTH tokens.
    Decode {
        /// Tokens that are generated.
        tokens: usize,
        /// Tokens that are there before.
        depth: usize,
    },
    /// `bS`: [`BATCH_STEPS`] steps of S sequences that hold [`BATCH_DEPTH`] tokens each.
    Batch {
        /// The number of sequences.
        sequences: usize,
    },
}

impl Row {
    /// Sequences that are under way together.
    pub fn sequences(self) -> usize {
        match self {
            Row::Prefill { .. } | Row::Decode { .. } => 1,
            Row::Batch { sequences } => sequences,
        }
    }

    /// Tokens that each sequence holds before anything is timed.
    pub fn depth(self) -> usize {
        match self {
            Row::Prefill { .. } => 0,
            Row::Decode { depth, .. } => depth,
            Row::Batch { .. } => BATCH_DEPTH,
        }
    }

    /// New tokens of each sequence while it is timed.
    pub fn new_tokens(self) -> usize {
        match self {
            Row::Prefill { tokens } | Row::Decode { tokens, .. } => tokens,
            Row::Batch { .. } => BATCH_STEPS,
        }
    }

    /// The longest that a sequence becomes.
    pub fn length(self) -> usize {
        self.depth() + self.new_tokens()
    }

    /// Tokens that are timed, over all sequences.
    pub fn timed_tokens(self) -> usize {
        self.sequences() * self.new_tokens()
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Row::Prefill { tokens } => write!(f, "pp{tokens}"),
            Row::Decode { tokens, depth: 0 } => write!(f, "tg{tokens}"),
            Row::Decode { tokens, depth } => write!(f, "tg{tokens}@{depth}"),
            Row::Batch { sequences } => write!(f, "b{sequences}"),
        }
    }
}

impl FromStr for Row {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number =
            |digits: &str| digits.parse::<usize>().ok().filter(|n| (1..1 << 24).contains(n));
        let row = if let Some(n) = text.strip_prefix("pp") {
            number(n).map(|tokens| Row::Prefill { tokens })
        } else if let Some(rest) = text.strip_prefix("tg") {
            let (n, depth) = rest.split_once('@').unwrap_or((rest, ""));
            let depth = if rest.contains('@') { number(depth) } else { Some(0) };
            number(n).zip(depth).map(|(tokens, depth)| Row::Decode { tokens, depth })
        } else {
            let n = text.strip_prefix('b').and_then(number);
            n.filter(|&n| n <= 4096).map(|sequences| Row::Batch { sequences })
        };
        row.ok_or_else(|| {
            "rows are ppN (prefill), tgN or tgN@DEPTH (decode), bS (S sequences)".to_owned()
        })
    }
}

/// Token ids that mean nothing, the same every time; `worker.py` makes the same ones.
pub fn tokens(count: usize, vocab_size: usize, seed: u64) -> Vec<u32> {
    let mut state = seed;
    let next = |_| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Below the vocabulary's size, which fits.
        ((state >> 33) % vocab_size.max(1) as u64) as u32
    };
    (0..count).map(next).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for name in ["pp512", "pp1", "tg128", "tg16@8000", "b16", "b1"] {
            assert_eq!(name.parse::<Row>().unwrap().to_string(), name);
        }
        for bad in [
            "",
            "pp",
            "pp0",
            "tg",
            "tg0",
            "tg1@",
            "tg1@0",
            "tg@5",
            "pp5@1",
            "b",
            "b0",
            "b5000",
            "x5",
            "pp-1",
            "pp99999999999999999999",
            "b16@3",
        ] {
            assert!(bad.parse::<Row>().is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes() {
        let row: Row = "b16".parse().unwrap();
        assert_eq!((row.sequences(), row.length(), row.timed_tokens()), (16, 160, 512));
        let row: Row = "tg16@8000".parse().unwrap();
        assert_eq!((row.sequences(), row.length(), row.timed_tokens()), (1, 8016, 16));
    }

    #[test]
    fn tokens_are_those_of_the_peers_worker() {
        // python3 -c 'import worker; print(worker.tokens(4, 49152, 1))'
        assert_eq!(tokens(4, 49152, 1), [14294, 17241, 12492, 27366]);
        assert!(tokens(1000, 7, 3).iter().all(|&t| t < 7));
    }
}

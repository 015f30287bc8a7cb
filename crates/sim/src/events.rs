//! The event log: what happened, in one total order.
//!
//! Events are ordered by (time, class, replica, sequence): completions come before arrivals, and the
//! sequence counts a replica's own events. The log is the same whatever the number of threads. Its
//! [`Digest`] is always computed; the events themselves are kept only where asked for.

use dunlin_units::Time;

/// An event, with its place in the order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogEvent {
    /// When.
    pub at: Time,
    /// 0 for what ends, 1 for what comes.
    pub class: u8,
    /// Where.
    pub replica: u32,
    /// Counts the replica's events.
    pub sequence: u64,
    /// What.
    pub what: What,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum What {
    /// A step ended.
    Step {
        /// Its number on the replica.
        step: u64,
        /// When it began.
        began: Time,
        /// Sequences with a part in it.
        sequences: u32,
        /// Tokens that went through the model.
        tokens: u32,
        /// KV blocks in use when it began.
        blocks: u32,
    },
    /// A request came to the replica.
    Arrive {
        /// Its number.
        request: u64,
    },
    /// A request got its first token.
    FirstToken {
        /// Its number.
        request: u64,
    },
    /// A request ended.
    End {
        /// Its number.
        request: u64,
        /// Tokens of its answer.
        tokens: u32,
        /// Its part of the energy of steps, in microjoules.
        energy_uj: u64,
        /// Whether it has all of them.
        complete: bool,
    },
    /// A block began to move between tiers, or KV between replicas.
    Move {
        /// When it will be there.
        until: Time,
        /// Bytes.
        bytes: u64,
    },
    /// The replica came up.
    Up,
    /// The replica went down, or is no longer wanted.
    Down,
}

impl LogEvent {
    /// The event as words, for the digest.
    fn words(&self) -> [u64; 6] {
        let (kind, a, b, c) = match self.what {
            What::Step { step, began, sequences, tokens, blocks } => {
                let sizes = u64::from(sequences) << 32 | u64::from(tokens);
                (u64::from(blocks) << 8, step, began.0, sizes)
            }
            What::Arrive { request } => (1, request, 0, 0),
            What::FirstToken { request } => (2, request, 0, 0),
            What::End { request, tokens, energy_uj, complete } => {
                let energy = energy_uj.rotate_left(32);
                (3, request, u64::from(tokens) ^ energy, u64::from(complete))
            }
            What::Move { until, bytes } => (4, until.0, bytes, 0),
            What::Up => (5, 0, 0, 0),
            What::Down => (6, 0, 0, 0),
        };
        [self.at.0, u64::from(self.class) << 32 | u64::from(self.replica), kind, a, b, c]
    }
}

/// A hash of a replica's events in their order; those of several replicas are combined in the order
/// of replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Digest(pub u64);

impl Default for Digest {
    fn default() -> Self {
        Self(0x9E37_79B9_7F4A_7C15)
    }
}

impl Digest {
    /// Adds a word.
    #[inline]
    pub fn word(&mut self, word: u64) {
        // The multiply and fold of wyhash: both halves of the product.
        let product = u128::from(self.0 ^ word) * 0xA076_1D64_78BD_642F_u128;
        self.0 = (product as u64 ^ (product >> 64) as u64).wrapping_add(0xE703_7ED1_A0B4_28DB);
    }

    /// Adds an event.
    #[inline]
    pub fn event(&mut self, event: &LogEvent) {
        for word in event.words() {
            self.word(word);
        }
    }
}

/// Takes the events of a run in their order.
pub trait EventSink: Send {
    /// The next event.
    fn event(&mut self, event: &LogEvent);
}

impl EventSink for Vec<LogEvent> {
    fn event(&mut self, event: &LogEvent) {
        self.push(*event);
    }
}

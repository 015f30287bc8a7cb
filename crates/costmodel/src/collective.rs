//! Links and collectives in the latency-bandwidth model: a message of `n` bytes takes
//! `latency + n / bandwidth`, and each device sends and receives one message at a time.
//!
//! Closed forms as in Thakur, Rabenseifner and Gropp, "Optimization of collective communication
//! operations in MPICH" (2005). What they leave out: contention between collectives, and topologies
//! other than one link of the same kind between any two devices.

use dunlin_spec::LinkSpec;
use serde::{Deserialize, Serialize};

use crate::error::{CostError, above_zero, not_negative};

/// A link between two devices, in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// From the start of a message to its first byte, in nanoseconds.
    pub latency_ns: f64,
    /// Bytes a second.
    pub bytes_per_s: f64,
}

impl From<LinkSpec> for Link {
    fn from(spec: LinkSpec) -> Self {
        Self { latency_ns: spec.latency_ns, bytes_per_s: spec.bytes_per_s }
    }
}

impl Link {
    /// Whether both numbers make sense.
    pub(crate) fn validate(&self) -> Result<(), CostError> {
        not_negative("latency_ns", self.latency_ns)?;
        above_zero("bytes_per_s", self.bytes_per_s)
    }

    /// Nanoseconds that one message of `bytes` takes.
    pub fn message_ns(&self, bytes: f64) -> f64 {
        self.latency_ns + self.wire_ns(bytes)
    }

    /// Nanoseconds that `bytes` keep the link busy.
    pub fn wire_ns(&self, bytes: f64) -> f64 {
        bytes / self.bytes_per_s * 1e9
    }
}

/// A pattern of messages between a group of devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Collective {
    /// One device to another.
    PointToPoint,
    /// Everyone gets the sum; reduce-scatter and all-gather around a ring.
    RingAllReduce,
    /// Everyone gets the sum; whole messages up a binary tree and down again.
    TreeAllReduce,
    /// Everyone gets the sum: whole messages exchanged with a partner, each round at twice the
    /// distance (recursive doubling). For two devices it is one exchange.
    ExchangeAllReduce,
    /// Everyone gets everyone's part, around a ring.
    RingAllGather,
    /// Everyone gets the sum of an own part, around a ring.
    RingReduceScatter,
    /// Everyone sends a different part to everyone else, pairwise.
    AllToAll,
}

impl Collective {
    /// Nanoseconds until the last of `devices` is done; 0 for a single device.
    ///
    /// `bytes` is the size of the whole vector: what each device holds before an all-reduce,
    /// reduce-scatter or all-to-all, and after an all-gather.
    pub fn time_ns(self, link: &Link, devices: u32, bytes: f64) -> f64 {
        if devices <= 1 {
            return 0.0;
        }
        let p = f64::from(devices);
        let part = link.message_ns(bytes / p);
        match self {
            Self::PointToPoint => link.message_ns(bytes),
            Self::RingAllReduce => 2.0 * (p - 1.0) * part,
            Self::TreeAllReduce => 2.0 * f64::from(tree_depth(devices)) * link.message_ns(bytes),
            Self::ExchangeAllReduce => f64::from(tree_depth(devices)) * link.message_ns(bytes),
            Self::RingAllGather | Self::RingReduceScatter | Self::AllToAll => (p - 1.0) * part,
        }
    }

    /// Bytes that one device sends (the busiest one, in a tree).
    pub fn bytes_sent(self, devices: u32, bytes: f64) -> f64 {
        if devices <= 1 {
            return 0.0;
        }
        let p = f64::from(devices);
        match self {
            Self::PointToPoint => bytes,
            Self::RingAllReduce => 2.0 * (p - 1.0) / p * bytes,
            Self::TreeAllReduce | Self::ExchangeAllReduce => f64::from(tree_depth(devices)) * bytes,
            Self::RingAllGather | Self::RingReduceScatter | Self::AllToAll => (p - 1.0) / p * bytes,
        }
    }
}

/// Rounds of a binomial tree over `devices`: its logarithm to base 2, rounded up.
fn tree_depth(devices: u32) -> u32 {
    devices.next_power_of_two().trailing_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: Link = Link { latency_ns: 700.0, bytes_per_s: 25e9 };

    /// Messages one by one: each waits for what its sender has received (`after`), for the sender to
    /// be free to send and for the receiver to be free to receive. Returns the last arrival.
    struct Network {
        ready: Vec<f64>,
    }

    impl Network {
        fn new(devices: usize) -> Self {
            Self { ready: vec![0.0; devices] }
        }

        /// A round: every (from, to, bytes) starts when both of its ends are ready; all of the
        /// round's ends count only afterwards, as ends send and receive at once.
        fn round(&mut self, messages: &[(usize, usize, f64)]) {
            let before = self.ready.clone();
            for &(from, to, bytes) in messages {
                let end = before[from].max(before[to]) + LINK.message_ns(bytes);
                self.ready[from] = self.ready[from].max(end);
                self.ready[to] = self.ready[to].max(end);
            }
        }

        fn end(&self) -> f64 {
            self.ready.iter().copied().fold(0.0, f64::max)
        }
    }

    fn close(a: f64, b: f64) {
        assert!((a - b).abs() <= 1e-9 * b.max(1.0), "{a} {b}");
    }

    #[test]
    fn rings_and_pairwise_exchanges_take_what_their_messages_take() {
        for p in 2..=9usize {
            for bytes in [1.0, 4096.0, 1e8] {
                let mut ring = Network::new(p);
                // Who has how many summed parts: also shows that this many rounds are needed.
                let mut contributions = vec![vec![1u32; p]; p];
                for step in 0..p - 1 {
                    let all: Vec<_> = (0..p).map(|i| (i, (i + 1) % p, bytes / p as f64)).collect();
                    ring.round(&all);
                    let old = contributions.clone();
                    for i in 0..p {
                        let part = (i + p - step) % p;
                        contributions[(i + 1) % p][part] += old[i][part];
                    }
                }
                for (i, parts) in contributions.iter().enumerate() {
                    assert_eq!(parts[(i + 1) % p], p as u32, "reduce-scatter is complete");
                }
                close(Collective::RingReduceScatter.time_ns(&LINK, p as u32, bytes), ring.end());
                for _ in 0..p - 1 {
                    let all: Vec<_> = (0..p).map(|i| (i, (i + 1) % p, bytes / p as f64)).collect();
                    ring.round(&all);
                }
                close(Collective::RingAllReduce.time_ns(&LINK, p as u32, bytes), ring.end());

                let mut pairs = Network::new(p);
                for shift in 1..p {
                    let all: Vec<_> =
                        (0..p).map(|i| (i, (i + shift) % p, bytes / p as f64)).collect();
                    pairs.round(&all);
                }
                close(Collective::AllToAll.time_ns(&LINK, p as u32, bytes), pairs.end());
            }
        }
    }

    #[test]
    fn a_tree_takes_its_depth_up_and_down() {
        for p in 2..=17usize {
            let bytes = 1e6;
            let mut tree = Network::new(p);
            let mut sums = vec![1u32; p];
            let strides: Vec<usize> =
                std::iter::successors(Some(1), |s| Some(s * 2)).take_while(|s| *s < p).collect();
            for &stride in &strides {
                let up = (0..p).step_by(2 * stride).filter(|i| i + stride < p);
                let messages: Vec<_> = up.map(|i| (i + stride, i, bytes)).collect();
                for &(from, to, _) in &messages {
                    sums[to] += sums[from];
                }
                tree.round(&messages);
            }
            assert_eq!(sums[0], p as u32);
            for &stride in strides.iter().rev() {
                let down = (0..p).step_by(2 * stride).filter(|i| i + stride < p);
                tree.round(&down.map(|i| (i, i + stride, bytes)).collect::<Vec<_>>());
            }
            close(Collective::TreeAllReduce.time_ns(&LINK, p as u32, bytes), tree.end());
        }
    }

    #[test]
    fn an_exchange_takes_its_rounds() {
        for rounds in 1..=4 {
            let (p, bytes) = (1usize << rounds, 1e5);
            let mut network = Network::new(p);
            let mut sums = vec![1u32; p];
            for round in 0..rounds {
                let pairs: Vec<_> = (0..p).map(|i| (i, i ^ (1 << round), bytes)).collect();
                let old = sums.clone();
                pairs.iter().for_each(|&(from, to, _)| sums[to] += old[from]);
                network.round(&pairs);
            }
            assert!(sums.iter().all(|&s| s == p as u32));
            let time = Collective::ExchangeAllReduce.time_ns(&LINK, p as u32, bytes);
            close(time, network.end());
        }
    }

    #[test]
    fn one_device_sends_nothing() {
        for c in [Collective::PointToPoint, Collective::RingAllReduce, Collective::AllToAll] {
            assert_eq!(c.time_ns(&LINK, 1, 1e9), 0.0);
            assert_eq!(c.bytes_sent(1, 1e9), 0.0);
        }
    }
}

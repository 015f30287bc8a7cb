//! Names and times of answers, and seeds of requests that bring none.

use std::{
    fmt,
    hash::{BuildHasher as _, RandomState},
    sync::atomic::{AtomicU64, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

/// Hands out ids, seeds and times.
pub struct Identity {
    source: Source,
    next: AtomicU64,
}

enum Source {
    /// The system's clock and randomness.
    System(RandomState),
    /// One moment, and ids that count up, so that tests can compare bytes.
    Fixed { unix_nanos: i128 },
}

impl Identity {
    /// From the system's clock and randomness.
    pub fn system() -> Self {
        // The standard library's hasher is keyed from the system's randomness.
        Self { source: Source::System(RandomState::new()), next: AtomicU64::new(0) }
    }

    /// At one moment, with ids and seeds that count up from 1.
    pub fn fixed(unix_nanos: i128) -> Self {
        Self { source: Source::Fixed { unix_nanos }, next: AtomicU64::new(1) }
    }

    /// A number that has not been before.
    fn number(&self) -> u64 {
        let count = self.next.fetch_add(1, Ordering::Relaxed);
        match &self.source {
            Source::System(random) => random.hash_one(count),
            Source::Fixed { .. } => count,
        }
    }

    /// A name that begins with `prefix`.
    pub fn id(&self, prefix: &str) -> String {
        format!("{prefix}{:016x}", self.number())
    }

    /// A seed, small enough for every JSON reader's numbers.
    pub fn seed(&self) -> u64 {
        match self.source {
            Source::System(_) => self.number() >> 12,
            Source::Fixed { .. } => self.number(),
        }
    }

    /// Nanoseconds since 1970.
    pub fn unix_nanos(&self) -> i128 {
        match self.source {
            Source::System(_) => {
                let since = SystemTime::now().duration_since(UNIX_EPOCH);
                since.map_or(0, |time| time.as_nanos().cast_signed())
            }
            Source::Fixed { unix_nanos } => unix_nanos,
        }
    }

    /// Seconds since 1970.
    pub fn unix_seconds(&self) -> u64 {
        u64::try_from(self.unix_nanos() / 1_000_000_000).unwrap_or(0)
    }

    /// The time as RFC 3339 has it.
    pub fn rfc3339(&self) -> String {
        rfc3339(self.unix_nanos())
    }
}

/// A time in nanoseconds since 1970, as RFC 3339 has it.
pub fn rfc3339(unix_nanos: i128) -> String {
    jiff::Timestamp::from_nanosecond(unix_nanos).unwrap_or(jiff::Timestamp::UNIX_EPOCH).to_string()
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

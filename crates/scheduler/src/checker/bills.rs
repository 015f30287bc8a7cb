//! What bills must say.

use super::{Check, ensure};
use crate::{bill::Bill, effects::Entry};

/// Between what and what a request's part of steps' times or bytes lies.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Share {
    least: u64,
    most: u64,
}

impl Share {
    /// The part of `own` of `all` tokens, rounded down or up for each of them.
    pub(super) fn of(whole: u64, own: u64, all: u64) -> Self {
        let (each, rest) = (whole / all, whole % all);
        Self { least: own * each, most: own * each + rest.min(own) }
    }

    pub(super) fn add(&mut self, other: Self) {
        self.least += other.least;
        self.most += other.most;
    }

    fn check(self, what: &str, said: u64) -> Check {
        let (least, most) = (self.least, self.most);
        ensure!((least..=most).contains(&said), "{what} {said} is not in {least}..={most}");
        Ok(())
    }
}

/// What a request has cost so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Expected {
    pub(super) outputs: u64,
    pub(super) accepted: u64,
    pub(super) time: Share,
    pub(super) bytes: Share,
    pub(super) draft_time: Share,
    steps: u64,
    tokens: u64,
    drafts: u64,
}

impl Expected {
    pub(super) fn entry(&mut self, entry: &Entry) {
        self.steps += 1;
        self.tokens += u64::from(entry.tokens + entry.draft);
        self.drafts += u64::from(entry.draft);
    }

    /// Compares a bill with it. `life_ns` is the time from the submission to the end.
    pub(super) fn check(&self, bill: &Bill, life_ns: u64) -> Check {
        for (what, said, is) in [
            ("output_tokens", bill.output_tokens, self.outputs),
            ("computed_tokens", bill.computed_tokens, self.tokens),
            ("draft_tokens", bill.draft_tokens, self.drafts),
            ("accepted_tokens", bill.accepted_tokens, self.accepted),
            ("steps", bill.steps, self.steps),
            (
                "queue_ns + prefill_ns + decode_ns",
                bill.queue_ns + bill.prefill_ns + bill.decode_ns,
                life_ns,
            ),
        ] {
            ensure!(said == is, "{what} is {said} on the bill, and was {is}");
        }
        ensure!(
            bill.recomputed_tokens <= bill.computed_tokens
                && (bill.preemptions > 0 || bill.recomputed_tokens == 0),
            "recomputed_tokens {} of {} after {} preemptions",
            bill.recomputed_tokens,
            bill.computed_tokens,
            bill.preemptions
        );
        ensure!(
            bill.cached_tokens <= bill.prompt_tokens + bill.context_tokens,
            "more was cached than there was"
        );
        self.draft_time.check("draft_ns", bill.draft_ns)?;
        self.time.check("step_share_ns", bill.step_share_ns)?;
        self.bytes.check("bytes_share", bill.bytes_share)
    }
}

/// All steps, and what bills have said of them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Totals {
    ns: u64,
    bytes: u64,
    billed_ns: u64,
    billed_bytes: u64,
}

impl Totals {
    pub(super) fn step(&mut self, ns: u64, bytes: u64) {
        self.ns += ns;
        self.bytes += bytes;
    }

    pub(super) fn billed(&mut self, bill: &Bill) {
        self.billed_ns += bill.step_share_ns;
        self.billed_bytes += bill.bytes_share;
    }

    /// Holds while nothing is under way.
    pub(super) fn check(&self) -> Check {
        ensure!(
            self.ns == self.billed_ns && self.bytes == self.billed_bytes,
            "steps took {} ns and {} bytes; bills say {} and {}",
            self.ns,
            self.bytes,
            self.billed_ns,
            self.billed_bytes
        );
        Ok(())
    }
}

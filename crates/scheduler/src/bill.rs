//! What a request cost, as far as the core can tell: counts, and times between its events.

use serde::{Deserialize, Serialize};

/// The bill of a request. Times are nanoseconds of the time that [`advance`](crate::Core::advance)
/// is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Bill {
    /// Tokens of the prompt; in a session, those that the request appended.
    pub prompt_tokens: u64,
    /// Tokens of the session that the prompt continues.
    pub context_tokens: u64,
    /// Of prompt and context, those whose KV was there already when the request was first admitted.
    pub cached_tokens: u64,
    /// Tokens chosen, over all choices.
    pub output_tokens: u64,
    /// Token positions that went through the model for it, rejected drafts and repetitions after
    /// preemptions included.
    pub computed_tokens: u64,
    /// Of those, positions that had been computed before and were lost to preemption.
    pub recomputed_tokens: u64,
    /// Draft nodes that went through the model for it.
    pub draft_tokens: u64,
    /// Tokens that it gained from drafts.
    pub accepted_tokens: u64,
    /// Steps that it had a part in.
    pub steps: u64,
    /// How often it was put back to wait.
    pub preemptions: u64,
    /// KV blocks brought from the disk tier for it.
    pub blocks_loaded: u64,
    /// The most KV blocks that it held at once, shared ones counted once.
    pub peak_blocks: u64,
    /// From submission to admission, and the waits after preemptions.
    pub queue_ns: u64,
    /// From its first admission to its first token, waits left out.
    pub prefill_ns: u64,
    /// From its first token to its end, waits left out.
    pub decode_ns: u64,
    /// Its part, by tokens, of the durations of its steps; of those that only draft, in equal parts.
    pub step_share_ns: u64,
    /// Of that, its part of draft steps.
    pub draft_ns: u64,
    /// Its part, by tokens, of the bytes that its steps moved, where the executor can tell.
    pub bytes_share: u64,
}

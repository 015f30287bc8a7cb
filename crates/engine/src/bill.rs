//! What a request cost: what the core counted, and what only the engine can measure.

use crate::energy::Joules;

/// What holds of an output that drafts were used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SpeculationContract {
    /// It is plain decoding's, bit for bit.
    #[default]
    Exact,
    /// It has the distribution of plain decoding's.
    Distribution,
}

impl SpeculationContract {
    /// Its name in bills and answers.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Distribution => "distribution",
        }
    }
}

/// The bill of a request. Times are wall-clock nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bill {
    /// Tokens of the prompt; in a session, those that the request appended.
    pub prompt_tokens: usize,
    /// Tokens of the session that the prompt continues.
    pub context_tokens: usize,
    /// Of prompt and context, those whose KV was there already: computed for another request, or for
    /// an earlier one of the session.
    pub cached_tokens: usize,
    /// Tokens chosen, over all choices.
    pub output_tokens: usize,
    /// Token positions that went through the model, rejected drafts and repetitions included.
    pub computed_tokens: usize,
    /// Of those, the ones that had been computed before and were lost to preemption.
    pub recomputed_tokens: usize,
    /// Draft tokens that went through the model.
    pub draft_tokens: usize,
    /// Tokens gained from drafts.
    pub accepted_tokens: usize,
    /// What drafts may have changed of the output.
    pub speculation_contract: SpeculationContract,
    /// Its part of the time of drafters that cost steps of their own.
    pub draft_ns: u64,
    /// Steps that the request had a part in.
    pub steps: usize,
    /// How often it was put back to wait.
    pub preemptions: usize,
    /// From submission to its first step, and the waits after preemptions.
    pub queue_ns: u64,
    /// From its first step to its first token, waits left out.
    pub prefill_ns: u64,
    /// From its first token to its end, waits left out.
    pub decode_ns: u64,
    /// Its part of its steps' time, by tokens.
    pub compute_share_ns: u64,
    /// Time spent choosing its tokens; part of the steps' time too.
    pub sample_ns: u64,
    /// The most KV bytes it held at once, shared blocks counted once.
    pub kv_bytes: u64,
    /// KV bytes brought back from the disk tier for it.
    pub loaded_bytes: u64,
    /// Its part, by tokens, of the bytes that its steps read and wrote: weights and KV.
    pub moved_bytes: u64,
    /// Its part, by tokens, of the energy of its steps.
    pub energy: Joules,
}

impl Bill {
    /// What the core counted, with blocks of this size; the rest is zero.
    pub(crate) fn new(bill: &dunlin_scheduler::Bill, block_bytes: u64) -> Self {
        // Counts of tokens fit.
        let count = |n: u64| n as usize;
        Self {
            prompt_tokens: count(bill.prompt_tokens),
            context_tokens: count(bill.context_tokens),
            cached_tokens: count(bill.cached_tokens),
            output_tokens: count(bill.output_tokens),
            computed_tokens: count(bill.computed_tokens),
            recomputed_tokens: count(bill.recomputed_tokens),
            draft_tokens: count(bill.draft_tokens),
            accepted_tokens: count(bill.accepted_tokens),
            speculation_contract: SpeculationContract::default(),
            draft_ns: bill.draft_ns,
            steps: 0,
            preemptions: count(bill.preemptions),
            queue_ns: bill.queue_ns,
            prefill_ns: bill.prefill_ns,
            decode_ns: bill.decode_ns,
            compute_share_ns: bill.step_share_ns,
            sample_ns: 0,
            kv_bytes: bill.peak_blocks * block_bytes,
            loaded_bytes: bill.blocks_loaded * block_bytes,
            moved_bytes: bill.bytes_share,
            energy: Joules::default(),
        }
    }
}

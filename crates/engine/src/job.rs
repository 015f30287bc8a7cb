//! A request under way, as the engine sees it.

use dunlin_executor::{ChoiceState, Generation};
use dunlin_scheduler::Finished;
use dunlin_units::{SessionId, StepId};

use crate::{
    bill::{Bill, SpeculationContract},
    energy::{EnergySource, Joules},
    request::{CancelFlag, Choice, Completion, Finish},
};

/// The question that a request answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FlashOf {
    pub(crate) session: SessionId,
    pub(crate) question: u64,
    /// Whether somebody waits for it, and it is not ahead of time.
    pub(crate) asked: bool,
}

/// What the engine keeps of a request until it is over.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) cancel: CancelFlag,
    /// Whether the core was told.
    pub(crate) aborted: bool,
    /// Whether the context, and not `max_tokens`, limits its length.
    pub(crate) ends_at_context: bool,
    pub(crate) wants_logprobs: bool,
    /// Tokens told of each choice.
    pub(crate) told: Vec<usize>,
    /// Its part of the energy so far.
    pub(crate) microjoules: u64,
    /// Steps that it had a part in, and the last of them.
    pub(crate) steps: usize,
    pub(crate) last_step: StepId,
    /// The session that it extends.
    pub(crate) extends: Option<SessionId>,
    /// The question that it answers.
    pub(crate) flash: Option<FlashOf>,
}

impl Job {
    /// Whether nobody waits for it: a question's answer ahead of time.
    pub(crate) fn untold(&self) -> bool {
        self.flash.is_some_and(|flash| !flash.asked)
    }

    /// The request's results, from what the core and the executor know.
    pub(crate) fn complete(
        &self,
        finished: &Finished,
        generation: Generation,
        block_bytes: u64,
        source: EnergySource,
    ) -> Completion {
        let energy = Joules { microjoules: self.microjoules, source };
        let bill = Bill {
            sample_ns: generation.sample_ns,
            speculation_contract: if generation.residual {
                SpeculationContract::Distribution
            } else {
                SpeculationContract::Exact
            },
            steps: self.steps,
            energy,
            ..Bill::new(&finished.bill, block_bytes)
        };
        let choices = generation.choices.into_iter().enumerate().map(|(i, choice)| {
            // Where the choices had not parted, one end stands for all.
            let end = finished.ends.get(i).or(finished.ends.last());
            let end = end.expect("a request that is over has an end");
            Choice {
                finish: Finish::new(end, choice.end, self.ends_at_context),
                text: choice.text.into_text(),
                token_ids: choice.tokens,
                hidden: choice.hidden,
                logprobs: self.wants_logprobs.then_some(choice.logprobs),
            }
        });
        Completion { choices: choices.collect(), bill }
    }
}

/// Cuts off what was chosen but never became part of the output, because the request ended before
/// the step that chose it.
pub(crate) fn forget_untold(choice: &mut ChoiceState, told: usize) {
    if choice.tokens.len() > told {
        choice.tokens.truncate(told);
        choice.logprobs.truncate(told);
        choice.text_ends.truncate(told);
        choice.text.truncate(choice.text_ends.last().copied().unwrap_or(0));
        choice.end = None;
    }
}

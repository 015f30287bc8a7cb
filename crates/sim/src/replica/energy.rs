//! Whose energy a step's is.
//!
//! A step's energy is dealt out by the tokens that go through the model, in whole microjoules, when the
//! step begins: so all that requests have had sums to what all steps have drawn, at every moment. Of
//! one that ends while its next step is in flight, that step is its as well.

use dunlin_scheduler::StepPlan;

use super::{Active, Replica};

impl Replica {
    /// Deals out the energy of a step over the sequences in it.
    pub(super) fn charge(&mut self, plan: &StepPlan, energy_uj: u64, tokens: u32) {
        let tokens = u64::from(tokens.max(1));
        let (each, mut rest) = (energy_uj / tokens, energy_uj % tokens);
        for entry in &plan.entries {
            let own = u64::from(entry.tokens + entry.draft);
            let more = rest.min(own);
            rest -= more;
            self.energy[entry.seq.0 as usize] += each * own + more;
        }
    }

    /// A sequence's energy goes to its request, which has it from here.
    pub(super) fn settle(&mut self, place: usize) {
        let slot = self.seqs[place].slot as usize;
        if let Some(Some(active)) = self.active.get_mut(slot)
            && active.seq as usize == place
        {
            active.job.energy_uj += std::mem::take(&mut self.energy[place]);
        }
    }

    /// All that a request has had.
    pub(super) fn bill(&mut self, active: &mut Active) {
        if let Some(energy) = self.energy.get_mut(active.seq as usize) {
            active.job.energy_uj += std::mem::take(energy);
        }
    }
}

//! Biases and penalties: edits of single logits, undone after the token is chosen so that the
//! logits can be read again as the model gave them.

use super::{SamplingParams, scan::BlockMaxima};

/// Marks a token of the prompt or output in [`Edits::counts`]; the bits below it count the output.
const SEEN: u32 = 1 << 31;

#[derive(Debug, Default)]
pub(super) struct Edits {
    /// Each edited token and the logit it had before, in the order of the edits.
    undo: Vec<(u32, f32)>,
    /// `[vocab_size]`, all zero between calls.
    counts: Vec<u32>,
    /// Tokens with a count, in the order in which they were met.
    counted: Vec<u32>,
}

impl Edits {
    /// Applies biases, then the repetition penalty, then the presence and frequency penalties.
    /// `tokens` is the sequence so far, of which the first `prompt_len` are the prompt.
    pub(super) fn apply(
        &mut self,
        params: &SamplingParams,
        tokens: &[u32],
        prompt_len: usize,
        logits: &mut [f32],
        maxima: &mut BlockMaxima,
    ) {
        self.undo.clear();
        for &(token, bias) in &params.logit_bias {
            self.edit(logits, token, |x| x + bias);
        }
        if params.penalizes() {
            self.count(params, tokens, prompt_len, logits.len());
            for i in 0..self.counted.len() {
                let token = self.counted[i];
                let times = (self.counts[token as usize] & !SEEN) as f32;
                self.edit(logits, token, |x| penalized(params, x, times));
                self.counts[token as usize] = 0;
            }
        }
        for &(token, _) in &self.undo {
            maxima.update(logits, token);
        }
    }

    /// Restores the logits that [`Edits::apply`] was given.
    pub(super) fn undo(&mut self, logits: &mut [f32]) {
        while let Some((token, logit)) = self.undo.pop() {
            logits[token as usize] = logit;
        }
    }

    fn edit(&mut self, logits: &mut [f32], token: u32, change: impl FnOnce(f32) -> f32) {
        if let Some(logit) = logits.get_mut(token as usize) {
            self.undo.push((token, *logit));
            *logit = change(*logit);
        }
    }

    fn count(
        &mut self,
        params: &SamplingParams,
        tokens: &[u32],
        prompt_len: usize,
        vocab_size: usize,
    ) {
        self.counts.resize(vocab_size, 0);
        self.counted.clear();
        let window = params.penalty_window.unwrap_or(usize::MAX).min(tokens.len());
        for (position, &token) in tokens.iter().enumerate().skip(tokens.len() - window) {
            let Some(count) = self.counts.get_mut(token as usize) else { continue };
            if *count == 0 {
                self.counted.push(token);
            }
            *count = (*count | SEEN) + u32::from(position >= prompt_len);
        }
    }
}

fn penalized(params: &SamplingParams, logit: f32, times: f32) -> f32 {
    let repeated = if logit > 0.0 {
        logit / params.repetition_penalty
    } else {
        logit * params.repetition_penalty
    };
    if times > 0.0 {
        repeated - params.presence_penalty - params.frequency_penalty * times
    } else {
        repeated
    }
}

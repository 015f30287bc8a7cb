//! Predicted-shortest first, by buckets of length (response length perception and sequence
//! scheduling): short answers do not wait behind long ones, and lengths are only compared as far as
//! predictions can tell them apart.
//!
//! A request's prediction comes with it; without one, it is the mean of what requests with prompts
//! of about the same length have needed so far.

use dunlin_units::Time;

use super::{NS_PER_TOKEN, Policy};
use crate::event::Submission;

/// Buckets of length: powers of two.
const BUCKETS: usize = 32;

/// What is predicted before anything is known.
const FIRST_GUESS: u32 = 128;

/// The weight of a new observation in the running mean, as a shift: 1/16.
const LEARNING_SHIFT: u32 = 4;

/// Orders by the bucket of the predicted number of output tokens.
#[derive(Debug, Default)]
pub(super) struct Shortest {
    /// Mean output tokens in 1/256, by the bucket of the prompt's length; 0 where unknown.
    mean: [u64; BUCKETS],
}

fn bucket(tokens: u32) -> usize {
    (tokens.max(1).ilog2() as usize).min(BUCKETS - 1)
}

impl Shortest {
    fn predict(&self, request: &Submission) -> u32 {
        let predicted = request.predicted_tokens.unwrap_or_else(|| {
            let mean = self.mean[bucket(request.prompt.len() as u32)];
            if mean == 0 { FIRST_GUESS } else { (mean >> 8) as u32 }
        });
        predicted.min(request.max_tokens)
    }
}

impl Policy for Shortest {
    fn slack_ns(&mut self, _now: Time, request: &Submission) -> u64 {
        (1u64 << bucket(self.predict(request))) * NS_PER_TOKEN
    }

    fn learn(&mut self, prompt_tokens: u32, output_tokens: u32) {
        let mean = &mut self.mean[bucket(prompt_tokens)];
        let new = u64::from(output_tokens) << 8;
        *mean = if *mean == 0 {
            new
        } else {
            *mean - (*mean >> LEARNING_SHIFT) + (new >> LEARNING_SHIFT)
        };
    }
}

#[cfg(test)]
mod tests {
    use dunlin_kvcache::Namespace;
    use dunlin_units::RequestId;

    use super::*;

    fn request(prompt: usize, predicted: Option<u32>) -> Submission {
        let mut request =
            Submission::new(RequestId(0), Namespace::default(), vec![1; prompt], 4096);
        request.predicted_tokens = predicted;
        request
    }

    #[test]
    fn shorter_ones_go_first_and_near_ones_are_equal() {
        let mut policy = Shortest::default();
        let mut slack = |predicted| policy.slack_ns(Time(0), &request(10, Some(predicted)));
        assert!(slack(10) < slack(100) && slack(100) < slack(1000));
        assert_eq!(slack(64), slack(127));
    }

    #[test]
    fn it_learns_from_what_ended() {
        let mut policy = Shortest::default();
        assert_eq!(policy.predict(&request(100, None)), FIRST_GUESS);
        for _ in 0..200 {
            policy.learn(100, 1000);
            policy.learn(1000, 20);
        }
        let (long, short) =
            (policy.predict(&request(90, None)), policy.predict(&request(900, None)));
        assert!((980..=1000).contains(&long) && (18..=20).contains(&short), "{long} {short}");
    }
}

//! Rollouts of reinforcement learning: steps of many samples, with a barrier between steps.
//!
//! In each step every prompt of a batch is answered several times; when all answers are there the
//! weights are updated, and the next step begins. Long answers hold up everyone, which is what makes
//! such workloads their own kind.

use std::num::NonZeroU32;

use dunlin_units::{SeedTree, Stream, Time};
use serde::{Deserialize, Serialize};

use crate::client::nanoseconds;
use crate::dist::{Dist, DistSpec};
use crate::error::{SpecError, not_negative};
use crate::length::{Count, CountSpec};
use crate::prefix::{PrefixPool, PrefixUse, Prefixes};
use crate::request::{ClientId, Content, GroupId, Piece, Request, Wait};

/// A training run's rollouts, described.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RolloutSpec {
    /// Its name, which seeds its randomness: no two clients or rollouts have the same.
    pub name: String,
    /// How many steps.
    pub steps: u32,
    /// Prompts of a step.
    pub prompts: u32,
    /// Answers to each prompt.
    pub samples: u32,
    /// Tokens of a prompt, without shared prefixes.
    pub prompt: CountSpec,
    /// Tokens of an answer.
    pub output: CountSpec,
    /// What prompts begin with.
    #[serde(default)]
    pub prefixes: Vec<PrefixUse>,
    /// Seconds from a step's last answer to the next step: the update of the weights.
    pub update_s: DistSpec,
    /// Seconds from the start of the workload to the first step.
    #[serde(default)]
    pub from_s: f64,
}

/// The requests of a training run, step by step.
#[derive(Debug)]
pub struct Rollout {
    id: ClientId,
    steps: u32,
    prompts: u32,
    samples: u32,
    prompt: Count,
    output: Count,
    prefixes: Prefixes,
    update_s: Dist,
    seeds: SeedTree,
    updates: Stream,
    /// The group of the first step.
    first_group: NonZeroU32,
    /// The place of the next request: step, prompt, sample.
    next: [u32; 3],
    at: Time,
    delay_ns: u64,
    current: Prompt,
}

/// The prompt that is being sampled.
#[derive(Debug, Clone, Default)]
struct Prompt {
    pieces: Vec<Piece>,
    tokens: u32,
    seeds: Option<SeedTree>,
    outputs: Option<Stream>,
}

impl Rollout {
    /// The run of `spec`, whose steps are the groups from `first_group` on.
    pub(crate) fn new(
        spec: &RolloutSpec,
        id: ClientId,
        first_group: NonZeroU32,
        pools: &[(String, PrefixPool)],
        seeds: SeedTree,
    ) -> Result<Self, SpecError> {
        if spec.prompts.checked_mul(spec.samples).is_none_or(|n| n == 0) {
            let problem = "prompts times samples should be from 1 to 2^32 - 1";
            return Err(SpecError::new("samples", problem));
        }
        if spec.prompt.min == 0 {
            return Err(SpecError::new("prompt.min", "a prompt has at least one token"));
        }
        let own = seeds.child("rollout").child(&spec.name);
        Ok(Self {
            id,
            steps: spec.steps,
            prompts: spec.prompts,
            samples: spec.samples,
            prompt: spec.prompt.build().map_err(|e| e.within("prompt"))?,
            output: spec.output.build().map_err(|e| e.within("output"))?,
            prefixes: Prefixes::new(&spec.prefixes, pools)?,
            update_s: spec.update_s.build().map_err(|e| e.within("update_s"))?,
            seeds: own,
            updates: own.child("updates").stream(),
            first_group,
            next: [0; 3],
            at: Time(nanoseconds(not_negative("from_s", spec.from_s)?)),
            delay_ns: 0,
            current: Prompt::default(),
        })
    }

    /// Prompt `place` of `step`: the same whatever the number of samples.
    fn begin_prompt(&mut self, step: u32, place: u32) {
        let seeds = self.seeds.child_at(u64::from(step)).child_at(u64::from(place));
        let mut pieces = std::mem::take(&mut self.current.pieces);
        pieces.clear();
        let shared = self.prefixes.draw(&mut seeds.child("prefix").stream(), &mut pieces);
        let own = self.prompt.draw(&mut seeds.child("prompt").stream());
        pieces.push(Piece { stream: seeds.seed(), tokens: own });
        self.current = Prompt {
            pieces,
            tokens: shared.saturating_add(own),
            seeds: Some(seeds),
            outputs: Some(seeds.child("outputs").stream()),
        };
    }
}

impl Iterator for Rollout {
    type Item = Request;

    fn next(&mut self) -> Option<Request> {
        let [step, prompt, sample] = self.next;
        if step == self.steps {
            return None;
        }
        if sample == 0 {
            self.begin_prompt(step, prompt);
        }
        let group = |step| GroupId(self.first_group.saturating_add(step));
        let (seeds, outputs) = (self.current.seeds?, self.current.outputs.as_mut()?);
        // Each answer is a stream of its own, of which the prompt has no token.
        let answer = Piece { stream: seeds.child_at(u64::from(sample)).seed(), tokens: 0 };
        let pieces: Vec<Piece> =
            self.current.pieces.iter().copied().chain(std::iter::once(answer)).collect();
        let members = self.prompts * self.samples;
        let request = Request {
            client: self.id,
            group: Some(group(step)),
            wait: match step {
                0 => Wait::Nothing,
                _ => Wait::Group { group: group(step - 1), members },
            },
            delay_ns: self.delay_ns,
            content: Content::Pieces(pieces.into()),
            ..Request::new(self.at, self.current.tokens, self.output.draw(outputs))
        };
        self.next = match (prompt + 1 == self.prompts, sample + 1 == self.samples) {
            (_, false) => [step, prompt, sample + 1],
            (false, true) => [step, prompt + 1, 0],
            (true, true) => {
                self.delay_ns = nanoseconds(self.update_s.draw(&mut self.updates));
                self.at = self.at.after(self.delay_ns);
                [step + 1, 0, 0]
            }
        };
        Some(request)
    }
}

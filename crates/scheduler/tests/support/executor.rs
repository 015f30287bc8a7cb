//! An executor without a model: tokens are a function of request, choice and position, and time is
//! what a formula says.

use std::collections::VecDeque;

use dunlin_kvcache::MoveId;
use dunlin_scheduler::{
    Commit, DraftNode, DrafterKind, Effects, Event, Proposal, SampleEnd, SeqOp, StepOutcome,
    StepPlan,
};
use dunlin_units::{RequestId, SeedTree, SeqId, Stream, Time};

use super::mix;

/// How an executor behaves. Rates are in 1/1000.
#[derive(Debug, Clone)]
pub struct Rules {
    pub seed: u64,
    /// Tokens are below this.
    pub vocabulary: u32,
    /// All choices of a request get the same tokens, as greedy ones do.
    pub same_choices: bool,
    /// Requests that come to a stop token, somewhere in their first 12 tokens.
    pub stops: u64,
    pub failing_entries: u64,
    /// Samples for which no token can be chosen.
    pub failing_samples: u64,
    pub failing_moves: u64,
    /// Steps that take a hundred times as long.
    pub slow_steps: u64,
    pub step_ns: u64,
    pub token_ns: u64,
    /// Moves take up to so long.
    pub move_ns: u64,
    /// Sequences, of those that got a token, for which a draft is proposed.
    pub drafts: u64,
    /// The most nodes of a draft.
    pub draft_nodes: u64,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            seed: 1,
            vocabulary: 1000,
            same_choices: false,
            stops: 0,
            failing_entries: 0,
            failing_samples: 0,
            failing_moves: 0,
            slow_steps: 0,
            step_ns: 100_000,
            token_ns: 10_000,
            move_ns: 200_000,
            drafts: 0,
            draft_nodes: 0,
        }
    }
}

impl Rules {
    /// The token of a request's choice at an absolute position.
    pub fn token(&self, request: RequestId, choice: u32, position: u32) -> u32 {
        let choice = if self.same_choices { 0 } else { choice };
        let hash = mix(&[self.seed, request.0, u64::from(choice), u64::from(position)]);
        (hash % u64::from(self.vocabulary)) as u32
    }

    /// After how many tokens a choice stops by itself.
    pub fn stops_after(&self, request: RequestId, choice: u32) -> Option<u32> {
        let choice = if self.same_choices { 0 } else { choice };
        let hash = mix(&[self.seed, request.0, u64::from(choice), u64::MAX]);
        (hash % 1000 < self.stops).then_some((hash >> 32) as u32 % 12 + 1)
    }
}

#[derive(Debug, Clone, Default)]
struct Seq {
    request: Option<RequestId>,
    choice: u32,
    length: u32,
    /// Its length when tokens were last appended: the end of the prompt.
    prompt_end: u32,
    /// An entry of it has failed: so do those after it.
    broken: bool,
}

/// See the module.
#[derive(Debug)]
pub struct NullExecutor {
    pub rules: Rules,
    seqs: Vec<Option<Seq>>,
    /// Steps with the moments at which they end.
    steps: VecDeque<(Time, StepPlan)>,
    moves: Vec<(Time, MoveId)>,
    noise: Stream,
}

impl NullExecutor {
    pub fn new(rules: Rules) -> Self {
        let noise = SeedTree::root(rules.seed).child("executor").stream();
        Self { rules, seqs: Vec::new(), steps: VecDeque::new(), moves: Vec::new(), noise }
    }

    fn happens(&mut self, rate: u64) -> bool {
        rate > 0 && self.noise.next_below(1000) < rate
    }

    /// Carries out effects.
    pub fn take(&mut self, now: Time, fx: &Effects) {
        for op in &fx.ops {
            self.op(op);
        }
        for m in &fx.moves {
            let ns = self.noise.next_below(self.rules.move_ns) + 1;
            self.moves.push((now.after(ns), m.id));
        }
        if let Some(plan) = &fx.plan {
            let begin = self.steps.back().map_or(now, |s| s.0.max(now));
            let ns = self.duration_ns(plan);
            let slow = if self.happens(self.rules.slow_steps) { 100 } else { 1 };
            self.steps.push_back((begin.after(ns * slow), plan.clone()));
        }
    }

    fn duration_ns(&self, plan: &StepPlan) -> u64 {
        let tokens: u32 = plan.entries.iter().map(|e| e.tokens + e.draft).sum();
        self.rules.step_ns + self.rules.token_ns * u64::from(tokens)
    }

    fn seq(&mut self, seq: SeqId) -> &mut Seq {
        self.seqs[seq.0 as usize].as_mut().expect("a sequence")
    }

    fn place(&mut self, seq: SeqId, value: Option<Seq>) {
        let slot = seq.0 as usize;
        if self.seqs.len() <= slot {
            self.seqs.resize(slot + 1, None);
        }
        self.seqs[slot] = value;
    }

    fn op(&mut self, op: &SeqOp) {
        match op {
            SeqOp::Start { seq, request, choice } => {
                let (request, choice) = (*request, *choice);
                self.place(*seq, Some(Seq { request, choice, ..Seq::default() }));
            }
            SeqOp::Fork { from, to, tokens, request, choice, .. } => {
                let source = self.seq(*from).clone();
                let (request, choice) = (*request, *choice);
                let copy = Seq { request, choice, length: *tokens, broken: false, ..source };
                self.place(*to, Some(copy));
            }
            SeqOp::Assign { seq, request, choice } => {
                let seq = self.seq(*seq);
                (seq.request, seq.choice) = (*request, *choice);
                seq.broken = false;
            }
            SeqOp::Append { seq, tokens } => {
                let seq = self.seq(*seq);
                seq.length += tokens.len() as u32;
                seq.prompt_end = seq.length;
            }
            SeqOp::Truncate { seq, tokens, .. } => self.seq(*seq).length = *tokens,
            SeqOp::End { seq } => self.place(*seq, None),
            SeqOp::Block { .. }
            | SeqOp::Replace { .. }
            | SeqOp::Copy { .. }
            | SeqOp::Fill { .. } => {}
        }
    }

    /// When something ends next.
    pub fn next(&self) -> Option<Time> {
        let step = self.steps.front().map(|s| s.0);
        self.moves.iter().map(|m| m.0).chain(step).min()
    }

    pub fn steps_in_flight(&self) -> usize {
        self.steps.len()
    }

    pub fn moves_in_flight(&self) -> usize {
        self.moves.len()
    }

    /// What ends until `now`, the oldest step and any moves, as events.
    pub fn ended(&mut self, now: Time, events: &mut Vec<Event>) {
        while let Some(at) = self.moves.iter().position(|m| m.0 <= now) {
            let (_, id) = self.moves.remove(at);
            events.push(self.move_done(id));
        }
        while self.steps.front().is_some_and(|s| s.0 <= now) {
            events.extend(self.step_done());
        }
    }

    /// Ends a move, whatever the time.
    pub fn end_move(&mut self) -> Option<Event> {
        let (_, id) = self.moves.pop()?;
        Some(self.move_done(id))
    }

    fn move_done(&mut self, id: MoveId) -> Event {
        Event::MoveDone { id, ok: !self.happens(self.rules.failing_moves) }
    }

    /// Ends the oldest step, whatever the time.
    pub fn step_done(&mut self) -> Option<Event> {
        self.step_done_with(&[])
    }

    /// The same; these entries fail in any case.
    pub fn step_done_with(&mut self, failing: &[u32]) -> Option<Event> {
        let (_, plan) = self.steps.pop_front()?;
        let mut outcome = StepOutcome {
            step: plan.step,
            duration_ns: self.duration_ns(&plan) + self.noise.next_below(100),
            bytes: self.noise.next_below(10_000),
            ..StepOutcome::default()
        };
        for wanted in &plan.wanted {
            let mut nodes = self.draft(wanted.seq);
            nodes.truncate(wanted.nodes as usize);
            outcome.work.passes = outcome.work.passes.max(nodes.len() as u32);
            outcome.work.tokens += nodes.len() as u32 + 1;
            let (seq, drafter) = (wanted.seq, wanted.drafter);
            outcome.proposals.push(Proposal { seq, drafter, nodes });
        }
        let (mut samples, mut draft) = (plan.samples.as_slice(), plan.draft.as_slice());
        for (index, entry) in plan.entries.iter().enumerate() {
            let (own, rest) = samples.split_at(entry.samples as usize);
            samples = rest;
            let (nodes, rest) = draft.split_at(entry.draft as usize);
            draft = rest;
            let fails = self.happens(self.rules.failing_entries)
                || failing.contains(&(index as u32))
                || self.seq(entry.seq).broken
                || self.seq(entry.seq).length < entry.first_position + entry.tokens;
            if fails {
                outcome.failed.push(index as u32);
                self.seq(entry.seq).broken = true;
            }
            for &seq in own {
                let commit = if fails {
                    self.seq(seq).broken = true;
                    Commit::default()
                } else {
                    self.choose(seq, nodes, &mut outcome.tokens)
                };
                outcome.commits.push(commit);
                if !fails && commit.end.is_none() && self.happens(self.rules.drafts) {
                    let nodes = self.draft(seq);
                    let drafter = DrafterKind::Lookup;
                    outcome.proposals.push(Proposal { seq, drafter, nodes });
                }
            }
        }
        Some(Event::StepDone(Box::new(outcome)))
    }

    /// The tokens of a sequence that follow, along a draft as far as it is right.
    fn choose(&mut self, seq: SeqId, nodes: &[DraftNode], tokens: &mut Vec<u32>) -> Commit {
        if self.happens(self.rules.failing_samples) {
            return Commit { tokens: 0, end: Some(SampleEnd::Error) };
        }
        let rules = self.rules.clone();
        let s = self.seq(seq);
        let request = s.request.expect("a sequence that is sampled has a request");
        let mut commit = Commit::default();
        let mut parent = DraftNode::ROOT;
        loop {
            let token = rules.token(request, s.choice, s.length);
            tokens.push(token);
            s.length += 1;
            commit.tokens += 1;
            if rules.stops_after(request, s.choice) == Some(s.length - s.prompt_end) {
                commit.end = Some(SampleEnd::Stop);
                return commit;
            }
            let child = nodes.iter().position(|n| n.parent == parent && n.token == token);
            match child {
                Some(at) => parent = at as u32,
                None => return commit,
            }
        }
    }

    /// A tree that follows a sequence, right in some of its nodes.
    fn draft(&mut self, seq: SeqId) -> Vec<DraftNode> {
        let (s, rules) = (self.seq(seq).clone(), self.rules.clone());
        let Some(request) = s.request else { return Vec::new() };
        let mut nodes = Vec::new();
        // The position that each node stands at.
        let mut depth: Vec<u32> = Vec::new();
        for _ in 0..self.noise.next_below(rules.draft_nodes + 1) {
            let parent = self.noise.next_below(nodes.len() as u64 + 1) as u32;
            let (parent, at) = match parent.checked_sub(1) {
                None => (DraftNode::ROOT, 0),
                Some(p) => (p, depth[p as usize] + 1),
            };
            let right = rules.token(request, s.choice, s.length + at);
            let wrong = self.happens(300);
            let token = if wrong { right + 1 } else { right };
            if nodes.iter().any(|n: &DraftNode| n.parent == parent && n.token == token) {
                continue;
            }
            let drafter = DrafterKind::Lookup;
            nodes.push(DraftNode { token, parent, confidence: 1 << 15, drafter });
            depth.push(at);
        }
        nodes
    }
}

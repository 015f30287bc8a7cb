//! Plans, and what comes of them.

use dunlin_kvcache::BlockId;
use dunlin_units::{RequestId, SeqId};

use super::{
    Check, PlanChecker,
    bills::Share,
    ensure,
    memory::{Motion, PENDING, link},
};
use crate::{
    effects::{End, Entry, Output, StepKind, StepPlan},
    event::{Class, Commit, DraftNode, SampleEnd, StepOutcome},
    speculation::Speculate,
};

/// A step in flight.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) id: u64,
    /// Each with the request and the choice that it is for.
    entries: Vec<(Entry, RequestId, u32)>,
    samples: Vec<(SeqId, RequestId, u32)>,
    /// Those for which a draft is wanted.
    wanted: Vec<(SeqId, RequestId)>,
    /// Blocks of branches, nobody else's until it is done.
    scratch: Vec<BlockId>,
}

impl Step {
    fn new(plan: &StepPlan) -> Self {
        let (entries, samples, wanted, scratch) = <_>::default();
        Self { id: plan.step.0, entries, samples, wanted, scratch }
    }
}

impl PlanChecker {
    pub(super) fn plan(&mut self, plan: &StepPlan) -> Check {
        ensure!(
            self.steps.len() < self.config.steps_in_flight as usize,
            "planned while {} are in flight",
            self.steps.len()
        );
        ensure!(plan.step.0 == self.last_step + 1, "the step before was {}", self.last_step);
        self.last_step = plan.step.0;
        if plan.kind == StepKind::Draft {
            return self.draft_plan(plan);
        }
        ensure!(!plan.entries.is_empty(), "an empty step");
        ensure!(plan.wanted.is_empty(), "drafts are wanted of a step that runs the model");
        let tokens: u64 =
            plan.entries.iter().map(|e| u64::from(e.tokens) + u64::from(e.draft)).sum();
        ensure!(
            tokens <= u64::from(self.config.max_step_tokens),
            "{tokens} tokens; a step has at most {}",
            self.config.max_step_tokens
        );
        let mut step = Step::new(plan);
        let mut samples = plan.samples.as_slice();
        let mut draft = plan.draft.as_slice();
        let mut scratch = plan.scratch.as_slice();
        for entry in &plan.entries {
            let of = |problem| format!("sequence {}: {problem}", entry.seq.0);
            ensure!(
                samples.len() >= entry.samples as usize && draft.len() >= entry.draft as usize,
                "samples or draft nodes are missing"
            );
            let (own, rest) = samples.split_at(entry.samples as usize);
            samples = rest;
            let (nodes, rest) = draft.split_at(entry.draft as usize);
            draft = rest;
            let ordered =
                (0..).zip(nodes).all(|(i, n)| n.parent == DraftNode::ROOT || n.parent < i);
            ensure!(ordered, "a draft node comes before its parent");
            let needed = branch_blocks(nodes, entry, self.memory.block_tokens as u32);
            ensure!(
                entry.scratch == needed && scratch.len() >= needed as usize,
                "{} blocks for branches of a draft that needs {needed}",
                entry.scratch
            );
            let (blocks, rest) = scratch.split_at(needed as usize);
            scratch = rest;
            self.entry(entry, own, nodes, &mut step).map_err(of)?;
            step.scratch.extend_from_slice(blocks);
        }
        let none_left = samples.is_empty() && draft.is_empty() && scratch.is_empty();
        ensure!(none_left, "samples, draft nodes or blocks of no entry");
        self.take_scratch(&step.scratch)?;
        let mut seqs: Vec<u32> = plan.samples.iter().map(|s| s.0).collect();
        seqs.extend(plan.entries.iter().filter(|e| e.samples == 0).map(|e| e.seq.0));
        let parts = seqs.len();
        seqs.sort_unstable();
        seqs.dedup();
        ensure!(seqs.len() == parts, "a sequence is in it twice");
        let most = self.config.max_running.min(self.config.max_step_tokens);
        ensure!(self.running <= most, "{} sequences run; at most {most} may", self.running);
        self.steps.push_back(step);
        Ok(())
    }

    /// Blocks for branches are nobody's before the step.
    fn take_scratch(&mut self, blocks: &[BlockId]) -> Check {
        let first_in_flight = self.steps.front().map_or(u64::MAX, |s| s.id);
        for &id in blocks {
            let block = self.memory.block(id)?;
            ensure!(block.references == 0, "block {id} is for a branch, and is held");
            ensure!(block.motion.is_none(), "block {id} is for a branch, and is moved");
            ensure!(block.named_until < first_in_flight, "block {id} is for a branch in its step");
            block.references = 1;
            block.chain.clear();
        }
        Ok(())
    }

    /// A step in which a drafter runs.
    fn draft_plan(&mut self, plan: &StepPlan) -> Check {
        ensure!(!plan.wanted.is_empty(), "a draft step that wants no drafts");
        ensure!(
            plan.entries.is_empty()
                && plan.samples.is_empty()
                && plan.draft.is_empty()
                && plan.scratch.is_empty(),
            "a draft step that also runs the model"
        );
        let mut step = Step::new(plan);
        for wanted in &plan.wanted {
            let known = self.config.speculation.drafters.iter().any(|d| d.0 == wanted.drafter);
            ensure!(known, "there is no drafter {:?}", wanted.drafter);
            ensure!(wanted.drafter == plan.wanted[0].drafter, "two drafters in one step");
            let s = self.seq(wanted.seq)?;
            ensure!(!s.drafting, "a second draft");
            ensure!(s.pending == 0 && s.in_flight == 0, "a draft behind a token that is to come");
            let (id, choice) = (s.request.ok_or("a draft without a request")?, s.choice);
            (s.drafting, s.in_flight) = (true, 1);
            let r = self.request(id)?;
            ensure!(r.ends[choice as usize].is_none(), "a draft after the end");
            ensure!(r.got[choice as usize] > 0, "a draft before the first token");
            ensure!(r.speculate.allows(wanted.drafter), "{id} does not use {:?}", wanted.drafter);
            ensure!(
                (1..=r.max_draft).contains(&wanted.nodes),
                "a draft of {} nodes; {id} has at most {}",
                wanted.nodes,
                r.max_draft
            );
            r.in_flight += 1;
            step.wanted.push((wanted.seq, id));
        }
        self.steps.push_back(step);
        Ok(())
    }

    /// A step in which a drafter ran is over.
    fn drafts_done(&mut self, step: &Step, outcome: &StepOutcome) -> Check {
        let count = step.wanted.len() as u64;
        for &(seq, id) in &step.wanted {
            let r = self.request(id)?;
            r.bill.time.add(Share::of(outcome.duration_ns, 1, count));
            r.bill.draft_time.add(Share::of(outcome.duration_ns, 1, count));
            r.bill.bytes.add(Share::of(outcome.bytes, 1, count));
            r.in_flight -= 1;
            self.seq_done(seq)?;
            self.seq(seq)?.drafting = false;
            self.settle(id)?;
        }
        Ok(())
    }

    fn entry(
        &mut self,
        entry: &Entry,
        samples: &[SeqId],
        draft: &[DraftNode],
        step: &mut Step,
    ) -> Check {
        let size = self.memory.block_tokens as u32;
        let first = entry.first_position;
        let end = first + entry.tokens;
        let s = self.seq(entry.seq)?;
        ensure!(entry.tokens > 0, "no tokens");
        ensure!(!s.drafting, "planned while a draft of it is in flight");
        ensure!(first >= s.planned, "position {first} is computed again; {} are there", s.planned);
        ensure!(end <= s.total(), "positions up to {end}, and {} tokens", s.total());
        let covered = s.table.len() as u32 * size;
        let draft_end = end + longest(draft);
        ensure!(covered >= draft_end, "its table covers {covered} positions");
        let id = s.request.ok_or("planned without a request")?;
        let choice = s.choice;
        self.check_read(entry.seq, first)?;
        self.write(entry.seq, first, end, draft_end, step.id)?;
        self.check_draft(entry.seq, draft)?;
        let s = self.seq(entry.seq)?;
        let total = s.total();
        s.planned = end;
        s.in_flight_end = s.in_flight_end.max(draft_end);
        s.drafting = entry.draft > 0;
        if !samples.contains(&entry.seq) {
            s.in_flight += 1;
        }
        let r = self.request(id)?;
        ensure!(r.ends[choice as usize].is_none(), "planned after its end");
        let wants = end == total && total < r.limit();
        let expected = match (wants, r.parted) {
            (false, _) => 0,
            (true, true) => 1,
            (true, false) => r.choices(),
        };
        ensure!(
            entry.samples == expected,
            "{} samples at position {end} of {total} tokens, instead of {expected}",
            entry.samples
        );
        ensure!(total < r.limit() || total == r.prompt_end(), "computed after its last token");
        ensure!(entry.draft == 0 || entry.samples == 1, "a draft, and not one sample");
        ensure!(
            entry.draft == 0 || r.speculate != Speculate::Off && entry.draft <= r.max_draft,
            "a draft of {} nodes; {id} has at most {} of {}",
            entry.draft,
            r.max_draft,
            r.speculate
        );
        let branches = leaves(draft);
        ensure!(
            branches <= r.max_branches,
            "a draft of {branches} branches; {id} has at most {}",
            r.max_branches
        );
        if r.class == Class::Idle {
            ensure!(self.busy == 0, "idle work runs beside {} other requests", self.busy);
        }
        if wants {
            self.check_samples(entry, id, choice, samples, step)?;
        }
        self.request(id)?.in_flight += 1;
        self.set_runs(entry.seq, true)?;
        step.entries.push((*entry, id, choice));
        Ok(())
    }

    fn check_samples(
        &mut self,
        entry: &Entry,
        id: RequestId,
        choice: u32,
        samples: &[SeqId],
        step: &mut Step,
    ) -> Check {
        let end = entry.first_position + entry.tokens;
        ensure!(samples[0] == entry.seq, "its first sample is another sequence's");
        let r = self.request(id)?;
        r.parted = true;
        for (i, &seq) in samples.iter().enumerate() {
            let own = choice + i as u32;
            let s = self.seq(seq)?;
            ensure!(s.request == Some(id) && s.choice == own, "a sample of another choice");
            let other = (s.total(), s.link_at(end - 1), s.table.clone());
            ensure!(!s.runs || i == 0, "a choice that runs already");
            s.pending += 1;
            s.in_flight += 1;
            s.in_flight_end = s.in_flight_end.max(end);
            s.planned = end;
            let leader = self.seq(entry.seq)?;
            let link = leader.link_at(end - 1);
            ensure!(
                i == 0 || other.0 == end && other.1 == link && other.2 == leader.table,
                "a choice that is not a copy of the first"
            );
            self.set_runs(seq, true)?;
            self.request(id)?.in_flight += 1;
            step.samples.push((seq, id, own));
        }
        Ok(())
    }

    /// Whether a table holds the first `end` positions of its sequence.
    fn check_read(&mut self, seq: SeqId, end: u32) -> Check {
        let size = self.memory.block_tokens as u32;
        let s = self.seq(seq)?;
        let mut from = s.verified;
        let (table, chain) = (std::mem::take(&mut s.table), std::mem::take(&mut s.chain));
        let mut result = Ok(());
        while from < end && result.is_ok() {
            let index = from / size;
            let to = ((index + 1) * size).min(end);
            let block = table[index as usize];
            let positions = (to - index * size) as usize;
            // What is not chosen yet, its own step before writes.
            let wanted = chain.get(to as usize - 1).copied().unwrap_or(PENDING);
            let coming = self.memory.block(block)?.motion == Some(Motion::Coming);
            if coming || !self.memory.ends_with(block, positions, wanted) {
                result = Err(format!(
                    "it reads positions up to {to} in block {block}, which has other content"
                ));
            }
            from = to;
        }
        let s = self.seq(seq)?;
        (s.table, s.chain) = (table, chain);
        s.verified = s.verified.max(end.min(s.chain.len() as u32));
        result
    }

    /// A step writes the positions `first..end` of a sequence and, up to `draft_end`, a draft.
    fn write(&mut self, seq: SeqId, first: u32, end: u32, draft_end: u32, step: u64) -> Check {
        let size = self.memory.block_tokens as u32;
        let mut from = first;
        while from < draft_end {
            let index = from / size;
            let to = ((index + 1) * size).min(draft_end);
            let s = self.seq(seq)?;
            let block_id = s.table[index as usize];
            let links: Vec<u64> = (from..to.min(end).max(from)).map(|p| s.link_at(p)).collect();
            let block = self.memory.block(block_id)?;
            ensure!(block.motion.is_none(), "block {block_id} is written while it is moved");
            let offset = (from - index * size) as usize;
            ensure!(block.chain.len() >= offset, "block {block_id} is written with a gap");
            block.chain.truncate(offset);
            block.chain.extend_from_slice(&links);
            block.last_write = step;
            if block.references > 1 {
                self.check_shared_write(seq, block_id, from, to)?;
            }
            from = to;
        }
        let s = self.seq(seq)?;
        s.verified = s.verified.max(end.min(s.chain.len() as u32));
        Ok(())
    }

    /// Whoever else names a block that is written must want just that content.
    fn check_shared_write(&mut self, writer: SeqId, block: u32, from: u32, to: u32) -> Check {
        let size = self.memory.block_tokens;
        let index = from as usize / size;
        let wanted: Vec<u64> = (from..to)
            .map(|p| self.seqs[writer.0 as usize].as_ref().map_or(0, |s| s.link_at(p)))
            .collect();
        for (slot, other) in self.seqs.iter().enumerate() {
            let Some(other) = other.as_ref().filter(|o| o.table.contains(&block)) else { continue };
            let places = other.table.iter().filter(|&&b| b == block).count();
            let same = other.table.get(index) == Some(&block)
                && places == 1
                && (from..to)
                    .zip(&wanted)
                    .all(|(p, &link)| link != PENDING && other.link_at(p) == link);
            ensure!(
                same || (slot == writer.0 as usize && places == 1),
                "it writes positions {from}..{to} to block {block}, which sequence {slot} names too"
            );
        }
        Ok(())
    }

    /// Whether the nodes are a part of the tree that was proposed, parents first.
    fn check_draft(&mut self, seq: SeqId, nodes: &[DraftNode]) -> Check {
        if nodes.is_empty() {
            return Ok(());
        }
        let s = self.seq(seq)?;
        ensure!(s.pending == 0, "a draft behind a token that is not chosen yet");
        let proposal = std::mem::take(&mut s.proposal);
        // Where each node is in the proposal.
        let mut origin: Vec<u32> = Vec::with_capacity(nodes.len());
        for (i, node) in nodes.iter().enumerate() {
            let parent = match node.parent {
                DraftNode::ROOT => DraftNode::ROOT,
                p => origin[p as usize],
            };
            let found = (0..).zip(&proposal).find(|(at, n)| {
                n.token == node.token && n.parent == parent && !origin.contains(at)
            });
            let Some((at, _)) = found else {
                return Err(format!("draft node {i} was not proposed"));
            };
            origin.push(at);
        }
        Ok(())
    }

    pub(super) fn step_done(&mut self, outcome: &StepOutcome) -> Check {
        let step = self.steps.pop_front().ok_or("no step is in flight")?;
        ensure!(step.id == outcome.step.0, "another step is the oldest in flight");
        ensure!(step.samples.len() == outcome.commits.len(), "not one commit for each sample");
        let tokens = step.entries.iter().map(|(e, ..)| u64::from(e.tokens + e.draft)).sum();
        self.totals.step(outcome.duration_ns, outcome.bytes);
        self.drafts_done(&step, outcome)?;
        step.scratch.iter().for_each(|&block| self.memory.release(block));
        let mut samples = step.samples.iter().zip(&outcome.commits);
        let mut chosen = outcome.tokens.as_slice();
        for (index, &(entry, id, choice)) in step.entries.iter().enumerate() {
            let failed = outcome.failed.contains(&(index as u32));
            let own = u64::from(entry.tokens + entry.draft);
            let r = self.request(id)?;
            r.bill.entry(&entry);
            r.bill.time.add(Share::of(outcome.duration_ns, own, tokens));
            r.bill.bytes.add(Share::of(outcome.bytes, own, tokens));
            r.in_flight -= 1;
            if failed {
                self.lose(entry.seq, entry.first_position)?;
            }
            if entry.samples == 0 {
                self.seq_done(entry.seq)?;
                let r = self.request(id)?;
                let (end, choices) = (r.prompt_end(), r.choices());
                if failed {
                    self.end(id, choice, &End::Error)?;
                    // Choices that parted in a later step have no prompt either.
                    for choice in 0..choices {
                        let seq = self.request(id)?.seqs[choice as usize];
                        if let Some(seq) = seq
                            && self.seq(seq)?.chain.len() as u32 == end
                        {
                            self.end(id, choice, &End::Error)?;
                        }
                    }
                } else if entry.first_position + entry.tokens == r.limit() {
                    let end = r.length_end();
                    self.end(id, choice, &end)?;
                }
            }
            for _ in 0..entry.samples {
                let (&(seq, id, choice), commit) = samples.next().ok_or("samples are missing")?;
                ensure!(chosen.len() >= commit.tokens as usize, "tokens are missing");
                let (tokens, rest) = chosen.split_at(commit.tokens as usize);
                chosen = rest;
                self.seq_done(seq)?;
                self.seq(seq)?.pending -= 1;
                self.request(id)?.in_flight -= 1;
                if failed {
                    self.end(id, choice, &End::Error)?;
                } else {
                    self.commit(seq, &entry, tokens)?;
                    self.gain(id, choice, *commit, tokens, entry.draft)?;
                }
            }
            self.settle(id)?;
        }
        for proposal in &outcome.proposals {
            if let Some(Some(s)) = self.seqs.get_mut(proposal.seq.0 as usize) {
                s.proposal.clone_from(&proposal.nodes);
            }
        }
        Ok(())
    }

    /// A part of a sequence in a step has ended.
    fn seq_done(&mut self, seq: SeqId) -> Check {
        let s = self.seq(seq)?;
        s.in_flight -= 1;
        if s.in_flight == 0 {
            s.in_flight_end = 0;
        }
        Ok(())
    }

    /// A step could not compute a sequence from `first` on.
    fn lose(&mut self, seq: SeqId, first: u32) -> Check {
        let size = self.memory.block_tokens as u32;
        let s = self.seq(seq)?;
        let planned = s.in_flight_end.max(s.planned).min(s.table.len() as u32 * size);
        s.planned = s.planned.min(first);
        s.verified = s.verified.min(first);
        s.drafting = false;
        let table = s.table.clone();
        for index in first / size..planned.div_ceil(size) {
            let keep = first.saturating_sub(index * size) as usize;
            self.memory.block(table[index as usize])?.chain.truncate(keep);
        }
        Ok(())
    }

    /// The executor appends the tokens that it chose.
    fn commit(&mut self, seq: SeqId, entry: &Entry, tokens: &[u32]) -> Check {
        let size = self.memory.block_tokens as u32;
        ensure!(
            tokens.len() as u32 <= entry.draft + 1,
            "the executor chose {} tokens after {} drafts",
            tokens.len(),
            entry.draft
        );
        let s = self.seq(seq)?;
        let before = s.chain.len() as u32;
        s.append(tokens);
        let mut there = s.planned;
        if entry.draft > 0 {
            s.drafting = false;
            // The last is chosen and not computed; those before it were drafts.
            there = before + (tokens.len() as u32).saturating_sub(1);
            s.planned = there;
            s.verified = there;
        }
        for position in before..there.min(before + tokens.len() as u32) {
            let s = self.seq(seq)?;
            let (link, block) = (s.link_at(position), s.table[(position / size) as usize]);
            let chain = &mut self.memory.block(block)?.chain;
            let offset = (position % size) as usize;
            if offset == chain.len() {
                chain.push(link);
            } else {
                ensure!(chain.get(offset) == Some(&PENDING), "another's position was chosen");
                chain[offset] = link;
            }
        }
        Ok(())
    }

    /// What a commit means for its request.
    fn gain(
        &mut self,
        id: RequestId,
        choice: u32,
        commit: Commit,
        tokens: &[u32],
        draft: u32,
    ) -> Check {
        let r = self.request(id)?;
        if r.ends[choice as usize].is_some() {
            return Ok(());
        }
        let most = r.max_tokens - r.got[choice as usize];
        let gained = tokens.len().min(most as usize);
        r.got[choice as usize] += gained as u32;
        r.bill.outputs += gained as u64;
        if draft > 0 {
            r.bill.accepted += (gained as u64).saturating_sub(1);
        }
        if choice == 0 {
            r.answer.extend_from_slice(&tokens[..gained]);
        }
        let complete = r.got[choice as usize] == r.max_tokens;
        let length = r.length_end();
        let tokens = &tokens[..gained];
        self.outputs.extend(tokens.iter().map(|&token| Output { request: id, choice, token }));
        match commit.end {
            Some(SampleEnd::Stop) => self.end(id, choice, &End::Stop),
            Some(SampleEnd::Error) => self.end(id, choice, &End::Error),
            None if complete => self.end(id, choice, &length),
            None => Ok(()),
        }
    }
}

/// Nodes of the longest path of a tree, parents first.
fn longest(nodes: &[DraftNode]) -> u32 {
    (0..nodes.len()).map(|at| path_to(nodes, at)).max().unwrap_or(0)
}

/// Nodes from the root to a node.
fn path_to(nodes: &[DraftNode], at: usize) -> u32 {
    let mut length = 1;
    let mut node = nodes[at];
    while let Some(&parent) = nodes.get(node.parent as usize) {
        (node, length) = (parent, length + 1);
    }
    length
}

/// Nodes that nothing follows.
fn leaves(nodes: &[DraftNode]) -> u32 {
    let goes_on = |at: u32| nodes.iter().any(|node| node.parent == at);
    (0..nodes.len() as u32).filter(|&at| !goes_on(at)).count() as u32
}

/// Blocks that a draft's branches need: those of all paths, each of which begins with a node that is
/// not its parent's first child and goes on with first children.
fn branch_blocks(nodes: &[DraftNode], entry: &Entry, size: u32) -> u32 {
    let first_child = |of: u32| nodes.iter().position(|node| node.parent == of).map(|at| at as u32);
    let mut blocks = 0;
    for (at, node) in (0..).zip(nodes) {
        if first_child(node.parent) == Some(at) {
            continue;
        }
        let mut end = at;
        while let Some(next) = first_child(end) {
            end = next;
        }
        let before = entry.first_position + entry.tokens - 1;
        let position = |of: u32| before + path_to(nodes, of as usize);
        blocks += position(end) / size - position(at) / size + 1;
    }
    blocks
}

/// The link of a last token behind some others.
pub(super) fn fold(before: u64, tokens: &[u32]) -> u64 {
    tokens.iter().fold(before, |last, &token| link(last, token))
}

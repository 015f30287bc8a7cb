//! Drafts: which are asked for, how much of them goes into a step, and what came of it.

use dunlin_units::SeqId;

use super::{Core, state::Stage};
use crate::{
    effects::{StepKind, StepPlan},
    event::{DraftNode, Proposal},
    speculation::{
        DraftControl, DraftWanted, DrafterKind, Speculate, SpeculationConfig, SpeculationStats,
        acceptance::{Acceptance, OwnAcceptance},
        budget::{self, Batch, Node},
        columns::ColumnCost,
        drafting::{self, Asked, DraftCost, Question},
        energy::EnergyQueue,
        ledger::Credit,
        tree::{self, TreeLayout},
        widths::Widths,
    },
};

/// Of the time that a sequence is expected to take still, how much may go into catching up a drafter
/// at once, in 1/1000.
const LENT_PERMILLE: f64 = 25.0;
/// Output tokens that are expected of a request before any has ended.
const FIRST_OUTPUT: f64 = 128.0;
/// The fewest tokens that a drafter looks back on.
const LEAST_CONTEXT: u32 = 32;
/// Tokens that a sequence has gained since its last draft, where it has one in most steps.
const USUAL_GAP: u32 = 2;
/// A drafter is not asked beside a draft that promises so many tokens.
const ENOUGH: f64 = 1.0;
/// The depth of a sequence's first draft, and of one after drafts that were wrong from the start.
const FIRST_REACH: u32 = 4;
const LEAST_REACH: u32 = 4;

/// What a core knows of drafts.
#[derive(Debug, Default)]
pub(super) struct Speculation {
    config: SpeculationConfig,
    /// Whether any request has come that speculates.
    pub(super) on: bool,
    columns: ColumnCost,
    acceptance: Acceptance,
    widths: Widths,
    /// Where energy is limited.
    energy: Option<EnergyQueue>,
    costs: [DraftCost; DrafterKind::ALL.len()],
    /// Output tokens of a request, a fading mean.
    output: Option<f64>,
    pub(super) stats: SpeculationStats,
    /// Microseconds of the step that is being looked at, and those that it would have taken without
    /// drafts.
    step_us: (f64, f64),
    pub(super) layout: TreeLayout,
    scratch: Scratch,
}

#[derive(Debug, Default)]
struct Scratch {
    /// Sequences that decode in the next step, and their credits.
    slots: Vec<u32>,
    credits: Vec<Credit>,
    /// Nodes of all drafts.
    nodes: Vec<Node>,
    /// The probability of each node of a draft, with those before it, and its depth.
    reached: Vec<(f64, usize)>,
}

/// A sequence's drafts.
#[derive(Debug, Clone, Default)]
pub(super) struct Drafts {
    own: OwnAcceptance,
    /// Who made the draft at hand.
    drafter: Option<DrafterKind>,
    /// What a step in flight verifies.
    verifying: Vec<DraftNode>,
    /// What would have come next and was cut off.
    cut: Option<DraftNode>,
    /// Tokens at which a drafter was asked last.
    asked_at: u32,
    /// How deep the next draft of each drafter may be: as deep as the last ones have shown to be worth
    /// trying.
    reach: [Option<u32>; DrafterKind::ALL.len()],
    /// The tokens that it has seen: from this one, up to this one.
    start: u32,
    fed: u32,
    /// Of these, those that the draft step in flight shows it first.
    new: u32,
}

impl Drafts {
    /// So many tokens of a draft so deep were right: one twice as deep may be tried next.
    fn reached(&mut self, kind: DrafterKind, accepted: u32, verified: u32) {
        let reach = self.reach[kind.index()].unwrap_or(FIRST_REACH);
        self.reach[kind.index()] = Some(match accepted {
            0 => (reach / 2).max(LEAST_REACH),
            all if all == verified => {
                reach.max(2 * all + LEAST_REACH).min(crate::MAX_DRAFT.max(reach))
            }
            some => (2 * some + LEAST_REACH).min(reach.max(FIRST_REACH)),
        });
    }

    /// Whether a drafter that is to look back so far has to begin anew.
    fn is_behind(&self, tokens: u32, context: u32) -> bool {
        self.fed == 0 || self.start > 0 && tokens - self.start < context
    }
}

impl Speculation {
    pub(super) fn new(config: SpeculationConfig) -> Self {
        let columns = ColumnCost::new(config.experts);
        let energy = config.energy.map(|budget| EnergyQueue::new(budget, config.experts));
        let mut speculation = Self { config, columns, energy, ..Self::default() };
        for (kind, permille) in &speculation.config.drafters {
            speculation.costs[kind.index()].first_share = f64::from(*permille) / 1e3;
        }
        speculation
    }

    fn slack(&self) -> f64 {
        f64::from(self.config.slack_permille) / 1e3
    }

    /// What a step of so many columns takes; no end where nobody knows.
    fn verify_us(&self, columns: u64, plain_us: f64) -> f64 {
        match self.columns.us(columns) {
            Some(us) if columns <= self.columns.may_try() => us.max(plain_us),
            _ => f64::INFINITY,
        }
    }

    /// Microseconds that the energy of a step of so many columns is worth.
    fn step_worth(&self, columns: u64, plain_us: f64) -> f64 {
        self.energy.as_ref().map_or(0.0, |energy| energy.step_us(columns, plain_us))
    }

    /// Takes note of the energy of a step of sequences that decode, `columns` of them, that gave so many
    /// tokens.
    pub(super) fn learn_energy(&mut self, columns: u64, microjoules: u64, tokens: u64) {
        if let Some(energy) = self.energy.as_mut().filter(|_| columns > 0) {
            energy.step(columns, microjoules, tokens);
        }
    }

    /// A request has ended.
    pub(super) fn learn_output(&mut self, tokens: u64) {
        let tokens = tokens as f64;
        self.output = Some(self.output.map_or(tokens, |mean| mean + 0.1 * (tokens - mean)));
    }

    /// Takes note of what a step took: `columns` are those of sequences that decode, of which
    /// `drafts` are nodes of drafts.
    pub(super) fn learn_step(&mut self, us: f64, columns: u64, drafts: u64, prompts: u64) {
        if !self.on || columns == 0 {
            return;
        }
        self.stats.decode_steps += 1;
        if drafts > 0 {
            self.stats.verify_steps += 1;
            self.stats.verify_ns += (us * 1e3) as u64;
        }
        if prompts == 0 {
            self.columns.learn(columns, us);
        }
        let plain = self.columns.us(columns - drafts);
        let plain_us = match (drafts, prompts, plain) {
            (0, ..) | (.., None) => us,
            (_, 0, Some(plain)) => plain,
            (.., Some(plain)) => {
                let more = self.columns.us(columns).map_or(0.0, |with| (with - plain).max(0.0));
                (us - more).max(us / 2.0)
            }
        };
        self.step_us = (us, plain_us);
    }

    /// A step of a drafter has ended.
    pub(super) fn learn_draft(&mut self, kind: DrafterKind, work: crate::DraftWork, ns: u64) {
        let step_us = self.columns.us(1).unwrap_or(0.0);
        self.costs[kind.index()].learn(work.passes, work.tokens, ns as f64 / 1e3, step_us);
        let stats = self.stats.of_mut(kind);
        stats.steps += 1;
        stats.step_ns += ns;
        stats.passes += u64::from(work.passes);
    }
}

impl Core {
    /// What came of drafts so far.
    pub fn speculation(&self) -> &SpeculationStats {
        &self.speculation.stats
    }

    /// Cuts the drafts at hand to what the next step should verify; or makes the plan a draft step,
    /// and says so.
    pub(super) fn speculate(&mut self, plan: &mut StepPlan) -> bool {
        if !self.speculation.on {
            return false;
        }
        let mut scratch = std::mem::take(&mut self.speculation.scratch);
        self.list_decodes(&mut scratch);
        let drafts = match self.speculation.config.control {
            DraftControl::Fixed => self.ask_always(plan, &scratch),
            DraftControl::Adaptive => self.weigh(plan, &mut scratch),
        };
        self.speculation.scratch = scratch;
        drafts
    }

    /// Finds the sequences that decode next.
    fn list_decodes(&self, scratch: &mut Scratch) {
        scratch.slots.clear();
        scratch.credits.clear();
        for &slot in &self.running {
            let seq = &self.seqs[slot];
            let ready = seq.stage == Stage::Running
                && seq.planned + 1 == seq.total()
                && !seq.drafting
                && !(seq.unknown > 0 && seq.total() >= seq.limit)
                && !(self.idle_waits && seq.rank.idle);
            if ready {
                scratch.slots.push(slot);
                scratch.credits.push(seq.credit);
            }
        }
    }

    /// Nodes that a sequence's next draft can have at most.
    fn most_nodes(&self, slot: u32) -> u32 {
        let seq = &self.seqs[slot];
        // One token more than the draft comes of it.
        seq.max_draft.min(seq.limit.saturating_sub(seq.total() + 1))
    }

    /// Whether a drafter that costs steps could be asked about a sequence.
    fn may_ask(&self, slot: u32, kind: DrafterKind) -> bool {
        let seq = &self.seqs[slot];
        let fresh = seq.drafts.as_ref().is_none_or(|d| d.asked_at != seq.tokens.len() as u32);
        seq.speculate.allows(kind)
            && fresh
            && seq.begun
            && seq.unknown == 0
            && seq.in_flight == 0
            && !seq.parts
            && self.most_nodes(slot) > 0
    }

    /// Everything that may be asked is asked, where there is no draft yet.
    fn ask_always(&mut self, plan: &mut StepPlan, scratch: &Scratch) -> bool {
        let drafters = self.speculation.config.drafters.clone();
        for (kind, _) in drafters {
            for &slot in &scratch.slots {
                if self.seqs[slot].draft.is_empty() && self.may_ask(slot, kind) {
                    let (nodes, context) = (self.most_nodes(slot), u32::MAX);
                    self.ask(
                        plan,
                        slot,
                        DraftWanted {
                            seq: SeqId(slot),
                            drafter: kind,
                            nodes,
                            depth: nodes,
                            branches: self.seqs[slot].max_branches,
                            stop_below: 0,
                            context,
                        },
                    );
                }
            }
            if !plan.wanted.is_empty() {
                return true;
            }
        }
        false
    }

    /// Adds a draft that is wanted to a plan.
    fn ask(&mut self, plan: &mut StepPlan, slot: u32, wanted: DraftWanted) {
        plan.kind = StepKind::Draft;
        plan.wanted.push(wanted);
        let seq = &mut self.seqs[slot];
        seq.drafting = true;
        seq.in_flight += 1;
        seq.last_step = plan.step.0;
        seq.draft.clear();
        let tokens = seq.tokens.len() as u32;
        let drafts = seq.drafts.get_or_insert_default();
        if drafts.is_behind(tokens, wanted.context) {
            drafts.start = tokens - wanted.context.min(tokens);
            drafts.fed = drafts.start;
        }
        drafts.new = tokens - drafts.fed;
        (drafts.asked_at, drafts.fed) = (tokens, tokens);
    }

    /// The best of what can be done with the drafts at hand, and whether another should be asked for.
    fn weigh(&mut self, plan: &mut StepPlan, scratch: &mut Scratch) -> bool {
        let columns = scratch.slots.len() as u64;
        let Some(plain_us) = self.speculation.columns.us(columns).filter(|_| columns > 0) else {
            // The first step is plain, for there to be something to compare with.
            for &slot in &scratch.slots {
                self.cut(slot, &[]);
            }
            return false;
        };
        self.list_nodes(scratch);
        let slack = self.speculation.slack();
        let batch = Batch { parts: &scratch.credits, plain_us, slack };
        let cost = |nodes: usize| self.speculation.verify_us(columns + nodes as u64, plain_us);
        let worth = |nodes: usize| self.speculation.step_worth(columns + nodes as u64, plain_us);
        let choice = budget::choose(&batch, &scratch.nodes, cost, worth);
        let rate = choice.tokens / choice.us;
        let chosen = &scratch.nodes[..choice.nodes];
        if self.in_flight.is_empty()
            && self.weigh_drafters(plan, &scratch.slots, &batch, chosen, rate)
        {
            return true;
        }
        for (part, &slot) in (0..).zip(&scratch.slots) {
            let mut of: Vec<u32> =
                chosen.iter().filter(|n| n.part == part).map(|n| n.index).collect();
            of.sort_unstable();
            self.cut(slot, &of);
        }
        false
    }

    /// Lists the nodes of all drafts in their order.
    fn list_nodes(&self, scratch: &mut Scratch) {
        let Scratch { slots, nodes, reached, .. } = scratch;
        nodes.clear();
        for (part, &slot) in (0..).zip(&*slots) {
            let seq = &self.seqs[slot];
            let Some(drafts) = seq.drafts.as_ref().filter(|_| seq.unknown == 0) else { continue };
            let Some(kind) = drafts.drafter else { continue };
            reached.clear();
            let most = self.most_nodes(slot).min(drafts.reach[kind.index()].unwrap_or(FIRST_REACH));
            for (index, node) in (0..).zip(&seq.draft) {
                let (before, depth) = match node.parent {
                    DraftNode::ROOT => (1.0, 0),
                    parent => (reached[parent as usize].0, reached[parent as usize].1 + 1),
                };
                let known = (node.confidence, depth);
                let acceptance = &self.speculation.acceptance;
                let own = acceptance.of_node(&drafts.own, node.drafter, known);
                reached.push((before * own, depth));
                if depth < most as usize {
                    nodes.push(Node { gain: before * own, part, index });
                }
            }
        }
        budget::sort(nodes);
    }

    /// Whether a drafter is asked before the next step, given what that would be without.
    fn weigh_drafters(
        &mut self,
        plan: &mut StepPlan,
        slots: &[u32],
        batch: &Batch<'_>,
        chosen: &[Node],
        rate: f64,
    ) -> bool {
        let mut gains = vec![1.0; slots.len()];
        for node in chosen {
            gains[node.part as usize] += node.gain;
        }
        let kinds: Vec<DrafterKind> =
            self.speculation.config.drafters.iter().map(|d| d.0).collect();
        for kind in kinds {
            let may = |&part: &usize| gains[part] < 1.0 + ENOUGH && self.may_ask(slots[part], kind);
            let parts: Vec<usize> = (0..slots.len()).filter(may).collect();
            if parts.is_empty() {
                continue;
            }
            let mut without = gains.clone();
            parts.iter().for_each(|&part| without[part] = 1.0);
            let kept = chosen.iter().filter(|n| !parts.contains(&(n.part as usize))).count();
            let asked: Vec<Asked> =
                parts.iter().map(|&part| self.asked(part, slots[part], kind)).collect();
            let Some((answer, contexts)) =
                self.consider(kind, slots, batch, (&without, kept, &asked), rate)
            else {
                continue;
            };
            for (&part, context) in parts.iter().zip(contexts) {
                let slot = slots[part];
                self.ask(
                    plan,
                    slot,
                    DraftWanted {
                        seq: SeqId(slot),
                        drafter: kind,
                        nodes: self.most_nodes(slot),
                        // A draft of which all is nearly sure may be longer than the average one.
                        depth: self.most_nodes(slot).min(2 * answer.depth as u32 + 2),
                        branches: self.seqs[slot].max_branches,
                        stop_below: (answer.stop_below * f64::from(crate::CONFIDENCE_ONE)) as u32,
                        context,
                    },
                );
            }
            return true;
        }
        false
    }

    /// What is expected of a drafter's next draft.
    fn asked(&self, part: usize, slot: u32, kind: DrafterKind) -> Asked {
        let none = OwnAcceptance::default();
        let own = self.seqs[slot].drafts.as_ref().map_or(&none, |d| &d.own);
        let most = self.most_nodes(slot).min(16) as usize;
        let Speculation { acceptance, widths, .. } = &self.speculation;
        let branching = self.seqs[slot].max_branches > 1;
        let width = |depth| if branching { widths.at_depth(kind, depth) } else { 1.0 };
        Asked {
            part,
            rates: (0..most).map(|depth| acceptance.at_depth(own, kind, depth)).collect(),
            widths: (0..most).map(width).collect(),
            branching,
        }
    }

    /// What asking a drafter would bring, and how far it is to look back for each sequence.
    fn consider(
        &mut self,
        kind: DrafterKind,
        slots: &[u32],
        batch: &Batch<'_>,
        (gains, nodes, asked): (&[f64], usize, &[Asked]),
        rate: f64,
    ) -> Option<(drafting::Plan, Vec<u32>)> {
        let cost = &self.speculation.costs[kind.index()];
        let columns = slots.len() as u64;
        let verify =
            |nodes: usize| self.speculation.verify_us(columns + nodes as u64, batch.plain_us);
        // What the drafter has not seen of sequences that it is asked for again and again is little.
        let seen = |part: usize| self.seqs[slots[part]].drafts.as_ref().map_or(0, |d| d.fed);
        let new = |of: &Asked| match seen(of.part) {
            0 => 0,
            fed => self.seqs[slots[of.part]].tokens.len() as u32 - fed,
        };
        let behind = asked.iter().map(|of| new(of).min(USUAL_GAP)).sum();
        let energy = self.speculation.energy.as_ref();
        let worth = |draft_us: f64, nodes: usize| {
            self.speculation.step_worth(columns + nodes as u64, batch.plain_us)
                + energy.map_or(0.0, |energy| energy.draft_us(draft_us, batch.plain_us))
        };
        let question = Question { batch, asked, gains, nodes, rate, behind, worth: &worth };
        let answer = drafting::length(&question, cost, verify)?;
        let token_us = cost.us(1.0, 2.0, batch.plain_us) - cost.us(1.0, 1.0, batch.plain_us);
        // What it must see of others, and how much further it looks back, is paid by what was won
        // before, or, where only such are asked for, in part by what is still to come.
        let credit = batch.parts.iter().map(|c| c.us().max(0.0)).fold(f64::INFINITY, f64::min);
        let alone = asked.len() == slots.len();
        let saved = 1.0 - rate / answer.rate;
        let mut contexts = Vec::with_capacity(asked.len());
        let (mut invested_us, mut lent_us) = (0.0, 0.0f64);
        for of in asked {
            let part = of.part;
            let slot = slots[part];
            let tokens = self.seqs[slot].tokens.len() as u32;
            let plain_us = self.tokens_left(slot) * batch.plain_us;
            let lent = (plain_us * LENT_PERMILLE / 1e3).min(plain_us * saved / 2.0);
            let lent = if seen(part) == 0 && alone { lent } else { 0.0 };
            let afforded = (lent + credit / 2.0) / asked.len() as f64 / token_us.max(1e-3);
            let start = self.seqs[slot].drafts.as_ref().map_or(0, |d| d.start);
            let had = if seen(part) > 0 { tokens - start } else { 0 };
            // In powers of two.
            let wanted = (afforded.min(1e9) as u32).checked_ilog2().map_or(0, |log| 1 << log);
            if had == 0 && wanted < LEAST_CONTEXT.min(tokens) {
                return None;
            }
            if had == 0 || start > 0 && wanted >= 2 * had {
                invested_us += f64::from(wanted.min(tokens)) * token_us;
                contexts.push(wanted);
            } else {
                invested_us += f64::from(new(of).saturating_sub(USUAL_GAP)) * token_us;
                contexts.push(had);
            }
            lent_us = lent_us.max(lent);
        }
        let lent_us = lent_us.min(invested_us);
        if invested_us - lent_us > credit / 2.0 {
            return None;
        }
        if lent_us > 0.0 {
            for &slot in slots {
                self.seqs[slot].credit.lend(lent_us);
            }
        }
        Some((answer, contexts))
    }

    /// Tokens that a sequence is expected to get still.
    fn tokens_left(&self, slot: u32) -> f64 {
        let seq = &self.seqs[slot];
        let request = &self.requests[seq.request];
        let got = seq.tokens.len() as f64 - f64::from(request.prompt_end);
        // Whoever has come far goes on for as long again.
        let expected = self.speculation.output.unwrap_or(FIRST_OUTPUT).max(got.max(0.0));
        expected.min(f64::from(seq.limit) - seq.tokens.len() as f64)
    }

    /// Keeps these nodes (indices in ascending order, closed under parents) of a sequence's draft.
    fn cut(&mut self, slot: u32, keep: &[u32]) {
        let seq = &mut self.seqs[slot];
        let Some(drafts) = &mut seq.drafts else { return };
        drafts.cut = None;
        if seq.draft.is_empty() {
            return;
        }
        let chain = keep.iter().zip(0..).all(|(&at, i)| at == i);
        if chain {
            let next = seq.draft.get(keep.len()).copied();
            let last = keep.last().copied().unwrap_or(DraftNode::ROOT);
            drafts.cut = next.filter(|node| node.parent == last);
            seq.draft.truncate(keep.len());
        } else {
            let place = |parent: u32| match parent {
                DraftNode::ROOT => DraftNode::ROOT,
                p => keep.iter().position(|&k| k == p).expect("parents are kept") as u32,
            };
            let nodes = keep.iter().map(|&k| seq.draft[k as usize]);
            seq.draft = nodes.map(|n| DraftNode { parent: place(n.parent), ..n }).collect();
        }
    }

    /// The nodes of a sequence that a step verifies.
    pub(super) fn verifies(&mut self, slot: u32, nodes: &[DraftNode]) {
        let seq = &mut self.seqs[slot];
        let Some(drafts) = &mut seq.drafts else { return };
        drafts.verifying.clear();
        drafts.verifying.extend_from_slice(nodes);
        let stats = &mut self.speculation.stats;
        if let Some(kind) = drafts.drafter.filter(|_| !nodes.is_empty()) {
            stats.of_mut(kind).drafts += 1;
        }
        for node in nodes {
            stats.of_mut(node.drafter).verified += 1;
        }
        if let Some(kind) = drafts.drafter.filter(|_| seq.max_branches > 1) {
            self.speculation.widths.see(kind, nodes);
        }
    }

    /// A sequence gained these tokens in a step that verified what it had of a draft; `whole` says
    /// that nothing but the draft limited them.
    pub(super) fn verified(&mut self, slot: u32, tokens: &[u32], whole: bool) {
        if !self.speculation.on || tokens.is_empty() {
            return;
        }
        let slack = self.speculation.slack();
        let (us, plain_us) = self.speculation.step_us;
        let seq = &mut self.seqs[slot];
        // The tokens have been appended already.
        let before = (seq.tokens.len() - tokens.len()) as u32;
        let output = before.saturating_sub(self.requests[seq.request].prompt_end);
        seq.credit.step(tokens.len() as u64, us, plain_us, slack);
        if seq.speculate == Speculate::Off {
            return;
        }
        let drafts = seq.drafts.get_or_insert_default();
        for (kind, _) in &self.speculation.config.drafters {
            let asked = drafts.drafter == Some(*kind) && !drafts.verifying.is_empty();
            if !asked && seq.speculate.allows(*kind) {
                self.speculation.acceptance.not_asked(&mut drafts.own, *kind);
            }
        }
        let Some(kind) = drafts.drafter else { return };
        let nodes = std::mem::take(&mut drafts.verifying);
        let cut = drafts.cut.take();
        let Speculation { acceptance, stats, .. } = &mut self.speculation;
        if whole && !nodes.is_empty() {
            drafts.reached(kind, tokens.len() as u32 - 1, tree::depth(&nodes));
        }
        let mut parent = DraftNode::ROOT;
        for (depth, &token) in tokens.iter().enumerate() {
            let children = (0..).zip(&nodes).filter(|(_, n)| n.parent == parent);
            let Some(first) = children.clone().next() else {
                // Nothing of it was verified here, but something was proposed.
                if let Some(node) = cut.filter(|_| whole && depth == nodes.len()) {
                    let seen = (node.confidence, depth);
                    acceptance.see(&mut drafts.own, node.drafter, seen, node.token == token);
                    acceptance.see_depth(&mut drafts.own, kind, depth, node.token == token);
                }
                break;
            };
            let right = children.clone().find(|(_, n)| n.token == token);
            let accepted = right.is_some();
            if !accepted && !whole {
                break;
            }
            for (_, node) in children {
                let seen = (node.confidence, depth);
                acceptance.see(&mut drafts.own, node.drafter, seen, node.token == token);
            }
            acceptance.see_depth(&mut drafts.own, kind, depth, accepted);
            let (at, node) = right.unwrap_or(first);
            let stats = stats.of_mut(node.drafter);
            stats.see(depth, output + depth as u32, accepted);
            if !accepted {
                break;
            }
            stats.accepted += u64::from(depth + 1 < tokens.len());
            parent = at;
        }
        drafts.verifying = nodes;
        drafts.verifying.clear();
    }

    /// A draft step has ended. Its time is that of those it was for.
    pub(super) fn draft_done(
        &mut self,
        now: dunlin_units::Time,
        wanted: &[DraftWanted],
        outcome: &crate::StepOutcome,
        fx: super::Fx<'_>,
    ) {
        let Some(first) = wanted.first() else { return };
        self.speculation.learn_draft(first.drafter, outcome.work, outcome.duration_ns);
        self.learn_passes(wanted, outcome.work);
        if let Some(energy) = &mut self.speculation.energy {
            energy.draft(outcome.duration_ns as f64 / 1e3, outcome.microjoules);
        }
        let us = outcome.duration_ns as f64 / 1e3;
        for i in 0..self.running.len() {
            let slot = self.running[i];
            let seq = &mut self.seqs[slot];
            if seq.stage == Stage::Running && seq.planned + 1 == seq.total() {
                seq.credit.wait(us);
            }
        }
        let mut time = super::commit::Shares::new(outcome.duration_ns, wanted.len() as u64);
        let mut bytes = super::commit::Shares::new(outcome.bytes, wanted.len() as u64);
        for wanted in wanted {
            let slot = wanted.seq.0;
            let seq = &mut self.seqs[slot];
            let ns = time.take(1);
            seq.tally.ns += ns;
            seq.tally.draft_ns += ns;
            seq.tally.bytes += bytes.take(1);
            seq.drafting = false;
            seq.in_flight -= 1;
            if seq.stage == Stage::Ending && seq.in_flight == 0 {
                self.ended_in_flight(now, slot, fx);
            }
        }
    }

    /// Takes note of how many tokens the passes of a draft step had, where all its sequences are of one
    /// kind.
    fn learn_passes(&mut self, wanted: &[DraftWanted], work: crate::DraftWork) {
        let branching = wanted[0].branches > 1;
        if wanted.iter().any(|w| (w.branches > 1) != branching) {
            return;
        }
        let new = |w: &DraftWanted| self.seqs[w.seq.0].drafts.as_ref().map_or(0, |d| d.new);
        let first = wanted.iter().map(new).sum();
        let sequences = wanted.len() as u32;
        let cost = &mut self.speculation.costs[wanted[0].drafter.index()];
        cost.learn_passes(branching, (sequences, work.passes), (work.tokens, first));
    }

    /// Notes a draft for the next step; one that no longer fits is dropped.
    pub(super) fn propose(&mut self, proposal: &Proposal) {
        let Some(seq) = self.seqs.slots.get_mut(proposal.seq.0 as usize) else { return };
        let (kind, most) = (proposal.drafter, seq.max_draft as usize);
        if seq.stage != Stage::Running || seq.unknown > 0 || !seq.speculate.allows(kind) {
            return;
        }
        seq.draft.clear();
        let known =
            |(at, node): &(u32, &DraftNode)| node.parent == DraftNode::ROOT || node.parent < *at;
        let nodes = (0..).zip(&proposal.nodes).take_while(known).take(most);
        seq.draft.extend(nodes.map(|(_, node)| node));
        tree::limit_branches(&mut seq.draft, seq.max_branches);
        seq.special = true;
        seq.drafts.get_or_insert_default().drafter = Some(kind);
        for node in &seq.draft {
            self.speculation.stats.of_mut(node.drafter).proposed += 1;
        }
    }
}

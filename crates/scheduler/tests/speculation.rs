//! Speculation on machines of known costs, with drafters that are right, wrong, or anything between:
//! nobody is slower than plain decoding by more than 3%, and where drafts are good they pay.

use std::collections::BTreeMap;

use dunlin_kvcache::{CacheConfig, EvictionKind, Namespace};
use dunlin_scheduler::{
    CONFIDENCE_ONE, Commit, CoreConfig, DraftControl, DraftNode, DraftWanted, DrafterKind, Effects,
    EnergyBudget, Event, Experts, MAX_DRAFT, Proposal, SeqOp, Speculate, SpeculationConfig,
    StepKind, StepOutcome, StepPlan, Submission, checker::CheckedCore,
};
use dunlin_units::{RequestId, SeedTree, SeqId, Stream, Time};

/// What a machine's steps take, in microseconds.
#[derive(Debug, Clone, Copy)]
struct Machine {
    step: f64,
    column: f64,
    /// More for each group of eight columns begun.
    group: f64,
    /// A pass of the draft model, and each token in it.
    pass: f64,
    pass_token: f64,
    /// Of each step's time, up to this share more, at random.
    noise: f64,
    /// Experts of which each column meets some, and what of `step` they take.
    experts: Option<Experts>,
    /// Microjoules of a step and of each column.
    energy: (f64, f64),
}

/// A 1.5B model on two cores, and a draft model of a third of its size.
const DENSE: Machine = Machine {
    step: 22e3,
    column: 900.0,
    group: 9e3,
    pass: 8e3,
    pass_token: 900.0,
    noise: 0.02,
    experts: None,
    energy: (150e3, 60e3),
};
/// Columns cost nearly what steps do: compute is what limits.
const COMPUTE_BOUND: Machine =
    Machine { step: 4e3, column: 18e3, group: 0.0, pass: 7e3, pass_token: 5e3, ..DENSE };
/// A mixture of 64 experts, of which a token meets eight: nearly all that a step reads.
const MIXTURE: Machine =
    Machine { experts: Some(Experts { count: 64, used: 8, permille: 900 }), group: 0.0, ..DENSE };

impl Machine {
    fn verify(&self, columns: u32) -> f64 {
        let groups = columns.saturating_sub(1) / 8;
        let met = self.experts.map_or(0.0, |of| {
            let share = f64::from(of.permille) / 1e3 * self.step;
            // Tokens that follow each other meet experts that were met more often than chance has it.
            let missed = 1.0 - 0.8 * f64::from(of.used) / f64::from(of.count);
            share * ((1.0 - missed.powi(columns as i32)) / (1.0 - missed) - 1.0)
        });
        self.step + met + self.column * f64::from(columns) + self.group * f64::from(groups)
    }
}

/// How a drafter does: the probability that its next token is right, at this token of the answer and
/// this depth of the draft; and how sure it claims to be.
#[derive(Clone, Copy)]
struct Skill {
    right: fn(request: u64, at: u32, depth: u32) -> f64,
    sure: f64,
    /// Where it is wrong: the probability that what it names beside its next token is right; it names
    /// nothing where that is zero.
    beside: f64,
}

const WRONG: Skill = Skill { right: |_, _, _| 0.0, sure: 0.95, beside: 0.0 };
const GOOD: Skill = Skill { right: |_, _, _| 0.95, sure: 0.95, beside: 0.0 };
const FAIR: Skill = Skill { right: |_, _, _| 0.7, sure: 0.7, beside: 0.0 };
/// Right for a hundred tokens, then wrong.
const TURNS: Skill =
    Skill { right: |_, at, _| if at < 100 { 0.98 } else { 0.0 }, sure: 0.95, beside: 0.0 };
/// Right and wrong by turns of forty tokens.
const ALTERNATES: Skill =
    Skill { right: |_, at, _| if at / 40 % 2 == 0 { 0.98 } else { 0.0 }, sure: 0.95, beside: 0.0 };
/// The first token is right, and nothing after it.
const BAIT: Skill =
    Skill { right: |_, _, depth| if depth == 0 { 1.0 } else { 0.0 }, sure: 0.95, beside: 0.0 };
/// For some requests only.
const SOME: Skill =
    Skill { right: |r, _, _| if r % 2 == 0 { 0.97 } else { 0.0 }, sure: 0.9, beside: 0.0 };

/// Two tokens at each place, of which one is mostly right.
const BRANCHING: Skill = Skill { right: |_, _, _| 0.6, sure: 0.6, beside: 0.7 };
/// Claims as much, and is wrong.
const BUSH: Skill = Skill { right: |_, _, _| 0.0, sure: 0.6, beside: 1e-9 };

const PROMPT: u32 = 64;
const TOKENS: u32 = 250;

/// Requests on a machine, with drafters of these skills.
struct Run {
    machine: Machine,
    lookup: Option<Skill>,
    model: Option<Skill>,
    core: CheckedCore,
    max_branches: u32,
    random: Stream,
    now_us: f64,
    seqs: BTreeMap<u32, (RequestId, u32)>,
    /// When a request got its first token and its last, and how many it got.
    times: BTreeMap<RequestId, (f64, f64, u32)>,
    /// Microjoules of steps without prompts, and their tokens.
    energy: (u64, u64),
}

fn token(request: RequestId, position: u32) -> u32 {
    let mixed = (request.0 << 32 | u64::from(position)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 32) as u32 % 50_000
}

impl Run {
    fn new(
        machine: Machine,
        lookup: Option<Skill>,
        model: Option<Skill>,
        control: DraftControl,
        seed: u64,
    ) -> Self {
        Self::with_energy(machine, (lookup, model), control, None, seed)
    }

    /// The same with a limit on the energy a token.
    fn with_energy(
        machine: Machine,
        (lookup, model): (Option<Skill>, Option<Skill>),
        control: DraftControl,
        energy: Option<EnergyBudget>,
        seed: u64,
    ) -> Self {
        let cache = CacheConfig {
            block_tokens: 16,
            block_count: 4096,
            disk_slots: 0,
            eviction: EvictionKind::Lru,
            prefix_cache: false,
            hash_seed: 0,
        };
        let mut config = CoreConfig::new(cache, 512);
        let permille = (machine.pass / machine.verify(1) * 1e3) as u32;
        config.speculation = SpeculationConfig {
            control,
            energy,
            drafters: model.map(|_| (DrafterKind::Model, permille)).into_iter().collect(),
            experts: machine.experts,
            ..SpeculationConfig::default()
        };
        Self {
            machine,
            lookup,
            model,
            core: CheckedCore::new(config).unwrap(),
            max_branches: 8,
            random: SeedTree::root(seed).child("speculation").stream(),
            now_us: 0.0,
            seqs: BTreeMap::new(),
            times: BTreeMap::new(),
            energy: (0, 0),
        }
    }

    fn unit(&mut self) -> f64 {
        self.random.next_below(1 << 20) as f64 / f64::from(1 << 20)
    }

    /// Runs `count` requests; the microseconds a token of each of them.
    fn run(&mut self, first: u64, count: u64, speculate: Speculate, max_draft: u32) -> Vec<f64> {
        let max_branches = self.max_branches;
        let mut events: Vec<Event> = (first..first + count)
            .map(|id| {
                let prompt: Vec<u32> =
                    (0..PROMPT).map(|i| token(RequestId(id + 1000), i)).collect();
                let mut s = Submission::new(RequestId(id), Namespace::default(), prompt, TOKENS);
                (s.speculate, s.max_draft) = (speculate, max_draft);
                s.max_branches = max_branches;
                Event::Submit(Box::new(s))
            })
            .collect();
        let mut effects = Effects::default();
        loop {
            let now = Time((self.now_us * 1e3) as u64);
            self.core.advance(now, &mut events, &mut effects).unwrap();
            for op in &effects.ops {
                match *op {
                    SeqOp::Start { seq, request, .. } => {
                        self.seqs.insert(seq.0, (request.unwrap(), 0));
                    }
                    SeqOp::Append { seq, ref tokens } => {
                        self.seqs.get_mut(&seq.0).unwrap().1 += tokens.len() as u32;
                    }
                    _ => {}
                }
            }
            for output in &effects.outputs {
                let at = self.now_us;
                let time = self.times.entry(output.request).or_insert((at, at, 0));
                (time.1, time.2) = (at, time.2 + 1);
            }
            let Some(plan) = effects.plan.take() else { break };
            events.push(Event::StepDone(Box::new(self.step(&plan))));
        }
        let per_token = |id| {
            let (from, to, count) = self.times[&RequestId(id)];
            (to - from) / f64::from(count - 1)
        };
        (first..first + count).map(per_token).collect()
    }

    fn step(&mut self, plan: &StepPlan) -> StepOutcome {
        let mut outcome = StepOutcome { step: plan.step, ..StepOutcome::default() };
        let us = if plan.kind == StepKind::Draft {
            self.draft(plan, &mut outcome)
        } else {
            self.verify(plan, &mut outcome)
        };
        let us = us * (1.0 + self.machine.noise * self.unit());
        self.now_us += us;
        outcome.duration_ns = (us * 1e3) as u64;
        let columns: u32 = plan.entries.iter().map(|e| e.tokens + e.draft).sum();
        let (step, column) = self.machine.energy;
        outcome.microjoules = if plan.kind == StepKind::Draft {
            (us * step / self.machine.step) as u64
        } else {
            (step + column * f64::from(columns)) as u64
        };
        if plan.entries.iter().all(|e| e.tokens == 1) {
            self.energy.0 += outcome.microjoules;
            self.energy.1 += outcome.tokens.len() as u64;
        }
        outcome
    }

    fn draft(&mut self, plan: &StepPlan, outcome: &mut StepOutcome) -> f64 {
        let skill = self.model.expect("there is one");
        for &DraftWanted { seq, drafter, nodes, depth, stop_below, context, .. } in &plan.wanted {
            let mut all = 1.0;
            let most = (1..=depth).take_while(|_| {
                all *= skill.sure;
                all * f64::from(CONFIDENCE_ONE) >= f64::from(stop_below)
            });
            let depth = (most.count() as u32).max(1);
            let nodes = self.nodes(seq, drafter, (depth, nodes), skill);
            outcome.work.passes = outcome.work.passes.max(depth);
            // What it sees for the first time, at least.
            let known = self.seqs[&seq.0].1 > PROMPT + 1;
            outcome.work.tokens += depth + if known { 1 } else { context.min(PROMPT) };
            outcome.proposals.push(Proposal { seq, drafter, nodes });
        }
        let work = outcome.work;
        self.machine.pass * f64::from(work.passes)
            + self.machine.pass_token * f64::from(work.tokens)
    }

    fn verify(&mut self, plan: &StepPlan, outcome: &mut StepOutcome) -> f64 {
        let mut draft = plan.draft.as_slice();
        let mut columns = 0;
        for entry in &plan.entries {
            let (nodes, rest) = draft.split_at(entry.draft as usize);
            draft = rest;
            columns += entry.tokens + entry.draft;
            if entry.samples == 0 {
                continue;
            }
            let (request, length) = self.seqs[&entry.seq.0];
            let (mut gained, mut parent) = (0, DraftNode::ROOT);
            loop {
                let right = token(request, length + gained);
                outcome.tokens.push(right);
                gained += 1;
                let child = nodes.iter().position(|n| (n.parent, n.token) == (parent, right));
                let Some(child) = child else { break };
                parent = child as u32;
            }
            outcome.commits.push(Commit { tokens: gained, end: None });
            self.seqs.get_mut(&entry.seq.0).unwrap().1 += gained;
            if let Some(skill) = self.lookup {
                let drafter = DrafterKind::Lookup;
                let nodes = self.nodes(entry.seq, drafter, (MAX_DRAFT, MAX_DRAFT), skill);
                outcome.proposals.push(Proposal { seq: entry.seq, drafter, nodes });
            }
        }
        self.machine.verify(columns)
    }

    /// A chain so deep, with other tokens beside each of its nodes, so many nodes at most.
    fn nodes(
        &mut self,
        seq: SeqId,
        drafter: DrafterKind,
        (depth, most): (u32, u32),
        skill: Skill,
    ) -> Vec<DraftNode> {
        let (request, length) = self.seqs[&seq.0];
        let confidence = |sure: f64| (sure * f64::from(CONFIDENCE_ONE)) as u32;
        let (mut nodes, mut parent) = (Vec::new(), DraftNode::ROOT);
        for depth in 0..depth {
            let right = token(request, length + depth);
            let skilled = (skill.right)(request.0, length + depth - PROMPT, depth);
            let first = self.unit() < skilled;
            let beside = !first && self.unit() < skill.beside;
            let place = nodes.len() as u32;
            let token = if first { right } else { right + 1 };
            let confidence_of_first = confidence(skill.sure);
            nodes.push(DraftNode { token, parent, confidence: confidence_of_first, drafter });
            if skill.beside > 0.0 {
                let token = if beside { right } else { right + 2 };
                let confidence = confidence((1.0 - skill.sure) * skill.beside);
                nodes.push(DraftNode { token, parent, confidence, drafter });
            }
            parent = if beside { place + 1 } else { place };
        }
        nodes.truncate(most as usize);
        nodes
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Ratios of plain to speculative time a token, of all requests of a few rounds, in order.
fn speedups(
    machine: Machine,
    lookup: Option<Skill>,
    model: Option<Skill>,
    batch: u64,
    seed: u64,
) -> Vec<f64> {
    let mut run = Run::new(machine, lookup, model, DraftControl::Adaptive, seed);
    let plain = run.run(1_000_000, batch, Speculate::Off, MAX_DRAFT);
    let plain = median(plain);
    let mut all = Vec::new();
    for round in 0..3 {
        let times = run.run(round * batch, batch, Speculate::Auto, MAX_DRAFT);
        all.extend(times.iter().map(|time| plain / time));
    }
    all
}

#[test]
fn nobody_is_slower_whoever_drafts() {
    let mut seed = 0;
    for (name, skill) in [
        ("wrong", WRONG),
        ("turns", TURNS),
        ("alternates", ALTERNATES),
        ("bait", BAIT),
        ("fair", FAIR),
        ("some", SOME),
        ("branching", BRANCHING),
        ("bush", BUSH),
    ] {
        for machine in [DENSE, COMPUTE_BOUND, MIXTURE] {
            for batch in [1, 2, 4, 8, 16] {
                for (lookup, model) in
                    [(Some(skill), None), (None, Some(skill)), (Some(skill), Some(WRONG))]
                {
                    seed += 1;
                    let all = speedups(machine, lookup, model, batch, seed);
                    let least = all.iter().copied().fold(f64::INFINITY, f64::min);
                    let what = format!(
                        "{name}, batch {batch}, lookup {}, model {}, {machine:?} (seed {seed})",
                        lookup.is_some(),
                        model.is_some()
                    );
                    assert!(median(all.clone()) >= 0.97, "{what}: {all:?}");
                    assert!(least >= 0.95, "{what}: {all:?}");
                }
            }
        }
    }
}

#[test]
fn good_drafts_pay() {
    for (lookup, model, batch, wanted) in [
        (Some(GOOD), None, 1, 4.0),
        (Some(GOOD), None, 4, 1.8),
        (None, Some(GOOD), 1, 1.4),
        (Some(GOOD), Some(WRONG), 1, 4.0),
        (Some(WRONG), Some(GOOD), 1, 1.35),
    ] {
        let all = speedups(DENSE, lookup, model, batch, 7);
        let found = median(all.clone());
        assert!(found >= wanted, "batch {batch}, {wanted}: {found} {all:?}");
    }
}

#[test]
fn branches_pay_where_a_second_token_is_often_right() {
    // How much, docs/systems.toml and docs/findings.md say.
    for (lookup, model, gain) in [(Some(BRANCHING), None, 1.25), (None, Some(BRANCHING), 1.18)] {
        let speed = |branches| {
            let mut run = Run::new(DENSE, lookup, model, DraftControl::Adaptive, 5);
            run.max_branches = branches;
            run.run(1_000_000, 1, Speculate::Off, MAX_DRAFT);
            let times: Vec<f64> =
                (0..8).flat_map(|id| run.run(id, 1, Speculate::Auto, MAX_DRAFT)).collect();
            1.0 / median(times)
        };
        let (chain, tree) = (speed(1), speed(8));
        assert!(tree > chain * gain, "{tree} {chain}, wanted {gain} times");
    }
}

/// Tokens a microsecond of drafts that always have the same length, the best of all lengths.
fn best_fixed(lookup: Option<Skill>, model: Option<Skill>, seed: u64) -> f64 {
    let lengths = [1, 2, 3, 4, 6, 8, 12, 16, 24, 31];
    let speed = |&length: &u32| {
        let mut run = Run::new(DENSE, lookup, model, DraftControl::Fixed, seed);
        let times: Vec<f64> =
            (0..4).flat_map(|id| run.run(id, 1, Speculate::Auto, length)).collect();
        1.0 / median(times)
    };
    lengths.iter().map(speed).fold(0.0, f64::max)
}

#[test]
fn lengths_are_nearly_as_good_as_the_best_in_hindsight() {
    for (lookup, model) in [
        (Some(GOOD), None),
        (Some(FAIR), None),
        (None, Some(GOOD)),
        (None, Some(FAIR)),
        (Some(WRONG), None),
    ] {
        let mut run = Run::new(DENSE, lookup, model, DraftControl::Adaptive, 11);
        run.run(1_000_000, 1, Speculate::Off, MAX_DRAFT);
        for id in 100..106 {
            run.run(id, 1, Speculate::Auto, MAX_DRAFT);
        }
        let times: Vec<f64> =
            (0..4).flat_map(|id| run.run(id, 1, Speculate::Auto, MAX_DRAFT)).collect();
        let found = 1.0 / median(times);
        let best = best_fixed(lookup, model, 11).max(1.0 / DENSE.verify(1));
        assert!(found >= 0.85 * best, "{found} of {best}");
    }
}

#[test]
fn to_be_told_of_experts_does_no_harm_and_what_is_measured_counts_in_the_end() {
    // Microseconds of the first answer, and of a later one.
    let times = |experts| {
        let machine = MIXTURE;
        let skills = (Some(FAIR), None);
        let told = Machine { experts, ..machine };
        let mut run = Run::with_energy(told, skills, DraftControl::Adaptive, None, 3);
        run.machine = machine;
        let first = run.run(0, 1, Speculate::Auto, MAX_DRAFT)[0];
        run.run(1, 6, Speculate::Auto, MAX_DRAFT);
        (first, run.run(7, 1, Speculate::Auto, MAX_DRAFT)[0])
    };
    let (told, untold) = (times(MIXTURE.experts), times(None));
    assert!(told.0 <= untold.0 * 1.005, "{told:?} {untold:?}");
    // What is measured counts in the end.
    assert!((told.1 / untold.1 - 1.0).abs() < 0.03, "{told:?} {untold:?}");
}

#[test]
fn answers_keep_to_an_energy_budget_and_are_as_fast_as_it_allows() {
    // Microjoules and microseconds a token.
    let run = |budget: Option<u64>| {
        let energy = budget.map(EnergyBudget::new);
        let skills = (Some(FAIR), None);
        let mut run = Run::with_energy(DENSE, skills, DraftControl::Adaptive, energy, 9);
        let times: Vec<f64> =
            (0..40).flat_map(|id| run.run(id, 1, Speculate::Auto, MAX_DRAFT)).collect();
        (run.energy.0 as f64 / run.energy.1 as f64, median(times))
    };
    let (free, fastest) = run(None);
    let mut before = fastest;
    for share in [0.98, 0.95, 0.92] {
        let budget = free * share;
        let (energy, time) = run(Some(budget as u64));
        assert!(energy <= budget * 1.01, "{energy} of {budget}");
        assert!(time >= before * 0.97);
        before = time;
    }
}

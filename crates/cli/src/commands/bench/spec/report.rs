//! The report of `bench spec`.

use std::io::Write as _;

use dunlin_engine::{DrafterKind, DrafterStats, OUTPUTS, SpeculationContract, SpeculationStats};
use serde::Serialize;

use super::{Run, Way};
use crate::{commands::bench::summary::median, note};

/// What the figures are of.
#[derive(Debug, Clone, Serialize)]
pub struct Setting {
    pub model: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draft_model: Option<String>,
    pub threads: usize,
    pub activations: String,
    pub kv_type: String,
    /// Tokens of an answer at most.
    pub output_tokens: usize,
    pub temperature: f32,
    /// Nodes of a draft at most.
    pub draft_nodes: u32,
    /// Whether all that was proposed was verified.
    pub fixed: bool,
    /// Joules that a token may take on average.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub joules: Option<f64>,
    /// Where joules come from.
    pub energy: &'static str,
    pub version: &'static str,
}

/// Parts of the time of a run; they sum to 1.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Parts {
    /// Steps in which a drafter ran.
    draft: f64,
    /// Steps that verified a draft, without the choice of tokens.
    verify: f64,
    /// Steps without a draft, without the choice of tokens; the rest of prompts among them.
    plain: f64,
    /// Choosing tokens.
    sample: f64,
    /// Outside of steps: the scheduler, text, bills.
    overhead: f64,
}

/// One category, batch size and way.
#[derive(Debug, Serialize)]
pub struct Row {
    category: String,
    batch: usize,
    drafter: String,
    /// Branches of a draft at most.
    branches: u32,
    /// `exact`: the answers were compared with plain decoding's, token by token. `distribution`: they
    /// are others, by residual sampling.
    contract: &'static str,
    /// How draft tokens come to be accepted.
    accept: &'static str,
    /// Batches that were run.
    runs: usize,
    output_tokens: usize,
    plain_ms_per_token: f64,
    ms_per_token: f64,
    /// Plain time a token against this one's, over all answers.
    speedup: f64,
    /// The same of each answer.
    speedup_median: f64,
    speedup_least: f64,
    tokens_per_step: f64,
    plain_joules_per_token: f64,
    joules_per_token: f64,
    /// The speedup if drafts cost nothing and a step that verifies one took as long as any.
    bound: f64,
    /// The part of the bound that was reached.
    bound_reached: f64,
    drafted_tokens: u64,
    accepted_tokens: u64,
    by_drafter: Vec<DrafterRow>,
    parts: Parts,
}

/// What one drafter did.
#[derive(Debug, Serialize)]
pub struct DrafterRow {
    drafter: &'static str,
    drafts: u64,
    verified: u64,
    accepted: u64,
    /// By position in the draft: of the nodes whose ancestors were accepted, the share accepted.
    acceptance_by_position: Vec<f64>,
    /// Nodes of each of these that were looked at.
    nodes_by_position: Vec<u64>,
    /// The same over all positions, by the length of the answer so far.
    acceptance_by_output: Vec<ByOutput>,
    steps: u64,
    passes: u64,
    step_ms: f64,
}

/// Acceptance at some lengths of the answer so far.
#[derive(Debug, Serialize)]
pub struct ByOutput {
    /// The answer has fewer tokens than this, and no fewer than the class before says; none for all
    /// that is longer.
    #[serde(skip_serializing_if = "Option::is_none")]
    below: Option<u32>,
    /// Of the nodes whose ancestors were accepted, the share accepted.
    acceptance: f64,
    nodes: u64,
}

/// Everything.
#[derive(Debug, Serialize)]
pub struct Report {
    pub setting: Setting,
    pub rows: Vec<Row>,
}

/// What was measured of one way.
#[derive(Debug, Default)]
pub struct Measured {
    plain_ns: f64,
    ns: f64,
    plain_joules: f64,
    joules: f64,
    /// Tokens after each answer's first.
    tokens: usize,
    output: usize,
    contract: SpeculationContract,
    steps: usize,
    speedups: Vec<f64>,
    stats: SpeculationStats,
    wall_ns: u64,
    step_ns: u64,
    sample_ns: u64,
}

impl Measured {
    /// Takes up a batch and its plain twin.
    pub fn add(&mut self, plain: &Run, run: &Run) {
        for (a, b) in plain.done.iter().zip(&run.done) {
            let tokens = b.bill.output_tokens.saturating_sub(1);
            self.contract = b.bill.speculation_contract;
            // An answer of another length is compared by its time a token.
            let share = tokens as f64 / a.bill.output_tokens.saturating_sub(1).max(1) as f64;
            self.plain_ns += a.bill.decode_ns as f64 * share;
            self.ns += b.bill.decode_ns as f64;
            self.plain_joules += a.bill.energy.joules() * share;
            self.joules += b.bill.energy.joules();
            self.tokens += tokens;
            self.output += b.bill.output_tokens;
            self.steps += b.bill.steps.saturating_sub(1);
            self.sample_ns += b.bill.sample_ns;
            if tokens > 0 && b.bill.decode_ns > 0 {
                self.speedups.push(a.bill.decode_ns as f64 * share / b.bill.decode_ns as f64);
            }
        }
        self.wall_ns += run.wall_ns;
        self.step_ns += run.step_ns;
        sum(&mut self.stats, &run.stats);
    }

    /// The row of it all.
    pub fn row(&self, category: &str, batch: usize, way: Way, runs: usize) -> Row {
        let tokens = self.tokens.max(1) as f64;
        let speedup = self.plain_ns / self.ns.max(1.0);
        let bound = tokens / self.steps.max(1) as f64;
        let total = |f: fn(&dunlin_engine::DrafterStats) -> u64| {
            self.stats.drafters.iter().map(f).sum::<u64>()
        };
        Row {
            category: category.into(),
            batch,
            drafter: way.speculate.to_string(),
            branches: way.branches,
            contract: self.contract.name(),
            accept: way.acceptance.name(),
            runs,
            output_tokens: self.output,
            plain_ms_per_token: self.plain_ns / tokens / 1e6,
            ms_per_token: self.ns / tokens / 1e6,
            speedup,
            speedup_median: median(&self.speedups).unwrap_or(f64::NAN),
            speedup_least: self.speedups.iter().copied().fold(f64::NAN, f64::min),
            tokens_per_step: bound,
            plain_joules_per_token: self.plain_joules / tokens,
            joules_per_token: self.joules / tokens,
            bound,
            bound_reached: speedup / bound,
            drafted_tokens: total(|d| d.verified),
            accepted_tokens: total(|d| d.accepted),
            by_drafter: self.by_drafter(),
            parts: self.parts(total(|d| d.step_ns)),
        }
    }

    fn by_drafter(&self) -> Vec<DrafterRow> {
        let used = DrafterKind::ALL.into_iter().map(|kind| (kind, self.stats.of(kind)));
        let used = used.filter(|(_, of)| of.proposed > 0);
        used.map(|(kind, of)| {
            let positions = of.by_position.iter().take_while(|p| p.0 > 0);
            DrafterRow {
                drafter: kind.name(),
                drafts: of.drafts,
                verified: of.verified,
                accepted: of.accepted,
                acceptance_by_position: positions
                    .clone()
                    .map(|&(tried, taken)| taken as f64 / tried as f64)
                    .collect(),
                nodes_by_position: positions.map(|p| p.0).collect(),
                acceptance_by_output: by_output(of),
                steps: of.steps,
                passes: of.passes,
                step_ms: of.step_ns as f64 / 1e6,
            }
        })
        .collect()
    }

    fn parts(&self, draft_ns: u64) -> Parts {
        let all = self.wall_ns.max(1) as f64;
        let (draft, sample) = (draft_ns as f64, self.sample_ns as f64);
        let verify = self.stats.verify_ns as f64;
        let rest = (self.step_ns as f64 - draft - verify).max(0.0);
        // Tokens are chosen in both kinds of steps, in proportion.
        let share = verify / (verify + rest).max(1.0);
        Parts {
            draft: draft / all,
            verify: (verify - sample * share).max(0.0) / all,
            plain: (rest - sample * (1.0 - share)).max(0.0) / all,
            sample: sample / all,
            overhead: (all - self.step_ns as f64).max(0.0) / all,
        }
    }
}

fn by_output(of: &DrafterStats) -> Vec<ByOutput> {
    let ends = OUTPUTS.map(Some).into_iter().chain([None]);
    let classes = ends.zip(of.by_output).filter(|(_, (nodes, _))| *nodes > 0);
    classes
        .map(|(below, (nodes, taken))| ByOutput {
            below,
            acceptance: taken as f64 / nodes as f64,
            nodes,
        })
        .collect()
}

/// What was counted between two moments.
pub fn difference(before: &SpeculationStats, after: &SpeculationStats) -> SpeculationStats {
    combine(after, before, |a, b| a - b)
}

fn sum(to: &mut SpeculationStats, more: &SpeculationStats) {
    *to = combine(to, more, |a, b| a + b);
}

fn combine(
    a: &SpeculationStats,
    b: &SpeculationStats,
    f: impl Fn(u64, u64) -> u64,
) -> SpeculationStats {
    let mut all = *a;
    all.decode_steps = f(a.decode_steps, b.decode_steps);
    all.verify_steps = f(a.verify_steps, b.verify_steps);
    all.verify_ns = f(a.verify_ns, b.verify_ns);
    for (to, b) in all.drafters.iter_mut().zip(&b.drafters) {
        to.drafts = f(to.drafts, b.drafts);
        to.proposed = f(to.proposed, b.proposed);
        to.verified = f(to.verified, b.verified);
        to.accepted = f(to.accepted, b.accepted);
        to.steps = f(to.steps, b.steps);
        to.step_ns = f(to.step_ns, b.step_ns);
        to.passes = f(to.passes, b.passes);
        for (to, b) in to.by_position.iter_mut().zip(&b.by_position) {
            *to = (f(to.0, b.0), f(to.1, b.1));
        }
        for (to, b) in to.by_output.iter_mut().zip(&b.by_output) {
            *to = (f(to.0, b.0), f(to.1, b.1));
        }
    }
    all
}

impl Report {
    /// Writes it.
    ///
    /// # Errors
    /// An output that is closed.
    pub fn write(&self, json: bool) -> anyhow::Result<()> {
        let mut out = std::io::stdout().lock();
        if json {
            serde_json::to_writer_pretty(&mut out, self)?;
            writeln!(out)?;
            note!("{}", self.table());
        } else {
            writeln!(out, "{}", self.table())?;
        }
        Ok(out.flush()?)
    }

    fn table(&self) -> String {
        let Setting { model, draft_model, threads, .. } = &self.setting;
        let draft = draft_model.as_ref().map_or(String::new(), |d| format!(", drafts of {d}"));
        let mut lines = vec![
            format!("{model}{draft}, {threads} threads"),
            "category     batch drafter  branches contract     speedup median least  tokens/step  of bound  accepted      \
             draft verify plain sample other"
                .into(),
        ];
        for r in &self.rows {
            let percent = |part: f64| part * 100.0;
            let p = r.parts;
            lines.push(format!(
                "{:12} {:5} {:8} {:8} {:12} {:7.2} {:6.2} {:5.2} {:12.2} {:8.0}%  {:>5}/{:<6} {:5.0}% {:5.0}% \
                 {:4.0}% {:5.0}% {:4.0}%",
                r.category,
                r.batch,
                r.drafter,
                r.branches,
                r.contract,
                r.speedup,
                r.speedup_median,
                r.speedup_least,
                r.tokens_per_step,
                percent(r.bound_reached),
                r.accepted_tokens,
                r.drafted_tokens,
                percent(p.draft),
                percent(p.verify),
                percent(p.plain),
                percent(p.sample),
                percent(p.overhead),
            ));
        }
        lines.join("\n")
    }
}

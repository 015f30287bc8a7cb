//! `dunlin bench spec`: what speculation does to answers of several kinds, by who drafts and by how
//! many answers are made at once, against plain decoding in the same run.
//!
//! All ways run on one engine and take turns, prompt by prompt; prompts are computed beforehand, so
//! that only decoding is timed. An answer that differs from plain decoding's by a token is an error.
//! What is drafted from earlier answers (`store`) is drafted from those to the category's other
//! prompts.

mod data;
mod report;

use std::{path::PathBuf, time::Instant};

use anyhow::Context as _;
use dunlin_engine::{
    Completion, DraftControl, DrafterKind, Engine, EngineConfig, Event, MAX_BRANCHES, MAX_DRAFT, Request,
    Speculate, SpeculationContract, SpeculationStats, drafter::DraftAcceptance,
};
use dunlin_kvcache::TenantId;
use dunlin_model::{CpuModel, LoadOptions};
use dunlin_executor::sampler::SamplingParams;
use dunlin_tensor::Backend as _;
use dunlin_tokenizer::ChatTemplate;

use self::{
    data::Prompt,
    report::{Measured, Report, Row, Setting},
};
use crate::{
    load, model_args::ModelArgs, note, outcome::unusable, prompt::encode_chat,
    speculate_args::{SpeculateArgs, joules},
};


/// What is measured.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Speculation (with the workload spec)")]
pub struct SpecArgs {
    /// A smaller model that drafts
    #[arg(long, value_name = "FILE")]
    draft_model: Option<PathBuf>,

    /// Prompts, one JSON object a line with `category` and `turns`, as SPEED-Bench has them [default:
    /// a set of six categories]
    #[arg(long, value_name = "PATH")]
    prompts: Option<PathBuf>,

    /// Only these categories
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    categories: Vec<String>,

    /// Answers at once
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,2,4,8,16")]
    batches: Vec<usize>,

    /// Who drafts [default: lookup and auto; with a draft model, draft too]
    #[arg(long, value_name = "WHO", value_delimiter = ',')]
    drafters: Vec<Speculate>,

    /// Branches of a draft at most: each drafter is measured with each of these; 1 is a chain
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [MAX_BRANCHES])]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=64))]
    branches: Vec<u32>,

    /// How draft tokens come to be accepted: each drafter is measured with each of these
    #[arg(long, value_name = "HOW", value_delimiter = ',', default_values_t = [DraftAcceptance::Coupled])]
    accept: Vec<DraftAcceptance>,

    /// Nodes of a draft at most
    #[arg(long, value_name = "N", default_value_t = MAX_DRAFT)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=256))]
    nodes: u32,

    /// All of what is proposed is verified, and drafters are always asked, whatever it costs
    #[arg(long)]
    fixed: bool,

    /// Joules that a token may take on average, where drafts are what decides it
    #[arg(long, value_name = "J", value_parser = joules)]
    joules: Option<f64>,

    /// Tokens of an answer at most
    #[arg(long, value_name = "TOKENS", default_value_t = 128)]
    output: usize,

    /// Prompts of each category at most
    #[arg(long, value_name = "N", default_value_t = 4)]
    per_category: usize,

    /// The temperature of all answers; 0 is greedy
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    draw_temperature: f32,
}

/// Measures, and writes the report.
///
/// # Errors
/// Models and prompts that cannot be had, and answers that differ.
pub fn run(model: &ModelArgs, args: &SpecArgs, reps: usize, json: bool) -> anyhow::Result<()> {
    if args.batches.is_empty() || args.batches.contains(&0) || args.output < 2 {
        return Err(unusable("--batches must be 1 or more, and --output 2 or more"));
    }
    let mut bench = Bench::open(model, args)?;
    let mut rows = Vec::new();
    for category in bench.categories() {
        for &batch in &args.batches {
            rows.extend(bench.measure(&category, batch, reps)?);
        }
    }
    let report = Report { setting: bench.setting, rows };
    report.write(json)
}

/// Tokens of earlier answers that are kept: more than there are.
const STORE_TOKENS: usize = 1 << 20;
const STORE: Speculate = Speculate::Only(DrafterKind::Store);

/// An answer that others are drafted from.
struct Answer {
    /// Prompt and answer.
    tokens: Vec<u32>,
    /// Tokens of the prompt.
    prompt: usize,
}

struct Bench {
    engine: Engine<CpuModel>,
    prompts: Vec<Prompt>,
    ends: Vec<u32>,
    ways: Vec<Way>,
    nodes: u32,
    setting: Setting,
    output: usize,
    temperature: f32,
}

/// Who drafts, with how many branches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Way {
    speculate: Speculate,
    branches: u32,
    acceptance: DraftAcceptance,
}

impl Way {
    const PLAIN: Self =
        Self { speculate: Speculate::Off, branches: 1, acceptance: DraftAcceptance::Coupled };
}

/// One way to run one batch.
struct Run {
    done: Vec<Completion>,
    stats: SpeculationStats,
    wall_ns: u64,
    step_ns: u64,
}

impl Bench {
    fn open(model: &ModelArgs, args: &SpecArgs) -> anyhow::Result<Self> {
        let path = load::model_path(model)?;
        let most = *args.batches.iter().max().expect("there is one");
        let longest = data::LONGEST_PROMPT + args.output;
        let options = LoadOptions {
            threads: Some(model.threads()?),
            activations: model.activations,
            kv_type: model.kv_type()?,
            context: Some(longest),
            // The prompts stay in memory beside those that run.
            kv_tokens: Some((most + 32) * (longest + 64)),
            ..LoadOptions::default()
        };
        let loaded = load::open(&path, &options)?;
        let template = loaded.chat_template().context("the model has no chat template")?;
        let template = ChatTemplate::new(template)?;
        let layers = Speculate::Only(DrafterKind::Layers);
        let speculation = SpeculateArgs {
            speculate: if args.drafters.contains(&layers) { layers } else { Speculate::Auto },
            draft_model: args.draft_model.clone(),
            speculate_max: MAX_DRAFT,
            speculate_store: 0,
            speculate_corpus: None,
            speculate_branches: MAX_BRANCHES,
            speculate_accept: DraftAcceptance::Coupled,
            speculate_joules: args.joules,
        };
        let drafters = speculation.drafters(&path, &loaded.backend, &loaded.tokenizer, &options)?;
        let mut ways = args.drafters.clone();
        if ways.is_empty() {
            ways.push(Speculate::Only(DrafterKind::Lookup));
            if args.draft_model.is_some() {
                ways.push(Speculate::Only(DrafterKind::Model));
            }
            ways.push(Speculate::Auto);
        }
        ways.retain(|way| *way != Speculate::Off);
        let mut all = Vec::new();
        for &speculate in &ways {
            for &branches in &args.branches {
                let with = |&acceptance| Way { speculate, branches, acceptance };
                all.extend(args.accept.iter().map(with));
            }
        }
        let ways = all;
        let mut prompts = data::prompts(args.prompts.as_deref(), &args.categories)?;
        data::limit(&mut prompts, args.per_category);
        for prompt in &mut prompts {
            let message = serde_json::json!({"role": "user", "content": prompt.text});
            prompt.tokens = encode_chat(&loaded.tokenizer, &template, &[message])?;
            if prompt.tokens.len() > data::LONGEST_PROMPT {
                return Err(unusable(format!(
                    "a prompt of {} has {} tokens; it can have {}",
                    prompt.category,
                    prompt.tokens.len(),
                    data::LONGEST_PROMPT
                )));
            }
        }
        let name = |path: &std::path::Path| {
            path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
        };
        let mut setting = Setting {
            model: name(&path),
            draft_model: args.draft_model.as_deref().map(name),
            threads: model.threads()?,
            activations: model.activations.to_string(),
            kv_type: model.kv_type()?.to_string(),
            output_tokens: args.output,
            draft_nodes: args.nodes,
            fixed: args.fixed,
            temperature: args.draw_temperature,
            joules: args.joules,
            energy: "",
            version: env!("CARGO_PKG_VERSION"),
        };
        let config = EngineConfig {
            model: load::identity(model, &path, setting.model.clone())?,
            threads: model.threads()?,
            draft_store_tokens: STORE_TOKENS,
            energy_budget: speculation.energy_budget(),
            draft_control: if args.fixed {
                DraftControl::Fixed
            } else {
                DraftControl::Adaptive
            },
            ..EngineConfig::new(longest)
        };
        let ends = loaded.tokenizer.end_ids();
        let engine =
            Engine::with_drafters(loaded.backend, Some(loaded.tokenizer), config, drafters)?;
        setting.energy = engine.energy_source().label();
        note!("{}: {} blocks of KV", setting.model, engine.backend().block_count());
        Ok(Self {
            engine,
            prompts,
            ends,
            ways,
            nodes: args.nodes,
            setting,
            output: args.output,
            temperature: args.draw_temperature,
        })
    }

    fn categories(&self) -> Vec<String> {
        let mut all: Vec<String> = Vec::new();
        for prompt in &self.prompts {
            if !all.contains(&prompt.category) {
                all.push(prompt.category.clone());
            }
        }
        all
    }

    fn request(&self, prompt: &Prompt, seed: u64, way: Way) -> Request {
        let mut sampling = SamplingParams::greedy();
        (sampling.temperature, sampling.seed) = (self.temperature, seed);
        Request {
            stop_tokens: self.ends.clone(),
            speculate: way.speculate,
            max_draft: self.nodes,
            max_branches: way.branches,
            acceptance: way.acceptance,
            ..Request::new(prompt.tokens.clone(), sampling, Some(self.output))
        }
    }

    /// All ways for one category, in batches of one size.
    fn measure(&mut self, category: &str, batch: usize, reps: usize) -> anyhow::Result<Vec<Row>> {
        let of: Vec<Prompt> =
            self.prompts.iter().filter(|p| p.category == category).cloned().collect();
        for prompt in &of {
            // Its KV is there from now on.
            let request = Request { max_tokens: Some(1), ..self.request(prompt, 0, Way::PLAIN) };
            self.engine.complete(request, |_| {})?;
        }
        let answers = self.answers(&of)?;
        // Prompts that are too few for a batch come several times, with other seeds.
        let groups: Vec<Vec<(usize, u64)>> = (0..of.len().div_ceil(batch))
            .map(|g| (0..batch).map(|i| ((g * batch + i) % of.len(), (g * batch + i) as u64)).collect())
            .collect();
        let mut measured: Vec<Measured> = self.ways.iter().map(|_| Measured::default()).collect();
        for repetition in 0..reps {
            for group in &groups {
                let requests = |bench: &Self, way| {
                    let one = |&(at, seed): &(usize, u64)| bench.request(&of[at], seed, way);
                    group.iter().map(one).collect::<Vec<Request>>()
                };
                let all = requests(self, Way::PLAIN);
                let plain = self.batch(all)?;
                for i in 0..self.ways.len() {
                    // Whoever comes first after plain decoding changes.
                    let at = (i + repetition) % self.ways.len();
                    let all = requests(self, self.ways[at]);
                    self.fill_store(self.ways[at].speculate, &answers, group);
                    let run = self.batch(all)?;
                    compare(&plain, &run, category, self.ways[at])?;
                    measured[at].add(&plain, &run);
                }
            }
        }
        note!("{category}, {batch} at once");
        let rows = self.ways.iter().zip(&measured);
        Ok(rows.map(|(way, m)| m.row(category, batch, *way, reps * groups.len())).collect())
    }

    /// Each prompt with its answer, for others to be drafted from, where that is measured.
    fn answers(&mut self, of: &[Prompt]) -> anyhow::Result<Vec<Answer>> {
        if self.ways.iter().all(|way| way.speculate != STORE) {
            return Ok(Vec::new());
        }
        let mut all = Vec::with_capacity(of.len());
        for (prompt, seed) in of.iter().zip(0..) {
            let request = self.request(prompt, seed, Way::PLAIN);
            let done = self.engine.complete(request, |_| {})?;
            let answer = done.choices.first().map_or(&[][..], |choice| &choice.token_ids);
            let tokens = [&prompt.tokens, answer].concat();
            all.push(Answer { tokens, prompt: prompt.tokens.len() });
        }
        Ok(all)
    }

    /// Earlier answers are those to other prompts than the group's, and only where they are asked
    /// for by name: those of this very prompt would say what comes.
    fn fill_store(&mut self, way: Speculate, answers: &[Answer], group: &[(usize, u64)]) {
        let store = self.engine.draft_store_mut();
        store.forget();
        for (answer, at) in answers.iter().zip(0..).filter(|_| way == STORE) {
            if group.iter().all(|&(prompt, _)| prompt != at) {
                store.remember(TenantId(0), &answer.tokens, answer.prompt);
            }
        }
    }

    fn batch(&mut self, requests: Vec<Request>) -> anyhow::Result<Run> {
        let before = *self.engine.core().speculation();
        let step_ns = self.engine.stats().totals.step_ns;
        let started = Instant::now();
        let mut ids = Vec::new();
        for request in requests {
            ids.push(self.engine.submit(request)?);
        }
        let mut done = std::collections::BTreeMap::new();
        self.engine.run(|event| {
            if let Event::Finished { request, completion } = event {
                done.insert(request, completion);
            }
        });
        let wall_ns = started.elapsed().as_nanos() as u64;
        let done: Vec<Completion> = ids.iter().filter_map(|id| done.remove(id)).collect();
        anyhow::ensure!(done.len() == ids.len(), "a request gave no answer");
        Ok(Run {
            done,
            stats: report::difference(&before, self.engine.core().speculation()),
            wall_ns,
            step_ns: self.engine.stats().totals.step_ns - step_ns,
        })
    }
}

/// Where its contract says so, speculation changes no token.
fn compare(plain: &Run, run: &Run, category: &str, way: Way) -> anyhow::Result<()> {
    for (a, b) in plain.done.iter().zip(&run.done) {
        anyhow::ensure!(
            b.bill.speculation_contract != SpeculationContract::Exact
                || a.choices[0].token_ids == b.choices[0].token_ids,
            "an answer of {category} with {} is not that of plain decoding",
            way.speculate
        );
    }
    Ok(())
}

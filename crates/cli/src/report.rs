//! Results as JSON.
//!
//! The bill names the contract that held: `exact` says that the logits are those of the reference
//! settings (f32 activations and f32 KV) bit for bit, `measured` that a setting moved them by what
//! `dunlin eval` measures. Everything else that the engine does (batching, chunking, threads, shared
//! prefixes) changes no bit in either case.

use dunlin_engine::{Bill, Choice, Completion, PositionLogprobs, Speculate};
use dunlin_spec::{ActivationPrecision, KvType};
use dunlin_tokenizer::Tokenizer;
use serde::Serialize;

/// What all reports of a loaded model say alike.
#[derive(Debug, Clone, Copy)]
pub struct About {
    /// The precision of activations.
    pub activations: ActivationPrecision,
    /// How keys and values are stored.
    pub kv_type: KvType,
    /// From the start of loading to its end.
    pub load_ns: u64,
    /// Who drafts.
    pub speculate: Speculate,
}

/// What was generated for one prompt.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The first sample; the others, where there are more, are in `choices`.
    #[serde(flatten)]
    first: ChoiceReport,
    /// All samples, where more than one was asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    choices: Vec<ChoiceReport>,
    /// The seed of the noise.
    seed: u64,
    timings: Timings,
    bill: BillReport,
}

/// One sample.
#[derive(Debug, Clone, Serialize)]
struct ChoiceReport {
    text: String,
    /// A stop token included.
    token_ids: Vec<u32>,
    /// One for each token: the natural logarithm of its probability in the model's own
    /// distribution.
    logprobs: Vec<f64>,
    /// For each token the best alternatives, best first.
    #[serde(skip_serializing_if = "Option::is_none")]
    top_logprobs: Option<Vec<Vec<TopLogprob>>>,
    finish_reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[derive(Debug, Clone, Serialize)]
struct TopLogprob {
    id: u32,
    /// The token's text, with U+FFFD where it is no whole character.
    token: String,
    logprob: f64,
}

/// Wall-clock times of one prompt.
#[derive(Debug, Serialize)]
pub struct Timings {
    /// Opening the model; the same for all prompts of a run.
    load_ms: f64,
    queue_ms: f64,
    prefill_ms: f64,
    decode_ms: f64,
    /// Computed prompt tokens in a second of prefill.
    prefill_tokens_per_second: Option<f64>,
    /// Tokens after the first in a second of decode, over all samples.
    decode_tokens_per_second: Option<f64>,
}

/// What one prompt cost.
#[derive(Debug, Serialize)]
struct BillReport {
    /// `exact` or `measured`; see the head of this file.
    contract: &'static str,
    /// The settings that make it `measured`, by the names of their fields.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    measured: Vec<&'static str>,
    activations: String,
    kv_type: String,
    prompt_tokens: usize,
    /// Of them, those whose KV was there already: the tokens saved by the cache.
    cached_prompt_tokens: usize,
    output_tokens: usize,
    computed_tokens: usize,
    /// Of the computed ones, those that preemptions made it compute again.
    recomputed_tokens: usize,
    steps: usize,
    speculation: SpeculationReport,
    preemptions: usize,
    queue_ns: u64,
    prefill_ns: u64,
    decode_ns: u64,
    /// Its part of the steps' time, by tokens.
    compute_share_ns: u64,
    sample_ns: u64,
    /// The most KV that it held at once.
    kv_bytes: u64,
    /// KV brought back from disk for it.
    loaded_bytes: u64,
    /// Its part, by tokens, of the bytes that its steps read and wrote: weights and KV.
    moved_bytes: u64,
    /// Its part, by tokens, of the energy of its steps.
    joules: f64,
    /// Where the joules come from: a measurement, or a model.
    joules_source: &'static str,
}

/// What drafts did.
#[derive(Debug, Serialize)]
struct SpeculationReport {
    /// Who was allowed to draft.
    drafter: String,
    /// What drafts changed of the answer: nothing (`exact`).
    contract: &'static str,
    /// Tokens proposed and verified.
    drafted_tokens: usize,
    /// Of them, those that became part of the answer.
    accepted_tokens: usize,
    /// The time of steps in which only a drafter ran; part of `compute_share_ns`.
    draft_ns: u64,
}

impl Report {
    /// The report on a completion. `top` says whether alternatives were asked for.
    pub fn new(
        completion: &Completion,
        tokenizer: &Tokenizer,
        top: bool,
        seed: u64,
        about: &About,
    ) -> Self {
        let choices: Vec<ChoiceReport> =
            completion.choices.iter().map(|c| ChoiceReport::new(c, tokenizer, top)).collect();
        Self {
            first: choices[0].clone(),
            choices: if choices.len() > 1 { choices } else { Vec::new() },
            seed,
            timings: Timings::new(&completion.bill, completion.choices.len(), about.load_ns),
            bill: BillReport::new(&completion.bill, about),
        }
    }
}

impl ChoiceReport {
    fn new(choice: &Choice, tokenizer: &Tokenizer, top: bool) -> Self {
        let positions = choice.logprobs.as_deref().unwrap_or_default();
        let spelt = |id| String::from_utf8_lossy(tokenizer.token_bytes(id).unwrap_or_default());
        Self {
            text: choice.text.clone(),
            token_ids: choice.token_ids.clone(),
            logprobs: positions.iter().map(|p| p.chosen.logprob).collect(),
            top_logprobs: top.then(|| {
                let alternatives = |p: &PositionLogprobs| {
                    p.top
                        .iter()
                        .map(|t| TopLogprob {
                            id: t.token,
                            token: spelt(t.token).into_owned(),
                            logprob: t.logprob,
                        })
                        .collect()
                };
                positions.iter().map(alternatives).collect()
            }),
            finish_reason: choice.finish.reason(),
            error: choice.finish.error(),
        }
    }
}

impl Timings {
    /// The times in a bill of `choices` samples.
    pub fn new(bill: &Bill, choices: usize, load_ns: u64) -> Self {
        let ms = |ns: u64| ns as f64 / 1e6;
        let rate = |tokens: usize, ns: u64| {
            (tokens > 0 && ns > 0).then(|| tokens as f64 / (ns as f64 / 1e9))
        };
        Self {
            load_ms: ms(load_ns),
            queue_ms: ms(bill.queue_ns),
            prefill_ms: ms(bill.prefill_ns),
            decode_ms: ms(bill.decode_ns),
            prefill_tokens_per_second: rate(
                (bill.context_tokens + bill.prompt_tokens).saturating_sub(bill.cached_tokens),
                bill.prefill_ns,
            ),
            decode_tokens_per_second: rate(
                bill.output_tokens.saturating_sub(choices),
                bill.decode_ns,
            ),
        }
    }

    /// One line for people.
    pub fn summary(&self, bill: &Bill) -> String {
        let rate = |r: Option<f64>| r.map_or("-".into(), |r| format!("{r:.1}"));
        format!(
            "prompt {} tokens ({} cached), {} tokens/s; answer {} tokens, {} tokens/s, {} of {} drafted \
             tokens accepted; load {:.0} ms",
            bill.context_tokens + bill.prompt_tokens,
            bill.cached_tokens,
            rate(self.prefill_tokens_per_second),
            bill.output_tokens,
            rate(self.decode_tokens_per_second),
            bill.accepted_tokens,
            bill.draft_tokens,
            self.load_ms,
        )
    }
}

impl BillReport {
    fn new(bill: &Bill, about: &About) -> Self {
        let lossy = [
            ("activations", about.activations != ActivationPrecision::F32),
            ("kv_type", about.kv_type != KvType::F32),
        ];
        let measured: Vec<&str> =
            lossy.iter().filter(|(_, is)| *is).map(|(name, _)| *name).collect();
        Self {
            contract: if measured.is_empty() { "exact" } else { "measured" },
            measured,
            activations: about.activations.to_string(),
            kv_type: about.kv_type.to_string(),
            prompt_tokens: bill.context_tokens + bill.prompt_tokens,
            cached_prompt_tokens: bill.cached_tokens,
            output_tokens: bill.output_tokens,
            computed_tokens: bill.computed_tokens,
            recomputed_tokens: bill.recomputed_tokens,
            steps: bill.steps,
            speculation: SpeculationReport {
                drafter: about.speculate.to_string(),
                contract: bill.speculation_contract.name(),
                drafted_tokens: bill.draft_tokens,
                accepted_tokens: bill.accepted_tokens,
                draft_ns: bill.draft_ns,
            },
            preemptions: bill.preemptions,
            queue_ns: bill.queue_ns,
            prefill_ns: bill.prefill_ns,
            decode_ns: bill.decode_ns,
            compute_share_ns: bill.compute_share_ns,
            sample_ns: bill.sample_ns,
            kv_bytes: bill.kv_bytes,
            loaded_bytes: bill.loaded_bytes,
            moved_bytes: bill.moved_bytes,
            joules: bill.energy.joules(),
            joules_source: bill.energy.source.label(),
        }
    }
}

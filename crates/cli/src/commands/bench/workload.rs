//! What `bench batch`, `bench session` and `bench grammar` share: engines over one backend, timed requests.

use std::{
    collections::BTreeMap,
    path::Path,
    time::{Duration, Instant},
};

use dunlin_engine::{Engine, EngineConfig, Event, Request};
use dunlin_executor::sampler::SamplingParams;
use dunlin_model::CpuModel;
use dunlin_tokenizer::Tokenizer;
use dunlin_units::RequestId;
use serde::Serialize;

use super::{open, row::tokens};
use crate::{load, model_args::ModelArgs};

/// The settings that figures are of.
#[derive(Debug, Clone, Serialize)]
pub struct Setting {
    pub model: String,
    pub threads: usize,
    pub activations: String,
    pub kv_type: String,
    pub version: &'static str,
    /// All lengths are this part of what their rows say.
    pub scale: usize,
}

/// The model of a benchmark, and how engines over it are set up.
pub struct Bench {
    backend: Option<CpuModel>,
    pub vocab_size: usize,
    pub tokenizer: Tokenizer,
    config: EngineConfig,
}

impl Bench {
    /// Loads the model with KV for so many tokens, in sequences of up to `longest`.
    ///
    /// # Errors
    /// Models that cannot be opened.
    pub fn open(
        args: &ModelArgs,
        path: &Path,
        longest: usize,
        kv_tokens: usize,
    ) -> anyhow::Result<Self> {
        let loaded = open::open(args, path, Some(longest), kv_tokens)?;
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        let config = EngineConfig {
            model: load::identity(args, path, name)?,
            threads: args.threads()?,
            ..EngineConfig::new(longest)
        };
        let vocab_size = loaded.spec().vocab_size;
        let tokenizer = loaded.tokenizer;
        Ok(Self { backend: Some(loaded.backend), vocab_size, tokenizer, config })
    }

    /// What the figures are of.
    pub fn setting(&self, scale: usize) -> Setting {
        Setting {
            model: self.config.model.name.clone(),
            threads: self.config.threads,
            activations: self.config.model.activations.clone(),
            kv_type: self.config.model.kv_type.clone(),
            version: env!("CARGO_PKG_VERSION"),
            scale,
        }
    }

    /// The backend alone.
    pub fn backend(&mut self) -> &mut CpuModel {
        self.backend.as_mut().expect("it is given back")
    }

    /// Runs a function on an engine that holds nothing yet.
    ///
    /// # Errors
    /// As the function, and settings that cannot be used.
    pub fn with_engine<R>(
        &mut self,
        change: impl FnOnce(&mut EngineConfig),
        function: impl FnOnce(&mut Engine<CpuModel>) -> anyhow::Result<R>,
    ) -> anyhow::Result<R> {
        let mut config = self.config.clone();
        change(&mut config);
        let backend = self.backend.take().expect("it is given back");
        let mut engine = Engine::new(backend, None, config)?;
        let result = function(&mut engine);
        self.backend = Some(engine.into_backend());
        result
    }
}

/// A greedy request that goes on to its last token.
pub fn request(prompt: Vec<u32>, max_tokens: usize) -> Request {
    Request::new(prompt, SamplingParams::greedy(), Some(max_tokens))
}

/// Random tokens.
pub fn prompt(length: usize, vocab_size: usize, seed: u64) -> Vec<u32> {
    tokens(length.max(1), vocab_size, seed)
}

/// When the tokens of requests came.
#[derive(Debug, Default)]
pub struct Times {
    /// By request, in order.
    pub tokens: BTreeMap<RequestId, Vec<Instant>>,
}

impl Times {
    /// Runs an engine until `until` is true of what came so far, or nothing is left to do.
    pub fn run(&mut self, engine: &mut Engine<CpuModel>, until: impl Fn(&Self) -> bool) {
        while !until(self) {
            let more = engine.step(&mut |event| {
                if let Event::Token { request, .. } = event {
                    self.tokens.entry(request).or_default().push(Instant::now());
                }
            });
            if !more {
                break;
            }
        }
    }

    /// When a request's first token came.
    pub fn first(&self, request: RequestId) -> Option<Instant> {
        self.tokens.get(&request).and_then(|times| times.first().copied())
    }

    /// The times between tokens that came from `from` to `to`, of all but one request, sorted.
    pub fn gaps(&self, except: Option<RequestId>, from: Instant, to: Instant) -> Vec<Duration> {
        let others = self.tokens.iter().filter(|(id, _)| Some(**id) != except);
        let mut gaps: Vec<Duration> = others
            .flat_map(|(_, times)| times.windows(2))
            .filter(|pair| pair[1] > from && pair[1] <= to)
            .map(|pair| pair[1] - pair[0])
            .collect();
        gaps.sort_unstable();
        gaps
    }
}

/// The value that this part of the sorted values does not exceed.
pub fn quantile(sorted: &[Duration], part: f64) -> Option<Duration> {
    let index = ((sorted.len() as f64 * part).ceil() as usize).saturating_sub(1);
    sorted.get(index).copied()
}

pub fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_the_values_themselves() {
        let sorted: Vec<Duration> = (1..=200).map(Duration::from_millis).collect();
        assert_eq!(quantile(&sorted, 0.99), Some(Duration::from_millis(198)));
        assert_eq!(quantile(&sorted, 0.5), Some(Duration::from_millis(100)));
        assert_eq!(quantile(&sorted[..1], 0.99), Some(Duration::from_millis(1)));
        assert_eq!(quantile(&[], 0.5), None);
    }
}

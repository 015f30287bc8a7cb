//! Where requests come from: a recorded trace, rows of one in another order, or a generator.

use std::{
    fs::File,
    io::{BufRead, BufReader},
    num::NonZeroU64,
    path::{Path, PathBuf},
};

use dunlin_units::Time;
use dunlin_workload::{
    ArrivalSpec, ClientSpec, GapSpec, LengthsSpec, RateSpec, Request, WorkloadSpec,
    trace::{BadRows, ReadOptions, TraceReader, stretch},
};
use serde::Deserialize;

use super::{ConfigFileError, S, SimConfig, nanoseconds};
use crate::SimError;

/// Requests, one of three ways.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkloadConfig {
    /// A recorded trace as it is.
    #[serde(default)]
    pub trace: Option<TraceConfig>,
    /// Lengths of a recorded trace, each row as likely, arriving at a rate.
    #[serde(default)]
    pub resample: Option<ResampleConfig>,
    /// A generator.
    #[serde(default)]
    pub generate: Option<WorkloadSpec>,
    /// Requests at most.
    #[serde(default)]
    pub limit: Option<u64>,
    /// No arrivals after that.
    #[serde(default)]
    pub until_s: Option<f64>,
    /// From being ready to when an answer should be complete, where a request does not say.
    #[serde(default)]
    pub deadline_s: Option<f64>,
}

/// A recorded trace.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceConfig {
    /// Where it lies.
    pub file: PathBuf,
    /// Stretches time: 0.5 doubles the load.
    #[serde(default = "unchanged")]
    pub stretch: f64,
    /// Whether rows that cannot be are left out instead of being an error.
    #[serde(default)]
    pub skip_bad_rows: bool,
}

const fn unchanged() -> f64 {
    1.0
}

/// Rows of a recorded trace, drawn at random.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResampleConfig {
    /// Where it lies.
    pub file: PathBuf,
    /// Requests.
    pub requests: u64,
    /// How many arrive in a second.
    pub rate_per_s: f64,
    /// How uneven arrivals are: the standard deviation of gaps over their mean. 1 is Poisson.
    #[serde(default = "unchanged")]
    pub cv: f64,
}

/// A stream of requests.
pub type Requests = Box<dyn Iterator<Item = Result<Request, SimError>> + Send>;

/// A trace that can be read, gzip or not.
pub type Trace = TraceReader<Box<dyn BufRead + Send>>;

/// Opens a trace; a name that ends in `.gz` is decompressed.
///
/// # Errors
/// A file that cannot be opened, and one that is no trace.
pub fn open_trace(path: &Path, options: ReadOptions) -> Result<Trace, ConfigFileError> {
    let file =
        File::open(path).map_err(|source| ConfigFileError::Io { path: path.into(), source })?;
    let input: Box<dyn BufRead + Send> = if path.extension().is_some_and(|e| e == "gz") {
        Box::new(BufReader::new(flate2::read::MultiGzDecoder::new(file)))
    } else {
        Box::new(BufReader::with_capacity(1 << 16, file))
    };
    TraceReader::new(input, None, options)
        .map_err(|e| ConfigFileError::Toml { path: path.into(), message: e.to_string() })
}

impl SimConfig {
    /// The requests.
    ///
    /// # Errors
    /// None or several sources; files that cannot be read; values that make no sense.
    pub fn requests(&self) -> Result<Requests, ConfigFileError> {
        let w = &self.workload;
        let requests: Requests = match (&w.trace, &w.resample, &w.generate) {
            (Some(trace), None, None) => recorded(trace, &self.folder)?,
            (None, Some(resample), None) => {
                let path = self.folder.join(&resample.file);
                Box::new(resampled(resample, &path)?.build(self.seed).map_err(spec)?.map(Ok))
            }
            (None, None, Some(generate)) => {
                Box::new(generate.build(self.seed).map_err(spec)?.map(Ok))
            }
            _ => {
                let problem = "give one of `workload.trace`, `workload.resample` and \
                               `workload.generate`";
                return Err(ConfigFileError::value("workload", problem));
            }
        };
        let limit = usize::try_from(w.limit.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
        let until = match w.until_s {
            Some(s) => Time(nanoseconds("workload.until_s", s, S)?),
            None => Time::NEVER,
        };
        let deadline = match w.deadline_s {
            Some(s) => NonZeroU64::new(nanoseconds("workload.deadline_s", s, S)?),
            None => None,
        };
        let within =
            move |r: &Result<Request, SimError>| r.as_ref().map_or(true, |r| r.arrival < until);
        let with = move |r: Result<Request, SimError>| {
            r.map(|r| Request { deadline_ns: r.deadline_ns.or(deadline), ..r })
        };
        Ok(Box::new(requests.take(limit).take_while(within).map(with)))
    }
}

fn spec(e: dunlin_workload::SpecError) -> ConfigFileError {
    ConfigFileError::value(format!("workload.generate.{}", e.at), e.problem)
}

fn recorded(trace: &TraceConfig, folder: &Path) -> Result<Requests, ConfigFileError> {
    let factor = trace.stretch;
    if !(factor > 0.0 && factor <= 1e6) {
        let problem = format!("{factor} should be above 0 and at most a million");
        return Err(ConfigFileError::value("workload.trace.stretch", problem));
    }
    let bad_rows = if trace.skip_bad_rows { BadRows::Skip } else { BadRows::Refuse };
    let options = ReadOptions { bad_rows, ..ReadOptions::default() };
    let mut reader = open_trace(&folder.join(&trace.file), options)?;
    // Errors pass by the stretching.
    let rows = std::iter::from_fn(move || match reader.next()? {
        Ok(row) => stretch(std::iter::once(row), factor).next().map(Ok),
        Err(e) => Some(Err(SimError::from(e))),
    });
    Ok(Box::new(rows))
}

fn resampled(r: &ResampleConfig, path: &Path) -> Result<WorkloadSpec, ConfigFileError> {
    let mut rows = Vec::new();
    for row in open_trace(path, ReadOptions::default())? {
        let row = row.map_err(SimError::from)?;
        rows.push((row.prompt_tokens, row.output_tokens));
    }
    let rate = RateSpec::Constant { per_s: r.rate_per_s };
    let gaps = if r.cv == 1.0 { GapSpec::Exponential } else { GapSpec::Gamma { cv: r.cv } };
    let arrival = ArrivalSpec::Open { gaps, rate };
    let lengths = LengthsSpec::Rows { rows: rows.into() };
    let client =
        ClientSpec { limit: Some(r.requests), ..ClientSpec::new("resample", arrival, lengths) };
    Ok(WorkloadSpec { clients: vec![client], ..WorkloadSpec::default() })
}

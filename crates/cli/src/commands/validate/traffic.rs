//! The traffic of a validation: generated, or from a recorded trace.

use std::{fs::File, io::BufReader, path::Path, sync::Arc};

use anyhow::Context as _;
use dunlin_costmodel::CostModel;
use dunlin_planner::validate::predict;
use dunlin_scheduler::CoreConfig;
use dunlin_units::Time;
use dunlin_workload::{
    ArrivalSpec, ClientSpec, CountSpec, DistSpec, LengthsSpec, PrefixPoolSpec, PrefixUse, Request,
    Wait, WorkloadSpec,
    trace::{ReadOptions, TraceReader},
};

use crate::outcome::unusable;

/// Requests whose service gives an idea of what the machine can serve.
const SAMPLE: usize = 400;

/// Chat-like requests of two kinds: prompts of their own, and prompts behind one of a few prefixes
/// that many share. One arrives every second on average.
pub fn generated(seed: u64, context: usize, count: usize) -> anyhow::Result<Vec<Request>> {
    let most = u32::try_from(context / 2 - 1).unwrap_or(u32::MAX);
    let lengths = |prompt: f64, output: f64| {
        let count = |median, sigma, max: u32| CountSpec {
            max: max.min(most.max(1)),
            ..CountSpec::new(DistSpec::LogNormal { median, sigma })
        };
        LengthsSpec::Independent { prompt: count(prompt, 0.9, 900), output: count(output, 0.7, 300) }
    };
    let own = ClientSpec::new("own", ArrivalSpec::poisson(0.75), lengths(120.0, 60.0));
    let mut shared = ClientSpec::new("shared", ArrivalSpec::poisson(0.25), lengths(60.0, 60.0));
    shared.prefixes = vec![PrefixUse { pool: "system".into(), chance: 1.0 }];
    let pool = PrefixPoolSpec {
        name: "system".into(),
        prefixes: 3,
        exponent: 1.0,
        tokens: CountSpec::constant((most / 4).clamp(1, 160)),
    };
    let spec = WorkloadSpec {
        prefix_pools: vec![pool],
        clients: vec![own, shared],
        ..WorkloadSpec::default()
    };
    Ok(spec.build(seed)?.take(count).map(|r| fit(r, context)).collect())
}

/// The first rows of a trace, cut to the context. What waits for others arrives on its own: the
/// engine's answers are not those of the trace.
pub fn from_trace(path: &Path, context: usize, count: usize) -> anyhow::Result<Vec<Request>> {
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let reader = TraceReader::new(BufReader::new(file), None, ReadOptions::default())
        .map_err(|e| unusable(format!("{}: {e}", path.display())))?;
    let rows = reader.take(count).map(|row| row.map(|r| fit(r, context)));
    rows.collect::<Result<_, _>>().map_err(|e| unusable(format!("{}: {e}", path.display())))
}

/// The request with at least one token of output and no more of both than the context holds.
fn fit(mut request: Request, context: usize) -> Request {
    let context = u32::try_from(context).unwrap_or(u32::MAX);
    request.output_tokens = request.output_tokens.clamp(1, context / 2);
    let room = context - request.output_tokens - 1;
    if request.prompt_tokens > room {
        // Pieces add up to the prompt, so a cut one has tokens of its own.
        request.content = dunlin_workload::Content::Unique;
        request.prompt_tokens = room;
    }
    request.wait = Wait::Nothing;
    request.session = None;
    request.group = None;
    request.delay_ns = 0;
    request.deadline_ns = None;
    request
}

/// Requests a second that the machine serves by the cost model when all wait at once.
pub fn capacity(
    config: &CoreConfig,
    cost: &Arc<CostModel>,
    requests: &[Request],
) -> anyhow::Result<f64> {
    let sample = requests.iter().take(SAMPLE).map(|r| Request { arrival: Time(0), ..r.clone() });
    let sample: Vec<Request> = sample.collect();
    let count = sample.len() as f64;
    let (_, report) = predict(config, cost.clone(), sample)?;
    Ok(count / report.duration_s().max(1e-9))
}

/// Stretches the arrivals to `rate` requests a second, and keeps those of the first `seconds`.
pub fn at_rate(requests: &mut Vec<Request>, rate: f64, seconds: f64) {
    let first = requests[0].arrival.0;
    let last = requests[requests.len() - 1].arrival.0;
    let now = (requests.len() - 1) as f64 / ((last - first) as f64 / 1e9);
    let stretch = if now.is_finite() && now > 0.0 { now / rate } else { 0.0 };
    for request in requests.iter_mut() {
        request.arrival = Time(((request.arrival.0 - first) as f64 * stretch) as u64);
    }
    let kept = requests.partition_point(|r| r.arrival.0 as f64 <= seconds * 1e9);
    requests.truncate(kept.max(1));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_traffic_fits_the_context_and_comes_at_its_rate() {
        for context in [64, 2048] {
            let mut requests = generated(3, context, 2000).unwrap();
            let most = |r: &Request| (r.prompt_tokens + r.output_tokens) as usize;
            assert!(requests.iter().all(|r| most(r) < context && r.output_tokens > 0));
            at_rate(&mut requests, 20.0, 50.0);
            assert!((900..1100).contains(&requests.len()), "{}", requests.len());
            assert!(requests.windows(2).all(|w| w[0].arrival <= w[1].arrival));
        }
        let mut batch = vec![Request::new(Time(5), 1, 1); 3];
        at_rate(&mut batch, 1.0, 10.0);
        assert_eq!((batch.len(), batch[2].arrival), (3, Time(0)));
    }
}

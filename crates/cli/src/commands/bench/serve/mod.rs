//! `dunlin bench serve`: load on a server that speaks OpenAI's protocol, ours or another's.
//!
//! The client is a thread for each request that is under way and blocks in its socket: what it
//! measures is when text arrives, and nothing else runs in between.

mod client;
mod drive;
mod plan;
mod report;
mod server_side;
mod sse;
mod verify;

use std::{io::Write as _, path::PathBuf, process::ExitCode, sync::Arc, time::Duration};

use dunlin_workload::{CountSpec, Request};

use crate::{engine_args::EngineArgs, load, model_args::ModelArgs, note, outcome::unusable};
use client::{Client, Endpoint, Settings};
use drive::Run;
use plan::{Counts, Generated, Prompts};
use report::{Report, Setting, Slo};
use server_side::{Moment, ServerSide};
use verify::How;

/// How long an open loop sends where nothing else ends it, in seconds.
const DURATION: f64 = 30.0;

/// Put load on a server with OpenAI's protocol and measure how it answers
///
/// Requests come at random moments (--rate), as in a trace (--trace) or as fast as a number of
/// clients takes the answers (--clients). Times count from the moment at which a request was due,
/// whether or not it could be sent then. With -m every answer is held beside the engine's own: that
/// model, its --activations, --kv-type and --context must be the server's. Exit code 1 where all requests
/// failed or an answer differs.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The server, as http://HOST:PORT
    #[arg(long)]
    url: String,

    /// Requests a second, at random moments (a Poisson process unless --burstiness says otherwise)
    #[arg(long, value_name = "PER_S", conflicts_with_all = ["trace", "clients"])]
    #[arg(required_unless_present_any = ["trace", "clients"])]
    rate: Option<f64>,

    /// Standard deviation over mean of the gaps between requests: above 1 they come in bursts
    #[arg(long, value_name = "CV", default_value_t = 1.0, requires = "rate")]
    burstiness: f64,

    /// A trace whose times, lengths and shared prefixes are used: Azure, Mooncake, BurstGPT,
    /// ServeGen, Vidur, LLMServingSim or dunlin's own; its first line tells which
    #[arg(long, value_name = "FILE", conflicts_with = "clients")]
    trace: Option<PathBuf>,

    /// Go through a trace this many times faster
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, requires = "trace")]
    speed: f64,

    /// Divide all lengths of a trace by this
    #[arg(long, value_name = "N", default_value_t = 1, requires = "trace")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    scale: u32,

    /// So many clients, each with one request at a time
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    clients: Option<u32>,

    /// Seconds in which requests are sent [default: 30, or to the end of --requests or --trace]
    #[arg(long, value_name = "SECONDS")]
    duration: Option<f64>,

    /// The most requests
    #[arg(long, value_name = "N")]
    requests: Option<usize>,

    /// Tokens of prompts: 128, 64-256, exp:MEAN or lognormal:MEDIAN:SIGMA
    #[arg(long, value_name = "COUNT", default_value = "128", conflicts_with = "trace")]
    prompt_tokens: Counts,

    /// Tokens of answers, in the same way
    #[arg(long, value_name = "COUNT", default_value = "128", conflicts_with = "trace")]
    output_tokens: Counts,

    /// So many tokens in front of each prompt that all have in common (in chats a system message)
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "trace")]
    shared_prefix_tokens: u32,

    /// Which endpoint is asked
    #[arg(long, value_enum, default_value_t = Endpoint::Completions)]
    endpoint: Endpoint,

    /// The model's name on the server [default: the first that it lists]
    #[arg(long, value_name = "NAME")]
    model_name: Option<String>,

    /// The key that opens the server
    #[arg(long, env = "DUNLIN_API_KEY", value_name = "KEY", hide_env_values = true)]
    api_key: Option<String>,

    /// Prompts of words even where the server tells its vocabulary
    #[arg(long)]
    text_prompts: bool,

    /// Requests before the measurement, by as many clients as the measurement has (a rate or a
    /// trace: one); with shared tokens they warm the server's cache
    #[arg(long, value_name = "N", default_value_t = 1)]
    warm_up: usize,

    /// Of sampling; 0 takes the best token
    #[arg(long, default_value_t = 0.0)]
    temperature: f32,

    /// Answers may end before they have all tokens (by default `ignore_eos` is asked for)
    #[arg(long)]
    stop_at_eos: bool,

    /// Of moments, lengths, prompts and sampling
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// A good answer's first token comes within this
    #[arg(long, value_name = "MS")]
    slo_ttft_ms: Option<f64>,

    /// A good answer's mean time between tokens is within this
    #[arg(long, value_name = "MS")]
    slo_tpot_ms: Option<f64>,

    /// A good answer is complete within this
    #[arg(long, value_name = "MS")]
    slo_e2e_ms: Option<f64>,

    /// The longest that a request may take
    #[arg(long, value_name = "SECONDS", default_value_t = 600.0)]
    timeout: f64,

    /// The most requests under way at once; others leave late, which is told
    #[arg(long, value_name = "N", default_value_t = 4096)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1 << 15))]
    max_in_flight: u32,

    /// Write one JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    model: ModelArgs,

    #[command(flatten)]
    engine: EngineArgs,
}

/// Runs the command.
///
/// # Errors
/// A server that does not answer at all, and settings that cannot be used.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    check(&args)?;
    let (client, vocabulary) = Client::new(Settings {
        url: args.url.clone(),
        key: args.api_key.clone(),
        endpoint: args.endpoint,
        model: args.model_name.clone(),
        temperature: args.temperature,
        ignore_eos: !args.stop_at_eos,
        timeout: Duration::from_secs_f64(args.timeout),
        keep_text: args.model.model.is_some(),
    })?;
    let vocabulary = match (args.endpoint, args.text_prompts, vocabulary) {
        (Endpoint::Completions, false, Some(vocabulary)) => Some(vocabulary),
        _ => None,
    };
    let prompts = Prompts {
        vocabulary,
        shared_tokens: args.shared_prefix_tokens,
        // Another server's cache may still hold what an earlier run asked.
        seed: args.seed,
    };
    let prompts = Arc::new(prompts);
    let warmed = warm_up(&args, &client, &prompts)?;
    let before = Moment::of(&client);
    let run = drive(&args, &client, prompts)?;
    let after = before.and_then(|_| Moment::of(&client));
    let slo =
        Slo { ttft_ms: args.slo_ttft_ms, tpot_ms: args.slo_tpot_ms, e2e_ms: args.slo_e2e_ms };
    let setting = Setting {
        url: client.url().into(),
        model: client.model().into(),
        endpoint: match args.endpoint {
            Endpoint::Completions => "completions",
            Endpoint::Chat => "chat",
        },
        loop_kind: if args.clients.is_some() { "closed" } else { "open" },
        rate_per_s: args.rate,
        clients: args.clients.map(|n| n as usize),
        trace: args.trace.as_ref().map(|path| {
            path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
        }),
        prompts_are_tokens: vocabulary.is_some(),
        temperature: args.temperature,
        seed: args.seed,
        warm_up_requests: warmed,
        version: env!("CARGO_PKG_VERSION"),
    };
    let mut report = Report::new(setting, &run, slo);
    report.server =
        before.zip(after).and_then(|(before, after)| ServerSide::between(&before, &after));
    if args.model.model.is_some() {
        let how = How {
            endpoint: args.endpoint,
            temperature: args.temperature,
            ignore_eos: !args.stop_at_eos,
        };
        load::model_path(&args.model)?;
        report.verified = Some(verify::verify(&args.model, &args.engine, how, &run)?);
    }
    let mut out = std::io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
        note!("{}", report.table());
    } else {
        write!(out, "{}", report.table())?;
    }
    out.flush()?;
    let differs = report.verified.as_ref().is_some_and(|v| v.equal < v.compared);
    Ok(if report.succeeded == 0 || differs { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn check(args: &Args) -> anyhow::Result<()> {
    if !args.url.starts_with("http://") && !args.url.starts_with("https://") {
        return Err(unusable("--url must begin with http:// or https://"));
    }
    let positive = [
        ("--rate", args.rate),
        ("--duration", args.duration),
        ("--speed", Some(args.speed)),
        ("--burstiness", Some(args.burstiness)),
        ("--timeout", Some(args.timeout)),
    ];
    for (name, value) in positive {
        if value.is_some_and(|value| !(value > 0.0 && value <= 1e6)) {
            return Err(unusable(format!("{name} must be above 0, and 1000000 at most")));
        }
    }
    if args.requests == Some(0) {
        return Err(unusable("--requests is 0: nothing to measure"));
    }
    if !(0.0..=100.0).contains(&args.temperature) {
        return Err(unusable("--temperature must be from 0 to 100"));
    }
    Ok(())
}

/// Requests of given lengths; the seed of warm-up ones differs but for the tokens in common.
fn generated(args: &Args) -> Generated {
    Generated {
        prompt: args.prompt_tokens.0.clone(),
        output: args.output_tokens.0.clone(),
        shared_tokens: args.shared_prefix_tokens,
        seed: args.seed,
    }
}

/// Sends what is not measured; how many were.
fn warm_up(args: &Args, client: &Client, prompts: &Prompts) -> anyhow::Result<usize> {
    if args.warm_up == 0 {
        return Ok(0);
    }
    let short = Generated { output: CountSpec::constant(4), ..generated(args) };
    // Numbers that measured requests do not reach: their own tokens are others.
    let first = usize::MAX / 2;
    let requests = short.at_once()?.skip(1 << 16).take(args.warm_up);
    let asks = requests.enumerate().map(|(i, request)| prompts.ask(first + i, request));
    let run = drive::closed_loop(client, asks, args.clients.unwrap_or(1) as usize, None)?;
    if run.outcomes.iter().all(|outcome| outcome.failure.is_some())
        && let Some((failure, said)) = run.outcomes.first().and_then(|o| o.failure.as_ref())
    {
        note!("dunlin: the warm-up failed: {failure}: {said}");
    }
    Ok(args.warm_up)
}

/// Sends what is measured.
fn drive(args: &Args, client: &Client, prompts: Arc<Prompts>) -> anyhow::Result<Run> {
    let most = args.requests.unwrap_or(usize::MAX);
    let duration = args.duration.or_else(|| {
        (args.requests.is_none() && args.trace.is_none()).then_some(DURATION)
    });
    let duration = duration.map(Duration::from_secs_f64);
    if let Some(clients) = args.clients {
        let asks = plan::asks(generated(args).at_once()?.take(most), prompts);
        return drive::closed_loop(client, asks, clients as usize, duration);
    }
    let requests: Box<dyn Iterator<Item = Request> + Send> = match (&args.trace, args.rate) {
        (Some(path), _) => Box::new(plan::trace(path, args.scale, args.speed)?.into_iter()),
        (None, rate) => {
            Box::new(generated(args).at_rate(rate.unwrap_or(1.0), args.burstiness)?)
        }
    };
    let end_ns = duration.map_or(u64::MAX, |most| most.as_nanos() as u64);
    let requests = requests.take(most).take_while(move |request| request.arrival.0 < end_ns);
    drive::open_loop(client, plan::asks(requests, prompts), args.max_in_flight as usize)
}

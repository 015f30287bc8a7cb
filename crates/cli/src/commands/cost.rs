//! `dunlin cost`: what a cost model says of a step, and of the energy in it.

use std::{io::Write as _, path::PathBuf, process::ExitCode, str::FromStr};

use anyhow::Context as _;
use dunlin_costmodel::{
    CostFile, CostSpec, Phase, PowerRow, Roofline, RooflineSpec, SeqShape, StepCost, StepPrice,
    StepShape, Work,
    einsum::{step_flops, step_kv_values},
};
use serde::Serialize;

use crate::outcome::unusable;

/// Ask a cost model what a step takes
///
/// The model is a cost.toml: measured operators, a fit, or a roofline from a data sheet. With a
/// roofline it also lists the model's einsums, shows clocks and power caps, energy by the kind of
/// attention, and how many more machines a breaker bears. All energies are modelled, not measured.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The cost model
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Sequences that decode, with so many positions before them (may be given several times)
    #[arg(long, value_name = "SEQS:CONTEXT")]
    decode: Vec<Many>,

    /// A part of a prompt, behind so many positions (may be given several times)
    #[arg(long, value_name = "TOKENS:CONTEXT")]
    prefill: Vec<Many>,

    /// List the einsums of a roofline's model, with what they cost in this step
    #[arg(long)]
    einsums: bool,

    /// Time and energy of this step at locked clocks, and under power caps
    #[arg(long)]
    clocks: bool,

    /// Energy of a decoded token over contexts: every head its own KV, as the model is, and a window
    #[arg(long, value_name = "WINDOW")]
    attention: Option<usize>,

    /// Machines behind a breaker that bears so many by nameplate: how many more it bears
    #[arg(long, value_name = "MACHINES")]
    oversubscribe: Option<u32>,

    /// Write one JSON object
    #[arg(long)]
    json: bool,
}

/// Two numbers with a colon between them.
#[derive(Debug, Clone, Copy)]
struct Many {
    count: u32,
    context: u32,
}

impl FromStr for Many {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let (count, context) = s.split_once(':').unwrap_or((s, "0"));
        let number = |n: &str| n.parse().map_err(|_| format!("{n:?} is no whole number"));
        let many = Self { count: number(count)?, context: number(context)? };
        if many.count > 1 << 20 {
            return Err(format!("{} is more than a step holds", many.count));
        }
        Ok(many)
    }
}

#[derive(Debug, Serialize)]
struct Output {
    source: String,
    step: Option<Step>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    einsums: Vec<Product>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    clocks: Vec<Clock>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    attention: Vec<ByContext>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    oversubscription: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Step {
    tokens: u64,
    #[serde(flatten)]
    price: StepPrice,
    #[serde(skip_serializing_if = "Option::is_none")]
    flops: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Product {
    name: &'static str,
    equation: &'static str,
    count: u32,
    flops: f64,
    weights_read: f64,
    kv_values_read: f64,
}

#[derive(Debug, Serialize)]
struct Clock {
    what: String,
    clock: f64,
    ms: f64,
    watts: f64,
    joules: f64,
}

#[derive(Debug, Serialize)]
struct ByContext {
    attention: &'static str,
    context: u32,
    kv_bytes: f64,
    joules_per_token: f64,
    ms: f64,
}

#[derive(Debug, Serialize)]
struct Row {
    machines: u32,
    /// Of the breaker's limit.
    peak: f64,
    mean: f64,
    above: f64,
    slowdown: f64,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let text = std::fs::read_to_string(&args.file)
        .with_context(|| args.file.display().to_string())?;
    let shown = args.file.display();
    let file: CostFile =
        toml::from_str(&text).map_err(|e| unusable(format!("{shown}: {}", e.message())))?;
    let model = file.build().map_err(|e| unusable(format!("{shown}: {e}")))?;
    let shape = shape(&args);
    let spec = match &file.model {
        CostSpec::Roofline(spec) => Some(&**spec),
        _ => None,
    };
    let wants = args.einsums || args.clocks || args.attention.is_some() || args.oversubscribe.is_some();
    let roofline = match spec {
        Some(spec) => Some((spec, spec.build().map_err(unusable)?)),
        None if wants => {
            return Err(unusable(format!("{shown} is no roofline, and only that knows its model")));
        }
        None => None,
    };
    let step = (!shape.seqs.is_empty()).then(|| Step {
        tokens: shape.totals().tokens,
        price: model.price(&shape),
        flops: roofline.as_ref().map(|(_, r)| step_flops(r.einsums(), &shape)),
    });
    let mut output = Output {
        source: file.source,
        step,
        einsums: Vec::new(),
        clocks: Vec::new(),
        attention: Vec::new(),
        oversubscription: Vec::new(),
    };
    if let Some((spec, roofline)) = &roofline {
        if args.einsums {
            output.einsums = products(roofline, &shape);
        }
        if args.clocks {
            output.clocks = clocks(roofline, &shape);
        }
        if let Some(window) = args.attention {
            let batch = args.decode.first().map_or(1, |d| d.count.max(1));
            output.attention = attention(spec, window, batch)?;
        }
        if let Some(machines) = args.oversubscribe {
            output.oversubscription = oversubscription(spec, roofline, machines.clamp(1, 1000));
        }
    }
    let mut out = std::io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &output)?;
        writeln!(out)?;
    } else {
        write!(out, "{}", text_of(&output))?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn shape(args: &Args) -> StepShape {
    let mut shape = StepShape::default();
    for d in &args.decode {
        let seq = SeqShape { new_tokens: 1, context: d.context, phase: Phase::Decode };
        shape.seqs.extend(std::iter::repeat_n(seq, d.count as usize));
    }
    for p in &args.prefill {
        let (new_tokens, context) = (p.count, p.context);
        shape.seqs.push(SeqShape { new_tokens, context, phase: Phase::Prefill });
    }
    shape.sampled = shape.seqs.len() as u32;
    shape
}

fn products(roofline: &Roofline, shape: &StepShape) -> Vec<Product> {
    let product = |e: &dunlin_costmodel::einsum::Einsum| {
        let (units, count) = (e.unit.of(shape), f64::from(e.count));
        Product {
            name: e.name,
            equation: e.equation,
            count: e.count,
            flops: count * e.flops * units.units,
            weights_read: count * e.weights * units.reads,
            kv_values_read: count * e.kv_values * units.positions,
        }
    };
    roofline.einsums().iter().map(product).collect()
}

/// The step at clocks that are locked, and under caps.
fn clocks(roofline: &Roofline, shape: &StepShape) -> Vec<Clock> {
    let (work, power) = (work(roofline, shape), roofline.power());
    let row = |what: String, at: dunlin_costmodel::AtClock| Clock {
        what,
        clock: at.clock,
        ms: at.time_ns / 1e6,
        watts: at.watts,
        joules: at.joules(),
    };
    let locked = [1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4];
    let most = power.idle_watts + power.active_watts + power.compute_watts + power.memory_watts;
    let locked = locked.map(|c| row(format!("clock {:.0}%", c * 100.0), power.locked(&work, c)));
    let caps = [1.0, 0.8, 0.6, 0.5, 0.4].map(|share| {
        row(format!("cap {:.0} W", most * share), power.capped(&work, most * share))
    });
    locked.into_iter().chain(caps).collect()
}

fn work(roofline: &Roofline, shape: &StepShape) -> Work {
    let (compute_ns, memory_ns) = roofline.busy_ns(shape);
    Work { compute_ns, memory_ns }
}

/// Decoding with the model's attention changed: what a token reads and takes.
fn attention(spec: &RooflineSpec, window: usize, batch: u32) -> anyhow::Result<Vec<ByContext>> {
    let own = &spec.model;
    let kinds = [
        ("KV for every head", own.n_heads, None),
        ("as the model is", own.n_kv_heads, own.window),
        ("a window", own.n_kv_heads, Some(window)),
    ];
    let mut rows = Vec::new();
    for (name, n_kv_heads, window) in kinds {
        let mut changed = spec.clone();
        changed.model.n_kv_heads = n_kv_heads;
        changed.model.window = window;
        if name == "a window" {
            changed.model.global_every = 0;
        }
        let roofline = changed.build().map_err(unusable)?;
        for context in [1024, 4096, 16_384, 65_536] {
            let seq = SeqShape { new_tokens: 1, context: context - 1, phase: Phase::Decode };
            let shape =
                StepShape { seqs: vec![seq; batch as usize], sampled: batch, experts: None };
            let price = roofline.price(&shape);
            rows.push(ByContext {
                attention: name,
                context,
                kv_bytes: step_kv_values(roofline.einsums(), &shape) * spec.kv_bytes
                    / f64::from(batch),
                joules_per_token: price.energy_uj as f64 / 1e6 / f64::from(batch),
                ms: price.time_ns as f64 / 1e6,
            });
        }
    }
    Ok(rows)
}

/// A row of machines that fill prompts a ninth of the time and decode the rest, clocks lowered for
/// half of them at 80% of the limit and for all at 90%.
fn oversubscription(spec: &RooflineSpec, roofline: &Roofline, provisioned: u32) -> Vec<Row> {
    let row = PowerRow {
        power: *roofline.power(),
        nameplate_watts: spec.hardware.peak_watts.max(1.0),
        provisioned,
        prefill_s: 0.5,
        decode_s: 4.0,
        decode_compute: 0.1,
        low_priority: 0.5,
        first: (0.8, 0.7),
        second: (0.9, 0.5),
        tick_s: 0.1,
    };
    let run = |percent: u32| {
        let machines = provisioned + provisioned * percent / 100;
        let r = row.run(machines, 600.0, 1);
        Row { machines, peak: r.peak, mean: r.mean, above: r.above, slowdown: r.slowdown }
    };
    [0, 10, 20, 30, 40, 50, 75, 100, 150].map(run).into()
}

/// The same for people.
fn text_of(o: &Output) -> String {
    use std::fmt::Write as _;
    let mut t = String::new();
    if let Some(s) = &o.step {
        let _ = writeln!(
            t,
            "{} tokens: {:.3} ms, {:.3} J modelled, {:?} bound{}",
            s.tokens,
            s.price.time_ns as f64 / 1e6,
            s.price.energy_uj as f64 / 1e6,
            s.price.bound,
            if s.price.extrapolated { ", beyond what the model was made from" } else { "" }
        );
    }
    for e in &o.einsums {
        let _ = writeln!(
            t,
            "{:>14} {:<16} x{:<4} {:>12.4e} operations {:>12.4e} weights {:>12.4e} KV values",
            e.name, e.equation, e.count, e.flops, e.weights_read, e.kv_values_read
        );
    }
    if !o.clocks.is_empty() {
        t.push_str("one device, its kernels alone (without collectives, overhead and the host):\n");
    }
    for c in &o.clocks {
        let _ = writeln!(
            t,
            "{:>12}: {:>9.3} ms at {:>3.0}% of the clock, {:>5.0} W, {:>8.3} J",
            c.what,
            c.ms,
            c.clock * 100.0,
            c.watts,
            c.joules
        );
    }
    for a in &o.attention {
        let _ = writeln!(
            t,
            "{:>18}, context {:>6}: {:>9.2} MB of KV, {:>8.3} ms a step, {:>8.4} J a token",
            a.attention,
            a.context,
            a.kv_bytes / 1e6,
            a.ms,
            a.joules_per_token
        );
    }
    for r in &o.oversubscription {
        let _ = writeln!(
            t,
            "{:>5} machines: peak {:>5.1}% of the limit, mean {:>5.1}%, above it {:.2}% of the time, \
             {:.2}% slower",
            r.machines,
            r.peak * 100.0,
            r.mean * 100.0,
            r.above * 100.0,
            r.slowdown * 100.0
        );
    }
    t
}

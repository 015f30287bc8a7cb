//! `dunlin inspect`: what is in a model file.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use dunlin_checkpoint::{Inspection, MemoryEstimate, ModelFile};
use dunlin_spec::KvType;
use serde::Serialize;

use super::pull;

/// Print what is in a model file: sizes, types, memory needed, metadata and tensors
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A GGUF file, a folder in Hugging Face's layout, or what `dunlin pull` accepts [default:
    /// SmolLM2-135M-Instruct, fetched on first use]
    #[arg(short, long, env = "DUNLIN_MODEL", value_name = "MODEL")]
    model: Option<PathBuf>,

    /// The context that the memory is estimated for; 0 is the model's own [default: the same, but at
    /// most 8192]
    #[arg(short, long, alias = "ctx-size", env = "DUNLIN_CONTEXT", value_name = "TOKENS")]
    context: Option<usize>,

    /// How keys and values are stored: f32, f16 or int8
    #[arg(long, env = "DUNLIN_KV_TYPE", default_value_t, value_name = "TYPE")]
    kv_type: KvType,

    /// Write one JSON object
    #[arg(long)]
    json: bool,
}

/// What is printed.
#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    facts: Inspection,
    memory: Memory,
}

#[derive(Serialize)]
struct Memory {
    kv_type: String,
    #[serde(flatten)]
    parts: MemoryEstimate,
    total: u64,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let path = pull::resolve(args.model.as_deref())?;
    let file = ModelFile::open(&path)
        .with_context(|| format!("cannot open the model {}", path.display()))?;
    let facts = file.inspect();
    let trained = facts.sizes.context_length;
    let context = match args.context {
        Some(0) => trained,
        Some(context) => context,
        None => trained.min(8192),
    };
    let parts = file.memory_estimate(context, args.kv_type);
    let memory = Memory { kv_type: args.kv_type.to_string(), parts, total: parts.total() };
    let report = Report { facts, memory };
    let mut out = io::BufWriter::new(io::stdout().lock());
    if args.json {
        serde_json::to_writer(&mut out, &report)?;
        writeln!(out)?;
    } else {
        print(&mut out, &report)?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn print(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let facts = &report.facts;
    let mut row = |name: &str, value: String| writeln!(out, "{name:<16} {}", one_line(&value));
    row("file", facts.path.clone())?;
    row("format", facts.format.into())?;
    row("architecture", facts.architecture.clone())?;
    if let Some(name) = &facts.name {
        row("name", name.clone())?;
    }
    row("layers", layers(facts))?;
    row("widths", widths(facts))?;
    row("vocabulary", grouped(facts.sizes.vocab_size as u64))?;
    row("context", format!("{} tokens", grouped(facts.sizes.context_length as u64)))?;
    row("parameters", parameters(facts))?;
    row("weights", weights(facts))?;
    let kv = facts.kv_bytes_per_token;
    let kv = format!(
        "{} bytes a token in f32, {} in f16, {} in int8",
        grouped(kv.f32),
        grouped(kv.f16),
        grouped(kv.int8)
    );
    row("KV", kv)?;
    row("memory", memory(&report.memory))?;

    writeln!(
        out,
        "\n{:<8} {:>8} {:>15} {:>12} {:>7}",
        "type", "tensors", "weights", "size", "share"
    )?;
    for t in &facts.types {
        let share = 100.0 * t.bytes as f64 / (facts.tensor_bytes as f64).max(1.0);
        let (weights, size) = (grouped(t.parameters), mib(t.bytes));
        writeln!(out, "{:<8} {:>8} {weights:>15} {size:>12} {share:>6.1}%", t.ty, t.tensors)?;
    }
    writeln!(out, "\nmetadata")?;
    for entry in &facts.metadata {
        writeln!(out, "  {} = {}", one_line(&entry.key), one_line(&entry.value))?;
    }
    writeln!(out, "\ntensors")?;
    for t in &facts.tensors {
        let shape: Vec<String> = t.shape.iter().map(usize::to_string).collect();
        let (name, shape) = (one_line(&t.name), shape.join(" x "));
        writeln!(out, "  {name:<36} {:<8} {shape:>16} {:>12}", t.ty, mib(t.bytes))?;
    }
    Ok(())
}

fn layers(facts: &Inspection) -> String {
    let s = &facts.sizes;
    let windowed = match s.windowed_layers {
        0 => String::new(),
        n => format!(", {n} of them with a sliding window"),
    };
    let experts = match s.n_experts {
        0 => String::new(),
        n => format!(", {n} experts of which a token uses {}", s.n_experts_used),
    };
    format!("{}{windowed}{experts}", s.n_layers)
}

fn widths(facts: &Inspection) -> String {
    let s = &facts.sizes;
    format!(
        "{} model, {} feed-forward, {} heads of {}, {} KV heads",
        s.d_model, s.d_ff, s.n_heads, s.head_dim, s.n_kv_heads
    )
}

fn parameters(facts: &Inspection) -> String {
    let head = if facts.sizes.tied_head { "; the head is the embedding" } else { "" };
    let active = match facts.active_parameters {
        active if active < facts.parameters && facts.sizes.n_experts > 0 => {
            format!(", {} active", grouped(active))
        }
        _ => String::new(),
    };
    format!("{}{active}{head}", grouped(facts.parameters))
}

fn weights(facts: &Inspection) -> String {
    format!(
        "{}, {:.2} bits each; a decoded token reads {}",
        mib(facts.tensor_bytes),
        facts.bits_per_weight,
        mib(facts.decode_bytes)
    )
}

fn memory(memory: &Memory) -> String {
    let m = &memory.parts;
    format!(
        "about {} at a context of {}: {} weights, {} {} KV, {} working space",
        mib(memory.total),
        grouped(m.context as u64),
        mib(m.weights),
        mib(m.kv),
        memory.kv_type,
        mib(m.working)
    )
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / (1u64 << 20) as f64)
}

/// The text with its control characters escaped: what a file holds must not move the cursor.
fn one_line(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}

/// Digits in groups of three.
fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_in_threes() {
        let shown = [0, 7, 999, 1_000, 49_152, 1_234_567].map(grouped);
        assert_eq!(shown, ["0", "7", "999", "1,000", "49,152", "1,234,567"]);
    }

    #[test]
    fn control_characters_are_shown_and_not_sent() {
        assert_eq!(one_line("ü \"a\"\n\u{1b}[2J"), "ü \"a\"\\n\\u{1b}[2J");
    }
}

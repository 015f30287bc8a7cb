//! The benchmark's result, as JSON and as a table.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{
    child::{Footprint, Startup},
    limits::{Limit, Speeds, Work},
    machine::Machine,
    peers::PeerReport,
    row::Row,
    setup::PEERS,
    summary::{median, range},
};
use dunlin_spec::ActivationPrecision;
use dunlin_tensor::Screening;

/// What was run, and on what.
#[derive(Debug, Clone, Serialize)]
pub struct Setting {
    /// The model's file.
    pub model: String,
    /// Its size.
    pub file_bytes: u64,
    /// Threads of every row.
    pub threads: usize,
    /// The precision of activations.
    pub activations: String,
    /// How keys and values are stored; the peers' are f16.
    pub kv_type: String,
    /// This program's version.
    pub version: &'static str,
    /// Bytes of weights that a token uses: what decode reads for each.
    pub weight_bytes_per_step: f64,
    /// Bytes of keys and values that a token adds.
    pub kv_bytes_per_token: f64,
}

/// The whole result.
#[derive(Debug, Serialize)]
pub struct Report {
    /// What was run.
    pub setting: Setting,
    /// Tokens a second of each repetition.
    pub rows: BTreeMap<String, Vec<f64>>,
    /// What the machine can do.
    pub machine: Machine,
    /// Tokens a second that the machine allows.
    pub limits: BTreeMap<String, f64>,
    /// What sets each limit: bandwidth or arithmetic.
    pub bounds: BTreeMap<String, &'static str>,
    /// The median's share of the limit.
    pub share: BTreeMap<String, f64>,
    /// Each peer's measurements.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub peers: BTreeMap<&'static str, PeerReport>,
    /// Peers that could not be run at all, and why.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub peer_errors: BTreeMap<&'static str, String>,
    /// The fastest peer of each row.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub best_peer: BTreeMap<String, BestPeer>,
    /// Our median over the fastest peer's.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub ratios: BTreeMap<String, f64>,
    /// How the best tokens were looked for, where the head's high bits were asked first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub screening: Option<HeadScreening>,
    /// Starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub startup: Option<Startup>,
    /// Peak memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Footprint>,
    /// The order in which the rows were asked for.
    #[serde(skip)]
    order: Vec<Row>,
}

/// Panels of the head, counted once for each step that wanted best tokens.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct HeadScreening {
    /// Panels whose high bits were multiplied.
    pub screened: u64,
    /// Those among them whose low bits were needed.
    pub exact: u64,
}

impl From<Screening> for HeadScreening {
    fn from(Screening { screened, exact }: Screening) -> Self {
        Self { screened, exact }
    }
}

/// The fastest peer of a row.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BestPeer {
    /// Which.
    pub peer: &'static str,
    /// With which attention.
    pub attention: &'static str,
    /// Its median.
    pub tokens_per_second: f64,
}

impl Report {
    /// Puts rows beside limits and peers.
    pub fn new(
        setting: Setting,
        rows: Vec<(Row, Vec<f64>)>,
        machine: Machine,
        work: &Work,
        activations: ActivationPrecision,
        kv_bytes_per_value: f64,
        peers: BTreeMap<&'static str, PeerReport>,
    ) -> Self {
        let speeds = Speeds { read: machine.read_bytes_per_second(), rates: machine.rates() };
        let mut report = Self {
            setting,
            rows: BTreeMap::new(),
            machine,
            limits: BTreeMap::new(),
            bounds: BTreeMap::new(),
            share: BTreeMap::new(),
            peers,
            peer_errors: BTreeMap::new(),
            best_peer: BTreeMap::new(),
            ratios: BTreeMap::new(),
            screening: None,
            startup: None,
            memory: None,
            order: rows.iter().map(|(row, _)| *row).collect(),
        };
        for (row, speeds_of_row) in rows {
            let limit = work.limit(row, activations, kv_bytes_per_value, speeds);
            report.add(row, speeds_of_row, limit);
        }
        report
    }

    fn add(&mut self, row: Row, values: Vec<f64>, limit: Option<Limit>) {
        let name = row.to_string();
        let ours = median(&values);
        if let Some(limit) = limit {
            self.limits.insert(name.clone(), limit.tokens_per_second);
            self.bounds.insert(name.clone(), limit.bound.name());
            if let Some(ours) = ours {
                self.share.insert(name.clone(), ours / limit.tokens_per_second);
            }
        }
        let best = self.peers.iter().filter_map(|(&peer, report)| {
            let (tokens_per_second, attention) = report.best(row)?;
            Some(BestPeer { peer, attention, tokens_per_second })
        });
        let best =
            best.reduce(|a, b| if b.tokens_per_second > a.tokens_per_second { b } else { a });
        if let Some(best) = best {
            if let Some(ours) = ours {
                self.ratios.insert(name.clone(), ours / best.tokens_per_second);
            }
            self.best_peer.insert(name.clone(), best);
        }
        self.rows.insert(name, values);
    }

    /// The table that people read.
    pub fn table(&self) -> String {
        let mut text = self.heading();
        let mut heads = vec!["row", "tokens/s", "(lowest-highest)", "limit", "share"];
        let peers: Vec<_> = PEERS.iter().filter(|p| self.peers.contains_key(p.name)).collect();
        heads.extend(peers.iter().map(|p| p.title));
        if !peers.is_empty() {
            heads.push("ratio");
        }
        let mut lines = vec![heads.into_iter().map(str::to_owned).collect::<Vec<_>>()];
        for row in &self.order {
            let name = row.to_string();
            let values = self.rows.get(&name).map_or(&[][..], Vec::as_slice);
            let number = |v: Option<f64>| v.map_or("-".into(), |v| format!("{v:.1}"));
            let mut line = vec![name.clone(), number(median(values))];
            line.push(range(values).map_or("-".into(), |(l, h)| format!("({l:.1}-{h:.1})")));
            line.push(number(self.limits.get(&name).copied()));
            line.push(self.share.get(&name).map_or("-".into(), |s| format!("{:.0}%", s * 100.0)));
            for peer in &peers {
                let best = self.peers.get(peer.name).and_then(|p| p.best(*row));
                line.push(best.map_or("-".into(), |(v, how)| format!("{v:.1} {how}")));
            }
            if !peers.is_empty() {
                let ratio = self.ratios.get(&name);
                line.push(ratio.map_or("-".into(), |r| format!("{r:.2}")));
            }
            lines.push(line);
        }
        text += &aligned(&lines);
        text += &self.process_lines();
        text
    }

    fn heading(&self) -> String {
        let (s, m) = (&self.setting, &self.machine);
        let gb = |readings: &BTreeMap<usize, Vec<f64>>, threads: usize| {
            let value = readings.get(&threads).and_then(|v| median(v));
            value.map_or("-".into(), |v| format!("{v:.1}"))
        };
        let mut text = format!(
            "{}: {} threads, {} activations, {} KV\n{}, {}\n",
            s.model,
            s.threads,
            s.activations,
            s.kv_type,
            m.cpu.as_deref().unwrap_or("unknown CPU"),
            m.isa
        );
        for (threads, a) in &m.arithmetic {
            let giga = |v: Option<f64>| v.map_or("-".into(), |v| format!("{v:.0}"));
            text += &format!(
                "{threads} thread{}: read {} GB/s ({} without huge pages); f32 {} GFLOP/s; int8 {} / \
                 {} / {} GOP/s (A / B / dot)\n",
                if *threads == 1 { "" } else { "s" },
                gb(&m.read_huge_gbps, *threads),
                gb(&m.read_plain_gbps, *threads),
                giga(a.f32_fma_gops),
                giga(a.int8_a_gops),
                giga(a.int8_b_gops),
                giga(a.int8_dot_gops),
            );
        }
        text + "\n"
    }

    fn process_lines(&self) -> String {
        let mib = |bytes: f64| bytes / (1 << 20) as f64;
        let mut text = String::new();
        if let Some(HeadScreening { screened, exact }) = self.screening.filter(|s| s.screened > 0) {
            let share = 100.0 * exact as f64 / screened as f64;
            text += &format!("\nlow bits of the head read in greedy steps: {share:.2}%\n");
        }
        if let Some(startup) = &self.startup {
            text += &format!("\nstart to first prefill: {:.1} ms\n", startup.median_ms);
        }
        if let Some(m) = &self.memory {
            text += &format!(
                "peak memory at context 1024: {:.1} MiB = file {:.1} + KV {:.1} + {:.1} MiB\n",
                mib(m.peak_rss_bytes as f64),
                mib(m.file_bytes as f64),
                mib(m.kv_bytes as f64),
                mib(m.over_bytes as f64)
            );
        }
        for peer in PEERS.iter() {
            let Some(report) = self.peers.get(peer.name) else { continue };
            text += &format!(
                "{}: {}, loads in {:.0} ms",
                peer.title,
                report.version,
                report.load_s * 1e3
            );
            if let Some(peak) = report.peak_rss_bytes {
                text += &format!(", peak memory at context 1024 {:.1} MiB", mib(peak as f64));
            }
            text.push('\n');
        }
        for (peer, error) in &self.peer_errors {
            text += &format!("{peer}: not measured: {error}\n");
        }
        text
    }
}

/// Columns of equal width: the first to the left, the others to the right.
fn aligned(lines: &[Vec<String>]) -> String {
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| lines.iter().filter_map(|l| l.get(c)).map(|t| t.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|c| width(c).unwrap_or(0)).collect();
    let mut text = String::new();
    for line in lines {
        let cells = line.iter().zip(&widths).enumerate().map(|(i, (cell, width))| {
            if i == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let line = |cells: &[&str]| cells.iter().map(|c| c.to_string()).collect::<Vec<_>>();
        let text = aligned(&[line(&["row", "x"]), line(&["b16", "100.0"]), line(&["tg", "1"])]);
        assert_eq!(text, "row      x\nb16  100.0\ntg       1\n");
    }
}

//! Peers as processes that run one row when they are told to.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    row::Row,
    setup::{Environment, PeerPackage, environment},
    summary::median,
};
use crate::note;

/// How a peer computes attention; both are tried, and the faster one counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Attention {
    /// Scores, softmax and values as separate products.
    Plain,
    /// Flash attention.
    Flash,
}

impl Attention {
    /// Both.
    pub const ALL: [Attention; 2] = [Attention::Plain, Attention::Flash];

    /// The name in the report.
    pub fn name(self) -> &'static str {
        match self {
            Attention::Plain => "plain",
            Attention::Flash => "flash",
        }
    }
}

/// Many requests alike.
#[derive(Debug, Clone, Copy)]
pub struct Requests {
    /// How many.
    pub requests: usize,
    /// Tokens that all begin with.
    pub shared: usize,
    /// Tokens of each prompt after those.
    pub prompt: usize,
    /// Tokens generated for each.
    pub output: usize,
}

/// A peer and what it has measured.
pub struct Peer {
    package: &'static PeerPackage,
    environment: Environment,
    model: PathBuf,
    threads: usize,
    process: Option<Process>,
    /// Rows that ended the process or were refused: not tried again.
    broken: BTreeSet<(Row, Attention)>,
    report: PeerReport,
}

/// What a peer has measured, as it goes into the report.
#[derive(Debug, Clone, Default, Serialize)]
pub struct PeerReport {
    /// Package and version.
    pub version: String,
    /// The instruction sets that it was compiled for, in its own words.
    pub system_info: String,
    /// Seconds to load the model and make a context of 1024 tokens.
    pub load_s: f64,
    /// Peak memory with a context of 1024 tokens, filled; the Python process included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_rss_bytes: Option<u64>,
    /// The part of it that the bare Python process has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bare_rss_bytes: Option<u64>,
    /// Tokens a second of each repetition, by row and attention.
    pub rows: BTreeMap<String, BTreeMap<&'static str, Vec<f64>>>,
    /// What went wrong, by row and attention.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub failures: BTreeMap<String, BTreeMap<&'static str, String>>,
}

/// The answer to "load".
#[derive(Debug, Deserialize)]
struct Loaded {
    load_s: f64,
    system_info: String,
    version: String,
}

impl Peer {
    /// Starts a peer and loads the model, after making its environment where it is missing.
    ///
    /// # Errors
    /// An environment that cannot be made, or a model that the peer refuses.
    pub fn start(
        package: &'static PeerPackage,
        model: &Path,
        threads: usize,
    ) -> anyhow::Result<Self> {
        let mut peer = Self {
            package,
            environment: environment(package)?,
            model: model.to_owned(),
            threads,
            process: None,
            broken: BTreeSet::new(),
            report: PeerReport::default(),
        };
        peer.process()?;
        Ok(peer)
    }

    /// The package.
    pub fn package(&self) -> &'static PeerPackage {
        self.package
    }

    /// Runs a row once and keeps its speed. A row that the peer refuses, or that ends it, is noted
    /// and not tried again.
    ///
    /// # Errors
    /// A peer that cannot be started again.
    pub fn run(&mut self, row: Row, attention: Attention) -> anyhow::Result<()> {
        if self.broken.contains(&(row, attention)) {
            return Ok(());
        }
        let command = json!({
            "cmd": "run", "row": row.to_string(), "flash_attention": attention == Attention::Flash,
        });
        match self.process()?.ask(&command) {
            Ok(answer) => {
                let speed =
                    answer["tokens_per_second"].as_f64().context("an answer has no speed")?;
                let rows = self.report.rows.entry(row.to_string()).or_default();
                rows.entry(attention.name()).or_default().push(speed);
            }
            Err(failure) => {
                note!(
                    "{}: {row} with {} attention: {failure}",
                    self.package.title,
                    attention.name()
                );
                if failure.ended {
                    self.process = None;
                }
                self.broken.insert((row, attention));
                let failures = self.report.failures.entry(row.to_string()).or_default();
                failures.insert(attention.name(), failure.to_string());
            }
        }
        Ok(())
    }

    /// Measures the peak memory with a context of this size, in a process of its own.
    ///
    /// # Errors
    /// A peer that cannot be started.
    pub fn measure_footprint(&mut self, context: usize) -> anyhow::Result<()> {
        let mut process = Process::start(self.package, &self.environment)?;
        process.load(&self.model, self.threads)?;
        let answer = process.ask(&json!({"cmd": "footprint", "context": context}))?;
        self.report.peak_rss_bytes = answer["peak_rss_bytes"].as_u64();
        self.report.bare_rss_bytes = answer["bare_rss_bytes"].as_u64();
        Ok(())
    }

    /// Answers many requests, so many at a time; the seconds that it took, or why it did not.
    ///
    /// # Errors
    /// A peer that cannot be started again.
    pub fn workload(
        &mut self,
        load: &Requests,
        batch: usize,
        attention: Attention,
    ) -> anyhow::Result<Result<f64, String>> {
        let command = json!({
            "cmd": "workload", "requests": load.requests, "shared": load.shared,
            "prompt": load.prompt, "output": load.output, "batch": batch,
            "flash_attention": attention == Attention::Flash,
        });
        match self.process()?.ask(&command) {
            Ok(answer) => Ok(Ok(answer["seconds"].as_f64().context("an answer has no time")?)),
            Err(failure) => {
                if failure.ended {
                    self.process = None;
                }
                Ok(Err(failure.to_string()))
            }
        }
    }

    /// Ends the process; what was measured.
    pub fn finish(mut self) -> PeerReport {
        if let Some(process) = self.process.take() {
            process.quit();
        }
        self.report
    }

    /// The process with the model loaded, started where there is none.
    fn process(&mut self) -> anyhow::Result<&mut Process> {
        if self.process.is_none() {
            let mut process = Process::start(self.package, &self.environment)?;
            let loaded = process.load(&self.model, self.threads)?;
            if self.report.version.is_empty() {
                self.report.load_s = loaded.load_s;
                self.report.version = loaded.version;
                self.report.system_info = loaded.system_info;
            }
            self.process = Some(process);
        }
        self.process.as_mut().context("the peer has no process")
    }
}

impl PeerReport {
    /// The better attention's median for a row.
    pub fn best(&self, row: Row) -> Option<(f64, &'static str)> {
        let settings = self.rows.get(&row.to_string())?;
        let medians = settings.iter().filter_map(|(name, v)| Some((median(v)?, *name)));
        medians.reduce(|a, b| if b.0 > a.0 { b } else { a })
    }
}

/// A running `worker.py`.
struct Process {
    title: &'static str,
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

/// A command that a peer did not carry out.
#[derive(Debug)]
struct Failure {
    problem: String,
    /// Whether the process is gone.
    ended: bool,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.problem)
    }
}

impl std::error::Error for Failure {}

impl Process {
    fn start(package: &PeerPackage, environment: &Environment) -> anyhow::Result<Self> {
        let mut child = Command::new(&environment.python)
            .arg(&environment.worker)
            .args(["--peer", package.name])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .with_context(|| format!("cannot run {}", environment.python.display()))?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (stdin, stdout) = pipes.context("the peer's process has no pipes")?;
        Ok(Self { title: package.title, child, stdin, stdout: BufReader::new(stdout) })
    }

    fn load(&mut self, model: &Path, threads: usize) -> anyhow::Result<Loaded> {
        let model = model.to_str().context("the model's path is not UTF-8")?;
        let command = json!({"cmd": "load", "model": model, "threads": threads});
        let answer = self.ask(&command).with_context(|| self.title)?;
        serde_json::from_value(answer).context("an answer that cannot be understood")
    }

    /// Sends a command and waits for its answer.
    fn ask(&mut self, command: &Value) -> Result<Value, Failure> {
        let mut line = String::new();
        let read = writeln!(self.stdin, "{command}")
            .and_then(|()| self.stdin.flush())
            .and_then(|()| self.stdout.read_line(&mut line));
        if !matches!(read, Ok(n) if n > 0) {
            let status = self.child.wait().map_or("unknown".into(), |s| s.to_string());
            return Err(Failure { problem: format!("its process ended ({status})"), ended: true });
        }
        let refused = |problem: String| Failure { problem, ended: false };
        let answer: Value = serde_json::from_str(&line)
            .map_err(|e| refused(format!("an answer that is no JSON: {e}")))?;
        if answer["ok"] == true {
            Ok(answer)
        } else {
            Err(refused(answer["error"].as_str().unwrap_or("refused").to_owned()))
        }
    }

    fn quit(mut self) {
        // A peer that is gone already has nothing to be told.
        let _ = writeln!(self.stdin, "{}", json!({"cmd": "quit"}));
        let Self { mut child, stdin, .. } = self;
        drop(stdin);
        let _ = child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(script: &str) -> Process {
        let mut child = Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Process { title: "test", child, stdin, stdout: BufReader::new(stdout) }
    }

    #[test]
    fn answers_refusals_and_ends_are_told_apart() {
        let mut p = process(
            r#"read a; echo '{"ok": true, "x": 1}'; read b; echo '{"ok": false, "error": "no"}'
               read c; echo 'noise'; read d; exit 3"#,
        );
        let command = json!({"cmd": "run"});
        assert_eq!(p.ask(&command).unwrap()["x"], 1);
        let refused = p.ask(&command).unwrap_err();
        assert!(!refused.ended && refused.problem == "no", "{refused}");
        assert!(!p.ask(&command).unwrap_err().ended);
        let ended = p.ask(&command).unwrap_err();
        assert!(ended.ended && ended.problem.contains('3'), "{ended}");
        assert!(p.ask(&command).unwrap_err().ended, "and again");
    }

    #[test]
    fn the_faster_attention_counts() {
        let row: Row = "pp512".parse().unwrap();
        let mut report = PeerReport::default();
        assert_eq!(report.best(row), None);
        let settings = BTreeMap::from([("flash", vec![1.0, 9.0, 2.0]), ("plain", vec![3.0, 3.0])]);
        report.rows.insert(row.to_string(), settings);
        assert_eq!(report.best(row), Some((3.0, "plain")));
    }
}

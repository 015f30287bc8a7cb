//! Running the binary away from the user's settings and caches.

use std::{
    io::Write as _,
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
};

use serde_json::Value;
use tempfile::TempDir;

/// The binary with a home of its own and a model.
pub struct Dunlin {
    home: TempDir,
    /// Where packs are kept.
    cache: PathBuf,
    pub model: PathBuf,
}

/// What a run wrote, and its exit code.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Dunlin {
    /// With a tiny random model.
    pub fn tiny() -> Self {
        let home = tempfile::tempdir().unwrap();
        let model = dunlin_testkit::tiny::named("llama-q4_1").write_gguf(home.path());
        let cache = home.path().join("cache");
        Self { home, cache, model }
    }

    /// With a real model, whose pack is kept for the next run of the tests.
    pub fn with_model(model: PathBuf) -> Self {
        let cache = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("real-models");
        Self { home: tempfile::tempdir().unwrap(), cache, model }
    }

    /// A file in the home.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.home.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    /// Whether anything was packed.
    pub fn has_packs(&self) -> bool {
        !self.packs().is_empty()
    }

    /// The packs that were made.
    pub fn packs(&self) -> Vec<PathBuf> {
        let packs = std::fs::read_dir(self.cache.join("dunlin").join("packs"));
        packs.into_iter().flatten().map(|entry| entry.unwrap().path()).collect()
    }

    /// A command with nothing of the user's environment in it.
    pub fn command(&self, subcommand: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dunlin"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("DUNLIN_") {
                command.env_remove(name);
            }
        }
        command
            .env("HOME", self.home.path())
            .env("XDG_CACHE_HOME", &self.cache)
            .env_remove("XDG_STATE_HOME")
            .env("DUNLIN_THREADS", "2")
            .arg(subcommand)
            .arg("-m")
            .arg(&self.model);
        command
    }

    /// `dunlin run` with these arguments and nothing on standard input.
    pub fn run(&self, args: &[&str]) -> Ran {
        self.feed("run", args, b"")
    }

    /// Any command, with standard input.
    pub fn feed(&self, subcommand: &str, args: &[&str], input: &[u8]) -> Ran {
        let mut command = self.command(subcommand);
        let mut child = spawn(command.args(args));
        let mut stdin = child.stdin.take().unwrap();
        // One that refuses its arguments does not read.
        let _ = stdin.write_all(input);
        drop(stdin);
        child.wait_with_output().unwrap().into()
    }

    /// `dunlin run --json` with these arguments, parsed.
    pub fn json(&self, args: &[&str]) -> Value {
        let ran = self.run(&[&["--json"], args].concat());
        assert_eq!(ran.code, Some(0), "{args:?}: {}", ran.err);
        serde_json::from_str(&ran.out).unwrap_or_else(|e| panic!("{e}: {}", ran.out))
    }

    /// `dunlin run --batch` of these lines, parsed; all must have run.
    pub fn batch(&self, args: &[&str], lines: &[Value]) -> Vec<Value> {
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let ran = self.feed("run", &[&["--batch", "-"], args].concat(), text.as_bytes());
        assert_eq!(ran.code, Some(0), "{args:?}: {}", ran.err);
        ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// Starts a command with all three streams piped.
pub fn spawn(command: &mut Command) -> Child {
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    piped.spawn().unwrap()
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// A field's numbers.
pub fn numbers(report: &Value, field: &str) -> Vec<u32> {
    let array = report[field].as_array().unwrap_or_else(|| panic!("{field} in {report}"));
    array.iter().map(|n| u32::try_from(n.as_u64().unwrap()).unwrap()).collect()
}

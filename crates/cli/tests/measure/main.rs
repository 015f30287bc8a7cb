//! `dunlin bench` and `dunlin eval` as a user runs them, on a tiny random model; golden files of
//! real models where this machine has them. Nothing here depends on how fast anything is.

mod bench;
mod eval;
mod planning;

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;
use tempfile::TempDir;

/// The binary with a home of its own and a model.
struct Dunlin {
    home: TempDir,
    cache: PathBuf,
    model: PathBuf,
}

/// What a run wrote, and its exit code.
#[derive(Debug)]
struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Dunlin {
    /// With a tiny random model in Q4_1.
    fn tiny() -> Self {
        let home = tempfile::tempdir().unwrap();
        let model = dunlin_testkit::tiny::named("llama-q4_1").write_gguf(home.path());
        let cache = home.path().join("cache");
        Self { home, cache, model }
    }

    /// With a real model, whose pack is kept for the next run of the tests.
    fn real(model: PathBuf) -> Self {
        let cache = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("real-models");
        Self { home: tempfile::tempdir().unwrap(), cache, model }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    /// Runs a command (its words, then the model, then arguments) with nothing of the user's
    /// environment in it.
    fn run(&self, words: &[&str], args: &[&str]) -> Ran {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dunlin"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("DUNLIN_") {
                command.env_remove(name);
            }
        }
        let output = command
            .env("HOME", self.home.path())
            .env("XDG_CACHE_HOME", &self.cache)
            .env("DUNLIN_THREADS", "2")
            .args(words)
            .arg("-m")
            .arg(&self.model)
            .args(args)
            .output()
            .unwrap();
        Ran {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// The same with `--json`, which must succeed.
    fn json(&self, words: &[&str], args: &[&str]) -> Value {
        let ran = self.run(words, &[args, &["--json"]].concat());
        assert_eq!(ran.code, Some(0), "{words:?} {args:?}: {}", ran.err);
        serde_json::from_str(&ran.out).unwrap_or_else(|e| panic!("{e}: {}", ran.out))
    }
}

/// A path as an argument.
fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

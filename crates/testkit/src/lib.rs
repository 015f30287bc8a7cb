//! What the tests of several crates share: where the workspace is, golden files, real models where
//! this machine has them, tiny models of every architecture, and the oracle in float64.
//!
//! Only tests depend on it, so it panics with a message instead of returning errors. It holds no
//! code that a user of dunlin runs.
#![forbid(unsafe_code)]

pub mod engine;
pub mod golden;
pub mod layers;
pub mod models;
pub mod oracle;
pub mod source;
pub mod tiny;
pub mod toy;

use std::path::{Path, PathBuf};

/// The root of the workspace.
pub fn workspace_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("testkit lies two folders below the root")
        .to_path_buf()
}

/// A file in this crate's `data` folder.
pub fn data_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data").join(name)
}

/// Compares a generated file with the one in the repository; with `DUNLIN_UPDATE` set, writes it.
///
/// # Panics
/// Where they differ, with the command that writes the file.
pub fn check_generated(relative: &str, expected: &str, how: &str) {
    let path = workspace_root().join(relative);
    if std::env::var_os("DUNLIN_UPDATE").is_some() {
        std::fs::write(&path, expected).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        return;
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    if found != expected {
        let line = found
            .lines()
            .zip(expected.lines())
            .position(|(a, b)| a != b)
            .unwrap_or_else(|| found.lines().count().min(expected.lines().count()));
        panic!(
            "{relative} is not what its source generates (first at line {}); write it anew with\n    DUNLIN_UPDATE=1 {how}",
            line + 1
        );
    }
}

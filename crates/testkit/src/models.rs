//! Real model files, where this machine has them.

use std::io::Write as _;
use std::path::PathBuf;

/// The folder in which tests look for real models: `DUNLIN_TEST_MODELS`, or else dunlin's own
/// cache of downloaded models.
pub fn folder() -> PathBuf {
    if let Some(folder) = std::env::var_os("DUNLIN_TEST_MODELS") {
        return folder.into();
    }
    let folder = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let cache = folder("DUNLIN_CACHE").or_else(|| {
        let home = || folder("HOME").map(|home| home.join(".cache"));
        let cache = folder("XDG_CACHE_HOME").filter(|p| p.is_absolute()).or_else(home);
        cache.map(|cache| cache.join("dunlin"))
    });
    cache.unwrap_or_else(|| ".".into()).join("models")
}

/// A real model's file, or `None` with a line on standard error that names what `test` skips.
pub fn find(file: &str, test: &str) -> Option<PathBuf> {
    let path = folder().join(file);
    if path.is_file() {
        return Some(path);
    }
    skipped(test, &format!("{file} is not in {}", folder().display()));
    None
}

/// Says that `test` did not run and why: on standard error, and in the file that `DUNLIN_SKIP_LOG`
/// names, from which the test command makes its summary.
pub fn skipped(test: &str, why: &str) {
    eprintln!("SKIPPED {test}: {why}");
    let Some(log) = std::env::var_os("DUNLIN_SKIP_LOG") else { return };
    let file = std::fs::OpenOptions::new().append(true).create(true).open(&log);
    // One write, so that lines of tests that run side by side stay whole.
    let line = format!("{test}: {why}\n");
    if let Err(e) = file.and_then(|mut f| f.write_all(line.as_bytes())) {
        eprintln!("{}: {e}", log.display());
    }
}

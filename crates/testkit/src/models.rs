//! Real model files, where this machine has them.

use std::path::PathBuf;

/// The folder in which tests look for real models: `DUNLIN_TEST_MODELS`, or else dunlin's own
/// cache of downloaded models.
pub fn folder() -> PathBuf {
    if let Some(folder) = std::env::var_os("DUNLIN_TEST_MODELS") {
        return folder.into();
    }
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .filter(|p| p.is_absolute())
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")))
        .unwrap_or_else(|| PathBuf::from(".cache"));
    cache.join("dunlin").join("models")
}

/// A real model's file, or `None` with a line on standard error that names what `test` skips.
pub fn find(file: &str, test: &str) -> Option<PathBuf> {
    let path = folder().join(file);
    if path.is_file() {
        return Some(path);
    }
    eprintln!("SKIPPED {test}: {file} is not in {}", folder().display());
    None
}

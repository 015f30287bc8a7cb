//! The cache folder, and how a file takes its place in it: locked, partial, then renamed.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use super::error::PullError;

/// Where dunlin keeps what can be made or fetched again.
///
/// # Errors
/// Where the environment does not say.
pub fn cache_folder() -> Result<PathBuf, PullError> {
    dunlin_model::cache_folder().ok_or(PullError::NoCacheFolder)
}

/// Where fetched models are.
///
/// # Errors
/// As [`cache_folder`].
pub fn models_folder() -> Result<PathBuf, PullError> {
    Ok(cache_folder()?.join("models"))
}

/// The path beside `target` that a hidden helper file of it has.
pub fn beside(target: &Path, suffix: &str) -> PathBuf {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    target.with_file_name(format!(".{name}.{suffix}"))
}

/// Makes the folder of `target`.
pub fn make_parent(target: &Path) -> Result<(), PullError> {
    let folder = target.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(PullError::io("create the folder", folder))
}

/// The right to write one file; given up when dropped, or when the process ends however it does.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Waits until no other process is fetching `target`.
    pub fn acquire(target: &Path) -> Result<Self, PullError> {
        make_parent(target)?;
        let path = beside(target, "lock");
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(PullError::io("create", &path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                crate::note!("Another process is fetching {}; waiting for it", target.display());
                file.lock().map_err(PullError::io("lock", &path))?;
            }
            Err(TryLockError::Error(e)) => return Err(PullError::io("lock", &path)(e)),
        }
        Ok(Self { _file: file })
    }
}

/// Puts a finished file in its place, so that no one ever sees half of it there.
pub fn place(part: &Path, target: &Path) -> Result<(), PullError> {
    let file = File::open(part).map_err(PullError::io("open", part))?;
    file.sync_all().map_err(PullError::io("write", part))?;
    fs::rename(part, target).map_err(PullError::io("rename to its place", target))
}

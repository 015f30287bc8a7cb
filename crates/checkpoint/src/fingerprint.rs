//! A cheap identity of a model's files, for keys of caches.
//!
//! It takes a few reads, not a pass over gigabytes: a file that was changed in the middle and kept
//! its size, its time of change and its inode is not noticed. It is no checksum against tampering.

use std::{
    fmt,
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use xxhash_rust::xxh3::Xxh3;

use crate::{CheckpointError, error::Result, gguf::part_paths, model_file::hf_folder};

/// Bytes that are hashed at each end of a file.
const EDGE: u64 = 64 << 10;

/// Identifies the files of a model on this machine; equal for equal, unchanged files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint(pub u128);

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The fingerprint of a model, over every one of its files: name, size, time of change
/// (nanoseconds), inode, and a hash (XXH3, 128 bits) of its first and last 64 KiB.
///
/// # Errors
/// A file is missing or cannot be read.
pub fn fingerprint(path: &Path) -> Result<Fingerprint> {
    let mut hash = Xxh3::new();
    for file in model_paths(path)? {
        add_file(&mut hash, &file).map_err(|e| CheckpointError::io(&file, e))?;
    }
    Ok(Fingerprint(hash.digest128()))
}

/// Every file that a model may be read from, in a fixed order.
fn model_paths(path: &Path) -> Result<Vec<PathBuf>> {
    let Some(folder) = hf_folder(path) else { return Ok(part_paths(path)) };
    let entries = std::fs::read_dir(folder).map_err(|e| CheckpointError::io(folder, e))?;
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(|e| CheckpointError::io(folder, e))?.path();
        let matters = |e: &std::ffi::OsStr| e == "json" || e == "safetensors" || e == "jinja";
        if path.extension().is_some_and(matters) && path.is_file() {
            paths.push(path);
        }
    }
    if paths.is_empty() {
        return Err(CheckpointError::NotAModel {
            problem: format!("{} holds no model files", folder.display()),
        });
    }
    paths.sort_unstable();
    Ok(paths)
}

fn add_file(hash: &mut Xxh3, path: &Path) -> std::io::Result<()> {
    let before = std::fs::metadata(path)?;
    if !before.is_file() {
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let mut file = File::open(path)?;
    let meta = file.metadata()?;
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    // Lengths go before what they measure, so that no two sequences of files hash alike.
    hash.update(&(name.len() as u64).to_le_bytes());
    hash.update(name);
    hash.update(&meta.len().to_le_bytes());
    let since = meta.modified()?.duration_since(std::time::UNIX_EPOCH);
    // Times before 1970 are as good an identity as any other.
    let nanos = since.map_or_else(|e| e.duration().as_nanos().wrapping_neg(), |d| d.as_nanos());
    hash.update(&nanos.to_le_bytes());
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        hash.update(&meta.dev().to_le_bytes());
        hash.update(&meta.ino().to_le_bytes());
    }
    let mut edge = Vec::new();
    (&mut file).take(EDGE).read_to_end(&mut edge)?;
    file.seek(SeekFrom::Start(meta.len().saturating_sub(EDGE)))?;
    file.take(EDGE).read_to_end(&mut edge)?;
    hash.update(&(edge.len() as u64).to_le_bytes());
    hash.update(&edge);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.gguf");
        std::fs::write(&path, vec![7; 200_000]).unwrap();
        let stamp = std::time::UNIX_EPOCH + std::time::Duration::new(1_700_000_000, 123_456_789);
        let set_time = |p: &Path, t| {
            File::options().write(true).open(p).unwrap().set_modified(t).unwrap();
        };
        set_time(&path, stamp);
        let first = fingerprint(&path).unwrap();
        assert_eq!(first, fingerprint(&path).unwrap());
        assert_eq!(first.to_string().len(), 32);
        // A last byte that differs, at the same size and time.
        let mut data = vec![7; 200_000];
        data[199_999] = 8;
        std::fs::write(&path, &data).unwrap();
        set_time(&path, stamp);
        let second = fingerprint(&path).unwrap();
        assert_ne!(first, second);
        set_time(&path, stamp + std::time::Duration::from_nanos(1));
        assert_ne!(second, fingerprint(&path).unwrap());
        assert!(fingerprint(&dir.path().join("missing.gguf")).is_err());
    }

    #[test]
    fn every_file_counts() {
        let dir = tempfile::tempdir().unwrap();
        let part = |n: u32| dir.path().join(format!("m-{n:05}-of-00002.gguf"));
        std::fs::write(part(1), b"a").unwrap();
        assert!(fingerprint(&part(1)).is_err(), "the second part is missing");
        std::fs::write(part(2), b"b").unwrap();
        let split = fingerprint(&part(1)).unwrap();
        assert_eq!(split, fingerprint(&part(2)).unwrap(), "whichever part is named");
        assert!(fingerprint(&dir.path().join("hf")).is_err());
        let folder = dir.path().join("hf");
        std::fs::create_dir(&folder).unwrap();
        assert!(fingerprint(&folder).is_err());
        std::fs::write(folder.join("config.json"), b"{}").unwrap();
        let one = fingerprint(&folder).unwrap();
        std::fs::write(folder.join("tokenizer.json"), b"{}").unwrap();
        assert_ne!(one, fingerprint(&folder).unwrap());
    }
}

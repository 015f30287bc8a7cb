//! The folder of packs: finding, making and replacing them.

use super::build::Plan;
use super::{BadPack, Pack, PackBytes};
use crate::ModelError;
use dunlin_checkpoint::source::{Advice, Mapping};
use dunlin_checkpoint::{ModelFile, fingerprint};
use dunlin_kernels_cpu::pack::PackBuffer;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Where a pack came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PackSource {
    /// It was there.
    Cached(PathBuf),
    /// It was made now, and kept.
    Made(PathBuf),
    /// It was made now, in memory alone.
    Memory,
}

/// Finds the pack of a model in `folder`, or makes it. Trouble with the folder (a full disk, no
/// permission) costs a note and the next start's time, never the run.
pub(crate) fn obtain(
    path: &Path,
    folder: Option<&Path>,
    threads: usize,
    notes: &mut Vec<String>,
) -> Result<(Pack, PackSource), ModelError> {
    let print = fingerprint(path)?.to_string();
    let Some(folder) = folder else {
        return in_memory(path, &print, threads).map(|pack| (pack, PackSource::Memory));
    };
    let target = folder.join(pack_name(path, &print));
    if let Some(pack) = cached(&target, &print, notes) {
        return Ok((pack, PackSource::Cached(target)));
    }
    let file = ModelFile::open(path)?;
    let plan = Plan::new(&file, &print)?;
    match make(&plan, folder, &target, &print, threads) {
        Ok(Made::Now) => {}
        Ok(Made::Meanwhile(pack)) => return Ok((*pack, PackSource::Cached(target))),
        Err(error) => {
            notes.push(format!(
                "the packed weights could not be kept in {} ({error}); this run holds them in \
                 memory, and the next start packs them again",
                folder.display()
            ));
            let pack = in_memory_from(&plan, &print, threads)?;
            return Ok((pack, PackSource::Memory));
        }
    }
    match map(&target, &print) {
        Ok(pack) => Ok((pack, PackSource::Made(target))),
        Err(problem) => {
            notes.push(format!("{} cannot be mapped: {problem}", target.display()));
            Ok((in_memory_from(&plan, &print, threads)?, PackSource::Memory))
        }
    }
}

/// The pack of a model, where `folder` has one that can be used.
pub(crate) fn existing(path: &Path, folder: &Path) -> Result<Option<Pack>, ModelError> {
    let print = fingerprint(path)?.to_string();
    Ok(map(&folder.join(pack_name(path, &print)), &print).ok())
}

/// The model's own name, cut to be readable, and its fingerprint.
fn pack_name(path: &Path, print: &str) -> String {
    let stem = path.file_stem().map(|s| s.to_string_lossy()).unwrap_or_default();
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-._".contains(c) { c } else { '_' };
    let stem: String = stem.chars().map(plain).take(80).collect();
    format!("{stem}-{print}.pack")
}

fn cached(target: &Path, print: &str, notes: &mut Vec<String>) -> Option<Pack> {
    if !target.exists() {
        return None;
    }
    match map(target, print) {
        Ok(pack) => Some(pack),
        Err(problem) => {
            notes.push(format!("{} is made anew: {problem}", target.display()));
            None
        }
    }
}

fn map(target: &Path, print: &str) -> Result<Pack, String> {
    let mapping = Mapping::open_huge_aligned(target).map_err(|e| e.to_string())?;
    // A refusal costs speed alone.
    let _ = mapping.advise(Advice::HugePage, 0..mapping.len());
    Pack::open(PackBytes::Mapped(mapping), print).map_err(|e: BadPack| e.to_string())
}

fn in_memory(path: &Path, print: &str, threads: usize) -> Result<Pack, ModelError> {
    let file = ModelFile::open(path)?;
    in_memory_from(&Plan::new(&file, print)?, print, threads)
}

fn in_memory_from(plan: &Plan<'_>, print: &str, threads: usize) -> Result<Pack, ModelError> {
    let mut buffer = PackBuffer::new(plan.len())?;
    let mut out: &mut [u8] = buffer.bytes_mut();
    plan.write(&mut out, threads).expect("the buffer is as long as the plan says");
    let pack = Pack::open(PackBytes::Memory(buffer), print);
    Ok(pack.expect("a pack that was just written can be read"))
}

enum Made {
    Now,
    /// Another process made it while this one waited for its turn.
    Meanwhile(Box<Pack>),
}

fn make(
    plan: &Plan<'_>,
    folder: &Path,
    target: &Path,
    print: &str,
    threads: usize,
) -> io::Result<Made> {
    fs::create_dir_all(folder)?;
    // One process packs at a time; the lock goes with the process that holds it.
    let lock = File::create(folder.join("lock"))?;
    lock.lock()?;
    if let Ok(pack) = map(target, print) {
        return Ok(Made::Meanwhile(Box::new(pack)));
    }
    let part = target.with_extension("part");
    let written = write_whole(plan, &part, threads).and_then(|()| fs::rename(&part, target));
    if written.is_err() {
        let _ = fs::remove_file(&part);
    } else {
        remove_older(plan.file(), folder, target);
    }
    written.map(|()| Made::Now)
}

fn write_whole(plan: &Plan<'_>, part: &Path, threads: usize) -> io::Result<()> {
    let mut out = LargeWrites { file: File::create(part)?, buffer: Vec::new() };
    plan.write(&mut out, threads)?;
    out.flush()?;
    out.file.sync_data()
}

/// Bytes of a write; a multiple of the huge page's size.
const WRITE_BYTES: usize = 16 << 20;

/// Writes in large pieces at multiples of their size. The page cache then holds the file in large
/// aligned pages, which a mapping can use as huge pages: a sixth more speed in decode.
struct LargeWrites {
    file: File,
    buffer: Vec<u8>,
}

impl Write for LargeWrites {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = bytes.len().min(WRITE_BYTES - self.buffer.len());
        self.buffer.extend_from_slice(&bytes[..n]);
        if self.buffer.len() == WRITE_BYTES {
            self.flush()?;
        }
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.write_all(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }
}

/// Removes packs of earlier states of the same model file.
fn remove_older(file: &ModelFile, folder: &Path, target: &Path) {
    let prefix = pack_name(file.path(), "");
    let prefix = prefix.trim_end_matches(".pack");
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        let ours = name
            .strip_prefix(prefix)
            .is_some_and(|rest| rest.strip_suffix(".pack").is_some_and(|print| print.len() == 32));
        let same_source = || {
            let mapping = Mapping::open(&path).ok()?;
            let index = super::read_index(&mapping).ok()?;
            Some(index.source == file.path().display().to_string())
        };
        if ours && path != target && same_source() == Some(true) {
            let _ = fs::remove_file(&path);
        }
    }
}

//! A GGUF model in one file or split over several (`NAME-00001-of-00003.gguf`).
//!
//! The first part holds the metadata; every part holds tensors. Parts are found by name, in the
//! folder of whichever part was given, and their own claims must agree with the names.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{Gguf, TensorInfo, Value, limits};
use crate::{CheckpointError, error::Result, source::Mapping};

/// All parts of one model.
#[derive(Debug)]
pub struct GgufParts {
    parts: Vec<Gguf>,
    paths: Vec<PathBuf>,
    /// (part, index in its table), sorted by tensor name.
    by_name: Vec<(u32, u32)>,
}

/// The paths of a GGUF model's files, from the path of any of them, judged by name alone: the path
/// itself unless it ends in `-00001-of-00003.gguf` or the like.
pub fn part_paths(path: &Path) -> Vec<PathBuf> {
    match PartName::of(path) {
        Some(name) if name.count > 1 => (1..=name.count).map(|n| name.path(path, n)).collect(),
        _ => vec![path.to_path_buf()],
    }
}

/// The pieces of a split file's name.
struct PartName<'a> {
    stem: &'a str,
    count: u32,
}

impl<'a> PartName<'a> {
    fn of(path: &'a Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
        let (rest, count) = name.rsplit_once("-of-")?;
        let (stem, number) = rest.rsplit_once('-')?;
        let five = |s: &str| {
            let ok = s.len() == 5 && s.bytes().all(|b| b.is_ascii_digit());
            ok.then(|| s.parse::<u32>().ok())?
        };
        let (number, count) = (five(number)?, five(count)?);
        (1..=count).contains(&number).then_some(())?;
        (count <= limits::PARTS).then_some(Self { stem, count })
    }

    fn path(&self, sibling: &Path, number: u32) -> PathBuf {
        sibling.with_file_name(format!("{}-{number:05}-of-{:05}.gguf", self.stem, self.count))
    }
}

impl GgufParts {
    /// Opens a model from the path of any of its files.
    ///
    /// # Errors
    /// Missing files, whatever [`Gguf::parse`] refuses, and parts that do not fit together.
    pub fn open(path: &Path) -> Result<Self> {
        let first = open_one(path)?;
        let count = split_key(&first, "split.count")?.unwrap_or(1);
        if count <= 1 {
            return Self::join(vec![first], vec![path.to_path_buf()]);
        }
        let paths = part_paths(path);
        if paths.len() as u64 != count {
            return Err(CheckpointError::Split {
                problem: format!(
                    "{} says it is one of {count} files, which its name does not; the files must \
                     be named NAME-00001-of-{count:05}.gguf and so on",
                    path.display()
                ),
            });
        }
        drop(first);
        let parts = paths.iter().map(|p| open_one(p)).collect::<Result<Vec<_>>>()?;
        Self::join(parts, paths)
    }

    /// Joins parts that were read already, in order.
    ///
    /// # Errors
    /// Parts that do not fit together: numbers, counts, tensors in two of them.
    pub fn join(parts: Vec<Gguf>, paths: Vec<PathBuf>) -> Result<Self> {
        let split = |problem: String| CheckpointError::Split { problem };
        let total: usize = parts.iter().map(|p| p.tensors().len()).sum();
        for (i, part) in parts.iter().enumerate().filter(|_| parts.len() > 1) {
            let no = split_key(part, "split.no")?;
            let count = split_key(part, "split.count")?;
            if no != Some(i as u64) || count != Some(parts.len() as u64) {
                return Err(split(format!(
                    "file {} of {} says it is number {no:?} (from zero) of {count:?}",
                    i + 1,
                    parts.len()
                )));
            }
            match split_key(part, "split.tensors.count")? {
                Some(n) if n != total as u64 => {
                    return Err(split(format!("{n} tensors are announced, {total} are there")));
                }
                _ => {}
            }
        }
        let mut by_name: Vec<(u32, u32)> = Vec::with_capacity(total);
        for (p, part) in parts.iter().enumerate() {
            by_name.extend((0..part.tensors().len()).map(|t| (p as u32, t as u32)));
        }
        let name = |&(p, t): &(u32, u32)| &*parts[p as usize].tensors()[t as usize].name;
        by_name.sort_unstable_by(|a, b| name(a).cmp(name(b)));
        if let Some(w) = by_name.windows(2).find(|w| name(&w[0]) == name(&w[1])) {
            return Err(split(format!("tensor {} is in two files", name(&w[0]))));
        }
        Ok(Self { parts, paths, by_name })
    }

    /// The parts, in order.
    pub fn parts(&self) -> &[Gguf] {
        &self.parts
    }

    /// The files, in order; empty where the parts came from memory.
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// The value of a key, in the first part.
    pub fn get(&self, key: &str) -> Option<Value<'_>> {
        self.parts.first()?.get(key)
    }

    /// The part that holds a tensor, and the tensor.
    pub fn tensor(&self, name: &str) -> Option<(&Gguf, &TensorInfo)> {
        let (part, index) = self.find(name)?;
        let part = &self.parts[part];
        Some((part, &part.tensors()[index]))
    }

    /// Which part holds a tensor, and its index in the part's table.
    pub(super) fn find(&self, name: &str) -> Option<(usize, usize)> {
        let at = |&(p, t): &(u32, u32)| self.parts[p as usize].tensors()[t as usize].name.as_str();
        let i = self.by_name.binary_search_by(|e| at(e).cmp(name)).ok()?;
        let (part, index) = self.by_name[i];
        Some((part as usize, index as usize))
    }

    /// Every tensor, in the order of the files, with its part.
    pub fn tensors(&self) -> impl Iterator<Item = (&Gguf, &TensorInfo)> {
        self.parts.iter().flat_map(|p| p.tensors().iter().map(move |t| (p, t)))
    }
}

fn open_one(path: &Path) -> Result<Gguf> {
    let map = Mapping::open(path).map_err(|e| CheckpointError::io(path, e))?;
    Gguf::parse(Arc::new(map)).map_err(|e| e.in_file(path))
}

fn split_key(part: &Gguf, key: &str) -> Result<Option<u64>> {
    let Some(value) = part.get(key) else { return Ok(None) };
    match value.as_u64() {
        Some(n) if n <= u32::MAX.into() => Ok(Some(n)),
        _ => Err(CheckpointError::BadKey { key: key.into(), problem: "no count".into() }),
    }
}

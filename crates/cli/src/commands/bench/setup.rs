//! Environments of the peers: a Python virtual environment each, with a pinned package, made once
//! and kept in the cache folder.

use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::Context as _;

use crate::{note, pull::cache_folder};

/// The programs that run in the environments.
const SCRIPTS: [(&str, &str); 2] = [
    ("peer.py", include_str!("../../../../../scripts/peers/peer.py")),
    ("worker.py", include_str!("../../../../../scripts/peers/worker.py")),
];

/// A peer engine's package.
#[derive(Debug, PartialEq, Eq)]
pub struct PeerPackage {
    /// What `worker.py` calls it.
    pub name: &'static str,
    /// What people call it.
    pub title: &'static str,
    /// The package on PyPI.
    pub package: &'static str,
    /// Its version. Figures of different versions cannot be compared.
    pub version: &'static str,
    /// For a package that is compiled here: CMake's options. Such an environment fits only the CPU
    /// that it was made on.
    pub cmake: Option<&'static str>,
}

/// Every peer.
pub const PEERS: [PeerPackage; 2] = [
    PeerPackage {
        name: "ik",
        title: "ik_llama.cpp",
        package: "ik-llama-cpp-python",
        version: "0.1.5",
        cmake: None,
    },
    PeerPackage {
        name: "llama",
        title: "llama.cpp",
        package: "llama-cpp-python",
        version: "0.3.36",
        // The image and audio parts take half of the compilation and are not used.
        cmake: Some("-DMTMD_BUILD=OFF -DLLAVA_BUILD=OFF"),
    },
];

/// A peer's environment.
#[derive(Debug, Clone)]
pub struct Environment {
    /// Its Python.
    pub python: PathBuf,
    /// `worker.py`, beside what it imports.
    pub worker: PathBuf,
}

/// The peer's environment, made now where it is missing.
///
/// # Errors
/// A Python, a registry or (for what is compiled) a compiler that is missing; the message has the
/// end of the log and where the whole of it is.
pub fn environment(peer: &PeerPackage) -> anyhow::Result<Environment> {
    let root = cache_folder()?.join("peers");
    fs::create_dir_all(&root).with_context(|| format!("cannot create {}", root.display()))?;
    let worker = scripts(&root)?;
    let suffix = if peer.cmake.is_some() { format!("-{}", cpu_mark()) } else { String::new() };
    let name = format!("{}-{}{suffix}", peer.name, peer.version);
    let folder = root.join(&name);
    let python = folder.join("bin").join("python");
    let ready = folder.join("ready");
    let environment = Environment { python, worker };
    if ready.exists() {
        return Ok(environment);
    }
    // One process makes it; another that wants it waits here and then finds it made.
    let lock = root.join(format!(".{name}.lock"));
    let lock = File::create(&lock).with_context(|| format!("cannot write {}", lock.display()))?;
    lock.lock().context("cannot lock the peers' folder")?;
    if !ready.exists() {
        Making { peer, root: &root, folder: &folder, log: root.join(format!("{name}.log")) }
            .make(&environment.python)
            .with_context(|| format!("cannot set up {}", peer.title))?;
        File::create(&ready).context("cannot finish the environment")?;
    }
    Ok(environment)
}

/// Writes the scripts into a folder named for what is in them; the path of the worker.
fn scripts(root: &Path) -> anyhow::Result<PathBuf> {
    let mark = SCRIPTS.iter().fold(0, |h, (_, text)| fnv(h, text.as_bytes()));
    let folder = root.join(format!("scripts-{mark:016x}"));
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    for (name, text) in SCRIPTS {
        let path = folder.join(name);
        if fs::read(&path).is_ok_and(|found| found == text.as_bytes()) {
            continue;
        }
        // Renamed into place: another process may be reading it.
        let part = folder.join(format!(".{name}.{}", std::process::id()));
        fs::write(&part, text)
            .and_then(|()| fs::rename(&part, &path))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(folder.join("worker.py"))
}

/// A mark of the CPU's instruction sets, since code compiled for one may not run on another.
fn cpu_mark() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = text.lines().find(|l| l.starts_with("flags") || l.starts_with("Features"));
    format!("{:08x}", fnv(0, flags.unwrap_or_default().as_bytes()) as u32)
}

/// FNV-1a, continued from `hash`.
fn fnv(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash ^ 0xCBF2_9CE4_8422_2325, |h, &byte| {
        (h ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    })
}

/// An environment that is being made.
struct Making<'a> {
    peer: &'a PeerPackage,
    root: &'a Path,
    folder: &'a Path,
    log: PathBuf,
}

impl Making<'_> {
    fn make(&self, python: &Path) -> anyhow::Result<()> {
        let peer = self.peer;
        note!(
            "{}: setting up {} {} in {}",
            peer.title,
            peer.package,
            peer.version,
            self.folder.display()
        );
        // What an interrupted run left.
        let _ = fs::remove_dir_all(self.folder);
        let _ = fs::remove_file(&self.log);
        let system = std::env::var("DUNLIN_PYTHON").unwrap_or_else(|_| "python3".into());
        self.run(Command::new(system).args(["-m", "venv"]).arg(self.folder))?;
        let requirement = format!("{}=={}", peer.package, peer.version);
        let mut install = Command::new(python);
        install.args(["-m", "pip", "install", "--disable-pip-version-check"]);
        if let Some(cmake) = peer.cmake {
            let wheels = self.root.join(format!("wheels-{}", cpu_mark()));
            fs::create_dir_all(&wheels)?;
            if !has_wheel(&wheels, peer) {
                note!("{}: compiling it for this CPU, about 10 minutes of one core", peer.title);
                let mut build = Command::new(python);
                // pip's own cache may hold one that was compiled for another CPU.
                build.args(["-m", "pip", "wheel", "-v", "--no-deps", "--no-cache-dir"]);
                build.args(["--disable-pip-version-check", "-w"]).arg(&wheels).arg(&requirement);
                self.run(build.env("CMAKE_ARGS", cmake))?;
            }
            install.arg("--find-links").arg(&wheels);
        }
        self.run(install.arg(&requirement))?;
        note!("{}: ready", peer.title);
        Ok(())
    }

    /// Runs a program with its output in the log; tells how far a compilation is.
    fn run(&self, command: &mut Command) -> anyhow::Result<()> {
        let program = command.get_program().to_string_lossy().into_owned();
        let mut log = File::options().create(true).append(true).open(&self.log)?;
        let errors = log.try_clone()?;
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .with_context(|| format!("cannot run {program}"))?;
        let mut told = 0;
        if let Some(out) = child.stdout.take() {
            for line in BufReader::new(out).split(b'\n') {
                let line = line?;
                log.write_all(&line)?;
                log.write_all(b"\n")?;
                if let Some((done, all)) = progress(&String::from_utf8_lossy(&line)) {
                    let tenth = done * 10 / all;
                    if tenth > told {
                        told = tenth;
                        note!("{}: {done} of {all} files compiled", self.peer.title);
                    }
                }
            }
        }
        let status = child.wait()?;
        if !status.success() {
            let text = fs::read(&self.log).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            let lines: Vec<&str> = text.lines().collect();
            let end = lines[lines.len().saturating_sub(15)..].join("\n  ");
            anyhow::bail!(
                "{program} ended with {status}; {} ends with\n  {end}",
                self.log.display()
            );
        }
        Ok(())
    }
}

fn has_wheel(folder: &Path, peer: &PeerPackage) -> bool {
    let start = format!("{}-{}-", peer.package.replace('-', "_"), peer.version);
    let Ok(files) = fs::read_dir(folder) else { return false };
    files.flatten().any(|file| {
        let name = file.file_name();
        let name = name.to_string_lossy();
        name.starts_with(&start) && name.ends_with(".whl")
    })
}

/// How far a line of ninja's says that it is: `[12/140] ...`.
fn progress(line: &str) -> Option<(usize, usize)> {
    let (done, all) = line.trim_start().strip_prefix('[')?.split_once(']')?.0.split_once('/')?;
    let (done, all) = (done.parse().ok()?, all.parse().ok()?);
    (all > 0 && done <= all).then_some((done, all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_read_from_ninjas_lines() {
        assert_eq!(progress("  [12/140] Building CXX object"), Some((12, 140)));
        for line in ["", "[]", "[1/]", "[a/b] x", "[2/1] x", "[0/0]", "-- Found [1/2]"] {
            assert_eq!(progress(line), None, "{line}");
        }
    }

    #[test]
    fn a_wheel_is_found_by_name_and_version() {
        let folder = tempfile::tempdir().unwrap();
        let peer = &PEERS[1];
        assert!(!has_wheel(folder.path(), peer));
        fs::write(folder.path().join("llama_cpp_python-0.0.1-py3-none-any.whl"), "").unwrap();
        assert!(!has_wheel(folder.path(), peer));
        let name = format!("llama_cpp_python-{}-py3-none-linux_x86_64.whl", peer.version);
        fs::write(folder.path().join(name), "").unwrap();
        assert!(has_wheel(folder.path(), peer));
        assert!(!has_wheel(&folder.path().join("none"), peer));
    }

    #[test]
    fn scripts_are_written_once_and_again_when_damaged() {
        let root = tempfile::tempdir().unwrap();
        let worker = scripts(root.path()).unwrap();
        assert_eq!(fs::read_to_string(&worker).unwrap(), SCRIPTS[1].1);
        fs::write(&worker, "broken").unwrap();
        assert_eq!(scripts(root.path()).unwrap(), worker);
        assert_eq!(fs::read_to_string(&worker).unwrap(), SCRIPTS[1].1);
    }
}

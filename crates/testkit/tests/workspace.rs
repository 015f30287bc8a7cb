//! The rules of the workspace that the compiler does not enforce by itself: layers, where `unsafe`
//! may be, what the decision tower may touch, the length of files.

use std::path::Path;
use std::process::Command;

use dunlin_testkit::layers::{self, Kind, Package};
use dunlin_testkit::models::skipped;
use dunlin_testkit::source::{code_only, files, line_with_word};
use dunlin_testkit::workspace_root;

/// Modules outside the kernels that may hold `unsafe`: those that map memory, and what explains its
/// faults.
const MEMORY_MAPPING: [&str; 2] =
    ["crates/checkpoint/src/source/mapping.rs", "crates/checkpoint/src/source/watch.rs"];

/// The longest a source file outside tests may be.
const MAX_LINES: usize = 800;

fn packages() -> Vec<(Package, String)> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let out = Command::new(cargo)
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(workspace_root())
        .output()
        .expect("cargo runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let text = |v: &serde_json::Value| v.as_str().unwrap().to_string();
    let packages = metadata["packages"].as_array().unwrap().iter();
    packages
        .map(|p| {
            let dependencies = p["dependencies"].as_array().unwrap().iter().map(|d| {
                let kind = if d["kind"] == "dev" { Kind::Dev } else { Kind::Normal };
                (text(&d["name"]), kind)
            });
            let package = Package { name: text(&p["name"]), dependencies: dependencies.collect() };
            (package, text(&p["manifest_path"]))
        })
        .collect()
}

#[test]
fn crates_depend_downward_only() {
    let packages: Vec<Package> = packages().into_iter().map(|p| p.0).collect();
    assert!(packages.len() > 2, "cargo metadata lists the workspace");
    let found = layers::violations(&packages);
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn every_crate_takes_the_workspace_lints() {
    for (package, manifest) in packages() {
        let text = std::fs::read_to_string(&manifest).unwrap();
        assert!(text.contains("[lints]\nworkspace = true"), "{}: no [lints]", package.name);
        let folder = Path::new(&manifest).parent().unwrap().file_name().unwrap();
        assert_eq!(package.name, format!("dunlin-{}", folder.to_string_lossy()));
    }
}

#[test]
fn the_decision_tower_carries_its_bans() {
    let bans = std::fs::read_to_string(dunlin_testkit::data_path("clippy-decision.toml")).unwrap();
    for (package, manifest) in packages() {
        if layers::place(&package.name).is_none_or(|p| p.0 != 1) {
            continue;
        }
        let folder = Path::new(&manifest).parent().unwrap();
        let own = std::fs::read_to_string(folder.join("clippy.toml")).unwrap_or_default();
        assert_eq!(own, bans, "{}: clippy.toml is not the decision tower's", package.name);
        let root = std::fs::read_to_string(folder.join("src/lib.rs")).unwrap();
        for lint in
            ["disallowed_methods", "disallowed_types", "disallowed_macros", "iter_over_hash_type"]
        {
            assert!(
                root.contains(&format!("clippy::{lint}")),
                "{}: lib.rs does not deny clippy::{lint}",
                package.name
            );
        }
    }
}

/// The bans are believed only because they are seen to bite.
#[test]
fn the_bans_bite() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let has_clippy = Command::new(&cargo).args(["clippy", "--version"]).output();
    if !has_clippy.is_ok_and(|o| o.status.success()) {
        skipped("the_bans_bite", "cargo clippy is not installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    std::fs::create_dir(folder.path().join("src")).unwrap();
    let bans = std::fs::read_to_string(dunlin_testkit::data_path("clippy-decision.toml")).unwrap();
    write("clippy.toml", &bans);
    write("Cargo.toml", "[package]\nname = \"banned\"\nedition = \"2024\"\n[workspace]\n");
    let head = "#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::disallowed_macros, clippy::iter_over_hash_type)]\n";
    for (name, body, passes) in [
        ("nothing banned", "pub fn f(now: u64) -> u64 { now + 1 }", true),
        (
            "the clock",
            "pub fn f() -> bool { std::time::Instant::now().elapsed().is_zero() }",
            false,
        ),
        ("a thread", "pub fn f() { std::thread::sleep(std::time::Duration::ZERO); }", false),
        ("the environment", "pub fn f() -> bool { std::env::var(\"A\").is_ok() }", false),
        ("output", "pub fn f() { println!(); }", false),
        (
            "hash order",
            "pub fn f(m: &std::collections::HashMap<u8, u8>) -> Vec<u8> { m.keys().copied().collect() }",
            false,
        ),
        (
            "hash order in a loop",
            "pub fn f(m: std::collections::HashSet<u8>) -> u8 { let mut s = 0; for x in m { s = x; } s }",
            false,
        ),
    ] {
        write("src/lib.rs", &format!("{head}{body}\n"));
        let out = Command::new(&cargo)
            .args(["clippy", "--quiet", "--offline", "--target-dir", "target"])
            .current_dir(folder.path())
            .env_remove("CARGO_TARGET_DIR")
            .env_remove("RUSTFLAGS")
            .output()
            .unwrap();
        let message = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.success(), passes, "{name}: {message}");
        assert!(!message.contains("does not refer to"), "{name}: {message}");
    }
}

fn relative(path: &Path) -> String {
    path.strip_prefix(workspace_root()).unwrap().to_string_lossy().replace('\\', "/")
}

fn may_be_unsafe(path: &str) -> bool {
    path.starts_with("crates/kernels-") || MEMORY_MAPPING.contains(&path)
}

#[test]
fn unsafe_is_where_it_belongs() {
    let mut found = Vec::new();
    for path in files(&workspace_root(), "rs") {
        let (name, text) = (relative(&path), std::fs::read_to_string(&path).unwrap());
        if may_be_unsafe(&name) {
            continue;
        }
        if let Some(line) = line_with_word(&code_only(&text), "unsafe") {
            found.push(format!("{name}:{}: unsafe outside kernels and memory mapping", line + 1));
        }
        let is_root = name.ends_with("/src/lib.rs") || name.ends_with("/src/main.rs");
        let crate_folder = name.split("/src/").next().unwrap();
        let holds_unsafe = MEMORY_MAPPING.iter().any(|m| m.starts_with(crate_folder));
        let lint = if holds_unsafe { "#![deny(unsafe_code)]" } else { "#![forbid(unsafe_code)]" };
        if is_root && !text.contains(lint) {
            found.push(format!("{name}: has no {lint}"));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn files_are_short_and_finished() {
    let mut found = Vec::new();
    for path in files(&workspace_root(), "rs") {
        let (name, text) = (relative(&path), std::fs::read_to_string(&path).unwrap());
        let in_tests = name.split('/').any(|part| ["tests", "benches", "fuzz"].contains(&part));
        let lines = text.lines().count();
        if !in_tests && lines > MAX_LINES {
            found.push(format!(
                "{name}: {lines} lines, at most {MAX_LINES}; split it by what it does"
            ));
        }
        let code = code_only(&text);
        for word in ["todo!", "unimplemented!", "dbg!"] {
            if let Some(line) = line_with_word(&code, word) {
                found.push(format!("{name}:{}: {word}", line + 1));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

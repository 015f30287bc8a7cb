//! The layers of the workspace and what each may depend on, as data.
//!
//! [`violations`] judges a set of packages, so that the check itself can be tested on made-up ones.

use std::collections::{BTreeMap, BTreeSet};

/// Every crate that may exist, without its `dunlin-` prefix, in its layer. Within a layer a crate
/// may depend on those named before it. A new crate gets its place here first.
pub const LAYERS: [(u8, &[&str]); 6] = [
    (0, &["units", "spec"]),
    (1, &["kvcache", "costmodel", "workload", "scheduler", "router"]),
    (2, &["tensor", "quant", "kernels-cpu", "checkpoint", "tokenizer", "model"]),
    (3, &["executor", "engine", "sim", "compress"]),
    (4, &["planner", "server"]),
    (5, &["testkit", "cli"]),
];

/// Outside crates that the decision tower (layer 1) may use: none of them has threads, a clock,
/// input or output, or randomness of its own.
const DECISION_TOWER_MAY_USE: [&str; 5] =
    ["thiserror", "serde", "serde_json", "xxhash-rust", "libm"];

/// What a dependency is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Needed to build the crate.
    Normal,
    /// Needed by its tests alone.
    Dev,
}

/// A package of the workspace.
#[derive(Debug, Clone)]
pub struct Package {
    /// The full name.
    pub name: String,
    /// What it depends on.
    pub dependencies: Vec<(String, Kind)>,
}

/// A crate's layer and its place within it.
pub fn place(package: &str) -> Option<(u8, usize)> {
    let short = package.strip_prefix("dunlin-")?;
    LAYERS.iter().find_map(|(layer, names)| Some((*layer, names.iter().position(|n| *n == short)?)))
}

/// Everything about `packages` that breaks the layering, one line each.
pub fn violations(packages: &[Package]) -> Vec<String> {
    let mut found = Vec::new();
    for package in packages {
        let Some(own) = place(&package.name) else {
            found.push(format!("{} has no place in the list of layers", package.name));
            continue;
        };
        for (dependency, kind) in &package.dependencies {
            if let Some(problem) = judge(&package.name, own, dependency, *kind) {
                found.push(format!("{} on {dependency}: {problem}", package.name));
            }
        }
    }
    found.extend(towers_meet_early(packages));
    found
}

fn judge(package: &str, own: (u8, usize), dependency: &str, kind: Kind) -> Option<&'static str> {
    if dependency == "dunlin-testkit" {
        return (kind == Kind::Normal).then_some("testkit is for tests alone");
    }
    if let Some(other) = place(dependency) {
        if own.0 == 2 && other.0 == 1 || own.0 == 1 && other.0 == 2 {
            return Some("decisions (1) and compute (2) never depend on each other");
        }
        // Within a layer, earlier in the list counts as lower.
        return (other >= own).then_some("dependencies go downward only");
    }
    if dependency.starts_with("dunlin-") {
        return Some("no such crate in the list of layers");
    }
    if dependency == "anyhow" && package != "dunlin-cli" {
        return Some("anyhow is for cli alone; a library has an error type of its own");
    }
    if own.0 == 1 && kind == Kind::Normal && !DECISION_TOWER_MAY_USE.contains(&dependency) {
        return Some("not among what the decision tower may use");
    }
    None
}

/// The simulator and the planner build without any kernel code, not even through others.
fn towers_meet_early(packages: &[Package]) -> Vec<String> {
    let direct: BTreeMap<&str, Vec<&str>> = packages
        .iter()
        .map(|p| {
            let normal = p.dependencies.iter().filter(|d| d.1 == Kind::Normal);
            (p.name.as_str(), normal.map(|d| d.0.as_str()).collect())
        })
        .collect();
    let mut found = Vec::new();
    for root in ["dunlin-sim", "dunlin-planner"] {
        let (mut seen, mut open) = (BTreeSet::new(), vec![root]);
        while let Some(name) = open.pop() {
            if seen.insert(name) {
                open.extend(direct.get(name).into_iter().flatten());
            }
        }
        let compute = seen.iter().filter(|n| place(n).is_some_and(|p| p.0 == 2));
        found.extend(compute.map(|n| format!("{root} reaches {n}: it must build without kernels")));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(package: &str, dependency: &str, kind: Kind) -> usize {
        let package = Package {
            name: package.to_string(),
            dependencies: vec![(dependency.to_string(), kind)],
        };
        violations(&[package]).len()
    }

    #[test]
    fn downward_is_right_and_upward_is_not() {
        assert_eq!(check("dunlin-model", "dunlin-spec", Kind::Normal), 0);
        assert_eq!(check("dunlin-model", "dunlin-quant", Kind::Normal), 0, "earlier in layer 2");
        assert_eq!(check("dunlin-quant", "dunlin-model", Kind::Normal), 1);
        assert_eq!(check("dunlin-spec", "dunlin-tensor", Kind::Dev), 1);
        assert_eq!(check("dunlin-kvcache", "dunlin-tensor", Kind::Normal), 1);
        assert_eq!(check("dunlin-model", "dunlin-kvcache", Kind::Normal), 1, "towers");
        assert_eq!(check("dunlin-executor", "dunlin-kvcache", Kind::Normal), 0, "the bridge");
    }

    #[test]
    fn testkit_anyhow_and_strangers() {
        assert_eq!(check("dunlin-quant", "dunlin-testkit", Kind::Dev), 0);
        assert_eq!(check("dunlin-quant", "dunlin-testkit", Kind::Normal), 1);
        assert_eq!(check("dunlin-quant", "anyhow", Kind::Dev), 1);
        assert_eq!(check("dunlin-cli", "anyhow", Kind::Normal), 0);
        assert_eq!(check("dunlin-scheduler", "tokio", Kind::Normal), 1);
        assert_eq!(check("dunlin-novel", "serde", Kind::Normal), 1, "a crate without a place");
    }

    #[test]
    fn the_simulator_reaches_no_kernels() {
        let package = |name: &str, dependency: &str| Package {
            name: name.to_string(),
            dependencies: vec![(dependency.to_string(), Kind::Normal)],
        };
        let packages =
            [package("dunlin-sim", "dunlin-executor"), package("dunlin-executor", "dunlin-model")];
        assert_eq!(
            violations(&packages),
            ["dunlin-sim reaches dunlin-model: it must build without kernels"]
        );
    }
}

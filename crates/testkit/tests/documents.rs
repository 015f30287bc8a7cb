//! Documents stay true: links lead somewhere, and the map of crates names those that exist.

use std::path::Path;

use dunlin_testkit::source::files;
use dunlin_testkit::workspace_root;

/// Lines of a Markdown text outside fenced code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut fenced = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    })
}

/// Targets of the inline links of a Markdown text.
fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in prose(text) {
        // Code spans hold no links.
        let plain: String = line.split('`').step_by(2).collect::<Vec<_>>().join("``");
        for (at, _) in plain.match_indices("](") {
            let rest = &plain[at + 2..];
            if let Some(end) = rest.find(')') {
                found.push(rest[..end].split_whitespace().next().unwrap_or("").to_string());
            }
        }
    }
    found
}

/// The anchor that a heading gets.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn has_anchor(path: &Path, wanted: &str) -> bool {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    prose(&text).any(|l| l.starts_with('#') && anchor(l.trim_start_matches('#')) == wanted)
}

#[test]
fn links_lead_somewhere() {
    let mut found = Vec::new();
    for path in files(&workspace_root(), "md") {
        let text = std::fs::read_to_string(&path).unwrap();
        for link in links(&text) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (file, fragment) = link.split_once('#').unwrap_or((&link, ""));
            let target =
                if file.is_empty() { path.clone() } else { path.parent().unwrap().join(file) };
            let right = target.exists() && (fragment.is_empty() || has_anchor(&target, fragment));
            if file.starts_with('/') || !right {
                found.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(found.is_empty(), "links that lead nowhere:\n{}", found.join("\n"));
}

#[test]
fn links_and_anchors_are_read_right() {
    assert_eq!(links("a [b](c.md#d) `[x](y)` [z](u \"t\")\n```\n[n](m)\n```\n"), ["c.md#d", "u"]);
    assert_eq!(anchor(" The `run` command: why?"), "the-run-command-why");
}

/// ARCHITECTURE.md has one row for each crate: `| [name](crates/name) | ...`.
#[test]
fn the_map_of_crates_is_true() {
    let root = workspace_root();
    let text = std::fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let mut listed: Vec<String> = links(&text)
        .iter()
        .filter_map(|l| l.strip_prefix("crates/"))
        .map(|l| l.trim_end_matches('/').split('/').next().unwrap().to_string())
        .collect();
    listed.sort();
    listed.dedup();
    let mut exist: Vec<String> = std::fs::read_dir(root.join("crates"))
        .unwrap()
        .flatten()
        .filter(|e| e.path().join("Cargo.toml").is_file())
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect();
    exist.sort();
    assert_eq!(listed, exist, "ARCHITECTURE.md lists the crates that exist");
}

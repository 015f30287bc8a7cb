//! Prompts by category, in the form of SPEED-Bench's questions: a JSON object a line, with `category`
//! and `turns`. Of several turns the first is asked.

use std::path::Path;

use anyhow::Context as _;
use serde::Deserialize;

use crate::outcome::unusable;

/// The most tokens of a prompt.
pub const LONGEST_PROMPT: usize = 1024;

/// Written for this bench.
const PROMPTS: &str = include_str!("prompts.jsonl");

#[derive(Debug, Deserialize)]
struct Line {
    category: String,
    turns: Vec<String>,
}

/// A prompt.
#[derive(Debug, Clone)]
pub struct Prompt {
    pub category: String,
    pub text: String,
    pub tokens: Vec<u32>,
}

/// The prompts of these categories (of all where none are named), from a file or the usual ones.
///
/// # Errors
/// Files that cannot be read, and categories that have no prompts.
pub fn prompts(path: Option<&Path>, categories: &[String]) -> anyhow::Result<Vec<Prompt>> {
    let text = match path {
        None => PROMPTS.to_string(),
        Some(path) => std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?,
    };
    let mut all = Vec::new();
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        let bad = |error| unusable(format!("line {number} of the prompts: {error}"));
        let line: Line = serde_json::from_str(line).map_err(bad)?;
        let Some(text) = line.turns.into_iter().next() else {
            return Err(unusable(format!("line {number} of the prompts has no turns")));
        };
        all.push(Prompt { category: line.category, text, tokens: Vec::new() });
    }
    if let Some(unknown) = categories.iter().find(|c| all.iter().all(|p| p.category != **c)) {
        return Err(unusable(format!("there are no prompts of the category {unknown:?}")));
    }
    all.retain(|p| categories.is_empty() || categories.contains(&p.category));
    if all.is_empty() {
        return Err(unusable("there are no prompts"));
    }
    Ok(all)
}

/// Keeps so many of each category.
pub fn limit(prompts: &mut Vec<Prompt>, each: usize) {
    let mut had = std::collections::BTreeMap::<String, usize>::new();
    prompts.retain(|p| {
        let count = had.entry(p.category.clone()).or_default();
        *count += 1;
        *count <= each
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_prompts_are_of_six_categories() {
        let mut all = prompts(None, &[]).unwrap();
        limit(&mut all, 3);
        assert_eq!(all.len(), 18);
        let some = prompts(None, &["chat".into()]).unwrap();
        assert!(some.len() >= 3 && some.iter().all(|p| p.category == "chat"));
        assert!(prompts(None, &["poetry".into()]).is_err());
    }
}

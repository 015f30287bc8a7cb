//! Models of the Hugging Face hub: which files of a repository make a model, and fetching them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::cache::{Lock, beside};
use super::checksum::Expected;
use super::download::Remote;
use super::error::PullError;
use super::http::{Ask, Client, bad_answer, escape};
use super::progress::size;
use super::source::{HubSource, check_path};
use super::{PullOptions, Pulled};

/// The hub's listing of a repository, as far as it is needed.
#[derive(Deserialize)]
struct Listing {
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
}

/// The files to fetch, and which of them is the model; `None` where the folder is.
struct Choice {
    files: Vec<String>,
    model: Option<String>,
}

/// Where the files of a repository go.
fn folder_of(source: &HubSource, models: &Path) -> PathBuf {
    let folder = models.join(source.repository.replace('/', "--"));
    if source.revision == "main" { folder } else { folder.join(&source.revision) }
}

/// What the user asked for, as a key of the record of what was fetched.
fn key(source: &HubSource) -> String {
    match (&source.file, &source.quantization) {
        (Some(file), _) => format!("/{file}"),
        (None, Some(tag)) => format!(":{tag}"),
        (None, None) => String::new(),
    }
}

fn record_path(folder: &Path) -> PathBuf {
    folder.join(".fetched.json")
}

fn read_record(folder: &Path) -> BTreeMap<String, String> {
    let text = fs::read(record_path(folder)).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

/// The model, where it was fetched before; the hub is not asked.
pub fn present(source: &HubSource, models: &Path) -> Option<PathBuf> {
    let folder = folder_of(source, models);
    let path = folder.join(read_record(&folder).get(&key(source))?);
    path.exists().then_some(path)
}

/// Fetches a model, or finds it unchanged.
pub fn pull(source: &HubSource, options: &PullOptions) -> Result<Pulled, PullError> {
    let client = Client::from_environment();
    let folder = folder_of(source, &options.folder);
    let choice = match &source.file {
        Some(file) => choose_file(file),
        None => choose(source, &list(&client, source)?)?,
    };
    let mut pulled = Pulled { path: folder.clone(), bytes: 0, already_there: true };
    for file in &choice.files {
        let url = format!(
            "{}/{}/resolve/{}/{}",
            client.endpoint,
            source.repository,
            escape(&source.revision),
            escape(file)
        );
        let mut remote = Remote::ask(&client, &url, file)?;
        if let (Some(sha256), [_]) = (&options.sha256, choice.files.as_slice()) {
            remote.expected = Some(Expected::Sha256(sha256.clone()));
        }
        let (bytes, there) = remote.fetch(&client, &folder.join(file), options.retries)?;
        pulled.bytes += bytes;
        pulled.already_there &= there;
    }
    let relative = choice.model.unwrap_or_default();
    if !relative.is_empty() {
        pulled.path = folder.join(&relative);
    }
    record(source, &folder, relative)?;
    Ok(pulled)
}

/// Remembers what the user's words led to, so that the next time needs no network.
fn record(source: &HubSource, folder: &Path, relative: String) -> Result<(), PullError> {
    let path = record_path(folder);
    let _lock = Lock::acquire(&path)?;
    let mut all = read_record(folder);
    all.insert(key(source), relative);
    let part = beside(&path, "part");
    fs::write(&part, serde_json::to_string(&all).unwrap_or_default())
        .map_err(PullError::io("write", &part))?;
    fs::rename(&part, &path).map_err(PullError::io("write", &path))
}

fn list(client: &Client, source: &HubSource) -> Result<Vec<Sibling>, PullError> {
    let revision = escape(&source.revision);
    let url = format!(
        "{}/api/models/{}/revision/{revision}?blobs=true",
        client.endpoint, source.repository
    );
    let mut answer = client.ask(&url, Ask::Get)?;
    let body = answer.response.body_mut().with_config().limit(64 << 20);
    let text = body.read_to_string().map_err(|e| bad_answer(&url, e.to_string()))?;
    let mut listing: Listing =
        serde_json::from_str(&text).map_err(|e| bad_answer(&url, e.to_string()))?;
    // Names come from whoever made the repository: only those that stay in its folder count.
    listing.siblings.retain(|s| check_path(&s.rfilename).is_ok());
    Ok(listing.siblings)
}

/// One file; where it is part of a split GGUF, all parts.
fn choose_file(file: &str) -> Choice {
    let files = parts_of(file).unwrap_or_else(|| vec![file.to_string()]);
    Choice { model: Some(files[0].clone()), files }
}

/// Names of all parts of a split GGUF file (`x-00002-of-00003.gguf`), first to last.
fn parts_of(file: &str) -> Option<Vec<String>> {
    let stem = file.strip_suffix(".gguf")?;
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (name, number) = rest.rsplit_once('-')?;
    if count.len() != 5 || number.len() != 5 || number.parse::<u32>().is_err() {
        return None;
    }
    let total: u32 = count.parse().ok()?;
    (total > 0).then(|| (1..=total).map(|n| format!("{name}-{n:05}-of-{count}.gguf")).collect())
}

/// Files beside the weights that a Hugging Face directory needs.
const DIRECTORY_FILES: [&str; 8] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "model.safetensors.index.json",
];

fn choose(source: &HubSource, siblings: &[Sibling]) -> Result<Choice, PullError> {
    // Files that carry images' projectors and importance matrices are no language models.
    let is_model = |name: &str| {
        let base = name.rsplit('/').next().unwrap_or(name).to_lowercase();
        base.ends_with(".gguf") && !base.starts_with("mmproj") && !base.contains("imatrix")
    };
    let mut ggufs: Vec<&Sibling> = siblings.iter().filter(|s| is_model(&s.rfilename)).collect();
    if let Some(tag) = &source.quantization {
        let tag = tag.to_lowercase();
        ggufs.retain(|s| has_word(&s.rfilename.to_lowercase(), &tag));
    } else if let Some(directory) = directory(siblings) {
        return Ok(directory);
    }
    // The parts of a split file count as one.
    let mut firsts: Vec<&Sibling> = Vec::new();
    for s in &ggufs {
        if parts_of(&s.rfilename).is_none_or(|parts| parts[0] == s.rfilename) {
            firsts.push(s);
        }
    }
    match firsts.as_slice() {
        [one] => Ok(choose_file(&one.rfilename)),
        [] => Err(PullError::Choose {
            repository: source.repository.clone(),
            problem: match &source.quantization {
                Some(tag) => format!("no GGUF file with {tag} in its name"),
                None => "no GGUF file and no safetensors with a config.json".into(),
            },
            choices: describe(siblings.iter().filter(|s| is_model(&s.rfilename))),
        }),
        several => Err(PullError::Choose {
            repository: source.repository.clone(),
            problem: "several models".into(),
            choices: describe(several.iter().copied()),
        }),
    }
}

/// The safetensors directory in a repository's root, where there is one.
fn directory(siblings: &[Sibling]) -> Option<Choice> {
    let has = |name: &str| siblings.iter().any(|s| s.rfilename == name);
    // "consolidated" files hold the same weights once more in another layout.
    let weights = siblings.iter().map(|s| s.rfilename.as_str()).filter(|n| {
        n.ends_with(".safetensors") && !n.contains('/') && !n.starts_with("consolidated")
    });
    let weights: Vec<String> = weights.map(str::to_string).collect();
    if weights.is_empty() || !has("config.json") {
        return None;
    }
    let small = DIRECTORY_FILES.into_iter().filter(|n| has(n)).map(str::to_string);
    Some(Choice { files: small.chain(weights).collect(), model: None })
}

/// Whether `word` stands in `name` between characters that are neither letters nor digits nor
/// underscores, so that Q4_K does not pick Q4_K_M.
fn has_word(name: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    name.match_indices(word)
        .any(|(i, _)| !name[..i].ends_with(is_part) && !name[i + word.len()..].starts_with(is_part))
}

fn describe<'a>(siblings: impl Iterator<Item = &'a Sibling>) -> String {
    let names: Vec<String> = siblings
        .map(|s| match s.size {
            Some(bytes) => format!("/{} ({})", s.rfilename, size(bytes)),
            None => format!("/{}", s.rfilename),
        })
        .collect();
    if names.is_empty() { "it has no GGUF files at all".into() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(tag: Option<&str>) -> HubSource {
        HubSource {
            repository: "org/repo".into(),
            revision: "main".into(),
            quantization: tag.map(str::to_string),
            file: None,
        }
    }

    fn files(names: &[&str]) -> Vec<Sibling> {
        names.iter().map(|n| Sibling { rfilename: n.to_string(), size: Some(10) }).collect()
    }

    fn chosen(tag: Option<&str>, names: &[&str]) -> Result<Vec<String>, PullError> {
        choose(&source(tag), &files(names)).map(|c| c.files)
    }

    #[test]
    fn one_gguf_is_taken_and_several_are_asked_about() {
        assert_eq!(chosen(None, &["README.md", "m.gguf", "mmproj-m.gguf"]).unwrap(), ["m.gguf"]);
        let several = chosen(None, &["m-Q4_K_M.gguf", "m-Q8_0.gguf"]).unwrap_err().to_string();
        assert!(several.contains("/m-Q8_0.gguf (0.0 kB)"), "{several}");
        let two = ["m-Q4_K_M.gguf", "m-Q4_K.gguf"];
        assert_eq!(chosen(Some("q4_k"), &two).unwrap(), ["m-Q4_K.gguf"]);
        let none = chosen(Some("Q2_K"), &two).unwrap_err().to_string();
        assert!(none.contains("no GGUF file with Q2_K"), "{none}");
    }

    #[test]
    fn split_files_come_whole() {
        let names = ["q8/m-00001-of-00002.gguf", "q8/m-00002-of-00002.gguf"];
        assert_eq!(chosen(None, &names).unwrap(), names);
        assert_eq!(choose_file(names[1]).files, names, "any part names them all");
        assert_eq!(parts_of("m-1-of-2.gguf"), None);
    }

    #[test]
    fn a_directory_comes_with_what_it_needs() {
        let names = [
            "README.md",
            "config.json",
            "consolidated.safetensors",
            "model.safetensors",
            "onnx/model.safetensors",
            "tokenizer.json",
            "training_args.bin",
        ];
        let expected = ["config.json", "tokenizer.json", "model.safetensors"];
        assert_eq!(chosen(None, &names).unwrap(), expected);
        let empty = chosen(None, &["README.md"]).unwrap_err().to_string();
        assert!(empty.contains("no safetensors"), "{empty}");
    }
}

//! The files of a model folder, put together.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use serde::Deserialize;
use serde_json::Value;

use super::{
    json,
    safetensors::Safetensors,
    tokenizer::{Token, TokenizerConfig},
};
use crate::{
    CheckpointError, HfTokenizer,
    arch::{Datum, Lookup},
    container::{Container, TensorDesc},
    error::Result,
    source::{ByteSource, Mapping, MemorySource},
};

/// Where a model folder's files are.
pub trait Folder {
    /// The bytes of a file, or `None` where there is no such file. `name` has no folders in it.
    ///
    /// # Errors
    /// The file is there and cannot be read.
    fn open(&self, name: &str)
    -> std::result::Result<Option<Arc<dyn ByteSource>>, CheckpointError>;

    /// The path of a file, for messages and for those who read it themselves.
    fn path(&self, name: &str) -> PathBuf;
}

impl Folder for Path {
    fn open(&self, name: &str) -> Result<Option<Arc<dyn ByteSource>>> {
        let path = self.join(name);
        match Mapping::open(&path) {
            Ok(map) => Ok(Some(Arc::new(map))),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(CheckpointError::io(path, e)),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.join(name)
    }
}

/// A folder in memory, for tests and fuzzing.
#[derive(Debug, Clone, Default)]
pub struct MemoryFolder(pub BTreeMap<String, Vec<u8>>);

impl Folder for MemoryFolder {
    fn open(&self, name: &str) -> Result<Option<Arc<dyn ByteSource>>> {
        Ok(self.0.get(name).map(|b| Arc::new(MemorySource(b.clone())) as Arc<dyn ByteSource>))
    }

    fn path(&self, name: &str) -> PathBuf {
        name.into()
    }
}

/// A model folder, read and checked as far as the containers go.
pub(crate) struct HfModel {
    config: Value,
    files: Vec<Safetensors>,
    paths: Vec<PathBuf>,
    /// Name, file and index in it, sorted by name.
    by_name: Vec<(String, u32, u32)>,
    tokenizer_path: PathBuf,
    tokenizer_json: Option<Arc<dyn ByteSource>>,
    tokenizer_config_json: Option<Arc<dyn ByteSource>>,
    tokenizer_config: TokenizerConfig,
    bos_id: Option<u32>,
    eos_ids: Vec<u32>,
    templates: Vec<(String, String)>,
}

/// `model.safetensors.index.json`.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

const CONFIG: &str = "config.json";
const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

impl HfModel {
    /// Reads the files of a folder.
    ///
    /// # Errors
    /// Files that are missing, cannot be read or contradict each other.
    pub fn open<F: Folder + ?Sized>(folder: &F) -> Result<Self> {
        let config: Value = parsed(folder, CONFIG)?.ok_or_else(|| CheckpointError::NotAModel {
            problem: format!(
                "{} is missing: give a GGUF file, or a folder with {CONFIG} and safetensors",
                folder.path(CONFIG).display()
            ),
        })?;
        let (files, paths) = open_weights(folder)?;
        let by_name = sorted_names(&files)?;
        let generation: Option<Value> = parsed(folder, "generation_config.json")?;
        let generation = generation.unwrap_or(Value::Null);
        let ids = |key: &str| -> Result<Option<Vec<u32>>> {
            match json::ids(&generation, key)? {
                Some(ids) => Ok(Some(ids)),
                None => json::ids(&config, key),
            }
        };
        let bos_id = ids("bos_token_id")?.and_then(|ids| ids.first().copied());
        let eos_ids = ids("eos_token_id")?.unwrap_or_default();
        let name = "tokenizer_config.json";
        let mut tokenizer_config: TokenizerConfig = parsed(folder, name)?.unwrap_or_default();
        let mut templates =
            tokenizer_config.chat_template.take().map(|t| t.all()).unwrap_or_default();
        if let Some(template) = text(folder, "chat_template.jinja")? {
            templates.retain(|(name, _)| name != "default");
            templates.insert(0, ("default".into(), template));
        }
        Ok(Self {
            config,
            files,
            paths,
            by_name,
            tokenizer_path: folder.path("tokenizer.json"),
            tokenizer_json: folder.open("tokenizer.json")?,
            tokenizer_config_json: folder.open(name)?,
            tokenizer_config,
            bos_id,
            eos_ids,
            templates,
        })
    }

    /// The class that the configuration names.
    pub fn architecture(&self) -> Result<String> {
        let key = "architectures";
        let Some(value) = json::find(&self.config, key) else {
            return Err(CheckpointError::MissingKey { key: key.into() });
        };
        match value.get(0).and_then(Value::as_str) {
            Some(name) => Ok(name.into()),
            None => Err(CheckpointError::BadKey {
                key: key.into(),
                problem: "is no list that begins with a name".into(),
            }),
        }
    }

    /// The safetensors files.
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// The top level of `config.json`, by key.
    pub fn metadata(&self) -> impl Iterator<Item = (&str, Datum<'_>)> {
        let entries = self.config.as_object().into_iter().flatten();
        entries.map(|(key, value)| (&**key, json::datum(value, true)))
    }

    /// The tokenizer's files; `None` without `tokenizer.json`.
    pub fn tokenizer(&self) -> Option<HfTokenizer<'_>> {
        let c = &self.tokenizer_config;
        Some(HfTokenizer {
            path: &self.tokenizer_path,
            json: self.tokenizer_json.as_ref()?.bytes(),
            config_json: self.tokenizer_config_json.as_ref().map(|s| s.bytes()),
            bos_token: c.bos_token.as_ref().map(Token::text),
            eos_token: c.eos_token.as_ref().map(Token::text),
            bos_id: self.bos_id,
            eos_ids: &self.eos_ids,
            add_bos: c.add_bos_token,
            add_eos: c.add_eos_token,
        })
    }

    /// Chat templates with their names.
    pub fn templates(&self) -> impl Iterator<Item = (&str, &str)> {
        self.templates.iter().map(|(n, t)| (&**n, &**t))
    }
}

/// A JSON file, where it is there.
fn parsed<F: Folder + ?Sized, T: serde::de::DeserializeOwned>(
    folder: &F,
    name: &str,
) -> Result<Option<T>> {
    let Some(source) = folder.open(name)? else { return Ok(None) };
    json::parse(source.bytes()).map(Some).map_err(|e| e.in_file(folder.path(name)))
}

/// A UTF-8 file, where it is there.
fn text<F: Folder + ?Sized>(folder: &F, name: &str) -> Result<Option<String>> {
    let Some(source) = folder.open(name)? else { return Ok(None) };
    match std::str::from_utf8(source.bytes()) {
        Ok(text) => Ok(Some(text.into())),
        Err(e) => Err(CheckpointError::Json { problem: format!("is not UTF-8: {e}") }
            .in_file(folder.path(name))),
    }
}

/// The safetensors files: the single one, or those that the index names.
fn open_weights<F: Folder + ?Sized>(folder: &F) -> Result<(Vec<Safetensors>, Vec<PathBuf>)> {
    if let Some(source) = folder.open(SINGLE)? {
        let path = folder.path(SINGLE);
        let file = Safetensors::parse(source).map_err(|e| e.in_file(&path))?;
        return Ok((vec![file], vec![path]));
    }
    let Some(index): Option<Index> = parsed(folder, INDEX)? else {
        return Err(CheckpointError::NotAModel {
            problem: format!(
                "neither {} nor {INDEX} is there; other formats, such as PyTorch's .bin, must be \
                 converted first",
                folder.path(SINGLE).display()
            ),
        });
    };
    let in_index = |e: CheckpointError| e.in_file(folder.path(INDEX));
    let names: BTreeSet<&str> = index.weight_map.values().map(String::as_str).collect();
    let mut files = Vec::new();
    let mut paths = Vec::new();
    for name in names {
        if !is_plain_name(name) {
            let problem = format!("names the file {name:?}, which is not one of this folder");
            return Err(in_index(CheckpointError::Split { problem }));
        }
        let path = folder.path(name);
        let source = folder.open(name)?.ok_or_else(|| {
            in_index(CheckpointError::Split { problem: format!("{} is missing", path.display()) })
        })?;
        files.push(Safetensors::parse(source).map_err(|e| e.in_file(&path))?);
        paths.push(path);
    }
    let there: BTreeSet<&str> =
        files.iter().flat_map(|f| f.tensors().iter().map(|t| &*t.name)).collect();
    match index.weight_map.keys().find(|name| !there.contains(name.as_str())) {
        Some(name) => Err(in_index(CheckpointError::MissingTensor { name: name.clone() })),
        None => Ok((files, paths)),
    }
}

/// Whether a name is that of a file in the folder itself: an index must not lead elsewhere.
fn is_plain_name(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!(parts.next(), Some(Component::Normal(part)) if part == name)
        && parts.next().is_none()
        && !name.contains(['/', '\\', '\0'])
}

fn sorted_names(files: &[Safetensors]) -> Result<Vec<(String, u32, u32)>> {
    let mut by_name = Vec::new();
    for (f, file) in files.iter().enumerate() {
        let tensors = file.tensors().iter().enumerate();
        by_name.extend(tensors.map(|(t, tensor)| (tensor.name.clone(), f as u32, t as u32)));
    }
    by_name.sort_unstable();
    match by_name.windows(2).find(|w| w[0].0 == w[1].0) {
        Some(w) => {
            Err(CheckpointError::Split { problem: format!("tensor {} is in two files", w[0].0) })
        }
        None => Ok(by_name),
    }
}

impl Lookup for HfModel {
    fn lookup(&self, key: &str) -> Option<Datum<'_>> {
        json::find(&self.config, key).map(|v| json::datum(v, true))
    }
}

impl HfModel {
    fn desc(&self, file: u32, index: u32) -> Option<(&str, TensorDesc)> {
        let t = self.files.get(file as usize)?.tensors().get(index as usize)?;
        let (cols, outer) = t.shape.split_last().map_or((1, &[][..]), |(c, o)| (*c, o));
        let (rows, outer) = outer.split_last().map_or((1, &[][..]), |(r, o)| (*r, o));
        let desc = TensorDesc {
            ty: t.ty,
            cols,
            rows,
            slices: outer.iter().product(),
            rank: t.shape.len(),
            file: file as usize,
            offset: t.offset,
            bytes: t.bytes,
        };
        Some((&t.name, desc))
    }
}

impl Container for HfModel {
    fn tensor(&self, name: &str) -> Option<TensorDesc> {
        let i = self.by_name.binary_search_by(|e| e.0.as_str().cmp(name)).ok()?;
        let (_, file, index) = &self.by_name[i];
        Some(self.desc(*file, *index)?.1)
    }

    fn tensors(&self) -> Vec<(&str, TensorDesc)> {
        let all = self.files.iter().enumerate().flat_map(|(f, file)| {
            (0..file.tensors().len()).filter_map(move |t| self.desc(f as u32, t as u32))
        });
        all.collect()
    }

    fn bytes(&self, file: usize, offset: u64, len: u64) -> &[u8] {
        self.files.get(file).and_then(|f| f.source().slice(offset, len)).unwrap_or(&[])
    }
}

//! A model's files, opened: its spec, its tensors by role, its tokenizer and its chat template.

use std::path::{Path, PathBuf};

use dunlin_spec::{ModelSpec, RopeScaling};

use crate::{
    CheckpointError, Role, TokenizerSource,
    arch::{self, Architecture, Built, Format, Meta},
    container::{Container, TensorDesc},
    error::Result,
    gguf::GgufParts,
    hf::{Folder, HfModel},
    inspect::{MetadataEntry, show_datum, show_value},
    matrix::MatrixView,
    place::{Placed, Places},
    tokenizer_source::GgufTokenizer,
};

/// A model in whatever files it came, mapped and checked.
pub struct ModelFile {
    path: PathBuf,
    files: Files,
    architecture: &'static Architecture,
    built: Built,
    places: Places,
}

/// The kinds of files.
enum Files {
    Gguf(GgufParts),
    HuggingFace(Box<HfModel>),
}

impl Files {
    fn container(&self) -> &dyn Container {
        match self {
            Self::Gguf(parts) => parts,
            Self::HuggingFace(model) => &**model,
        }
    }

    fn architecture(&self) -> Result<(Format, String)> {
        match self {
            Self::Gguf(parts) => {
                let key = "general.architecture";
                match Meta::new(parts, "").string(key)? {
                    Some(name) => Ok((Format::Gguf, name)),
                    None => Err(CheckpointError::MissingKey { key: key.into() }),
                }
            }
            Self::HuggingFace(model) => Ok((Format::HuggingFace, model.architecture()?)),
        }
    }
}

impl std::fmt::Debug for ModelFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelFile")
            .field("path", &self.path)
            .field("architecture", &self.architecture.name)
            .finish_non_exhaustive()
    }
}

impl ModelFile {
    /// Opens a GGUF file (of a split model, any of its files), or a Hugging Face folder (or its
    /// `config.json` or one of its safetensors files).
    ///
    /// # Errors
    /// Files that cannot be read, whose structure is corrupt, or that hold an architecture, a
    /// feature or a tensor type that is not supported.
    pub fn open(path: &Path) -> Result<Self> {
        let files = match hf_folder(path) {
            Some(folder) => Files::HuggingFace(Box::new(HfModel::open(folder)?)),
            None => Files::Gguf(GgufParts::open(path)?),
        };
        Self::from_files(path, files).map_err(|e| e.in_file(path))
    }

    /// A model from a Hugging Face folder that need not be on disk.
    ///
    /// # Errors
    /// As for [`ModelFile::open`].
    pub fn from_folder<F: Folder + ?Sized>(folder: &F) -> Result<Self> {
        Self::from_files(Path::new(""), Files::HuggingFace(Box::new(HfModel::open(folder)?)))
    }

    /// A model from GGUF files that were read already.
    ///
    /// # Errors
    /// As for [`ModelFile::open`].
    pub fn from_gguf(parts: GgufParts) -> Result<Self> {
        Self::from_files(Path::new(""), Files::Gguf(parts))
    }

    fn from_files(path: &Path, files: Files) -> Result<Self> {
        let store = files.container();
        let (format, name) = files.architecture()?;
        let architecture = arch::lookup(format, &name)?;
        let built = arch::build(architecture, &Meta::new(store, architecture.name), store)?;
        let places = Places::find(architecture, &built.spec, store)?;
        Ok(Self { path: path.into(), files, architecture, built, places })
    }

    /// The path that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The files that were mapped, in order.
    pub fn files(&self) -> Vec<PathBuf> {
        match &self.files {
            Files::Gguf(parts) => parts.paths().to_vec(),
            Files::HuggingFace(model) => model.paths().to_vec(),
        }
    }

    /// The architecture and its sizes. Where RoPE has two sets of factors, those for the whole
    /// context length are in it; see [`ModelFile::spec_for_context`].
    pub fn spec(&self) -> &ModelSpec {
        &self.built.spec
    }

    /// The shortest context whose spec differs from [`ModelFile::spec`], for models with a second
    /// set of RoPE factors for long contexts.
    pub fn long_context_from(&self) -> Option<usize> {
        self.built.long_rope.as_ref().map(|two| two.original_context + 1)
    }

    /// The spec for sequences of up to `context` tokens: LongRoPE's short factors where the
    /// context does not pass the original one. Chosen once for a run, since a choice by the
    /// current length would change the KV of tokens that are stored already.
    pub fn spec_for_context(&self, context: usize) -> ModelSpec {
        let mut spec = self.built.spec.clone();
        if let Some(two) = &self.built.long_rope {
            let chosen = if context > two.original_context { &two.long } else { &two.short };
            for layer in &mut spec.layers {
                if matches!(layer.attn.rope.scaling, RopeScaling::Factors { .. }) {
                    layer.attn.rope.scaling = chosen.clone();
                }
            }
        }
        spec
    }

    /// The matrix of a role. `layer` and `expert` are ignored for roles that have none.
    /// `None` where the model has no such matrix.
    pub fn matrix(&self, role: Role, layer: usize, expert: usize) -> Option<MatrixView<'_>> {
        let layer = (!role.is_global()).then_some(layer);
        let expert = role.is_expert().then_some(expert);
        self.places.get(role, layer, expert)?.matrix(self.files.container())
    }

    /// The vector of a role (a norm's weight or a bias) as f32, ready to use: offsets that the
    /// file leaves to the reader are added, and a bias has the row order of its matrix.
    /// `layer` is ignored for roles that have none. `None` where the model has no such vector.
    pub fn vector(&self, role: Role, layer: usize) -> Option<Vec<f32>> {
        let layer = (!role.is_global()).then_some(layer);
        self.places.get(role, layer, None)?.vector(self.files.container())
    }

    /// The name of a role's tensor in the file.
    pub fn tensor_name(&self, role: Role, layer: usize, expert: usize) -> Option<String> {
        let layer = (!role.is_global()).then_some(layer);
        let expert = role.is_expert().then_some(expert);
        Some(self.places.get(role, layer, expert)?.tensor.clone())
    }

    /// The tokenizer's description; `None` for a folder without `tokenizer.json`.
    pub fn tokenizer(&self) -> Option<TokenizerSource<'_>> {
        match &self.files {
            Files::Gguf(parts) => Some(TokenizerSource::Gguf(GgufTokenizer::new(parts))),
            Files::HuggingFace(model) => model.tokenizer().map(TokenizerSource::HfJson),
        }
    }

    /// Chat templates (Jinja) with their names, in the order of the file.
    ///
    /// # Errors
    /// A key is there and is no UTF-8 string.
    pub fn chat_templates(&self) -> Result<Vec<(&str, &str)>> {
        match &self.files {
            Files::HuggingFace(model) => Ok(model.templates().collect()),
            Files::Gguf(parts) => gguf_templates(parts),
        }
    }

    /// The chat template that is used when none is named, where the model has one.
    ///
    /// # Errors
    /// As for [`ModelFile::chat_templates`].
    pub fn chat_template(&self) -> Result<Option<&str>> {
        let all = self.chat_templates()?;
        Ok(all.iter().find(|(name, _)| *name == "default").map(|(_, template)| *template))
    }

    pub(crate) fn tensors(&self) -> Vec<(&str, TensorDesc)> {
        self.files.container().tensors()
    }

    pub(crate) fn places(&self) -> impl Iterator<Item = (Role, Option<usize>, &Placed)> {
        self.places.iter()
    }

    pub(crate) fn format(&self) -> &'static str {
        match &self.files {
            Files::Gguf(_) => "gguf",
            Files::HuggingFace(_) => "safetensors",
        }
    }

    /// Metadata as text, in the order of the file.
    pub(crate) fn metadata(&self) -> Vec<MetadataEntry> {
        match &self.files {
            Files::Gguf(parts) => {
                let first = parts.parts().first().into_iter();
                first
                    .flat_map(|p| p.metadata())
                    .map(|(k, v)| MetadataEntry { key: k.into(), value: show_value(&v) })
                    .collect()
            }
            Files::HuggingFace(model) => model
                .metadata()
                .map(|(k, v)| MetadataEntry { key: k.into(), value: show_datum(&v) })
                .collect(),
        }
    }
}

/// The folder that a path means, where it means a Hugging Face folder and no GGUF file.
pub(crate) fn hf_folder(path: &Path) -> Option<&Path> {
    if path.is_dir() {
        return Some(path);
    }
    let name = path.file_name()?.to_str()?;
    let inside = name == "config.json"
        || name.ends_with(".safetensors")
        || name.ends_with(".safetensors.index.json");
    // The parent of a bare file name is the empty path, which is no folder to the system.
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    inside.then_some(folder)
}

fn gguf_templates(parts: &GgufParts) -> Result<Vec<(&str, &str)>> {
    const KEY: &str = "tokenizer.chat_template";
    let mut all = Vec::new();
    for (key, value) in parts.parts().first().into_iter().flat_map(|p| p.metadata()) {
        let name = match key.strip_prefix(KEY) {
            Some("") => "default",
            Some(rest) => match rest.strip_prefix('.') {
                Some(name) => name,
                None => continue,
            },
            None => continue,
        };
        let template = value.as_str().ok_or_else(|| CheckpointError::BadKey {
            key: key.into(),
            problem: "is no UTF-8 string".into(),
        })?;
        all.push((name, template));
    }
    Ok(all)
}

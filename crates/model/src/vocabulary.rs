//! From a model file's tokenizer to the tables that a pack keeps.

use crate::ModelError;
use dunlin_checkpoint::{GgufTokenizer, ModelFile, TokenizerSource};
use dunlin_tokenizer::{GgufMeta, HfConfig, HfVocab, build_image, vocab_from_gguf};

/// A GGUF file's metadata as the tokenizer wants to see it.
struct Meta<'a>(GgufTokenizer<'a>);

impl GgufMeta for Meta<'_> {
    fn string(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.as_str()
    }

    fn uint(&self, key: &str) -> Option<u64> {
        self.0.get(key)?.as_u64()
    }

    fn boolean(&self, key: &str) -> Option<bool> {
        self.0.get(key)?.as_bool()
    }

    fn strings(&self, key: &str) -> Option<Vec<&[u8]>> {
        Some(self.0.get(key)?.as_array()?.strings()?.collect())
    }

    fn floats(&self, key: &str) -> Option<Vec<f32>> {
        Some(self.0.get(key)?.as_array()?.f32s()?.collect())
    }

    fn ints(&self, key: &str) -> Option<Vec<i32>> {
        Some(self.0.get(key)?.as_array()?.i32s()?.collect())
    }
}

/// The tokenizer's tables, ready to be mapped.
pub(crate) fn tables(file: &ModelFile) -> Result<Vec<u8>, ModelError> {
    let path = || file.path().to_path_buf();
    let bad = |source| ModelError::Tokenizer { path: path(), source };
    match file.tokenizer() {
        None => Err(ModelError::NoTokenizer { path: path() }),
        Some(TokenizerSource::Gguf(meta)) => {
            let meta = Meta(meta);
            let vocab = vocab_from_gguf(&meta, None).map_err(bad)?;
            build_image(&vocab).map_err(bad)
        }
        Some(TokenizerSource::HfJson(files)) => {
            let config = HfConfig {
                bos_token: files.bos_token,
                eos_token: files.eos_token,
                bos_id: files.bos_id,
                eos_ids: files.eos_ids,
                add_bos: files.add_bos,
                add_eos: files.add_eos,
            };
            let vocab = HfVocab::parse(files.json, &config).map_err(bad)?;
            build_image(&vocab.source()).map_err(bad)
        }
    }
}

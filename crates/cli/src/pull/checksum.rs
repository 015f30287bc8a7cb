//! Hashes of files as they arrive.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use sha1::Sha1;
use sha2::{Digest, Sha256};

use super::error::PullError;

/// What a file's bytes must hash to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expected {
    /// SHA-256 of the bytes, in hexadecimal: large files.
    Sha256(String),
    /// SHA-1 of a git blob, in hexadecimal: small files of a repository.
    GitBlob(String),
}

impl Expected {
    /// Reads an entity tag: 64 hexadecimal digits are a SHA-256, 40 a git blob.
    pub fn from_etag(tag: &str) -> Option<Self> {
        if !tag.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        match tag.len() {
            64 => Some(Self::Sha256(tag.to_lowercase())),
            40 => Some(Self::GitBlob(tag.to_lowercase())),
            _ => None,
        }
    }

    /// What is compared, for messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Sha256(_) => "the SHA-256",
            Self::GitBlob(_) => "the git hash",
        }
    }

    /// The hash.
    pub fn hex(&self) -> &str {
        match self {
            Self::Sha256(hex) | Self::GitBlob(hex) => hex,
        }
    }

    /// A hasher of the kind, for a file of `bytes` bytes.
    fn hasher(&self, bytes: u64) -> Hasher {
        match self {
            Self::Sha256(_) => Hasher::Sha256(Sha256::new()),
            Self::GitBlob(_) => {
                let mut sha1 = Sha1::new();
                sha1.update(format!("blob {bytes}\0"));
                Hasher::Sha1(sha1)
            }
        }
    }

    /// Compares a file with this, reading all of it.
    pub fn check(&self, path: &Path) -> Result<(), PullError> {
        let mut file = File::open(path).map_err(PullError::io("open", path))?;
        let bytes = file.metadata().map_err(PullError::io("read", path))?.len();
        let mut running = Running::new(self, bytes);
        running.catch_up(&mut file, bytes).map_err(PullError::io("read", path))?;
        running.finish(path)
    }
}

enum Hasher {
    Sha256(Sha256),
    Sha1(Sha1),
}

impl Hasher {
    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(h) => h.update(bytes),
            Self::Sha1(h) => h.update(bytes),
        }
    }

    fn hex(self) -> String {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect();
        match self {
            Self::Sha256(h) => hex(&h.finalize()),
            Self::Sha1(h) => hex(&h.finalize()),
        }
    }
}

/// The hash of a file that is being written.
pub struct Running {
    expected: Expected,
    bytes: u64,
    hasher: Hasher,
    hashed: u64,
}

impl Running {
    /// For a file that will have `bytes` bytes.
    pub fn new(expected: &Expected, bytes: u64) -> Self {
        let hasher = expected.hasher(bytes);
        Self { expected: expected.clone(), bytes, hasher, hashed: 0 }
    }

    /// Hashes `bytes`, which follow on what was hashed before.
    pub fn update(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
        self.hashed += bytes.len() as u64;
    }

    /// Makes this the hash of the first `length` bytes of `file`, reading what it has not seen.
    pub fn catch_up(&mut self, file: &mut File, length: u64) -> std::io::Result<()> {
        if self.hashed > length {
            self.hasher = self.expected.hasher(self.bytes);
            self.hashed = 0;
        }
        file.seek(SeekFrom::Start(self.hashed))?;
        let mut left = file.take(length - self.hashed);
        let mut buffer = vec![0; 1 << 18];
        loop {
            let n = left.read(&mut buffer)?;
            if n == 0 {
                return Ok(());
            }
            self.hasher.update(&buffer[..n]);
            self.hashed += n as u64;
        }
    }

    /// Compares; `path` is for the message.
    pub fn finish(self, path: &Path) -> Result<(), PullError> {
        let found = self.hasher.hex();
        if found == self.expected.hex() {
            return Ok(());
        }
        Err(PullError::Checksum {
            file: path.display().to_string(),
            kind: self.expected.kind(),
            expected: self.expected.hex().into(),
            found,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The hashes that `sha256sum` and `git hash-object` print.
    #[test]
    fn known_hashes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("abc");
        std::fs::write(&path, "abc").unwrap();
        for tag in [
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
            "f2ba8f84ab5c1bce84a7b441cb1959cfc7093b7f",
        ] {
            Expected::from_etag(tag).unwrap().check(&path).unwrap();
            let wrong = Expected::from_etag(&tag.replace('f', "0")).unwrap().check(&path);
            assert!(matches!(wrong, Err(PullError::Checksum { .. })));
        }
        assert_eq!(Expected::from_etag("5d41402abc4b2a76b9719d911017c592-3"), None);
    }
}

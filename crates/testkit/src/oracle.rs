//! Logits by the float64 scripts, `oracle/oracle.py` (GGUF files) and `oracle/extra.py` (Hugging
//! Face folders).

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::models::skipped;

/// Which script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Script {
    /// `oracle.py`, for GGUF files.
    Oracle,
    /// `extra.py`, for Hugging Face folders: written apart from the other, from the papers and the
    /// models' own definitions.
    Extra,
}

impl Script {
    fn path(self) -> PathBuf {
        let name = match self {
            Self::Oracle => "oracle.py",
            Self::Extra => "extra.py",
        };
        Path::new(env!("CARGO_MANIFEST_DIR")).join("oracle").join(name)
    }

    /// Logits of every position, `[tokens.len(), vocab]`, of a run with room for `context` tokens.
    /// `None`, with a line for the summary, where Python's packages are not there.
    ///
    /// # Panics
    /// Where the script fails.
    pub fn logits(
        self,
        model: &Path,
        tokens: &[u32],
        context: usize,
        test: &str,
    ) -> Option<Vec<f64>> {
        let Some(packages) = packages() else {
            skipped(test, "gguf and numpy are not installed; scripts/test.sh does that");
            return None;
        };
        let out = tempfile::NamedTempFile::with_suffix(".npy").expect("a temporary file");
        let ids: Vec<String> = tokens.iter().map(u32::to_string).collect();
        let mut command = Command::new(python());
        command.arg(self.path()).arg(model).arg("--tokens").arg(ids.join(","));
        if self == Self::Extra {
            command.arg("--context").arg(context.to_string());
        }
        command.arg("--out").arg(out.path()).env("PYTHONPATH", packages);
        // Many run side by side: one thread each, and no compiled files in the source tree.
        command.env("OPENBLAS_NUM_THREADS", "1").env("PYTHONDONTWRITEBYTECODE", "1");
        let output = command.output().expect("python runs");
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{self:?} on {}: {message}", model.display());
        Some(read_npy(&std::fs::read(out.path()).expect("the script's output")))
    }
}

fn python() -> String {
    std::env::var("DUNLIN_PYTHON").unwrap_or_else(|_| "python3".into())
}

/// The folder with numpy and gguf: what the test command installed.
fn packages() -> Option<PathBuf> {
    let folder = std::env::var_os("DUNLIN_ORACLE_PACKAGES").map(PathBuf::from);
    let folder = folder.unwrap_or_else(|| crate::workspace_root().join("target/oracle-packages"));
    folder.join("numpy").is_dir().then_some(folder)
}

/// The values of a NumPy file of little-endian float64.
fn read_npy(bytes: &[u8]) -> Vec<f64> {
    assert!(bytes.starts_with(b"\x93NUMPY\x01\x00"), "a NumPy file of version 1");
    let header = u16::from_le_bytes([bytes[8], bytes[9]]) as usize;
    let text = String::from_utf8_lossy(&bytes[10..10 + header]);
    assert!(text.contains("'<f8'") && text.contains("'fortran_order': False"), "{text}");
    let values = bytes[10 + header..].chunks_exact(8);
    values.map(|b| f64::from_le_bytes(b.try_into().expect("eight bytes"))).collect()
}

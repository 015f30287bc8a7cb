//! How commands end: exit codes, and the kinds of error that choose between them.

use std::{fmt, io, process::ExitCode};

/// A command line or input that cannot be used, as opposed to something that failed.
#[derive(Debug)]
pub struct Unusable(pub String);

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unusable {}

/// An [`Unusable`] error from anything that can be shown.
pub fn unusable(problem: impl fmt::Display) -> anyhow::Error {
    Unusable(problem.to_string()).into()
}

/// Exit code of a command that was interrupted, as shells count: 128 and the signal's number.
pub const INTERRUPTED: u8 = 130;

/// Writes a line to standard error; that it is closed is nobody's loss.
#[macro_export]
macro_rules! note {
    ($($arg:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($arg)*);
    }};
}

/// The exit code for a command's result; errors are told on standard error.
pub fn exit_code(result: anyhow::Result<ExitCode>) -> ExitCode {
    let error = match result {
        Ok(code) => return code,
        Err(error) => error,
    };
    if is_broken_pipe(&error) {
        return ExitCode::SUCCESS;
    }
    note!("dunlin: {}", told(&error));
    if error.chain().any(|cause| cause.is::<Unusable>()) {
        ExitCode::from(2)
    } else {
        ExitCode::FAILURE
    }
}

/// An error and its causes in one line; a cause that the error quotes is not told twice.
fn told(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Whether the reader of standard output went away.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let io = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        let json = cause.downcast_ref::<serde_json::Error>().and_then(|e| e.io_error_kind());
        io == Some(io::ErrorKind::BrokenPipe) || json == Some(io::ErrorKind::BrokenPipe)
    })
}

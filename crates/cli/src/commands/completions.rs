//! `dunlin completions`: scripts that let a shell complete dunlin's command lines.

use std::{io::Write as _, process::ExitCode};

use clap_complete::Shell;

/// Print a completion script for a shell
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

/// Writes the script to standard output.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    // Generated into memory first: the generator panics when its output is closed.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut crate::command_line(), "dunlin", &mut script);
    std::io::stdout().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}

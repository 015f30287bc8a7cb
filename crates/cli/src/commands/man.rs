//! `dunlin man`: manual pages.

use std::{io::Write as _, path::PathBuf, process::ExitCode};

use anyhow::Context as _;

/// Print dunlin's manual page, or write those of all commands into a folder
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The folder; a page of its own for each command
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
}

/// Writes the pages.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let command = crate::command_line();
    if let Some(folder) = args.out {
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        clap_mangen::generate_to(command, &folder)
            .with_context(|| format!("cannot write the pages into {}", folder.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page)?;
    std::io::stdout().write_all(&page)?;
    Ok(ExitCode::SUCCESS)
}

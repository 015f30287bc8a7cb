//! The `dunlin` binary: reads the command line, runs one command, and turns what comes of it into
//! an exit code.
//!
//! Results go to standard output and everything else to standard error. Exit codes: 0 for success
//! (and when the reader of standard output goes away), 1 for a failure, 2 for a command line or
//! input that cannot be used, 130 when interrupted.
#![forbid(unsafe_code)]

mod commands;
mod config_file;
mod engine_args;
mod flags;
mod interrupt;
mod load;
mod model_args;
mod outcome;
mod prompt;
mod pull;
mod report;
mod sampling_args;
mod speculate_args;
mod threads;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

/// Run language models on this machine: fast, with the same bits every time.
#[derive(Debug, Parser)]
#[command(name = "dunlin", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = "Exit codes: 0 success, 1 failure, 2 unusable command line or input, \
                        130 interrupted.")]
struct Cli {
    #[command(subcommand)]
    command: commands::Command,
}

/// The whole command line, for shell completions.
fn command_line() -> clap::Command {
    Cli::command()
}

fn main() -> ExitCode {
    // Where it is refused, a model's file that is shortened ends the program without a word.
    let _ = dunlin_checkpoint::source::explain_bus_errors();
    let args = flags::expand_long_shorts(std::env::args_os());
    let ran = config_file::expand(args, &command_line())
        .and_then(|args| Cli::parse_from(args).command.run());
    outcome::exit_code(ran)
}

//! The commands. Each is a file (or folder) of its own with a struct `Args` and a function
//! `run(Args) -> anyhow::Result<ExitCode>`; a new one is that file and one line below. The help text
//! is the doc comment of its `Args`.

use std::process::ExitCode;

/// Declares `Module => Variant` pairs as modules and as subcommands (the variant's name in kebab
/// case is the command's).
macro_rules! commands {
    ($($module:ident => $variant:ident,)*) => {
        $(pub mod $module;)*

        /// What to do.
        #[derive(Debug, clap::Subcommand)]
        #[allow(clippy::large_enum_variant, reason = "there is one, and it is moved once")]
        pub enum Command {
            $(#[allow(missing_docs, reason = "documented by its arguments")]
            $variant($module::Args),)*
        }

        impl Command {
            /// Runs the command.
            pub fn run(self) -> anyhow::Result<ExitCode> {
                match self {
                    $(Self::$variant(args) => $module::run(args),)*
                }
            }
        }
    };
}

commands! {
    bench => Bench,
    calibrate => Calibrate,
    completions => Completions,
    cost => Cost,
    detokenize => Detokenize,
    eval => Eval,
    inspect => Inspect,
    man => Man,
    plan => Plan,
    pull => Pull,
    replay => Replay,
    run => Run,
    serve => Serve,
    simulate => Simulate,
    tokenize => Tokenize,
    trace => Trace,
    validate => Validate,
}

//! Settings from a TOML file: every flag of a command by its long name, with less weight than the
//! environment, which has less than the command line.
//!
//! The file's keys become arguments before the command line is parsed, so that they are checked as
//! flags are, and there is one description of each setting.

use std::{ffi::OsString, path::Path};

use clap::{ArgAction, Command, parser::ValueSource};
use toml::Value;

use crate::outcome::unusable;

/// The command that takes its settings from a file. (Others mean something else by `--config`.)
const COMMAND: &str = "serve";
/// The flag and the environment variable that name the file.
const FLAG: &str = "config";
const VARIABLE: &str = "DUNLIN_CONFIG";

/// The command line with the settings of the file that it, or the environment, names.
///
/// # Errors
/// Files that cannot be read, are no TOML, or have keys that are no flags of the command.
pub fn expand(args: Vec<OsString>, command: &Command) -> anyhow::Result<Vec<OsString>> {
    // What is wrong with the command line is told when it is parsed for good.
    let lenient = command.clone().ignore_errors(true).try_get_matches_from(&args);
    let Ok(lenient) = lenient else { return Ok(args) };
    let Some((name, given)) = lenient.subcommand() else { return Ok(args) };
    let Some(sub) = command.find_subcommand(name) else { return Ok(args) };
    if name != COMMAND {
        return Ok(args);
    }
    let path = given.get_raw(FLAG).and_then(|mut paths| paths.next_back().map(OsString::from));
    let path = path.or_else(|| std::env::var_os(VARIABLE).filter(|path| !path.is_empty()));
    let Some(path) = path else { return Ok(args) };
    let text = std::fs::read_to_string(&path).map_err(|error| {
        unusable(format!("cannot read the configuration {}: {error}", Path::new(&path).display()))
    })?;
    let has = |id: &str| {
        matches!(given.value_source(id), Some(ValueSource::CommandLine | ValueSource::EnvVariable))
    };
    let mut args = args;
    let problem = |problem| unusable(format!("{}: {problem}", Path::new(&path).display()));
    args.extend(arguments(&text, sub, has).map_err(problem)?);
    Ok(args)
}

/// The arguments that a file's text stands for, but for those that are given already.
fn arguments(
    text: &str,
    command: &Command,
    given: impl Fn(&str) -> bool,
) -> Result<Vec<OsString>, String> {
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
        format!("line {}: {}", line_of(text, &error), error.message())
    })?;
    let mut out = Vec::new();
    for (key, value) in &table {
        let long = key.replace('_', "-");
        let arg = command.get_arguments().find(|arg| {
            let own = arg.get_long() == Some(&long);
            let alias = || arg.get_all_aliases().is_some_and(|all| all.contains(&long.as_str()));
            own || alias()
        });
        let arg = arg.filter(|arg| ![FLAG, "help", "version"].contains(&arg.get_id().as_str()));
        let arg = arg.ok_or_else(|| {
            format!("there is no setting {key}; dunlin help {} lists them", command.get_name())
        })?;
        if given(arg.get_id().as_str()) {
            continue;
        }
        let flag = format!("--{long}");
        let many = matches!(arg.get_action(), ArgAction::Append);
        match (arg.get_action(), value) {
            (ArgAction::SetTrue, Value::Boolean(true)) => out.push(flag.into()),
            (ArgAction::SetTrue, Value::Boolean(false)) => {}
            (ArgAction::SetTrue, _) => return Err(format!("{key} must be true or false")),
            (_, Value::Array(values)) if many => {
                for value in values {
                    out.push(format!("{flag}={}", scalar(key, value)?).into());
                }
            }
            (_, value) => out.push(format!("{flag}={}", scalar(key, value)?).into()),
        }
    }
    Ok(out)
}

/// The line that an error is in, from 1.
pub fn line_of(text: &str, error: &toml::de::Error) -> usize {
    let start = error.span().map_or(0, |span| span.start.min(text.len()));
    1 + text.as_bytes()[..start].iter().filter(|&&byte| byte == b'\n').count()
}

fn scalar(key: &str, value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Integer(number) => Ok(number.to_string()),
        Value::Float(number) => Ok(number.to_string()),
        Value::Boolean(on) => Ok(on.to_string()),
        _ => Err(format!("{key} must be a string, a number, a boolean or a list of such")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serve() -> Command {
        crate::command_line().find_subcommand("serve").unwrap().clone()
    }

    fn read(text: &str) -> Result<Vec<String>, String> {
        let args = arguments(text, &serve(), |id| id == "host");
        args.map(|args| args.into_iter().map(|arg| arg.into_string().unwrap()).collect())
    }

    #[test]
    fn keys_become_flags() {
        let text = "port = 99\nhost = \"::1\"\napi_key = [\"a\", \"b\"]\nno-prefix-cache = true\n\
            verbose = false\nctx-size = 512\nmodel = \"m x.gguf\"\n";
        let expected = [
            "--api-key=a",
            "--api-key=b",
            "--ctx-size=512",
            "--model=m x.gguf",
            "--no-prefix-cache",
            "--port=99",
        ];
        let mut found = read(text).unwrap();
        found.sort();
        assert_eq!(found, expected, "what is given already is left out");
    }

    #[test]
    fn what_is_wrong_is_told() {
        for (text, problem) in [
            ("prot = 5", "there is no setting prot"),
            ("help = true", "there is no setting help"),
            ("config = \"x\"", "there is no setting config"),
            ("port = [1, 2]", "port must be a string"),
            ("[port]\nx = 1", "port must be a string"),
            ("no-prefix-cache = \"yes\"", "must be true or false"),
            ("port = 1\nport = 2", "line 2"),
            ("port = ", "line 1"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(problem), "{text}: {error}");
        }
    }

    #[test]
    fn other_commands_keep_their_own_configurations() {
        let args = ["dunlin", "plan", "-c", "/no/such/plan.toml"].map(OsString::from).to_vec();
        assert_eq!(expand(args.clone(), &crate::command_line()).unwrap(), args);
    }

    /// Whatever a file can say, the environment can.
    #[test]
    fn every_setting_has_a_variable() {
        for arg in serve().get_arguments() {
            let Some(long) = arg.get_long() else { continue };
            if ["help", "version"].contains(&long) {
                continue;
            }
            let variable = arg.get_env().map(|name| name.to_string_lossy().into_owned());
            let variable = variable.unwrap_or_else(|| panic!("--{long} has no variable"));
            let expected = format!("DUNLIN_{}", long.replace('-', "_").to_uppercase());
            assert_eq!(variable, expected);
        }
    }
}

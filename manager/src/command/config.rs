//! A file of options: TOML, each option of the command line under the same name. The command
//! line wins.
//!
//! The names and the values are read by the command line's own parser, so that there is one list
//! of options, and one word for what is wrong.

use crate::server::ConfigFile;
use anyhow::anyhow;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command};
use std::collections::BTreeMap;
use toml::{Spanned, Value};

/// Completes what was `given` on the command line by a file's options.
pub(super) fn complete<A: Args>(
    options: &mut A,
    given: &ArgMatches,
    file: &ConfigFile,
) -> anyhow::Result<()> {
    let path = file.path.display();
    complete_by(options, given, &file.text).map_err(|(line, error)| match line {
        Some(line) => anyhow!("{path}:{line}: {error}"),
        None => anyhow!("{path}: {error}"),
    })
}

/// An error and its line.
type Located = (Option<usize>, String);

fn complete_by<A: Args>(options: &mut A, given: &ArgMatches, text: &str) -> Result<(), Located> {
    let line = |at: usize| Some(text[..at].matches('\n').count() + 1);
    let entries: BTreeMap<Spanned<String>, Value> = toml::from_str(text)
        .map_err(|error| (error.span().and_then(|span| line(span.start)), error.message().into()))?;
    let mut parser = parser::<A>();
    let mut all = Vec::new();
    for (key, value) in &entries {
        let words = words(&parser, key.get_ref(), value).and_then(|words| {
            parser.try_get_matches_from_mut(&words).map_err(|error| first_line(&error))?;
            Ok(words)
        });
        let words = words.map_err(|error| (line(key.span().start), error))?;
        if !is_overruled(&parser, key.get_ref(), given) {
            all.extend(words);
        }
    }
    let found = parser.try_get_matches_from_mut(all).map_err(|error| (None, first_line(&error)))?;
    options.update_from_arg_matches(&found).map_err(|error| (None, first_line(&error)))
}

/// The command line's parser without its defaults: what is not in the file stays as it is.
fn parser<A: Args>() -> Command {
    let command = Command::new("options").no_binary_name(true).disable_help_flag(true);
    let command = A::augment_args_for_update(command);
    let mut command = command.mut_args(|arg| arg.default_value(None::<&str>));
    command.build();
    command
}

fn find<'a>(parser: &'a Command, name: &str) -> Option<&'a Arg> {
    parser.get_arguments().find(|arg| arg.get_long() == Some(name))
}

fn words(parser: &Command, name: &str, value: &Value) -> Result<Vec<String>, String> {
    if find(parser, name).is_none() {
        return Err(format!("there is no option {name:?}; `tidegate manager --help` lists them"));
    }
    let values = match value {
        Value::Array(values) => values.as_slice(),
        value => std::slice::from_ref(value),
    };
    values.iter().map(|value| Ok(format!("--{name}={}", word(name, value)?))).collect()
}

fn word(name: &str, value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Integer(number) => Ok(number.to_string()),
        Value::Float(number) => Ok(number.to_string()),
        Value::Boolean(flag) => Ok(flag.to_string()),
        other => Err(format!("{name}: a text or a number is wanted, not a {}", other.type_str())),
    }
}

/// Whether the command line gave this option, or one that excludes it.
fn is_overruled(parser: &Command, name: &str, given: &ArgMatches) -> bool {
    let is_given = |arg: &&Arg| given.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    let excludes = |one: &Arg, other: &Arg| {
        parser.get_arg_conflicts_with(one).iter().any(|arg| arg.get_id() == other.get_id())
    };
    find(parser, name).is_some_and(|arg| {
        let mut given = parser.get_arguments().filter(is_given);
        given.any(|given| given.get_id() == arg.get_id() || excludes(given, arg) || excludes(arg, given))
    })
}

/// What is wrong, without usage and hints for the command line.
fn first_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    line.strip_prefix("error: ").unwrap_or(line).into()
}

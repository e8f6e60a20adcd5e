//! Configuration: flags over environment over a TOML file.
//!
//! The flags of `kvik serve` are the only list of settings. Each can also be set by an environment variable,
//! `--cache-ram` by `KVIK_CACHE_RAM`, and by a key of the file, `cache-ram = "2GiB"`. The file's values become clap's
//! defaults, so `--help` shows the values in force. An error about a value names the variable or the key of the file
//! that set it. A path from any source may begin with `~/`. A flag of another command, or of a command below one, is the
//! same setting where its name and the type of its value are the same.

mod file;
mod model_tables;

use std::{any::TypeId, ffi::OsString, path::PathBuf};

use anyhow::{Context, bail};
use clap::{
    Arg, ArgAction, ArgMatches, Command,
    builder::{PathBufValueParser, TypedValueParser},
    error::{ContextKind, ContextValue},
};
use toml::{Table, Value};

use kvik_serving::settings::home;

use file::read_file;

pub(crate) use file::file_of;
pub(crate) use model_tables::{ModelTable, flags_in_force, models, of_tables};

/// The key of the tables of models.
const MODELS: &str = "models";
/// The variable of `--url`, the server that commands ask. `kvik serve` has no such setting.
const URL_VARIABLE: &str = "KVIK_URL";

/// Adds the environment and the file as sources of the flags of all commands.
pub(crate) fn configure(command: Command, args: &[OsString]) -> anyhow::Result<Command> {
    let settings = settings(&command);
    let (path, table) = read_file(args)?;
    check_keys(&table, &settings).with_context(|| format!("in {}", path.display()))?;
    // A flag comes before every variable, also one that says the same in other words.
    let has_address = ["host", "port"].iter().any(|long| is_word(&command, long, args));
    let sources = FlagSources { settings, table, has_address };
    Ok(command.mut_subcommands(|sub| sources.added_to(sub)))
}

/// Where flags get their values from, if the command line has none.
struct FlagSources {
    /// The long flags of `kvik serve`.
    settings: Vec<Arg>,
    /// The file.
    table: Table,
    /// Whether the command line says where the server listens.
    has_address: bool,
}

impl FlagSources {
    /// A command whose flags, and those of the commands below it, have these sources.
    fn added_to(&self, command: Command) -> Command {
        command.mut_args(|arg| self.added_to_flag(arg)).mut_subcommands(|sub| self.added_to(sub))
    }

    fn added_to_flag(&self, arg: Arg) -> Arg {
        let arg = in_home(arg);
        let setting = self.settings.iter().find(|setting| is_setting(&arg, setting)).and_then(Arg::get_long);
        match setting {
            Some(setting) => with_defaults(arg, setting, &self.table),
            None if arg.get_long() == Some("url") && !self.has_address => arg.env(URL_VARIABLE),
            None => arg,
        }
    }
}

/// Long flags of `kvik serve`.
fn settings(command: &Command) -> Vec<Arg> {
    let serve = command.find_subcommand("serve").expect("the command `serve` exists");
    let is_own = |arg: &&Arg| arg.get_long().is_some_and(|long| long != "help" && long != "version");
    serve.get_arguments().filter(is_own).cloned().collect()
}

/// Whether a flag is this one of `kvik serve`. One of the same name whose value is of another type means something else:
/// `kvik eval --memory` is a size, and `kvik serve --memory` is on or off.
fn is_setting(arg: &Arg, setting: &Arg) -> bool {
    arg.get_long() == setting.get_long()
        && arg.get_value_parser().type_id() == setting.get_value_parser().type_id()
}

/// The environment variable of a setting.
fn variable_of(setting: &str) -> String {
    let name = match setting {
        // KVIK_LOG sets the level.
        "log" => "log-format",
        _ => setting,
    };
    format!("KVIK_{}", name.to_uppercase().replace('-', "_"))
}

/// Expands `~/` in a flag that is a path.
fn in_home(arg: Arg) -> Arg {
    match arg.get_value_parser().type_id() == TypeId::of::<PathBuf>() {
        true => arg.value_parser(PathBufValueParser::new().map(home::path)),
        false => arg,
    }
}

fn with_defaults(arg: Arg, setting: &str, table: &Table) -> Arg {
    let arg = arg.env(variable_of(setting));
    match table.get(setting).map(words) {
        Some(values) => arg.default_values(values),
        None => arg,
    }
}

/// A value as clap would read it from the command line.
fn words(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) => vec![text.clone()],
        Value::Array(items) => items.iter().flat_map(words).collect(),
        other => vec![other.to_string()],
    }
}

/// Parses the command line with a command that was configured for it.
pub(crate) fn matches(command: &Command, args: &[OsString]) -> Result<ArgMatches, clap::Error> {
    let place = |long: &str| {
        if is_word(command, long, args) {
            return None;
        }
        let variable = variable_of(long);
        if std::env::var_os(&variable).is_some() {
            return Some(variable);
        }
        let (path, table) = read_file(args).ok()?;
        table.contains_key(long).then(|| format!("{long} in {}", path.display()))
    };
    command.clone().try_get_matches_from(args).map_err(|error| placed(error, place))
}

/// Whether a flag is on the command line.
fn is_word(command: &Command, long: &str, args: &[OsString]) -> bool {
    let flags = command.get_subcommands().flat_map(Command::get_arguments);
    let short = flags.filter(|arg| arg.get_long() == Some(long)).find_map(Arg::get_short);
    let mut words = args.iter().take_while(|word| *word != "--").filter_map(|word| word.to_str());
    let is_it = |word: &str| match word.strip_prefix("--") {
        Some(word) => word.split('=').next() == Some(long),
        None => short.is_some_and(|short| word.strip_prefix('-').is_some_and(|word| word.starts_with(short))),
    };
    words.any(is_it)
}

/// The error with the origin of a value instead of its flag; `place` returns the origin by the long name of the flag.
pub(crate) fn placed(mut error: clap::Error, place: impl Fn(&str) -> Option<String>) -> clap::Error {
    let told = |flag: &String| {
        let long = flag.strip_prefix("--").and_then(|flag| flag.split([' ', '=', '[']).next());
        long.and_then(&place).unwrap_or_else(|| flag.clone())
    };
    for kind in [ContextKind::InvalidArg, ContextKind::PriorArg] {
        let told = match error.get(kind) {
            Some(ContextValue::String(flag)) => ContextValue::String(told(flag)),
            Some(ContextValue::Strings(flags)) => ContextValue::Strings(flags.iter().map(told).collect()),
            _ => continue,
        };
        error.insert(kind, told);
    }
    error
}

/// Whether a flag may be repeated.
fn is_list(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Append)
}

/// Refuses a list for a flag of one value, which would read the first and leave out the others.
fn check_list(arg: &Arg, key: &str, value: &Value) -> anyhow::Result<()> {
    if value.is_array() && !is_list(arg) {
        bail!("`{key}` takes one value, not a list");
    }
    Ok(())
}

fn check_keys(table: &Table, settings: &[Arg]) -> anyhow::Result<()> {
    let names: Vec<&str> = settings.iter().filter_map(Arg::get_long).collect();
    for (key, value) in table.iter().filter(|(key, _)| *key != MODELS) {
        let Some(arg) = settings.iter().find(|arg| arg.get_long() == Some(key.as_str())) else {
            bail!("unknown key `{key}`; the keys are {}", names.join(", "));
        };
        if matches!(value, Value::Table(_) | Value::Datetime(_)) {
            bail!("`{key}` must be a string, a number or an array of them");
        }
        check_list(arg, key, value)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{ffi::OsStr, fs, path::Path};

    use clap::{CommandFactory, FromArgMatches, error::ErrorKind};

    use super::*;
    use crate::command::{Cli, Task};
    use kvik_serving::settings::disk_place::DiskPlace;

    /// Parses `kvik ARGS` with `file` as its configuration.
    fn parse_with(file: &str, args: &[&str]) -> anyhow::Result<Cli> {
        Ok(Cli::from_arg_matches(&matches_with(file, args)?)?)
    }

    fn matches_with(file: &str, args: &[&str]) -> anyhow::Result<ArgMatches> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("config.toml");
        fs::write(&path, file)?;
        let mut all: Vec<OsString> = vec!["kvik".into(), "--config".into(), path.into()];
        all.extend(args.iter().map(OsString::from));
        Ok(matches(&configure(Cli::command(), &all)?, &all)?)
    }

    /// All commands below one, at any depth.
    fn below(command: &Command) -> Vec<&Command> {
        command.get_subcommands().flat_map(|sub| [vec![sub], below(sub)].concat()).collect()
    }

    #[test]
    fn a_flag_is_a_setting_only_with_a_value_of_the_same_type() {
        let command = configure(Cli::command(), &["kvik".into(), "--config=/dev/null".into()]).unwrap();
        let settings = settings(&command);
        let (mut same, mut others) = (0, Vec::new());
        for sub in below(&command) {
            for arg in sub.get_arguments() {
                let Some(setting) = settings.iter().find(|setting| setting.get_long() == arg.get_long())
                else {
                    continue;
                };
                let long = arg.get_long().unwrap();
                let types = [arg, setting].map(|arg| arg.get_value_parser().type_id());
                let place = format!("{} --{long}", sub.get_name());
                if types[0] == types[1] {
                    let env = arg.get_env().and_then(OsStr::to_str).map(str::to_owned);
                    assert_eq!(env, Some(variable_of(long)), "{place}");
                    same += 1;
                } else {
                    assert_eq!(arg.get_env(), None, "{place}");
                    others.push(place);
                }
            }
        }
        assert!(same > 200, "{same} flags are settings");
        for other in ["eval --memory", "eval --seed", "eval --retain", "perplexity --retain", "add --retain"]
        {
            assert!(others.iter().any(|place| place == other), "{other} is none of {others:?}");
        }
        let file = "memory = \"on\"\nseed = -1\nretain = \"auto\"";
        for words in [&["eval"][..], &["perplexity", "-f", "x"]] {
            matches_with(file, words).unwrap_or_else(|error| panic!("{words:?}: {error:#}"));
        }
    }

    #[test]
    fn commands_below_commands_have_the_settings_too() {
        let place = |file: &str, words: &[&str]| {
            let matches = matches_with(file, &[&["cache", "clear"], words].concat()).unwrap();
            let (_, matches) = matches.subcommand().unwrap();
            let (_, matches) = matches.subcommand().unwrap();
            matches.get_one::<DiskPlace>("cache_disk").unwrap().clone()
        };
        let at = |path: &str| DiskPlace::Directory(path.into());
        assert_eq!(place("", &[]), DiskPlace::Default);
        assert_eq!(place("cache-disk = \"/a\"", &[]), at("/a"));
        assert_eq!(place("cache-disk = \"off\"", &[]), DiskPlace::Off);
        assert_eq!(place("cache-disk = \"\"", &[]), DiskPlace::Default);
        assert_eq!(place("cache-disk = \"/a\"", &["--cache-disk=/b"]), at("/b"));
    }

    fn serve(file: &str, args: &[&str]) -> crate::command::serve_args::ServeArgs {
        let args: Vec<&str> = std::iter::once("serve").chain(args.iter().copied()).collect();
        match parse_with(file, &args).unwrap().task {
            Task::Serve(args) => *args,
            _ => panic!("the command is serve"),
        }
    }

    #[test]
    fn a_flag_wins_over_the_file_and_the_file_over_the_default() {
        assert_eq!(serve("", &[]).access.port, 8080);
        assert_eq!(serve("port = 9000", &[]).access.port, 9000);
        assert_eq!(serve("port = 9000", &["--port", "9100"]).access.port, 9100);
    }

    #[test]
    fn the_environment_is_between_flag_and_file() {
        // This checks the names; clap reads the environment. Setting a variable here would race with the other tests of
        // this process, so `tests/it/serve.rs` does it in a process of its own.
        let command = configure(Cli::command(), &["kvik".into(), "--config=/dev/null".into()]).unwrap();
        let serve = command.find_subcommand("serve").unwrap();
        let env = |long: &str| {
            let arg = serve.get_arguments().find(|arg| arg.get_long() == Some(long)).unwrap();
            arg.get_env().unwrap().to_str().unwrap().to_owned()
        };
        assert_eq!(env("port"), "KVIK_PORT");
        assert_eq!(env("cache-ram"), "KVIK_CACHE_RAM");
        assert_eq!(env("api-key"), "KVIK_API_KEY");
        assert_eq!(env("log"), "KVIK_LOG_FORMAT", "KVIK_LOG=debug is a level");
    }

    /// `KVIK_MEMORY_PROTECT_FIRST=1` was refused.
    #[test]
    fn every_switch_may_be_1() {
        let command = configure(Cli::command(), &["kvik".into(), "--config=/dev/null".into()]).unwrap();
        let is_switch = |arg: &&Arg| arg.get_env().is_some() && !arg.get_action().takes_values();
        let mut switches = 0;
        for sub in below(&command) {
            for switch in sub.get_arguments().filter(is_switch) {
                // A variable is read as the value of a flag that takes one.
                let valued =
                    sub.clone().mut_arg(switch.get_id(), |arg| arg.action(ArgAction::Set).num_args(1));
                let word = format!("--{}=1", switch.get_long().unwrap());
                let error = valued.try_get_matches_from(["kvik", &word]).err().map(|error| error.kind());
                assert_ne!(error, Some(ErrorKind::InvalidValue), "{} {word}", sub.get_name());
                switches += 1;
            }
        }
        assert!(switches > 6, "{switches} flags are switches");
    }

    #[test]
    fn values_of_every_type() {
        let args = serve(
            "host = \"0.0.0.0\"\ncontext = 4096\ncache-ram = \"1GiB\"\napi-key = [\"a\", \"b\"]\nkv = \"f32\"",
            &[],
        );
        assert_eq!(args.access.host, "0.0.0.0");
        assert_eq!(args.cache.context, Some(4096));
        assert_eq!(args.cache.cache_ram.map(|size| size.0), Some(1 << 30));
        assert_eq!(args.access.api_key, ["a", "b"]);
    }

    #[test]
    fn errors_name_the_key() {
        let check = |file: &str, args: &[&str], words: &[&str]| {
            let error = format!("{:#}", parse_with(file, args).expect_err(file));
            for word in words {
                assert!(error.contains(word), "{error} says {word}");
            }
        };
        check("prot = 9000", &["serve"], &["config.toml", "`prot`", "port"]);
        check("help = true", &["serve"], &["`help`"]);
        check("port = 99999", &["serve"], &["99999", "'port in ", "config.toml'"]);
        check("port = 99999", &["ps"], &["99999", "'port in ", "config.toml'"]);
        check("port = 99999", &["serve", "--port", "x"], &["'x' for '--port <PORT>'"]);
        check("threads = 0", &["run", "-t", "none", "Hello"], &["'none' for '--threads <N>'"]);
        check("threads = 0", &["run", "Hello"], &["'threads in "]);
        check("cache-ram = \"much\"", &["serve"], &["much", "2GiB"]);
        check("[serve]\nport = 1", &["serve"], &["`serve`"]);
        check("port = ", &["serve"], &["TOML"]);
        // The first value counted.
        check("port = [8080, 9090]", &["serve"], &["config.toml", "`port` takes one value, not a list"]);
        check("admin-key = [\"a\", \"b\"]", &["serve"], &["`admin-key` takes one value"]);
    }

    /// The key of the file was not counted.
    #[test]
    fn a_flag_needs_the_value_that_the_file_has() {
        let file = "cache-remote-key = \"fleet.key\"";
        matches_with(file, &["serve", "--cache-remote", "redis://h"]).unwrap();
    }

    #[test]
    fn a_path_may_begin_in_the_home_directory() {
        let Some(home) = std::env::var("HOME").ok().filter(|home| !home.is_empty()) else { return };
        let file = "model = \"~/m.gguf\"\ndraft = \"~/d.gguf\"\nchat-template = \"~/t.jinja\"\nlora = [\"~/a.gguf\"]\n\
                    lora-scaled = \"~/b.gguf=0.5\"\ncache-disk = \"~/kv\"\nstate-dir = \"~/state\"\nmodels-dir = \"~/models\"";
        let args = serve(file, &[]);
        let place = |name: &str| format!("{home}/{name}");
        let path = |name: &str| PathBuf::from(place(name));
        assert_eq!((args.model.model, args.cache.draft), (Some(place("m.gguf")), Some(place("d.gguf"))));
        assert_eq!(args.model.chat_template, Some(path("t.jinja")));
        assert_eq!(
            (&args.cache.lora.lora[0], &args.cache.lora.lora_scaled[0].path),
            (&path("a.gguf"), &path("b.gguf"))
        );
        assert_eq!(args.cache.cache_disk.directory(), Some(path("kv")));
        assert_eq!(
            (args.state.folder(), args.model.models_dir.directory()),
            (Some(path("state")), Some(path("models")))
        );
        assert_eq!(
            serve("", &["--state-dir=~/state"]).state.folder(),
            Some(path("state")),
            "no shell expands it"
        );
    }

    /// Checks every flag that is a file or a directory, of every command.
    #[test]
    fn every_path_may_begin_in_the_home_directory() {
        let command = configure(Cli::command(), &["kvik".into(), "--config=/dev/null".into()]).unwrap();
        let Some(home) = std::env::var_os("HOME").filter(|home| !home.is_empty()) else { return };
        let mut flags = 0;
        for sub in below(&command) {
            let is_place = |name: &str| ["FILE", "DIR"].contains(&name);
            let of_places = |arg: &&Arg| {
                let names = arg.get_value_names().unwrap_or_default();
                arg.get_long().is_some() && names.iter().any(|name| is_place(name))
            };
            for flag in sub.get_arguments().filter(of_places).filter(|flag| flag.get_long() != Some("config"))
            {
                let id = flag.get_id().as_str();
                let words = ["kvik".to_owned(), format!("--{}=~/x", flag.get_long().unwrap())];
                let matches = Command::new("kvik").arg(flag.clone()).try_get_matches_from(words);
                let matches = matches.unwrap_or_else(|error| panic!("{} {id}: {error}", sub.get_name()));
                let read = match matches.try_get_one::<PathBuf>(id) {
                    Ok(path) => path.cloned(),
                    // The directory of the disk cache may be a keyword.
                    Err(_) => matches.get_one::<DiskPlace>(id).and_then(DiskPlace::directory),
                };
                assert_eq!(read, Some(Path::new(&home).join("x")), "{} {id}", sub.get_name());
                flags += 1;
            }
        }
        assert!(flags > 20, "{flags} flags are paths");
    }
}

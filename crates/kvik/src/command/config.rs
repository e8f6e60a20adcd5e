//! Configuration: flags over environment over a TOML file.
//!
//! The flags of `kvik serve` are the only list of settings. Each can also be set by an environment variable,
//! `--cache-ram` by `KVIK_CACHE_RAM`, and by a key of the file, `cache-ram = "2GiB"`. The file's values become clap's
//! defaults, so `--help` shows the values in force. An error about a value names the variable or the key of the file
//! that set it. A path from any source may begin with `~/`. A flag of another command, or of a command below one, is the
//! same setting where its name and the type of its value are the same.

use std::{
    any::TypeId,
    ffi::{OsStr, OsString},
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use clap::{
    Arg, ArgAction, ArgMatches, Command,
    builder::{PathBufValueParser, TypedValueParser},
    error::{ContextKind, ContextValue},
};
use kvik_text::files::small::{SETTINGS_BYTES_MAX, read_small_text};
use toml::{Table, Value};

use kvik_serving::settings::{dirs, home, logging::say};

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

/// A model of the file, `[models.NAME]`, with its flags of `kvik serve`.
#[derive(Debug)]
pub(crate) struct ModelTable {
    pub(crate) name: String,
    pub(crate) aliases: Vec<String>,
    /// The tenants that may use it; all with `None`.
    pub(crate) tenants: Option<Vec<String>>,
    /// The command line of `kvik serve`, overridden by the table.
    pub(crate) args: Vec<OsString>,
    /// The flags that the table sets.
    pub(crate) flags: Vec<String>,
}

/// The command that reads the tables of models. Their values come after the flags and override them; a switch has a
/// value there, because a table may also switch off what a flag or the file switches on, and a list may have none.
pub(crate) fn of_tables(command: Command) -> Command {
    let overriding = |sub: Command| sub.args_override_self(true).mut_args(with_value);
    command.mut_subcommand("serve", overriding).mut_subcommand("doctor", overriding)
}

/// A switch as a flag that may have a value, and a list as one that may have none.
fn with_value(arg: Arg) -> Arg {
    if is_list(&arg) {
        return arg.num_args(0..=1);
    }
    if !matches!(arg.get_action(), ArgAction::SetTrue) {
        return arg;
    }
    let is_set = !arg.get_default_values().is_empty();
    let arg = arg.action(ArgAction::Set).num_args(0..=1).require_equals(true).default_missing_value("true");
    if is_set { arg } else { arg.default_value("false") }
}

/// The models of the file, ordered by name. `args` is the command line of `kvik serve`.
pub(crate) fn models(command: &Command, args: &[OsString]) -> anyhow::Result<Vec<ModelTable>> {
    let (path, table) = read_file(args)?;
    let Some(models) = table.get(MODELS) else { return Ok(Vec::new()) };
    let read = || -> anyhow::Result<Vec<ModelTable>> {
        let models = models.as_table().context("`models` must be tables, as [models.NAME]")?;
        models.iter().map(|(name, table)| ModelTable::read(name, table, command, args)).collect()
    };
    read().with_context(|| format!("in {}", path.display()))
}

impl ModelTable {
    fn read(name: &str, table: &Value, command: &Command, args: &[OsString]) -> anyhow::Result<ModelTable> {
        let place = || format!("[{MODELS}.{name}]");
        let table = table.as_table().with_context(|| format!("{} must be a table", place()))?;
        let serve = command.find_subcommand("serve").expect("the command `serve` exists");
        let (mut args, mut aliases, mut tenants) = (args.to_vec(), Vec::new(), None);
        let flags = table.keys().map(|key| flag_of(key).to_owned()).collect();
        for (key, value) in table {
            match key.as_str() {
                "aliases" => aliases = words(value),
                "tenants" => tenants = Some(words(value)),
                _ => set_flag(&mut args, serve, (key.as_str(), value)).with_context(place)?,
            }
        }
        Ok(ModelTable { name: name.to_owned(), aliases, tenants, args, flags })
    }
}

/// The flag that a key of a model's table sets.
fn flag_of(key: &str) -> &str {
    if key == "source" { "model" } else { key }
}

/// Sets a flag of one model behind the words of a command line. A list replaces the one that is there; an empty one is a
/// flag without a value, which overrides variables and the file as every flag does.
fn set_flag(args: &mut Vec<OsString>, serve: &Command, (key, value): (&str, &Value)) -> anyhow::Result<()> {
    let (long, mut own) = (flag_of(key), serve.get_arguments().filter(|arg| is_of_model(arg)));
    let Some(arg) = own.find(|arg| arg.get_long() == Some(long)) else {
        bail!(
            "`{key}` is no setting of a model; there are source, aliases, tenants, and the flags of `kvik serve` that concern a model"
        )
    };
    let is_switch = arg.get_value_parser().type_id() == TypeId::of::<bool>();
    if is_switch && !value.is_bool() {
        bail!("`{key}` must be true or false");
    }
    check_list(arg, key, value)?;
    if is_list(arg) {
        remove_flag(args, long);
    }
    match words(value) {
        words if words.is_empty() => args.push(format!("--{long}").into()),
        words => args.extend(words.iter().map(|word| format!("--{long}={word}").into())),
    }
    Ok(())
}

/// Removes a flag of one value, wherever the words of a command line have it.
fn remove_flag(args: &mut Vec<OsString>, long: &str) {
    let (flag, mut is_value) = (format!("--{long}"), false);
    args.retain(|word| {
        let was_value = std::mem::take(&mut is_value);
        match word.as_encoded_bytes().strip_prefix(flag.as_bytes()) {
            _ if was_value => false,
            Some([]) => {
                is_value = true;
                false
            }
            Some(rest) => !rest.starts_with(b"="),
            None => true,
        }
    });
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

/// All flags of `kvik serve` that concern a model, with their values in force.
pub(crate) fn flags_in_force(command: &Command, matches: &ArgMatches) -> Vec<String> {
    let serve = command.find_subcommand("serve").expect("the command `serve` exists");
    let Some(matches) = matches.subcommand_matches("serve") else { return Vec::new() };
    let word = |arg: &Arg| {
        let id = arg.get_id().as_str();
        let values = matches.get_raw(id)?.map(|value| value.to_string_lossy());
        Some(format!("{id}={}", values.collect::<Vec<_>>().join(" ")))
    };
    serve.get_arguments().filter(|arg| is_of_model(arg)).filter_map(word).collect()
}

/// Whether a flag of `kvik serve` concerns a model rather than the server. Events for routers are published of one model,
/// and never of those of a file.
fn is_of_model(arg: &Arg) -> bool {
    let of_server = ["Server", "Tenants", "Machine", "Many nodes"];
    arg.get_long().is_some() && !arg.get_help_heading().is_some_and(|heading| of_server.contains(&heading))
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

/// The configuration file of a command line: the one that is named, else the user's, which need not exist; `None` if the
/// user has no home directory.
pub(crate) fn file_of(args: &[OsString]) -> Option<PathBuf> {
    named_file(args).or_else(file_of_user)
}

/// The file named by `--config` or `KVIK_CONFIG`.
fn named_file(args: &[OsString]) -> Option<PathBuf> {
    let named = flag_value(args).or_else(|| std::env::var_os("KVIK_CONFIG")).filter(|path| !path.is_empty());
    named.map(|path| home::path(path.into()))
}

fn file_of_user() -> Option<PathBuf> {
    Some(dirs::config()?.join("config.toml"))
}

/// Reads the file that is named, which must exist, else the user's if it exists.
fn read_file(args: &[OsString]) -> anyhow::Result<(PathBuf, Table)> {
    let named = named_file(args);
    let must_exist = named.is_some();
    let Some(path) = named.or_else(file_of_user) else {
        return Ok((PathBuf::new(), Table::new()));
    };
    let text = if must_exist { read(&path).map(Some) } else { read_of_user(&path) }?;
    let table = text.map_or_else(|| Ok(Table::new()), |text| parse(&path, &text))?;
    Ok((path, table))
}

fn read(path: &Path) -> anyhow::Result<String> {
    read_small_text(path, SETTINGS_BYTES_MAX)
        .with_context(|| format!("the configuration {} cannot be read", path.display()))
}

/// The user's file, if there is one. Services often run with an inaccessible home directory, which counts as having no
/// file. An existing file must be readable, since it may define who has access.
fn read_of_user(path: &Path) -> anyhow::Result<Option<String>> {
    match fs::metadata(path) {
        Ok(_) => read(path).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => {
            say(&format!("note: there is no configuration in {}: {error}", path.display()));
            Ok(None)
        }
    }
}

fn parse(path: &Path, text: &str) -> anyhow::Result<Table> {
    text.parse().with_context(|| format!("the configuration {} is not valid TOML", path.display()))
}

/// The value of `--config` before clap has run; clap checks it again later.
fn flag_value(args: &[OsString]) -> Option<OsString> {
    let mut args = args.iter().take_while(|arg| *arg != OsStr::new("--"));
    while let Some(arg) = args.next() {
        if arg == "--config" {
            return args.next().cloned();
        }
        if let Some(value) = arg.to_str().and_then(|arg| arg.strip_prefix("--config=")) {
            return Some(value.into());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, FromArgMatches, error::ErrorKind};

    use super::*;
    use crate::command::{Cli, Task};
    use kvik_serving::settings::disk_place::DiskPlace;

    #[test]
    fn a_home_that_cannot_be_entered_has_no_configuration() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("home");
        assert_eq!(read_of_user(&home.join("kvik/config.toml")).unwrap(), None);
        fs::write(&home, "a file").unwrap();
        assert_eq!(read_of_user(&home.join("kvik/config.toml")).unwrap(), None);
        assert!(read(&home.join("kvik/config.toml")).is_err(), "a file that is named has to be there");
        assert_eq!(read_of_user(&home).unwrap().as_deref(), Some("a file"));
        assert!(read_of_user(dir.path()).is_err(), "what is there has to be read");
    }

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

    #[test]
    fn the_file_is_the_one_that_is_named() {
        let file = |words: &[&str]| file_of(&words.iter().map(OsString::from).collect::<Vec<_>>());
        let named = Some(PathBuf::from("/a/kvik.toml"));
        assert_eq!(file(&["kvik", "--config", "/a/kvik.toml", "doctor"]), named);
        assert_eq!(file(&["kvik", "doctor", "--config=/a/kvik.toml"]), named);
        assert_ne!(file(&["kvik", "doctor"]), named);
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
    fn a_table_of_a_model_has_no_settings_of_the_server() {
        let read = |key: &str| {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("config.toml");
            fs::write(&path, format!("[models.a]\n{key} = \"1\"\n")).unwrap();
            let args: Vec<OsString> = vec!["kvik".into(), "--config".into(), path.into(), "serve".into()];
            models(&configure(Cli::command(), &args).unwrap(), &args)
        };
        assert_eq!(read("context").unwrap().len(), 1);
        // The last two were accepted, and nothing was published.
        for key in ["port", "state-dir", "kv-events", "kv-events-topic"] {
            let error = format!("{:#}", read(key).unwrap_err());
            assert!(error.contains(&format!("`{key}` is no setting of a model")), "{error}");
        }
    }

    /// The flags of the first model of a file, behind those of `kvik serve`.
    fn of_table(file: &str, flags: &[&str]) -> anyhow::Result<ArgMatches> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("config.toml");
        fs::write(&path, file)?;
        let mut args: Vec<OsString> = vec!["kvik".into(), "--config".into(), path.into(), "serve".into()];
        args.extend(flags.iter().map(OsString::from));
        let command = of_tables(configure(Cli::command(), &args)?);
        let table = models(&command, &args)?.remove(0);
        let matches = command.try_get_matches_from(&table.args)?;
        Cli::from_arg_matches(&matches)?;
        Ok(matches.subcommand_matches("serve").unwrap().clone())
    }

    /// An empty list was ignored, and any other was added to that of the command line.
    #[test]
    fn a_list_of_a_table_replaces_the_one_outside() {
        let check = |top: &str, flags: &[&str], own: &str, (id, expect): (&str, &[&str])| {
            let matches = of_table(&format!("{top}\n[models.a]\n{own}"), flags).unwrap();
            let values: Vec<_> = matches.get_raw(id).into_iter().flatten().collect();
            assert_eq!(values, expect, "{top} {flags:?} {own}");
        };
        let (list, none) = ("lora = [\"c\", \"d\"]", "lora = []");
        for (top, flags) in [
            ("", &[][..]),
            ("lora = [\"a\"]", &[]),
            ("", &["--lora", "a", "--lora=b"]),
            ("lora = [\"a\"]", &["--lora=b", "--lora-scaled", "s=1"]),
        ] {
            check(top, flags, list, ("lora", &["c", "d"]));
            check(top, flags, none, ("lora", &[]));
        }
        check("", &["--lora", "a", "--lora", "b"], "", ("lora", &["a", "b"]));
        check("", &["--lora-scaled", "s=1"], none, ("lora_scaled", &["s=1"]));
        for own in ["told-window = \"claude=100k\"", "told-window = [\"claude=100k\"]"] {
            check("", &["--told-window", "claude=200k"], own, ("told_window", &["claude=100k"]));
        }
        for own in ["context = [512]", "source = [\"a\", \"b\"]"] {
            let error = format!("{:#}", of_table(&format!("[models.a]\n{own}"), &[]).unwrap_err());
            assert!(error.contains("takes one value, not a list"), "{error}");
        }
    }

    #[test]
    fn a_table_of_a_model_turns_switches_on_and_off() {
        let is_on = |file: &str, flags: &[&str], key: &str| -> anyhow::Result<bool> {
            Ok(of_table(file, flags)?.get_flag(&key.replace('-', "_")))
        };
        for key in ["settle-prompts", "memory-protect-first", "lora-init-without-apply"] {
            let flag = format!("--{key}");
            let flag = [flag.as_str()];
            for (top, flags, own, expect) in [
                ("", &[][..], "", false),
                ("", &[][..], "true", true),
                ("true", &[][..], "", true),
                ("true", &[][..], "false", false),
                ("", &flag[..], "", true),
                ("", &flag[..], "false", false),
                ("false", &flag[..], "true", true),
            ] {
                let line = |value: &str| match value {
                    "" => String::new(),
                    value => format!("{key} = {value}\n"),
                };
                let file = format!("{}[models.a]\n{}", line(top), line(own));
                assert_eq!(is_on(&file, flags, key).unwrap(), expect, "{file} {flags:?}");
            }
            for wrong in ["\"on\"", "1", "[]"] {
                let error = is_on(&format!("[models.a]\n{key} = {wrong}"), &[], key).unwrap_err();
                assert!(
                    format!("{error:#}").contains(&format!("`{key}` must be true or false")),
                    "{error:#}"
                );
            }
        }
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

    #[test]
    fn a_named_file_must_exist() {
        let args: Vec<OsString> =
            ["kvik", "--config=/nowhere/kvik.toml", "serve"].map(OsString::from).to_vec();
        let error = configure(Cli::command(), &args).unwrap_err();
        assert!(format!("{error:#}").contains("/nowhere/kvik.toml"), "{error:#}");
    }
}

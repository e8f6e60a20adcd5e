//! The models of the configuration file, `[models.NAME]`: each table as flags of `kvik serve` behind those of the command
//! line.

use std::{any::TypeId, ffi::OsString};

use anyhow::{Context, bail};
use clap::{Arg, ArgAction, ArgMatches, Command};
use toml::Value;

use super::{MODELS, check_list, file::read_file, is_list, words};

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

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::{CommandFactory, FromArgMatches};

    use super::*;
    use crate::command::{Cli, config::configure};

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
}

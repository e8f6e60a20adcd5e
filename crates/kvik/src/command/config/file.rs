//! The configuration file of a command line: where it is, and what is in it.

use std::{
    ffi::{OsStr, OsString},
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::Context;
use kvik_text::files::small::{SETTINGS_BYTES_MAX, read_small_text};
use toml::Table;

use kvik_serving::settings::{dirs, home, logging::say};

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
pub(super) fn read_file(args: &[OsString]) -> anyhow::Result<(PathBuf, Table)> {
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
    use clap::CommandFactory;

    use super::*;
    use crate::command::{Cli, config::configure};

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

    #[test]
    fn the_file_is_the_one_that_is_named() {
        let file = |words: &[&str]| file_of(&words.iter().map(OsString::from).collect::<Vec<_>>());
        let named = Some(PathBuf::from("/a/kvik.toml"));
        assert_eq!(file(&["kvik", "--config", "/a/kvik.toml", "doctor"]), named);
        assert_eq!(file(&["kvik", "doctor", "--config=/a/kvik.toml"]), named);
        assert_ne!(file(&["kvik", "doctor"]), named);
    }

    #[test]
    fn a_named_file_must_exist() {
        let args: Vec<OsString> =
            ["kvik", "--config=/nowhere/kvik.toml", "serve"].map(OsString::from).to_vec();
        let error = configure(Cli::command(), &args).unwrap_err();
        assert!(format!("{error:#}").contains("/nowhere/kvik.toml"), "{error:#}");
    }
}

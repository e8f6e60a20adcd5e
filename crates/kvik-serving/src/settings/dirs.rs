//! The directories of kvik's files: the platform's, or those set by the environment.

use std::{env, ffi::OsString, path::PathBuf};

/// Directory of recomputable data: `KVIK_CACHE_DIR`, else the user's cache directory.
pub fn cache() -> Option<PathBuf> {
    cache_from(env::var_os)
}

/// Directory of `config.toml`.
pub fn config() -> Option<PathBuf> {
    config_from(env::var_os)
}

/// Directory of data that must outlive a restart and is no cache: accounts, secrets.
pub fn state() -> Option<PathBuf> {
    state_from(env::var_os)
}

/// Directory of models: in `KVIK_STATE_DIR`, else in the user's data directory, since cleaners empty caches. If only the
/// cache directory has models, where earlier versions stored them, they stay there.
pub fn models() -> Option<PathBuf> {
    models_from(env::var_os, |dir| dir.is_dir())
}

/// Directory of measurements of models: in `KVIK_STATE_DIR`, else in the user's state directory.
pub fn measured() -> Option<PathBuf> {
    measured_from(env::var_os)
}

/// Directory of files that running programs leave for others of the same user: kvik in `XDG_RUNTIME_DIR`, else `run` in
/// `KVIK_STATE_DIR` or in the user's state directory.
pub fn runtime() -> Option<PathBuf> {
    runtime_from(env::var_os)
}

fn models_from(
    var: impl Fn(&'static str) -> Option<OsString>,
    exists: impl Fn(&PathBuf) -> bool,
) -> Option<PathBuf> {
    let earlier = cache_from(&var).map(|cache| cache.join("models")).filter(&exists);
    let own = path_from(&var, "KVIK_STATE_DIR").or_else(|| data_from(var)).map(|data| data.join("models"));
    match own.as_ref().is_some_and(exists) {
        true => own,
        false => earlier.or(own),
    }
}

/// The path that a variable sets; an empty one sets none.
fn path_from(var: impl Fn(&'static str) -> Option<OsString>, name: &'static str) -> Option<PathBuf> {
    var(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

fn runtime_from(var: impl Fn(&'static str) -> Option<OsString>) -> Option<PathBuf> {
    match path_from(&var, "XDG_RUNTIME_DIR") {
        Some(runtime) => Some(runtime.join("kvik")),
        None => Some(own_state_from(var)?.join("run")),
    }
}

fn measured_from(var: impl Fn(&'static str) -> Option<OsString>) -> Option<PathBuf> {
    Some(own_state_from(var)?.join("measured"))
}

/// `KVIK_STATE_DIR`, else the user's state directory.
fn own_state_from(var: impl Fn(&'static str) -> Option<OsString>) -> Option<PathBuf> {
    path_from(&var, "KVIK_STATE_DIR").or_else(|| state_from(var))
}

fn cache_from(var: impl Fn(&'static str) -> Option<OsString>) -> Option<PathBuf> {
    let set = |name| path_from(&var, name);
    let home = |sub: &str| set("HOME").map(|home| home.join(sub));
    set("KVIK_CACHE_DIR").or_else(|| {
        let base = set("XDG_CACHE_HOME").or_else(|| match env::consts::OS {
            "macos" => home("Library/Caches"),
            "windows" => set("LOCALAPPDATA"),
            _ => home(".cache"),
        });
        Some(base?.join("kvik"))
    })
}

fn config_from(var: impl Fn(&'static str) -> Option<OsString>) -> Option<PathBuf> {
    let set = |name| path_from(&var, name);
    let base = set("XDG_CONFIG_HOME").or_else(|| match env::consts::OS {
        "windows" => set("APPDATA"),
        _ => set("HOME").map(|home| home.join(".config")),
    });
    Some(base?.join("kvik"))
}

fn data_from(var: impl Fn(&'static str) -> Option<OsString>) -> Option<PathBuf> {
    lasting_from(var, "XDG_DATA_HOME", ".local/share")
}

fn state_from(var: impl Fn(&'static str) -> Option<OsString>) -> Option<PathBuf> {
    lasting_from(var, "XDG_STATE_HOME", ".local/state")
}

/// Directory of what must last: that of a variable, else the platform's, on Unix `unix` in the home directory.
fn lasting_from(
    var: impl Fn(&'static str) -> Option<OsString>,
    name: &'static str,
    unix: &str,
) -> Option<PathBuf> {
    let set = |name| path_from(&var, name);
    let home = |sub: &str| set("HOME").map(|home| home.join(sub));
    let base = set(name).or_else(|| match env::consts::OS {
        "macos" => home("Library/Application Support"),
        "windows" => set("LOCALAPPDATA"),
        _ => home(unix),
    });
    Some(base?.join("kvik"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vars(pairs: &'static [(&str, &str)]) -> impl Fn(&'static str) -> Option<OsString> {
        move |name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into())
    }

    #[test]
    fn environment_variables_set_the_directories() {
        let check = |pairs: &'static [(&str, &str)], expect: &str| {
            assert_eq!(cache_from(vars(pairs)), Some(PathBuf::from(expect)));
        };
        check(&[("KVIK_CACHE_DIR", "/a"), ("XDG_CACHE_HOME", "/b")], "/a");
        check(&[("XDG_CACHE_HOME", "/b"), ("HOME", "/c")], "/b/kvik");
        check(&[("KVIK_CACHE_DIR", ""), ("XDG_CACHE_HOME", "/b")], "/b/kvik");
        assert_eq!(config_from(vars(&[("XDG_CONFIG_HOME", "/b")])), Some(PathBuf::from("/b/kvik")));
        assert_eq!(config_from(vars(&[])), None);
        assert_eq!(state_from(vars(&[("XDG_STATE_HOME", "/b")])), Some(PathBuf::from("/b/kvik")));
        assert_eq!(state_from(vars(&[("XDG_STATE_HOME", "")])), None);
        let runtime = |pairs| runtime_from(vars(pairs));
        assert_eq!(
            runtime(&[("XDG_RUNTIME_DIR", "/a"), ("KVIK_STATE_DIR", "/b")]),
            Some(PathBuf::from("/a/kvik"))
        );
        assert_eq!(runtime(&[("KVIK_STATE_DIR", "/b")]), Some(PathBuf::from("/b/run")));
        assert_eq!(runtime(&[("XDG_STATE_HOME", "/c")]), Some(PathBuf::from("/c/kvik/run")));
        let models = |there: &'static str, pairs| models_from(vars(pairs), |dir| dir.as_os_str() == there);
        let home = &[("XDG_CACHE_HOME", "/b"), ("XDG_DATA_HOME", "/c")];
        assert_eq!(models("", home), Some(PathBuf::from("/c/kvik/models")));
        assert_eq!(
            models("/b/kvik/models", home),
            Some(PathBuf::from("/b/kvik/models")),
            "of an earlier version"
        );
        assert_eq!(models("/c/kvik/models", home), Some(PathBuf::from("/c/kvik/models")));
        let service = &[("KVIK_CACHE_DIR", "/b"), ("KVIK_STATE_DIR", "/s"), ("XDG_DATA_HOME", "/c")];
        assert_eq!(models("", service), Some(PathBuf::from("/s/models")));
        assert_eq!(models("/b/models", service), Some(PathBuf::from("/b/models")));
        assert_eq!(models("", &[]), None);
        let measured = |pairs| measured_from(vars(pairs));
        assert_eq!(measured(&[("KVIK_STATE_DIR", "/a")]), Some(PathBuf::from("/a/measured")));
        assert_eq!(measured(&[("XDG_STATE_HOME", "/b")]), Some(PathBuf::from("/b/kvik/measured")));
    }
}

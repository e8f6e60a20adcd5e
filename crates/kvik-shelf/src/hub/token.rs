//! The token for private and gated repositories: that of `HF_TOKEN`, else the one that the hub's own tools have stored.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use crate::disk::read_small;

/// Maximum size of the file of a token, which has some forty letters.
const TOKEN_BYTES_MAX: u64 = 4096;

/// A token, which is read when a request needs it: most uses of a shelf ask no hub.
#[derive(Debug, Clone)]
pub(super) struct Token {
    /// The file that has it, unless it was given itself.
    file: Option<PathBuf>,
    value: OnceLock<Option<String>>,
    /// Set when the hub has answered without it what it had refused with it.
    is_stale: Arc<AtomicBool>,
}

impl Token {
    /// This token, or none.
    pub(super) fn given(value: Option<String>) -> Token {
        Token { file: None, value: OnceLock::from(value), is_stale: Arc::default() }
    }

    /// The token of the environment: that of `HF_TOKEN`, else of the file where `hf auth login` stores it.
    pub(super) fn from_variables(var: impl Fn(&'static str) -> Option<OsString>) -> Token {
        let set = |name| var(name).filter(|value| !value.is_empty());
        match set("HF_TOKEN").and_then(|text| token_in(text.into_string().ok()?)) {
            Some(token) => Token::given(Some(token)),
            None => Token { file: file_from(set), value: OnceLock::new(), is_stale: Arc::default() },
        }
    }

    /// The token, if there is one that is not stale. An empty or unreadable file has none.
    pub(super) fn get(&self) -> Option<&str> {
        let value = || self.value.get_or_init(|| read(self.file.as_deref()?)).as_deref();
        (!self.is_stale.load(Relaxed)).then(value).flatten()
    }

    /// Has the token not be sent again: it has expired or was revoked, and with it the hub refuses what everyone may read.
    pub(super) fn retire(&self) {
        self.is_stale.store(true, Relaxed);
    }
}

/// The file where `hf auth login` stores the token: `HF_TOKEN_PATH`, else `token` in `HF_HOME`, else in the user's cache.
fn file_from(set: impl Fn(&'static str) -> Option<OsString>) -> Option<PathBuf> {
    let path = |name| set(name).map(PathBuf::from);
    let user = || path("HOME").or_else(|| path("USERPROFILE"));
    let cache = || path("XDG_CACHE_HOME").or_else(|| Some(user()?.join(".cache")));
    let home = || path("HF_HOME").or_else(|| Some(cache()?.join("huggingface")));
    path("HF_TOKEN_PATH").or_else(|| Some(home()?.join("token")))
}

fn read(file: &Path) -> Option<String> {
    token_in(String::from_utf8(read_small(file, TOKEN_BYTES_MAX).ok()?).ok()?)
}

/// The token that a text consists of. One with other characters could not be sent.
fn token_in(text: String) -> Option<String> {
    let token = text.trim();
    (!token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic())).then(|| token.to_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test may fail where it stands
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_token_is_found_where_the_hubs_tools_look_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let file = dir.path().join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        write("named", "of-the-path\n");
        write("hf/token", " of-hf-home ");
        write("cache/huggingface/token", "of-the-cache");
        write("home/.cache/huggingface/token", "of-home");
        write("empty/token", " \n");
        write("lines/token", "a\nb\n");
        // Values that begin with ./ are in that directory.
        let check = |vars: &[(&str, &str)], expect: Option<&str>| {
            let var = |name: &'static str| {
                let (_, value) = vars.iter().find(|(set, _)| *set == name)?;
                let in_dir = value.strip_prefix("./").map(|path| dir.path().join(path).into_os_string());
                Some(in_dir.unwrap_or_else(|| value.into()))
            };
            assert_eq!(Token::from_variables(var).get(), expect, "{vars:?}");
        };
        let all = [
            ("HF_TOKEN", "given"),
            ("HF_TOKEN_PATH", "./named"),
            ("HF_HOME", "./hf"),
            ("XDG_CACHE_HOME", "./cache"),
            ("HOME", "./home"),
        ];
        for (at, expect) in
            ["given", "of-the-path", "of-hf-home", "of-the-cache", "of-home"].into_iter().enumerate()
        {
            check(&all[at..], Some(expect));
        }
        check(&[("HF_TOKEN", ""), ("HF_HOME", "./hf")], Some("of-hf-home"));
        check(&[], None);
        for nothing in ["./empty", "./lines", "./nowhere", "./named"] {
            check(&[("HF_HOME", nothing), ("HOME", "./home")], None);
        }
    }
}

//! Paths that begin with `~/`, which no shell expands in a file, in a variable, or after `--flag=`.

use std::{
    convert::Infallible,
    ffi::OsString,
    path::{Path, PathBuf},
};

/// The path with `~` replaced by the user's home directory, if there is one.
pub fn path(path: PathBuf) -> PathBuf {
    expanded(path, std::env::var_os)
}

/// Expands a text that may be such a path, as the parser of a flag.
pub fn text(text: &str) -> Result<String, Infallible> {
    // If the home directory is not valid text, the path is left unchanged.
    Ok(path(text.into()).into_os_string().into_string().unwrap_or_else(|_| text.to_owned()))
}

fn expanded(path: PathBuf, var: impl Fn(&'static str) -> Option<OsString>) -> PathBuf {
    let Ok(rest) = path.strip_prefix("~") else { return path };
    let home = ["HOME", "USERPROFILE"].into_iter().find_map(|name| var(name).filter(|home| !home.is_empty()));
    match home {
        Some(home) if rest.as_os_str().is_empty() => PathBuf::from(home),
        Some(home) => Path::new(&home).join(rest),
        None => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_may_begin_in_the_home_directory() {
        let check = |home: Option<&str>, given: &str, expect: &str| {
            let var = |name| home.filter(|_| name == "HOME").map(OsString::from);
            assert_eq!(expanded(given.into(), var), Path::new(expect), "{given}");
        };
        check(Some("/home/ann"), "~/models/m.gguf", "/home/ann/models/m.gguf");
        check(Some("/home/ann"), "~", "/home/ann");
        check(Some("/home/ann"), "~bob/m.gguf", "~bob/m.gguf");
        check(Some("/home/ann"), "/a/~/b", "/a/~/b");
        check(Some("/home/ann"), "qwen3", "qwen3");
        check(Some(""), "~/m.gguf", "~/m.gguf");
        check(None, "~/m.gguf", "~/m.gguf");
    }
}

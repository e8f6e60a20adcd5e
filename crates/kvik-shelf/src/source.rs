//! Sources of models: a repository of the hub, or a path.

use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
};

use crate::{ModelName, ShelfError};

/// The source of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelSource {
    /// `hf:owner/repo[:file|:QUANT][@revision]`
    Hub(HubSpec),
    /// A file or directory of this machine.
    Path(PathBuf),
}

/// `owner/repo[:file|:QUANT][@revision]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubSpec {
    pub(crate) owner: String,
    pub(crate) repo: String,
    /// A path inside the repository, or a quantisation such as `Q4_K_M`.
    pub(crate) wanted: Option<String>,
    /// A branch, a tag or a commit.
    pub(crate) revision: Option<String>,
}

impl HubSpec {
    /// `owner/repo`
    pub fn repository(&self) -> String {
        format!("{}/{}", self.owner, self.repo)
    }

    /// Returns whether both are the same model, of any revision.
    pub(crate) fn is_same_model(&self, other: &HubSpec) -> bool {
        (&self.owner, &self.repo, &self.wanted) == (&other.owner, &other.repo, &other.wanted)
    }
}

impl ModelSource {
    /// The default name of a model: the text after `hf:`, or the file name without its extension.
    pub fn default_name(&self) -> Result<ModelName, ShelfError> {
        match self {
            ModelSource::Hub(spec) => spec.to_string().parse(),
            ModelSource::Path(path) => {
                let name = if path.is_dir() { path.file_name() } else { path.file_stem() };
                name.unwrap_or_default().to_string_lossy().parse()
            }
        }
    }
}

impl FromStr for ModelSource {
    type Err = ShelfError;

    fn from_str(text: &str) -> Result<ModelSource, ShelfError> {
        let of_hub = ["hf:", "hf.co/", "https://hf.co/", "https://huggingface.co/"];
        match of_hub.iter().find_map(|prefix| text.strip_prefix(prefix)) {
            Some(spec) => {
                let bad = |_| ShelfError::BadSource { text: text.to_owned() };
                spec.parse().map(ModelSource::Hub).map_err(bad)
            }
            None if text.is_empty() => Err(ShelfError::BadSource { text: text.to_owned() }),
            None => Ok(ModelSource::Path(text.into())),
        }
    }
}

impl FromStr for HubSpec {
    type Err = ShelfError;

    fn from_str(text: &str) -> Result<HubSpec, ShelfError> {
        let bad = || ShelfError::BadSource { text: text.to_owned() };
        let (rest, revision) = match text.rsplit_once('@') {
            Some((rest, revision)) => (rest, Some(revision)),
            None => (text, None),
        };
        let (name, wanted) = match rest.split_once(':') {
            Some((name, wanted)) => (name, Some(wanted)),
            None => (rest, None),
        };
        let (owner, repo) = name.split_once('/').ok_or_else(bad)?;
        let safe = |path: Option<&str>| path.is_none_or(|path| safe_path(path).is_some());
        if !is_word(owner) || !is_word(repo) || !safe(wanted) || !revision.is_none_or(is_revision) {
            return Err(bad());
        }
        let owned = |part: Option<&str>| part.map(str::to_owned);
        Ok(HubSpec {
            owner: owner.to_owned(),
            repo: repo.to_owned(),
            wanted: owned(wanted),
            revision: owned(revision),
        })
    }
}

/// Returns whether this may be an owner, a repository, or a part of a revision.
fn is_word(part: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !part.is_empty() && !part.starts_with('.') && part.chars().all(allowed)
}

/// Returns whether this may be a branch, a tag or a commit, such as `refs/pr/1`.
pub(crate) fn is_revision(text: &str) -> bool {
    text.len() <= 200 && text.split('/').all(is_word)
}

/// The name as a relative path, or `None` when it could leave the directory or is unsafe to print.
pub(crate) fn safe_path(name: &str) -> Option<&Path> {
    // Tools that get the file name as an argument take a leading hyphen for an option.
    let fine = |part: &str| {
        !part.is_empty()
            && !part.starts_with(['.', '-'])
            && !part.contains(['\\', ':', '?', '#', '%'])
            && !part.contains(char::is_control)
    };
    (name.len() <= 1000 && name.split('/').all(fine)).then(|| Path::new(name))
}

impl fmt::Display for HubSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.owner, self.repo)?;
        self.wanted.iter().try_for_each(|wanted| write!(f, ":{wanted}"))?;
        self.revision.iter().try_for_each(|revision| write!(f, "@{revision}"))
    }
}

impl fmt::Display for ModelSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ModelSource::Hub(spec) => write!(f, "hf:{spec}"),
            ModelSource::Path(path) => write!(f, "{}", path.display()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test may fail where it stands
mod tests {
    use super::*;

    #[test]
    fn sources_are_read_and_written() {
        let check = |text: &str, wanted: Option<&str>, revision: Option<&str>| {
            let ModelSource::Hub(spec) = text.parse().unwrap() else { panic!("{text} is of the hub") };
            assert_eq!(spec.repository(), "owner/re.po-1");
            assert_eq!((spec.wanted.as_deref(), spec.revision.as_deref()), (wanted, revision), "{text}");
            assert_eq!(ModelSource::Hub(spec).to_string(), text);
        };
        check("hf:owner/re.po-1", None, None);
        check("hf:owner/re.po-1:m.gguf", Some("m.gguf"), None);
        check("hf:owner/re.po-1:sub/m.gguf@v1.0", Some("sub/m.gguf"), Some("v1.0"));
        check("hf:owner/re.po-1:Q4_K_M@refs/pr/1", Some("Q4_K_M"), Some("refs/pr/1"));
        check("hf:owner/re.po-1@main", None, Some("main"));
        let pasted: ModelSource = "https://huggingface.co/owner/re.po-1".parse().unwrap();
        assert_eq!(pasted.to_string(), "hf:owner/re.po-1");
        assert_eq!("./m.gguf".parse::<ModelSource>().unwrap(), ModelSource::Path("./m.gguf".into()));
    }

    #[test]
    fn hostile_sources_are_refused() {
        for bad in [
            "hf:",
            "hf:owner",
            "hf:owner/",
            "hf:/repo",
            "hf:a/b/c",
            "hf:../x",
            "hf:a/..",
            "hf:a b/c",
            "hf:o/r:",
            "hf:o/r:../x",
            "hf:o/r:/x",
            "hf:o/r:a//b",
            "hf:o/r:a?b",
            "hf:o/r@",
            "hf:o/r@../x",
            "hf:o/r@a b",
            "hf:o/r:x\n",
            "hf:o/r:\u{1b}[2J",
            "",
        ] {
            let error = bad.parse::<ModelSource>().unwrap_err().to_string();
            assert!(error.contains("hf:owner/repo"), "{bad}: {error}");
        }
    }

    #[test]
    fn models_without_a_name_get_that_of_their_source() {
        let check = |text: &str, expect: &str| {
            assert_eq!(text.parse::<ModelSource>().unwrap().default_name().unwrap().as_str(), expect);
        };
        check("hf:o/r:Q4_K_M@main", "o/r:Q4_K_M@main");
        check("/models/tiny-q8_0.gguf", "tiny-q8_0");
    }
}

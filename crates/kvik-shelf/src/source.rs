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
        let bad = || ShelfError::BadSource { text: text.to_owned() };
        let page = ON_HUB.iter().find_map(|prefix| text.strip_prefix(prefix));
        let spec = match (text.strip_prefix("hf:"), page) {
            (Some(spec), _) => spec.to_owned(),
            (None, Some(page)) => of_page(page).ok_or_else(bad)?,
            (None, None) if text.is_empty() => return Err(bad()),
            (None, None) => return Ok(ModelSource::Path(text.into())),
        };
        // Ollama's clients append this tag to a model that they were given without one.
        let spec = spec.strip_suffix(":latest").unwrap_or(&spec);
        spec.parse().map(ModelSource::Hub).map_err(|_| bad())
    }
}

/// Beginnings of the hub's pages, as browsers and Ollama's users write them.
const ON_HUB: [&str; 6] = [
    "hf.co/",
    "huggingface.co/",
    "https://hf.co/",
    "https://huggingface.co/",
    "http://hf.co/",
    "http://huggingface.co/",
];
/// The branch that a repository has from its beginning, which needs no name.
const MAIN: &str = "main";

/// The spec of a page of the hub, by its path without the leading slash: of a repository, which a file or a quantisation
/// and a revision may follow as in a spec, or of its tree, or of a file.
fn of_page(path: &str) -> Option<String> {
    let path = path.split(['?', '#']).next()?.trim_end_matches('/');
    let parts: Vec<&str> = path.splitn(4, '/').collect();
    let (owner, repo, kind, rest) = match parts[..] {
        [owner, repo, kind, rest] if !repo.contains([':', '@']) => (owner, repo, kind, rest),
        _ => return Some(path.to_owned()),
    };
    let (revision, within) = rest.split_once('/').unwrap_or((rest, ""));
    let is_whole = match kind {
        "blob" | "raw" | "resolve" => !within.is_empty(),
        // A folder may be a quantisation, whose files are then found.
        "tree" => true,
        _ => false,
    };
    let (revision, within) = (decoded(revision)?, decoded(within)?);
    // Behind a path with an @ it has to stand, because the last @ begins it.
    let is_usual = revision == MAIN && !within.contains('@');
    let wanted = if within.is_empty() { String::new() } else { format!(":{within}") };
    let revision = if is_usual { String::new() } else { format!("@{revision}") };
    is_whole.then(|| format!("{owner}/{repo}{wanted}{revision}"))
}

/// The text of a part of a URL, in which `%2F` is a slash; `None` if it is not well-formed.
fn decoded(part: &str) -> Option<String> {
    let mut pieces = part.split('%');
    let mut bytes = pieces.next()?.as_bytes().to_vec();
    for piece in pieces {
        let (digits, rest) = piece.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).ok()
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
        assert_eq!("./m.gguf".parse::<ModelSource>().unwrap(), ModelSource::Path("./m.gguf".into()));
    }

    #[test]
    fn pages_of_the_hub_are_sources() {
        for host in
            ["hf.co", "huggingface.co", "https://hf.co", "https://huggingface.co", "http://huggingface.co"]
        {
            let check = |path: &str, expect: &str| {
                let source: ModelSource = format!("{host}/{path}").parse().unwrap();
                assert_eq!(source.to_string(), format!("hf:{expect}"), "{host}/{path}");
            };
            check("o/r", "o/r");
            check("o/r/", "o/r");
            check("o/r?download=true", "o/r");
            check("o/r:Q4_K_M", "o/r:Q4_K_M");
            check("o/r:latest", "o/r");
            check("o/r:a/b/m.gguf@v1", "o/r:a/b/m.gguf@v1");
            check("o/r/tree/main", "o/r");
            check("o/r/tree/v1.0/", "o/r@v1.0");
            check("o/r/tree/main/Q4_K_M", "o/r:Q4_K_M");
            check("o/r/blob/main/m-Q8_0.gguf", "o/r:m-Q8_0.gguf");
            check("o/r/blob/main/m-Q8_0.gguf#L1", "o/r:m-Q8_0.gguf");
            check("o/r/resolve/main/sub/m.gguf?download=true", "o/r:sub/m.gguf");
            check("o/r/resolve/refs%2Fpr%2F1/m.gguf", "o/r:m.gguf@refs/pr/1");
            check("o/r/raw/0123abc/a%20b.gguf", "o/r:a b.gguf@0123abc");
            check("o/r/blob/main/a@b.gguf", "o/r:a@b.gguf@main");
        }
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
            "hf.co/",
            "huggingface.co/o",
            "https://huggingface.co/datasets/o/r",
            "https://huggingface.co/o/r/discussions/1",
            "https://huggingface.co/o/r/blob/main",
            "https://huggingface.co/o/r/blob/main/../x",
            "https://huggingface.co/o/r/blob/main/%2e%2e/x",
            "https://huggingface.co/o/r/blob/main/a%0ab",
            "https://huggingface.co/o/r/blob/main/a%",
            "https://huggingface.co/o/r/blob/main/a%ff",
            "https://huggingface.co/o/r/tree/%2e%2e%2fx",
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

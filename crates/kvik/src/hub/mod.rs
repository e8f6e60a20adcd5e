//! Downloads models from the Hugging Face hub: lists files, chooses a model, downloads it once.
//!
//! It does not trust the hub: names are checked before they become paths, sizes and checksums before
//! a download becomes a file. The token goes only to the hub, never to the target of a redirect.

mod choose;
mod download;
#[cfg(test)]
mod tests;

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use serde::Deserialize;
use ureq::{
    Agent, Body,
    http::{Response, StatusCode, header},
};

use crate::settings::dirs;

/// Redirects followed per request.
const REDIRECTS_MAX: usize = 5;
/// Bytes of a listing at most.
const LISTING_MAX: u64 = 32 << 20;

/// `owner/repo[:file]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HubSpec {
    owner: String,
    repo: String,
    /// Path inside the repository.
    file: Option<String>,
}

/// A hub and the directory of its downloads.
pub(crate) struct Hub {
    endpoint: String,
    token: Option<String>,
    /// Holds `owner/repo/file`.
    files: PathBuf,
    agent: Agent,
}

/// A file of a repository.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct RemoteFile {
    #[serde(rename = "rfilename")]
    path: String,
    size: Option<u64>,
    lfs: Option<Lfs>,
}

/// Checksum, which only large files have.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Lfs {
    sha256: Option<String>,
    size: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct Listing {
    siblings: Vec<RemoteFile>,
}

/// Why a model could not be fetched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum HubError {
    #[error("`hf:{0}` does not name a model; write hf:owner/repo or hf:owner/repo:file.gguf")]
    BadSpec(String),
    #[error("there is no directory for downloads; set KVIK_CACHE_DIR")]
    NoCacheDir,
    #[error("{what} is not on the hub ({url}); check the name, and set HF_TOKEN if it is private or gated")]
    NotFound { what: String, url: String },
    #[error("{url} requires a token (status {status}); set HF_TOKEN to one that may read this repository")]
    Refused { url: String, status: u16 },
    #[error("{url} answers {status}; try again later")]
    Status { url: String, status: u16 },
    #[error("{url} cannot be reached: {source}; check the network, HF_ENDPOINT and proxy settings")]
    Unreachable { url: String, source: Box<ureq::Error> },
    #[error("{url} redirects to {to:?}, which kvik does not follow")]
    BadRedirect { url: String, to: String },
    #[error("{url} does not answer with a list of files: {source}")]
    BadListing { url: String, source: serde_json::Error },
    #[error("hf:{repo} has no file `{file}`; it has {available}")]
    NoSuchFile { repo: String, file: String, available: String },
    #[error("hf:{repo} has neither a GGUF file nor safetensors that kvik could run; it has {available}")]
    NothingToRun { repo: String, available: String },
    #[error("the download of {file} broke off at {have} of {size} bytes; run the command again to resume it")]
    BrokeOff { file: String, have: u64, size: u64 },
    #[error(
        "{file} does not have the checksum that the hub gives ({found}, not {expected}); it was deleted, run the command again"
    )]
    Checksum { file: String, expected: String, found: String },
    #[error("{path}: {source}", path = path.display())]
    Io { path: PathBuf, source: io::Error },
}

impl FromStr for HubSpec {
    type Err = HubError;

    fn from_str(text: &str) -> Result<Self, HubError> {
        let bad = || HubError::BadSpec(text.to_owned());
        let (name, file) = match text.split_once(':') {
            Some((name, file)) => (name, Some(file)),
            None => (text, None),
        };
        let (owner, repo) = name.split_once('/').ok_or_else(bad)?;
        let word = |part: &str| {
            !part.is_empty()
                && !part.starts_with('.')
                && part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        };
        if !word(owner) || !word(repo) || file.is_some_and(|file| safe_path(file).is_none()) {
            return Err(bad());
        }
        Ok(HubSpec { owner: owner.to_owned(), repo: repo.to_owned(), file: file.map(str::to_owned) })
    }
}

impl fmt::Display for HubSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.owner, self.repo)
    }
}

/// The name as a relative path, or `None` when it could leave the directory.
fn safe_path(name: &str) -> Option<&Path> {
    let fine = |part: &str| {
        !part.is_empty() && !part.starts_with('.') && !part.contains(['\\', ':', '\0', '?', '#', '%'])
    };
    name.split('/').all(fine).then(|| Path::new(name))
}

impl Hub {
    /// The hub of `HF_ENDPOINT` with the token of `HF_TOKEN`.
    pub(crate) fn from_env() -> Result<Hub, HubError> {
        let var = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let endpoint = var("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned());
        let files = dirs::cache().ok_or(HubError::NoCacheDir)?.join("hub");
        Ok(Hub::new(&endpoint, var("HF_TOKEN"), files))
    }

    fn new(endpoint: &str, token: Option<String>, files: PathBuf) -> Hub {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            // Redirects are followed by hand: the token must not go along, and the checksum stands
            // in the headers of the first answer.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(Duration::from_secs(20)))
            .timeout_recv_response(Some(Duration::from_secs(60)))
            .timeout_per_read(Some(Duration::from_secs(60)))
            .user_agent(concat!("kvik/", env!("CARGO_PKG_VERSION")))
            .build();
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        Hub { endpoint, token, files, agent: config.new_agent() }
    }

    /// The model's path on this machine: a GGUF file, or a directory of safetensors. Downloads only
    /// missing files.
    pub(crate) fn fetch(&self, spec: &HubSpec) -> Result<PathBuf, HubError> {
        let directory = self.files.join(&spec.owner).join(&spec.repo);
        let chosen_before = directory.join(".chosen");
        let file = spec.file.clone().or_else(|| fs::read_to_string(&chosen_before).ok());
        if let Some(path) = file.as_deref().and_then(|file| self.present(&directory, file)) {
            return Ok(path);
        }
        let files = self.list(spec)?;
        let choice = choose::choose(spec, &files)?;
        for file in &choice.files {
            self.download(spec, file, &directory)?;
        }
        if spec.file.is_none() {
            // The marker lets the next start do without network.
            fs::write(&chosen_before, &choice.model)
                .map_err(|source| HubError::Io { path: chosen_before, source })?;
        }
        Ok(choice.path_in(&directory))
    }

    /// A file downloaded before; `.` stands for the directory, which is complete when `.chosen` says so.
    fn present(&self, directory: &Path, file: &str) -> Option<PathBuf> {
        let path = if file == "." { directory.to_owned() } else { directory.join(safe_path(file)?) };
        path.exists().then_some(path)
    }

    /// The files of a repository whose names are safe as paths.
    fn list(&self, spec: &HubSpec) -> Result<Vec<RemoteFile>, HubError> {
        let url = format!("{}/api/models/{spec}?blobs=true", self.endpoint);
        let (response, _) = self.get(&url, &format!("hf:{spec}"), None)?;
        let text = response.into_body().into_with_config().limit(LISTING_MAX).read_to_string();
        let text =
            text.map_err(|source| HubError::Unreachable { url: url.clone(), source: Box::new(source) })?;
        let listing: Listing =
            serde_json::from_str(&text).map_err(|source| HubError::BadListing { url, source })?;
        // Hidden files are no part of a model, and a name that leaves the directory is never accepted.
        Ok(listing.siblings.into_iter().filter(|file| safe_path(&file.path).is_some()).collect())
    }

    /// Requests `url` from byte `from` on, and follows redirects.
    ///
    /// Also returns the checksum in the headers of a redirect.
    fn get(
        &self,
        url: &str,
        what: &str,
        from: Option<u64>,
    ) -> Result<(Response<Body>, Option<String>), HubError> {
        let mut at = url.to_owned();
        let mut checksum = None;
        for _ in 0..=REDIRECTS_MAX {
            let mut request = self.agent.get(&at);
            if let Some(token) = self.token.as_ref().filter(|_| origin(&at) == origin(&self.endpoint)) {
                request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
            }
            if let Some(from) = from {
                request = request.header(header::RANGE, format!("bytes={from}-"));
            }
            let unreachable = |source| HubError::Unreachable { url: at.clone(), source: Box::new(source) };
            let response = request.call().map_err(unreachable)?;
            checksum = checksum.or_else(|| linked_checksum(&response));
            match response.status() {
                status if status.is_redirection() => at = redirect(&at, &response)?,
                StatusCode::OK | StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE => {
                    return Ok((response, checksum));
                }
                StatusCode::NOT_FOUND => {
                    return Err(HubError::NotFound { what: what.to_owned(), url: url.to_owned() });
                }
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                    return Err(HubError::Refused { url: at, status: response.status().as_u16() });
                }
                status => return Err(HubError::Status { url: at, status: status.as_u16() }),
            }
        }
        Err(HubError::BadRedirect { url: url.to_owned(), to: at })
    }
}

/// The SHA-256 of a large file, which the hub sends as `x-linked-etag` with the redirect.
fn linked_checksum(response: &Response<Body>) -> Option<String> {
    let etag = response.headers().get("x-linked-etag")?.to_str().ok()?;
    let etag = etag.trim_start_matches("W/").trim_matches('"');
    (etag.len() == 64 && etag.chars().all(|c| c.is_ascii_hexdigit())).then(|| etag.to_ascii_lowercase())
}

/// Scheme and authority of a URL.
fn origin(url: &str) -> &str {
    let authority = url.find("://").map_or(0, |i| i + 3);
    let end = url[authority..].find(['/', '?', '#']).map_or(url.len(), |i| authority + i);
    &url[..end]
}

/// The target of a redirect: another URL, or another path of the same host; never from https to http.
fn redirect(url: &str, response: &Response<Body>) -> Result<String, HubError> {
    let to = response.headers().get(header::LOCATION).and_then(|value| value.to_str().ok()).unwrap_or("");
    let secure = url.starts_with("https://");
    if to.starts_with('/') && !to.starts_with("//") {
        return Ok(format!("{}{to}", origin(url)));
    }
    if to.starts_with("https://") || (to.starts_with("http://") && !secure) {
        return Ok(to.to_owned());
    }
    Err(HubError::BadRedirect { url: url.to_owned(), to: to.to_owned() })
}

//! The Hugging Face hub: lists files and downloads their bytes.
//!
//! The hub is not trusted: names are checked before they become paths, sizes and checksums before a download
//! becomes a file. The token is sent only to the hub, never to the target of a redirect.

mod choose;
mod retry;
mod search;
mod token;
mod url;

use std::{env, ops::Range, path::Path, time::Duration};

use serde::{Deserialize, de::DeserializeOwned};
use ureq::{
    Agent, Body,
    http::{Response, StatusCode, header},
};

pub(crate) use choose::{ModelFiles, choose, names};
pub(crate) use retry::{Retry, sleep};
pub use search::FoundRepository;
use token::Token;

use crate::{
    HubSpec, Progress, ProxyError, ShelfError, disk,
    manifest::is_sha256,
    source::{is_revision, safe_path},
    tls,
};

/// Redirects followed per request.
const REDIRECTS_MAX: usize = 5;
/// Maximum size of a listing.
const LISTING_MAX: u64 = 32 << 20;

/// A client of a hub.
#[derive(Debug, Clone)]
pub struct Hub {
    endpoint: String,
    token: Token,
    agent: Agent,
    pub(crate) tuning: Tuning,
}

/// Parameters of downloads and retries.
#[derive(Debug, Clone)]
pub(crate) struct Tuning {
    /// Number of connections per file.
    pub(crate) connections: usize,
    /// Minimum and maximum size of the pieces of a file that are fetched concurrently.
    pub(crate) piece_bytes: Range<u64>,
    /// Pause after a first failure.
    pub(crate) first_pause: Duration,
    /// Free bytes, if they override the system's value.
    pub(crate) free_bytes: Option<u64>,
}

impl Tuning {
    /// Free bytes in a directory, if known.
    pub(crate) fn free_in(&self, directory: &Path) -> Option<u64> {
        self.free_bytes.or_else(|| disk::free_bytes(directory))
    }
}

impl Default for Tuning {
    fn default() -> Tuning {
        let piece_bytes = 8 << 20..256 << 20;
        Tuning { connections: 4, piece_bytes, first_pause: Duration::from_millis(500), free_bytes: None }
    }
}

/// A file of a repository.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct RemoteFile {
    #[serde(rename = "rfilename")]
    pub(crate) path: String,
    size: Option<u64>,
    lfs: Option<Lfs>,
}

/// Size and checksum, which only large files have.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Lfs {
    sha256: Option<String>,
    size: Option<u64>,
}

/// The content of a repository at a revision.
#[derive(Debug, Deserialize)]
pub(crate) struct Repository {
    /// The commit, unless the hub omits it.
    #[serde(rename = "sha")]
    pub(crate) commit: Option<String>,
    #[serde(rename = "siblings")]
    pub(crate) files: Vec<RemoteFile>,
}

impl RemoteFile {
    /// Its size, if the hub states it.
    pub(crate) fn size(&self) -> Option<u64> {
        self.lfs.as_ref().and_then(|lfs| lfs.size).or(self.size)
    }

    /// SHA-256 in lower-case hexadecimal, if the hub states it.
    pub(crate) fn sha256(&self) -> Option<String> {
        let text = self.lfs.as_ref()?.sha256.as_deref()?.to_ascii_lowercase();
        is_sha256(&text).then_some(text)
    }
}

impl Hub {
    /// The hub at `HF_ENDPOINT` with the token `HF_TOKEN`, else the one that `hf auth login` has stored. It is reached
    /// through the proxy of `HTTPS_PROXY`, else of `HTTP_PROXY`, else of `ALL_PROXY`, unless `NO_PROXY` names it.
    pub fn from_env() -> Hub {
        let endpoint = env::var("HF_ENDPOINT").ok().filter(|endpoint| !endpoint.is_empty());
        let endpoint = endpoint.unwrap_or_else(|| "https://huggingface.co".to_owned());
        Hub::with_token(&endpoint, Token::from_variables(env::var_os))
    }

    /// The hub at `endpoint`, such as `https://huggingface.co`.
    pub fn new(endpoint: &str, token: Option<String>) -> Hub {
        Hub::with_token(endpoint, Token::given(token))
    }

    fn with_token(endpoint: &str, token: Token) -> Hub {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            // Redirects are followed manually: the token must not be sent along, and the checksum is in the headers
            // of the first response.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(Duration::from_secs(20)))
            .timeout_recv_response(Some(Duration::from_secs(60)))
            .timeout_per_read(Some(Duration::from_secs(30)))
            .user_agent(concat!("kvik/", env!("CARGO_PKG_VERSION")));
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        Hub { endpoint, token, agent: tls::agent(config), tuning: Tuning::default() }
    }

    /// Lists the files of a repository whose names are safe as paths.
    pub(crate) fn list(&self, spec: &HubSpec, progress: &dyn Progress) -> Result<Repository, ShelfError> {
        self.retried(progress, || self.list_once(spec))
    }

    /// Asks again after failures that may pass.
    fn retried<T>(
        &self,
        progress: &dyn Progress,
        ask: impl Fn() -> Result<T, ShelfError>,
    ) -> Result<T, ShelfError> {
        let mut retry = Retry::new(self.tuning.first_pause);
        loop {
            match ask() {
                // Without a network an immediate error is better than retries.
                Err(error) if is_offline(&error) => return Err(error),
                Err(error) => retry.pause(error, progress)?,
                answer => return answer,
            }
        }
    }

    fn list_once(&self, spec: &HubSpec) -> Result<Repository, ShelfError> {
        let repository = spec.repository();
        let revision = spec.revision.as_deref().map_or(String::new(), |revision| {
            format!("/revision/{}", url::encoded(revision).replace('/', "%2F"))
        });
        let url = format!("{}/api/models/{repository}{revision}?blobs=true", self.endpoint);
        let what = match &spec.revision {
            Some(revision) => format!("hf:{repository} at revision {revision}"),
            None => format!("hf:{repository}"),
        };
        let asked = Asked { url: &url, what: &what, remedy: ABSENT, page: &self.page(&repository) };
        let mut listed: Repository = self.get_json(&asked, LISTING_MAX)?;
        // Hidden files are not part of a model, and a name that leaves the directory is never accepted.
        listed.files.retain(|file| safe_path(&file.path).is_some());
        listed.commit = listed.commit.filter(|commit| is_revision(commit) && !commit.contains('/'));
        Ok(listed)
    }

    /// Requests a URL that answers with JSON of at most `bytes_max` bytes.
    fn get_json<T: DeserializeOwned>(&self, asked: &Asked<'_>, bytes_max: u64) -> Result<T, ShelfError> {
        let url = asked.url.to_owned();
        let Answer { response, .. } = self.get(asked, None)?;
        let text = response.into_body().into_with_config().limit(bytes_max).read_to_vec();
        let text =
            text.map_err(|source| ShelfError::Unreachable { url: url.clone(), source: Box::new(source) })?;
        let bad = |error: serde_json::Error| ShelfError::BadListing { url, reason: error.to_string() };
        serde_json::from_slice(&text).map_err(bad)
    }

    /// The page of a repository, where licences are accepted.
    fn page(&self, repository: &str) -> String {
        format!("{}/{repository}", self.endpoint)
    }

    /// The URL of a file at a revision.
    pub(crate) fn file_url(&self, spec: &HubSpec, revision: &str, path: &str) -> String {
        let (revision, path) = (url::encoded(revision).replace('/', "%2F"), url::encoded(path));
        format!("{}/{}/resolve/{revision}/{path}", self.endpoint, spec.repository())
    }

    /// Requests the bytes of a file in `range`, or all.
    pub(crate) fn get_file(
        &self,
        url: &str,
        what: &str,
        range: Option<Range<u64>>,
    ) -> Result<Answer, ShelfError> {
        let page = url.split_once("/resolve/").map_or(url, |(page, _)| page);
        self.get(
            &Asked { url, what, remedy: "the repository may have changed: run the command again", page },
            range,
        )
    }

    /// Requests a URL and follows redirects.
    fn get(&self, asked: &Asked<'_>, range: Option<Range<u64>>) -> Result<Answer, ShelfError> {
        let mut at = asked.url.to_owned();
        let mut sha256 = None;
        for _ in 0..=REDIRECTS_MAX {
            let is_hub = url::origin(&at) == url::origin(&self.endpoint);
            let response = match is_hub.then(|| self.token.get()).flatten() {
                Some(token) => self.get_with(token, &at, range.as_ref())?,
                None => self.get_once(None, &at, range.as_ref())?,
            };
            sha256 = sha256.or_else(|| linked_checksum(&response).filter(|_| is_hub));
            if !response.status().is_redirection() {
                return asked.check(&at, response).map(|response| Answer { response, sha256 });
            }
            let location = text_of(&response, header::LOCATION.as_str()).unwrap_or_default();
            let bad = || ShelfError::BadRedirect { url: at.clone(), to: location.to_owned() };
            at = url::redirected(&at, location).ok_or_else(bad)?;
        }
        Err(ShelfError::BadRedirect { url: asked.url.to_owned(), to: at })
    }

    /// Requests a URL with the token. The hub refuses one that has expired also where it asks for none; what it then
    /// answers without it is taken.
    fn get_with(
        &self,
        token: &str,
        at: &str,
        range: Option<&Range<u64>>,
    ) -> Result<Response<Body>, ShelfError> {
        let refused = self.get_once(Some(token), at, range)?;
        if refused.status() != StatusCode::UNAUTHORIZED {
            return Ok(refused);
        }
        let open = self.get_once(None, at, range)?;
        if !(open.status().is_success() || open.status().is_redirection()) {
            return Ok(refused);
        }
        self.token.retire();
        Ok(open)
    }

    /// Requests a URL, and follows no redirect.
    fn get_once(
        &self,
        token: Option<&str>,
        at: &str,
        range: Option<&Range<u64>>,
    ) -> Result<Response<Body>, ShelfError> {
        let mut request = self.agent.get(at);
        if let Some(token) = token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        if let Some(Range { start, end }) = range {
            request = request.header(header::RANGE, format!("bytes={start}-{}", end - 1));
        }
        request.call().map_err(|source| unreachable(at, source))
    }
}

/// Remedy for a repository that is not found.
const ABSENT: &str = "check the name, and set HF_TOKEN if it is private or gated";

/// A request, and the details for its error messages.
struct Asked<'a> {
    url: &'a str,
    what: &'a str,
    remedy: &'a str,
    page: &'a str,
}

/// A response with content, or one that reports an unsatisfiable range.
pub(crate) struct Answer {
    pub(crate) response: Response<Body>,
    /// The checksum in the headers of the hub.
    pub(crate) sha256: Option<String>,
}

impl Asked<'_> {
    /// Turns an unexpected status into an error.
    fn check(&self, at: &str, response: Response<Body>) -> Result<Response<Body>, ShelfError> {
        // The hub does not reveal to unauthorised users whether a repository exists: it returns 401 in both cases.
        let not_there = text_of(&response, "x-error-code").is_some_and(|code| code == "RepoNotFound");
        let url = at.to_owned();
        match response.status() {
            StatusCode::OK | StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE => Ok(response),
            status if status == StatusCode::NOT_FOUND || not_there => Err(ShelfError::NotFound {
                what: self.what.to_owned(),
                url: self.url.to_owned(),
                remedy: self.remedy.to_owned(),
            }),
            status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
                Err(ShelfError::Refused { url, status: status.as_u16(), page: self.page.to_owned() })
            }
            status => {
                let seconds = text_of(&response, header::RETRY_AFTER.as_str());
                let retry_after = seconds.and_then(|text| text.trim().parse().ok()).map(Duration::from_secs);
                Err(ShelfError::Status { url, status: status.as_u16(), retry_after })
            }
        }
    }
}

impl Answer {
    /// Start of a partial response and size of the whole file: `Content-Range: bytes 100-199/200`.
    pub(crate) fn part(&self) -> Option<(u64, u64)> {
        if self.response.status() != StatusCode::PARTIAL_CONTENT {
            return None;
        }
        let range = text_of(&self.response, header::CONTENT_RANGE.as_str())?.strip_prefix("bytes ")?;
        let (range, whole) = range.split_once('/')?;
        Some((range.split_once('-')?.0.parse().ok()?, whole.parse().ok()?))
    }

    /// The length of a whole response, if it is stated; `None` if this is not a whole response.
    pub(crate) fn whole(&self) -> Option<Option<u64>> {
        let length = text_of(&self.response, header::CONTENT_LENGTH.as_str());
        (self.response.status() == StatusCode::OK).then(|| length.and_then(|text| text.parse().ok()))
    }
}

/// Why there was no response of a URL.
fn unreachable(url: &str, source: ureq::Error) -> ShelfError {
    match source {
        ureq::Error::TlsRequired => ShelfError::NoTls,
        ureq::Error::Other(own) => match own.downcast::<ProxyError>() {
            Ok(error) => ShelfError::Proxy(*error),
            Err(own) => {
                ShelfError::Unreachable { url: url.to_owned(), source: Box::new(ureq::Error::Other(own)) }
            }
        },
        source => ShelfError::Unreachable { url: url.to_owned(), source: Box::new(source) },
    }
}

fn text_of<'a>(response: &'a Response<Body>, name: &str) -> Option<&'a str> {
    response.headers().get(name)?.to_str().ok()
}

/// The SHA-256 of a large file, which the hub sends as `x-linked-etag` with the redirect.
fn linked_checksum(response: &Response<Body>) -> Option<String> {
    let etag = text_of(response, "x-linked-etag")?.trim_start_matches("W/").trim_matches('"');
    let etag = etag.to_ascii_lowercase();
    is_sha256(&etag).then_some(etag)
}

/// Returns whether there is no network, or no server at the hub's address.
fn is_offline(error: &ShelfError) -> bool {
    let ShelfError::Unreachable { source, .. } = error else { return false };
    match &**source {
        ureq::Error::HostNotFound | ureq::Error::ConnectionFailed | ureq::Error::ConnectProxyFailed(_) => {
            true
        }
        ureq::Error::Io(error) => error.kind() == std::io::ErrorKind::ConnectionRefused,
        _ => false,
    }
}

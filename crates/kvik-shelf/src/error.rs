//! Errors of the shelf, with remedies.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::ProxyError;

/// Errors of the shelf and its hub.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShelfError {
    /// The text names no source of a model.
    #[error(
        "`{text}` does not name a model; write hf:owner/repo, hf:owner/repo:Q4_K_M, hf:owner/repo:file.gguf \
         (each with @revision behind it if need be), or a path"
    )]
    BadSource {
        /// The text.
        text: String,
    },
    /// The text is not a valid model name.
    #[error("{name:?} cannot be the name of a model: {reason}")]
    BadName {
        /// The text.
        name: String,
        /// The violated rule.
        reason: &'static str,
    },
    /// No model has this name.
    #[error("there is no model named `{name}`; {known}")]
    UnknownName {
        /// The name.
        name: String,
        /// The existing names, as a sentence.
        known: String,
    },
    /// The name belongs to a model from another source.
    #[error(
        "the name `{name}` belongs to {origin}; choose another with --name, or remove it first: kvik rm {name}"
    )]
    NameTaken {
        /// The name.
        name: String,
        /// The source of its model.
        origin: String,
    },
    /// The manifest is invalid.
    #[error("the manifest {path} cannot be used: {reason}", path = path.display())]
    BadManifest {
        /// The manifest.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// A file of the model is missing or has another size.
    #[error("`{name}` lacks its file {path}; {remedy}", path = path.display())]
    MissingFile {
        /// The name of the model.
        name: String,
        /// The file.
        path: PathBuf,
        /// How to restore it.
        remedy: String,
    },
    /// The source does not exist on this machine.
    #[error("there is neither a file nor a directory {text}; {remedy}")]
    NoSuchPath {
        /// The source.
        text: String,
        /// The names and sources that may have been meant.
        remedy: String,
    },
    /// There is no model at the path.
    #[error("{path} is no model: {reason}", path = path.display())]
    NotAModel {
        /// The path.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The hub does not have the repository, revision or file.
    #[error("{what} is not on the hub ({url}); {remedy}")]
    NotFound {
        /// The requested item.
        what: String,
        /// The URL.
        url: String,
        /// A possible remedy.
        remedy: String,
    },
    /// The repository has no file with this name or quantisation.
    #[error("hf:{repo} has no file or quantisation `{wanted}`; it has {available}")]
    NoSuchFile {
        /// The repository.
        repo: String,
        /// The requested name or quantisation.
        wanted: String,
        /// The existing files.
        available: String,
    },
    /// The requested file is in a quantisation that kvik does not open.
    #[error("kvik does not open the quantisation of {file} in hf:{repo}; of its files it opens {available}")]
    BadQuantisation {
        /// The repository.
        repo: String,
        /// The requested file.
        file: String,
        /// The files that it opens.
        available: String,
    },
    /// The repository has no model.
    #[error("hf:{repo} has neither a GGUF file nor safetensors that kvik could run; it has {available}")]
    NothingToRun {
        /// The repository.
        repo: String,
        /// The existing files.
        available: String,
    },
    /// The repository lacks parts of a split model.
    #[error("hf:{repo} has only some parts of {file}: `{missing}` is missing")]
    MissingPart {
        /// The repository.
        repo: String,
        /// An existing part.
        file: String,
        /// The first missing part.
        missing: String,
    },
    /// The hub denies this user access to the repository.
    #[error(
        "{url} refuses access (status {status}): set HF_TOKEN to a token that may read it, \
         and accept the licence of a gated model on its page {page}"
    )]
    Refused {
        /// The requested URL.
        url: String,
        /// 401 or 403.
        status: u16,
        /// The page of the repository.
        page: String,
    },
    /// The hub returned an unexpected status.
    #[error("{url} answers {status}{}; try again later", wait_words(*.retry_after))]
    Status {
        /// The requested URL.
        url: String,
        /// The status.
        status: u16,
        /// How long the hub asks to wait.
        retry_after: Option<Duration>,
    },
    /// The hub could not be reached.
    #[error("{url} cannot be reached: {source}; check the network, HF_ENDPOINT and proxy settings")]
    Unreachable {
        /// The requested URL.
        url: String,
        /// The cause.
        source: Box<ureq::Error>,
    },
    /// This build's TLS does not support this processor.
    #[error(
        "this kvik has no TLS for this processor: the built-in one takes AVX2, AES and ADX (x86-64) or AES and SHA2 \
         (aarch64); packages of kvik have another, as has `cargo install kvik --features tls-ring` (with a C compiler)"
    )]
    NoTls,
    /// The proxy of the environment cannot be used.
    #[error(transparent)]
    Proxy(#[from] ProxyError),
    /// The hub redirected to another scheme, or too often.
    #[error("{url} redirects to {to:?}, which kvik does not follow")]
    BadRedirect {
        /// The requested URL.
        url: String,
        /// The target.
        to: String,
    },
    /// The response is not the list that was asked for.
    #[error("{url} does not answer as a hub does: {reason}")]
    BadListing {
        /// The requested URL.
        url: String,
        /// The reason.
        reason: String,
    },
    /// The download ended early too often.
    #[error("the download of {file} broke off at {have} of {size} bytes; run the command again to resume it")]
    BrokeOff {
        /// The file.
        file: String,
        /// Present bytes.
        have: u64,
        /// Size of the whole file, as far as it is known.
        size: u64,
    },
    /// The hub does not state the size of the file, and the file exceeds the limit.
    #[error(
        "{file} has more than {bytes_max} bytes, half of what is free, and the hub does not say how many; it was given up"
    )]
    TooLong {
        /// The file.
        file: String,
        /// The limit.
        bytes_max: u64,
    },
    /// The downloaded bytes differ from those the hub announces.
    #[error(
        "{file} does not have the checksum that the hub gives ({found}, not {expected}); \
         it was deleted, run the command again"
    )]
    Checksum {
        /// The file.
        file: String,
        /// SHA-256 from the hub.
        expected: String,
        /// SHA-256 of the downloaded bytes.
        found: String,
    },
    /// The disk is full.
    #[error("no room for {path}: it needs {needed} bytes more{}", free_words(*.free), path = path.display())]
    NoRoom {
        /// The file.
        path: PathBuf,
        /// Bytes that it still needs.
        needed: u64,
        /// Free bytes there, if the system reports them.
        free: Option<u64>,
    },
    /// A download is running whose files the operation would remove.
    #[error("a download into {dir} is running; wait until it has ended", dir = dir.display())]
    Busy {
        /// The shelf.
        dir: PathBuf,
    },
    /// The caller has cancelled the operation.
    #[error("cancelled; what was downloaded stays, and the next pull goes on from there")]
    Cancelled,
    /// An I/O error of the operating system.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl ShelfError {
    /// Wraps an I/O error on a path.
    pub(crate) fn io(path: &Path) -> impl Fn(io::Error) -> ShelfError {
        move |source| ShelfError::Io { path: path.to_owned(), source }
    }

    /// Returns whether the same request may succeed a little later.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            ShelfError::Status { status, .. } => matches!(status, 408 | 429 | 500..),
            ShelfError::Unreachable { .. } => true,
            _ => false,
        }
    }
}

/// How long the hub asks to wait, for a message.
fn wait_words(retry_after: Option<Duration>) -> impl fmt::Display {
    retry_after.map_or(String::new(), |wait| format!(" and asks to wait {} s", wait.as_secs()))
}

/// The free bytes, for a message.
fn free_words(free: Option<u64>) -> impl fmt::Display {
    free.map_or(String::new(), |free| format!(", and {free} are free"))
}

//! Why the shelf could not do what was asked, and what helps.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    time::Duration,
};

/// Errors of the shelf and its hub.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShelfError {
    /// A text that names no source of a model.
    #[error(
        "`{text}` does not name a model; write hf:owner/repo, hf:owner/repo:Q4_K_M, hf:owner/repo:file.gguf \
         (each with @revision behind it if need be), or a path"
    )]
    BadSource {
        /// The text.
        text: String,
    },
    /// A text that cannot be the name of a model.
    #[error("{name:?} cannot be the name of a model: {reason}")]
    BadName {
        /// The text.
        name: String,
        /// The rule that it breaks.
        reason: &'static str,
    },
    /// No model has this name.
    #[error("there is no model named `{name}`; {known}")]
    UnknownName {
        /// The name.
        name: String,
        /// The names there are, as a sentence.
        known: String,
    },
    /// The name belongs to a model of another source.
    #[error(
        "the name `{name}` belongs to {origin}; choose another with --name, or remove it first: kvik rm {name}"
    )]
    NameTaken {
        /// The name.
        name: String,
        /// Where its model comes from.
        origin: String,
    },
    /// A manifest that cannot be used.
    #[error("the manifest {path} cannot be used: {reason}", path = path.display())]
    BadManifest {
        /// The manifest.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A model's file is gone or has another size.
    #[error("`{name}` lacks its file {path}; {remedy}", path = path.display())]
    MissingFile {
        /// The name of the model.
        name: String,
        /// The file.
        path: PathBuf,
        /// What brings it back.
        remedy: String,
    },
    /// A source that is nothing on this machine.
    #[error("there is neither a file nor a directory {text}; {remedy}")]
    NoSuchPath {
        /// The source.
        text: String,
        /// The names and sources that may have been meant.
        remedy: String,
    },
    /// A path at which there is no model.
    #[error("{path} is no model: {reason}", path = path.display())]
    NotAModel {
        /// The path.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// A repository, revision or file that the hub does not have.
    #[error("{what} is not on the hub ({url}); {remedy}")]
    NotFound {
        /// What was looked for.
        what: String,
        /// Where.
        url: String,
        /// What may help.
        remedy: String,
    },
    /// A file of this name or quantisation is not in the repository.
    #[error("hf:{repo} has no file or quantisation `{wanted}`; it has {available}")]
    NoSuchFile {
        /// The repository.
        repo: String,
        /// What was asked for.
        wanted: String,
        /// The files there are.
        available: String,
    },
    /// A repository without a model.
    #[error("hf:{repo} has neither a GGUF file nor safetensors that kvik could run; it has {available}")]
    NothingToRun {
        /// The repository.
        repo: String,
        /// The files there are.
        available: String,
    },
    /// A split model of which the repository lacks parts.
    #[error("hf:{repo} has only some parts of {file}: `{missing}` is missing")]
    MissingPart {
        /// The repository.
        repo: String,
        /// A part that is there.
        file: String,
        /// The first that is not.
        missing: String,
    },
    /// The hub does not let this user read the repository.
    #[error(
        "{url} refuses access (status {status}): set HF_TOKEN to a token that may read it, \
         and accept the licence of a gated model on its page {page}"
    )]
    Refused {
        /// What was requested.
        url: String,
        /// 401 or 403.
        status: u16,
        /// The page of the repository.
        page: String,
    },
    /// Another status.
    #[error("{url} answers {status}{}; try again later", wait_words(*.retry_after))]
    Status {
        /// What was requested.
        url: String,
        /// The status.
        status: u16,
        /// How long the hub asks to wait.
        retry_after: Option<Duration>,
    },
    /// The hub could not be asked.
    #[error("{url} cannot be reached: {source}; check the network, HF_ENDPOINT and proxy settings")]
    Unreachable {
        /// What was requested.
        url: String,
        /// Why not.
        source: Box<ureq::Error>,
    },
    /// This build's TLS does not run here.
    #[error(
        "this kvik has no TLS for this processor: the built-in one takes AVX2, AES and ADX (x86-64) or AES and SHA2 \
         (aarch64); packages of kvik have another, as has `cargo install kvik --features tls-ring` (with a C compiler)"
    )]
    NoTls,
    /// A redirect to another scheme, or one too many.
    #[error("{url} redirects to {to:?}, which kvik does not follow")]
    BadRedirect {
        /// What was requested.
        url: String,
        /// The target.
        to: String,
    },
    /// An answer that lists no files.
    #[error("{url} does not answer with a list of files: {reason}")]
    BadListing {
        /// What was requested.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A download that ended early too often.
    #[error("the download of {file} broke off at {have} of {size} bytes; run the command again to resume it")]
    BrokeOff {
        /// The file.
        file: String,
        /// Bytes that are there.
        have: u64,
        /// Bytes of the whole file, as far as is known.
        size: u64,
    },
    /// A file whose size the hub does not say, and that goes on and on.
    #[error(
        "{file} has more than {bytes_max} bytes, half of what is free, and the hub does not say how many; it was given up"
    )]
    TooLong {
        /// The file.
        file: String,
        /// Bytes that it may have.
        bytes_max: u64,
    },
    /// A download with other bytes than the hub announces.
    #[error(
        "{file} does not have the checksum that the hub gives ({found}, not {expected}); \
         it was deleted, run the command again"
    )]
    Checksum {
        /// The file.
        file: String,
        /// SHA-256 that the hub gives.
        expected: String,
        /// SHA-256 of what came.
        found: String,
    },
    /// The disk has no room.
    #[error("no room for {path}: it needs {needed} bytes more{}", free_words(*.free), path = path.display())]
    NoRoom {
        /// The file.
        path: PathBuf,
        /// Bytes that it still needs.
        needed: u64,
        /// Bytes that are free there, where the system says so.
        free: Option<u64>,
    },
    /// Somebody is downloading, and what was asked for would take files away under it.
    #[error("a download into {dir} is running; wait until it has ended", dir = dir.display())]
    Busy {
        /// The shelf.
        dir: PathBuf,
    },
    /// The caller does not want it any more.
    #[error("cancelled; what was downloaded stays, and the next pull goes on from there")]
    Cancelled,
    /// The system refuses.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl ShelfError {
    /// An I/O error on a path.
    pub(crate) fn io(path: &Path) -> impl Fn(io::Error) -> ShelfError {
        move |source| ShelfError::Io { path: path.to_owned(), source }
    }

    /// Whether the same request may succeed a little later.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            ShelfError::Status { status, .. } => matches!(status, 408 | 429 | 500..),
            ShelfError::Unreachable { .. } => true,
            _ => false,
        }
    }
}

/// How long a hub asks to wait, for a message.
fn wait_words(retry_after: Option<Duration>) -> impl fmt::Display {
    retry_after.map_or(String::new(), |wait| format!(" and asks to wait {} s", wait.as_secs()))
}

/// What is free, for a message.
fn free_words(free: Option<u64>) -> impl fmt::Display {
    free.map_or(String::new(), |free| format!(", and {free} are free"))
}

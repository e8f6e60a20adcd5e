//! Why a store cannot be opened, and why one that is open does not answer.

use std::path::PathBuf;

/// Errors of opening: of what was given, not of the store, which may be away.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// An address of another kind.
    #[error(
        "`{scheme}://` is no store that nodes share; write redis://HOST:PORT, rediss://HOST:PORT, \
         s3://BUCKET/PREFIX or file:///DIRECTORY"
    )]
    UnknownScheme {
        /// What stands before `://`.
        scheme: String,
    },
    /// An address that cannot be read. It is not shown, since it may hold a password.
    #[error("the address of the remote cache cannot be used: {reason}")]
    BadUrl {
        /// What is wrong with it.
        reason: String,
    },
    /// The file of the key cannot be read.
    #[error("the key of the remote cache {path} cannot be read: {source}; make one with `kvik cache key`, and give \
             all nodes the same", path = path.display())]
    NoKey {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A text that is no key.
    #[error(
        "the key of the remote cache must be 32 bytes as 64 hexadecimal digits or in base64, as `kvik cache key` \
         prints; this one has {bytes} bytes"
    )]
    BadKey {
        /// Bytes that it has; 0 for what is neither.
        bytes: usize,
    },
    /// TLS is asked for and not there.
    #[error(transparent)]
    NoTls(#[from] kvik_shelf::ShelfError),
    /// The settings of S3 are not complete.
    #[error(
        "the remote cache in S3 cannot be set up: {reason}; it reads AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, \
         AWS_REGION and AWS_ENDPOINT_URL"
    )]
    BadS3 {
        /// What object_store says.
        reason: String,
    },
    /// The directory cannot be made or read.
    #[error("the directory {path} of the remote cache cannot be used: {reason}", path = path.display())]
    BadDirectory {
        /// The directory.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// The thread does not start, or the system has no random numbers.
    #[error("the remote cache cannot start: {0}")]
    System(std::io::Error),
}

/// Why a store did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// No answer in time.
    #[error("it does not answer in time")]
    Late,
    /// No connection, or one that broke.
    #[error("it cannot be reached: {0}")]
    Unreachable(String),
    /// It knows us and says no: a wrong password, a missing right.
    #[error("it refuses: {0}")]
    Refused(String),
    /// It takes nothing more.
    #[error("it is full: {0}")]
    Full(String),
    /// Anything else that it says.
    #[error("it fails: {0}")]
    Failed(String),
}

impl Fault {
    /// What helps, for people.
    pub fn remedy(&self) -> &'static str {
        match self {
            Fault::Late => "check its load and the network between",
            Fault::Unreachable(_) => "check that it runs and that its address is right",
            Fault::Refused(_) => "check the user, the password and what they may do",
            Fault::Full(_) => "set --cache-remote-size below what it may hold",
            Fault::Failed(_) => "see its log",
        }
    }
}

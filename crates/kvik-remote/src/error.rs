//! Errors of opening a store, and faults of an open one.

use std::path::PathBuf;

/// Errors of opening a store. They concern the configuration, not the store, which may be unavailable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// The scheme of the address is unknown.
    #[error(
        "`{scheme}://` is no store that nodes share; write redis://HOST:PORT, rediss://HOST:PORT, \
         s3://BUCKET/PREFIX or file:///DIRECTORY"
    )]
    UnknownScheme {
        /// The part before `://`.
        scheme: String,
    },
    /// The address is invalid. It is not shown, since it may contain a password.
    #[error("the address of the remote cache cannot be used: {reason}")]
    BadUrl {
        /// The reason.
        reason: String,
    },
    /// The key file cannot be read.
    #[error("the key of the remote cache {path} cannot be read: {source}; make one with `kvik cache key`, and give \
             all nodes the same", path = path.display())]
    NoKey {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The text is not a key.
    #[error(
        "the key of the remote cache must be 32 bytes as 64 hexadecimal digits or in base64, as `kvik cache key` \
         prints; this one has {bytes} bytes"
    )]
    BadKey {
        /// Number of bytes it decodes to; 0 if it is in neither form.
        bytes: usize,
    },
    /// TLS is required but not available.
    #[error(transparent)]
    NoTls(#[from] kvik_shelf::ShelfError),
    /// The S3 settings are incomplete.
    #[error(
        "the remote cache in S3 cannot be set up: {reason}; it reads AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, \
         AWS_REGION and AWS_ENDPOINT_URL"
    )]
    BadS3 {
        /// The message of object_store.
        reason: String,
    },
    /// The directory cannot be created or read.
    #[error("the directory {path} of the remote cache cannot be used: {reason}", path = path.display())]
    BadDirectory {
        /// The directory.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The thread cannot be started, or the system has no random numbers.
    #[error("the remote cache cannot start: {0}")]
    System(std::io::Error),
}

/// The code with which S3 refuses requests that were signed at another time than its own.
const CLOCK_CODE: &str = "RequestTimeTooSkewed";

/// Faults of a store's operations.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// There was no response in time.
    #[error("it does not answer in time")]
    Late,
    /// There is no connection, or it broke.
    #[error("it cannot be reached: {0}")]
    Unreachable(String),
    /// The store denies access: a wrong password, a missing permission.
    #[error("it refuses: {0}")]
    Refused(String),
    /// The store is full.
    #[error("it is full: {0}")]
    Full(String),
    /// Any other error of the store.
    #[error("it fails: {0}")]
    Failed(String),
}

impl Fault {
    /// A remedy, for people.
    pub fn remedy(&self) -> &'static str {
        match self {
            Fault::Late => "check its load and the network between",
            Fault::Unreachable(_) => "check that it runs and that its address is right",
            Fault::Refused(code) if code == CLOCK_CODE => {
                "set the clock of this machine, which differs too much from that of the store"
            }
            Fault::Refused(_) => "check the user, the password and what they may do",
            Fault::Full(_) => "set --cache-remote-size below what it may hold",
            Fault::Failed(_) => "see its log",
        }
    }
}

//! Small records that the nodes of a fleet share, as whoever runs the nodes offers them.

/// A version of a shared record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedRecord {
    /// Counted from 1.
    pub version: u64,
    /// What was put.
    pub bytes: Vec<u8>,
}

/// Why a shared record was not read or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SharedError {
    /// Another node has written it.
    #[error("another node has written the record: it has version {version}")]
    Conflict {
        /// The version that it has; 0 for none.
        version: u64,
    },
    /// The store does not answer.
    #[error("the store that the nodes share does not answer")]
    Down,
    /// The store has answered with something else.
    #[error("the store that the nodes share has failed: {0}")]
    Failed(String),
}

/// Records by kind and name, each with a version. Names have at most 120 bytes, records 16 MiB. A call waits for the
/// store, and returns after a bounded time where that does not answer.
pub trait SharedRecords: Send + Sync + 'static {
    /// The newest version of a record.
    ///
    /// # Errors
    /// [`SharedError`], but no conflict.
    fn get(&self, kind: &str, name: &str) -> Result<Option<SharedRecord>, SharedError>;

    /// Writes the version after `after`, which is 0 for a record that is not there, and says which one that is.
    ///
    /// # Errors
    /// [`SharedError::Conflict`] if `after` is not the newest version, and others.
    fn put(&self, kind: &str, name: &str, after: u64, bytes: Vec<u8>) -> Result<u64, SharedError>;

    /// Removes a record if it is there.
    ///
    /// # Errors
    /// [`SharedError`], but no conflict.
    fn delete(&self, kind: &str, name: &str) -> Result<(), SharedError>;

    /// Leaves nothing to be read of the versions of a record before the newest one, where the store keeps any.
    ///
    /// # Errors
    /// [`SharedError`], but no conflict.
    fn forget_older(&self, kind: &str, name: &str) -> Result<(), SharedError> {
        let _ = (kind, name);
        Ok(())
    }

    /// Names of all records of a kind, in no order.
    ///
    /// # Errors
    /// [`SharedError`], but no conflict.
    fn list(&self, kind: &str) -> Result<Vec<String>, SharedError>;
}

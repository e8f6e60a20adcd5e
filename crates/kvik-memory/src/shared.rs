//! Small records that the nodes of a fleet share, in a store that the operator of the nodes provides.

/// A version of a shared record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedRecord {
    /// Counted from 1.
    pub version: u64,
    /// Content.
    pub bytes: Vec<u8>,
}

/// An error of reading or writing a shared record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SharedError {
    /// Another node has written it.
    #[error("another node has written the record: it has version {version}")]
    Conflict {
        /// Current version of the record; 0 if there is none.
        version: u64,
    },
    /// The store does not answer.
    #[error("the store that the nodes share does not answer")]
    Down,
    /// The store has failed in another way.
    #[error("the store that the nodes share has failed: {0}")]
    Failed(String),
}

/// Records by kind and name, each with a version. A name has at most 120 bytes, a record at most 16 MiB. A call waits
/// for the store, and returns after a bounded time if the store does not answer.
pub trait SharedRecords: Send + Sync + 'static {
    /// Returns the newest version of a record.
    ///
    /// # Errors
    /// [`SharedError`], except `Conflict`.
    fn get(&self, kind: &str, name: &str) -> Result<Option<SharedRecord>, SharedError>;

    /// Writes the version that follows `after`, which is 0 for a record that does not exist, and returns the new
    /// version.
    ///
    /// # Errors
    /// [`SharedError::Conflict`] if `after` is not the newest version; other [`SharedError`]s.
    fn put(&self, kind: &str, name: &str, after: u64, bytes: Vec<u8>) -> Result<u64, SharedError>;

    /// Removes a record if it exists.
    ///
    /// # Errors
    /// [`SharedError`], except `Conflict`.
    fn delete(&self, kind: &str, name: &str) -> Result<(), SharedError>;

    /// Erases the versions of a record before the newest one, if the store keeps any.
    ///
    /// # Errors
    /// [`SharedError`], except `Conflict`.
    fn forget_older(&self, kind: &str, name: &str) -> Result<(), SharedError> {
        let _ = (kind, name);
        Ok(())
    }

    /// Returns the names of all records of a kind, unordered.
    ///
    /// # Errors
    /// [`SharedError`], except `Conflict`.
    fn list(&self, kind: &str) -> Result<Vec<String>, SharedError>;
}

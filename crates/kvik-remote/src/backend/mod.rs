//! Stores of named values: their interface and the implementations.
//!
//! A backend knows nothing of blocks, models or seals, waits as long as the store takes (its callers have
//! deadlines), and does not retry. It connects only in [`connect`](Backend::connect), so that no request waits for
//! a connection.

mod clock;
mod folders;
mod http;
pub mod memory;
mod object;
mod redis;
#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test may fail where it stands
mod tests;

#[cfg(any(test, fuzzing))]
pub(crate) use redis::fuzz as fuzz_redis;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::budget::SweepRules;
use crate::config::{Place, RemoteUrl};
use crate::error::{Fault, RemoteError};
use crate::names::{Key, OwnerTag};

/// Maximum bytes of one answer of a store on HTTP, and so of a value there.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// A value as it was stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value {
    /// Its bytes; truncated or empty if it is larger than the requested maximum.
    pub bytes: Vec<u8>,
    /// Time since it was written or renewed by the store's clock, if the store does not expire values by itself.
    pub age: Option<Duration>,
}

/// The retention of a value: its time to live, and the limits it competes under.
#[derive(Debug, Clone, Copy)]
pub struct Retention {
    /// Time to live after its last use.
    pub ttl: Duration,
    /// Maximum number of bytes of all values together.
    pub total_max: Option<u64>,
    /// Maximum number of bytes of its owner's values.
    pub owner_max: Option<u64>,
}

/// The key of a record.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecordKey {
    /// Kind of the record.
    pub kind: OwnerTag,
    /// Its name: letters, digits, `-` and `_`.
    pub name: String,
}

/// Error: another writer has changed the record in the meantime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outdated {
    /// The present version; 0 if there is none.
    pub version: u64,
}

/// A store.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// Size of a value that gives good throughput without undue latency (docs/performance.md).
    fn target_bytes(&self) -> usize;
    /// Number of names that one round of `exists` can check for the cost of one.
    fn questions_max(&self) -> usize;
    /// Time since the last reported use after which a use is to be reported with [`renew`](Backend::renew). It is the
    /// precision of the order of uses, by which values beyond the limits are removed.
    fn renew_after(&self, retention: &Retention) -> Duration;
    /// Connects, or reconnects after a failure.
    async fn connect(&self) -> Result<(), Fault>;
    /// Returns which of these values exist.
    async fn exists(&self, keys: &[Key]) -> Result<Vec<bool>, Fault>;
    /// Reads a value. One larger than `bytes_max` is not read in full.
    async fn get(&self, key: &Key, bytes_max: usize) -> Result<Option<Value>, Fault>;
    /// Writes a value. If the backend accounts for sizes, the least recently used values beyond the limits are
    /// evicted.
    async fn put(&self, key: &Key, value: Vec<u8>, retention: &Retention) -> Result<(), Fault>;
    /// Notes that a value was used, and retains it for its time to live from now on, or for longer if it is retained
    /// for longer already. Returns false if it is gone.
    async fn renew(&self, key: &Key, retention: &Retention) -> Result<bool, Fault>;
    /// Removes a value if it exists.
    async fn delete(&self, key: &Key) -> Result<(), Fault>;
    /// Removes values beyond the limits, unless another node has done so recently or the store does it by itself.
    async fn sweep(&self, rules: &SweepRules) -> Result<(), Fault>;
    /// Reads the newest version of a record: its number, counted from 1, and its bytes.
    async fn record(&self, key: &RecordKey, bytes_max: usize) -> Result<Option<(u64, Vec<u8>)>, Fault>;
    /// Writes version `after + 1` of a record if `after` is the newest version.
    async fn put_record(
        &self,
        key: &RecordKey,
        after: u64,
        bytes: Vec<u8>,
    ) -> Result<Result<(), Outdated>, Fault>;
    /// Erases the content of all versions of a record before the newest one. Most stores keep none.
    async fn forget_older(&self, key: &RecordKey) -> Result<(), Fault> {
        let _ = key;
        Ok(())
    }
    /// Removes a record if it exists.
    async fn delete_record(&self, key: &RecordKey) -> Result<(), Fault>;
    /// The names of all records of a kind, in no order.
    async fn records(&self, kind: OwnerTag) -> Result<Vec<String>, Fault>;
}

/// Creates the backend of an address, without connecting. `fleet` separates its values from those of other fleets.
///
/// # Errors
/// [`RemoteError`] for an invalid address or invalid settings.
pub fn open(url: &RemoteUrl, fleet: OwnerTag) -> Result<Arc<dyn Backend>, RemoteError> {
    Ok(match &url.place {
        Place::Redis { url, tls } => {
            let tls = tls.then(kvik_shelf::tls::client).transpose()?;
            Arc::new(redis::Redis::new(url, tls, fleet)?)
        }
        Place::S3 { bucket, prefix } => Arc::new(object::Objects::s3(bucket, prefix, fleet)?),
        Place::Directory(directory) => Arc::new(object::Objects::directory(directory, fleet)),
    })
}

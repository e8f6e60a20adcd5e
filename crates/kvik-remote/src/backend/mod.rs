//! Stores that hold values under names: what is asked of them, and those there are.
//!
//! A backend knows nothing of blocks, models or seals, waits as long as the store takes (its callers have deadlines),
//! and repeats nothing. It connects when it is told to, so that no request waits for a connection.

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

/// A value as it was stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value {
    /// Its bytes, or some that are not a value if they are more than were asked for.
    pub bytes: Vec<u8>,
    /// Time since it was written or renewed, where the store does not expire values by itself.
    pub age: Option<Duration>,
}

/// How long and among how many bytes a value is kept.
#[derive(Debug, Clone, Copy)]
pub struct Retention {
    /// Time after its last use.
    pub ttl: Duration,
    /// Bytes of all values together.
    pub total_max: Option<u64>,
    /// Bytes of its owner's.
    pub owner_max: Option<u64>,
}

/// Where a record is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecordKey {
    /// Which kind it is of.
    pub kind: OwnerTag,
    /// Its name: letters, digits, `-` and `_`.
    pub name: String,
}

/// A record was changed by another in the meantime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outdated {
    /// The version that it has; 0 for none.
    pub version: u64,
}

/// A store.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// Bytes of a value with which it is fast and not slower to ask than it needs to be (docs/performance.md).
    fn target_bytes(&self) -> usize;
    /// Names that one round of questions may be about at the price of one.
    fn questions_max(&self) -> usize;
    /// Time since the last use after which a use is told with [`renew`](Backend::renew).
    fn renew_after(&self, ttl: Duration) -> Duration;
    /// Connects, also where it is connected: it is called when something has failed.
    async fn connect(&self) -> Result<(), Fault>;
    /// Which of these values are there.
    async fn exists(&self, keys: &[Key]) -> Result<Vec<bool>, Fault>;
    /// A value. Of one with more than `bytes_max`, no more than a little is read.
    async fn get(&self, key: &Key, bytes_max: usize) -> Result<Option<Value>, Fault>;
    /// Writes a value. Where it keeps account, the least recently used ones beyond the limits leave.
    async fn put(&self, key: &Key, value: Vec<u8>, retention: &Retention) -> Result<(), Fault>;
    /// A value was used, and is to be kept for `ttl` from now on. One that is gone stays gone.
    async fn renew(&self, key: &Key, ttl: Duration) -> Result<(), Fault>;
    /// Removes a value if it is there.
    async fn delete(&self, key: &Key) -> Result<(), Fault>;
    /// Removes what is beyond the limits, unless another node has done so lately or the store does it by itself.
    async fn sweep(&self, rules: &SweepRules) -> Result<(), Fault>;
    /// The newest version of a record, counted from 1, and its bytes.
    async fn record(&self, key: &RecordKey, bytes_max: usize) -> Result<Option<(u64, Vec<u8>)>, Fault>;
    /// Writes version `after + 1` of a record if `after` is its newest one.
    async fn put_record(
        &self,
        key: &RecordKey,
        after: u64,
        bytes: Vec<u8>,
    ) -> Result<Result<(), Outdated>, Fault>;
    /// Leaves nothing to be read of the versions of a record before the newest one. Most stores keep none.
    async fn forget_older(&self, key: &RecordKey) -> Result<(), Fault> {
        let _ = key;
        Ok(())
    }
    /// Removes a record if it is there.
    async fn delete_record(&self, key: &RecordKey) -> Result<(), Fault>;
    /// Names of all records of a kind, in no order.
    async fn records(&self, kind: OwnerTag) -> Result<Vec<String>, Fault>;
}

/// The backend of an address, not connected yet. `fleet` sets its values apart from those of other fleets.
///
/// # Errors
/// [`RemoteError`] for an address or settings that cannot be right.
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

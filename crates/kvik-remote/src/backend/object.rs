//! Objects in S3 and files in a directory, both through `object_store`.
//!
//! ```text
//!   PREFIX/kvik1-FLEET/b/OWNER/NA/NAME              a value
//!   PREFIX/kvik1-FLEET/r/KIND/NAME/VERSION          a version of a record; the newest counts
//!   PREFIX/kvik1-FLEET/swept                        marks the last sweep by its modification time
//! ```
//!
//! The modification time of an object is the time of its last use. Values are removed when a node sweeps.

use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{GetResult, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutPayload, RetryConfig};

use super::http::{Connector, Cryptography};
use super::{ANSWER_BYTES_MAX, Backend, Outdated, RecordKey, Retention, Value};
use crate::budget::{Entry, SweepRules};
use crate::error::{Fault, RemoteError};
use crate::names::{Key, OwnerTag};

/// From docs/performance.md.
const S3_TARGET_BYTES: usize = 4 << 20;
const FILE_TARGET_BYTES: usize = 1 << 20;
/// Maximum number of concurrent S3 requests, each about one name.
const REQUESTS_MAX: usize = 32;
/// Maximum number of files checked in one round.
const FILES_MAX: usize = 4096;
/// Minimum time between updates of a file's modification time.
const FILE_RENEW_AFTER: Duration = Duration::from_secs(300);
/// Minimum time between two writes of an S3 object that competes for a limited size, which renew it: those who use a
/// value longer ago make room for others.
const S3_RENEW_AFTER: Duration = Duration::from_secs(3600);
/// Maximum length of the code of an error of S3.
const CODE_BYTES_MAX: usize = 64;
/// Codes of servers without room: MinIO's, and Ceph's for a full quota.
const FULL_CODES: [&str; 2] = ["XMinioStorageFull", "QuotaExceeded"];
/// Time that a version of a record is retained after the next one, longer than a write can be in flight.
const VERSION_KEPT: Duration = Duration::from_secs(60);
/// Maximum number of values examined in a sweep; those beyond remain.
const SWEEP_MAX: usize = 1 << 22;

/// A store of objects.
pub(super) struct Objects {
    /// Set by the first connection for a directory, since the directory may be unavailable before.
    store: OnceLock<Arc<dyn ObjectStore>>,
    directory: Option<PathBuf>,
    root: Path,
}

impl Objects {
    /// A bucket, configured by environment variables.
    pub(super) fn s3(bucket: &str, prefix: &str, fleet: OwnerTag) -> Result<Objects, RemoteError> {
        Objects::in_bucket(AmazonS3Builder::from_env().with_bucket_name(bucket), prefix, fleet)
    }

    /// The bucket of these settings.
    pub(super) fn in_bucket(
        builder: AmazonS3Builder,
        prefix: &str,
        fleet: OwnerTag,
    ) -> Result<Objects, RemoteError> {
        let endpoint = builder.get_config_value(&AmazonS3ConfigKey::Endpoint).unwrap_or_default();
        // Failed requests are not retried, since the caller recomputes instead; values are sealed, so that a hash
        // of them in the signature would add nothing.
        let store = builder
            .with_allow_http(endpoint.starts_with("http://"))
            .with_crypto_provider(Arc::new(Cryptography))
            .with_http_connector(Connector(kvik_shelf::tls::client()?))
            .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() })
            .with_unsigned_payload(true)
            .build()
            .map_err(|error| RemoteError::BadS3 { reason: error.to_string() })?;
        let store: Arc<dyn ObjectStore> = Arc::new(store);
        let root = Path::from(prefix).join(format!("kvik1-{fleet}"));
        Ok(Objects { store: OnceLock::from(store), directory: None, root })
    }

    /// A directory, which is created if only its last component is missing.
    pub(super) fn directory(directory: &std::path::Path, fleet: OwnerTag) -> Objects {
        let root = Path::from(format!("kvik1-{fleet}"));
        Objects { store: OnceLock::new(), directory: Some(directory.to_owned()), root }
    }

    fn store(&self) -> Result<&dyn ObjectStore, Fault> {
        self.store.get().map(Arc::as_ref).ok_or_else(|| Fault::Unreachable("not connected".to_owned()))
    }

    fn values(&self) -> Path {
        self.root.clone().join("b")
    }

    fn value(&self, key: &Key) -> Path {
        let [owner, name] = parts(key);
        let shard = name[..2].to_owned();
        self.values().join(owner).join(shard).join(name)
    }

    fn kind(&self, kind: OwnerTag) -> Path {
        self.root.clone().join("r").join(kind.to_string())
    }

    fn versions(&self, key: &RecordKey) -> Path {
        self.kind(key.kind).join(key.name.as_str())
    }

    fn version(&self, key: &RecordKey, version: u64) -> Path {
        self.versions(key).join(format!("{version:016x}"))
    }

    /// The path of a file in the directory.
    fn file(&self, path: &Path) -> Option<PathBuf> {
        Some(self.directory.as_ref()?.join(path.as_ref()))
    }

    /// Existing versions of a record, with the modification time of each, the newest last.
    async fn versions_there(&self, key: &RecordKey) -> Result<Vec<(u64, SystemTime)>, Fault> {
        let listed: Vec<ObjectMeta> = self.store()?.list(Some(&self.versions(key))).try_collect().await?;
        let version = |meta: &ObjectMeta| {
            let version = u64::from_str_radix(meta.location.filename()?, 16).ok()?;
            Some((version, meta.last_modified.into()))
        };
        let mut versions: Vec<_> = listed.iter().filter_map(version).collect();
        versions.sort_unstable();
        Ok(versions)
    }

    /// Renews an S3 object that is `old` or older by writing it again. One that is too large to be read expires.
    /// Returns false if it is gone.
    async fn write_again(&self, path: &Path, old: Duration) -> Result<bool, Fault> {
        let Some(meta) = found(self.store()?.head(path).await)? else { return Ok(false) };
        if age(&meta) < old || meta.size > ANSWER_BYTES_MAX as u64 {
            return Ok(true);
        }
        let Some(object) = found(self.store()?.get(path).await)? else { return Ok(false) };
        let bytes = bounded(object, ANSWER_BYTES_MAX).await?;
        if !bytes.is_empty() {
            self.store()?.put(path, bytes.into()).await?;
        }
        Ok(true)
    }

    /// Claims the next sweep, if there was none for `every`, and returns the store's time. Two nodes may claim it at
    /// the same time, which only costs time.
    async fn takes_turn(&self, every: Duration) -> Result<Option<SystemTime>, Fault> {
        let turn = self.root.clone().join("swept");
        if let Some(meta) = found(self.store()?.head(&turn).await)? {
            if age(&meta) < every {
                return Ok(None);
            }
            found(self.store()?.delete(&turn).await)?;
        }
        match self.store()?.put_opts(&turn, PutPayload::default(), PutMode::Create.into()).await {
            Ok(_) => {}
            Err(object_store::Error::AlreadyExists { .. }) => return Ok(None),
            Err(error) => match Fault::from(error) {
                // A full store is swept without a mark.
                Fault::Full(_) => {}
                fault => return Err(fault),
            },
        }
        let mark = found(self.store()?.head(&turn).await)?;
        Ok(Some(mark.map_or_else(SystemTime::now, |mark| mark.last_modified.into())))
    }

    /// A listed value; `now` is the store's time.
    fn entry(&self, meta: &ObjectMeta, now: SystemTime) -> Option<Entry> {
        let mut parts = meta.location.prefix_match(&self.values())?;
        let (owner, _shard, name) = (parts.next()?, parts.next()?, parts.next()?);
        let key = Key { owner: OwnerTag(bytes_of(owner.as_ref())?), name: bytes_of(name.as_ref())? };
        Some(Entry { key, bytes: meta.size, age: age_at(meta, now) })
    }
}

#[async_trait]
impl Backend for Objects {
    fn target_bytes(&self) -> usize {
        if self.directory.is_some() { FILE_TARGET_BYTES } else { S3_TARGET_BYTES }
    }

    fn questions_max(&self) -> usize {
        if self.directory.is_some() { FILES_MAX } else { REQUESTS_MAX }
    }

    fn renew_after(&self, retention: &Retention) -> Duration {
        let is_limited = retention.total_max.is_some() || retention.owner_max.is_some();
        let after = match (self.directory.is_some(), is_limited) {
            (true, _) => FILE_RENEW_AFTER,
            (false, true) => S3_RENEW_AFTER,
            (false, false) => Duration::MAX,
        };
        after.min(retention.ttl / 2)
    }

    async fn connect(&self) -> Result<(), Fault> {
        let Some(directory) = self.directory.clone() else {
            // The first request connects; the probe makes it.
            return Ok(());
        };
        let store = on_disk(move || open_directory(&directory)).await?;
        let _ = self.store.set(store);
        Ok(())
    }

    async fn exists(&self, keys: &[Key]) -> Result<Vec<bool>, Fault> {
        let paths = keys.iter().map(|key| self.value(key));
        if self.directory.is_some() {
            let files: Vec<PathBuf> = paths.filter_map(|path| self.file(&path)).collect();
            return on_disk(move || Ok(files.iter().map(|file| file.exists()).collect())).await;
        }
        let ask = async |path: Path| Ok(found(self.store()?.head(&path).await)?.is_some());
        // A vector, since a closure over borrowed keys is too general for `buffered`.
        let paths: Vec<Path> = paths.collect();
        stream::iter(paths.into_iter().map(ask)).buffered(REQUESTS_MAX).try_collect().await
    }

    async fn get(&self, key: &Key, bytes_max: usize) -> Result<Option<Value>, Fault> {
        let Some(object) = found(self.store()?.get(&self.value(key)).await)? else { return Ok(None) };
        let age = Some(age(&object.meta));
        Ok(Some(Value { bytes: bounded(object, bytes_max).await?, age }))
    }

    async fn put(&self, key: &Key, value: Vec<u8>, _retention: &Retention) -> Result<(), Fault> {
        self.store()?.put(&self.value(key), value.into()).await?;
        Ok(())
    }

    async fn renew(&self, key: &Key, retention: &Retention) -> Result<bool, Fault> {
        let path = self.value(key);
        let Some(file) = self.file(&path) else {
            let after = self.renew_after(retention);
            // Less than that, since a node counts from when it began its own write.
            return self.write_again(&path, after - after / 8).await;
        };
        on_disk(move || match File::options().append(true).open(file) {
            Ok(file) => file.set_modified(SystemTime::now()).map(|()| true).map_err(from_io),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(from_io(error)),
        })
        .await
    }

    async fn delete(&self, key: &Key) -> Result<(), Fault> {
        found(self.store()?.delete(&self.value(key)).await).map(drop)
    }

    async fn sweep(&self, rules: &SweepRules) -> Result<(), Fault> {
        let Some(now) = self.takes_turn(rules.every).await? else { return Ok(()) };
        let listed = self.store()?.list(Some(&self.values())).take(SWEEP_MAX);
        let entries = listed.try_filter_map(async |meta| Ok(self.entry(&meta, now))).try_collect().await?;
        let leaving = rules.surplus(entries);
        let delete = async |key: Key| self.delete(&key).await;
        stream::iter(leaving.into_iter().map(delete)).buffered(REQUESTS_MAX).try_collect().await
    }

    async fn record(&self, key: &RecordKey, bytes_max: usize) -> Result<Option<(u64, Vec<u8>)>, Fault> {
        // A version may be removed for a newer one between the two requests, or be emptied.
        let mut emptied = None;
        while let Some((version, _)) = self.versions_there(key).await?.last().copied() {
            if let Some(object) = found(self.store()?.get(&self.version(key, version)).await)? {
                if object.meta.size == 0 && emptied.replace(version) != Some(version) {
                    continue;
                }
                return Ok(Some((version, bounded(object, bytes_max).await?)));
            }
        }
        Ok(None)
    }

    async fn put_record(
        &self,
        key: &RecordKey,
        after: u64,
        bytes: Vec<u8>,
    ) -> Result<Result<(), Outdated>, Fault> {
        let versions = self.versions_there(key).await?;
        let newest = versions.last().map_or(0, |(version, _)| *version);
        if newest != after {
            return Ok(Err(Outdated { version: newest }));
        }
        let path = self.version(key, after + 1);
        match self.store()?.put_opts(&path, bytes.into(), PutMode::Create.into()).await {
            Ok(_) => {}
            Err(object_store::Error::AlreadyExists { .. }) => {
                return Ok(Err(Outdated { version: after + 1 }));
            }
            Err(error) => return Err(error.into()),
        }
        for version in outlived(&versions) {
            found(self.store()?.delete(&self.version(key, version)).await)?;
        }
        Ok(Ok(()))
    }

    async fn forget_older(&self, key: &RecordKey) -> Result<(), Fault> {
        let versions = self.versions_there(key).await?;
        let gone: Vec<u64> = outlived(&versions).collect();
        for (version, _) in versions.iter().rev().skip(1) {
            let path = self.version(key, *version);
            match gone.contains(version) {
                true => drop(found(self.store()?.delete(&path).await)?),
                // Its name is retained, so that it cannot be written a second time.
                false => drop(self.store()?.put(&path, PutPayload::default()).await?),
            }
        }
        Ok(())
    }

    async fn delete_record(&self, key: &RecordKey) -> Result<(), Fault> {
        // The oldest first, so that none of them becomes the newest.
        for (version, _) in self.versions_there(key).await? {
            found(self.store()?.delete(&self.version(key, version)).await)?;
        }
        Ok(())
    }

    async fn records(&self, kind: OwnerTag) -> Result<Vec<String>, Fault> {
        let kind = self.kind(kind);
        let listed: Vec<ObjectMeta> = self.store()?.list(Some(&kind)).try_collect().await?;
        let name = |meta: &ObjectMeta| {
            let mut parts = meta.location.prefix_match(&kind)?;
            parts.next().map(|name| name.as_ref().to_owned())
        };
        let mut names: Vec<String> = listed.iter().filter_map(name).collect();
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }
}

/// Versions that can no longer be mistaken for the newest. A removed version could be written again by a writer
/// that saw its predecessor as the newest; so it is retained for longer than a write takes. Times are the store's
/// own.
fn outlived(versions: &[(u64, SystemTime)]) -> impl Iterator<Item = u64> {
    let last = versions.last().map_or(SystemTime::UNIX_EPOCH, |(_, at)| *at);
    let is_outlived =
        move |replaced: SystemTime| last.duration_since(replaced).is_ok_and(|since| since > VERSION_KEPT);
    versions.windows(2).filter(move |pair| is_outlived(pair[1].1)).map(|pair| pair[0].0)
}

/// Owner and name in hexadecimal digits.
fn parts(key: &Key) -> [String; 2] {
    let name: String = key.name.iter().map(|byte| format!("{byte:02x}")).collect();
    [key.owner.to_string(), name]
}

fn bytes_of<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    if text.len() != 2 * N {
        return None;
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(bytes)
}

/// Time since an object was written by this machine's clock; zero if the clocks disagree.
fn age(meta: &ObjectMeta) -> Duration {
    age_at(meta, SystemTime::now())
}

fn age_at(meta: &ObjectMeta, now: SystemTime) -> Duration {
    now.duration_since(meta.last_modified.into()).unwrap_or_default()
}

/// The bytes of an object; empty if it is too large to be a value.
async fn bounded(object: GetResult, bytes_max: usize) -> Result<Vec<u8>, Fault> {
    match object.meta.size <= bytes_max as u64 {
        true => Ok(object.bytes().await?.into()),
        false => Ok(Vec::new()),
    }
}

/// Turns a missing object into `None`.
fn found<T>(result: object_store::Result<T>) -> Result<Option<T>, Fault> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(object_store::Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Runs blocking disk work on another thread.
async fn on_disk<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(Fault::Failed(error.to_string())))
}

fn open_directory(directory: &std::path::Path) -> Result<Arc<dyn ObjectStore>, Fault> {
    match std::fs::create_dir(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(from_io(error)),
        _ => {}
    }
    Ok(Arc::new(LocalFileSystem::new_with_prefix(directory)?))
}

fn from_io(error: std::io::Error) -> Fault {
    use std::io::ErrorKind::{PermissionDenied, QuotaExceeded, StorageFull};
    match error.kind() {
        PermissionDenied => Fault::Refused(error.to_string()),
        StorageFull | QuotaExceeded => Fault::Full(error.to_string()),
        _ => Fault::Unreachable(error.to_string()),
    }
}

impl From<object_store::Error> for Fault {
    fn from(error: object_store::Error) -> Fault {
        use object_store::Error::{PermissionDenied, Unauthenticated};
        let text = innermost(&error);
        let code = s3_code(&text);
        let or = |other: &str| code.unwrap_or(other).to_owned();
        match error {
            _ if code.is_some_and(|code| FULL_CODES.contains(&code)) => Fault::Full(or("no room")),
            PermissionDenied { .. } => Fault::Refused(or("permission denied")),
            Unauthenticated { .. } => Fault::Refused(or("not authenticated")),
            error => io_error(&error).map_or_else(|| Fault::Failed(text.clone()), from_io),
        }
    }
}

/// The code of an error of S3, in its text. Answers to HEAD have none.
fn s3_code(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("<Code>")?;
    let (code, _) = rest.split_once("</Code>")?;
    let has_length = (1..=CODE_BYTES_MAX).contains(&code.len());
    (has_length && code.bytes().all(|byte| byte.is_ascii_alphanumeric())).then_some(code)
}

/// The I/O error that underlies an error of the crate, if any.
fn io_error(error: &(dyn std::error::Error + 'static)) -> Option<std::io::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<std::io::Error>() {
            return Some(std::io::Error::new(error.kind(), error.to_string()));
        }
        next = error.source();
    }
    None
}

/// The message of the innermost error, which the outer ones repeat.
fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

//! Objects in S3 and files in a directory, both through `object_store`.
//!
//! ```text
//!   PREFIX/kvik1-FLEET/b/OWNER/NA/NAME              a value
//!   PREFIX/kvik1-FLEET/r/KIND/NAME/VERSION          a version of a record; the newest counts
//!   PREFIX/kvik1-FLEET/clock                        written by a node to read the store's time
//!   PREFIX/kvik1-FLEET/swept                        marks the last sweep by its modification time
//! ```
//!
//! The modification time of an object is the time of its last use, by the store's clock. Values are removed when a node
//! sweeps. In a directory so are the files that killed processes were writing, and folders that have become empty; records
//! are flushed there, since a loss of power would take them from all nodes.

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

use super::clock::StoreClock;
use super::folders;
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

/// Time that nobody needs for writing a file: what is older and incomplete is left by a killed process.
const LEFT_AFTER: Duration = Duration::from_secs(3600);
/// Levels of folders below that of the fleet.
const FOLDER_LEVELS: usize = 3;

/// A store of objects.
pub(super) struct Objects {
    /// Set by the first connection for a directory, since the directory may be unavailable before.
    stores: OnceLock<Stores>,
    directory: Option<PathBuf>,
    root: Path,
    pub(super) clock: StoreClock,
}

/// One store, as it is used for values and for records.
struct Stores {
    values: Arc<dyn ObjectStore>,
    /// Flushes what it writes.
    records: Arc<dyn ObjectStore>,
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
        let values: Arc<dyn ObjectStore> = Arc::new(store);
        let stores = Stores { records: Arc::clone(&values), values };
        let root = Path::from(prefix).join(format!("kvik1-{fleet}"));
        Ok(Objects { stores: OnceLock::from(stores), directory: None, root, clock: StoreClock::default() })
    }

    /// A directory, which is created if only its last component is missing.
    pub(super) fn directory(directory: &std::path::Path, fleet: OwnerTag) -> Objects {
        let root = Path::from(format!("kvik1-{fleet}"));
        Objects {
            stores: OnceLock::new(),
            directory: Some(directory.to_owned()),
            root,
            clock: StoreClock::default(),
        }
    }

    fn stores(&self) -> Result<&Stores, Fault> {
        self.stores.get().ok_or_else(|| Fault::Unreachable("not connected".to_owned()))
    }

    fn store(&self) -> Result<&dyn ObjectStore, Fault> {
        Ok(&*self.stores()?.values)
    }

    fn records_store(&self) -> Result<&dyn ObjectStore, Fault> {
        Ok(&*self.stores()?.records)
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

    /// Does something with a folder, where the store is a directory.
    async fn in_folder(
        &self,
        path: &Path,
        work: impl FnOnce(&std::path::Path) + Send + 'static,
    ) -> Result<(), Fault> {
        let Some(folder) = self.file(path) else { return Ok(()) };
        on_disk(move || {
            work(&folder);
            Ok(())
        })
        .await
    }

    /// Existing versions of a record, with the modification time of each, the newest last.
    async fn versions_there(&self, key: &RecordKey) -> Result<Vec<(u64, SystemTime)>, Fault> {
        let listed: Vec<ObjectMeta> =
            self.records_store()?.list(Some(&self.versions(key))).try_collect().await?;
        let version = |meta: &ObjectMeta| {
            let version = u64::from_str_radix(meta.location.filename()?, 16).ok()?;
            Some((version, meta.last_modified.into()))
        };
        let mut versions: Vec<_> = listed.iter().filter_map(version).collect();
        versions.sort_unstable();
        Ok(versions)
    }

    /// Whether an empty version of this time is one that a loss of power has left, and not one that is being emptied.
    fn is_lost(&self, written: SystemTime) -> bool {
        self.directory.is_some() && self.clock.age(written) > VERSION_KEPT
    }

    /// Removes such a version. Another node may have done so, and written it anew since.
    async fn remove_lost(&self, version: &Path, written: SystemTime) -> Result<(), Fault> {
        let Some(file) = self.file(version) else { return Ok(()) };
        on_disk(move || folders::remove_unchanged(&file, written).map_err(from_io)).await
    }

    /// Renews an S3 object that is `old` or older by writing it again. One that is too large to be read expires.
    /// Returns false if it is gone.
    async fn write_again(&self, path: &Path, old: Duration) -> Result<bool, Fault> {
        let Some(meta) = found(self.store()?.head(path).await)? else { return Ok(false) };
        if self.clock.age(meta.last_modified.into()) < old || meta.size > ANSWER_BYTES_MAX as u64 {
            return Ok(true);
        }
        let Some(object) = found(self.store()?.get(path).await)? else { return Ok(false) };
        let bytes = bounded(object, ANSWER_BYTES_MAX).await?;
        if !bytes.is_empty() {
            self.store()?.put(path, bytes.into()).await?;
        }
        Ok(true)
    }

    /// Reads the store's clock. A store that is full tells no time.
    async fn read_clock(&self) -> Result<(), Fault> {
        let clock = self.root.clone().join("clock");
        match self.store()?.put(&clock, PutPayload::default()).await.map_err(Fault::from) {
            Ok(_) => {}
            Err(Fault::Full(_)) => return Ok(()),
            Err(fault) => return Err(fault),
        }
        if let Some(meta) = found(self.store()?.head(&clock).await)? {
            self.clock.set(meta.last_modified.into());
        }
        Ok(())
    }

    /// Claims the next sweep, unless there was one within `every`. Two nodes may claim it at the same time, which only
    /// costs time.
    async fn takes_turn(&self, every: Duration) -> Result<bool, Fault> {
        let turn = self.root.clone().join("swept");
        if let Some(meta) = found(self.store()?.head(&turn).await)? {
            // A mark of a time to come is from when the store's clock was ahead, and would end all sweeps until then.
            let since = self.clock.now().duration_since(meta.last_modified.into());
            if since.unwrap_or_else(|ahead| ahead.duration()) < every {
                return Ok(false);
            }
            found(self.store()?.delete(&turn).await)?;
        }
        match self.store()?.put_opts(&turn, PutPayload::default(), PutMode::Create.into()).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::AlreadyExists { .. }) => Ok(false),
            Err(error) => match Fault::from(error) {
                // A full store is swept without a mark.
                Fault::Full(_) => Ok(true),
                fault => Err(fault),
            },
        }
    }

    /// A listed value; `now` is the store's time.
    fn entry(&self, meta: &ObjectMeta, now: SystemTime) -> Option<Entry> {
        let mut parts = meta.location.prefix_match(&self.values())?;
        let (owner, _shard, name) = (parts.next()?, parts.next()?, parts.next()?);
        let key = Key { owner: OwnerTag(bytes_of(owner.as_ref())?), name: bytes_of(name.as_ref())? };
        let age = now.duration_since(meta.last_modified.into()).unwrap_or_default();
        Some(Entry { key, bytes: meta.size, age })
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
        if let Some(directory) = self.directory.clone() {
            let stores = on_disk(move || open_directory(&directory)).await?;
            let _ = self.stores.set(stores);
        }
        self.read_clock().await
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
        let age = Some(self.clock.age(object.meta.last_modified.into()));
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
        let now = self.clock.now();
        on_disk(move || match touch(&file, now) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(from_io(error)),
        })
        .await
    }

    async fn delete(&self, key: &Key) -> Result<(), Fault> {
        found(self.store()?.delete(&self.value(key)).await).map(drop)
    }

    async fn sweep(&self, rules: &SweepRules) -> Result<(), Fault> {
        self.read_clock().await?;
        if !self.takes_turn(rules.every).await? {
            return Ok(());
        }
        let now = self.clock.now();
        let listed = self.store()?.list(Some(&self.values())).take(SWEEP_MAX);
        let entries = listed.try_filter_map(async |meta| Ok(self.entry(&meta, now))).try_collect().await?;
        let leaving = rules.surplus(entries);
        let delete = async |key: Key| self.delete(&key).await;
        let () = stream::iter(leaving.into_iter().map(delete)).buffered(REQUESTS_MAX).try_collect().await?;
        let before = now.checked_sub(LEFT_AFTER).unwrap_or(SystemTime::UNIX_EPOCH);
        self.in_folder(&self.root, move |root| folders::remove_left(root, FOLDER_LEVELS, before)).await
    }

    async fn record(&self, key: &RecordKey, bytes_max: usize) -> Result<Option<(u64, Vec<u8>)>, Fault> {
        // A version may be removed for a newer one between the two requests, or be emptied.
        let mut emptied = None;
        while let Some((version, written)) = self.versions_there(key).await?.last().copied() {
            let path = self.version(key, version);
            let Some(object) = found(self.records_store()?.get(&path).await)? else { continue };
            let is_read = object.meta.size <= bytes_max as u64;
            let bytes = bounded(object, bytes_max).await?;
            let is_empty = is_read && bytes.iter().all(|byte| *byte == 0);
            if is_empty && emptied.replace(version) != Some(version) {
                continue;
            }
            if !is_empty || !self.is_lost(written) {
                return Ok(Some((version, bytes)));
            }
            tracing::warn!(
                "the remote cache has lost version {version} of a record; the one before it counts"
            );
            self.remove_lost(&path, written).await?;
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
        match create(self.records_store()?, &path, bytes.into()).await {
            Ok(()) => {}
            Err(object_store::Error::AlreadyExists { .. }) => {
                return Ok(Err(Outdated { version: after + 1 }));
            }
            Err(error) => return Err(error.into()),
        }
        for version in outlived(&versions) {
            found(self.records_store()?.delete(&self.version(key, version)).await)?;
        }
        Ok(Ok(()))
    }

    async fn forget_older(&self, key: &RecordKey) -> Result<(), Fault> {
        let versions = self.versions_there(key).await?;
        let gone: Vec<u64> = outlived(&versions).collect();
        for (version, _) in versions.iter().rev().skip(1) {
            let path = self.version(key, *version);
            match gone.contains(version) {
                true => drop(found(self.records_store()?.delete(&path).await)?),
                // Its name is retained, so that it cannot be written a second time.
                false => drop(self.records_store()?.put(&path, PutPayload::default()).await?),
            }
        }
        self.in_folder(&self.versions(key), folders::flush).await
    }

    async fn delete_record(&self, key: &RecordKey) -> Result<(), Fault> {
        // The oldest first, so that none of them becomes the newest.
        let versions = self.versions_there(key).await?;
        for (version, _) in &versions {
            found(self.records_store()?.delete(&self.version(key, *version)).await)?;
        }
        if versions.is_empty() {
            return Ok(());
        }
        self.in_folder(&self.versions(key), folders::remove).await
    }

    async fn records(&self, kind: OwnerTag) -> Result<Vec<String>, Fault> {
        let kind = self.kind(kind);
        let listed: Vec<ObjectMeta> = self.records_store()?.list(Some(&kind)).try_collect().await?;
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

/// Writes an object that must not exist yet; once more if another node has removed the empty folder that was just created
/// for it.
async fn create(store: &dyn ObjectStore, path: &Path, bytes: PutPayload) -> object_store::Result<()> {
    let is_gone = |error: std::io::Error| error.kind() == std::io::ErrorKind::NotFound;
    match store.put_opts(path, bytes.clone(), PutMode::Create.into()).await {
        Err(error) if io_error(&error).is_some_and(is_gone) => {
            store.put_opts(path, bytes, PutMode::Create.into()).await.map(drop)
        }
        put => put.map(drop),
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

/// Sets the modification time of a file to `now`, unless it is later.
fn touch(file: &std::path::Path, now: SystemTime) -> std::io::Result<()> {
    let file = File::options().append(true).open(file)?;
    match file.metadata()?.modified()? < now {
        true => file.set_modified(now),
        false => Ok(()),
    }
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

fn open_directory(directory: &std::path::Path) -> Result<Stores, Fault> {
    match std::fs::create_dir(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(from_io(error)),
        _ => {}
    }
    let values = LocalFileSystem::new_with_prefix(directory)?;
    let records = values.clone().with_fsync(folders::can_be_flushed(directory));
    Ok(Stores { values: Arc::new(values), records: Arc::new(records) })
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

//! Small versioned records for other parts of the server: conversations, lists of hot prompts.
//!
//! Names and bytes are sealed as blocks are. A name is encrypted under a nonce that is its own keyed hash, so that
//! the ciphertext is deterministic and can be decrypted from a list. A store can hide a record or return an older
//! version of it, and nothing else.

use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use chacha20poly1305::aead::Aead;
use chacha20poly1305::{KeyInit, XChaCha20Poly1305, XNonce};
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::timeout;

use crate::backend::RecordKey;
use crate::error::Fault;
use crate::names::OwnerTag;
use crate::node::Node;
use crate::seal::{HEADER_BYTES, Kind, Label};
use crate::thread::Command;

/// Maximum size of a record.
pub const RECORD_BYTES_MAX: usize = 16 << 20;
/// Maximum length of a name, such that its encrypted form is a valid file name.
pub const NAME_BYTES_MAX: usize = 120;
/// Time limit of a request about a record.
const TIME_MAX: Duration = Duration::from_secs(5);
/// Pause after a failed request, so that an unavailable store is not queried for every turn.
const REST: Duration = Duration::from_secs(1);
const NONCE_BYTES: usize = 24;

/// A version of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Counted from 1.
    pub version: u64,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// Errors of reading or writing a record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// Another writer has changed it; read it and try again.
    #[error("the record has version {version} by now; read it again")]
    Conflict {
        /// The present version; 0 if there is none.
        version: u64,
    },
    /// The store is paused after a failure.
    #[error("the remote cache is down; try again later")]
    Down,
    /// The store has failed.
    #[error("the remote cache has failed: {0}")]
    Fault(#[from] Fault),
    /// The content is not what was written.
    #[error("the record is not what was written; see who else writes to the remote cache")]
    Corrupt,
    /// The name or the content is too long.
    #[error("a record has at most {RECORD_BYTES_MAX} bytes and its name {NAME_BYTES_MAX}")]
    TooLarge,
    /// The store was closed.
    #[error("the remote cache is closed")]
    Closed,
}

/// Blocking access to the records of a store. It can be cloned and outlives the store, after which it returns
/// [`RecordError::Closed`].
///
/// Its availability is independent of the breaker for blocks: blocks can be recomputed if the store is too slow,
/// but only the store has the records.
#[derive(Clone)]
pub struct Records {
    node: Arc<Node>,
    commands: UnboundedSender<Command>,
    /// End of the pause after a failure.
    rests: Arc<Mutex<Option<Instant>>>,
}

impl Records {
    pub(crate) fn new(node: Arc<Node>, commands: UnboundedSender<Command>) -> Records {
        Records { node, commands, rests: Arc::default() }
    }

    /// Reads the newest version of a record.
    ///
    /// # Errors
    /// Any [`RecordError`] but a conflict.
    pub fn get(&self, kind: &str, name: &str) -> Result<Option<Record>, RecordError> {
        let (node, place) = self.place(kind, name)?;
        self.wait(async move { get(&node, &place).await })
    }

    /// Writes version `after + 1`, where `after` is 0 for a new record, and returns that version.
    ///
    /// # Errors
    /// [`RecordError::Conflict`] if `after` is not the newest version, and others.
    pub fn put(&self, kind: &str, name: &str, after: u64, bytes: Vec<u8>) -> Result<u64, RecordError> {
        let (node, place) = self.place(kind, name)?;
        if bytes.len() > RECORD_BYTES_MAX {
            return Err(RecordError::TooLarge);
        }
        self.wait(async move { put(&node, &place, after, &bytes).await })
    }

    /// Removes a record if it exists.
    ///
    /// # Errors
    /// Any [`RecordError`] but a conflict.
    pub fn delete(&self, kind: &str, name: &str) -> Result<(), RecordError> {
        let (node, place) = self.place(kind, name)?;
        self.wait(async move { Ok(node.backend.delete_record(&place.key).await?) })
    }

    /// Erases the content of all versions of a record before the newest one.
    ///
    /// # Errors
    /// Any [`RecordError`] but a conflict.
    pub fn forget_older(&self, kind: &str, name: &str) -> Result<(), RecordError> {
        let (node, place) = self.place(kind, name)?;
        self.wait(async move { Ok(node.backend.forget_older(&place.key).await?) })
    }

    /// Lists the names of all records of a kind, in no order.
    ///
    /// # Errors
    /// Any [`RecordError`] but a conflict.
    pub fn list(&self, kind: &str) -> Result<Vec<String>, RecordError> {
        let (node, tag) = (Arc::clone(&self.node), kind_tag(&self.node, kind));
        self.wait(async move {
            let names = node.backend.records(tag).await?;
            // Names that cannot be decrypted were stored by someone else.
            Ok(names.iter().filter_map(|name| open_name(&node, tag, name)).collect())
        })
    }

    fn place(&self, kind: &str, name: &str) -> Result<(Arc<Node>, RecordPlace), RecordError> {
        if name.len() > NAME_BYTES_MAX {
            return Err(RecordError::TooLarge);
        }
        let place = RecordPlace::new(&self.node, kind, name).ok_or(RecordError::TooLarge)?;
        Ok((Arc::clone(&self.node), place))
    }

    /// Runs work on the store's thread and waits for the result.
    fn wait<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, RecordError>> + Send + 'static,
    ) -> Result<T, RecordError> {
        if self.is_at_rest() {
            return Err(RecordError::Down);
        }
        let (answer, answered): (SyncSender<Result<T, RecordError>>, _) = sync_channel(1);
        let work = async move {
            let done = timeout(TIME_MAX, work).await.unwrap_or(Err(RecordError::Fault(Fault::Late)));
            let _ = answer.send(done);
        };
        self.commands.send(Command::Run(Box::pin(work))).map_err(|_| RecordError::Closed)?;
        // A thread that ends drops its pending work.
        let done = answered.recv().map_err(|_| RecordError::Closed)?;
        match done {
            Err(RecordError::Fault(fault)) => {
                self.node.health.fault(&fault);
                *self.rests() = Some(Instant::now() + REST);
                Err(RecordError::Fault(fault))
            }
            done => done,
        }
    }

    /// Returns whether the store is paused after a failure.
    fn is_at_rest(&self) -> bool {
        self.rests().is_some_and(|until| Instant::now() < until)
    }

    fn rests(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.rests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The key of a record, to which its content is bound.
struct RecordPlace {
    key: RecordKey,
}

impl RecordPlace {
    fn new(node: &Node, kind: &str, name: &str) -> Option<RecordPlace> {
        let kind = kind_tag(node, kind);
        Some(RecordPlace { key: RecordKey { kind, name: seal_name(node, kind, name)? } })
    }

    /// The name comes last, since its length is not fixed.
    fn what(&self, version: u64) -> Vec<u8> {
        [&version.to_le_bytes()[..], &self.key.kind.0, self.key.name.as_bytes()].concat()
    }
}

async fn get(node: &Node, place: &RecordPlace) -> Result<Option<Record>, RecordError> {
    let found = node.backend.record(&place.key, RECORD_BYTES_MAX + HEADER_BYTES).await?;
    let Some((version, value)) = found else { return Ok(None) };
    let label = Label { kind: Kind::Record, count: 0, owner: 0, what: &place.what(version) };
    match node.sealer.open(label, value) {
        Ok((bytes, _)) => Ok(Some(Record { version, bytes })),
        Err(_) => {
            node.health.corrupt();
            Err(RecordError::Corrupt)
        }
    }
}

async fn put(node: &Node, place: &RecordPlace, after: u64, bytes: &[u8]) -> Result<u64, RecordError> {
    let version = after.checked_add(1).ok_or(RecordError::Conflict { version: after })?;
    let label = Label { kind: Kind::Record, count: 0, owner: 0, what: &place.what(version) };
    let value = node.sealer.seal(label, Duration::ZERO, bytes);
    let value = value.ok_or_else(|| Fault::Failed("the system has no random numbers".to_owned()))?;
    match node.backend.put_record(&place.key, after, value).await? {
        Ok(()) => Ok(version),
        Err(outdated) => Err(RecordError::Conflict { version: outdated.version }),
    }
}

fn kind_tag(node: &Node, kind: &str) -> OwnerTag {
    OwnerTag(node.names.hash(b"rkind", &[kind.as_bytes()]))
}

fn name_cipher(node: &Node, kind: OwnerTag) -> XChaCha20Poly1305 {
    XChaCha20Poly1305::new(&node.names.hash::<32>(b"rname", &[&kind.0]).into())
}

fn name_nonce(node: &Node, kind: OwnerTag, name: &[u8]) -> [u8; NONCE_BYTES] {
    node.names.hash(b"nonce", &[&kind.0, name])
}

fn seal_name(node: &Node, kind: OwnerTag, name: &str) -> Option<String> {
    let nonce = name_nonce(node, kind, name.as_bytes());
    let sealed = name_cipher(node, kind).encrypt(&XNonce::from(nonce), name.as_bytes()).ok()?;
    Some(BASE64_URL_SAFE_NO_PAD.encode([&nonce[..], &sealed].concat()))
}

fn open_name(node: &Node, kind: OwnerTag, sealed: &str) -> Option<String> {
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(sealed).ok()?;
    let (nonce, sealed) = bytes.split_first_chunk::<NONCE_BYTES>()?;
    let name = name_cipher(node, kind).decrypt(&XNonce::from(*nonce), sealed).ok()?;
    String::from_utf8(name).ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test may fail where it stands
mod tests {
    use kvik_engine::store::Waker;

    use super::*;
    use crate::backend::memory::Memory;
    use crate::{Budget, DEADLINE_MIN, FleetKey, Remote, RemoteConfig, RemoteUrl, TTL_DEFAULT};

    fn remote(backend: &Arc<Memory>) -> Remote {
        let config = RemoteConfig {
            url: RemoteUrl::parse("file:///nowhere").unwrap(),
            key: FleetKey::new([1; 32]),
            fingerprint: [7; 32],
            payload_bytes: 100,
            ttl: TTL_DEFAULT,
            budget: Budget::default(),
            deadline_min: DEADLINE_MIN,
            waker: Waker::default(),
        };
        Remote::over(backend.clone(), config).unwrap()
    }

    #[test]
    fn records_are_read_and_written_while_blocks_are_not() {
        let remote = remote(&Arc::new(Memory::new(1 << 20, 16)));
        let records = remote.records();
        for round in 0..20 {
            // Lookups of blocks that were too slow to be worthwhile.
            remote.node().health.late();
            remote.node().health.late();
            assert_eq!(records.put("talk", "a", round, vec![1]), Ok(round + 1));
            assert_eq!(records.get("talk", "a").unwrap().unwrap().version, round + 1);
        }
    }

    #[test]
    fn a_store_that_fails_is_asked_again_after_a_rest() {
        let backend = Arc::new(Memory::new(1 << 20, 16));
        let remote = remote(&backend);
        let records = remote.records();
        assert_eq!(records.put("talk", "a", 0, vec![1]), Ok(1));
        backend.set_fault(Some(Fault::Unreachable("away".to_owned())));
        assert!(matches!(records.get("talk", "a"), Err(RecordError::Fault(_))));
        assert_eq!(records.get("talk", "a"), Err(RecordError::Down), "it is not asked at once");
        backend.set_fault(None);
        let began = Instant::now();
        while records.get("talk", "a").is_err() {
            assert!(began.elapsed() < 10 * REST);
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(records.put("talk", "a", 1, vec![2]), Ok(2));
    }
}

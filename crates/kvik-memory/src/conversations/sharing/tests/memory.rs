//! A store in memory, and a node's link to it, which can fail.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::shared::{SharedError, SharedRecord, SharedRecords};

/// How long the remote cache is not asked after a failure.
const REST: Duration = Duration::from_secs(1);

/// Records of the store.
#[derive(Default)]
pub(super) struct Memory(pub(super) Mutex<BTreeMap<(String, String), SharedRecord>>);

/// Connection of one node to the store.
pub(super) struct Link {
    pub(super) store: Arc<Memory>,
    pub(super) is_down: AtomicBool,
    /// The store is not asked for a while after it was down.
    pub(super) rests: AtomicBool,
    rest_until: Mutex<Option<Instant>>,
    /// Puts are stored, and the node gets an error.
    pub(super) loses_answers: AtomicBool,
    /// Kind of records of which the next put fails.
    pub(super) refuses: Mutex<Option<&'static str>>,
    pub(super) delay_ms: AtomicU64,
    pub(super) put_bytes: AtomicU64,
    pub(super) calls: AtomicU64,
}

impl Link {
    pub(super) fn to(store: &Arc<Memory>) -> Arc<Link> {
        Arc::new(Link {
            store: store.clone(),
            is_down: AtomicBool::default(),
            rests: AtomicBool::default(),
            rest_until: Mutex::default(),
            loses_answers: AtomicBool::default(),
            refuses: Mutex::default(),
            delay_ms: AtomicU64::default(),
            put_bytes: AtomicU64::default(),
            calls: AtomicU64::default(),
        })
    }

    pub(super) fn set_down(&self, is_down: bool) {
        self.is_down.store(is_down, Ordering::SeqCst);
    }

    fn ask<T>(
        &self,
        kind: &str,
        name: &str,
        call: impl FnOnce(&mut BTreeMap<(String, String), SharedRecord>) -> Result<T, SharedError>,
    ) -> Result<T, SharedError> {
        if self.rest_until.lock().unwrap().is_some_and(|until| Instant::now() < until) {
            return Err(SharedError::Down);
        }
        self.calls.fetch_add(1, Ordering::SeqCst);
        assert!(name.len() <= 120 && !kind.is_empty(), "{kind} {name}");
        std::thread::sleep(Duration::from_millis(self.delay_ms.load(Ordering::SeqCst)));
        if self.is_down.load(Ordering::SeqCst) {
            let rest = self.rests.load(Ordering::SeqCst).then(|| Instant::now() + REST);
            *self.rest_until.lock().unwrap() = rest;
            return Err(SharedError::Down);
        }
        call(&mut self.store.0.lock().unwrap())
    }
}

fn key(kind: &str, name: &str) -> (String, String) {
    (kind.to_owned(), name.to_owned())
}

impl SharedRecords for Link {
    fn get(&self, kind: &str, name: &str) -> Result<Option<SharedRecord>, SharedError> {
        self.ask(kind, name, |records| Ok(records.get(&key(kind, name)).cloned()))
    }

    fn put(&self, kind: &str, name: &str, after: u64, bytes: Vec<u8>) -> Result<u64, SharedError> {
        assert!(bytes.len() <= 16 << 20);
        self.put_bytes.fetch_add(bytes.len() as u64, Ordering::SeqCst);
        if self.refuses.lock().unwrap().take_if(|refused| *refused == kind).is_some() {
            return Err(SharedError::Failed("it is refused".to_owned()));
        }
        let put = self.ask(kind, name, |records| {
            let version = records.get(&key(kind, name)).map_or(0, |record| record.version);
            if version != after {
                return Err(SharedError::Conflict { version });
            }
            records.insert(key(kind, name), SharedRecord { version: after + 1, bytes });
            Ok(after + 1)
        });
        if self.loses_answers.load(Ordering::SeqCst) { Err(SharedError::Down) } else { put }
    }

    fn delete(&self, kind: &str, name: &str) -> Result<(), SharedError> {
        self.ask(kind, name, |records| {
            records.remove(&key(kind, name));
            Ok(())
        })
    }

    fn list(&self, kind: &str) -> Result<Vec<String>, SharedError> {
        self.ask(kind, "", |records| {
            let names = records.keys().filter(|(of, _)| of == kind).map(|(_, name)| name.clone());
            Ok(names.collect())
        })
    }
}

//! Calls to the store that nodes share, with a time limit that a turn can afford.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use serde::{Serialize, de::DeserializeOwned};

use crate::records::GiveWay;
use crate::shared::{SharedError, SharedRecords};

/// Lower bound of the store's throughput: it extends the time limit for longer values.
const BYTES_A_SECOND: u64 = 8 << 20;

/// Maximum number of concurrent calls of one caller.
pub(in crate::conversations) const TOGETHER: usize = 16;

type Result<T> = std::result::Result<T, SharedError>;

/// Handle to the store, with a time limit for calls.
#[derive(Clone)]
pub(in crate::conversations) struct Store {
    records: Arc<dyn SharedRecords>,
    give_way: GiveWay,
    pub(in crate::conversations) patience: Duration,
    /// Calls that have exceeded their time limit and still run: meanwhile turns make no calls.
    late: Arc<AtomicUsize>,
    /// True if calls have no time limit.
    is_background: bool,
}

/// Notes the end of a call, even if it panics.
struct Ending {
    state: Arc<AtomicU8>,
    late: Arc<AtomicUsize>,
}

/// State of a call, shared by the thread that makes it and the one that waits.
const RUNNING: u8 = 0;
const ENDED: u8 = 1;
const GIVEN_UP: u8 = 2;

impl Store {
    pub(in crate::conversations) fn new(
        records: Arc<dyn SharedRecords>,
        give_way: GiveWay,
        patience: Duration,
    ) -> Store {
        Store { records, give_way, patience, late: Arc::default(), is_background: false }
    }

    /// Handle for background work, whose calls have no time limit.
    pub(in crate::conversations) fn in_background(&self) -> Store {
        Store { is_background: true, ..self.clone() }
    }

    /// Newest version of a record. An unreadable record is an error.
    pub(in crate::conversations) fn get<T: DeserializeOwned>(
        &self,
        kind: &'static str,
        name: &str,
    ) -> Result<Option<(u64, T)>> {
        let asked = name.to_owned();
        let found = self.ask(0, move |records| records.get(kind, &asked))?;
        let read = |bytes: &[u8]| {
            serde_json::from_slice(bytes).map_err(|error| SharedError::Failed(format!("{kind}: {error}")))
        };
        found.map(|record| Ok((record.version, read(&record.bytes)?))).transpose()
    }

    pub(in crate::conversations) fn put<T: Serialize>(
        &self,
        kind: &'static str,
        name: &str,
        after: u64,
        value: &T,
    ) -> Result<u64> {
        let bytes = serde_json::to_vec(value).map_err(|error| SharedError::Failed(error.to_string()))?;
        self.put_bytes(kind, name, after, bytes)
    }

    /// Content of a record; `bytes` is its expected size, which extends the time limit.
    pub(in crate::conversations) fn get_bytes(
        &self,
        kind: &'static str,
        name: String,
        bytes: u64,
    ) -> Result<Option<Vec<u8>>> {
        let found = self.ask(bytes, move |records| records.get(kind, &name))?;
        Ok(found.map(|record| record.bytes))
    }

    pub(in crate::conversations) fn put_bytes(
        &self,
        kind: &'static str,
        name: &str,
        after: u64,
        bytes: Vec<u8>,
    ) -> Result<u64> {
        let name = name.to_owned();
        self.ask(bytes.len() as u64, move |records| records.put(kind, &name, after, bytes))
    }

    pub(in crate::conversations) fn delete(&self, kind: &'static str, name: String) -> Result<()> {
        self.ask(0, move |records| records.delete(kind, &name))
    }

    pub(in crate::conversations) fn forget_older(&self, kind: &'static str, name: String) -> Result<()> {
        self.ask(0, move |records| records.forget_older(kind, &name))
    }

    pub(in crate::conversations) fn list(&self, kind: &'static str) -> Result<Vec<String>> {
        self.ask(0, move |records| records.list(kind))
    }

    /// Runs a blocking wait that depends on another caller.
    pub(in crate::conversations) fn aside(&self, wait: impl FnOnce()) {
        let mut wait = Some(wait);
        (self.give_way)(&mut || {
            if let Some(wait) = wait.take() {
                wait();
            }
        });
    }

    /// Makes several calls concurrently; returns the answers in the order of the questions.
    pub(in crate::conversations) fn ask_together<Q: Sync, T: Send>(
        &self,
        questions: &[Q],
        ask: impl Fn(&Q) -> Result<T> + Sync,
    ) -> Vec<Result<T>> {
        let mut answers = Vec::new();
        let ask = &ask;
        // The wait for these threads gives way like the wait for a single call.
        (self.give_way)(&mut || {
            std::thread::scope(|scope| {
                let threads: Vec<_> =
                    questions.iter().map(|question| scope.spawn(move || ask(question))).collect();
                let joined =
                    threads.into_iter().map(|thread| thread.join().unwrap_or(Err(SharedError::Down)));
                answers = joined.collect();
            });
        });
        answers
    }

    /// Makes a call on a thread of its own. A call that exceeds the time limit continues, and turns make no calls until
    /// it has ended: so few threads block on a store that does not answer.
    fn ask<T: Send + 'static>(
        &self,
        bytes: u64,
        call: impl FnOnce(&dyn SharedRecords) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        if self.is_background {
            return call(&*self.records);
        }
        if self.late.load(Ordering::Acquire) > 0 {
            return Err(SharedError::Down);
        }
        let (answer, answered) = sync_channel(1);
        let (records, state) = (self.records.clone(), Arc::new(AtomicU8::new(RUNNING)));
        let ending = Ending { state: state.clone(), late: self.late.clone() };
        let thread = std::thread::Builder::new().name("kvik-shared".to_owned()).spawn(move || {
            let _ending = ending;
            let _ = answer.send(call(&*records));
        });
        thread.map_err(|error| SharedError::Failed(error.to_string()))?;
        let patience = self.patience + Duration::from_millis(1000 * bytes / BYTES_A_SECOND);
        let mut result = None;
        (self.give_way)(&mut || result = answered.recv_timeout(patience).ok());
        result.unwrap_or_else(|| {
            self.give_up(&state);
            Err(SharedError::Down)
        })
    }

    fn give_up(&self, state: &AtomicU8) {
        self.late.fetch_add(1, Ordering::AcqRel);
        if state.swap(GIVEN_UP, Ordering::AcqRel) == ENDED {
            self.late.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        if self.state.swap(ENDED, Ordering::AcqRel) == GIVEN_UP {
            self.late.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

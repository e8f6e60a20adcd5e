//! A store in the memory of this process, which other crates' tests can make slow, wrong, full or unreachable.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::{Instant, sleep};

use super::{Backend, Outdated, RecordKey, Retention, Value};
use crate::budget::{Entry, SweepRules};
use crate::error::Fault;
use crate::names::{Key, OwnerTag};

/// Alters the value that is read under a name; `None` stands for a missing value.
type Tamper = Box<dyn FnMut(&Key, Option<Vec<u8>>) -> Option<Vec<u8>> + Send>;

/// Interval at which a write that is held back looks whether it may go on.
const HELD_STEP: Duration = Duration::from_millis(1);

/// A store in memory.
pub struct Memory {
    target_bytes: usize,
    questions_max: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    values: BTreeMap<Key, Stored>,
    records: BTreeMap<RecordKey, (u64, Vec<u8>)>,
    /// Records that a test has already altered.
    changed: BTreeSet<RecordKey>,
    delay: Duration,
    fault: Option<Fault>,
    write_fault: Option<Fault>,
    renewal_fault: Option<Fault>,
    holds_writes: bool,
    tamper: Option<Tamper>,
    requests: u64,
    sweeps: usize,
    renewals: Renewals,
}

/// Numbers of renewals.
#[derive(Debug, Clone, Copy, Default)]
pub struct Renewals {
    /// Those that have ended.
    pub ended: usize,
    /// Those that are in flight.
    pub running: usize,
    /// Most that were in flight at once.
    pub running_max: usize,
}

struct Stored {
    bytes: Vec<u8>,
    used: Instant,
    expires: Instant,
}

impl Memory {
    /// A store for values of about `target_bytes` that answers up to `questions_max` names per round.
    pub fn new(target_bytes: usize, questions_max: usize) -> Memory {
        Memory { target_bytes, questions_max, state: Mutex::default() }
    }

    /// Sets the duration of each request.
    pub fn set_delay(&self, delay: Duration) {
        self.state().delay = delay;
    }

    /// Makes all requests fail with a fault, or succeed.
    pub fn set_fault(&self, fault: Option<Fault>) {
        self.state().fault = fault;
    }

    /// Makes all writes of values fail with a fault, or succeed.
    pub fn set_write_fault(&self, fault: Option<Fault>) {
        self.state().write_fault = fault;
    }

    /// Makes all renewals fail with a fault, or succeed.
    pub fn set_renewal_fault(&self, fault: Option<Fault>) {
        self.state().renewal_fault = fault;
    }

    /// Holds back all writes of values, or lets them go on.
    pub fn set_holds_writes(&self, holds: bool) {
        self.state().holds_writes = holds;
    }

    /// Alters all values that are read from now on.
    pub fn set_tamper(&self, tamper: impl FnMut(&Key, Option<Vec<u8>>) -> Option<Vec<u8>> + Send + 'static) {
        self.state().tamper = Some(Box::new(tamper));
    }

    /// Returns values unaltered from now on.
    pub fn set_honest(&self) {
        self.state().tamper = None;
    }

    /// All stored values.
    pub fn values(&self) -> Vec<(Key, Vec<u8>)> {
        let state = self.state();
        state.values.iter().map(|(&key, stored)| (key, stored.bytes.clone())).collect()
    }

    /// Applies `change` to the first record that has not been altered yet.
    pub fn change_record(&self, change: impl FnOnce(Vec<u8>) -> Vec<u8>) {
        let mut state = self.state();
        let State { records, changed, .. } = &mut *state;
        if let Some((key, (_, bytes))) = records.iter_mut().find(|(key, _)| !changed.contains(*key)) {
            *bytes = change(std::mem::take(bytes));
            changed.insert(key.clone());
        }
    }

    /// Number of requests so far.
    pub fn requests(&self) -> u64 {
        self.state().requests
    }

    /// Number of sweeps so far.
    pub fn sweeps(&self) -> usize {
        self.state().sweeps
    }

    /// Numbers of renewals so far.
    pub fn renewals(&self) -> Renewals {
        self.state().renewals
    }

    /// Loses all values, as a server without persistence does when it is started again.
    pub fn lose_values(&self) {
        self.state().values.clear();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn holds_writes(&self) -> bool {
        self.state().holds_writes
    }

    async fn request(&self) -> Result<MutexGuard<'_, State>, Fault> {
        let delay = self.state().delay;
        if !delay.is_zero() {
            sleep(delay).await;
        }
        let mut state = self.state();
        state.requests += 1;
        state.fault.clone().map_or(Ok(()), Err)?;
        let now = Instant::now();
        state.values.retain(|_, stored| stored.expires > now);
        Ok(state)
    }
}

impl State {
    fn surplus(&self, total_max: Option<u64>, owner_max: Option<u64>) -> Vec<Key> {
        let rules = SweepRules { ttl: Duration::MAX, total_max, owner_max, every: Duration::ZERO };
        let entry = |(&key, stored): (&Key, &Stored)| Entry {
            key,
            bytes: stored.bytes.len() as u64,
            age: stored.used.elapsed(),
        };
        rules.surplus(self.values.iter().map(entry).collect())
    }

    fn renew(&mut self, key: &Key, ttl: Duration) -> Result<bool, Fault> {
        self.renewal_fault.clone().map_or(Ok(()), Err)?;
        let now = Instant::now();
        let Some(stored) = self.values.get_mut(key) else { return Ok(false) };
        (stored.used, stored.expires) = (now, stored.expires.max(now + ttl));
        Ok(true)
    }
}

impl Renewals {
    fn begin(&mut self) {
        self.running += 1;
        self.running_max = self.running_max.max(self.running);
    }

    fn end(&mut self) {
        self.running -= 1;
        self.ended += 1;
    }
}

#[async_trait]
impl Backend for Memory {
    fn target_bytes(&self) -> usize {
        self.target_bytes
    }

    fn questions_max(&self) -> usize {
        self.questions_max
    }

    fn renew_after(&self, retention: &Retention) -> Duration {
        retention.ttl / 2
    }

    async fn connect(&self) -> Result<(), Fault> {
        self.request().await.map(drop)
    }

    async fn exists(&self, keys: &[Key]) -> Result<Vec<bool>, Fault> {
        let state = self.request().await?;
        Ok(keys.iter().map(|key| state.values.contains_key(key)).collect())
    }

    async fn get(&self, key: &Key, _bytes_max: usize) -> Result<Option<Value>, Fault> {
        let mut state = self.request().await?;
        let honest = state.values.get(key).map(|stored| stored.bytes.clone());
        let bytes = match &mut state.tamper {
            Some(tamper) => tamper(key, honest),
            None => honest,
        };
        Ok(bytes.map(|bytes| Value { bytes, age: None }))
    }

    async fn put(&self, key: &Key, value: Vec<u8>, retention: &Retention) -> Result<(), Fault> {
        while self.holds_writes() {
            sleep(HELD_STEP).await;
        }
        let mut state = self.request().await?;
        state.write_fault.clone().map_or(Ok(()), Err)?;
        let now = Instant::now();
        state.values.insert(*key, Stored { bytes: value, used: now, expires: now + retention.ttl });
        for leaving in state.surplus(retention.total_max, retention.owner_max) {
            state.values.remove(&leaving);
        }
        Ok(())
    }

    async fn renew(&self, key: &Key, retention: &Retention) -> Result<bool, Fault> {
        self.state().renewals.begin();
        let renewed = self.request().await.and_then(|mut state| state.renew(key, retention.ttl));
        self.state().renewals.end();
        renewed
    }

    async fn delete(&self, key: &Key) -> Result<(), Fault> {
        self.request().await?.values.remove(key);
        Ok(())
    }

    async fn sweep(&self, _rules: &SweepRules) -> Result<(), Fault> {
        self.state().sweeps += 1;
        Ok(())
    }

    async fn record(&self, key: &RecordKey, _bytes_max: usize) -> Result<Option<(u64, Vec<u8>)>, Fault> {
        Ok(self.request().await?.records.get(key).cloned())
    }

    async fn put_record(
        &self,
        key: &RecordKey,
        after: u64,
        bytes: Vec<u8>,
    ) -> Result<Result<(), Outdated>, Fault> {
        let mut state = self.request().await?;
        let version = state.records.get(key).map_or(0, |(version, _)| *version);
        if version != after {
            return Ok(Err(Outdated { version }));
        }
        state.records.insert(key.clone(), (after + 1, bytes));
        Ok(Ok(()))
    }

    async fn delete_record(&self, key: &RecordKey) -> Result<(), Fault> {
        self.request().await?.records.remove(key);
        Ok(())
    }

    async fn records(&self, kind: OwnerTag) -> Result<Vec<String>, Fault> {
        let state = self.request().await?;
        Ok(state.records.keys().filter(|key| key.kind == kind).map(|key| key.name.clone()).collect())
    }
}

//! The health of the store, shared by the engine's thread and the store's own: whether it is in use, its speed, and
//! logging.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kvik_engine::store::remote::Expected;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::breaker::Breaker;
use crate::config::RemoteUrl;
use crate::error::Fault;
use crate::speed::{Sample, Speed};

/// Time for which no value is offered to a store that was full.
const FULL_FOR: Duration = Duration::from_secs(30);
/// Age of a measurement of the speed above which it is no reason not to read from the store.
const OLD: Duration = Duration::from_secs(60);

/// Health of a store.
pub(crate) struct Health {
    url: RemoteUrl,
    deadline_min: Duration,
    state: Mutex<State>,
    /// Notified when it goes down or is doubted.
    changed: Notify,
}

#[derive(Default)]
struct State {
    breaker: Breaker,
    /// `None` until a probe has succeeded.
    speed: Option<Speed>,
    /// When a probe or a value that was read last measured the speed.
    measured: Option<Instant>,
    /// Whether it was found too slow by a measurement that is old.
    is_doubted: bool,
    /// Whether its being down has been logged.
    logged: bool,
    /// When it was last full; `None` once it has taken a value again.
    full: Option<Instant>,
}

impl Health {
    pub(crate) fn new(url: RemoteUrl, deadline_min: Duration) -> Health {
        Health { url, deadline_min, state: Mutex::default(), changed: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_up(&self) -> bool {
        self.state().breaker.is_up()
    }

    /// Expected time of reading blocks; `None` while it is not in use.
    pub(crate) fn expected(&self, payload_bytes: usize) -> Option<Expected> {
        let state = self.state();
        state.speed.filter(|_| state.breaker.is_up()).map(|speed| speed.expected(payload_bytes))
    }

    /// Time limit of a response with `bytes`; `None` while it is not in use.
    pub(crate) fn deadline(&self, bytes: u64) -> Option<Duration> {
        let state = self.state();
        let speed = state.speed.filter(|_| state.breaker.is_up());
        speed.map(|speed| speed.deadline(bytes).max(self.deadline_min))
    }

    /// Notes that a response came in time, without data if `bytes` is 0.
    pub(crate) fn answered(&self, bytes: u64, time: Duration) {
        let state = &mut *self.state();
        state.breaker.answered();
        match (&mut state.speed, bytes) {
            (Some(speed), 0) => speed.answered(time),
            (Some(speed), _) => {
                speed.read(bytes, time);
                state.measured = Some(Instant::now());
            }
            (None, _) => {}
        }
    }

    /// Notes that nothing is read because of the expected time. Of a store from which nothing is read, nothing else than
    /// another probe measures whether it is still that slow.
    pub(crate) fn too_slow(&self) {
        let mut state = self.state();
        if state.breaker.is_up() && state.measured.is_some_and(|at| at.elapsed() >= OLD) {
            state.is_doubted = true;
            self.changed.notify_one();
        }
    }

    /// Returns whether values may be written.
    pub(crate) fn takes_writes(&self) -> bool {
        let state = self.state();
        state.breaker.is_up() && state.full.is_none_or(|at| at.elapsed() >= FULL_FOR)
    }

    /// Notes that the store took a value: the next time that it is full is logged again.
    pub(crate) fn wrote(&self) {
        self.state().full = None;
    }

    pub(crate) fn fault(&self, fault: &Fault) {
        let mut state = self.state();
        if let Fault::Full(why) = fault {
            // A full store can still be read.
            if state.full.replace(Instant::now()).is_none() {
                tracing::warn!(store = %self.url, why, remedy = fault.remedy(), "the remote cache takes nothing more");
            }
            return;
        }
        if state.breaker.fault() {
            self.went_down(&mut state, &fault.to_string(), fault.remedy());
        }
    }

    pub(crate) fn corrupt(&self) {
        let mut state = self.state();
        if state.breaker.corrupt(Instant::now()) {
            let why = "several values were not what they should be";
            self.went_down(&mut state, why, "see who else writes to it, and whether all nodes have one key");
        }
    }

    pub(crate) fn late(&self) {
        let mut state = self.state();
        if state.breaker.late() {
            let why = "it took longer than it was expected to, twice in a row";
            self.went_down(&mut state, why, Fault::Late.remedy());
        }
    }

    /// Notes a successful probe; its measurements replace the earlier ones.
    pub(crate) fn probed(&self, sample: Sample) {
        let mut state = self.state();
        state.speed = Some(Speed::new(sample));
        (state.measured, state.is_doubted) = (Some(Instant::now()), false);
        if state.breaker.probed() {
            state.logged = false;
            tracing::info!(
                store = %self.url, latency_us = sample.latency.as_micros(),
                bytes_per_s = (1.0 / sample.byte_s) as u64, "the remote cache is used"
            );
        }
    }

    /// Notes a failed probe and logs it, unless that is logged already.
    pub(crate) fn probe_failed(&self, fault: &Fault) {
        let mut state = self.state();
        if state.breaker.fault() || !state.logged {
            self.went_down(&mut state, &fault.to_string(), fault.remedy());
        }
    }

    fn went_down(&self, state: &mut State, why: &str, remedy: &str) {
        state.logged = true;
        tracing::warn!(
            store = %self.url, why, remedy,
            "the remote cache is not used until it answers again; requests compute what it would have given"
        );
        self.changed.notify_one();
    }

    /// Waits until it is to be probed: because it is down, or because its speed is doubted.
    pub(crate) async fn until_probe(&self) {
        while self.is_up() && !self.state().is_doubted {
            self.changed.notified().await;
        }
    }
}

//! What is to be done for shared conversations while nobody waits, until a thread does it.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::hold::Hold;
use super::record::Segment;
use crate::conversations::head::ConversationKey;

/// that nobody names take room until their conversation is deleted, which finds them by their names.
const TASKS_MAX: usize = 4096;
/// How long the end of the process waits for the store.
const CLOSING_TIME: Duration = Duration::from_secs(5);
/// How often leases are renewed. Answers may take longer than a lease.
pub(in crate::conversations) const RENEWED: Duration = Duration::from_secs(20);
/// Behind a store that did not answer.
const RETRY: Duration = Duration::from_secs(2);

pub(in crate::conversations) enum Task {
    /// A conversation was held and not written.
    Release(ConversationKey, Arc<Mutex<Hold>>),
    /// One was written.
    Changed { key: ConversationKey, stamp: u64, before: Option<u64>, swept: Vec<Segment> },
    /// Lists are to say that this is the newest change, and no other.
    Corrected { key: ConversationKey, stamp: u64, others: Vec<u64> },
    /// One was deleted so long ago that no node has an old copy.
    Purge { key: ConversationKey, changes: Vec<u64> },
}

/// What is to be done in the background.
#[derive(Default)]
pub(in crate::conversations) struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct QueueState {
    tasks: VecDeque<Task>,
    /// Conversations that are to be written, each once.
    unwritten: BTreeSet<ConversationKey>,
    /// When they are written; at once where that is not said.
    retry: Option<Instant>,
    renewed: Option<Instant>,
    is_busy: bool,
    is_closing: bool,
    has_ended: bool,
}

/// What is due.
pub(in crate::conversations) struct Due {
    pub(in crate::conversations) tasks: VecDeque<Task>,
    pub(in crate::conversations) unwritten: BTreeSet<ConversationKey>,
    pub(in crate::conversations) renews: bool,
    pub(in crate::conversations) is_last: bool,
}

impl Queue {
    /// A conversation is to be written.
    pub(in crate::conversations) fn push(&self, key: &ConversationKey) {
        self.lock().unwritten.insert(key.clone());
        self.changed.notify_all();
    }

    pub(in crate::conversations) fn task(&self, task: Task) {
        let mut state = self.lock();
        if state.tasks.len() < TASKS_MAX {
            state.tasks.push_back(task);
        }
        self.changed.notify_all();
    }

    /// Ends the thread when it has tried once more to do what is left, and waits for that, not for ever.
    pub(in crate::conversations) fn close(&self) {
        let mut state = self.lock();
        state.is_closing = true;
        self.changed.notify_all();
        let (state, _) = self
            .changed
            .wait_timeout_while(state, CLOSING_TIME, |state| !state.has_ended)
            .unwrap_or_else(PoisonError::into_inner);
        if !state.unwritten.is_empty() {
            let count = state.unwritten.len();
            tracing::warn!(
                "{count} conversations are not in the store yet: they are when this node runs again"
            );
        }
    }

    /// What was due is done but for these conversations, which are tried again after a while.
    pub(in crate::conversations) fn done(&self, unwritten: BTreeSet<ConversationKey>) {
        let mut state = self.lock();
        state.retry = (!unwritten.is_empty()).then(|| Instant::now() + RETRY);
        state.unwritten.extend(unwritten);
        state.is_busy = false;
        self.changed.notify_all();
    }

    /// The thread has ended, or did not begin.
    pub(in crate::conversations) fn end(&self) {
        self.lock().has_ended = true;
        self.changed.notify_all();
    }

    /// Waits for something to do.
    pub(in crate::conversations) fn next(&self) -> Option<Due> {
        let mut state = self.lock();
        loop {
            let now = Instant::now();
            let renewed = *state.renewed.get_or_insert(now);
            let renews = now.duration_since(renewed) >= RENEWED;
            let writes = !state.unwritten.is_empty() && state.retry.is_none_or(|retry| now >= retry);
            if state.is_closing || renews || writes || !state.tasks.is_empty() {
                return Some(state.take(renews, writes));
            }
            let retry = state.retry.filter(|_| !state.unwritten.is_empty());
            let next = (renewed + RENEWED).min(retry.unwrap_or(renewed + RENEWED));
            let waited = self.changed.wait_timeout(state, next.saturating_duration_since(now));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        // Every change leaves the queue whole whatever panicked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until nothing is left to do; what the store does not take is tried again at once.
    #[cfg(test)]
    pub(in crate::conversations) fn settle(&self) {
        let mut state = self.lock();
        while !state.tasks.is_empty() || !state.unwritten.is_empty() || state.is_busy {
            state.retry = None;
            self.changed.notify_all();
            state = self.changed.wait_timeout(state, Duration::from_millis(5)).unwrap().0;
        }
    }
}

impl QueueState {
    fn take(&mut self, renews: bool, writes: bool) -> Due {
        if renews {
            self.renewed = Some(Instant::now());
        }
        self.is_busy = true;
        let is_last = self.is_closing;
        let unwritten = if writes || is_last { std::mem::take(&mut self.unwritten) } else { BTreeSet::new() };
        Due { tasks: std::mem::take(&mut self.tasks), unwritten, renews, is_last }
    }
}

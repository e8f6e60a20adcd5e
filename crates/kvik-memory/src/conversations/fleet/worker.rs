//! What is done for shared conversations while nobody waits: leases are renewed, changes written that the store has not
//! had yet, and what nobody reads any more is deleted.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::leases::Hold;
use super::record::{CHANGED, CONVERSATION, Segment, changed_name, conversation_name};
use super::{RENEWED, RETRY, Sharing};
use crate::conversations::record::ConversationKey;
use crate::conversations::shelf::Shelf;
use crate::shared::SharedError;

/// Tasks that wait at most. Each can be left out: leases end, lists are corrected by whoever reads them, and segments
/// that nobody names take room until their conversation is deleted, which finds them by their names.
const TASKS_MAX: usize = 4096;
/// How long the end of the process waits for the store.
const CLOSING_TIME: Duration = Duration::from_secs(5);

pub(super) enum Task {
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
struct Due {
    tasks: VecDeque<Task>,
    unwritten: BTreeSet<ConversationKey>,
    renews: bool,
    is_last: bool,
}

/// Begins the thread of a shelf that is shared, and has it write what was not written when the records were closed.
pub(in crate::conversations) fn start(shelf: &Arc<Shelf>) {
    let Some(fleet) = &shelf.fleet else { return };
    shelf.heads().changed_here().iter().for_each(|key| fleet.queue.push(key));
    let (queue, weak) = (fleet.queue.clone(), Arc::downgrade(shelf));
    let thread = std::thread::Builder::new().name("kvik-fleet".to_owned());
    let started = thread.spawn({
        let queue = queue.clone();
        move || {
            let ended = Ended(queue);
            ended.0.work(&weak);
        }
    });
    if let Err(error) = started {
        tracing::error!("conversations that the store does not take at once are not shared: {error}");
        queue.lock().has_ended = true;
    }
}

/// Says that the thread has ended, also where it has panicked.
struct Ended(Arc<Queue>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.lock().has_ended = true;
        self.0.changed.notify_all();
    }
}

impl Queue {
    /// A conversation is to be written.
    pub(super) fn push(&self, key: &ConversationKey) {
        self.lock().unwritten.insert(key.clone());
        self.changed.notify_all();
    }

    pub(super) fn task(&self, task: Task) {
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

    fn work(&self, shelf: &Weak<Shelf>) {
        while let Some(due) = self.next() {
            let Some(shelf) = shelf.upgrade() else { return };
            let is_last = due.is_last;
            if let Some(sharing) = shelf.sharing_in_background() {
                let unwritten = sharing.work(due);
                let mut state = self.lock();
                state.retry = (!unwritten.is_empty()).then(|| Instant::now() + RETRY);
                state.unwritten.extend(unwritten);
            }
            self.lock().is_busy = false;
            self.changed.notify_all();
            if is_last {
                return;
            }
        }
    }

    /// Waits for something to do.
    fn next(&self) -> Option<Due> {
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
    pub(super) fn settle(&self) {
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

impl Sharing<'_> {
    /// Does what is due; the conversations that are still to be written.
    fn work(&self, due: Due) -> BTreeSet<ConversationKey> {
        if due.renews {
            self.renew();
        }
        let mut renewed = Instant::now();
        // All of it may take longer than a lease lasts.
        let mut keep_leases = || {
            if renewed.elapsed() > RENEWED / 2 {
                self.renew();
                renewed = Instant::now();
            }
        };
        for task in due.tasks {
            keep_leases();
            if let Err(error) = self.perform(&task) {
                tracing::debug!("the store does not take what is left of a change: {error}");
            }
        }
        let mut left = due.unwritten;
        left.retain(|key| {
            keep_leases();
            !self.write_late(key)
        });
        left
    }

    fn perform(&self, task: &Task) -> Result<(), SharedError> {
        match task {
            Task::Release(key, hold) => self.release(key, hold),
            Task::Changed { key, stamp, before, swept } => {
                self.mark(key, *stamp, before.as_slice())?;
                self.sweep(key, swept)
            }
            Task::Corrected { key, stamp, others } => self.mark(key, *stamp, others),
            Task::Purge { key, changes } => {
                self.store.delete(CONVERSATION, conversation_name(key))?;
                self.unmark(key, changes)
            }
        }
    }

    /// Says for lists which change is the newest.
    fn mark(&self, key: &ConversationKey, stamp: u64, others: &[u64]) -> Result<(), SharedError> {
        match self.store.put_bytes(CHANGED, &changed_name(key, stamp), 0, b"{}".to_vec()) {
            Ok(_) | Err(SharedError::Conflict { .. }) => self.unmark(key, others),
            Err(error) => Err(error),
        }
    }

    fn unmark(&self, key: &ConversationKey, stamps: &[u64]) -> Result<(), SharedError> {
        stamps.iter().try_for_each(|stamp| self.store.delete(CHANGED, changed_name(key, *stamp)))
    }
}

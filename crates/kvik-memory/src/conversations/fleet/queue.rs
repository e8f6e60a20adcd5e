//! Queue of background work on shared conversations, which one thread does.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::hold::Hold;
use super::record::Segment;
use crate::conversations::head::ConversationKey;

/// Maximum number of queued tasks; further ones are dropped. Dropped tasks do little harm: leases lapse,
/// listings are corrected by their readers, and segments that no head names stay until their
/// conversation is deleted, which finds them by their names.
const TASKS_MAX: usize = 4096;
/// Maximum time that the end of the process waits for the store.
const CLOSING_TIME: Duration = Duration::from_secs(5);
/// Interval between renewals of leases. Answers may take longer than a lease.
pub(in crate::conversations) const RENEWED: Duration = Duration::from_secs(20);
/// Pause after the store did not answer: longer than it is not asked after a failure, and short enough for one more
/// attempt within [`CLOSING_TIME`].
const RETRY: Duration = Duration::from_secs(2);

pub(in crate::conversations) enum Task {
    /// Ends the hold of a conversation that was held and not written.
    Release(ConversationKey, Arc<Mutex<Hold>>),
    /// Marks a change that was written, and sweeps the segments that it replaced.
    Changed { key: ConversationKey, stamp: u64, before: Option<u64>, swept: Vec<Segment> },
    /// Marks `stamp` as the newest change, and removes the marks of the others.
    Corrected { key: ConversationKey, stamp: u64, others: Vec<u64> },
    /// Removes the record of a conversation that was deleted so long ago that no node has an old copy.
    Purge { key: ConversationKey, changes: Vec<u64> },
}

impl Task {
    /// True if the task is tried again after a failure, so that no message that was taken back stays in the store. Of
    /// the other tasks, leases lapse, and the next listing finds what is left.
    pub(in crate::conversations) fn is_retried(&self) -> bool {
        matches!(self, Task::Changed { .. })
    }
}

/// Queue of background work.
#[derive(Default)]
pub(in crate::conversations) struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct QueueState {
    tasks: VecDeque<Task>,
    /// Tasks that failed.
    failed: VecDeque<Task>,
    /// Conversations to write, each once.
    unwritten: BTreeSet<ConversationKey>,
    /// Time of the next write and of the next attempt at what failed; at once if there is none.
    retry: Option<Instant>,
    renewed: Option<Instant>,
    is_busy: bool,
    is_closing: bool,
    /// True once all that was left when the queue was closed is tried a last time.
    had_last_try: bool,
    has_ended: bool,
}

/// Work that is due.
pub(in crate::conversations) struct Due {
    pub(in crate::conversations) tasks: VecDeque<Task>,
    pub(in crate::conversations) unwritten: BTreeSet<ConversationKey>,
    pub(in crate::conversations) renews: bool,
    /// True for the last attempt at all that is left.
    pub(in crate::conversations) is_last: bool,
}

/// Work that failed.
#[derive(Default)]
pub(in crate::conversations) struct Failed {
    pub(in crate::conversations) tasks: Vec<Task>,
    pub(in crate::conversations) unwritten: BTreeSet<ConversationKey>,
}

impl Queue {
    /// Queues a conversation for writing.
    pub(in crate::conversations) fn push(&self, key: &ConversationKey) {
        self.lock().unwritten.insert(key.clone());
        self.changed.notify_all();
    }

    pub(in crate::conversations) fn task(&self, task: Task) {
        let mut state = self.lock();
        if state.has_room() {
            state.tasks.push_back(task);
        }
        self.changed.notify_all();
    }

    /// Closes the queue. Waits a bounded time for the thread, which tries the remaining work once more, after the pause
    /// that follows a failure, and ends. A queue that is closed already is not waited for again.
    pub(in crate::conversations) fn close(&self) {
        let mut state = self.lock();
        if std::mem::replace(&mut state.is_closing, true) {
            return;
        }
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

    /// Ends a round of work; `failed` is tried again after a pause.
    pub(in crate::conversations) fn done(&self, failed: Failed) {
        let Failed { tasks, unwritten } = failed;
        let mut state = self.lock();
        state.retry = (!unwritten.is_empty() || !tasks.is_empty()).then(|| Instant::now() + RETRY);
        state.unwritten.extend(unwritten);
        for task in tasks {
            if state.has_room() {
                state.failed.push_back(task);
            }
        }
        state.is_busy = false;
        self.changed.notify_all();
    }

    /// Notes that the thread has ended, or could not be started.
    pub(in crate::conversations) fn end(&self) {
        self.lock().has_ended = true;
        self.changed.notify_all();
    }

    /// Waits for work; `None` once the queue is closed and nothing is left to try.
    pub(in crate::conversations) fn next(&self) -> Option<Due> {
        let mut state = self.lock();
        loop {
            let now = Instant::now();
            let next = if state.is_closing {
                let last = state.last_try(now);
                if now >= last {
                    return state.take_last();
                }
                last
            } else {
                let renewed = *state.renewed.get_or_insert(now);
                let renews = now.duration_since(renewed) >= RENEWED;
                let writes = state.has_late_work() && state.retry.is_none_or(|retry| now >= retry);
                if renews || writes || !state.tasks.is_empty() {
                    return Some(state.take(renews, writes));
                }
                let retry = state.retry.filter(|_| state.has_late_work());
                (renewed + RENEWED).min(retry.unwrap_or(renewed + RENEWED))
            };
            let waited = self.changed.wait_timeout(state, next.saturating_duration_since(now));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        // Every change leaves the queue consistent, even if a panic follows.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no work is left; failed writes are retried at once.
    #[cfg(test)]
    pub(in crate::conversations) fn settle(&self) {
        let mut state = self.lock();
        while !state.tasks.is_empty() || state.has_late_work() || state.is_busy {
            state.retry = None;
            self.changed.notify_all();
            state = self.changed.wait_timeout(state, Duration::from_millis(5)).unwrap().0;
        }
    }

    /// Waits until what is left has failed, and waits for its next attempt.
    #[cfg(test)]
    pub(in crate::conversations) fn until_failed(&self) {
        let mut state = self.lock();
        while !state.tasks.is_empty() || !state.has_late_work() || state.is_busy || state.retry.is_none() {
            state = self.changed.wait_timeout(state, Duration::from_millis(5)).unwrap().0;
        }
    }

    /// Closes the queue and waits for its thread, whose last attempt waits for no pause.
    #[cfg(test)]
    pub(in crate::conversations) fn end_at_once(&self) {
        let mut state = self.lock();
        state.is_closing = true;
        while !state.has_ended {
            state.retry = Some(Instant::now());
            self.changed.notify_all();
            state = self.changed.wait_timeout(state, Duration::from_millis(5)).unwrap().0;
        }
    }
}

impl QueueState {
    fn has_room(&self) -> bool {
        self.tasks.len() + self.failed.len() < TASKS_MAX
    }

    /// True if there is work that waits for the end of the pause.
    fn has_late_work(&self) -> bool {
        !self.unwritten.is_empty() || !self.failed.is_empty()
    }

    fn take(&mut self, renews: bool, writes: bool) -> Due {
        if renews {
            self.renewed = Some(Instant::now());
        }
        self.is_busy = true;
        let (mut tasks, mut unwritten) = (VecDeque::new(), BTreeSet::new());
        if writes {
            tasks.append(&mut self.failed);
            unwritten.append(&mut self.unwritten);
        }
        tasks.append(&mut self.tasks);
        Due { tasks, unwritten, renews, is_last: false }
    }

    /// Time of the last attempt of a closed queue. For a moment after a failure the store is not asked, and an attempt
    /// would fail unasked. What was queued since the last round is there because its write has just failed.
    fn last_try(&mut self, now: Instant) -> Instant {
        if self.had_last_try || !self.has_late_work() {
            return now;
        }
        *self.retry.get_or_insert(now + RETRY)
    }

    /// What is due of a closed queue: once all that is left, then only the tasks that this has queued in its turn.
    fn take_last(&mut self) -> Option<Due> {
        let is_last = !std::mem::replace(&mut self.had_last_try, true);
        let is_due = is_last || !self.tasks.is_empty();
        is_due.then(|| Due { is_last, ..self.take(false, is_last) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_attempt_is_made_after_the_pause_of_a_failure() {
        let now = Instant::now();
        let key = ConversationKey { tenant: "a".to_owned(), id: "conv_1".to_owned() };
        let (failed, soon) = (BTreeSet::from([key]), now + RETRY / 2);
        let closed = |unwritten: &BTreeSet<ConversationKey>, retry, had_last_try| QueueState {
            unwritten: unwritten.clone(),
            retry,
            had_last_try,
            is_closing: true,
            ..QueueState::default()
        };
        for (unwritten, retry, had_last_try, expect) in [
            (&failed, Some(soon), false, soon),
            (&failed, None, false, now + RETRY),
            (&failed, Some(now), false, now),
            (&failed, Some(soon), true, now),
            (&BTreeSet::new(), None, false, now),
        ] {
            let mut state = closed(unwritten, retry, had_last_try);
            assert_eq!(state.last_try(now), expect, "{unwritten:?} {retry:?} {had_last_try}");
        }
    }
}

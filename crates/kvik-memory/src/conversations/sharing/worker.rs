//! Background work on shared conversations: renews leases, writes changes that are not in the store yet, and deletes
//! unused records.

use std::sync::{Arc, Weak};
use std::time::Instant;

use super::Sharing;
use crate::conversations::fleet::queue::{Due, Failed, Queue, RENEWED, Task};
use crate::conversations::fleet::record::{CHANGED, CONVERSATION, changed_name, conversation_name};
use crate::conversations::head::ConversationKey;
use crate::conversations::shelf::Shelf;
use crate::shared::SharedError;

/// Starts the thread of a shared shelf, and queues the changes that were not written when the records were closed.
pub(in crate::conversations) fn start(shelf: &Arc<Shelf>) {
    let Some(fleet) = &shelf.fleet else { return };
    shelf.heads().changed_here().iter().for_each(|key| fleet.queue.push(key));
    let (queue, weak) = (fleet.queue.clone(), Arc::downgrade(shelf));
    let thread = std::thread::Builder::new().name("kvik-fleet".to_owned());
    let started = thread.spawn({
        let queue = queue.clone();
        move || {
            let ended = Ended(queue);
            work(&ended.0, &weak);
        }
    });
    if let Err(error) = started {
        tracing::error!("conversations that the store does not take at once are not shared: {error}");
        queue.end();
    }
}

/// Notes the end of the thread, even if it panics.
struct Ended(Arc<Queue>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Does the due work until the queue is closed and nothing is left, or the shelf is dropped.
fn work(queue: &Queue, shelf: &Weak<Shelf>) {
    while let Some(due) = queue.next() {
        let Some(shelf) = shelf.upgrade() else { return };
        queue.done(shelf.sharing_in_background().map_or_else(Failed::default, |sharing| sharing.work(due)));
    }
}

impl Sharing<'_> {
    /// Does the due work; returns what is to be tried again.
    fn work(&self, due: Due) -> Failed {
        if due.renews {
            self.renew();
        }
        let mut renewed = Instant::now();
        // The whole round may take longer than a lease lasts.
        let mut keep_leases = || {
            if renewed.elapsed() > RENEWED / 2 {
                self.renew();
                renewed = Instant::now();
            }
        };
        let mut failed = Failed { tasks: Vec::new(), unwritten: due.unwritten };
        for task in due.tasks {
            keep_leases();
            if let Err(error) = self.perform(&task) {
                tracing::debug!("the store does not take what is left of a change: {error}");
                failed.tasks.extend(Some(task).filter(Task::is_retried));
            }
        }
        failed.unwritten.retain(|key| {
            keep_leases();
            !self.write_late(key)
        });
        if due.is_last {
            self.release_all();
        }
        failed
    }

    fn perform(&self, task: &Task) -> Result<(), SharedError> {
        match task {
            Task::Release(key, hold) => self.release(key, hold),
            Task::Changed { key, stamp, before, swept } => {
                // Messages that were taken back leave the store even if the mark fails.
                let marked = self.mark(key, *stamp, before.as_slice());
                self.sweep(key, swept).and(marked)
            }
            Task::Corrected { key, stamp, others } => self.mark(key, *stamp, others),
            Task::Purge { key, changes } => {
                self.store.delete(CONVERSATION, conversation_name(key))?;
                self.unmark(key, changes)
            }
        }
    }

    /// Marks a change as the newest for listings.
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

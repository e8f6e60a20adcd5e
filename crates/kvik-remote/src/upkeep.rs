//! Values that are to be renewed or removed in the background: a bounded queue.
//!
//! A prompt may use thousands of runs at once, whose renewals must neither burden the store nor make it late.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::names::Key;

/// Maximum number of queued tasks: as many as the longest runs of a prompt that is looked up.
const TASKS_MAX: usize = 4096;

/// What is to be done with a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Upkeep {
    /// It was used, and stays for this time from now on.
    Renew(Key, Duration),
    /// It has expired in a store that does not expire values by itself.
    Remove(Key),
}

/// The queued tasks, the oldest first.
#[derive(Default)]
pub(crate) struct UpkeepQueue {
    tasks: Mutex<VecDeque<Upkeep>>,
    added: Notify,
}

impl UpkeepQueue {
    /// Queues a task. Returns false if the queue is full.
    pub(crate) fn push(&self, task: Upkeep) -> bool {
        {
            let mut tasks = self.tasks();
            if tasks.len() >= TASKS_MAX {
                return false;
            }
            tasks.push_back(task);
        }
        self.added.notify_one();
        true
    }

    /// Removes the oldest task; waits for one if there is none.
    pub(crate) async fn next(&self) -> Upkeep {
        loop {
            let oldest = self.tasks().pop_front();
            match oldest {
                Some(task) => return task,
                None => self.added.notified().await,
            }
        }
    }

    fn tasks(&self) -> MutexGuard<'_, VecDeque<Upkeep>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::OwnerTag;

    #[tokio::test]
    async fn tasks_are_taken_in_order_and_a_full_queue_says_so() {
        let queue = UpkeepQueue::default();
        let task = |number: usize| {
            let key = Key { owner: OwnerTag([0; 8]), name: (number as u128).to_le_bytes() };
            Upkeep::Renew(key, Duration::from_secs(1))
        };
        assert!((0..TASKS_MAX).all(|number| queue.push(task(number))));
        assert!(!queue.push(task(TASKS_MAX)));
        for number in 0..TASKS_MAX {
            assert_eq!(queue.next().await, task(number));
        }
        let (taken, ()) = tokio::join!(queue.next(), async { assert!(queue.push(task(7))) });
        assert_eq!(taken, task(7), "who waits is woken");
    }
}

//! What an operating system asks of a program: memory back, and to be ready to be killed.

use std::time::{Duration, Instant};

use super::Engine;
use crate::api::RequestError;

/// Between two looks at the disk.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// What was given back to the system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trimmed {
    /// Blocks of cached prefixes that were evicted for it.
    pub evicted_blocks: usize,
    /// Bytes of free blocks, which keep no memory until they are used again.
    pub free_bytes: usize,
}

/// What stands on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flushed {
    /// Whether no request runs or waits.
    pub is_idle: bool,
    /// Computed blocks that are still to be written.
    pub unwritten_blocks: usize,
}

impl Flushed {
    /// Whether all that was computed is on disk.
    pub fn is_complete(&self) -> bool {
        self.is_idle && self.unwritten_blocks == 0
    }
}

impl Engine {
    /// Evicts, the least worth first, until cached prefixes take at most `blocks` blocks of RAM, and gives the memory of
    /// all free blocks back to the system. Pinned prefixes and what runs stay. The budget stays as it was: what is used
    /// from now on takes memory again. Waits for the running step to end.
    ///
    /// # Errors
    /// When the engine stops.
    pub fn trim(&self, blocks: usize) -> Result<Trimmed, RequestError> {
        let board = self.shared.board.clone();
        self.with_runner(move |scheduler, runner| {
            let evicted_blocks = scheduler.trim(blocks, runner);
            let free_bytes = scheduler.cache().stats().free * board.block_bytes();
            // Whoever is told that it is free sees that in the statistics.
            board.publish(scheduler);
            Trimmed { evicted_blocks, free_bytes }
        })
    }

    /// Waits, for at most `within`, until all that was computed so far is on disk: a process that is killed then finds it
    /// again. A running step ends first.
    ///
    /// # Errors
    /// When the engine stops.
    pub fn flush(&self, within: Duration) -> Result<Flushed, RequestError> {
        self.wait(within, |flushed| flushed.unwritten_blocks == 0)
    }

    /// The same, and until no request runs or waits.
    ///
    /// # Errors
    /// When the engine stops.
    pub fn settle(&self, within: Duration) -> Result<Flushed, RequestError> {
        self.wait(within, Flushed::is_complete)
    }

    fn wait(&self, within: Duration, done: impl Fn(&Flushed) -> bool) -> Result<Flushed, RequestError> {
        let deadline = Instant::now() + within;
        loop {
            let board = self.shared.board.clone();
            let flushed = self.with_scheduler(move |scheduler| {
                board.publish(scheduler);
                Flushed { is_idle: scheduler.is_idle(), unwritten_blocks: scheduler.unwritten() }
            })?;
            if done(&flushed) || Instant::now() >= deadline {
                return Ok(flushed);
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

//! Requests of an operating system: return memory, and prepare to be killed.

use std::time::{Duration, Instant};

use super::Engine;
use crate::api::RequestError;

/// Interval at which the disk is polled.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Memory returned to the system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trimmed {
    /// Number of blocks of cached prefixes that were evicted.
    pub evicted_blocks: usize,
    /// Bytes of free blocks, which occupy no memory until they are used again.
    pub free_bytes: usize,
}

/// State of the disk tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flushed {
    /// Whether no request runs or waits.
    pub is_idle: bool,
    /// Number of computed blocks that are still to be written.
    pub unwritten_blocks: usize,
}

impl Flushed {
    /// Whether everything computed is on disk.
    pub fn is_complete(&self) -> bool {
        self.is_idle && self.unwritten_blocks == 0
    }
}

impl Engine {
    /// Evicts prefixes in the order of the eviction policy until cached prefixes take at most `blocks` blocks of RAM,
    /// and returns the memory of all free blocks to the system. Pinned prefixes and blocks in use stay. The budget does
    /// not change: blocks used later take memory again. Waits for the running step to end.
    ///
    /// # Errors
    /// When the engine stops.
    pub fn trim(&self, blocks: usize) -> Result<Trimmed, RequestError> {
        let board = self.shared.board.clone();
        self.with_runner(move |scheduler, runner| {
            let evicted_blocks = scheduler.trim(blocks, runner);
            let free_bytes = scheduler.cache().stats().free * board.block_bytes();
            // The statistics are published first, so that the caller sees the freed memory in them.
            board.publish(scheduler);
            Trimmed { evicted_blocks, free_bytes }
        })
    }

    /// Waits for at most `within` until everything computed so far is on disk: it is found again after the process is
    /// killed. A running step ends first.
    ///
    /// # Errors
    /// When the engine stops.
    pub fn flush(&self, within: Duration) -> Result<Flushed, RequestError> {
        self.wait(within, |flushed| flushed.unwritten_blocks == 0)
    }

    /// As [`flush`](Engine::flush), and also waits until no request runs or waits.
    ///
    /// # Errors
    /// When the engine stops.
    pub fn settle(&self, within: Duration) -> Result<Flushed, RequestError> {
        self.wait(within, Flushed::is_complete)
    }

    fn wait(&self, within: Duration, done: impl Fn(&Flushed) -> bool) -> Result<Flushed, RequestError> {
        let deadline = Instant::now() + within;
        self.with_scheduler(|scheduler| scheduler.prefixes.spill_waiting())?;
        loop {
            let board = self.shared.board.clone();
            let flushed = self.with_scheduler(move |scheduler| {
                board.publish(scheduler);
                Flushed { is_idle: scheduler.is_idle(), unwritten_blocks: scheduler.unwritten_blocks() }
            })?;
            let left = deadline.saturating_duration_since(Instant::now());
            if done(&flushed) || left.is_zero() {
                self.flush_answers(left);
                return Ok(flushed);
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

//! Requests of an operating system: to return memory, to get ready to be killed, to end.

use std::time::{Duration, Instant};

use kvik_engine::engine::Flushed;

use crate::error::{Error, guard};
use crate::model::Model;

/// Time limit for writing blocks to the disk before their memory is returned.
const FLUSH_BEFORE_RELEASE: Duration = Duration::from_millis(50);
/// Time limit for making everything durable when a program goes to the background.
const BACKGROUND_TIME: Duration = Duration::from_millis(100);
/// Time limit for the disk when a model is closed.
const CLOSE_TIME: Duration = Duration::from_secs(2);

/// Severity of memory pressure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryPressure {
    /// Evicts half of the cached prefixes, the least valuable ones, and returns all free memory.
    Moderate,
    /// Evicts three quarters of the cached prefixes.
    High,
    /// Evicts all that is not pinned or in use.
    Critical,
}

/// Result of returning memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Released {
    /// Bytes of cached prefixes that were evicted.
    pub evicted_bytes: usize,
    /// Free bytes, which take no physical memory until they are used again.
    pub free_bytes: usize,
}

impl MemoryPressure {
    /// Number of cached blocks to keep of `blocks`.
    fn keeps(self, blocks: usize) -> usize {
        match self {
            MemoryPressure::Moderate => blocks / 2,
            MemoryPressure::High => blocks / 4,
            MemoryPressure::Critical => 0,
        }
    }
}

impl Model {
    /// Returns memory to the system: first computed blocks are written to the disk, for at most 50 ms, then cached
    /// prefixes are evicted, the least valuable first. Answers continue, and allocate memory again as they need it; turns
    /// that are computed ahead end.
    ///
    /// # Errors
    /// When the engine stops.
    pub fn on_memory_pressure(&self, level: MemoryPressure) -> Result<Released, Error> {
        guard(|| {
            self.core.opened.next_turns.stop();
            self.engine().flush(FLUSH_BEFORE_RELEASE)?;
            let stats = self.engine().stats();
            let block_bytes = stats.kv_bytes / stats.cache.blocks;
            let trimmed = self.engine().trim(level.keeps(stats.cache.shared))?;
            let evicted_bytes = trimmed.evicted_blocks * block_bytes;
            Ok(Released { evicted_bytes, free_bytes: trimmed.free_bytes })
        })
    }

    /// Gets ready to be killed: cancels all answers and waits up to 100 ms, and for the running step, until all
    /// computed blocks are on disk. Then no thread of the model runs until the next call.
    ///
    /// # Errors
    /// When the engine stops.
    pub fn on_background(&self) -> Result<Flushed, Error> {
        guard(|| self.settle(BACKGROUND_TIME))
    }

    /// Cancels all answers, writes computed blocks to the disk for up to two seconds, and stops all threads.
    ///
    /// # Errors
    /// When the engine has stopped already.
    pub fn close(self) -> Result<Flushed, Error> {
        // The drop of `self` ends the threads.
        guard(|| self.settle(CLOSE_TIME))
    }

    fn settle(&self, within: Duration) -> Result<Flushed, Error> {
        let until = Instant::now() + within;
        self.core.cancel_all();
        let flushed = self.engine().settle(within)?;
        self.core.opened.memory.settle(until.saturating_duration_since(Instant::now()));
        Ok(flushed)
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        self.core.end();
    }
}

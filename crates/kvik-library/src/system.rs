//! What an operating system asks of a program: memory back, to be ready to be killed, to end.

use std::time::{Duration, Instant};

use kvik_engine::engine::Flushed;

use crate::error::{Error, guard};
use crate::model::Model;

/// Time that blocks have to reach the disk before their memory is given back.
const FLUSH_BEFORE_RELEASE: Duration = Duration::from_millis(50);
/// Time in which everything is durable when a program goes to the background.
const BACKGROUND_TIME: Duration = Duration::from_millis(100);
/// Time that the disk has when a model is closed.
const CLOSE_TIME: Duration = Duration::from_secs(2);

/// How much memory the system wants back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryPressure {
    /// Some: half of the cached prefixes, those worth least, and all that is free.
    Moderate,
    /// More: three quarters of the cached prefixes.
    High,
    /// All that is not kept under a name or in use.
    Critical,
}

/// What was given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Released {
    /// Bytes of cached prefixes that were evicted.
    pub evicted_bytes: usize,
    /// Bytes that hold nothing now, and take no memory until they are used again.
    pub free_bytes: usize,
}

impl MemoryPressure {
    /// What stays of so many cached blocks.
    fn keeps(self, blocks: usize) -> usize {
        match self {
            MemoryPressure::Moderate => blocks / 2,
            MemoryPressure::High => blocks / 4,
            MemoryPressure::Critical => 0,
        }
    }
}

impl Model {
    /// Gives memory back to the system: first what is computed goes to the disk, for which it has 50 ms, then cached
    /// prefixes are evicted, those worth least first. Answers go on, and what they need takes memory again.
    ///
    /// # Errors
    /// When the engine stops.
    pub fn on_memory_pressure(&self, level: MemoryPressure) -> Result<Released, Error> {
        guard(|| {
            self.engine().flush(FLUSH_BEFORE_RELEASE)?;
            let stats = self.engine().stats();
            let block_bytes = stats.kv_bytes / stats.cache.blocks;
            let trimmed = self.engine().trim(level.keeps(stats.cache.shared))?;
            let evicted_bytes = trimmed.evicted_blocks * block_bytes;
            Ok(Released { evicted_bytes, free_bytes: trimmed.free_bytes })
        })
    }

    /// Gets ready to be killed: cancels all answers and waits up to 100 ms, and for the step that runs, until all that was
    /// computed is on disk. Then no thread of the model runs until something is asked again.
    ///
    /// # Errors
    /// When the engine stops.
    pub fn on_background(&self) -> Result<Flushed, Error> {
        guard(|| self.settle(BACKGROUND_TIME))
    }

    /// Cancels all answers, gives the disk up to two seconds for what was computed, and stops all threads.
    ///
    /// # Errors
    /// When the engine has stopped already.
    pub fn close(self) -> Result<Flushed, Error> {
        // Dropping it does the rest.
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

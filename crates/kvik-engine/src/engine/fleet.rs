//! The engine as a node of a fleet: hands its hot prefixes to other nodes before it stops, and takes over theirs when
//! it starts.

use std::time::{Duration, Instant};

use kvik_cache::{PrefixOrder, PrefixScan};

use super::Engine;
use crate::api::{HotPrefix, RequestError};
use crate::schedule::{Prefixes, SharedWork};

/// Number of prefixes offered at a time: those that wait are held in memory.
const OFFERED: usize = 16;
/// Interval at which the remaining work is polled.
const LOOK_EVERY: Duration = Duration::from_millis(2);

impl Engine {
    /// The most reused prefixes in memory, at most `limit`, each before its own prefixes.
    ///
    /// # Errors
    /// When the engine stops.
    pub fn hottest(&self, limit: usize) -> Result<Vec<HotPrefix>, RequestError> {
        let scan = self.in_slices(PrefixScan::new(PrefixOrder::Reuses, None, limit), Prefixes::scan)?;
        self.with_scheduler(move |scheduler| scheduler.prefixes.hottest(scan))
    }

    /// Writes prefixes to the shared store, as far as it lacks them, in order, for at most `within`. Returns whether
    /// all of them are there.
    ///
    /// # Errors
    /// When the engine stops.
    pub fn share(&self, prefixes: &[HotPrefix], within: Duration) -> Result<bool, RequestError> {
        let deadline = Instant::now() + within;
        for some in prefixes.chunks(OFFERED) {
            let some = some.to_vec();
            self.with_scheduler(move |scheduler| {
                some.iter().for_each(|prefix| scheduler.prefixes.offer(prefix))
            })?;
            if !self.wait_for(deadline, |work| work.writing == 0)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Fetches prefixes from the shared store, in order, for at most `within`. Returns whether there was time for all
    /// of them; prefixes that the store lacks are skipped.
    ///
    /// # Errors
    /// When the engine stops.
    pub fn warm(&self, prefixes: Vec<HotPrefix>, within: Duration) -> Result<bool, RequestError> {
        let deadline = Instant::now() + within;
        self.with_scheduler(move |scheduler| scheduler.prefixes.warm(prefixes))?;
        let is_warm = self.wait_for(deadline, |work| work.fetching == 0)?;
        if !is_warm {
            self.with_scheduler(|scheduler| scheduler.prefixes.stop_warming())?;
        }
        Ok(is_warm)
    }

    /// Waits until the pending work is done; returns whether that was before the deadline.
    fn wait_for(
        &self,
        deadline: Instant,
        is_done: impl Fn(&SharedWork) -> bool,
    ) -> Result<bool, RequestError> {
        loop {
            if is_done(&self.with_scheduler(|scheduler| scheduler.prefixes.shared_work())?) {
                return Ok(true);
            }
            if Instant::now() >= deadline {
                return Ok(false);
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

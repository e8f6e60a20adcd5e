//! One node of many: what it leaves to the others before it goes, and what it takes over from them before it begins.

use std::time::{Duration, Instant};

use kvik_cache::{PrefixOrder, PrefixScan};

use super::Engine;
use crate::api::{HotPrefix, RequestError};
use crate::schedule::{Scheduler, SharedWork};

/// Prefixes that are offered at a time: those that wait are held in memory.
const OFFERED: usize = 16;
/// Between two looks at what is left.
const LOOK_EVERY: Duration = Duration::from_millis(2);

impl Engine {
    /// The prefixes in memory that were used again most often, at most `limit`, those before their own beginnings.
    ///
    /// # Errors
    /// When the engine stops.
    pub fn hottest(&self, limit: usize) -> Result<Vec<HotPrefix>, RequestError> {
        let scan = self.in_slices(PrefixScan::new(PrefixOrder::Reuses, None, limit), Scheduler::scan)?;
        self.with_scheduler(move |scheduler| scheduler.hottest(scan))
    }

    /// Writes prefixes to the store that nodes share, as far as it lacks them, the first ones first, for at most `within`.
    /// Whether all of them are there.
    ///
    /// # Errors
    /// When the engine stops.
    pub fn share(&self, prefixes: &[HotPrefix], within: Duration) -> Result<bool, RequestError> {
        let deadline = Instant::now() + within;
        for some in prefixes.chunks(OFFERED) {
            let some = some.to_vec();
            self.with_scheduler(move |scheduler| some.iter().for_each(|prefix| scheduler.offer(prefix)))?;
            if !self.wait_for(deadline, |work| work.writing == 0)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Fetches prefixes from the store that nodes share, the first ones first, for at most `within`. Whether there was time
    /// for all of them; what the store lacks is left out.
    ///
    /// # Errors
    /// When the engine stops.
    pub fn warm(&self, prefixes: Vec<HotPrefix>, within: Duration) -> Result<bool, RequestError> {
        let deadline = Instant::now() + within;
        self.with_scheduler(move |scheduler| scheduler.warm(prefixes))?;
        let is_warm = self.wait_for(deadline, |work| work.fetching == 0)?;
        if !is_warm {
            self.with_scheduler(|scheduler| scheduler.stop_warming())?;
        }
        Ok(is_warm)
    }

    /// Waits until nothing is left of some work. Whether that was before the deadline.
    fn wait_for(
        &self,
        deadline: Instant,
        is_done: impl Fn(&SharedWork) -> bool,
    ) -> Result<bool, RequestError> {
        loop {
            if is_done(&self.with_scheduler(|scheduler| scheduler.shared_work())?) {
                return Ok(true);
            }
            if Instant::now() >= deadline {
                return Ok(false);
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

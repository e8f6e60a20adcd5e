//! Prompts that are computed in advance and pinned, as an application does with its system prompt.
//!
//! ```text
//! cache_system_prompt ──► computes or finds the prompt, and pins it in RAM and on disk
//! is_cached           ──► how much of it a request would find now
//! invalidate          ──► unpins and drops it; evict: also every prompt that begins with it
//! pins, unpin         ──► lists pins, removes pins
//! ```

use std::time::{Duration, Instant};

use kvik_cache::{DeletedPrompts, PinInfo, PrefixInfo, PrefixOrder, PrefixScan, TenantId};

use super::Engine;
use crate::api::{Cached, Evicted, PinnedPrompt, Report, RequestError, Unpin};
use crate::schedule::Prefixes;

/// Interval at which pending erasures are polled.
const LOOK_EVERY: Duration = Duration::from_millis(5);

impl Engine {
    /// Computes the part of a prompt that is not cached, and pins the prompt until it is
    /// [invalidated](Engine::invalidate). Returns when that is done.
    ///
    /// # Errors
    /// As for any request: the prompt is too long, the queue is full, the engine stops.
    pub fn cache_system_prompt(&self, prompt: &PinnedPrompt) -> Result<Report, RequestError> {
        self.generate(prompt.request()).map(|generated| generated.report)
    }

    /// How much of a prompt is cached now. Changes nothing.
    ///
    /// # Errors
    /// When the engine stops.
    pub fn is_cached(&self, prompt: &PinnedPrompt) -> Result<Cached, RequestError> {
        let prompt = prompt.clone();
        self.with_scheduler(move |scheduler| scheduler.prefixes.cached(&prompt))
    }

    /// Unpins a prompt and drops its blocks that nothing else uses, from RAM and from disk. Pins of longer
    /// prompts that begin with it stay, and so do the blocks they need. Returns how many blocks of RAM were
    /// freed.
    ///
    /// # Errors
    /// When the engine stops.
    pub fn invalidate(&self, prompt: &PinnedPrompt) -> Result<usize, RequestError> {
        let prompt = prompt.clone();
        self.with_scheduler(move |scheduler| match &prompt.retention {
            Some(retention) => scheduler.release_part(&prompt, retention),
            None => scheduler.release(&prompt.tokens, prompt.salt),
        })
    }

    /// Drops the blocks of a prompt and of every prompt that begins with its whole blocks, pinned or not, from
    /// RAM and from disk; running sequences keep the blocks they use.
    ///
    /// # Errors
    /// When the engine stops.
    pub fn evict(&self, prompt: &PinnedPrompt) -> Result<Evicted, RequestError> {
        let prompt = prompt.clone();
        let salt = prompt.salt;
        let evicted = self.with_scheduler(move |scheduler| scheduler.evict(&prompt.tokens, prompt.salt))?;
        // Behind the step that ran: a request that ended in it has left its answer. Which answers are behind longer prompts
        // that begin so, their hashes do not say.
        self.clear_answers(Some(salt));
        Ok(evicted)
    }

    /// Deletes what was computed for deleted prompts and everything that continues them, except what other prompts
    /// share: from RAM, from disk, from the draft model, and from the shared store. Waits for at most `within` until it
    /// is erased everywhere; returns whether it is. Pinned blocks stay.
    ///
    /// # Errors
    /// When the engine stops.
    pub fn forget(
        &self,
        salt: [u8; 16],
        prompts: &DeletedPrompts,
        within: Duration,
    ) -> Result<bool, RequestError> {
        let until = Instant::now() + within;
        // The shared store is asked once: it counts the pending removals itself.
        for asks_store in std::iter::once(true).chain(std::iter::repeat(false)) {
            let asked = prompts.clone();
            let left =
                self.with_scheduler(move |scheduler| scheduler.forget_deleted(salt, &asked, asks_store))?;
            // Behind the step that ran: a request that ended in it has left its answer, and those that still run are counted.
            let left = left + self.forget_answers(salt, prompts.mine());
            if left == 0 || Instant::now() >= until {
                return Ok(left == 0);
            }
            // Pending and cancelled disk operations end first.
            self.until_erased(until.saturating_duration_since(Instant::now()).min(LOOK_EVERY * 20))?;
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(false)
    }

    /// Waits for at most `within` until all blocks that were dropped from the disk are erased; returns whether they
    /// are.
    ///
    /// # Errors
    /// When the engine stops.
    pub fn until_erased(&self, within: Duration) -> Result<bool, RequestError> {
        let until = Instant::now() + within;
        loop {
            let left = self.with_scheduler(|scheduler| scheduler.prefixes.erasing())?;
            if left == 0 || Instant::now() >= until {
                return Ok(left == 0);
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// The first `limit` pins of one tenant or of all tenants, oldest first.
    ///
    /// # Errors
    /// When the engine stops.
    pub fn pins(&self, tenant: Option<TenantId>, limit: usize) -> Result<Vec<PinInfo>, RequestError> {
        self.with_scheduler(move |scheduler| scheduler.prefixes.pins(tenant, limit))
    }

    /// Removes pins of one tenant or of any tenant; they stay removed after a restart.
    /// The blocks stay until they are evicted. Returns how many pins were removed.
    ///
    /// # Errors
    /// When the engine stops.
    pub fn unpin(&self, which: Unpin, tenant: Option<TenantId>) -> Result<usize, RequestError> {
        self.with_scheduler(move |scheduler| scheduler.prefixes.unpin(which, tenant))
    }

    /// Makes these prompts the public ones: requests of tenants whose [`TenantPart`](crate::schedule::TenantPart)
    /// allows it read their blocks in place and continue in their own namespace.
    ///
    /// # Errors
    /// When the engine stops.
    pub fn set_public_prompts(&self, prompts: Vec<PinnedPrompt>) -> Result<(), RequestError> {
        self.with_scheduler(move |scheduler| scheduler.set_public(&prompts))
    }

    /// Drops all blocks that are neither in use nor pinned, of one tenant or of all. Returns how many blocks of
    /// RAM and of the disk were dropped.
    ///
    /// # Errors
    /// When the engine stops.
    pub fn clear_cache(&self, salt: Option<[u8; 16]>) -> Result<(usize, usize), RequestError> {
        let dropped = self.with_scheduler(move |scheduler| scheduler.prefixes.clear(salt))?;
        // Behind the step that ran: a request that ended in it has left its answer.
        self.clear_answers(salt);
        Ok(dropped)
    }

    /// The first `limit` prefixes in RAM of one tenant or of all, in an order, and the time of the scan on the clock
    /// that their times of use refer to. A large tree is scanned in slices between steps.
    ///
    /// # Errors
    /// When the engine stops.
    pub fn prefixes(
        &self,
        order: PrefixOrder,
        tenant: Option<TenantId>,
        limit: usize,
    ) -> Result<(Vec<PrefixInfo>, Duration), RequestError> {
        let scan = PrefixScan::new(order, self.owner(tenant)?, limit);
        let scan = self.in_slices(scan, Prefixes::scan)?;
        self.with_scheduler(move |scheduler| scheduler.prefixes.scanned(scan))
    }
}

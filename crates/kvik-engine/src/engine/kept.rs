//! Prompts that are computed ahead and kept: what an application does with its system prompt.
//!
//! ```text
//! cache_system_prompt ──► computed, or found, and pinned in RAM and on disk
//! is_cached           ──► how much of it a request would find now
//! invalidate          ──► unpinned and dropped; evict: with all that begins so
//! pins, unpin         ──► what is pinned, and taking it back
//! ```

use std::time::Duration;

use kvik_cache::{PinInfo, PrefixInfo, PrefixOrder, PrefixScan, TenantId};

use super::Engine;
use crate::api::{Cached, Evicted, KeptPrompt, Report, RequestError, Unpin};

impl Engine {
    /// Computes a prompt, as far as it is not known, and keeps it until it is
    /// [invalidated](Engine::invalidate). Returns when it is there.
    ///
    /// # Errors
    /// As for any request: the prompt is too long, the queue is full, the engine stops.
    pub fn cache_system_prompt(&self, prompt: &KeptPrompt) -> Result<Report, RequestError> {
        self.generate(prompt.request()).map(|generated| generated.report)
    }

    /// How much of a prompt is there now. Changes nothing.
    ///
    /// # Errors
    /// When the engine stops.
    pub fn is_cached(&self, prompt: &KeptPrompt) -> Result<Cached, RequestError> {
        let prompt = prompt.clone();
        self.ask(move |scheduler| scheduler.cached(&prompt))
    }

    /// Lets go of a prompt: it is no longer pinned, and what nobody else uses of it is dropped, from RAM
    /// and from disk. Pins of longer prompts that begin with it stay, and so does what they need. Returns how
    /// many blocks of RAM were freed.
    ///
    /// # Errors
    /// When the engine stops.
    pub fn invalidate(&self, prompt: &KeptPrompt) -> Result<usize, RequestError> {
        let prompt = prompt.clone();
        self.ask(move |scheduler| scheduler.let_go(&prompt.tokens, prompt.salt))
    }

    /// Drops what is known of a prompt and of all that begins with its whole blocks, pinned or not, from RAM
    /// and from disk; what runs keeps what it uses.
    ///
    /// # Errors
    /// When the engine stops.
    pub fn evict(&self, prompt: &KeptPrompt) -> Result<Evicted, RequestError> {
        let prompt = prompt.clone();
        self.ask(move |scheduler| scheduler.evict(&prompt.tokens, prompt.salt))
    }

    /// The pins of one tenant or of all, oldest first, at most `limit`.
    ///
    /// # Errors
    /// When the engine stops.
    pub fn pins(&self, tenant: Option<TenantId>, limit: usize) -> Result<Vec<PinInfo>, RequestError> {
        self.ask(move |scheduler| scheduler.pins(tenant, limit))
    }

    /// Takes back pins of one tenant, or whoever's they are; also after a restart they stay taken back.
    /// What they kept stays until it is evicted. Returns how many there were.
    ///
    /// # Errors
    /// When the engine stops.
    pub fn unpin(&self, which: Unpin, tenant: Option<TenantId>) -> Result<usize, RequestError> {
        self.ask(move |scheduler| scheduler.unpin(which, tenant))
    }

    /// From now on these kept prompts are public: requests of tenants whose part says so read them where they
    /// are kept, and go on for themselves.
    ///
    /// # Errors
    /// When the engine stops.
    pub fn set_public_prompts(&self, prompts: Vec<KeptPrompt>) -> Result<(), RequestError> {
        self.ask(move |scheduler| scheduler.set_public(&prompts))
    }

    /// Drops all that is neither in use nor pinned, of one tenant or of all. Returns how many blocks of RAM
    /// and of the disk.
    ///
    /// # Errors
    /// When the engine stops.
    pub fn clear_cache(&self, salt: Option<[u8; 16]>) -> Result<(usize, usize), RequestError> {
        self.ask(move |scheduler| scheduler.clear(salt))
    }

    /// What is kept in RAM of one tenant or of all, the first prefixes in an order, and the time on the clock by
    /// which they tell when they were used. Of a large tree a slice is looked at between two steps.
    ///
    /// # Errors
    /// When the engine stops.
    pub fn prefixes(
        &self,
        order: PrefixOrder,
        tenant: Option<TenantId>,
        limit: usize,
    ) -> Result<(Vec<PrefixInfo>, Duration), RequestError> {
        let owner = tenant.map(|tenant| self.ask(move |scheduler| scheduler.owner(tenant))).transpose()?;
        let mut scan = PrefixScan::new(order, owner, limit);
        loop {
            let (scanned, more) = self.ask(move |scheduler| {
                let more = scheduler.scan(&mut scan);
                (scan, more)
            })?;
            scan = scanned;
            if !more {
                return self.ask(move |scheduler| scheduler.scanned(scan));
            }
        }
    }
}

//! The computed prefixes of one model, wherever they are: in RAM, on disk, with other nodes, and compressed. The draft
//! model's cache goes with them: what is dropped here is dropped there.
//!
//! Knows no request. What asks about sequences, such as which namespaces are in use, is told.

use std::time::Duration;

use kvik_cache::{Cache, CacheConfig, CacheError, NamespaceId, SeqId, TenantId};
use kvik_model::batch::Runner;

use super::Clock;
use super::disk::{Disk, DiskSetup, LoadContext, Offered, SpillContext};
use super::draft::DraftModel;
use super::kept_parts::CompressedPrefixes;
use super::namespaces::Sharers;
use super::ram::Ram;
use super::tenants::{TenantPart, Tenants};
use crate::api::RequestError;
use crate::config::EngineConfig;
use crate::panics::contain;
use crate::stats::{DiskStats, DraftSource, RemoteStats};

/// What a wall clock in whole seconds may be ahead although nothing has moved it.
const CLOCK_ERROR: Duration = Duration::from_secs(1);
/// How often the wall clock is looked at while something is to expire.
const EXPIRY_LOOK_EVERY: Duration = Duration::from_secs(60);

/// The prefixes that are computed.
pub struct Prefixes {
    pub(super) ram: Ram,
    /// The disk tier; without slots when no disk is configured.
    pub(super) disk: Disk,
    /// Who owns and who shares them.
    pub(super) tenants: Tenants,
    /// Retained positions of prefixes.
    pub(super) kept_parts: CompressedPrefixes,
    /// A smaller model that drafts, if configured.
    pub(super) draft_model: Option<DraftModel>,
    pub(super) clock: Clock,
    /// How far the wall clock was ahead, which times to live count: the machine has slept, or its clock was set forward.
    ahead: Duration,
    /// Bytes of a block.
    pub(super) block_bytes: usize,
}

impl Prefixes {
    /// None yet, and no disk.
    pub(super) fn new(
        config: &EngineConfig,
        cache_config: CacheConfig,
        clock: Clock,
    ) -> Result<Prefixes, CacheError> {
        Ok(Prefixes {
            ram: Ram::new(cache_config, config.auxiliary, config.drafts_from(DraftSource::Tree))?,
            disk: Disk::new(DiskSetup::none(), config.auxiliary),
            tenants: Tenants::new(config),
            kept_parts: CompressedPrefixes::default(),
            draft_model: None,
            clock,
            ahead: Duration::ZERO,
            block_bytes: config.block_bytes,
        })
    }

    pub(crate) fn now(&self) -> Duration {
        (self.clock)()
    }

    /// Tells the caches and the disk the time, and returns it: what has outlived it is not found from then on.
    pub(super) fn keep_time(&mut self) -> Duration {
        let now = self.now();
        let more = self.disk.follow_wall_clock(now);
        if more > CLOCK_ERROR {
            self.ahead = self.ahead.saturating_add(more);
        }
        let in_ram = now.saturating_add(self.ahead);
        self.ram.cache.set_now(in_ram);
        if let Some(model) = &mut self.draft_model {
            model.set_now(in_ram);
        }
        now
    }

    /// When to look for prefixes that have expired, by the scheduler's clock. A wait by that one stands still while the
    /// machine sleeps, and what expires meanwhile would stay for as long as it had left.
    pub(super) fn next_expiry_look(&self) -> Option<Duration> {
        let next = self.next_expiry()?;
        let soon = self.now().saturating_add(EXPIRY_LOOK_EVERY);
        Some(if self.disk.has_wall_clock() { next.min(soon) } else { next })
    }

    /// When the next prefix expires that nobody uses, by the scheduler's clock.
    fn next_expiry(&self) -> Option<Duration> {
        let caches = [Some(&self.ram.cache), self.draft_cache()];
        let in_ram = caches.into_iter().flatten().filter_map(Cache::next_expiry).min();
        let in_ram = in_ram.map(|at| at.saturating_sub(self.ahead));
        in_ram.into_iter().chain(self.disk.next_expiry()).min()
    }

    /// Attaches the disk, and makes prefetch candidates of prefixes without a tenant; those of tenants follow when the
    /// tenants are registered.
    pub(super) fn attach(&mut self, mut setup: DiskSetup, config: &EngineConfig) {
        if config.drafts_from(DraftSource::Tree) {
            setup.tier.index_followers();
        }
        self.disk = Disk::new(setup, config.auxiliary);
        let namespace = self.tenants.namespaces.shared(Sharers::plain([0; 16]), &mut self.ram.cache);
        self.disk.add_candidates(&[namespace], &self.tenants.namespaces);
    }

    /// Sets the tenants' shares of RAM and disk. A lowered quota is kept at once in RAM, and on disk by the next steps;
    /// prefixes that a tenant used before the start are prefetched. What is cached of tenants that are not among these
    /// makes way first, until they send a request.
    pub(super) fn set_tenants(&mut self, parts: &[TenantPart]) {
        self.tenants.set_parts(parts);
        self.ram.cache.withdraw_shares();
        self.disk.withdraw_shares();
        let shared = |part: &TenantPart| {
            self.tenants.namespaces.shared(Sharers::plain(part.salt), &mut self.ram.cache)
        };
        let namespaces: Vec<NamespaceId> = parts.iter().map(shared).collect();
        // The owners must be registered before their prefixes come back: their pins count.
        for (part, &namespace) in parts.iter().zip(&namespaces) {
            self.tenants.register(namespace, (part.tenant, part.salt), &mut self.ram, &mut self.disk);
        }
        self.disk.add_candidates(&namespaces, &self.tenants.namespaces);
    }

    /// The disk, and what a load needs while `running` sequences run.
    pub(super) fn loading(&mut self, running: usize) -> (&mut Disk, LoadContext<'_>) {
        let now = self.now();
        let (ram, namespaces) = (&mut self.ram, &self.tenants.namespaces);
        (&mut self.disk, LoadContext { ram, namespaces, running, now })
    }

    /// The disk, and what copying blocks to it needs.
    pub(super) fn spilling<'a>(&'a mut self, runner: &'a dyn Runner) -> (&'a mut Disk, SpillContext<'a>) {
        let now = self.now();
        let (cache, namespaces) = (&self.ram.cache, &self.tenants.namespaces);
        (&mut self.disk, SpillContext { cache, namespaces, runner, now })
    }

    /// Has the disk take all that waits in RAM to be worth writing.
    pub(crate) fn spill_waiting(&mut self) {
        self.disk.spill_waiting(&mut self.ram);
    }

    /// Offers a prefix to other nodes, unless they have it.
    pub(super) fn share(&mut self, prefix: &Offered<'_>) {
        let now = self.now();
        self.disk.share(prefix, &mut self.ram, &self.tenants.namespaces, now);
    }

    /// Drops the namespaces derived from prompts that are no longer public, once they are unused: no sequence has blocks
    /// there, and no waiting one `awaits` them. Returns whether any was dropped.
    pub(super) fn drop_retired(&mut self, awaits: impl Fn(NamespaceId) -> bool) -> bool {
        self.tenants.drop_retired(awaits, &mut self.ram.cache)
    }

    /// Releases the draft model's sequences for which `runs` is false.
    pub(super) fn follow_only(&mut self, runs: impl Fn(SeqId) -> bool) {
        if let Some(model) = &mut self.draft_model {
            model.follow_only(runs);
        }
    }

    /// After a panic, when no sequence runs any more: releases the draft model's sequences, and resets the model if its
    /// state is inconsistent.
    pub(super) fn mend_drafts(&mut self) {
        let is_sound = contain(|| {
            self.follow_only(|_| false);
            self.draft_cache().is_none_or(|cache| cache.check().is_ok())
        });
        if let (Some(model), Ok(false) | Err(_)) = (&mut self.draft_model, is_sound) {
            model.renew();
        }
    }

    /// The error for a tenant's sequence of `tokens` tokens that does not fit although no other sequence runs.
    pub(super) fn over_budget(&self, tenant: TenantId, tokens: usize) -> RequestError {
        self.ram.over_budget(tokens, self.owner(tenant))
    }

    /// Starts with an empty cache. Public prompts are shared again as soon as they are recomputed.
    pub(super) fn renew(&mut self) {
        self.ram.renew();
        self.tenants.reset(&mut self.ram.cache);
        self.kept_parts.clear();
        self.disk.drop_candidates();
        self.disk.keep_ends(|_| false);
        if let Some(model) = &mut self.draft_model {
            model.renew();
        }
    }

    /// The cache of the draft model, if there is one.
    pub fn draft_cache(&self) -> Option<&Cache> {
        self.draft_model.as_ref().map(DraftModel::cache)
    }

    /// Measured prefill rate in prompt tokens per second, after the first prefill.
    pub fn compute_rate(&self) -> Option<f64> {
        self.disk.compute_rate()
    }

    /// Statistics of the disk tier, if there is one.
    pub fn disk_stats(&self) -> Option<DiskStats> {
        self.disk.stats(self.block_bytes, self.now())
    }

    /// Statistics of the shared store, if there is one.
    pub fn remote_stats(&self) -> Option<RemoteStats> {
        self.disk.remote_stats()
    }
}

//! Events of a world other than requests: restarts, pauses, prompts that are pinned and released.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kvik_cache::tier::Tier;
use kvik_cache::{BLOCK_POSITIONS, CacheConfig, Identity, PrefixOrder, PrefixScan, TenantId, Token};
use kvik_engine::api::PinnedPrompt;
use kvik_engine::api::RequestError;
use kvik_engine::schedule::disk::{DiskSetup, DiskWrites};
use kvik_engine::schedule::{DraftSetup, Pause, Scheduler};
use kvik_engine::stats::DraftSource;
use kvik_engine::store::{BlockStore, HostStore, Waker};

use crate::account;
use crate::disk::{Drive, Platter, common};
use crate::fake::{VOCAB, vocabulary};
use crate::fleet::Share;
use crate::memory::{Known, View};
use crate::regime::{DiskRegime, Regime, SALTS};
use crate::runner::{IN_DISORDER, SECRET, SimRunner};
use crate::time::Time;
use crate::world::World;

/// Seconds since 1970 when the world began.
const EPOCH_S: u64 = 1_800_000_000;
/// Maximum prompts kept at a time.
const KEPT_MAX: usize = 3;
/// Maximum steps until the world is idle.
const REST_STEPS_MAX: u64 = 60_000;

/// Rows of a pass of the draft model.
const DRAFT_ROWS_MAX: usize = 64;

/// A kept prompt.
pub(crate) struct Kept {
    pub(crate) id: u64,
    pub(crate) salt: u8,
    pub(crate) tokens: Vec<Token>,
    pub(crate) public: bool,
    pub(crate) ready: bool,
}

impl Kept {
    pub(crate) fn whole(&self) -> &[Token] {
        &self.tokens[..self.tokens.len() - self.tokens.len() % BLOCK_POSITIONS]
    }

    fn prompt(&self) -> PinnedPrompt {
        PinnedPrompt {
            tokens: self.tokens.clone(),
            adapters: None,
            salt: [self.salt; 16],
            tenant: TenantId(self.salt.into()),
            retention: None,
        }
    }
}

/// A scheduler on a platter: one process, which may share a store with others.
pub(crate) fn scheduler(
    regime: &Regime,
    time: &Time,
    platter: &Arc<Mutex<Platter>>,
    share: Option<&Share>,
) -> Scheduler {
    let (clock, started) = (time.clone(), time.now());
    let clock = Box::new(move || clock.now() - started);
    let vocabulary = Arc::new(vocabulary());
    let mut scheduler = Scheduler::new(regime.engine.clone(), regime.cache(), vocabulary, clock).unwrap();
    scheduler.prefixes.tell(account::TOLD.map(|salt| [salt; 16]).to_vec());
    if let Some((blocks, salt)) = regime.draft {
        let runner = SimRunner::draft(blocks, DRAFT_ROWS_MAX, regime.step_time, salt, time.clone());
        let cache = CacheConfig { blocks, ..regime.cache() };
        scheduler.attach_draft(DraftSetup { runner: Box::new(runner), cache, vocab_len: VOCAB }).unwrap();
    }
    let disk = regime.disk.map(|disk| disk_setup(&disk, platter, started));
    if disk.is_some() || share.is_some() {
        let disk = disk.unwrap_or_else(DiskSetup::none);
        scheduler.attach(DiskSetup { remote: share.map(Share::setup), ..disk });
    }
    if regime.tenants {
        scheduler.set_tenants(&regime.parts());
    }
    scheduler
}

/// The disk of a process that started then.
fn disk_setup(disk: &DiskRegime, platter: &Arc<Mutex<Platter>>, started: Duration) -> DiskSetup {
    let found = platter.lock().unwrap().kill();
    let (tier, surplus) = Tier::with(disk.slots as u32, found);
    let (drive, waker) = (Box::new(Drive::new(platter)), Waker::default());
    let mut store: Box<dyn BlockStore> = match disk.host_blocks {
        0 => drive,
        blocks => Box::new(HostStore::above(drive, blocks, waker.clone())),
    };
    surplus.into_iter().for_each(|slot| store.erase(slot));
    DiskSetup {
        tier,
        store,
        related: Vec::new(),
        warm_blocks: disk.warm_blocks,
        writes_max: disk.writes_max,
        writes: DiskWrites { policy: disk.writes, day_bytes_max: None },
        epoch_s: EPOCH_S + started.as_secs(),
        wall: None,
        waker,
        remote: None,
    }
}

/// The root identity of a tenant's prompts on disk.
pub(crate) fn root(regime: &Regime, salt: u8) -> Identity {
    Identity::root(&regime.engine.namespaces().shared([salt; 16]))
}

impl World {
    /// Steps until all requests have ended and the disk is idle; checks that nothing is leaked.
    pub(crate) fn settle(&mut self) {
        let from = self.steps;
        while !self.is_settled() {
            let disk = self.scheduler.prefixes.disk_stats();
            assert!(
                self.steps - from < REST_STEPS_MAX,
                "the world never becomes idle: {disk:?} {}",
                self.platter.lock().unwrap().queues()
            );
            // Advances the clock if a request waits for the disk; otherwise stored blocks must not expire
            // while the disk works.
            if let (Pause::For(time), false) = (self.scheduler.next_pause(), self.scheduler.is_idle()) {
                self.time.advance(time / 8);
            }
            self.step();
        }
        let cache = self.scheduler.cache();
        cache.check().unwrap();
        let stats = cache.stats();
        assert_eq!((stats.owned, stats.sequences), (0, 0), "blocks are leaked: {stats:?}");
        assert!(!IN_DISORDER.load(Ordering::Relaxed), "a batch was not in order");
        if let Some(draft) = self.scheduler.prefixes.draft_cache() {
            draft.check().unwrap();
            let stats = draft.stats();
            assert_eq!((stats.owned, stats.sequences), (0, 0), "blocks of drafts are leaked: {stats:?}");
        }
        assert!(
            self.runner.follows_nothing(),
            "the prediction head holds something of a sequence that ended"
        );
        assert!(self.active.is_empty(), "a request was forgotten");
        self.check_disk();
        self.check_secrets();
        self.check_store();
    }

    /// No tenant's places exceed its quota, and all that is beside blocks is somebody's.
    pub(crate) fn check_tenants(&self) {
        let (tenants, stats) = (self.scheduler.cache().tenants(), self.scheduler.cache().stats());
        for tenant in tenants {
            let quota = tenant.share.quota_blocks.unwrap_or(usize::MAX);
            assert!(tenant.place_blocks <= quota, "places exceed a quota: {tenant:?}");
        }
        let places: usize = tenants.iter().map(|tenant| tenant.place_blocks).sum();
        assert!((stats.places_evictable..=stats.withheld).contains(&places), "{places} of {stats:?}");
        let blocks: usize = tenants.iter().map(|tenant| tenant.blocks).sum();
        assert_eq!(blocks, stats.shared, "blocks are nobody's");
    }

    /// Checks that no block of a private prompt is in the prefix tree or on disk.
    fn check_secrets(&self) {
        let mut scan = PrefixScan::new(PrefixOrder::Blocks, None, usize::MAX);
        while self.scheduler.cache().scan(&mut scan) {}
        for prefix in self.scheduler.cache().scanned(scan) {
            assert_ne!(prefix.first_tokens[0], SECRET, "a private prompt is in the tree: {prefix:?}");
        }
        let catalog = self.platter.lock().unwrap().catalog();
        let stored = (0..SALTS).any(|salt| catalog.begins_with(root(&self.regime, salt), SECRET));
        assert!(!stored, "a private prompt is on disk");
    }

    fn is_settled(&self) -> bool {
        let disk = self.scheduler.prefixes.disk_stats();
        let busy = disk.map_or(0, |disk| disk.loads + disk.prefetch_candidates + disk.writing);
        self.scheduler.is_idle() && busy == 0 && self.platter.lock().unwrap().is_idle() && self.has_shared()
    }

    /// Checks that nothing is on disk that the tier does not know, and that computed blocks are, if they fit, all are
    /// written and the disk is sound.
    fn check_disk(&self) {
        if let Some(stats) = self.scheduler.prefixes.disk_stats() {
            let headers = self.platter.lock().unwrap().headers();
            assert!(
                headers <= stats.tier.used,
                "{headers} blocks are on disk, of which {:?} are known",
                stats.tier
            );
        }
        if !self.regime.has_sound_disk() || !self.regime.writes_all() {
            return;
        }
        self.trace(|| "the world is idle".to_owned());
        let catalog = self.platter.lock().unwrap().catalog();
        let soon = self.time.now() + Duration::from_secs(3);
        let whole = |known: &&Known| known.lives(soon) && !known.took_long() && !known.is_torn;
        for known in self.memory.known.iter().filter(whole) {
            let stored = catalog.stored(root(&self.regime, known.view.salt), &known.tokens);
            let whole = known.disk.max(known.ram - known.ram % BLOCK_POSITIONS);
            assert!(stored >= whole || known.is_base, "{stored} of {whole} tokens are on disk: {known:?}");
        }
    }

    /// The process shuts down or is killed, and another one starts.
    pub(crate) fn restart(&mut self) {
        self.trace(|| "the process ends".to_owned());
        self.coverage.restarts += 1;
        self.coverage.node_restarts += u64::from(self.share.is_some());
        self.note_counters();
        if self.dice.once_in(2) {
            self.scheduler.spill_for_next_start();
            self.scheduler.fail_all(&RequestError::Stopping);
            self.collect();
            for _ in 0..self.dice.roll(20) {
                self.scheduler.attend(&mut self.runner);
                self.step_disk();
            }
        }
        let quiet = self.platter.lock().unwrap().is_idle();
        self.is_cut_off |= !quiet;
        for active in std::mem::take(&mut self.active) {
            self.leave(&active, None);
        }
        self.started = self.time.now();
        self.runner = self.regime.runner(&self.time);
        self.scheduler = scheduler(&self.regime, &self.time, &self.platter, self.share.as_ref());
        self.is_restarted = true;
        self.private.clear();
        self.doubt_parts();
        self.forget_ram(quiet);
        self.restore_kept();
    }

    /// Reduces the known sequences to those on disk; certainly so if no write was queued.
    fn forget_ram(&mut self, quiet: bool) {
        let catalog = self.platter.lock().unwrap().catalog();
        let sure = quiet && self.regime.has_sound_disk();
        for known in self.memory.known.iter_mut().filter(|known| !known.is_base) {
            let stored = catalog.stored(root(&self.regime, known.view.salt), &known.tokens);
            let mut certain = stored.min(known.ram.max(known.disk));
            if self.regime.ttl {
                // A last partial block is dropped if it had to wait for the disk, and what is stored of it may be
                // of another request, with its own time to live: so may a block that only begins alike.
                certain -= certain % BLOCK_POSITIONS;
            }
            known.ram = 0;
            // Blocks after a missing one may be found again once it is written again; so may blocks that are
            // damaged now.
            if self.regime.disk.is_none_or(|disk| disk.is_sound()) {
                known.maybe =
                    known.maybe.min(catalog.reach(root(&self.regime, known.view.salt), &known.tokens));
            }
            known.disk = if sure && !known.took_long() && !known.is_torn { certain } else { 0 };
        }
    }

    /// Does what a server does at its start: sets the public prompts, and computes the kept ones.
    fn restore_kept(&mut self) {
        self.kept.iter_mut().for_each(|kept| kept.ready = false);
        for known in self.memory.known.iter_mut().filter(|known| known.is_base) {
            known.ram = 0;
        }
        self.set_public();
        for index in 0..self.kept.len() {
            self.compute_kept(index);
        }
    }

    /// Keeps a new prompt.
    pub(crate) fn keep(&mut self) {
        self.trace(|| "a prompt is to be kept".to_owned());
        if self.kept.len() >= KEPT_MAX {
            return;
        }
        let salt = if self.regime.tenants { 1 + self.dice.roll(u64::from(SALTS) - 1) as u8 } else { 0 };
        let len = self.dice.pick(&[16, 20, 32, 50]);
        let tokens = crate::fake::prompt(self.dice.roll(3), len);
        if self.kept.iter().any(|kept| common(&kept.tokens, &tokens) >= BLOCK_POSITIONS) {
            return;
        }
        self.next_kept += 1;
        self.kept.push(Kept { id: self.next_kept, salt, tokens, public: false, ready: false });
        self.coverage.pins += 1;
        self.compute_kept(self.kept.len() - 1);
    }

    fn compute_kept(&mut self, index: usize) {
        let kept = &self.kept[index];
        let (request, id) = (kept.prompt().request(), kept.id);
        self.submit(request, Some(id));
    }

    /// Releases a kept prompt.
    pub(crate) fn release(&mut self) {
        if self.kept.is_empty() {
            return;
        }
        let index = self.dice.roll(self.kept.len() as u64) as usize;
        let kept = self.kept.swap_remove(index);
        if kept.public {
            self.set_public();
            self.forget_derived(kept.salt, kept.whole());
        }
        self.unpin(&kept);
    }

    pub(crate) fn unpin(&mut self, kept: &Kept) {
        self.is_dropped = true;
        self.doubt_parts();
        self.trace(|| format!("{:?} of {} is no longer kept", kept.tokens, kept.salt));
        self.scheduler.release(&kept.tokens, [kept.salt; 16]);
        let own = View { salt: kept.salt, base: None };
        for known in self.memory.known.iter_mut().filter(|known| known.view == own) {
            if common(&known.tokens, &kept.tokens) > 0 {
                known.drop_explicitly();
                known.pinned &= !kept.tokens.starts_with(&known.tokens);
            }
        }
    }

    /// Drops all blocks that are neither in use nor pinned.
    pub(crate) fn clear(&mut self) {
        self.trace(|| "the cache is cleared".to_owned());
        self.is_dropped = true;
        self.doubt_parts();
        self.scheduler.prefixes.clear(None);
        self.ban_all();
        self.memory.known.iter_mut().filter(|known| !known.is_base).for_each(Known::drop_explicitly);
    }

    /// Makes a kept prompt public, or private again.
    pub(crate) fn publish(&mut self) {
        let ready: Vec<usize> = (0..self.kept.len()).filter(|&index| self.kept[index].ready).collect();
        if ready.is_empty() {
            return;
        }
        let index = self.dice.pick(&ready);
        self.kept[index].public ^= true;
        self.trace(|| format!("{:?} is public: {}", self.kept[index].tokens, self.kept[index].public));
        self.set_public();
        let kept = &self.kept[index];
        let (salt, whole) = (kept.salt, kept.whole().to_vec());
        if !kept.public {
            return self.forget_derived(salt, &whole);
        }
        for other in (0..SALTS).filter(|&other| other != salt) {
            self.memory.known.push(Known::base(other, salt, &whole, self.time.now(), self.steps));
        }
    }

    /// A prompt is no longer public: blocks of its continuations may stay, but need not be found.
    fn forget_derived(&mut self, salt: u8, whole: &[Token]) {
        let derived = |view: &View| view.base.as_ref().is_some_and(|base| base.0 == salt && base.1 == whole);
        for known in self.memory.known.iter_mut().filter(|known| derived(&known.view)) {
            known.drop_explicitly();
            known.pinned = false;
        }
    }

    fn set_public(&mut self) {
        let public: Vec<PinnedPrompt> =
            self.kept.iter().filter(|kept| kept.public).map(Kept::prompt).collect();
        self.scheduler.set_public(&public);
    }

    pub(crate) fn note_counters(&mut self) {
        let counters = self.scheduler.counters();
        self.coverage.preemptions += counters.preemptions;
        self.coverage.drafted += counters.drafted_tokens.iter().sum::<u64>();
        self.coverage.accepted += counters.accepted_tokens.iter().sum::<u64>();
        self.coverage.from_model += counters.accepted_tokens[DraftSource::Model as usize];
        self.coverage.from_head += counters.accepted_tokens[DraftSource::Head as usize];
        self.coverage.from_grammar += counters.accepted_tokens[DraftSource::Grammar as usize];
        self.coverage.from_tree += counters.accepted_tokens[DraftSource::Tree as usize];
        self.coverage.evicted += self.scheduler.cache().stats().totals.evicted;
        self.note_line();
    }
}

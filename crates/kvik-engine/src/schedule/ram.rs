//! The tier in RAM: the cache, and the ids of the sequences in it.

use kvik_cache::{
    AuxiliaryState, BLOCK_POSITIONS, BlockId, Cache, CacheConfig, CacheError, CopyState, Forked, NamespaceId,
    PinScope, SeqId, TenantId, Token,
};
use kvik_model::batch::Runner;

use crate::api::RequestError;
use crate::panics::contain;

/// The cache of one scheduler.
pub(super) struct Ram {
    pub(super) cache: Cache,
    pub(super) config: CacheConfig,
    /// Auxiliary state that sequences hold in addition to blocks.
    pub(super) auxiliary: AuxiliaryState,
    /// True if it indexes tokens for drafts.
    drafts: bool,
    /// Whether cache events are recorded.
    is_told: bool,
    /// Whether the cache is new and this was not reported yet.
    is_renewed: bool,
    next_seq: u64,
}

fn cache(config: CacheConfig, auxiliary: AuxiliaryState, drafts: bool) -> Result<Cache, CacheError> {
    let mut cache = Cache::new(config)?;
    cache.hold_auxiliary(auxiliary);
    if drafts {
        cache.index_followers();
    }
    Ok(cache)
}

impl Ram {
    /// An empty cache; `drafts` says whether it indexes tokens for drafts.
    pub(super) fn new(
        config: CacheConfig,
        auxiliary: AuxiliaryState,
        drafts: bool,
    ) -> Result<Ram, CacheError> {
        let cache = cache(config, auxiliary, drafts)?;
        Ok(Ram { cache, config, auxiliary, drafts, is_told: false, is_renewed: false, next_seq: 0 })
    }

    /// Starts with an empty cache. The old one may be inconsistent.
    pub(super) fn renew(&mut self) {
        let cache = cache(self.config, self.auxiliary, self.drafts).expect("the same settings worked before");
        let old = std::mem::replace(&mut self.cache, cache);
        let _ = contain(|| drop(old));
        if self.is_told {
            self.keep_journal();
        }
    }

    /// Starts to record cache events; the cache must be empty.
    pub(super) fn keep_journal(&mut self) {
        (self.is_told, self.is_renewed) = (true, true);
        self.cache.keep_journal();
    }

    /// Returns whether a new cache was not reported yet, and marks it as reported.
    pub(super) fn take_renewed(&mut self) -> bool {
        std::mem::take(&mut self.is_renewed)
    }

    /// An id that no sequence had before.
    pub(super) fn new_seq(&mut self) -> SeqId {
        self.next_seq += 1;
        SeqId(self.next_seq)
    }

    /// Whether `blocks` can be allocated, and one more for each of `running` sequences.
    pub(super) fn has_room(&self, blocks: usize, running: usize) -> bool {
        blocks + running <= self.room()
    }

    /// Number of blocks that can be allocated, by eviction if needed.
    pub(super) fn room(&self) -> usize {
        let stats = self.cache.stats();
        stats.free + stats.evictable + stats.places_evictable
    }

    /// Whether sequences hold auxiliary state in addition to blocks.
    pub(super) fn holds_auxiliary(&self) -> bool {
        !self.auxiliary.is_nothing()
    }

    /// Blocks that a sequence with this number of positions needs, including its auxiliary state.
    pub(super) fn needed(&self, positions: usize) -> usize {
        self.auxiliary.needed(positions)
    }

    /// Executes the cache's decisions since the last call, and the copies with which a sequence begins: the copies
    /// before their sources are released.
    pub(super) fn carry_out(&mut self, begin: Forked, runner: &mut dyn Runner) {
        let changes = self.cache.take_changes();
        changes.fresh.into_iter().for_each(|state| runner.set_state(state, None));
        changes.copies.into_iter().for_each(|part| runner.copy_windowed(part.from, part.to));
        if let Some(copy) = begin.copy {
            runner.copy_partial(copy.from, copy.to, copy.positions);
        }
        if let Some(state) = begin.state {
            runner.set_state(state.to, state.from);
        }
        changes.parts.into_iter().for_each(|block| runner.release_block(block, false));
        changes.blocks.into_iter().for_each(|block| runner.release_block(block, true));
        changes.states.into_iter().for_each(|state| runner.release_state(state));
    }

    /// Executes the cache's decisions since the last call.
    pub(super) fn settle(&mut self, runner: &mut dyn Runner) {
        self.carry_out(Forked::default(), runner);
    }

    /// The error for a sequence of `tokens` tokens of an owner that does not fit although no other sequence runs.
    pub(super) fn over_budget(&self, tokens: usize, owner: TenantId) -> RequestError {
        let (needed_blocks, budget_blocks) = (self.needed(tokens), self.config.blocks);
        let are_others = self.cache.tenants().iter().any(|it| it.pinned > 0 && it.share.tenant != owner);
        let scope = if are_others { PinScope::All } else { PinScope::Tenant };
        match self.cache.stats().pinned {
            0 => RequestError::OverBudget { needed_blocks, budget_blocks },
            pinned_blocks => RequestError::Pinned { needed_blocks, pinned_blocks, budget_blocks, scope },
        }
    }

    /// Forks `parent` after `tokens`: shares its whole blocks, which are in the tree from now on, and copies the last
    /// one. Returns whether there was room.
    pub(super) fn fork(
        &mut self,
        parent: SeqId,
        id: SeqId,
        tokens: &[Token],
        runner: &mut dyn Runner,
    ) -> bool {
        let Ok(begin) = self.cache.fork(parent, id, tokens) else { return false };
        self.carry_out(begin, runner);
        true
    }

    /// Copies all blocks of `parent` for a new sequence: to be shared they would have to be in the tree, where others
    /// find them. Returns whether there was room, given `running` sequences.
    pub(super) fn copy(&mut self, copy: PrivateCopy, running: usize, runner: &mut dyn Runner) -> bool {
        let PrivateCopy { parent, id, namespace, positions } = copy;
        if !self.has_room(self.needed(positions), running) {
            return false;
        }
        self.cache.lease(id, namespace, &[]);
        if self.cache.reserve(id, positions).is_err() {
            self.cache.abandon(id);
            return false;
        }
        let state = self.cache.state(id).map(|to| CopyState { from: self.cache.state(parent), to });
        self.carry_out(Forked { copy: None, state }, runner);
        let copies: Vec<(BlockId, BlockId)> =
            self.cache.table(parent).iter().copied().zip(self.cache.table(id).iter().copied()).collect();
        for ((from, to), start) in copies.into_iter().zip((0..positions).step_by(BLOCK_POSITIONS)) {
            runner.copy_partial(from, to, (positions - start).min(BLOCK_POSITIONS));
        }
        true
    }
}

/// A copy of the first positions of a private sequence.
pub(super) struct PrivateCopy {
    pub(super) parent: SeqId,
    /// The id of the copy.
    pub(super) id: SeqId,
    pub(super) namespace: NamespaceId,
    pub(super) positions: usize,
}

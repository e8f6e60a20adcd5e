//! The tier in RAM: the cache, and the names of those who hold blocks in it.

use kvik_cache::{
    BLOCK_POSITIONS, BlockId, Cache, CacheConfig, CacheError, NamespaceId, SeqId, Token, blocks_for,
};

use crate::api::RequestError;
use crate::model::batch::Runner;
use crate::panics::contain;

/// The cache of one scheduler.
pub(super) struct Ram {
    pub(super) cache: Cache,
    pub(super) config: CacheConfig,
    /// Whether drafts are made from it.
    drafts: bool,
    next_seq: u64,
}

fn cache(config: CacheConfig, drafts: bool) -> Result<Cache, CacheError> {
    let mut cache = Cache::new(config)?;
    if drafts {
        cache.index_followers();
    }
    Ok(cache)
}

impl Ram {
    /// An empty cache, from which drafts can be made if `drafts` says so.
    pub(super) fn new(config: CacheConfig, drafts: bool) -> Result<Ram, CacheError> {
        Ok(Ram { cache: cache(config, drafts)?, config, drafts, next_seq: 0 })
    }

    /// Begins with an empty cache. The old one may be in disorder.
    pub(super) fn renew(&mut self) {
        let cache = cache(self.config, self.drafts).expect("the same settings worked before");
        let old = std::mem::replace(&mut self.cache, cache);
        let _ = contain(|| drop(old));
    }

    /// A name that no sequence had before.
    pub(super) fn new_seq(&mut self) -> SeqId {
        self.next_seq += 1;
        SeqId(self.next_seq)
    }

    /// Whether `blocks` can be had and one more for each of `running` sequences.
    pub(super) fn has_room(&self, blocks: usize, running: usize) -> bool {
        blocks + running <= self.room()
    }

    /// Blocks that can be had.
    pub(super) fn room(&self) -> usize {
        let stats = self.cache.stats();
        stats.free + stats.evictable
    }

    /// Why so many tokens do not fit though nobody else runs.
    pub(super) fn over_budget(&self, tokens: usize) -> RequestError {
        let (needed_blocks, budget_blocks) = (blocks_for(tokens), self.config.blocks);
        match self.cache.stats().pinned {
            0 => RequestError::OverBudget { needed_blocks, budget_blocks },
            pinned_blocks => RequestError::Pinned { needed_blocks, pinned_blocks, budget_blocks },
        }
    }

    /// Forks `parent` after `tokens`: shares its whole blocks, which are in the tree from now on, and copies
    /// the last one. Whether there was room.
    pub(super) fn fork(
        &mut self,
        parent: SeqId,
        id: SeqId,
        tokens: &[Token],
        runner: &mut dyn Runner,
    ) -> bool {
        let Ok(copy) = self.cache.fork(parent, id, tokens) else { return false };
        if let Some(copy) = copy {
            runner.copy_partial(copy.from, copy.to, copy.positions);
        }
        true
    }

    /// Copies all blocks of `parent` for a new sequence: to be shared they would have to be in the tree, where
    /// others look. Whether there was room with `running` sequences there.
    pub(super) fn copy(&mut self, copy: PrivateCopy, running: usize, runner: &mut dyn Runner) -> bool {
        let PrivateCopy { parent, id, namespace, positions } = copy;
        if !self.has_room(blocks_for(positions), running) {
            return false;
        }
        self.cache.lease(id, namespace, &[]);
        if self.cache.reserve(id, positions).is_err() {
            self.cache.abandon(id);
            return false;
        }
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
    /// Of the copy.
    pub(super) id: SeqId,
    pub(super) namespace: NamespaceId,
    pub(super) positions: usize,
}

//! The cache's face: queries that change nothing and the commands of a sequence's life.
//!
//! ```text
//! lookup ── admit ──┬─ reserve ─┬─ publish ─┬── finish     its blocks stay, evictable
//!                   └───────────┴── fork ───┴── abandon    its unpublished blocks are freed
//! ```
//!
//! Owns the pool, the tree, the running sequences and the counts, and brings them together: it is
//! the only place where blocks are evicted. Every command that needs blocks first asks whether all
//! of them can be had, changes nothing if not, and cannot fail afterwards.

use rustc_hash::FxHashMap;

use crate::admission::{Admission, Admitted, CopyHead, Match, NoSpace};
use crate::evict::{Ghosts, Policy};
use crate::explain::StopReason;
use crate::hash::{Fingerprint, Identity, Namespace};
use crate::ids::{BLOCK_POSITIONS, BlockId, NamespaceId, NodeId, SeqId, Token, blocks_for};
use crate::pool::Pool;
use crate::radix::{Head, Radix, Walk};
use crate::stats::{CacheStats, Totals};
use crate::table::Table;

/// What a cache is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheConfig {
    /// Physical blocks: the byte budget over the bytes of a block.
    pub blocks: usize,
    /// Which prefix goes when space is short.
    pub policy: Policy,
    /// Evicted blocks remembered, so that a miss can be explained; 0 remembers none.
    pub ghosts: usize,
}

/// The cache cannot be made as asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// Not even one block.
    #[error("the KV budget holds no block; raise it to at least the size of one block")]
    NoBlocks,
    /// More blocks than ids.
    #[error("the KV budget holds {0} blocks and at most {max} can be numbered; lower it", max = u32::MAX)]
    TooManyBlocks(usize),
}

/// The KV cache of one model and one pool of blocks.
#[derive(Debug)]
pub struct Cache {
    pub(crate) pool: Pool,
    pub(crate) radix: Radix,
    pub(crate) sequences: FxHashMap<SeqId, Table>,
    /// Root node of each namespace.
    pub(crate) roots: Vec<NodeId>,
    namespaces: FxHashMap<Identity, NamespaceId>,
    ghosts: Ghosts,
    totals: Totals,
}

impl Cache {
    /// An empty cache.
    pub fn new(config: CacheConfig) -> Result<Cache, CacheError> {
        let blocks = u32::try_from(config.blocks).map_err(|_| CacheError::TooManyBlocks(config.blocks))?;
        if blocks == 0 {
            return Err(CacheError::NoBlocks);
        }
        Ok(Cache {
            pool: Pool::new(blocks),
            radix: Radix::new(blocks, config.policy),
            sequences: FxHashMap::default(),
            roots: Vec::new(),
            namespaces: FxHashMap::default(),
            ghosts: Ghosts::new(config.ghosts),
            totals: Totals::default(),
        })
    }

    /// The id of a namespace, the same for equal ones.
    pub fn namespace(&mut self, namespace: &Namespace) -> NamespaceId {
        let identity = Identity::root(namespace);
        *self.namespaces.entry(identity).or_insert_with(|| {
            self.roots.push(self.radix.add_root(Fingerprint::root(&identity)));
            NamespaceId(u32::try_from(self.roots.len() - 1).expect("fewer namespaces than nodes"))
        })
    }

    /// How much of `prompt` is known, and why not more. Changes nothing, not even recency.
    pub fn lookup(&self, namespace: NamespaceId, prompt: &[Token]) -> Match {
        let walk = self.radix.walk(self.roots[namespace.index()], prompt);
        Match { tokens: walk.tokens, stop: self.stop_reason(&walk, prompt) }
    }

    /// Starts a sequence: leases the longest known prefix of its prompt and gives it the blocks
    /// for the rest, or changes nothing.
    pub fn admit(&mut self, admission: Admission<'_>) -> Result<Admitted, NoSpace> {
        let Admission { seq, namespace, prompt, reuse_max, positions } = admission;
        assert!(!self.sequences.contains_key(&seq), "{seq:?} is running already");
        let root = self.roots[namespace.index()];
        let known = self.radix.walk(root, prompt);
        let stop = self.stop_reason(&known, prompt);
        let usable = if known.tokens < reuse_max {
            known
        } else {
            self.radix.walk(root, &prompt[..reuse_max.min(prompt.len())])
        };
        let walk = self.affordable(usable, positions).inspect_err(|_| self.totals.refused += 1)?;
        let copy = self.start(seq, &walk, positions);
        self.totals.admitted += 1;
        self.totals.hits += u64::from(walk.tokens > 0);
        self.totals.prompt_tokens += prompt.len() as u64;
        self.totals.reused_tokens += walk.tokens as u64;
        Ok(Admitted { reused: walk.tokens, copy, stop })
    }

    /// Grows a sequence's table to hold `positions`, or changes nothing.
    pub fn reserve(&mut self, seq: SeqId, positions: usize) -> Result<(), NoSpace> {
        let missing = self.running(seq).missing(positions);
        self.make_room(missing)?;
        let table = self.sequences.get_mut(&seq).expect("it was found a moment ago");
        table.extend(missing, &mut self.pool);
        Ok(())
    }

    /// Makes the full blocks of a running sequence known to others.
    ///
    /// `tokens` are all those, from position 0, whose keys and values are complete. A block that
    /// another sequence has published already is swapped for that one in the table.
    pub fn publish(&mut self, seq: SeqId, tokens: &[Token]) {
        let whole = tokens.len() - tokens.len() % BLOCK_POSITIONS;
        self.publish_exactly(seq, &tokens[..whole]);
    }

    /// Starts `child` as a copy of `parent` after `tokens`, or starts nothing.
    ///
    /// `tokens` are all those of `parent`, from position 0, whose keys and values are complete.
    /// Full blocks are published and shared; a last partial one is copied.
    pub fn fork(
        &mut self,
        parent: SeqId,
        child: SeqId,
        tokens: &[Token],
    ) -> Result<Option<CopyHead>, NoSpace> {
        assert!(!self.sequences.contains_key(&child), "{child:?} is running already");
        self.publish(parent, tokens);
        let positions = tokens.len() % BLOCK_POSITIONS;
        self.make_room(blocks_for(positions))?;
        let parent = self.running(parent);
        let whole = tokens.len() / BLOCK_POSITIONS;
        assert_eq!(parent.shared().len(), whole, "a fork takes all that is published");
        let (lease, shared) = (parent.lease(), parent.shared().to_vec());
        let tail = parent.owned().first().copied();
        let mut table = Table::new(shared, lease, &mut self.radix);
        table.extend(blocks_for(positions), &mut self.pool);
        let copy = tail.zip(table.owned().first()).map(|(from, &to)| CopyHead { from, to, positions });
        self.totals.copies += u64::from(copy.is_some());
        self.sequences.insert(child, table);
        Ok(copy)
    }

    /// Ends a sequence and keeps what it computed, to the exact token.
    ///
    /// `tokens` are all those, from position 0, whose keys and values are complete.
    pub fn finish(&mut self, seq: SeqId, tokens: &[Token]) {
        self.publish_exactly(seq, tokens);
        self.abandon(seq);
    }

    /// Ends a sequence; what it has not published is lost.
    pub fn abandon(&mut self, seq: SeqId) {
        let table = self.sequences.remove(&seq).expect("only running sequences end");
        table.release(&mut self.radix, &mut self.pool);
    }

    /// Evicts until the tree holds at most `blocks`, or only what running sequences use.
    pub fn shrink(&mut self, blocks: usize) {
        let excess = self.pool.shared().saturating_sub(blocks).min(self.radix.evictable());
        self.evict(excess);
    }

    /// The blocks of a running sequence: entry `i` holds positions `16 i .. 16 i + 16`.
    pub fn table(&self, seq: SeqId) -> &[BlockId] {
        self.running(seq).blocks()
    }

    /// Numbers for metrics.
    pub fn stats(&self) -> CacheStats {
        CacheStats {
            blocks: self.pool.len(),
            free: self.pool.free(),
            owned: self.pool.owned(),
            shared: self.pool.shared(),
            evictable: self.radix.evictable(),
            nodes: self.radix.nodes(),
            tokens: self.radix.tokens(),
            sequences: self.sequences.len(),
            totals: self.totals,
        }
    }

    fn running(&self, seq: SeqId) -> &Table {
        self.sequences.get(&seq).expect("the sequence is running")
    }

    fn publish_exactly(&mut self, seq: SeqId, tokens: &[Token]) {
        let table = self.sequences.get_mut(&seq).expect("only running sequences publish");
        let published = table.publish(tokens, &mut self.radix, &mut self.pool);
        self.totals.published += published.blocks as u64;
        self.totals.duplicates += published.duplicates as u64;
    }

    fn stop_reason(&self, walk: &Walk, prompt: &[Token]) -> StopReason {
        let rest = &prompt[walk.whole_blocks() * BLOCK_POSITIONS..];
        let next = &rest[..rest.len().min(BLOCK_POSITIONS)];
        let before = self.radix.fingerprint_at(walk);
        if walk.tokens == prompt.len() {
            StopReason::Complete
        } else if self.ghosts.lost(before, next, walk.tokens % BLOCK_POSITIONS) {
            StopReason::Evicted
        } else if walk.tokens > 0 && self.radix.goes_on(walk) {
            StopReason::Diverged
        } else {
            StopReason::FirstSeen
        }
    }

    /// As much of `walk` as can be reused by a sequence that needs `positions`.
    ///
    /// Blocks that the lease locks can no longer be evicted; neither can the block whose head is
    /// copied, until it is copied. When that one block is what is lacking, the copy is given up.
    fn affordable(&self, walk: Walk, positions: usize) -> Result<Walk, NoSpace> {
        let needed = blocks_for(positions.max(walk.tokens)) - walk.whole_blocks();
        let available = self.available() - self.radix.unlocked_blocks(&walk);
        let Some(head) = walk.head else {
            return fits(needed, available).map(|()| walk);
        };
        let held = usize::from(self.radix.arena[head.node].locks == 0);
        if fits(needed + held, available).is_ok() {
            return Ok(walk);
        }
        let tokens = walk.tokens - head.positions;
        let needed = blocks_for(positions.max(tokens)) - walk.whole_blocks();
        fits(needed, available).map(|()| Walk { head: None, tokens, ..walk })
    }

    /// Leases the blocks of `walk` and allocates the rest, which is known to fit.
    fn start(&mut self, seq: SeqId, walk: &Walk, positions: usize) -> Option<CopyHead> {
        let shared = self.radix.blocks_of(walk);
        let lease = self.radix.cut(walk.node, walk.blocks);
        let mut table = Table::new(shared, lease, &mut self.radix);
        let source = walk.head.map(|head| self.hold(head));
        let missing = table.missing(positions.max(walk.tokens));
        self.make_room(missing).expect("it was found affordable");
        table.extend(missing, &mut self.pool);
        let copy = source.zip(walk.head).map(|(node, head)| {
            self.radix.unlock(node);
            self.totals.copies += 1;
            CopyHead {
                from: self.radix.arena[node].blocks[0],
                to: table.owned()[0],
                positions: head.positions,
            }
        });
        self.sequences.insert(seq, table);
        copy
    }

    /// Locks the block whose head is to be copied, so that making room cannot take it.
    ///
    /// It follows the lease, so it starts a node. The copy counts as a use of this block alone:
    /// one that nobody uses gets a node of its own, which is then the most recently used.
    fn hold(&mut self, head: Head) -> NodeId {
        let node = match self.radix.arena[head.node].locks {
            0 => self.radix.cut(head.node, 1),
            _ => head.node,
        };
        self.radix.lock(node);
        node
    }

    /// Blocks that are free or can be made so.
    fn available(&self) -> usize {
        self.pool.free() + self.radix.evictable()
    }

    /// Evicts until `needed` blocks are free, or changes nothing.
    fn make_room(&mut self, needed: usize) -> Result<(), NoSpace> {
        fits(needed, self.available()).inspect_err(|_| self.totals.refused += 1)?;
        self.evict(needed.saturating_sub(self.pool.free()));
        Ok(())
    }

    /// Evicts `count` blocks, one by one; so many are evictable.
    fn evict(&mut self, count: usize) {
        for _ in 0..count {
            let block = self.radix.evict();
            self.ghosts.remember(self.radix.labels.fingerprint(block));
            self.pool.release(block);
        }
        self.totals.evicted += count as u64;
    }
}

fn fits(needed: usize, available: usize) -> Result<(), NoSpace> {
    if needed <= available { Ok(()) } else { Err(NoSpace { needed, available }) }
}

//! The cache's data, its queries, and the commands of a sequence's life.
//!
//! ```text
//! lookup ── admit ──┬─ reserve ─┬─ publish ─┬── finish     its blocks remain, evictable
//!                   └───────────┴── fork ───┴── abandon    its unpublished blocks are freed
//! ```
//!
//! Owns the pool, the tree, the running sequences and the counters, and coordinates them. Every command that needs
//! blocks first checks that all of them are free or evictable, changes nothing if not, and cannot fail afterwards.
//! The other commands are in the sibling files; this one imports none of them.

use std::collections::BTreeMap;
use std::time::Duration;

use rustc_hash::FxHashMap;

use super::marks::{Known, marks};
use crate::admission::{Admission, Admitted, CopyPartial, CopyState, Forked, Match, NoSpace};
use crate::evict::{Cause, Policy};
use crate::explain::{Eviction, StopReason};
use crate::hash::{Fingerprint, Identity};
use crate::ids::{
    BLOCK_POSITIONS, BlockId, NamespaceId, NodeId, SeqId, StateId, TenantId, Token, blocks_for, whole_blocks,
};
use crate::lifetime::Lifetime;
use crate::pins::Pins;
use crate::pool::Pool;
use crate::stats::{CacheStats, Totals};
use crate::table::Table;
use crate::tree::{PartialMatch, PlaceId, Radix, Walk};

/// The configuration of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheConfig {
    /// Physical blocks: the byte budget divided by the bytes of a block.
    pub blocks: usize,
    /// The eviction policy.
    pub policy: Policy,
    /// Evicted blocks remembered, so that a miss can be explained; 0 remembers none.
    pub ghosts: usize,
    /// Maximum number of pinned blocks of all tenants together, since pinned blocks are unavailable to others.
    pub pinned_max: usize,
}

/// Error: the configuration is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// The budget is less than one block.
    #[error("the KV budget holds no block; raise it to at least the size of one block")]
    NoBlocks,
    /// The budget has more blocks than there are ids.
    #[error("the KV budget holds {0} blocks and at most {max} can be numbered; lower it", max = u32::MAX)]
    TooManyBlocks(usize),
    /// The weight is not a positive finite number.
    #[error("the weight of tenant {} is not a number above 0; give one, 1 is usual", .0.0)]
    BadWeight(TenantId),
}

/// The KV cache of one model and one pool of blocks.
#[derive(Debug)]
pub struct Cache {
    pub(super) pool: Pool,
    pub(super) radix: Radix,
    pub(super) sequences: FxHashMap<SeqId, Table>,
    /// Root node of each namespace.
    pub(super) roots: BTreeMap<NamespaceId, NodeId>,
    /// The id that was assigned last.
    pub(super) last_namespace: Option<NamespaceId>,
    pub(super) pins: Pins,
    pub(super) pinned_max: usize,
    pub(super) namespaces: FxHashMap<Identity, NamespaceId>,
    /// Derived namespaces, by their base and the identity of the base's last block under the derived salt.
    pub(super) derived: FxHashMap<(NamespaceId, Identity), NamespaceId>,
    pub(super) totals: Totals,
    /// States saved into places since [`take_kept_states`](Cache::take_kept_states) was last called.
    pub(super) kept_states: Vec<(SeqId, usize, StateId)>,
    /// Decisions in order, for the tests.
    #[cfg(test)]
    pub(super) told: Vec<Told>,
}

/// A decision that the naive twin cannot predict.
#[cfg(test)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Told {
    /// A block was evicted: all tokens up to its end.
    Evicted(NamespaceId, Vec<Token>, Cause),
    /// A place was evicted: all tokens up to the end of its block, and its positions within it.
    PlaceEvicted(NamespaceId, Vec<Token>, u8),
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
            radix: Radix::new(blocks, config.policy, config.ghosts),
            sequences: FxHashMap::default(),
            roots: BTreeMap::new(),
            last_namespace: None,
            pins: Pins::default(),
            pinned_max: config.pinned_max,
            namespaces: FxHashMap::default(),
            derived: FxHashMap::default(),
            totals: Totals::default(),
            kept_states: Vec::new(),
            #[cfg(test)]
            told: Vec::new(),
        })
    }

    /// Sets the caller's clock; an earlier time is ignored. Drops every prefix whose time to live has ended, and ends
    /// raised priorities.
    pub fn set_now(&mut self, now: Duration) {
        self.radix.ghosts.follow_clock(self.radix.now, now);
        self.radix.now = self.radix.now.max(now);
        self.radix.lower_ended();
        self.drop_expired();
    }

    /// The caller's clock, as it was [set](Cache::set_now) last.
    pub fn now(&self) -> Duration {
        self.radix.now
    }

    /// When the next time to live ends of a prefix that nobody uses, on the caller's clock.
    pub fn next_expiry(&self) -> Option<Duration> {
        self.radix.evictor.next_expiry()
    }

    /// Returns how much of `prompt` is cached, and why not more. Changes nothing, not even recency.
    pub fn lookup(&self, namespace: NamespaceId, prompt: &[Token]) -> Match {
        self.lookup_up_to(namespace, prompt, prompt.len())
    }

    /// As [`lookup`](Cache::lookup), for a sequence that may reuse at most `reuse_max` tokens, as in its
    /// [admission](Cache::admit): where layers hold auxiliary state, it may have to resume well before them.
    pub fn lookup_up_to(&self, namespace: NamespaceId, prompt: &[Token], reuse_max: usize) -> Match {
        let root = self.roots[&namespace];
        let (_, _, found) = self.reusable(root, prompt, reuse_max);
        match found.tokens == 0 && !prompt.is_empty() && self.radix.arena[root].depth > 0 {
            true => Match { tokens: 0, stop: StopReason::FirstSeen, evicted: None },
            false => found,
        }
    }

    /// The longest time to live that users of a running sequence's block number `index` ask for: `asked`, and if it is
    /// published what those that have ended asked for. `None` is for ever.
    pub fn longest_ttl(&self, seq: SeqId, index: usize, asked: Option<Duration>) -> Option<Duration> {
        let table = self.running(seq);
        if index >= table.shared().len() {
            return asked;
        }
        let own_path = self.radix.own_path(table.lease());
        let Some(node) = self.node_on(own_path, index) else { return asked };
        let ended = self.radix.arena[node].life.keep.ttl;
        ended.zip(asked).map(|(ended, asked)| ended.max(asked))
    }

    /// Starts a sequence: leases the longest cached prefix of its prompt and allocates the blocks for the rest, or
    /// changes nothing. In a derived namespace the base is always reused.
    pub fn admit(&mut self, admission: Admission<'_>) -> Result<Admitted, NoSpace> {
        let Admission { seq, namespace, prompt, reuse_max, positions, lifetime } = admission;
        assert!(!self.sequences.contains_key(&seq), "{seq:?} is running already");
        assert!(self.continues(namespace, prompt), "a prompt in a derived namespace begins with its base");
        let (matched, usable, found) = self.reusable(self.roots[&namespace], prompt, reuse_max);
        let walk = self.affordable(usable, positions).inspect_err(|_| self.totals.refused += 1)?;
        let Forked { copy, state } = self.start(&admission, &walk);
        let known = Known { reused: walk.tokens, matched: matched.tokens, prompt: prompt.len() };
        self.running_mut(seq).marks = marks(self.radix.places.needs(), known, lifetime);
        self.count_admission(namespace, prompt.len(), walk.tokens);
        self.keep_quota(namespace, 0);
        Ok(Admitted { reused: walk.tokens, copy, state, stop: found.stop, evicted: found.evicted })
    }

    /// Leases the cached whole blocks of `tokens` for a sequence that computes nothing, until it is
    /// [abandoned](Cache::abandon). Returns how many tokens that is. It is not counted as a request, and changes nothing of
    /// their retention, not even their last use, until it publishes or its lifetime is [set](Cache::set_lifetime).
    pub fn lease(&mut self, seq: SeqId, namespace: NamespaceId, tokens: &[Token]) -> usize {
        assert!(!self.sequences.contains_key(&seq), "{seq:?} is running already");
        let whole = whole_blocks(tokens);
        let walk = self.radix.walk(self.roots[&namespace], whole);
        let shared = self.radix.blocks_of(&walk);
        let held = shared.len() * BLOCK_POSITIONS;
        let lease = self.radix.cut(walk.node, walk.blocks);
        self.sequences.insert(seq, Table::copy(shared, lease, &mut self.radix));
        held
    }

    /// Grows a sequence's table to hold `positions`, or changes nothing.
    pub fn reserve(&mut self, seq: SeqId, positions: usize) -> Result<(), NoSpace> {
        let missing = self.running(seq).missing(positions, &self.radix);
        self.make_room(missing.all(), self.namespace_of(seq))?;
        let table = self.sequences.get_mut(&seq).expect("it was found a moment ago");
        let had_state = table.state.is_some();
        table.extend(missing, &mut self.radix, &mut self.pool);
        table.state.filter(|_| !had_state).into_iter().for_each(|state| self.radix.places.set_fresh(state));
        Ok(())
    }

    /// Publishes the full blocks of a running sequence, so that others can share them.
    ///
    /// `tokens` are all those, from position 0, whose keys and values are complete. A block that another sequence
    /// has already published replaces this sequence's copy in the table.
    pub fn publish(&mut self, seq: SeqId, tokens: &[Token]) {
        let whole = tokens.len() - tokens.len() % BLOCK_POSITIONS;
        self.publish_exactly(seq, &tokens[..whole]);
    }

    /// Starts `child` as a copy of `parent` after `tokens`, or starts nothing. The child inherits the parent's
    /// lifetime, until [`set_lifetime`](Cache::set_lifetime) changes it.
    ///
    /// `tokens` are all those of `parent`, from position 0, whose keys and values are complete. Full blocks are
    /// published and shared; a last partial one is copied, and so is the state. Where layers hold auxiliary state,
    /// [`can_fork`](Cache::can_fork) must hold.
    pub fn fork(&mut self, parent: SeqId, child: SeqId, tokens: &[Token]) -> Result<Forked, NoSpace> {
        assert!(!self.sequences.contains_key(&child), "{child:?} is running already");
        self.publish(parent, tokens);
        let positions = tokens.len() % BLOCK_POSITIONS;
        let units = self.needs().of_running(tokens.len());
        self.make_room(blocks_for(positions) + units, self.namespace_of(parent))?;
        let parent = self.running(parent);
        let whole = tokens.len() / BLOCK_POSITIONS;
        assert_eq!(parent.shared().len(), whole, "a fork takes all that is published");
        let (lease, shared, lifetime) = (parent.lease(), parent.shared().to_vec(), parent.lifetime);
        let tail = parent.owned().first().copied();
        let (parts_from, from) = (parent.parts_from(), parent.state);
        let mut table = Table::new(shared, lease, lifetime, &mut self.radix);
        table.hold_parts(parts_from, parts_from, &mut self.radix);
        let missing = table.missing(tokens.len(), &self.radix);
        table.extend(missing, &mut self.radix, &mut self.pool);
        let copy = tail.zip(table.owned().first()).map(|(from, &to)| CopyPartial { from, to, positions });
        let state = table.state.map(|to| CopyState { from, to });
        self.totals.copies += u64::from(copy.is_some());
        self.sequences.insert(child, table);
        Ok(Forked { copy, state })
    }

    /// Sets how long the prefix that a running sequence leaves is retained. What it [leases](Cache::lease) counts as used
    /// from now on.
    pub fn set_lifetime(&mut self, seq: SeqId, lifetime: Lifetime) {
        let table = self.sequences.get_mut(&seq).expect("the sequence is running");
        table.begin_use(&mut self.radix);
        table.lifetime = lifetime;
    }

    /// Ends a sequence and caches what it computed, to the exact token, with the lifetime it asked for.
    ///
    /// `tokens` are all those, from position 0, whose keys and values are complete.
    pub fn finish(&mut self, seq: SeqId, tokens: &[Token]) {
        self.publish_exactly(seq, tokens);
        self.add_last_place(seq, tokens.len());
        self.abandon(seq);
    }

    /// Ends a sequence: its unpublished blocks are freed, the published ones are retained for its lifetime.
    pub fn abandon(&mut self, seq: SeqId) {
        let namespace = self.namespace_of(seq);
        let table = self.sequences.remove(&seq).expect("only running sequences end");
        table.release(&mut self.radix, &mut self.pool);
        self.drop_expired();
        self.keep_quota(namespace, 0);
    }

    /// Ends all sequences as [`abandon`](Cache::abandon) does.
    pub fn abandon_all(&mut self) {
        let mut all: Vec<SeqId> = self.sequences.keys().copied().collect();
        all.sort_unstable();
        all.into_iter().for_each(|seq| self.abandon(seq));
    }

    /// The block table of a running sequence: entry `i` holds positions `16 i .. 16 i + 16`.
    pub fn table(&self, seq: SeqId) -> &[BlockId] {
        self.running(seq).blocks()
    }

    /// Counters for metrics.
    pub fn stats(&self) -> CacheStats {
        CacheStats {
            blocks: self.pool.len(),
            free: self.pool.free(),
            owned: self.pool.owned(),
            shared: self.pool.shared(),
            evictable: self.radix.evictable(),
            withheld: self.pool.withheld(),
            places_evictable: self.radix.places.evictable(),
            places: self.radix.places.len(),
            in_use: self.in_use(),
            pinned: self.radix.pinned(),
            pinned_max: self.pinned_max,
            nodes: self.radix.nodes(),
            tokens: self.radix.tokens(),
            sequences: self.sequences.len(),
            totals: self.totals,
        }
    }

    fn in_use(&self) -> usize {
        let shared = self.pool.shared() - self.radix.evictable() - self.radix.held();
        self.pool.owned() + shared + self.pool.withheld() - self.radix.places.units()
    }

    /// The end of the whole blocks of `tokens`, when there are any and all are cached: a node, and how many of its
    /// blocks.
    pub(super) fn whole_prefix(&self, namespace: NamespaceId, tokens: &[Token]) -> Option<(NodeId, usize)> {
        let whole = whole_blocks(tokens);
        let walk = self.radix.walk(self.roots[&namespace], whole);
        (walk.tokens == whole.len() && walk.blocks > 0).then_some((walk.node, walk.blocks))
    }

    /// The node that holds block number `index`, on a path upwards from a later block.
    pub(super) fn node_on(&self, mut path: impl Iterator<Item = NodeId>, index: usize) -> Option<NodeId> {
        path.find(|&id| self.radix.arena[id].depth as usize <= index)
    }

    pub(super) fn running(&self, seq: SeqId) -> &Table {
        self.sequences.get(&seq).expect("the sequence is running")
    }

    pub(super) fn running_mut(&mut self, seq: SeqId) -> &mut Table {
        self.sequences.get_mut(&seq).expect("the sequence is running")
    }

    fn publish_exactly(&mut self, seq: SeqId, tokens: &[Token]) {
        let table = self.sequences.get_mut(&seq).expect("only running sequences publish");
        let published = table.publish(tokens, &mut self.radix, &mut self.pool);
        self.totals.published += published.blocks as u64;
        self.totals.duplicates += published.duplicates as u64;
    }

    pub(super) fn namespace_of(&self, seq: SeqId) -> NamespaceId {
        self.radix.arena[self.running(seq).lease()].namespace
    }

    fn count_admission(&mut self, namespace: NamespaceId, prompt: usize, reused: usize) {
        let hit = u64::from(reused > 0);
        let (prompt, reused) = (prompt as u64, reused as u64);
        self.totals.admitted += 1;
        self.totals.hits += hit;
        self.totals.prompt_tokens += prompt;
        self.totals.reused_tokens += reused;
        let now = self.radix.now;
        self.radix.shares.of_mut(namespace).count_admission(prompt, reused, now);
    }

    /// What the tree has of the tokens of a prompt that a sequence may reuse, `reuse_max` or the base of its namespace if
    /// that is more; the part of it after which the sequence can resume; and the latter as an answer.
    fn reusable(&self, root: NodeId, prompt: &[Token], reuse_max: usize) -> (Walk, Walk, Match) {
        let reuse_max = reuse_max.max(self.radix.arena[root].depth as usize * BLOCK_POSITIONS);
        let all = self.radix.walk(root, prompt);
        let is_cut = reuse_max < prompt.len() && all.tokens >= reuse_max;
        let matched = if is_cut { self.radix.walk(root, &prompt[..reuse_max]) } else { all };
        let usable = self.radix.continuable(matched);
        let (stop, evicted) = match usable.tokens < matched.tokens {
            true if self.needs().has_state() => (StopReason::NoStateKept, None),
            true => (StopReason::WindowDropped, None),
            // What is cached behind `reuse_max` is only computed for its output.
            false => self.stop_reason(&all, prompt),
        };
        (matched, usable, Match { tokens: usable.tokens, stop, evicted })
    }

    /// Returns why the tree has no more of `prompt` than `walk`.
    fn stop_reason(&self, walk: &Walk, prompt: &[Token]) -> (StopReason, Option<Eviction>) {
        let rest = &prompt[walk.whole_blocks() * BLOCK_POSITIONS..];
        let next = &rest[..rest.len().min(BLOCK_POSITIONS)];
        let before = self.radix.fingerprint_at(walk);
        if walk.tokens == prompt.len() {
            return (StopReason::Complete, None);
        }
        match self.lost_after(before, next, walk.tokens % BLOCK_POSITIONS) {
            Some(reason) => reason,
            None if walk.tokens > 0 && self.radix.continues(walk) => (StopReason::Diverged, None),
            None => (StopReason::FirstSeen, None),
        }
    }

    /// Looks up the ghost of a lost block: the block after `before` that begins with `next`, of which `known`
    /// tokens are cached.
    pub(super) fn lost_after(
        &self,
        before: Fingerprint,
        next: &[Token],
        known: usize,
    ) -> Option<(StopReason, Option<Eviction>)> {
        let ghosts = &self.radix.ghosts;
        let ghost = ghosts.lost(before, next, known)?;
        Some(match ghost.cause {
            Cause::Evicted(policy) => {
                (StopReason::Evicted, Some(Eviction { at: ghosts.lost_at(ghost), policy }))
            }
            Cause::Expired => (StopReason::Expired, None),
        })
    }

    /// Leases the blocks of `walk` and allocates the rest, which has been checked to fit.
    fn start(&mut self, admission: &Admission<'_>, walk: &Walk) -> Forked {
        let &Admission { seq, namespace, positions, lifetime, .. } = admission;
        let shared = self.radix.blocks_of(walk);
        let place = self.place_at(walk);
        place.into_iter().for_each(|place| self.radix.places.keep(place));
        self.touch_places(walk, namespace, lifetime);
        let lease = self.radix.cut(walk.node, walk.blocks);
        let mut table = Table::new(shared, lease, lifetime, &mut self.radix);
        let first = self.needs().first_part(walk.tokens);
        table.hold_parts(first, self.needs().first_part_of_place(walk.whole_blocks()), &mut self.radix);
        let source = walk.partial.map(|partial| self.lock_partial(partial));
        let missing = table.missing(positions.max(walk.tokens), &self.radix);
        self.make_room(missing.all(), namespace).expect("it was found affordable");
        table.extend(missing, &mut self.radix, &mut self.pool);
        let from = place.and_then(|place| self.radix.places.get(place)?.state);
        place.into_iter().for_each(|place| self.radix.places.unkeep(place));
        let state = table.state.map(|to| CopyState { from, to });
        let copy = source.zip(walk.partial).map(|(node, partial)| {
            self.radix.unlock(node);
            self.totals.copies += 1;
            CopyPartial {
                from: self.radix.arena[node].blocks()[0],
                to: table.owned()[0],
                positions: partial.positions,
            }
        });
        self.sequences.insert(seq, table);
        Forked { copy, state }
    }

    /// Marks the places at the end of a walk as used.
    fn touch_places(&mut self, walk: &Walk, by: NamespaceId, asked: Lifetime) {
        let last = self.radix.touched_blocks(walk).pop().filter(|_| !self.needs().is_nothing());
        let places = last.into_iter().flat_map(|block| self.radix.places.of(block));
        let places: Vec<PlaceId> = places.map(|(id, _)| id).collect();
        let now = self.radix.now;
        places.into_iter().for_each(|place| self.radix.places.touch(place, by, asked, now));
    }

    /// The place whose state is at the end of a walk, where layers have a state.
    pub(super) fn place_at(&self, walk: &Walk) -> Option<PlaceId> {
        let last = walk.tokens.checked_sub(1).filter(|_| self.needs().has_state())?;
        let block = *self.radix.touched_blocks(walk).last()?;
        Some(PlaceId { block, positions: (last % BLOCK_POSITIONS + 1) as u8 })
    }

    /// Locks the block that is to be copied in part, so that it is not evicted before the copy.
    ///
    /// The block follows the lease, so it starts a node. The copy counts as a use of this block alone: one without another
    /// user gets a node of its own, which is then the most recently used.
    fn lock_partial(&mut self, partial: PartialMatch) -> NodeId {
        let node = &self.radix.arena[partial.node];
        let node = match node.locks - node.copies {
            0 => self.radix.cut(partial.node, 1),
            _ => partial.node,
        };
        self.radix.lock_reused(node);
        node
    }
}

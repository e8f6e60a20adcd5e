//! The prefix tree over token ids: which physical blocks hold which prefix.
//!
//! Owns the nodes with their lock counts, the content of every block of the tree, and the facts for eviction: the
//! evictor, the ghosts and the shares. Never allocates a block: they are handed in and out.
//!
//! ```text
//! root ── [b0 b1 b2] ─┬─ [b3 b4]          a node is a run of whole blocks;
//!                     ├─ [b5 b6 b7']      a leaf's last block may be partial (b7');
//!                     └─ [b8]             children are sorted by the tokens of their first block
//! ```
//!
//! Invariants: a locked node's ancestors are locked; a partial block ends a leaf, and its tokens begin no
//! sibling's; no node but a root is empty; the blocks of a node are used by the same sequences, and always were: a
//! node is cut where a use of it ends, and grows only while it is new.

use std::time::Duration;

use super::dropped::Dropped;
use super::followers::FollowerIndex;
use super::journal::Journal;
use super::labels::{BlockTokens, Labels};
use super::node::{Arena, Life, Node};
use super::places::Places;

use crate::evict::{
    BlockUse, Candidate, Evictor, Facts, Ghosts, Holding, Lane, Policy, Request, Rhythm, Share, Shares,
};
use crate::hash::Fingerprint;
use crate::ids::{BLOCK_POSITIONS, BlockId, NamespaceId, NodeId, TenantId, Token, blocks_for};
use crate::lifetime::{Keep, Lifetime};

/// The prefixes of all namespaces.
#[derive(Debug)]
pub(crate) struct Radix {
    pub(crate) arena: Arena,
    pub(crate) evictor: Evictor,
    pub(crate) ghosts: Ghosts,
    pub(crate) shares: Shares,
    pub(crate) labels: Labels,
    /// The index of followers, if it was requested.
    pub(crate) followers: Option<FollowerIndex<NamespaceId>>,
    /// The journal of changes, if it was requested.
    pub(crate) journal: Option<Journal>,
    /// Places, where prefixes can be resumed by layers with auxiliary state.
    pub(crate) places: Places,
    /// The caller's clock.
    pub(crate) now: Duration,
    /// Number of blocks that users have left so far: the clock by which policies measure the age of a use.
    pub(super) clock: u64,
    /// Blocks in unlocked nodes: as many as eviction can free.
    evictable: usize,
    /// Blocks in nodes that only pins and derived namespaces lock.
    held: usize,
    /// Blocks in pinned nodes.
    pinned: usize,
    /// Valid tokens in all nodes.
    tokens: usize,
}

impl Radix {
    /// An empty tree for a pool of `blocks`, with about `ghosts` evicted blocks remembered.
    pub(crate) fn new(blocks: u32, policy: Policy, ghosts: usize) -> Radix {
        Radix {
            arena: Arena::default(),
            evictor: Evictor::new(policy, blocks as usize, ghosts),
            ghosts: Ghosts::new(ghosts),
            shares: Shares::new(),
            labels: Labels::new(blocks),
            followers: None,
            journal: None,
            places: Places::default(),
            now: Duration::ZERO,
            clock: 0,
            evictable: 0,
            held: 0,
            pinned: 0,
            tokens: 0,
        }
    }

    pub(crate) fn add_root(&mut self, namespace: NamespaceId, seed: Fingerprint) -> NodeId {
        self.shares.add_namespace(namespace);
        self.arena.insert(Node::root(namespace, seed))
    }

    /// Removes the root of an empty namespace.
    pub(crate) fn remove_root(&mut self, root: NodeId) {
        let node = self.arena.remove(root);
        assert!(node.is_root() && node.locks == 0 && node.children.is_empty(), "an empty root is removed");
        self.shares.remove_namespace(node.namespace);
        if let Some(journal) = &mut self.journal {
            journal.forget(node.namespace);
        }
    }

    /// Attaches a new root to `end`, the end of a whole block, whose path is locked from now on.
    pub(crate) fn attach(&mut self, root: NodeId, end: NodeId) {
        self.hold_path(end);
        let depth = self.arena[end].end_depth();
        let root = &mut self.arena[root];
        (root.parent, root.depth) = (Some(end), depth);
    }

    /// Detaches the root of an empty and unused derived namespace, and returns the namespace of its base.
    pub(crate) fn detach(&mut self, root: NodeId) -> NamespaceId {
        let root = &mut self.arena[root];
        assert!(
            root.locks == 0 && root.children.is_empty(),
            "only an unused, empty derived namespace is detached"
        );
        root.depth = 0;
        let end = root.parent.take().expect("the root of a derived namespace is attached");
        self.release_path(end);
        self.arena[end].namespace
    }

    /// The content of a node's first block: its key among its siblings.
    pub(crate) fn first_block(&self, node: NodeId) -> BlockTokens {
        let &first = self.arena[node].blocks().first().expect("no node but a root is empty");
        BlockTokens::first_of(self.labels.tokens(first))
    }

    pub(crate) fn evictable(&self) -> usize {
        self.evictable
    }

    pub(crate) fn held(&self) -> usize {
        self.held
    }

    pub(crate) fn pinned(&self) -> usize {
        self.pinned
    }

    pub(crate) fn tokens(&self) -> usize {
        self.tokens
    }

    pub(crate) fn nodes(&self) -> usize {
        self.arena.len()
    }

    /// Splits off the first `blocks` blocks of `node` into a node of their own, and returns that.
    ///
    /// `node` keeps its id, its children and its end, so that leases that end there remain valid.
    pub(crate) fn cut(&mut self, node: NodeId, blocks: usize) -> NodeId {
        if blocks == self.arena[node].blocks().len() {
            return node;
        }
        self.unrank(node);
        let place = self.first_block(node);
        let whole = &mut self.arena[node];
        let rest = whole.run.split_off(blocks);
        let run = std::mem::replace(&mut whole.run, rest);
        let upper = Node {
            namespace: whole.namespace,
            parent: whole.parent,
            seed: None,
            depth: whole.depth,
            run,
            children: [(BlockTokens::first_of(self.labels.tokens(whole.blocks()[0])), node)].into(),
            locks: whole.locks,
            copies: whole.copies,
            holds: whole.holds,
            pins: whole.pins,
            life: whole.life,
        };
        whole.depth += blocks as u32;
        let parent = upper.parent.expect("only a node with blocks is cut");
        let upper = self.arena.insert(upper);
        self.arena[parent].children.insert(place, upper);
        self.arena[node].parent = Some(upper);
        self.rank(node);
        upper
    }

    /// Locks `node` for one more user, who has already locked its parent.
    pub(crate) fn lock(&mut self, id: NodeId) {
        self.unrank(id);
        self.lower(id);
        self.change_locks(id, |node| node.locks += 1);
        let node = &self.arena[id];
        if node.locks == 1 {
            let (namespace, blocks) = (node.namespace, node.blocks().len());
            self.evictable -= blocks;
            self.shares.of_mut(namespace).evictable -= blocks;
        }
    }

    /// Locks `node` for a user who has computed the same blocks, and has already locked its parent.
    pub(crate) fn lock_reused(&mut self, id: NodeId) {
        self.lock(id);
        let life = &mut self.arena[id].life;
        life.reuses = life.reuses.saturating_add(1);
    }

    /// Removes a user's lock from `node`; when it was the last one of a user, the node counts as just used, also if copies
    /// still hold it.
    pub(crate) fn unlock(&mut self, id: NodeId) {
        let tenant = self.owner(id);
        let node = &mut self.arena[id];
        if node.locks == node.copies + 1 && !node.is_root() {
            self.clock += node.blocks().len() as u64;
            (node.life.used, node.life.used_at) = (self.clock, self.now);
            node.life.ageing = self.places.ageing(tenant);
        }
        self.remove_lock(id);
    }

    fn remove_lock(&mut self, id: NodeId) {
        let one_less = |locks: u32| locks.checked_sub(1).expect("what is unlocked was locked");
        self.change_locks(id, |node| node.locks = one_less(node.locks));
        let node = &self.arena[id];
        if node.locks == 0 && !node.is_root() {
            let (namespace, blocks) = (node.namespace, node.blocks().len());
            self.evictable += blocks;
            self.shares.of_mut(namespace).evictable += blocks;
            self.rank(id);
        }
    }

    /// Changes how a node is locked, and counts its blocks where nothing but holds is left.
    fn change_locks(&mut self, id: NodeId, change: impl FnOnce(&mut Node)) {
        let node = &mut self.arena[id];
        let before = node.held_blocks();
        change(node);
        self.held = self.held + node.held_blocks() - before;
    }

    /// Calls `change` with each node from `node` up, beyond the root of a derived namespace too.
    fn each_up(&mut self, node: NodeId, mut change: impl FnMut(&mut Radix, NodeId)) {
        let mut next = Some(node);
        while let Some(id) = next {
            change(self, id);
            next = self.arena[id].parent;
        }
    }

    /// Locks the path from the root to `node`.
    pub(crate) fn lock_path(&mut self, node: NodeId) {
        self.each_up(node, Radix::lock);
    }

    /// Locks the path from the root to `node` for a pin or a derived namespace, which keeps its blocks and computes nothing.
    pub(crate) fn hold_path(&mut self, node: NodeId) {
        self.each_up(node, |radix, id| {
            radix.lock(id);
            radix.change_locks(id, |node| node.holds += 1);
        });
    }

    /// Undoes [`hold_path`](Radix::hold_path); this counts as a use.
    pub(crate) fn release_path(&mut self, node: NodeId) {
        self.each_up(node, |radix, id| {
            let one_less = |holds: u32| holds.checked_sub(1).expect("what is released was held");
            radix.change_locks(id, |node| node.holds = one_less(node.holds));
            radix.unlock(id);
        });
    }

    /// Locks the path from the root to `node` for a copy of its blocks.
    pub(crate) fn lock_path_for_copy(&mut self, node: NodeId) {
        self.each_up(node, |radix, id| {
            radix.lock(id);
            radix.arena[id].copies += 1;
        });
    }

    /// Unlocks a path that was locked for a copy: nothing was used.
    pub(crate) fn unlock_path_of_copy(&mut self, node: NodeId) {
        self.each_up(node, |radix, id| {
            radix.end_copy(id);
            radix.remove_lock(id);
        });
    }

    /// Makes the locks of a path for a copy those of a user.
    pub(crate) fn use_copied_path(&mut self, node: NodeId) {
        self.each_up(node, Radix::end_copy);
        self.count_reuse(node);
    }

    fn end_copy(&mut self, id: NodeId) {
        let node = &mut self.arena[id];
        node.copies = node.copies.checked_sub(1).expect("it was locked for a copy");
    }

    /// Unlocks the path from `node` to the root, in this order: a parent is used after its child.
    pub(crate) fn unlock_path(&mut self, node: NodeId) {
        self.each_up(node, Radix::unlock);
    }

    /// Counts a pin that ends at `node`.
    pub(crate) fn pin_path(&mut self, node: NodeId) {
        let blocks = self.change_pins(node, |pins| pins + 1);
        self.pinned += blocks;
        self.shares.of_mut(self.arena[node].namespace).pinned += blocks;
    }

    /// Undoes [`pin_path`](Radix::pin_path).
    pub(crate) fn unpin_path(&mut self, node: NodeId) {
        let blocks = self.change_pins(node, |pins| pins.checked_sub(1).expect("it was pinned"));
        self.pinned -= blocks;
        self.shares.of_mut(self.arena[node].namespace).pinned -= blocks;
    }

    /// Changes the pin counts of a path, its root's included. Returns the number of blocks that became pinned or
    /// unpinned.
    fn change_pins(&mut self, node: NodeId, change: impl Fn(u32) -> u32) -> usize {
        let mut blocks = 0;
        let mut next = Some(node);
        while let Some(id) = next {
            let node = &mut self.arena[id];
            let before = node.pins;
            node.pins = change(before);
            blocks += if before == 0 || node.pins == 0 { node.blocks().len() } else { 0 };
            next = node.parent.filter(|_| !node.is_root());
        }
        blocks
    }

    /// Counts one more use of the locked path to `node`.
    pub(crate) fn count_reuse(&mut self, node: NodeId) {
        self.change_path(node, |life| life.reuses = life.reuses.saturating_add(1));
    }

    /// Raises the retention of the locked path to `node` to the requested one.
    pub(crate) fn keep(&mut self, node: NodeId, asked: Lifetime) {
        self.change_path(node, |life| life.keep = life.keep.and(asked));
    }

    /// Raises the retention of the locked path to `node` to that of a replaced block.
    pub(crate) fn keep_as(&mut self, node: NodeId, others: Keep) {
        self.change_path(node, |life| life.keep = life.keep.join(others));
    }

    /// Passes the uses of the blocks on the locked path to `node`, by a sequence that was admitted at `started`, to
    /// the evictor, if it needs them.
    pub(crate) fn note_uses(&mut self, node: NodeId, started: Duration) {
        if !self.evictor.needs_uses() {
            return;
        }
        let path: Vec<NodeId> = self.path_up(node).collect();
        let uses = self.uses_of(&path);
        let blocks = uses.len() as u64;
        let (started_ms, ended_ms) = (self.ms(started, self.clock), self.ms(self.now, self.clock + blocks));
        let mut request = Request { started_ms, ended_ms, uses };
        let switched = self.evictor.note(&mut request);
        let mut uses = &request.uses[..];
        for id in path {
            let node = &mut self.arena[id];
            node.life.rhythm = uses[0].rhythm;
            uses = &uses[node.blocks().len()..];
        }
        if switched {
            let ids: Vec<NodeId> = self.arena.iter().map(|(id, _)| id).collect();
            ids.into_iter().for_each(|id| self.rank(id));
        }
    }

    /// The uses of the blocks of a path, the deepest node first, when it is unlocked.
    fn uses_of(&self, path: &[NodeId]) -> Vec<BlockUse> {
        let blocks = path
            .iter()
            .map(|&id| &self.arena[id])
            .flat_map(|node| node.blocks().iter().zip(node.depth..node.end_depth()).rev());
        let uses = blocks.zip(self.clock + 1..).map(|((&block, depth), at)| BlockUse {
            block: self.labels.fingerprint(block),
            depth,
            at,
            rhythm: Rhythm::default(),
        });
        uses.collect()
    }

    /// A time in milliseconds on the caller's clock; `blocks` on the clock of blocks used while the caller sets none.
    pub(super) fn ms(&self, at: Duration, blocks: u64) -> u64 {
        if self.now.is_zero() { blocks } else { u64::try_from(at.as_millis()).unwrap_or(u64::MAX) }
    }

    /// Changes the life of the nodes of a locked path, which no policy ranks. The base of a derived namespace is
    /// not changed: its tenant may inspect it and must not see this use.
    fn change_path(&mut self, node: NodeId, change: impl Fn(&mut Life)) {
        let mut next = Some(node);
        while let Some(id) = next {
            let node = &mut self.arena[id];
            change(&mut node.life);
            next = node.parent.filter(|_| !node.is_root());
        }
    }

    /// Adds blocks after `at`, the end of a lease, and returns the node where that lease now ends.
    pub(crate) fn grow(&mut self, at: NodeId, tokens: &[Token], blocks: &[BlockId]) -> NodeId {
        assert_eq!(blocks_for(tokens.len()), blocks.len(), "every block has its tokens");
        self.label_blocks(self.fingerprint_of(at), tokens, blocks);
        if let Some(followers) = &mut self.followers {
            let at = &self.arena[at];
            followers.publish(at.namespace, at.blocks().last().copied(), blocks, &self.labels);
        }
        if let Some(journal) = &mut self.journal {
            let at = &self.arena[at];
            journal.stored(at.namespace, at.blocks().last().copied(), blocks, &self.labels);
        }
        self.shares.of_mut(self.arena[at].namespace).blocks += blocks.len();
        let reuses = self.reuses_of(self.arena[at].namespace, blocks);
        let (mut end, mut rest) = (at, blocks);
        for alike in reuses.chunk_by(|a, b| a == b) {
            let run;
            (run, rest) = rest.split_at(alike.len());
            end = self.append(end, run, alike[0]);
        }
        end
    }

    /// Adds blocks that were reused equally often before they were last evicted.
    ///
    /// The run of `at` grows when it is new, has no children and no requested retention; so a sequence that
    /// publishes block by block makes one node, not one per block.
    fn append(&mut self, at: NodeId, blocks: &[BlockId], reuses: u32) -> NodeId {
        let node = &mut self.arena[at];
        let alone = !node.is_root() && node.locks == 1 && node.children.is_empty();
        let alone = alone && node.life.keep == Keep::NOTHING;
        if alone && node.is_new() && node.life.reuses == reuses {
            node.run.extend_from_slice(blocks);
            return at;
        }
        let child = Node {
            namespace: node.namespace,
            parent: Some(at),
            seed: None,
            depth: node.end_depth(),
            run: blocks.to_vec(),
            children: Default::default(),
            locks: 1,
            copies: 0,
            holds: 0,
            pins: 0,
            life: Life::new(self.clock, reuses),
        };
        let child = self.arena.insert(child);
        let place = self.first_block(child);
        self.arena[at].children.insert(place, child);
        child
    }

    /// The reuses of each of `blocks`, counting this use for those that are recomputed after an eviction; 0 for new
    /// ones.
    ///
    /// A block is used whenever one after it is, even when its ghost has been displaced.
    fn reuses_of(&mut self, namespace: NamespaceId, blocks: &[BlockId]) -> Vec<u32> {
        let mut reuses = vec![0; blocks.len()];
        if !self.evictor.needs_ghost_history() {
            return reuses;
        }
        let (tenant, capacity) = (self.shares.owner(namespace), self.shares.of(namespace).blocks);
        let mut min = 0;
        for (reuses, &block) in reuses.iter_mut().zip(blocks).rev() {
            if let Some(back) = self.ghosts.back(self.labels.fingerprint(block)) {
                self.evictor.returned(tenant, back, capacity);
                min = min.max(back.reuses + 1);
            }
            *reuses = min;
        }
        reuses
    }

    fn label_blocks(&mut self, mut before: Fingerprint, tokens: &[Token], blocks: &[BlockId]) {
        for (tokens, &block) in tokens.chunks(BLOCK_POSITIONS).zip(blocks) {
            before = self.labels.set(block, before, tokens);
        }
        self.tokens += tokens.len();
    }

    /// The tenant of a node.
    pub(crate) fn owner(&self, id: NodeId) -> TenantId {
        self.shares.owner(self.arena[id].namespace)
    }

    /// Drops the last `count` blocks of an unlocked leaf with their places, and the leaf itself if none is left.
    /// Leaves no ghosts.
    pub(crate) fn pop(&mut self, leaf: NodeId, count: usize) -> Dropped {
        let place = self.first_block(leaf);
        let node = &mut self.arena[leaf];
        assert!(node.locks == 0 && node.children.is_empty(), "only an unused leaf loses blocks");
        let namespace = node.namespace;
        let stats = self.shares.of_mut(namespace);
        (stats.blocks, stats.evictable) = (stats.blocks - count, stats.evictable - count);
        let blocks = if count == node.blocks().len() {
            self.remove(leaf, &place)
        } else {
            let dropped = node.run.split_off(node.run.len() - count);
            self.evictor.shrink(leaf, self.lane(leaf), count as u32);
            dropped
        };
        self.evictable -= count;
        if let Some(followers) = &mut self.followers {
            followers.remove(blocks.iter().copied());
        }
        if let Some(journal) = &mut self.journal {
            journal.removed(&blocks);
        }
        self.tokens -= blocks.iter().map(|&block| self.labels.count(block)).sum::<usize>();
        let units = blocks.iter().map(|&block| self.places.remove_of(block)).sum();
        self.shares.of_mut(namespace).place_blocks -= units;
        Dropped { blocks, units }
    }

    /// Removes a leaf from the tree, and returns its blocks.
    fn remove(&mut self, leaf: NodeId, place: &BlockTokens) -> Vec<BlockId> {
        let parent = self.arena[leaf].parent.expect("a root has no blocks to lose");
        self.unrank(leaf);
        self.arena[parent].children.remove(place);
        let node = self.arena.remove(leaf);
        self.rank(parent);
        node.run
    }

    /// Assigns the namespace of a root to a tenant; its blocks then compete with that tenant's prefixes.
    pub(crate) fn set_share(&mut self, root: NodeId, share: Share) {
        let namespace = self.arena[root].namespace;
        if self.shares.owner(namespace) == share.tenant {
            return self.shares.set(namespace, share, Holding::default());
        }
        let nodes = self.nodes_under(root);
        nodes.iter().for_each(|&id| self.unrank(id));
        let mut moved = Holding::default();
        for node in nodes.iter().map(|&id| &self.arena[id]) {
            let blocks = node.blocks().len();
            moved.place_blocks += self.places.give(node.blocks(), share.tenant);
            moved.blocks += blocks;
            moved.pinned += if node.pins > 0 { blocks } else { 0 };
            moved.evictable += if node.locks == 0 { blocks } else { 0 };
        }
        self.shares.set(namespace, share, moved);
        nodes.iter().for_each(|&id| self.rank(id));
    }

    /// A root and all nodes of its namespace, by index.
    fn nodes_under(&self, root: NodeId) -> Vec<NodeId> {
        let (mut nodes, mut next) = (vec![root], 0);
        while let Some(&node) = nodes.get(next) {
            nodes.extend(self.arena[node].children.values());
            next += 1;
        }
        nodes.sort_unstable();
        nodes
    }

    /// Ends the raised priorities of leaves and places whose time is over.
    pub(crate) fn lower_ended(&mut self) {
        while let Some(leaf) = self.evictor.lowered(self.now) {
            self.unrank(leaf);
            self.rank(leaf);
        }
        self.places.lower_ended(self.now);
    }

    /// Ends the raised priority of an unranked node, if its time is over; not that of a node in use.
    fn lower(&mut self, id: NodeId) {
        let node = &mut self.arena[id];
        if node.locks == 0 && node.life.lowers().is_some_and(|at| at <= self.now) {
            node.life.keep = node.life.keep.lowered();
        }
    }

    /// Adds a node to the evictor, if it is an unlocked leaf.
    fn rank(&mut self, id: NodeId) {
        self.lower(id);
        if let Some(candidate) = self.candidate(id) {
            self.evictor.insert(id, candidate);
        }
    }

    /// Removes a node from the evictor, if it is an unlocked leaf.
    fn unrank(&mut self, id: NodeId) {
        if let Some(candidate) = self.candidate(id) {
            self.evictor.remove(id, candidate);
        }
    }

    /// The evictor's facts of an unlocked leaf; `None` for other nodes.
    pub(crate) fn candidate(&self, id: NodeId) -> Option<Candidate> {
        let node = &self.arena[id];
        if node.locks > 0 || !node.children.is_empty() || node.is_root() {
            return None;
        }
        let Life { born, used, used_at, reuses, rhythm, .. } = node.life;
        let (depth, blocks) = (node.end_depth(), node.blocks().len() as u32);
        let facts = Facts { used, used_ms: self.ms(used_at, used), born, reuses, rhythm, depth, blocks };
        let (expires, lowers) = (node.life.expires(), node.life.lowers());
        Some(Candidate { lane: self.lane(id), expires, lowers, facts })
    }

    fn lane(&self, id: NodeId) -> Lane {
        let node = &self.arena[id];
        Lane { tenant: self.owner(id), priority: node.life.keep.priority() }
    }
}

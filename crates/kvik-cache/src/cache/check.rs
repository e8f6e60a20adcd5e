//! Executable invariants of the cache.
//!
//! The checks walk everything, so they cost time in proportion to the cache: they run after every operation in
//! tests, and when idle in builds with debug assertions; release builds never run them. Each function checks one
//! family of invariants.

use rustc_hash::{FxHashMap, FxHashSet};

use super::life::Cache;
use crate::evict::{Holding, Lane};
use crate::hash::Identity;
use crate::ids::{BlockId, NodeId, SeqId, TenantId, whole_blocks};
use crate::pool::BlockState;
use crate::table::Table;
use crate::tree::Node;

/// A violated invariant: a defect of this crate, or a caller that broke its contract.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the cache is inconsistent: {0}")]
pub struct Violation(String);

/// Returns a [`Violation`] with the formatted message unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(Violation(format!($($message)+)));
        }
    };
}

impl Cache {
    /// Checks every invariant.
    pub fn check(&self) -> Result<(), Violation> {
        self.check_pool()?;
        self.check_holders()?;
        self.check_tree()?;
        self.check_locks()?;
        self.check_pins()?;
        self.check_evictable()?;
        self.check_lives()?;
        self.check_shares()?;
        self.check_tables()?;
        self.check_journal()?;
        self.check_places()
    }

    /// Free + withheld + owned + shared = all, and the free list contains each free block exactly once.
    fn check_pool(&self) -> Result<(), Violation> {
        let mut counts = [0; 3];
        for index in 0..self.pool.len() as u32 {
            counts[match self.pool.state(BlockId(index)) {
                BlockState::Free => 0,
                BlockState::Owned => 1,
                BlockState::Shared => 2,
            }] += 1;
        }
        let vacant = self.pool.free() + self.pool.withheld();
        let counted = [vacant, self.pool.owned(), self.pool.shared()];
        ensure!(counts == counted, "free, owned, shared are {counts:?} and are counted as {counted:?}");
        let mut listed = self.pool.free_list().to_vec();
        listed.sort_unstable();
        listed.dedup();
        ensure!(listed.len() == counts[0], "the free list names {} of {} blocks", listed.len(), counts[0]);
        let used = listed.iter().find(|&&block| self.pool.state(block) != BlockState::Free);
        ensure!(used.is_none(), "{used:?} is on the free list");
        Ok(())
    }

    /// Every block in use has exactly one holder, of the kind that the block's state says.
    fn check_holders(&self) -> Result<(), Violation> {
        let in_tree = self.radix.arena.iter().flat_map(|(_, node)| node.blocks());
        let in_tables = self.sequences.values().flat_map(|table| table.owned());
        let held = in_tree.map(|block| (block, BlockState::Shared));
        let held = held.chain(in_tables.map(|block| (block, BlockState::Owned)));
        let mut holders = FxHashSet::default();
        for (&block, expected) in held {
            let state = self.pool.state(block);
            ensure!(state == expected, "{block:?} is held as {expected:?} and is {state:?}");
            ensure!(holders.insert(block), "{block:?} is held twice");
        }
        let used = self.pool.owned() + self.pool.shared();
        ensure!(holders.len() == used, "{} of {used} blocks in use are held", holders.len());
        Ok(())
    }

    /// Nodes are well formed, connected and sorted; the sums over them are right.
    fn check_tree(&self) -> Result<(), Violation> {
        let mut reached = 0;
        let mut tokens = 0;
        let mut open: Vec<NodeId> = self.roots.values().copied().collect();
        while let Some(id) = open.pop() {
            let node = &self.radix.arena[id];
            tokens += self.check_node(id, node)?;
            self.check_children(id, node)?;
            reached += 1;
            open.extend(node.children.values());
        }
        ensure!(reached == self.radix.nodes(), "{reached} of {} nodes are reached", self.radix.nodes());
        ensure!(tokens == self.radix.tokens(), "{tokens} tokens are counted as {}", self.radix.tokens());
        Ok(())
    }

    /// Only a root is empty; only a leaf ends in a partial block. Returns the number of the node's tokens.
    fn check_node(&self, id: NodeId, node: &Node) -> Result<usize, Violation> {
        ensure!(
            node.is_root() == (self.roots.get(&node.namespace) == Some(&id)),
            "{id:?} is a root or is not"
        );
        ensure!(node.is_root() == node.seed.is_some(), "{id:?} has a seed or lacks one");
        let depth = node.parent.map_or(0, |parent| self.radix.arena[parent].end_depth());
        ensure!(node.depth == depth, "{id:?} is at depth {depth} and counts as {}", node.depth);
        ensure!(node.is_root() == node.blocks().is_empty(), "{id:?} has {} blocks", node.blocks().len());
        let mut before = node.parent.map(|parent| self.radix.fingerprint_of(parent));
        let mut tokens = 0;
        for (index, &block) in node.blocks().iter().enumerate() {
            let (labels, held) = (&self.radix.labels, self.radix.labels.tokens(block));
            let ends_leaf = index + 1 == node.blocks().len() && node.children.is_empty();
            ensure!(!held.is_empty(), "{block:?} of {id:?} holds nothing");
            ensure!(
                ends_leaf || !labels.is_partial(block),
                "something follows the partial {block:?} of {id:?}"
            );
            let expected = before.map(|before| before.child(held));
            before = Some(labels.fingerprint(block));
            ensure!(before == expected, "the fingerprint of {block:?} of {id:?} is wrong");
            tokens += held.len();
        }
        Ok(tokens)
    }

    /// Children refer to their parent and are stored under their first block; none begins with all of a sibling's
    /// first block.
    fn check_children(&self, id: NodeId, node: &Node) -> Result<(), Violation> {
        let mut before = None;
        for (place, &child) in &node.children {
            let parent = self.radix.arena[child].parent;
            ensure!(parent == Some(id), "{child:?} does not know its parent {id:?}");
            ensure!(self.radix.first_block(child) == *place, "{child:?} is not in its place");
            let begins = before.is_some_and(|before| place.valid().starts_with(before));
            ensure!(!begins, "{child:?} of {id:?} begins with all of its sibling");
            before = Some(place.valid());
        }
        Ok(())
    }

    /// The journal names the whole blocks of the registered namespaces, and no others, by content and prefix.
    fn check_journal(&self) -> Result<(), Violation> {
        let Some(journal) = &self.radix.journal else { return Ok(()) };
        let mut told = 0;
        for (id, node) in self.radix.arena.iter().filter(|(_, node)| !node.is_root()) {
            let root = journal.root(node.namespace);
            let prefix = self.radix.prefix(id, usize::MAX);
            let names = root.into_iter().flat_map(|root| root.blocks(whole_blocks(&prefix)));
            let names: Vec<Identity> = names.skip(node.depth as usize).collect();
            for (index, &block) in node.blocks().iter().enumerate() {
                ensure!(
                    journal.told(block) == names.get(index).copied(),
                    "{block:?} of {id:?} is told wrongly"
                );
            }
            told += names.len();
        }
        ensure!(told == journal.len(), "{told} blocks are to be told, and {} are", journal.len());
        Ok(())
    }

    /// A node is locked once for every lease, pin and derived namespace that ends at it or below it, and counts the leases
    /// for copies among them, and the pins and derived namespaces.
    fn check_locks(&self) -> Result<(), Violation> {
        let tables = || self.sequences.values();
        let bases = self.roots.values().filter_map(|&root| self.radix.arena[root].parent);
        let holders: Vec<NodeId> = self.pins.nodes().chain(bases).collect();
        let locks = self.paths_to(tables().map(Table::lease).chain(holders.iter().copied()));
        let copies = self.paths_to(tables().filter(|table| table.is_copy()).map(Table::lease));
        let holds = self.paths_to(holders.into_iter());
        let mut held = 0;
        for (id, node) in self.radix.arena.iter() {
            let counted = [&locks, &copies, &holds].map(|ends| ends.get(&id).copied().unwrap_or(0));
            let locked = [node.locks, node.copies, node.holds];
            ensure!(locked == counted, "{id:?} has {locked:?} locks, for copies, and holds, of {counted:?}");
            held += node.held_blocks();
        }
        ensure!(held == self.radix.held(), "{held} blocks that are only held count as {}", self.radix.held());
        Ok(())
    }

    /// How many paths to these ends each node is on.
    fn paths_to(&self, ends: impl Iterator<Item = NodeId>) -> FxHashMap<NodeId, u32> {
        let mut paths: FxHashMap<NodeId, u32> = FxHashMap::default();
        for end in ends {
            let mut next = Some(end);
            while let Some(id) = next {
                *paths.entry(id).or_default() += 1;
                next = self.radix.arena[id].parent;
            }
        }
        paths
    }

    /// A node counts the pins of its namespace that end at it or below it, and the pinned blocks are counted.
    fn check_pins(&self) -> Result<(), Violation> {
        let mut pins: FxHashMap<NodeId, u32> = FxHashMap::default();
        for end in self.pins.nodes() {
            let namespace = self.radix.arena[end].namespace;
            let root = self.roots[&namespace];
            self.radix.own_path(end).chain([root]).for_each(|id| *pins.entry(id).or_default() += 1);
        }
        let mut pinned: FxHashMap<TenantId, usize> = FxHashMap::default();
        for (id, node) in self.radix.arena.iter() {
            let counted = pins.get(&id).copied().unwrap_or(0);
            ensure!(node.pins == counted, "{id:?} counts {} pins and has {counted}", node.pins);
            let blocks = if node.pins > 0 { node.blocks().len() } else { 0 };
            *pinned.entry(self.radix.owner(id)).or_default() += blocks;
        }
        let all: usize = pinned.values().sum();
        ensure!(all == self.radix.pinned(), "{all} pinned blocks count as {}", self.radix.pinned());
        for stats in self.tenants() {
            let (tenant, counted) = (stats.share.tenant, stats.pinned);
            let blocks = pinned.get(&tenant).copied().unwrap_or(0);
            ensure!(blocks == counted, "{blocks} pinned blocks of {tenant:?} count as {counted}");
        }
        Ok(())
    }

    /// The evictor ranks exactly the unlocked leaves, each once and in its lane.
    fn check_evictable(&self) -> Result<(), Violation> {
        let mut lanes: FxHashMap<NodeId, Lane> = FxHashMap::default();
        for (leaf, lane) in self.radix.evictor.leaves() {
            ensure!(lanes.insert(leaf, lane).is_none(), "{leaf:?} is ranked twice");
        }
        let mut blocks = 0;
        for (id, node) in self.radix.arena.iter() {
            let expected = self.radix.candidate(id).map(|candidate| candidate.lane);
            let lane = lanes.remove(&id);
            ensure!(lane == expected, "{id:?} is ranked in {lane:?} and belongs to {expected:?}");
            let lane_now = lane.filter(|lane| lane.priority == node.priority(self.radix.now));
            ensure!(lane == lane_now, "{id:?} is ranked in {lane:?}, and its raised priority has ended");
            blocks += if node.locks == 0 { node.blocks().len() } else { 0 };
        }
        ensure!(lanes.is_empty(), "{lanes:?} are ranked and are not in the tree");
        ensure!(blocks == self.radix.evictable(), "{blocks} evictable blocks are counted otherwise");
        Ok(())
    }

    /// No prefix outlives its time to live, and no node has a weaker retention than the nodes that continue it:
    /// last use, time to live and priority.
    fn check_lives(&self) -> Result<(), Violation> {
        for (id, node) in self.radix.arena.iter().filter(|(_, node)| node.locks == 0 && !node.is_root()) {
            let (life, expires) = (node.life, node.life.expires());
            ensure!(expires.is_none_or(|at| at > self.radix.now), "{id:?} outlives its time");
            let Some(parent) = node.parent.map(|parent| &self.radix.arena[parent]) else { continue };
            if parent.is_root() || parent.locks > 0 {
                continue;
            }
            ensure!(parent.life.used >= life.used, "{id:?} was used later than what it follows");
            let before = parent.life.expires();
            let longer =
                before.is_none() || expires.is_some_and(|at| before.is_some_and(|before| at <= before));
            ensure!(longer, "{id:?} outlives what it follows");
            let (before, own) = (parent.life.keep, life.keep);
            ensure!(before.lowered().priority() >= own.lowered().priority(), "{id:?} is kept more dearly");
            let priority = |node: &Node| node.priority(self.radix.now);
            ensure!(priority(parent) >= priority(node), "{id:?} is kept more dearly for a while");
        }
        Ok(())
    }

    /// The holdings of every tenant are counted, and no tenant holds evictable blocks beyond its quota.
    fn check_shares(&self) -> Result<(), Violation> {
        let mut holdings: FxHashMap<TenantId, Holding> = FxHashMap::default();
        for (id, node) in self.radix.arena.iter() {
            let (holding, blocks) = (holdings.entry(self.radix.owner(id)).or_default(), node.blocks().len());
            holding.blocks += blocks;
            holding.evictable += if node.locks == 0 { blocks } else { 0 };
            for place in node.blocks().iter().flat_map(|&block| self.radix.places.of(block)) {
                ensure!(place.1.namespace == node.namespace, "{place:?} is in {:?}", node.namespace);
                ensure!(place.1.lane.tenant == self.radix.owner(id), "{place:?} is not {id:?}'s tenant's");
                holding.place_blocks += place.1.units;
            }
        }
        for stats in self.tenants() {
            let tenant = stats.share.tenant;
            let Holding { blocks, evictable, place_blocks, .. } =
                holdings.get(&tenant).copied().unwrap_or_default();
            let counted = (stats.blocks, stats.evictable, stats.place_blocks);
            let held = (blocks, evictable, place_blocks);
            ensure!(held == counted, "{held:?} of {tenant:?} are counted as {counted:?}");
            let held = stats.held() + self.owned_by(tenant);
            let kept = stats.share.quota_blocks.is_none_or(|quota| held <= quota);
            let yields = evictable + self.radix.places.evictable_of(tenant);
            ensure!(kept || yields == 0, "{tenant:?} keeps {held} blocks against its quota");
        }
        Ok(())
    }

    /// The shared part of a table is the path of its lease.
    fn check_tables(&self) -> Result<(), Violation> {
        for (&seq, table) in &self.sequences {
            self.check_table(seq, table.lease(), table.shared())?;
        }
        Ok(())
    }

    /// Auxiliary state is withheld from the pool, and every user of a windowed part and every state is counted.
    fn check_places(&self) -> Result<(), Violation> {
        let places = &self.radix.places;
        let mut users = vec![0; places.users().len()];
        let mut states = FxHashSet::default();
        let (mut withheld, mut units) = (0, 0);
        for (&seq, table) in &self.sequences {
            let held = table.blocks()[table.parts_from()..].iter();
            held.for_each(|block| users.get_mut(block.index()).into_iter().for_each(|users| *users += 1));
            withheld += table.units() + table.saves.len() * self.needs().units(0, 1);
            for state in table.state.into_iter().chain(table.saves.iter().map(|&(_, state)| state)) {
                ensure!(states.insert(state), "{state:?} of {seq:?} is another's");
            }
        }
        let mut evictable = 0;
        let mut of_tenants: FxHashMap<TenantId, usize> = FxHashMap::default();
        for (id, place) in places.all() {
            place.parts.iter().for_each(|block| users[block.index()] += 1);
            units += place.units;
            let yields = if place.keepers == 0 { place.units } else { 0 };
            evictable += yields;
            *of_tenants.entry(place.lane.tenant).or_default() += yields;
            ensure!(self.pool.state(id.block) == BlockState::Shared, "{id:?} is not in the tree");
            let known = self.radix.labels.count(id.block);
            ensure!(
                place.state.is_none() || usize::from(id.positions) <= known,
                "{id:?} stands behind {known}"
            );
            let last = place.parts.last().is_none_or(|&last| last == id.block);
            ensure!(last, "{id:?} keeps parts up to {:?}", place.parts.last());
            ensure!(place.state.is_none_or(|state| states.insert(state)), "the state of {id:?} is another's");
        }
        ensure!(users == places.users(), "the users of windowed parts are counted otherwise");
        ensure!(states.len() == places.states(), "{} states count as {}", states.len(), places.states());
        ensure!(evictable == places.evictable(), "{evictable} evictable are counted otherwise");
        for tenant in self.tenants().iter().map(|stats| stats.share.tenant) {
            let own = of_tenants.get(&tenant).copied().unwrap_or_default();
            ensure!(
                own == places.evictable_of(tenant),
                "{own} evictable of {tenant:?} are counted otherwise"
            );
        }
        ensure!(units == places.units(), "{units} blocks of places are counted otherwise");
        withheld += units;
        let counted = self.pool.withheld();
        ensure!(withheld == counted, "{withheld} blocks' worth are withheld as {counted}");
        self.check_keepers()
    }

    /// Exactly the places at the end of pinned prefixes and of bases are protected.
    fn check_keepers(&self) -> Result<(), Violation> {
        let mut keepers: FxHashMap<BlockId, usize> = FxHashMap::default();
        for (id, node) in self.radix.arena.iter() {
            if let Some(&last) = node.blocks().last() {
                keepers.insert(last, self.keepers_at(id));
            }
        }
        for (id, place) in self.radix.places.all() {
            let is_whole = usize::from(id.positions) == crate::ids::BLOCK_POSITIONS;
            let expected = keepers.get(&id.block).copied().filter(|_| is_whole).unwrap_or(0);
            ensure!(place.keepers as usize == expected, "{id:?} is kept {} times", place.keepers);
        }
        Ok(())
    }

    fn check_table(&self, seq: SeqId, lease: NodeId, mut shared: &[BlockId]) -> Result<(), Violation> {
        for id in self.radix.path_up(lease) {
            let node = &self.radix.arena[id];
            let partial = node.blocks().iter().find(|&&block| self.radix.labels.is_partial(block));
            ensure!(partial.is_none(), "{seq:?} leases the partial {partial:?}");
            let rest = shared.strip_suffix(node.blocks());
            ensure!(rest.is_some(), "the table of {seq:?} differs from its lease at {id:?}");
            shared = rest.unwrap_or_default();
        }
        ensure!(shared.is_empty(), "{} blocks of {seq:?} are not leased", shared.len());
        Ok(())
    }
}

//! The block table of one running sequence, its lease on the tree, and its auxiliary state.
//!
//! Owns the list of blocks a sequence uses: first those shared with the tree, which its lease protects from
//! eviction, then its own. Never makes room: the caller makes sure that free blocks are available.
//!
//! ```text
//! table   [ s0 s1 s2 | o3 o4 o5 ]
//!           shared     owned          block i holds positions 16 i .. 16 i + 16
//!           lease ^                   the node that ends with s2; the root when none is shared
//!              [ p1 p2   p3 p4 p5 ]   windowed parts from the first one that its next rows may read
//! ```

use std::time::Duration;

use crate::admission::CopyPart;
use crate::ids::{BLOCK_POSITIONS, BlockId, NodeId, StateId, Token, blocks_for};
use crate::lifetime::Lifetime;
use crate::pool::Pool;
use crate::tree::Radix;

/// Block table of a running sequence.
#[derive(Debug)]
pub(crate) struct Table {
    blocks: Vec<BlockId>,
    shared: usize,
    lease: NodeId,
    /// When its sequence was admitted, on the caller's clock.
    started: Duration,
    /// How long the prefix it leaves is retained.
    pub(crate) lifetime: Lifetime,
    /// Whether it only holds its blocks for a copy of them, which is no use.
    is_copy: bool,
    /// Index of the first block whose windowed part it uses.
    parts_from: usize,
    /// Blocks that are withheld for its auxiliary state.
    units: usize,
    /// Its state, where layers have one.
    pub(crate) state: Option<StateId>,
    /// Blocks, by index, in which places are wanted; ascending.
    pub(crate) marks: Vec<usize>,
    /// Copies of its state to be stored in places: the index of the block at whose end each belongs, and the copy.
    pub(crate) saves: Vec<(usize, StateId)>,
}

/// The blocks that a table lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Missing {
    pub(crate) blocks: usize,
    /// Further blocks to be withheld for auxiliary state.
    pub(crate) units: usize,
}

impl Missing {
    pub(crate) fn all(self) -> usize {
        self.blocks + self.units
    }
}

/// The result of a publication.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Published {
    /// Blocks that passed from the sequence to the tree.
    pub(crate) blocks: usize,
    /// Blocks that were in the tree already, so that the sequence's own were freed.
    pub(crate) duplicates: usize,
}

impl Table {
    /// A table that starts with the `shared` blocks on the path to `lease`, which it locks.
    pub(crate) fn new(shared: Vec<BlockId>, lease: NodeId, lifetime: Lifetime, radix: &mut Radix) -> Table {
        radix.lock_path(lease);
        radix.count_reuse(lease);
        Table::of(shared, lease, lifetime, radix.now)
    }

    /// A table that holds the `shared` blocks on the path to `lease` for a copy, until they are [used](Table::begin_use).
    pub(crate) fn copy(shared: Vec<BlockId>, lease: NodeId, radix: &mut Radix) -> Table {
        radix.lock_path_for_copy(lease);
        Table { is_copy: true, ..Table::of(shared, lease, Lifetime::NOTHING, radix.now) }
    }

    fn of(shared: Vec<BlockId>, lease: NodeId, lifetime: Lifetime, started: Duration) -> Table {
        let count = shared.len();
        Table {
            shared: count,
            blocks: shared,
            lease,
            started,
            lifetime,
            is_copy: false,
            parts_from: count,
            units: 0,
            state: None,
            marks: Vec::new(),
            saves: Vec::new(),
        }
    }

    /// Has what it holds count as used from now on, if it held that for a copy.
    pub(crate) fn begin_use(&mut self, radix: &mut Radix) {
        if std::mem::take(&mut self.is_copy) {
            radix.use_copied_path(self.lease);
        }
    }

    pub(crate) fn is_copy(&self) -> bool {
        self.is_copy
    }

    pub(crate) fn blocks(&self) -> &[BlockId] {
        &self.blocks
    }

    /// The leading blocks, which belong to the tree.
    pub(crate) fn shared(&self) -> &[BlockId] {
        &self.blocks[..self.shared]
    }

    /// The remaining blocks, which belong to this sequence.
    pub(crate) fn owned(&self) -> &[BlockId] {
        &self.blocks[self.shared..]
    }

    pub(crate) fn lease(&self) -> NodeId {
        self.lease
    }

    /// Index of the first block whose windowed part it uses.
    pub(crate) fn parts_from(&self) -> usize {
        self.parts_from
    }

    pub(crate) fn units(&self) -> usize {
        self.units
    }

    /// Its blocks outside the tree, and those withheld for its auxiliary state.
    pub(crate) fn held(&self, radix: &Radix) -> usize {
        let saves = self.saves.len() * radix.places.needs().units(0, 1);
        self.owned().len() + self.units + saves
    }

    /// The blocks to add so that the table holds `positions`.
    pub(crate) fn missing(&self, positions: usize, radix: &Radix) -> Missing {
        let blocks = blocks_for(positions).saturating_sub(self.blocks.len());
        Missing { blocks, units: radix.places.needs().of_running(positions).saturating_sub(self.units) }
    }

    /// Adds the missing blocks, and a state if it has none; the content of that is arbitrary.
    pub(crate) fn extend(&mut self, missing: Missing, radix: &mut Radix, pool: &mut Pool) {
        pool.withhold(missing.units);
        self.units += missing.units;
        if radix.places.needs().has_state() && self.units > 0 && self.state.is_none() {
            self.state = Some(radix.places.take_state());
        }
        for _ in 0..missing.blocks {
            let block = pool.take();
            radix.places.hold(block);
            self.blocks.push(block);
        }
    }

    /// Holds the windowed parts of the shared blocks from `first` on, and of those before them, back to `earliest`,
    /// as far as they are held without a gap.
    pub(crate) fn hold_parts(&mut self, first: usize, earliest: usize, radix: &mut Radix) {
        let places = &mut radix.places;
        let before = (earliest..first).rev().take_while(|&index| places.is_held(self.blocks[index]));
        self.parts_from = before.last().unwrap_or(first).min(self.blocks.len());
        self.blocks[self.parts_from..].iter().for_each(|&block| places.hold(block));
    }

    /// Releases the windowed parts of the blocks before `first`.
    pub(crate) fn drop_parts(&mut self, first: usize, radix: &mut Radix) {
        let first = first.min(self.blocks.len()).max(self.parts_from);
        self.blocks[self.parts_from..first].iter().for_each(|&block| radix.places.let_go(block));
        self.parts_from = first;
    }

    /// Releases the state, unless it was taken, the saved states, and the blocks withheld for them.
    pub(crate) fn release_auxiliary(&mut self, radix: &mut Radix, pool: &mut Pool) {
        let saves = self.saves.len() * radix.places.needs().units(0, 1);
        pool.restore(std::mem::take(&mut self.units) + saves);
        let saves = self.saves.drain(..).map(|(_, state)| state);
        self.state.take().into_iter().chain(saves).for_each(|state| radix.places.release_state(state));
    }

    /// Moves the blocks that hold `tokens` (from position 0) into the tree, and moves the lease along.
    ///
    /// A partial last block becomes a partial leaf, after which the sequence must end.
    pub(crate) fn publish(&mut self, tokens: &[Token], radix: &mut Radix, pool: &mut Pool) -> Published {
        assert!(blocks_for(tokens.len()) <= self.blocks.len(), "what is published was reserved");
        let mut published = Published::default();
        while let Some(rest) = tokens.get(self.shared * BLOCK_POSITIONS..).filter(|rest| !rest.is_empty()) {
            self.begin_use(radix);
            match radix.closest_child(self.lease, rest) {
                // All the rest is cached, maybe as the first tokens of a block.
                Some((child, common)) if common == rest.len() => {
                    published.duplicates +=
                        self.share_known(child, blocks_for(common), tokens.len(), radix, pool);
                }
                Some((child, common)) if common >= BLOCK_POSITIONS => {
                    published.duplicates +=
                        self.share_known(child, common / BLOCK_POSITIONS, tokens.len(), radix, pool);
                }
                // The next block extends a partial leaf and replaces it; the retention requested for the leaf still
                // applies.
                Some((child, common)) if common == radix.first_block(child).valid().len() => {
                    let asked = radix.arena[child].life.keep;
                    let partial = radix.arena[child].blocks()[0];
                    // Without its windowed part the block cannot carry a place: the places are dropped with the leaf.
                    if radix.places.needs().windows.is_none() || self.shared >= self.parts_from {
                        radix.places.move_to(partial, self.blocks[self.shared]);
                    }
                    radix.pop(child, 1).release(pool);
                    let next = &rest[..rest.len().min(BLOCK_POSITIONS)];
                    published.blocks += self.publish_new(next, radix, pool);
                    radix.keep_as(self.lease, asked);
                }
                _ => published.blocks += self.publish_new(rest, radix, pool),
            }
        }
        published
    }

    /// Replaces the next `count` owned blocks, of `positions` computed ones, by the first blocks of `child`, which
    /// hold the same. Returns `count`.
    fn share_known(
        &mut self,
        child: NodeId,
        count: usize,
        positions: usize,
        radix: &mut Radix,
        pool: &mut Pool,
    ) -> usize {
        self.lease = radix.cut(child, count);
        radix.lock_reused(self.lease);
        let tree: Vec<BlockId> = radix.arena[self.lease].blocks().to_vec();
        for (index, shared) in (self.shared..).zip(tree) {
            let own = std::mem::replace(&mut self.blocks[index], shared);
            if index >= self.parts_from {
                self.pass_part(index, CopyPart { from: own, to: shared }, positions, radix);
            }
            pool.release(own);
        }
        self.shared += count;
        count
    }

    /// Holds the windowed part of the shared block at `index` instead of the sequence's own, from which it is
    /// copied if nobody holds it. That is impossible for a block of which the sequence has computed only the first
    /// of `positions`.
    fn pass_part(&mut self, index: usize, copy: CopyPart, positions: usize, radix: &mut Radix) {
        let known = (positions - index * BLOCK_POSITIONS).min(BLOCK_POSITIONS);
        let places = &mut radix.places;
        if !places.is_held(copy.to) && known == radix.labels.count(copy.to) {
            places.copy(copy);
        } else if !places.is_held(copy.to) {
            places.let_go(copy.from);
            // This is the last block: the sequence has computed all of every other one.
            self.blocks[self.parts_from..index].iter().for_each(|&block| places.let_go(block));
            self.parts_from = index + 1;
            return;
        }
        places.hold(copy.to);
        places.let_go(copy.from);
    }

    /// Moves the blocks that hold `rest` into the tree, and returns how many there are.
    fn publish_new(&mut self, rest: &[Token], radix: &mut Radix, pool: &mut Pool) -> usize {
        let count = blocks_for(rest.len());
        let new = &self.blocks[self.shared..self.shared + count];
        self.lease = radix.grow(self.lease, rest, new);
        new.iter().for_each(|&block| pool.share(block));
        self.shared += count;
        count
    }

    /// Ends the sequence: frees its own blocks and unlocks the shared ones, which are retained from now on for at
    /// least the lifetime it asked for. What was held for a copy is retained as before.
    pub(crate) fn release(mut self, radix: &mut Radix, pool: &mut Pool) {
        self.drop_parts(usize::MAX, radix);
        self.release_auxiliary(radix, pool);
        self.owned().iter().rev().for_each(|&block| pool.release(block));
        if self.is_copy {
            return radix.unlock_path_of_copy(self.lease);
        }
        radix.keep(self.lease, self.lifetime);
        radix.note_uses(self.lease, self.started);
        radix.unlock_path(self.lease);
    }
}

//! S3-FIFO (Yang et al. 2023): a small queue that blocks used once pass through quickly, and a main queue in
//! which every use earns another round.
//!
//! A leaf enters `small` in the order of publication. Its first reuse, or its recomputation after an eviction,
//! moves it to the end of `main`. `small` yields the victim as long as it holds more than a tenth of the blocks.
//! Otherwise the first leaf of `main` is the victim if it has no credit; if it has one, it spends it and moves to
//! the end.

use rustc_hash::FxHashMap;

use crate::evict::facts::Facts;
use crate::evict::order::Order;
use crate::evict::ranking::{Context, Ranking};
use crate::ids::NodeId;

/// `small` keeps at least one block in this many.
const SMALL_SHARE: usize = 10;
const CREDITS_MAX: u32 = 3;

/// The two queues.
#[derive(Debug, Default)]
pub(crate) struct S3Fifo {
    small: Order,
    main: Order,
    /// Turns of nodes that are or were in `main`. The birth distinguishes an evicted node from a later one with the
    /// same id.
    turns: FxHashMap<NodeId, Turn>,
    /// Orders the leaves that move to the end at the same time.
    rounds: u64,
}

#[derive(Debug, Clone, Copy)]
struct Turn {
    born: u64,
    /// Its rank in `main`.
    since: (u64, u64),
    credits: u32,
    /// Number of its reuses that are counted in `credits`.
    reuses: u32,
}

impl Ranking for S3Fifo {
    fn insert(&mut self, leaf: NodeId, facts: Facts) {
        if facts.reuses == 0 {
            return self.small.insert(leaf, (facts.born, facts.used), facts.blocks);
        }
        let new = Turn { born: facts.born, since: (facts.used, 0), credits: 0, reuses: facts.reuses };
        let turn = self.turns.entry(leaf).or_insert(new);
        if turn.born != facts.born {
            *turn = new;
        }
        turn.credits = (turn.credits + facts.reuses.saturating_sub(turn.reuses)).min(CREDITS_MAX);
        turn.reuses = facts.reuses;
        self.main.insert(leaf, turn.since, facts.blocks);
    }

    fn remove(&mut self, leaf: NodeId) {
        if self.small.remove(leaf).is_none() {
            self.main.remove(leaf);
        }
    }

    fn shrink(&mut self, leaf: NodeId, by: u32) {
        self.small.shrink(leaf, by);
        self.main.shrink(leaf, by);
    }

    fn victim(&mut self, context: Context<'_>) -> Option<NodeId> {
        let small = self.small.first().map(|(_, leaf)| leaf);
        if self.small.blocks() > context.capacity / SMALL_SHARE {
            return small;
        }
        while let Some((_, leaf)) = self.main.first() {
            let turn = self.turns.get_mut(&leaf).expect("every leaf of the main queue has a turn");
            if turn.credits == 0 {
                return Some(leaf);
            }
            self.rounds += 1;
            turn.credits -= 1;
            turn.since = (context.now, self.rounds);
            let since = turn.since;
            let blocks = self.main.remove(leaf).expect("it is the first");
            self.main.insert(leaf, since, blocks);
        }
        small
    }

    fn leaves(&self) -> Vec<NodeId> {
        self.small.leaves().chain(self.main.leaves()).collect()
    }
}

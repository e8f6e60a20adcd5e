//! Every policy by itself: its leaves, and its characteristic behaviour.

use std::collections::{BTreeMap, BTreeSet};

use super::Policy;
use crate::evict::facts::Facts;
use crate::evict::ranking::{Context, Ranking, Return};
use crate::evict::rhythm::Rhythm;
use crate::evict::sample::Sample;
use crate::ids::NodeId;

const CAPACITY: usize = 100;

/// A ranking with a clock.
struct World {
    ranking: Box<dyn Ranking>,
    sample: Sample,
    now: u64,
}

impl World {
    fn new(policy: Policy) -> World {
        World { ranking: policy.ranking(), sample: Sample::new(CAPACITY), now: 0 }
    }

    /// Uses a leaf of `blocks` blocks and leaves it, for the `reuses`th time after the first.
    fn leave(&mut self, leaf: u32, reuses: u32, blocks: u32) {
        self.now += u64::from(blocks);
        let (used, rhythm) = (self.now, Rhythm::of(u64::from(leaf) << 8));
        let facts = Facts { used, used_ms: used, born: u64::from(leaf), reuses, rhythm, depth: leaf, blocks };
        self.ranking.insert(NodeId(leaf), facts);
    }

    fn reuse(&mut self, leaf: u32, reuses: u32, blocks: u32) {
        self.ranking.remove(NodeId(leaf));
        self.leave(leaf, reuses, blocks);
    }

    fn victim(&mut self) -> Option<NodeId> {
        let context = Context { now: self.now, now_ms: self.now, capacity: CAPACITY, sample: &self.sample };
        self.ranking.victim(context)
    }

    /// Evicts all leaves; returns them in that order.
    fn drain(&mut self) -> Vec<u32> {
        std::iter::from_fn(|| {
            let leaf = self.victim()?;
            self.ranking.remove(leaf);
            Some(leaf.0)
        })
        .collect()
    }
}

#[test]
fn every_policy_knows_its_leaves_and_gives_one_of_them() {
    for policy in Policy::ALL {
        let mut world = World::new(policy);
        let mut leaves: BTreeMap<u32, u32> = BTreeMap::new();
        for step in 0_u64..20_000 {
            let random = (step.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) as u32;
            let (leaf, blocks) = (random % 61, 1 + random / 61 % 5);
            match leaves.get_mut(&leaf) {
                None => {
                    world.leave(leaf, random % 4, blocks);
                    leaves.insert(leaf, blocks);
                }
                Some(left) if random.is_multiple_of(3) && *left > 1 => {
                    world.ranking.shrink(NodeId(leaf), 1);
                    *left -= 1;
                }
                Some(left) if random % 3 == 1 => {
                    let blocks = *left;
                    world.reuse(leaf, random % 7, blocks);
                }
                Some(_) => {
                    let victim = world.victim().unwrap();
                    assert!(leaves.remove(&victim.0).is_some(), "{} gave {victim:?}", policy.name());
                    world.ranking.remove(victim);
                }
            }
            if step.is_multiple_of(97) {
                let known: BTreeSet<u32> = world.ranking.leaves().into_iter().map(|leaf| leaf.0).collect();
                assert_eq!(known, leaves.keys().copied().collect(), "{}", policy.name());
            }
        }
        assert_eq!(world.drain().len(), leaves.len(), "{}", policy.name());
        assert_eq!(world.victim(), None);
    }
}

#[test]
fn lru_takes_the_oldest() {
    let mut world = World::new(Policy::Lru);
    (0..4).for_each(|leaf| world.leave(leaf, 0, 1));
    world.reuse(1, 9, 1);
    assert_eq!(world.drain(), [0, 2, 3, 1]);
}

#[test]
fn old_fame_fades_under_lfu() {
    let mut world = World::new(Policy::Lfu);
    world.leave(0, 5, 1);
    world.leave(1, 2, 1);
    world.leave(2, 3, 1);
    assert_eq!(world.victim(), Some(NodeId(1)), "the least often reused");
    // Every victim raises the ageing value: after some rounds a new leaf outranks the old favourite.
    for leaf in 10..16 {
        let victim = world.victim().unwrap();
        world.ranking.remove(victim);
        world.leave(leaf, 2, 1);
    }
    assert!(!world.ranking.leaves().contains(&NodeId(0)));
}

#[test]
fn slru_spares_what_was_reused_until_probation_is_small() {
    let mut world = World::new(Policy::Slru);
    world.leave(0, 1, 30);
    world.leave(1, 1, 30);
    world.leave(2, 0, 20);
    world.leave(3, 0, 20);
    assert_eq!(world.victim(), Some(NodeId(2)), "probation holds 40 blocks of 100");
    world.ranking.remove(NodeId(2));
    assert_eq!(world.victim(), Some(NodeId(3)), "20 are no more than a fifth: the oldest is demoted behind");
    world.ranking.remove(NodeId(3));
    assert_eq!(world.drain(), [0, 1]);
}

#[test]
fn s3_fifo_gives_another_round_for_every_use() {
    let mut world = World::new(Policy::S3Fifo);
    world.leave(0, 0, 20);
    assert_eq!(world.victim(), Some(NodeId(0)), "the small queue holds more than a tenth");
    world.ranking.remove(NodeId(0));
    world.leave(1, 1, 1);
    world.leave(2, 1, 1);
    world.reuse(1, 2, 1);
    assert_eq!(world.drain(), [2, 1], "1 is first and has a credit");
}

#[test]
fn arc_gives_room_to_the_side_that_lost_too_much() {
    let mut world = World::new(Policy::Arc);
    world.leave(0, 0, 10);
    world.leave(1, 1, 10);
    assert_eq!(world.victim(), Some(NodeId(0)), "nothing is meant for the recent");
    let back = Return { reuses: 0, ghosts_recent: 1, ghosts_frequent: 12 };
    world.ranking.returned(back, CAPACITY);
    assert_eq!(world.victim(), Some(NodeId(1)), "12 blocks are now");
    world.ranking.returned(Return { reuses: 1, ghosts_recent: 8, ghosts_frequent: 1 }, CAPACITY);
    assert_eq!(world.victim(), Some(NodeId(0)), "4 are left");
}

#[test]
fn deep_blocks_are_dear() {
    let mut world = World::new(Policy::Cost);
    [300, 2, 100].into_iter().for_each(|depth| world.leave(depth, 0, 1));
    assert_eq!(world.drain(), [2, 100, 300]);
}

#[test]
fn without_experience_a_forecast_is_lru() {
    for policy in [Policy::Forecast, Policy::Rhythm] {
        let mut world = World::new(policy);
        for leaf in 0..20 {
            world.leave(leaf, 0, 100);
        }
        world.reuse(3, 0, 100);
        let order = world.drain();
        assert_eq!((order[0], order[1], order[19]), (0, 1, 3), "{}", policy.name());
    }
}

#[test]
fn what_an_evicted_leaf_continued_is_planned_at_once() {
    for policy in [Policy::Forecast, Policy::Rhythm] {
        let mut world = World::new(policy);
        (0..2).for_each(|leaf| world.leave(leaf, 0, 100));
        assert_eq!(world.victim(), Some(NodeId(0)));
        world.ranking.remove(NodeId(0));
        let rhythm = Rhythm::default();
        let facts = Facts { used: 50, used_ms: 50, born: 0, reuses: 5, rhythm, depth: 1, blocks: 1 };
        world.ranking.insert(NodeId(7), facts);
        assert_eq!(world.victim(), Some(NodeId(7)), "{}: the oldest, of another class", policy.name());
    }
}

#[test]
fn policies_are_read_as_written() {
    for policy in Policy::ALL {
        assert_eq!(policy.name().parse(), Ok(policy));
    }
    let error = "fifo".parse::<Policy>().unwrap_err();
    assert!(error.to_string().contains("s3-fifo"), "{error}");
}

/// Look-ups in the tree for a policy cost time, and `lru` must not need any.
#[test]
fn lru_needs_no_history_and_forecasts_alone_the_sample() {
    for policy in Policy::CANDIDATES {
        let ranking = policy.ranking();
        assert_eq!(ranking.needs_ghost_history(), policy != Policy::Lru, "{}", policy.name());
        let is_forecast = matches!(policy, Policy::Forecast | Policy::Rhythm);
        assert_eq!(ranking.needs_sample(), is_forecast, "{}", policy.name());
    }
}

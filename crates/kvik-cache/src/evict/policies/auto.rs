//! Follows the policy that would have done best on this server's own traffic.
//!
//! Every candidate runs in a shadow of the cache, on all of the traffic or on a sample of it. `auto` begins with
//! the candidate that is best on most traffic, and switches when that would have been worthwhile: when the lead of
//! another over the policy followed exceeds both the cost of a switch and chance. A switch ranks all leaves anew
//! from their facts, but the cache still holds what the earlier policy has chosen. Until that is replaced it does
//! worse than either, so that switching between two that are nearly equal lost up to 7% of the hits.

use std::collections::BTreeMap;

use super::Policy;
use crate::evict::requests::{BlockUse, Request};
use crate::evict::sample::Sample;
use crate::evict::shadow::Shadow;
use crate::ids::TenantId;

/// Maximum number of blocks in one shadow, about 100 bytes each; a larger pool is sampled.
const SHADOW_BLOCKS_MAX: usize = 1 << 15;
/// Sampled uses between two judgements.
const ROUND_USES: usize = 1024;
/// Decay of earlier rounds per round: the last 500 rounds have most of the weight.
const DECAY: f64 = 0.998;
/// The cost of a switch in hits, for each block kept.
const SWITCH_HITS: f64 = 0.5;

/// The shadows, and which of them is followed.
#[derive(Debug)]
pub(crate) struct Auto {
    shadows: Vec<Shadow>,
    followed: usize,
    pool_blocks: usize,
    /// The sample holds one block in this many; a power of two.
    sample: usize,
    /// Blocks that each tenant had left when one of its blocks was last evicted.
    kept: BTreeMap<TenantId, usize>,
    since_judgement: usize,
    /// Hits of each shadow since the last judgement.
    hits: Vec<f64>,
    /// By shadow and other shadow.
    leads: Vec<Vec<Lead>>,
}

/// The lead of one shadow over another in hits, over all rounds.
#[derive(Debug, Clone, Copy, Default)]
struct Lead {
    hits: f64,
    /// The decayed sum of the squares of all rounds: the variance of `hits` if the leads were chance.
    variance: f64,
}

impl Auto {
    /// An `Auto` that follows the first policy until another has done better.
    pub(crate) fn new(pool_blocks: usize, ghosts: usize) -> Auto {
        let sample = pool_blocks.div_ceil(SHADOW_BLOCKS_MAX).max(1).next_power_of_two();
        let shadow = |policy| Shadow::new(policy, ghosts.div_ceil(sample));
        let count = Policy::CANDIDATES.len();
        let first = Policy::CANDIDATES.iter().position(|&policy| policy == Policy::FIRST);
        Auto {
            shadows: Policy::CANDIDATES.map(shadow).into(),
            followed: first.expect("the first policy is a candidate"),
            pool_blocks,
            sample,
            kept: BTreeMap::new(),
            since_judgement: 0,
            hits: vec![0.0; count],
            leads: vec![vec![Lead::default(); count]; count],
        }
    }

    pub(crate) fn followed(&self) -> Policy {
        self.shadows[self.followed].policy
    }

    /// Notes how many blocks a tenant keeps while space is short.
    pub(crate) fn note_kept(&mut self, tenant: TenantId, blocks: usize) {
        self.kept.insert(tenant, blocks);
    }

    /// Notes a request. Returns the policy to follow from now on, if that changes.
    pub(crate) fn note(&mut self, request: &Request, sample: &Sample) -> Option<Policy> {
        let sampled = self.sampled(request);
        let capacity = self.capacity();
        for (shadow, hits) in self.shadows.iter_mut().zip(&mut self.hits) {
            *hits += shadow.note(&sampled, capacity, sample) as f64;
        }
        self.since_judgement += sampled.uses.len();
        if self.since_judgement < ROUND_USES {
            return None;
        }
        self.since_judgement = 0;
        self.count_leads();
        self.judge(SWITCH_HITS * capacity as f64)
    }

    /// The blocks of a request that are in the sample.
    fn sampled(&self, request: &Request) -> Request {
        // Different bits than those that choose the sample of `Gittins` and the slots of ghosts.
        let is_in = |used: &&BlockUse| (used.block.0.get() >> 52) as usize & (self.sample - 1) == 0;
        Request { uses: request.uses.iter().filter(is_in).copied().collect(), ..*request }
    }

    /// Blocks that a shadow keeps: the sample's part of the cached blocks that no running sequence owns.
    fn capacity(&self) -> usize {
        let kept = self.kept.values().sum::<usize>();
        let kept = if self.kept.is_empty() { self.pool_blocks } else { kept.min(self.pool_blocks) };
        kept.div_ceil(self.sample)
    }

    fn count_leads(&mut self) {
        for (leads, own) in self.leads.iter_mut().zip(&self.hits) {
            for (lead, other) in leads.iter_mut().zip(&self.hits) {
                lead.hits = lead.hits * DECAY + other - own;
                lead.variance = lead.variance * DECAY + (other - own).powi(2);
            }
        }
        self.hits.fill(0.0);
    }

    fn judge(&mut self, cost: f64) -> Option<Policy> {
        let leads = &self.leads[self.followed];
        let pays = |lead: &Lead| lead.hits > cost && lead.hits > lead.variance.sqrt();
        let better = (0..leads.len()).filter(|&other| pays(&leads[other]));
        self.followed = better.max_by(|&a, &b| leads[a].hits.total_cmp(&leads[b].hits))?;
        Some(self.followed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An `Auto` whose candidates all had `hits` in one round, except one of them.
    fn auto(hits: f64, policy: Policy, other: f64) -> Auto {
        let mut auto = Auto::new(100, 100);
        auto.hits.fill(hits);
        let index = Policy::CANDIDATES.iter().position(|&candidate| candidate == policy).unwrap();
        auto.hits[index] = other;
        auto.count_leads();
        auto
    }

    #[test]
    fn it_follows_when_a_switch_pays() {
        let mut auto = auto(100.0, Policy::Cost, 140.0);
        assert_eq!(auto.followed(), Policy::FIRST);
        assert_eq!(auto.judge(40.0), None, "one round is not more than chance");
        auto.hits[0] = 10.0;
        for _ in 0..3 {
            auto.hits.fill(100.0);
            let index = Policy::CANDIDATES.iter().position(|&policy| policy == Policy::Cost).unwrap();
            auto.hits[index] = 140.0;
            auto.count_leads();
        }
        assert_eq!(auto.judge(200.0), None, "it has 160 more");
        assert_eq!(auto.judge(100.0), Some(Policy::Cost));
        assert_eq!(auto.judge(100.0), None, "it is followed now");
    }

    #[test]
    fn shadows_keep_what_the_cache_keeps() {
        let mut auto = Auto::new(4 * SHADOW_BLOCKS_MAX, 100);
        assert_eq!(auto.capacity(), SHADOW_BLOCKS_MAX);
        auto.note_kept(TenantId(1), 30_000);
        auto.note_kept(TenantId(2), 10_000);
        assert_eq!(auto.capacity(), 10_000);
    }
}

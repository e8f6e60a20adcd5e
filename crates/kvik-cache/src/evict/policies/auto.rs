//! Follows the policy that would have done best on this server's own traffic.
//!
//! Every candidate runs on a sample of the traffic in a shadow of the cache, and `auto` follows the one with the
//! most recent hits. It switches only to a candidate that is clearly better, so that two equal ones do not
//! alternate. A switch ranks all leaves anew from their facts, so the new order holds at once.

use super::Policy;
use crate::evict::gittins::Gittins;
use crate::evict::shadow::Shadow;
use crate::hash::Fingerprint;

/// Blocks in one shadow, at most twice as many.
const SHADOW_BLOCKS: usize = 512;
/// Sampled uses between two judgements.
const ROUND_USES: usize = 1024;
/// Weight of the hits of earlier rounds: the last 20 rounds have most of it.
const DECAY: f64 = 0.95;
/// A successor needs this many times the hits of the policy followed.
const LEAD: f64 = 1.02;
/// And this many hits more: a few are chance.
const LEAD_HITS: f64 = 32.0;

/// The shadows, and which of them is followed.
#[derive(Debug)]
pub(crate) struct Auto {
    shadows: Vec<Shadow>,
    followed: usize,
    /// The sample holds one block in this many; a power of two.
    sample: u64,
    since_judgement: usize,
}

impl Auto {
    /// Follows the first candidate until another has done better.
    pub(crate) fn new(pool_blocks: usize, ghosts: usize) -> Auto {
        let sample = (pool_blocks / SHADOW_BLOCKS).max(1).next_power_of_two() / 2;
        let sample = sample.max(1);
        let [blocks, ghosts] = [pool_blocks, ghosts].map(|count| count.div_ceil(sample));
        let shadow = |policy| Shadow::new(policy, blocks, ghosts);
        Auto {
            shadows: Policy::CANDIDATES.map(shadow).into(),
            followed: 0,
            sample: sample as u64,
            since_judgement: 0,
        }
    }

    pub(crate) fn followed(&self) -> Policy {
        self.shadows[self.followed].policy
    }

    /// Notes the use of a block. Returns the policy to follow from now on, when it is another.
    pub(crate) fn note(
        &mut self,
        block: Fingerprint,
        depth: u32,
        now: u64,
        gittins: &Gittins,
    ) -> Option<Policy> {
        // Other bits than those that choose the sample of `Gittins` and the slots of ghosts.
        if (block.0.get() >> 52) & (self.sample - 1) != 0 {
            return None;
        }
        self.shadows.iter_mut().for_each(|shadow| shadow.note(block, depth, now, gittins));
        self.since_judgement += 1;
        if self.since_judgement < ROUND_USES {
            return None;
        }
        self.since_judgement = 0;
        self.judge()
    }

    fn judge(&mut self) -> Option<Policy> {
        let hits = |index: usize| self.shadows[index].hits;
        let best = (0..self.shadows.len()).rev().max_by(|&a, &b| hits(a).total_cmp(&hits(b)))?;
        let leads = hits(best) > hits(self.followed) * LEAD && hits(best) > hits(self.followed) + LEAD_HITS;
        self.shadows.iter_mut().for_each(|shadow| shadow.hits *= DECAY);
        leads.then(|| {
            self.followed = best;
            self.followed()
        })
    }
}

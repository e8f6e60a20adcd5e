//! By representatives: most of the retained positions have the highest scores of a base policy; the others
//! represent the positions that the base would drop (KVCrush, arXiv 2503.00022, as implemented in OpenVINO GenAI).
//!
//! Every position is a bit: whether it is in the better half. Runs of positions are words of such bits. Sorted by
//! the Hamming distance to an anchor, similar runs are adjacent, and runs at equal steps represent them.

use super::h2o::H2o;
use super::rules::{Fault, Rules, Scene, choice, options, require};
use super::snapkv::Snapkv;
use crate::retain::facts::{LayerFacts, Watch};
use crate::retain::mix::mixed;
use crate::retain::rank;
use crate::retain::state::LayerState;

choice! {
    /// The policy whose dropped positions are represented.
    CrushBase {
        /// `snapkv`
        Snapkv = "snapkv",
        /// `h2o`
        H2o = "h2o",
    }
}

choice! {
    /// The word from which distances are measured.
    Anchor {
        /// Each bit as in the majority of runs.
        Mean = "mean",
        /// No bit set.
        Zeros = "zeros",
        /// Every bit set.
        Ones = "ones",
        /// Every second bit set.
        Alternating = "alternating",
        /// Pseudo-random bits, the same in every run of the program.
        Random = "random",
    }
}

options! {
    /// Retains the choice of a base policy, and representatives of what it drops (KVCrush).
    Kvcrush {
        /// The base policy, with its default options.
        base: CrushBase = CrushBase::Snapkv,
        /// The share of the retained positions that are representatives.
        share: f32 = 0.0625,
        /// Positions per run.
        block: usize = 16,
        /// The word from which distances are measured.
        anchor: Anchor = Anchor::Mean,
    }
}

impl Kvcrush {
    fn base(&self) -> &dyn Rules {
        match self.base {
            CrushBase::Snapkv => &Snapkv::DEFAULT,
            CrushBase::H2o => &H2o::DEFAULT,
        }
    }
}

impl Rules for Kvcrush {
    fn watch(&self, sinks: usize) -> Watch {
        self.base().watch(sinks)
    }

    fn accumulates(&self) -> bool {
        self.base().accumulates()
    }

    fn recent(&self, at: usize) -> usize {
        self.base().recent(at)
    }

    fn window_shrinks(&self) -> bool {
        self.base().window_shrinks()
    }

    fn scores(&self, scene: Scene, layer: &LayerFacts, state: &mut LayerState) -> Vec<Vec<f32>> {
        let mut scores = self.base().scores(scene, layer, state);
        for ((scores, head), room) in scores.iter_mut().zip(&layer.heads).zip(scene.rooms) {
            let judged = room.judged(&head.positions, scene.at);
            let free = room.quota.saturating_sub(head.positions.len() - judged.len());
            self.raise(&mut scores[judged.clone()], &head.positions[judged], free);
        }
        scores
    }

    fn fault(&self) -> Option<Fault> {
        require((0.0..=1.0).contains(&self.share), "share", self.share, "from 0 to 1").or(require(
            (1..=1024).contains(&self.block),
            "block",
            self.block,
            "between 1 and 1024",
        ))
    }
}

impl Kvcrush {
    /// Raises the scores of the representatives above the lowest of the base's choice. `free` positions are retained.
    fn raise(&self, scores: &mut [f32], positions: &[u32], free: usize) {
        let represented = (free as f32 * self.share) as usize;
        if represented == 0 || free >= scores.len() {
            return;
        }
        let ranks: Vec<u64> =
            scores.iter().zip(positions).map(|(&score, &at)| rank::scored(score, at)).collect();
        let chosen = lowest(&ranks, (free - represented).max(1));
        let weakest =
            ranks.iter().position(|&rank| rank == chosen).map_or(f32::INFINITY, |index| scores[index]);
        let runs = self.runs(&ranks, chosen);
        let wanted = represented.div_ceil(self.block).min(runs.len());
        let step = (runs.len() / wanted.max(1)).max(1);
        let even = (0..wanted).map(|pick| runs[pick * step]);
        // Runs that are partly chosen already yield too few: the rest follows in order of distance.
        let others = runs
            .iter()
            .enumerate()
            .filter(|(index, _)| index % step != 0 || index / step >= wanted)
            .map(|(_, &run)| run);
        let dropped = even.chain(others).flat_map(|run| {
            let indices = run * self.block..((run + 1) * self.block).min(ranks.len());
            indices.filter(|&index| ranks[index] < chosen)
        });
        dropped.take(represented).for_each(|index| scores[index] = weakest.next_up());
    }

    /// The runs that contain a position ranked below `chosen`, the nearest to the anchor first.
    fn runs(&self, ranks: &[u64], chosen: u64) -> Vec<usize> {
        let better = lowest(ranks, (ranks.len() / 2).max(1));
        let anchor: Vec<bool> = (0..self.block).map(|bit| self.anchor_bit(bit, ranks, better)).collect();
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for (run, ranks) in ranks.chunks(self.block).enumerate() {
            let differs = |(&rank, &bit): (&u64, &bool)| (rank >= better) != bit;
            if ranks.iter().any(|&rank| rank < chosen) {
                runs.push((ranks.iter().zip(&anchor).filter(|&pair| differs(pair)).count(), run));
            }
        }
        runs.sort_unstable();
        runs.into_iter().map(|(_, run)| run).collect()
    }

    fn anchor_bit(&self, bit: usize, ranks: &[u64], better: u64) -> bool {
        match self.anchor {
            Anchor::Mean => {
                let bits = ranks.iter().skip(bit).step_by(self.block);
                2 * bits.clone().filter(|&&rank| rank >= better).count() > bits.count()
            }
            Anchor::Zeros => false,
            Anchor::Ones => true,
            Anchor::Alternating => bit % 2 == 1,
            Anchor::Random => mixed(bit as u64) % 2 == 1,
        }
    }
}

/// The lowest of the `count` highest ranks.
fn lowest(ranks: &[u64], count: usize) -> u64 {
    rank::threshold(&mut ranks.to_vec(), count)
}

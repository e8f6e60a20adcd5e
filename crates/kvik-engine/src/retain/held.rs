//! The stored positions of a sequence at a point, exact or compressed: read for the facts, and moved to new storage.

use kvik_cache::retain::{Decision, LayerFacts, Retention};
use kvik_cache::{BLOCK_POSITIONS, BlockId};
use kvik_model::ModelRunner;
use kvik_model::batch::{LayerTails, Retainer, SequenceKv, StoredLayer};
use kvik_model::gates::{GateSchool, Gates};
use kvik_model::observation::Observation;

use super::ragged::{Ragged, TailViews};
use super::sinks::Sinks;

/// The stored positions of one sequence.
#[derive(Debug, Clone, Copy)]
pub struct Held<'a> {
    /// Its blocks, which hold all positions if none were dropped.
    pub blocks: &'a [BlockId],
    /// Storage of the retained positions, after the first pass.
    pub storage: Option<&'a Ragged>,
    /// Number of its tokens.
    pub tokens: usize,
}

impl Held<'_> {
    /// Calls `with` with the stored positions in the form that a batch takes.
    pub fn with_kv<T>(&self, with: impl FnOnce(&SequenceKv<'_>) -> T) -> T {
        let views: Option<TailViews<'_>> = self.storage.map(Ragged::views);
        let tails: Vec<LayerTails<'_>> = views.as_ref().map_or_else(Vec::new, TailViews::layers);
        with(&SequenceKv { tails: &tails, ..SequenceKv::in_blocks(self.blocks) })
    }

    /// The positions that the `heads` heads of a layer store.
    fn positions(&self, layer: usize, heads: usize) -> Vec<Vec<u32>> {
        match self.storage {
            Some(storage) => storage.positions(layer, self.tokens),
            None => vec![(0..self.tokens as u32).collect(); heads],
        }
    }

    /// The facts of one layer that `retention` needs; `gates` are those of the model, if it has any.
    pub fn facts(
        &self,
        retainer: &mut dyn Retainer,
        layer: usize,
        retention: &Retention,
        observation: &Observation,
        gates: Option<&Gates>,
    ) -> LayerFacts {
        let positions = self.positions(layer, retainer.layout().layers()[layer].kv_heads);
        let observed = observation.get(layer);
        self.with_kv(|kv| {
            let gates = gates.map(|gates| &gates.layers[layer][..]);
            let stored = StoredLayer { layer, kv: *kv, positions, tokens: self.tokens, observed, gates };
            retainer.facts(&stored, retention.needs())
        })
    }

    /// Adds what one layer stores to the samples of its gates. `observation` is of a repetition, and the first
    /// `skipped` positions were not repeated.
    pub fn teach(
        &self,
        runner: &ModelRunner,
        layer: usize,
        (observation, skipped): (&Observation, usize),
        school: &mut GateSchool,
    ) {
        let positions = self.positions(layer, Retainer::layout(runner).layers()[layer].kv_heads);
        let Some(observed) = observation.get(layer) else { return };
        let features = self.with_kv(|kv| {
            let tokens = self.tokens;
            runner.gate_features(&StoredLayer {
                layer,
                kv: *kv,
                positions,
                tokens,
                observed: None,
                gates: None,
            })
        });
        for (head, (rows, mass)) in features.iter().zip(&observed.mass).enumerate() {
            school.add([layer, head], rows, mass, skipped..self.tokens);
        }
    }

    /// The positions that a decision retains of those stored, `[layers][kv_heads]`.
    pub fn kept(&self, decision: &Decision) -> Vec<Vec<Vec<u32>>> {
        let layers = decision.kept.iter().enumerate().map(|(layer, heads)| {
            let heads = heads.iter().zip(self.positions(layer, heads.len()));
            heads.map(|(kept, stored)| kept.iter().map(|&index| stored[index as usize]).collect()).collect()
        });
        layers.collect()
    }

    /// Copies of the first `count` keys before RoPE rotation; only an exact sequence has them.
    pub fn sinks(&self, retainer: &dyn Retainer, count: usize) -> Option<Sinks> {
        let count = count.min(self.tokens);
        (count > 0 && self.storage.is_none()).then(|| self.with_kv(|kv| Sinks::copy(retainer, kv, count)))
    }

    /// Moves the retained positions of a layer to the tiles of `to`, and renews the RoPE rotation of `sinks`. Positions
    /// in shared blocks stay where they are.
    pub fn move_layer(
        &self,
        retainer: &mut dyn Retainer,
        layer: usize,
        (decision, to): (&Decision, &Ragged),
        sinks: Option<&Sinks>,
    ) {
        let shared = to.shared() * BLOCK_POSITIONS;
        let kept: Vec<&[u32]> = decision.kept[layer].iter().map(|kept| &kept[shared..]).collect();
        self.with_kv(|from| retainer.move_positions(layer, from, &kept, &to.tiles(layer)));
        let Some(sinks) = sinks else { return };
        let windows = to.positions_at(layer, sinks.count(), self.tokens);
        let kept = Held { blocks: &[], storage: Some(to), tokens: self.tokens };
        kept.with_kv(|kv| sinks.rotate(retainer, layer, kv, &windows));
    }

    /// Fits the values of a layer's retained positions, which were moved to the tiles of `to`, to the queries in
    /// `observation`. The whole blocks of protected positions stay as they are, whether other sequences share them or
    /// not.
    pub fn fit_layer(
        &self,
        retainer: &mut dyn Retainer,
        layer: usize,
        (decision, to): (&Decision, &Ragged),
        (retention, observation): (&Retention, &Observation),
    ) {
        let fixed = retention.protect / BLOCK_POSITIONS * BLOCK_POSITIONS;
        debug_assert!(to.shared() * BLOCK_POSITIONS <= fixed, "only protected positions are shared");
        let positions = self.positions(layer, retainer.layout().layers()[layer].kv_heads);
        let kept: Vec<&[u32]> = decision.kept[layer].iter().map(Vec::as_slice).collect();
        let (tokens, observed) = (self.tokens, observation.get(layer));
        let moved = Held { blocks: &self.blocks[..to.shared()], storage: Some(to), tokens };
        self.with_kv(|from| {
            let stored = StoredLayer { layer, kv: *from, positions, tokens, observed, gates: None };
            moved.with_kv(|to| retainer.fit_values(&stored, &kept, fixed, to));
        });
    }
}

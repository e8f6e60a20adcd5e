//! Facts about stored positions: norms and similarity of keys and values, expected attention.

use std::ops::Range;

use kvik_cache::retain::{HeadFacts, LayerFacts, Needs};
use kvik_kernels::{
    KvArena, Pool, RopeStyle, RopeTable, Rows, SeqKv, StoredVectors, expected_attention, likeness, rope_back,
    row_norms,
};

use super::batch::StoredLayer;
use super::gates::features;
use super::observation::LayerObservation;

/// Number of future positions over which the rotation of queries is averaged (Expected Attention, arXiv 2510.00636).
const FUTURE_POSITIONS: u32 = 512;

/// The context from which facts are computed, in addition to the stored positions of a sequence.
pub(super) struct FactsContext<'a> {
    pub(super) arena: &'a KvArena,
    pub(super) pool: &'a Pool,
    /// The rotation of the layer, if it has one.
    pub(super) rope: Option<&'a RopeTable>,
    pub(super) style: RopeStyle,
}

impl FactsContext<'_> {
    /// The facts in `needs` for every KV head of a layer with `heads` query heads.
    pub(super) fn facts(&self, heads: usize, stored: &StoredLayer<'_>, needs: Needs) -> LayerFacts {
        let blocks: Vec<u32> = stored.kv.blocks.iter().map(|block| block.0).collect();
        let kv = stored.kv.layer(stored.layer, &blocks);
        let kv_heads = stored.positions.len();
        let group = heads / kv_heads;
        let facts = stored.positions.iter().enumerate().map(|(head, positions)| {
            let head = Head { layer: stored.layer, head, kv, stored: positions.len() };
            let mut facts = self.of_vectors(&head, needs);
            if let Some(gates) = stored.gates.filter(|_| needs.gated) {
                facts.gated = gates[head.head].scores(&self.features(&head, positions));
            }
            facts.positions = positions.clone();
            if let Some(observed) = stored.observed {
                facts.mass = observed.mass.get(head.head).cloned().unwrap_or_default();
                facts.mass.resize(positions.len(), 0.0);
                if needs.expected {
                    let queries = head.head * group..(head.head + 1) * group;
                    facts.expected = self.expected(&head, stored.tokens, observed, queries);
                }
            }
            facts
        });
        LayerFacts { heads: facts.collect() }
    }

    /// Facts that depend only on keys and values.
    fn of_vectors(&self, head: &Head<'_>, needs: Needs) -> HeadFacts {
        let fact = |needed, compute: fn(&Pool, &dyn Rows, &mut [f32]), rows: StoredVectors<'_>| {
            let mut out = vec![0.0; if needed { head.stored } else { 0 }];
            compute(self.pool, &rows, &mut out);
            out
        };
        let keys = self.arena.keys(head.layer, head.head, &head.kv);
        let values = self.arena.values(head.layer, head.head, &head.kv);
        HeadFacts {
            key_norms: fact(needs.key_norms, row_norms, keys),
            likeness: fact(needs.likeness, likeness, keys),
            value_norms: fact(needs.value_norms, row_norms, values),
            ..HeadFacts::default()
        }
    }

    /// The features of the stored positions of each KV head of a layer, as its gate reads them.
    pub(super) fn features_of_heads(&self, stored: &StoredLayer<'_>) -> Vec<Vec<f32>> {
        let blocks: Vec<u32> = stored.kv.blocks.iter().map(|block| block.0).collect();
        let kv = stored.kv.layer(stored.layer, &blocks);
        let heads = stored.positions.iter().enumerate().map(|(head, positions)| {
            self.features(&Head { layer: stored.layer, head, kv, stored: positions.len() }, positions)
        });
        heads.collect()
    }

    /// The features of each stored position, [`features`].
    fn features(&self, head: &Head<'_>, positions: &[u32]) -> Vec<f32> {
        let copy = |vectors: StoredVectors<'_>| {
            let mut out = vec![0.0; head.stored * vectors.dim()];
            vectors.copy(0..head.stored, &mut out);
            (vectors.dim(), out)
        };
        let (key_dim, mut keys) = copy(self.arena.keys(head.layer, head.head, &head.kv));
        let (_, values) = copy(self.arena.values(head.layer, head.head, &head.kv));
        let needs = Needs { key_norms: true, value_norms: true, likeness: true, ..Needs::default() };
        let facts = self.of_vectors(head, needs);
        if let Some(table) = self.rope {
            // A gate must not depend on where a position is.
            rope_back(self.pool, &mut keys, key_dim, positions, table, self.style);
        }
        features([&keys, &values], &facts)
    }

    /// The expected attention of queries with the observed distribution at the positions after `tokens`.
    fn expected(
        &self,
        head: &Head<'_>,
        tokens: usize,
        observed: &LayerObservation,
        queries: Range<usize>,
    ) -> Vec<f32> {
        let mut expected = vec![0.0; head.stored];
        let Some(moments) = &observed.moments else { return expected };
        let skipped = observed.skipped.min(head.stored);
        let keys = self.arena.keys(head.layer, head.head, &head.kv).skip(skipped);
        let future = tokens as u32..tokens as u32 + FUTURE_POSITIONS;
        let rotation = self.rope.map(|rope| rope.mean_rotation(future)).unwrap_or_default();
        let out = &mut expected[skipped..];
        if !out.is_empty() {
            expected_attention(self.pool, moments, &rotation, self.style, &keys, queries, out);
        }
        expected
    }
}

/// A KV head of a layer of a sequence.
struct Head<'a> {
    layer: usize,
    head: usize,
    kv: SeqKv<'a>,
    /// Number of positions that it stores.
    stored: usize,
}

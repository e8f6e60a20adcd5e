//! What is known of stored positions: norms and likeness of keys and values, expected attention.

use std::ops::Range;

use kvik_cache::BLOCK_POSITIONS;
use kvik_cache::retain::{HeadFacts, LayerFacts, Needs};
use kvik_kernels::{
    KvArena, Pool, RopeStyle, RopeTable, SeqKv, expected_attention, likeness, redundancy, row_norms,
};

use super::batch::StoredLayer;
use super::observation::LayerObservation;

/// Positions to come over which the rotation of queries is averaged (Expected Attention, arXiv 2510.00636).
const FUTURE_POSITIONS: u32 = 512;

/// Positions that a thread reads at a time.
const PIECE: usize = 64 * BLOCK_POSITIONS;

/// The positions of piece `index`, `len` of them.
fn piece(index: usize, len: usize) -> Range<usize> {
    index * PIECE..index * PIECE + len
}

/// What facts are computed from besides what a sequence stores.
pub(super) struct FactsContext<'a> {
    pub(super) arena: &'a KvArena,
    pub(super) pool: &'a Pool,
    pub(super) rope: &'a RopeTable,
    pub(super) style: RopeStyle,
}

impl FactsContext<'_> {
    /// What is `needs`ed of every KV head of a layer with `heads` query heads.
    pub(super) fn facts(&self, heads: usize, stored: &StoredLayer<'_>, needs: Needs) -> LayerFacts {
        let blocks: Vec<u32> = stored.kv.blocks.iter().map(|block| block.0).collect();
        let kv = stored.kv.layer(stored.layer, &blocks);
        let kv_heads = stored.positions.len();
        let group = heads / kv_heads;
        let mut vectors = Vectors::default();
        let facts = stored.positions.iter().enumerate().map(|(head, positions)| {
            let head = Head { layer: stored.layer, head, kv, stored: positions.len() };
            let mut facts = self.of_vectors(&head, needs, &mut vectors);
            facts.positions = positions.clone();
            if let Some(observed) = stored.observed {
                facts.mass = observed.mass.get(head.head).cloned().unwrap_or_default();
                facts.mass.resize(positions.len(), 0.0);
                if needs.expected {
                    let queries = head.head * group..(head.head + 1) * group;
                    facts.expected = self.expected(&head, stored.tokens, observed, queries, &mut vectors);
                }
            }
            facts
        });
        LayerFacts { heads: facts.collect() }
    }

    /// What the keys and values alone say.
    fn of_vectors(&self, head: &Head<'_>, needs: Needs, vectors: &mut Vectors) -> HeadFacts {
        let mut facts = HeadFacts::default();
        let fact = |compute: &dyn Fn(&mut [f32])| {
            let mut out = vec![0.0; head.stored];
            compute(&mut out);
            out
        };
        if needs.key_norms || needs.likeness || needs.redundancy {
            let (keys, dim) = self.keys(head, 0, vectors);
            if needs.key_norms {
                facts.key_norms = fact(&|out| row_norms(self.pool, keys, dim, out));
            }
            if needs.likeness {
                facts.likeness = fact(&|out| likeness(self.pool, keys, dim, out));
            }
            if needs.redundancy {
                facts.redundancy = fact(&|out| redundancy(self.pool, keys, dim, out));
            }
        }
        if needs.value_norms {
            let dim = self.arena.layout().layers()[head.layer].value_dim;
            let values = vectors.of_len(head.stored * dim);
            self.pool.run_chunks(values, PIECE * dim, |index, out| {
                let range = piece(index, out.len() / dim);
                self.arena.read_values(head.layer, head.head, &head.kv, range, out);
            });
            facts.value_norms = fact(&|out| row_norms(self.pool, values, dim, out));
        }
        facts
    }

    /// The stored keys from number `first` on, and their length.
    fn keys<'v>(&self, head: &Head<'_>, first: usize, vectors: &'v mut Vectors) -> (&'v [f32], usize) {
        let dim = self.arena.layout().layers()[head.layer].key_dim;
        let keys = vectors.of_len((head.stored - first) * dim);
        self.pool.run_chunks(keys, PIECE * dim, |index, out| {
            let Range { start, end } = piece(index, out.len() / dim);
            self.arena.read_keys(head.layer, head.head, &head.kv, first + start..first + end, out);
        });
        (keys, dim)
    }

    /// The attention that queries like those observed are expected to pay at the positions after `tokens`.
    fn expected(
        &self,
        head: &Head<'_>,
        tokens: usize,
        observed: &LayerObservation,
        queries: Range<usize>,
        vectors: &mut Vectors,
    ) -> Vec<f32> {
        let mut expected = vec![0.0; head.stored];
        let Some(moments) = &observed.moments else { return expected };
        let skipped = observed.skipped.min(head.stored);
        let (keys, _) = self.keys(head, skipped, vectors);
        let rotation = self.rope.mean_rotation(tokens as u32..tokens as u32 + FUTURE_POSITIONS);
        let out = &mut expected[skipped..];
        if !out.is_empty() {
            expected_attention(self.pool, moments, &rotation, self.style, keys, queries, out);
        }
        expected
    }
}

/// One KV head of a layer of a sequence.
struct Head<'a> {
    layer: usize,
    head: usize,
    kv: SeqKv<'a>,
    /// Positions that it stores.
    stored: usize,
}

/// Room for the keys or the values of one head, used again for the next: new memory would cost more than reading into
/// it.
#[derive(Default)]
struct Vectors(Vec<f32>);

impl Vectors {
    /// So many numbers, with whatever was in them before.
    fn of_len(&mut self, len: usize) -> &mut [f32] {
        if self.0.len() < len {
            self.0 = vec![0.0; len];
        }
        &mut self.0[..len]
    }
}

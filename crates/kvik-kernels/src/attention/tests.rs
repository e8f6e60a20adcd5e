//! Attention compared with a plain f64 version, and tests of the exactness that the rest of kvik relies on.

use proptest::prelude::*;

use super::*;
use crate::kv::{HeadTail, KvFormat, KvKind, KvLayer, KvLayout, KvValues};
use crate::testing::Random;

mod compacted;
mod latent;
mod layers;
#[cfg(target_arch = "x86_64")]
mod units;
mod weights;

/// Roughly normal numbers.
fn vector(random: &mut Random, len: usize) -> Vec<f32> {
    (0..len).map(|_| (0..4).map(|_| random.float()).sum()).collect()
}

/// Sequences of random keys and values, stored in blocks in random order.
struct Store {
    arena: KvArena,
    tables: Vec<Vec<u32>>,
    /// `[sequences][len, kv_heads, head_dim]`
    k: Vec<Vec<f32>>,
    v: Vec<Vec<f32>>,
    /// Extras of calls: a soft cap, and sinks of their query heads.
    softcap: Option<f32>,
    sinks: Option<Vec<f32>>,
}

/// The layer under test, between two with other contents.
const LAYER: usize = 1;

impl Store {
    /// All sequences begin with `shared` blocks of the first.
    fn new(layer: KvLayer, lens: &[usize], shared: usize, seed: u64) -> Store {
        Store::scaled(layer, lens, shared, seed, [1.0, 1.0])
    }

    /// [`Store::new`] with every key and every value multiplied by a factor.
    fn scaled(layer: KvLayer, lens: &[usize], shared: usize, seed: u64, [by_k, by_v]: [f32; 2]) -> Store {
        let mut random = Random(seed);
        let [k_row, v_row] = [layer.key_dim, layer.value_dim].map(|dim| layer.kv_heads * dim);
        let neighbour = KvLayer { value_dim: 40, ..KvLayer::full(3, 24, KvFormat::Q8, KvFormat::F16) };
        let layout = KvLayout::new(vec![neighbour, layer, neighbour]);
        let blocks: usize = lens.iter().map(|len| len.div_ceil(BLOCK_POSITIONS) + 1).sum();
        let mut arena = KvArena::new(layout, blocks).unwrap();
        // Bytes after the last position must not matter, so they have the worst value.
        (0..blocks as u32).for_each(|block| arena.block_mut(block).fill(0xff));
        let mut free: Vec<u32> = (0..blocks as u32).collect();
        let mut take = |random: &mut Random| free.swap_remove(random.bits() as usize % free.len());
        let (tables, k, v) = (Vec::new(), Vec::new(), Vec::new());
        let mut store = Store { arena, tables, k, v, softcap: None, sinks: None };
        for &len in lens {
            let own = len.div_ceil(BLOCK_POSITIONS);
            let mut table: Vec<u32> = store.tables.first().map_or(vec![], |first| first[..shared].to_vec());
            table.truncate(own);
            let (mut k, mut v) = (vector(&mut random, len * k_row), vector(&mut random, len * v_row));
            k.iter_mut().for_each(|k| *k *= by_k);
            v.iter_mut().for_each(|v| *v *= by_v);
            if layer.values == KvValues::OfKeys {
                v = latent::values_of(&layer, &k);
            }
            let common = (table.len() * BLOCK_POSITIONS).min(len);
            if common > 0 {
                k[..common * k_row].copy_from_slice(&store.k[0][..common * k_row]);
                v[..common * v_row].copy_from_slice(&store.v[0][..common * v_row]);
            }
            while table.len() < own {
                table.push(take(&mut random));
            }
            let rows: Vec<SeqRow> = (1..=len as u32).map(|len| SeqRow { seq: 0, len }).collect();
            let seqs = [SeqKv { blocks: &table, tails: &[] }];
            store.arena.write(&Pool::new(1), LAYER, &rows, &seqs, [&k, stored_values(&layer, &v)]);
            store.tables.push(table);
            store.k.push(k);
            store.v.push(v);
        }
        store
    }

    fn layer(&self) -> KvLayer {
        self.arena.layout().layers()[LAYER]
    }

    /// Each sequence in its blocks, without tails.
    fn seqs(&self) -> Vec<SeqKv<'_>> {
        self.tables.iter().map(|blocks| SeqKv { blocks, tails: &[] }).collect()
    }

    fn attend(&self, isa: Isa, threads: usize, heads: usize, rows: &[SeqRow], q: &[f32]) -> Vec<f32> {
        self.attend_to(isa, threads, heads, rows, q, &self.seqs())
    }

    fn attend_to(
        &self,
        isa: Isa,
        threads: usize,
        heads: usize,
        rows: &[SeqRow],
        q: &[f32],
        seqs: &[SeqKv<'_>],
    ) -> Vec<f32> {
        self.attend_by(variants::kernels(isa, &self.layer()), threads, heads, rows, q, seqs)
    }

    fn attend_by(
        &self,
        kernels: AttentionKernels,
        threads: usize,
        heads: usize,
        rows: &[SeqRow],
        q: &[f32],
        seqs: &[SeqKv<'_>],
    ) -> Vec<f32> {
        let value_dim = self.layer().value_dim;
        let mut out = vec![f32::NAN; rows.len() * heads * value_dim];
        let attention = self.attention(heads, rows, q, seqs);
        attention.check(&out);
        attention.run_kernels(kernels, &Pool::new(threads), &mut AttnScratch::new(), &mut out, None);
        out
    }

    /// The specified result of the kernels of `isa`.
    fn specified(&self, isa: Isa, heads: usize, rows: &[SeqRow], q: &[f32]) -> Vec<f32> {
        self.attend_by(variants::specification(isa, &self.layer()), 1, heads, rows, q, &self.seqs())
    }

    /// A call that attends to all positions that the layer makes visible.
    fn attention<'a>(
        &'a self,
        heads: usize,
        rows: &'a [SeqRow],
        q: &'a [f32],
        seqs: &'a [SeqKv<'a>],
    ) -> Attention<'a> {
        let scale = 1.0 / (self.layer().key_dim as f32).sqrt();
        let (softcap, sinks) = (self.softcap, self.sinks.as_deref());
        Attention { arena: &self.arena, layer: LAYER, q, heads, rows, seqs, scale, softcap, sinks }
    }

    /// Textbook attention in f64, on the keys and values before they were stored.
    fn naive(&self, heads: usize, rows: &[SeqRow], q: &[f32]) -> Vec<f32> {
        let KvLayer { kv_heads, key_dim, value_dim, .. } = self.layer();
        let mut out = Vec::new();
        for (row, q) in rows.iter().zip(q.chunks(heads * key_dim)) {
            for (head, q) in q.chunks(key_dim).enumerate() {
                let (p, kv_head) = (self.naive_weights((heads, head), *row, q), head * kv_heads / heads);
                let value =
                    |i: usize, d: usize| self.v[row.seq as usize][(i * kv_heads + kv_head) * value_dim + d];
                out.extend((0..value_dim).map(|d| {
                    p.iter().enumerate().map(|(i, p)| p * f64::from(value(i, d))).sum::<f64>() as f32
                }));
            }
        }
        out
    }

    /// The weight of each position of the row's sequence for one of `heads` query heads.
    fn naive_weights(&self, (heads, head): (usize, usize), row: SeqRow, q: &[f32]) -> Vec<f64> {
        let KvLayer { kv_heads, key_dim, kind, .. } = self.layer();
        let key = |position: usize| {
            &self.k[row.seq as usize][(position * kv_heads + head * kv_heads / heads) * key_dim..][..key_dim]
        };
        let score = |position: usize| {
            let dot: f64 = q.iter().zip(key(position)).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
            let score = dot / (key_dim as f64).sqrt();
            self.softcap.map(f64::from).map_or(score, |cap| cap * (score / cap).tanh())
        };
        let own = row.len as usize - 1;
        let sees = |position: usize| match kind {
            KvKind::Full => true,
            KvKind::Window { positions } => own - position < positions as usize,
            KvKind::Chunk { positions } => own / positions as usize == position / positions as usize,
        };
        let scores: Vec<f64> =
            (0..=own).map(|p| if sees(p) { score(p) } else { f64::NEG_INFINITY }).collect();
        let sink = self.sinks.as_ref().map_or(f64::NEG_INFINITY, |sinks| f64::from(sinks[head]));
        let m = scores.iter().copied().fold(sink, f64::max);
        let l: f64 = (sink - m).exp() + scores.iter().map(|s| (s - m).exp()).sum::<f64>();
        scores.iter().map(|s| (s - m).exp() / l).collect()
    }
}

/// The values to write: empty if keys hold them.
fn stored_values<'a>(layer: &KvLayer, values: &'a [f32]) -> &'a [f32] {
    if layer.values == KvValues::OfKeys { &[] } else { values }
}

/// The maximum error that storing normal numbers in a format explains.
fn tolerance(format: KvFormat) -> f32 {
    match format {
        KvFormat::F32 => 1e-5,
        KvFormat::F16 => 2e-3,
        KvFormat::Bf16 | KvFormat::Q8 => 4e-2,
        KvFormat::Q6 => 0.2,
        KvFormat::Q5 => 0.4,
        KvFormat::Q4 => 0.8,
        KvFormat::Q3 => 1.5,
    }
}

#[test]
fn agrees_with_the_textbook() {
    // Query heads, KV heads, length of keys and of values.
    let shapes = [
        (4, 2, 64, 64),
        (2, 2, 8, 8),
        (6, 1, 100, 100),
        (8, 1, 128, 128),
        (2, 1, 256, 256),
        (1, 1, 24, 24),
        (4, 2, 96, 64),
        (2, 1, 40, 72),
        (2, 1, 192, 128),
        (1, 1, 512, 512),
        (3, 1, 576, 512),
    ];
    for format in KvFormat::ALL {
        for (heads, kv_heads, key_dim, value_dim) in shapes {
            let layer = KvLayer { value_dim, ..KvLayer::full(kv_heads, key_dim, format, format) };
            let store = Store::new(layer, &[300, 17, 640], 0, 7);
            let rows = [(0, 300), (0, 1), (1, 17), (1, 16), (2, 513), (2, 640)];
            let rows = rows.map(|(seq, len)| SeqRow { seq, len });
            let q = vector(&mut Random(3), rows.len() * heads * key_dim);
            let expect = store.naive(heads, &rows, &q);
            for isa in crate::testing::isas() {
                let out = store.attend(isa, 2, heads, &rows, &q);
                let worst = kvik_testing::largest(out.iter().zip(&expect).map(|(a, b)| (a - b).abs()));
                assert!(worst < tolerance(format), "{format} {heads}/{layer:?} {isa:?}: {worst}");
                assert!(out.iter().all(|x| x.is_finite()));
            }
        }
    }
}

/// The layers of a batch, and one batch after the other, run on the same buffers.
#[test]
fn calls_on_the_same_buffers_do_not_disturb_each_other() {
    let formats = (KvFormat::F16, KvFormat::Q8);
    let full = KvLayer::full(1, 40, formats.0, formats.1);
    let windowed = KvLayer::windowed(1, 40, formats.0, formats.1, 300);
    let lens = [600, 700, 520];
    let stores = [(full, 20, 1), (windowed, 20, 1), (full, 20, 1), (full, 0, 2), (windowed, 0, 3)];
    let (pool, mut scratch) = (Pool::new(2), AttnScratch::new());
    for (layer, shared, seed) in stores {
        let store = Store::new(layer, &lens, shared, seed);
        let seqs = store.seqs();
        for back in [0, 1, 1] {
            let rows: Vec<SeqRow> =
                (0..).zip(lens).map(|(seq, len)| SeqRow { seq, len: len as u32 - back }).collect();
            let q = vector(&mut Random(3), rows.len() * 2 * 40);
            let mut out = vec![f32::NAN; rows.len() * 2 * 40];
            store.attention(2, &rows, &q, &seqs).run(&pool, &mut scratch, &mut out);
            let alone = store.attend(Isa::current(), 2, 2, &rows, &q);
            let bits = |out: &[f32]| out.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
            assert_eq!(bits(&out), bits(&alone), "{layer:?}, {shared} shared blocks");
        }
    }
}

/// Magnitudes around the values where a scale, its inverse, or both are not normal.
const TINY: [f32; 16] = [
    0.0, 1e-45, 1e-43, 1e-40, 5e-39, 1.2e-38, 1e-37, 1e-36, 5e-36, 1e-35, 1e-34, 4e-34, 1e-33, 1e-32, 1e-31,
    1e-30,
];

/// Numbers so small that no finite factor quantises them count as zero in all variants, and never become quantised
/// values out of range.
fn tiny_numbers_are_nothing(isa: Isa) {
    let rows = [(0, 40), (1, 17)].map(|(seq, len)| SeqRow { seq, len });
    let (heads, kv_heads, head_dim) = (2, 1, 40);
    for format in [KvFormat::Q8, KvFormat::Q6, KvFormat::Q5, KvFormat::Q4, KvFormat::Q3] {
        let layer = KvLayer::full(kv_heads, head_dim, format, format);
        for tiny in TINY {
            for [q_factor, k_factor, v_factor] in
                [[tiny, 1.0, 1.0], [1.0, tiny, 1.0], [1.0, 1.0, tiny], [tiny; 3]]
            {
                let store = Store::scaled(layer, &[40, 17], 0, 5, [k_factor, v_factor]);
                let mut q = vector(&mut Random(3), rows.len() * heads * head_dim);
                q.iter_mut().for_each(|q| *q *= q_factor);
                let out = store.attend(isa, 1, heads, &rows, &q);
                let expect = store.attend(Isa::Scalar, 1, heads, &rows, &q);
                assert_eq!(
                    bits(&out),
                    bits(&expect),
                    "{format} {isa:?} q {q_factor} k {k_factor} v {v_factor}"
                );
                let right = store.naive(heads, &rows, &q);
                let bound = tolerance(format) * v_factor + 1e-30;
                let worst = kvik_testing::largest(out.iter().zip(&right).map(|(a, b)| (a - b).abs()));
                assert!(worst <= bound, "{format} q {q_factor} k {k_factor} v {v_factor}: {worst}");
            }
        }
    }
}

crate::testing::for_each_isa!(tiny_numbers: super::tiny_numbers_are_nothing);

/// Infinity and NaN propagate, in all variants, and are never a quantised value out of range.
fn what_is_not_a_number_is_never_quantised_out_of_range(isa: Isa) {
    for format in [KvFormat::Q8, KvFormat::Q6, KvFormat::Q5, KvFormat::Q4, KvFormat::Q3] {
        let layer = KvLayer::full(1, 32, format, format);
        for wrong in [f32::INFINITY, f32::NAN] {
            let mut store = Store::new(layer, &[20], 0, 5);
            let (mut k, mut v) = (vector(&mut Random(1), 32), vector(&mut Random(2), 32));
            (k[3], v[5]) = (1.0, wrong);
            let seqs = [SeqKv { blocks: &store.tables[0], tails: &[] }];
            store.arena.write(&Pool::new(1), LAYER, &[SeqRow { seq: 0, len: 8 }], &seqs, [&k, &v]);
            k[9] = 2.0;
            let rows = [SeqRow { seq: 0, len: 20 }];
            let marks = |isa| -> Vec<u32> {
                let out = store.attend(isa, 1, 1, &rows, &k);
                out.iter().map(|x| if x.is_nan() { u32::MAX } else { x.to_bits() }).collect()
            };
            assert_eq!(marks(isa), marks(Isa::Scalar), "{format} {wrong} {isa:?}");
        }
    }
}

crate::testing::for_each_isa!(no_numbers: super::what_is_not_a_number_is_never_quantised_out_of_range);

/// A layer shape, sequences that share a prefix, and some of their rows.
fn case() -> impl Strategy<Value = (KvLayer, usize, Vec<usize>, usize, Vec<SeqRow>, u64)> {
    let formats = || prop::sample::select(KvFormat::ALL.to_vec());
    let dim = || prop::sample::select(vec![8_usize, 40, 64, 80, 128]);
    let shape = (1..3_usize, 1..8_usize, dim(), dim(), any::<bool>());
    let lens = prop::collection::vec(1..700_usize, 1..5);
    let rows = prop::collection::vec((any::<prop::sample::Index>(), 1..700_usize, 1..40_usize), 1..6);
    (formats(), formats(), shape, lens, 0..40_usize, rows, any::<u64>()).prop_map(
        |(k, v, (kv_heads, group, key_dim, value_dim, latent), lens, shared, runs, seed)| {
            let layer = match latent {
                true => KvLayer { kv_heads, ..KvLayer::latent(key_dim, value_dim.min(key_dim), k) },
                false => KvLayer { value_dim, ..KvLayer::full(kv_heads, key_dim, k, v) },
            };
            let shared = shared.min(lens[0] / BLOCK_POSITIONS);
            let mut rows = Vec::new();
            for (seq, end, count) in runs {
                let seq = seq.index(lens.len());
                let end = end.min(lens[seq]);
                let first = end.saturating_sub(count).max(1);
                rows.extend((first..=end).map(|len| SeqRow { seq: seq as u32, len: len as u32 }));
            }
            (layer, kv_heads * group, lens, shared, rows, seed)
        },
    )
}

proptest! {
    #![proptest_config(crate::testing::cases(64))]

    /// The bits are the same alone or with others, on any number of threads, with any instructions.
    #[test]
    fn a_row_depends_on_nothing_but_itself(
        (layer, heads, lens, shared, rows, seed) in case(),
        extras in layers::extras(),
    ) {
        let store = extras.store(layer, heads, &lens, shared, seed);
        let len = heads * layer.key_dim;
        let q = vector(&mut Random(seed ^ 1), rows.len() * len);
        let best = *Isa::available().last().unwrap();
        let together = bits(&store.attend(best, 1, heads, &rows, &q));
        prop_assert_eq!(&bits(&store.attend(best, 3, heads, &rows, &q)), &together, "threads");
        let alone = rows.iter().zip(q.chunks(len));
        let alone = alone.flat_map(|(row, q)| store.attend(best, 1, heads, &[*row], q));
        prop_assert_eq!(&bits(&alone.collect::<Vec<_>>()), &together, "alone");
        prop_assert_eq!(&bits(&store.specified(best, heads, &rows, &q)), &together, "specified");
        for isa in crate::testing::isas() {
            let expect = bits(&store.specified(isa, heads, &rows, &q));
            prop_assert_eq!(&bits(&store.attend(isa, 1, heads, &rows, &q)), &expect, "{:?}", isa);
        }
    }
}

/// A shape, the length of a sequence, the number of its shared blocks, and the blocks that each head drops.
fn pruned_case() -> impl Strategy<Value = (KvLayer, usize, usize, usize, Vec<Vec<bool>>, u64)> {
    let formats = || prop::sample::select(KvFormat::ALL.to_vec());
    (formats(), formats(), 1..4_usize, 1..4_usize, 17..900_usize, 0..60_usize, any::<u64>()).prop_flat_map(
        |(k, v, kv_heads, group, len, shared, seed)| {
            let layer = KvLayer::full(kv_heads, 32, k, v);
            // The last block may be partly filled, so it stays, and the head retains something.
            let whole = len.div_ceil(BLOCK_POSITIONS) - 1;
            let shared = shared.min(whole);
            let dropped = prop::collection::vec(any::<bool>(), whole - shared);
            let heads = prop::collection::vec(dropped, kv_heads);
            (Just(layer), Just(group * kv_heads), Just(len), Just(shared), heads, Just(seed))
        },
    )
}

proptest! {
    #![proptest_config(crate::testing::cases(48))]

    /// A head that has dropped positions gives the result of a sequence without them.
    #[test]
    fn heads_may_store_different_positions((layer, heads, len, shared, dropped, seed) in pruned_case()) {
        let store = Store::new(layer, &[len, len], shared, seed);
        let (table, group) = (&store.tables[1], heads / layer.kv_heads);
        let kept_blocks: Vec<Vec<u32>> = dropped.iter().map(|dropped| {
            let own = table[shared..].iter().enumerate();
            own.filter(|&(i, _)| !dropped.get(i).copied().unwrap_or(false)).map(|(_, &block)| block).collect()
        }).collect();
        let tiles: Vec<Vec<u32>> = kept_blocks.iter().enumerate().map(|(head, blocks)| {
            blocks.iter().map(|&block| store.arena.layout().tile(block, LAYER, head)).collect()
        }).collect();
        let gone: Vec<u32> = dropped.iter().map(|dropped| {
            (dropped.iter().filter(|&&dropped| dropped).count() * BLOCK_POSITIONS) as u32
        }).collect();
        let tails: Vec<HeadTail<'_>> =
            tiles.iter().zip(&gone).map(|(tiles, &dropped)| HeadTail { tiles, dropped }).collect();
        let pruned = SeqKv { blocks: &table[..shared], tails: &tails };
        let whole = SeqKv { blocks: &store.tables[0], tails: &[] };

        // The last positions of the pruned sequence, among rows of one that shares its first blocks.
        let last = (len - (len - 1) % BLOCK_POSITIONS..=len).map(|len| SeqRow { seq: 0, len: len as u32 });
        let mut rows: Vec<SeqRow> = last.collect();
        let pruned_rows = rows.len();
        rows.push(SeqRow { seq: 1, len: len as u32 });
        let q = vector(&mut Random(seed ^ 1), rows.len() * heads * layer.key_dim);
        let best = *Isa::available().last().unwrap();
        let out = store.attend_to(best, 2, heads, &rows, &q, &[pruned, whole]);

        for head in 0..layer.kv_heads {
            let blocks = [&table[..shared], &kept_blocks[head]].concat();
            let rows: Vec<SeqRow> =
                rows[..pruned_rows].iter().map(|row| SeqRow { seq: 0, len: row.len - gone[head] }).collect();
            let kept = SeqKv { blocks: &blocks, tails: &[] };
            let q = &q[..rows.len() * heads * layer.key_dim];
            let expect = store.attend_to(best, 1, heads, &rows, q, &[kept]);
            let of_head = |out: &[f32]| -> Vec<u32> {
                let rows = out[..q.len()].chunks(heads * layer.key_dim);
                rows.flat_map(|row| bits(&row[head * group * layer.key_dim..][..group * layer.key_dim])).collect()
            };
            prop_assert_eq!(of_head(&out), of_head(&expect), "head {}", head);
        }
        let alone = store.attend(best, 1, heads, &[SeqRow { seq: 0, len: len as u32 }], &q[out.len() - heads * layer.key_dim..]);
        prop_assert_eq!(bits(&out[out.len() - alone.len()..]), bits(&alone), "its neighbour");
    }
}

#[test]
#[should_panic(expected = "5 dropped")]
fn a_head_that_stores_nothing_of_what_it_should_see_is_refused() {
    let layer = KvLayer::full(1, 8, KvFormat::F16, KvFormat::F16);
    let store = Store::new(layer, &[16], 0, 1);
    let tails = [HeadTail { tiles: &[], dropped: 5 }];
    let seq = SeqKv { blocks: &store.tables[0], tails: &tails };
    store.attend_to(Isa::Scalar, 1, 1, &[SeqRow { seq: 0, len: 5 }], &[0.0; 8], &[seq]);
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

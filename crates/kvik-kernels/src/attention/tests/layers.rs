//! Tests of layer features: windows and chunks, a soft cap, sinks.

use super::*;

/// Lengths around blocks and splits, and longer than any sequence here.
const POSITIONS: [u32; 10] = [1, 2, 15, 16, 17, 255, 256, 257, 300, 5000];

pub(super) fn kinds() -> impl Strategy<Value = KvKind> {
    let positions = || prop::sample::select(POSITIONS.to_vec());
    prop_oneof![
        Just(KvKind::Full),
        positions().prop_map(|positions| KvKind::Window { positions }),
        positions().prop_map(|positions| KvKind::Chunk { positions }),
    ]
}

/// Features of a layer and its calls besides formats and lengths.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extras {
    kind: KvKind,
    softcap: Option<f32>,
    sinks: bool,
}

pub(super) fn extras() -> impl Strategy<Value = Extras> {
    let softcap = prop::option::of(prop::sample::select(vec![0.5_f32, 20.0, 50.0]));
    (kinds(), softcap, any::<bool>()).prop_map(|(kind, softcap, sinks)| Extras { kind, softcap, sinks })
}

impl Extras {
    /// [`Store::new`] for calls of `heads` query heads.
    pub(super) fn store(
        self,
        layer: KvLayer,
        heads: usize,
        lens: &[usize],
        shared: usize,
        seed: u64,
    ) -> Store {
        let mut store = Store::new(KvLayer { kind: self.kind, ..layer }, lens, shared, seed);
        store.softcap = self.softcap;
        let mut random = Random(seed ^ 2);
        let mut sink = |_| match random.bits() % 8 {
            0 => f32::NEG_INFINITY,
            1 => -1e30,
            2 => f32::MAX,
            _ => 3.0 * random.float(),
        };
        store.sinks = self.sinks.then(|| (0..heads).map(&mut sink).collect());
        store
    }
}

#[test]
fn windows_caps_and_sinks_agree_with_the_textbook() {
    let mut extras: Vec<(KvKind, Option<f32>, Option<[f32; 2]>)> = Vec::new();
    for positions in POSITIONS {
        extras.push((KvKind::Window { positions }, None, None));
        extras.push((KvKind::Chunk { positions }, Some(2.0), Some([0.5, -1.0])));
    }
    extras.push((KvKind::Full, Some(1.0), None));
    extras.push((KvKind::Full, None, Some([f32::NEG_INFINITY, 3.0])));
    extras.push((KvKind::Full, Some(50.0), Some([f32::MAX, -1e30])));
    let (heads, rows) = (2, [(0, 600), (0, 1), (1, 17), (1, 16), (0, 513), (0, 256), (0, 257)]);
    let rows = rows.map(|(seq, len)| SeqRow { seq, len });
    for format in KvFormat::ALL {
        for (kind, softcap, sinks) in extras.iter().copied() {
            let layer = KvLayer { kind, value_dim: 24, ..KvLayer::full(1, 40, format, format) };
            let mut store = Store::new(layer, &[600, 17], 0, 7);
            (store.softcap, store.sinks) = (softcap, sinks.map(Vec::from));
            let q = vector(&mut Random(3), rows.len() * heads * layer.key_dim);
            let expect = store.naive(heads, &rows, &q);
            for isa in crate::testing::isas() {
                let out = store.attend(isa, 2, heads, &rows, &q);
                let worst = kvik_testing::largest(out.iter().zip(&expect).map(|(a, b)| (a - b).abs()));
                // A window of one position has the full error of one stored value.
                assert!(
                    worst < 1.5 * tolerance(format),
                    "{format} {kind:?} {softcap:?} {sinks:?} {isa:?}: {worst}"
                );
                assert!(out.iter().all(|x| x.is_finite()));
            }
        }
    }
}

/// A run of rows at the end of one sequence, in a layer that does not see all of it.
fn run_of_rows() -> impl Strategy<Value = (KvLayer, Extras, usize, usize, u64)> {
    let formats = || prop::sample::select(KvFormat::ALL.to_vec());
    let lens = prop_oneof![1..900_usize, prop::sample::select(vec![256, 257, 511, 512, 513, 768])];
    (formats(), formats(), any::<bool>(), extras(), lens, 1..40_usize, any::<u64>()).prop_map(
        |(k, v, latent, extras, len, rows, seed)| {
            let layer = match latent {
                true => KvLayer { kv_heads: 2, ..KvLayer::latent(40, 24, k) },
                false => KvLayer { value_dim: 24, ..KvLayer::full(2, 40, k, v) },
            };
            (layer, extras, len, rows.min(len), seed)
        },
    )
}

proptest! {
    #![proptest_config(crate::testing::cases(96))]

    /// Invisible positions do not matter, in partly visible blocks and in all others, which need not even exist.
    #[test]
    fn what_a_row_does_not_see_does_not_matter((layer, extras, len, count, seed) in run_of_rows()) {
        let heads = 4;
        let mut store = extras.store(layer, heads, &[len], 0, seed);
        let rows: Vec<SeqRow> = (len - count + 1..=len).map(|len| SeqRow { seq: 0, len: len as u32 }).collect();
        let q = vector(&mut Random(seed ^ 1), rows.len() * heads * layer.key_dim);
        let best = *Isa::available().last().unwrap();
        let expect = bits(&store.attend(best, 2, heads, &rows, &q));

        // Infinities, which no product hides.
        let first = extras.kind.first_visible(rows[0].len);
        let unseen: Vec<SeqRow> = (1..=first).map(|len| SeqRow { seq: 0, len }).collect();
        let wrong = |dim: usize| vec![f32::INFINITY; unseen.len() * layer.kv_heads * dim];
        let (k, v) = (wrong(layer.key_dim), wrong(layer.stored_value_dim()));
        let seqs = [SeqKv { blocks: &store.tables[0], tails: &[] }];
        store.arena.write(&Pool::new(1), LAYER, &unseen, &seqs, [&k, &v]);
        prop_assert_eq!(&bits(&store.attend(best, 2, heads, &rows, &q)), &expect, "positions");

        let mut table = store.tables[0].clone();
        table[..first as usize / BLOCK_POSITIONS].fill(u32::MAX);
        let seqs = [SeqKv { blocks: &table, tails: &[] }];
        prop_assert_eq!(&bits(&store.attend_to(best, 2, heads, &rows, &q, &seqs)), &expect, "blocks");
    }

    /// Splits have fixed positions: a window that begins at a split equals a sequence that begins there.
    #[test]
    fn a_window_of_whole_splits_is_a_shorter_sequence(
        (layer, extras, len, _, seed) in run_of_rows(), skipped in 0..3_usize
    ) {
        let (heads, skipped) = (4, skipped.min((len - 1) / SPLIT));
        let kind = KvKind::Window { positions: (len - skipped * SPLIT) as u32 };
        let windowed = Extras { kind, ..extras }.store(layer, heads, &[len], 0, seed);
        let full = Extras { kind: KvKind::Full, ..extras }.store(layer, heads, &[len], 0, seed);
        let q = vector(&mut Random(seed ^ 1), heads * layer.key_dim);
        let best = *Isa::available().last().unwrap();
        let out = windowed.attend(best, 2, heads, &[SeqRow { seq: 0, len: len as u32 }], &q);
        let seqs = [SeqKv { blocks: &full.tables[0][skipped * SPLIT_BLOCKS..], tails: &[] }];
        let rows = [SeqRow { seq: 0, len: (len - skipped * SPLIT) as u32 }];
        prop_assert_eq!(bits(&out), bits(&full.attend_to(best, 2, heads, &rows, &q, &seqs)));
    }

    #[test]
    fn a_sink_of_minus_infinity_is_none((layer, extras, len, count, seed) in run_of_rows()) {
        let heads = 2;
        let mut store = Extras { sinks: false, ..extras }.store(layer, heads, &[len], 0, seed);
        let rows: Vec<SeqRow> = (len - count + 1..=len).map(|len| SeqRow { seq: 0, len: len as u32 }).collect();
        let q = vector(&mut Random(seed ^ 1), rows.len() * heads * layer.key_dim);
        let best = *Isa::available().last().unwrap();
        let expect = store.attend(best, 2, heads, &rows, &q);
        store.sinks = Some(vec![f32::NEG_INFINITY; heads]);
        prop_assert_eq!(bits(&store.attend(best, 2, heads, &rows, &q)), bits(&expect));
        store.sinks = Some(vec![f32::MAX; heads]);
        prop_assert!(store.attend(best, 2, heads, &rows, &q).iter().all(|&x| x == 0.0));
    }
}

/// Sums of products of the largest quantised values reach the limit of 32 bits without overflow.
#[test]
fn the_longest_heads_of_the_largest_numbers_do_not_overflow() {
    for (key_dim, value_dim) in [(512, 512), (576, 576), (576, 512)] {
        for format in [KvFormat::Q8, KvFormat::Q6, KvFormat::Q5, KvFormat::Q4, KvFormat::Q3] {
            let layer = KvLayer { value_dim, ..KvLayer::full(1, key_dim, format, format) };
            let mut store = Store::new(layer, &[300], 0, 1);
            // The rotation gives all dimensions of a piece the same value.
            let spikes = |dim: usize| {
                let piece = 1 << dim.trailing_zeros();
                (0..dim).map(|d| if d % piece == 0 { 8.0 } else { 0.0 }).collect::<Vec<f32>>()
            };
            let (k, v) = (spikes(key_dim).repeat(300), spikes(value_dim).repeat(300));
            let rows: Vec<SeqRow> = (1..=300).map(|len| SeqRow { seq: 0, len }).collect();
            let seqs = [SeqKv { blocks: &store.tables[0], tails: &[] }];
            store.arena.write(&Pool::new(1), LAYER, &rows, &seqs, [&k, &v]);
            // A score of the wrong sign would leave most of the weight to the sink.
            (store.softcap, store.sinks) = (Some(1.0), Some(vec![5.0]));
            (store.k, store.v) = (vec![k], vec![v]);
            let (rows, q) = ([SeqRow { seq: 0, len: 300 }], spikes(key_dim));
            let expect = store.naive(1, &rows, &q);
            // The largest element after rotating back is 8. Few bits have no value for a number alone, only one within
            // half a step of it.
            let bound = match format {
                KvFormat::Q6 => 8.0 / 64.0,
                KvFormat::Q5 => 8.0 / 32.0,
                KvFormat::Q4 => 8.0 / 16.0,
                KvFormat::Q3 => 8.0 / 8.0,
                _ => 0.05,
            };
            for isa in crate::testing::isas() {
                let out = store.attend(isa, 1, 1, &rows, &q);
                let worst = kvik_testing::largest(out.iter().zip(&expect).map(|(a, b)| (a - b).abs()));
                assert!(worst < bound, "{format} {key_dim} {isa:?}: {worst}");
            }
        }
    }
}

/// A call of one query head in a layer with a window.
fn attend_with(softcap: Option<f32>, sinks: Option<Vec<f32>>, dropped: u32) {
    let layer = KvLayer::windowed(1, 8, KvFormat::F16, KvFormat::F16, 4);
    let mut store = Store::new(layer, &[16], 0, 1);
    (store.softcap, store.sinks) = (softcap, sinks);
    let tails = [HeadTail { tiles: &[], dropped }];
    let seq = SeqKv { blocks: &store.tables[0], tails: &tails };
    store.attend_to(Isa::Scalar, 1, 1, &[SeqRow { seq: 0, len: 16 }], &[0.0; 8], &[seq]);
}

#[test]
fn tails_without_dropped_positions_may_have_a_window() {
    attend_with(None, None, 0);
}

#[test]
#[should_panic(expected = "5 positions dropped")]
fn dropped_positions_of_a_layer_with_a_window_are_refused() {
    attend_with(None, None, 5);
}

#[test]
#[should_panic(expected = "a soft cap of 0")]
fn a_cap_that_leaves_nothing_is_refused() {
    attend_with(Some(0.0), None, 0);
}

#[test]
#[should_panic(expected = "sinks are [1]")]
fn sinks_of_other_heads_are_refused() {
    attend_with(None, Some(vec![0.0; 2]), 0);
}

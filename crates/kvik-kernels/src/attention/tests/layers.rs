//! Layers of which a row does not see all that is stored: windows and chunks.

use super::*;

/// Around blocks and splits, and longer than any sequence here.
const POSITIONS: [u32; 10] = [1, 2, 15, 16, 17, 255, 256, 257, 300, 5000];

pub(super) fn kinds() -> impl Strategy<Value = KvKind> {
    let positions = || prop::sample::select(POSITIONS.to_vec());
    prop_oneof![
        Just(KvKind::Full),
        positions().prop_map(|positions| KvKind::Window { positions }),
        positions().prop_map(|positions| KvKind::Chunk { positions }),
    ]
}

#[test]
fn windows_agree_with_the_textbook() {
    let windows = POSITIONS.map(|positions| KvKind::Window { positions });
    let kinds = windows.into_iter().chain(POSITIONS.map(|positions| KvKind::Chunk { positions }));
    let (heads, rows) = (2, [(0, 600), (0, 1), (1, 17), (1, 16), (0, 513), (0, 256), (0, 257)]);
    let rows = rows.map(|(seq, len)| SeqRow { seq, len });
    for format in KvFormat::ALL {
        for kind in kinds.clone() {
            let layer = KvLayer { kind, value_dim: 24, ..KvLayer::full(1, 40, format, format) };
            let store = Store::new(layer, &[600, 17], 0, 7);
            let q = vector(&mut Random(3), rows.len() * heads * layer.key_dim);
            let expect = store.naive(heads, &rows, &q);
            for isa in crate::testing::isas() {
                let out = store.attend(isa, 2, heads, &rows, &q);
                let worst = out.iter().zip(&expect).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                // A window of one position has all the error of one stored value.
                assert!(worst < 1.5 * tolerance(format), "{format} {kind:?} {isa:?}: {worst}");
                assert!(out.iter().all(|x| x.is_finite()));
            }
        }
    }
}

/// A run of rows at the end of one sequence, of a layer that does not see all of it.
fn run_of_rows() -> impl Strategy<Value = (KvLayer, usize, usize, u64)> {
    let formats = || prop::sample::select(KvFormat::ALL.to_vec());
    let lens = prop_oneof![1..900_usize, prop::sample::select(vec![256, 257, 511, 512, 513, 768])];
    (formats(), formats(), kinds(), lens, 1..40_usize, any::<u64>()).prop_map(
        |(k, v, kind, len, rows, seed)| {
            let layer = KvLayer { kind, value_dim: 24, ..KvLayer::full(2, 40, k, v) };
            (layer, len, rows.min(len), seed)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// In the blocks that it sees something of, and in all others, which need not even exist.
    #[test]
    fn what_a_row_does_not_see_does_not_matter((layer, len, count, seed) in run_of_rows()) {
        let heads = 4;
        let mut store = Store::new(layer, &[len], 0, seed);
        let rows: Vec<SeqRow> = (len - count + 1..=len).map(|len| SeqRow { seq: 0, len: len as u32 }).collect();
        let q = vector(&mut Random(seed ^ 1), rows.len() * heads * layer.key_dim);
        let best = *Isa::available().last().unwrap();
        let expect = bits(&store.attend(best, 2, heads, &rows, &q));

        // Numbers that no product survives.
        let first = layer.kind.first_visible(rows[0].len);
        let unseen: Vec<SeqRow> = (1..=first).map(|len| SeqRow { seq: 0, len }).collect();
        let wrong = |dim: usize| vec![f32::INFINITY; unseen.len() * layer.kv_heads * dim];
        let (k, v) = (wrong(layer.key_dim), wrong(layer.value_dim));
        let seqs = [SeqKv { blocks: &store.tables[0], tails: &[] }];
        store.arena.write(&Pool::new(1), LAYER, &unseen, &seqs, [&k, &v]);
        prop_assert_eq!(&bits(&store.attend(best, 2, heads, &rows, &q)), &expect, "positions");

        let mut table = store.tables[0].clone();
        table[..first as usize / BLOCK_POSITIONS].fill(u32::MAX);
        let seqs = [SeqKv { blocks: &table, tails: &[] }];
        prop_assert_eq!(&bits(&store.attend_to(best, 2, heads, &rows, &q, &seqs)), &expect, "blocks");
    }

    /// Splits are where they are: a window that begins with one is a sequence that begins there.
    #[test]
    fn a_window_of_whole_splits_is_a_shorter_sequence(
        (layer, len, _, seed) in run_of_rows(), skipped in 0..3_usize
    ) {
        let (heads, skipped) = (4, skipped.min((len - 1) / SPLIT));
        let kind = KvKind::Window { positions: (len - skipped * SPLIT) as u32 };
        let windowed = Store::new(KvLayer { kind, ..layer }, &[len], 0, seed);
        let full = Store::new(KvLayer { kind: KvKind::Full, ..layer }, &[len], 0, seed);
        let q = vector(&mut Random(seed ^ 1), heads * layer.key_dim);
        let best = *Isa::available().last().unwrap();
        let out = windowed.attend(best, 2, heads, &[SeqRow { seq: 0, len: len as u32 }], &q);
        let seqs = [SeqKv { blocks: &full.tables[0][skipped * SPLIT_BLOCKS..], tails: &[] }];
        let rows = [SeqRow { seq: 0, len: (len - skipped * SPLIT) as u32 }];
        prop_assert_eq!(bits(&out), bits(&full.attend_to(best, 2, heads, &rows, &q, &seqs)));
    }
}

/// A call of one query head whose layer sees a window.
fn attend_with(dropped: u32) {
    let layer = KvLayer::windowed(1, 8, KvFormat::F16, KvFormat::F16, 4);
    let store = Store::new(layer, &[16], 0, 1);
    let tails = [HeadTail { tiles: &[], dropped }];
    let seq = SeqKv { blocks: &store.tables[0], tails: &tails };
    store.attend_to(Isa::Scalar, 1, 1, &[SeqRow { seq: 0, len: 16 }], &[0.0; 8], &[seq]);
}

#[test]
fn tails_without_dropped_positions_may_have_a_window() {
    attend_with(0);
}

#[test]
#[should_panic(expected = "5 positions dropped")]
fn dropped_positions_of_a_layer_with_a_window_are_refused() {
    attend_with(5);
}

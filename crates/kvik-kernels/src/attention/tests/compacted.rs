//! Attention after heads have dropped positions, compared with sequences that never had them.

use super::*;

/// A shape, query heads, a length, and the positions that each KV head retains.
fn compacted_case() -> impl Strategy<Value = (KvLayer, usize, usize, Vec<Vec<u32>>, u64)> {
    let formats = || prop::sample::select(KvFormat::ALL.to_vec());
    let lens = prop_oneof![1..700_usize, prop::sample::select(vec![16, 17, 256, 257, 512, 513])];
    (formats(), formats(), 1..4_usize, 1..4_usize, lens, any::<u64>()).prop_flat_map(
        |(k, v, kv_heads, group, len, seed)| {
            let layer = KvLayer { value_dim: 24, ..KvLayer::full(kv_heads, 40, k, v) };
            let kept = prop::sample::subsequence((0..len as u32).collect::<Vec<_>>(), 1..=len);
            let kept = prop::collection::vec(kept, kv_heads);
            (Just(layer), Just(kv_heads * group), Just(len), kept, Just(seed))
        },
    )
}

/// The results of one row and the weights of its query heads.
fn attend_and_watch(attention: Attention<'_>, value_dim: usize) -> (Vec<u32>, Vec<Vec<u32>>) {
    let mut out = vec![f32::NAN; attention.heads * value_dim];
    let (pool, mut scratch, mut weights) = (Pool::new(2), AttnScratch::new(), AttnWeights::new());
    attention.run_watched(&pool, &mut scratch, &mut out, 0..1, &mut weights);
    let of_head = |head| {
        let mut row = Vec::new();
        weights.row(0, head, &mut row);
        bits(&row)
    };
    (bits(&out), (0..attention.heads).map(of_head).collect())
}

proptest! {
    #![proptest_config(crate::testing::cases(48))]

    #[test]
    fn what_is_kept_is_attended_as_if_stored_from_the_start((layer, heads, len, kept, seed) in compacted_case()) {
        // The blocks of the second sequence are reused for the retained positions of the first.
        let mut store = Store::new(layer, &[len, len], 0, seed);
        let layout = store.arena.layout().clone();
        let tile = |block: &u32, head| layout.tile(*block, LAYER, head);
        let tiles: Vec<Vec<u32>> =
            (0..layer.kv_heads).map(|head| store.tables[1].iter().map(|b| tile(b, head)).collect()).collect();
        let whole = SeqKv { blocks: &store.tables[0], tails: &[] };
        let kept_of: Vec<&[u32]> = kept.iter().map(Vec::as_slice).collect();
        let tiles_of: Vec<&[u32]> = tiles.iter().map(Vec::as_slice).collect();
        store.arena.move_positions(&Pool::new(2), LAYER, &whole, &kept_of, &tiles_of);

        let dropped = |kept: &Vec<u32>| (len - kept.len()) as u32;
        let tails: Vec<HeadTail<'_>> =
            tiles.iter().zip(&kept).map(|(tiles, kept)| HeadTail { tiles, dropped: dropped(kept) }).collect();
        let (seqs, rows) = ([SeqKv { blocks: &[], tails: &tails }], [SeqRow { seq: 0, len: len as u32 }]);
        let q = vector(&mut Random(seed ^ 1), heads * layer.key_dim);
        let attention =
            Attention { arena: &store.arena, layer: LAYER, q: &q, heads, rows: &rows, seqs: &seqs, scale: 0.2, softcap: None, sinks: None };
        let (out, weights) = attend_and_watch(attention, layer.value_dim);

        let group = heads / layer.kv_heads;
        for (head, kept) in kept.iter().enumerate() {
            let alone = KvLayer { kv_heads: 1, ..layer };
            let blocks: Vec<u32> = (0..kept.len().div_ceil(BLOCK_POSITIONS) as u32).collect();
            let mut arena = KvArena::new(KvLayout::uniform(LAYER + 1, alone), blocks.len()).unwrap();
            let pick = |from: &[f32], dim: usize| -> Vec<f32> {
                let at = |&position: &u32| (position as usize * layer.kv_heads + head) * dim;
                kept.iter().flat_map(|position| from[at(position)..][..dim].to_vec()).collect()
            };
            let (k, v) = (pick(&store.k[0], layer.key_dim), pick(&store.v[0], layer.value_dim));
            let all: Vec<SeqRow> = (1..=kept.len() as u32).map(|len| SeqRow { seq: 0, len }).collect();
            let seqs = [SeqKv { blocks: &blocks, tails: &[] }];
            arena.write(&Pool::new(1), LAYER, &all, &seqs, [&k, &v]);
            let q = &q[head * group * layer.key_dim..][..group * layer.key_dim];
            let rows = &all[kept.len() - 1..];
            let attention = Attention { arena: &arena, q, heads: group, rows, seqs: &seqs, ..attention };
            let (expect, expect_weights) = attend_and_watch(attention, layer.value_dim);
            let of_head = head * group * layer.value_dim..(head + 1) * group * layer.value_dim;
            prop_assert_eq!(&out[of_head], &expect[..], "head {}", head);
            prop_assert_eq!(&weights[head * group..(head + 1) * group], &expect_weights[..], "head {}", head);
        }
    }
}

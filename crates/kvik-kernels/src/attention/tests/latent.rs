//! Tests of values stored in keys.

use super::*;
use crate::kv::tiles::is_rotated;

/// The value prefixes of keys, `[n, kv_heads, value_dim]`.
pub(super) fn values_of(layer: &KvLayer, keys: &[f32]) -> Vec<f32> {
    keys.chunks_exact(layer.key_dim).flat_map(|key| key[..layer.value_dim].to_vec()).collect()
}

/// Query heads, length of keys and of values: DeepSeek's, whole keys, lengths that do not fill lanes, and lengths
/// that cut a rotated piece.
const SHAPES: [(usize, usize, usize); 11] = [
    (16, 576, 512),
    (5, 64, 64),
    (9, 576, 576),
    (3, 100, 100),
    (2, 33, 33),
    (7, 40, 32),
    (3, 40, 33),
    (1, 160, 100),
    (2, 24, 8),
    (4, 256, 129),
    (6, 36, 33),
];

const ROWS: [(u32, u32); 6] = [(0, 300), (0, 1), (1, 17), (1, 16), (2, 513), (2, 640)];

#[test]
fn values_of_keys_agree_with_the_textbook() {
    for format in KvFormat::ALL {
        for (heads, key_dim, value_dim) in SHAPES {
            let layer = KvLayer::latent(key_dim, value_dim, format);
            let store = Store::new(layer, &[300, 17, 640], 0, 7);
            let rows = ROWS.map(|(seq, len)| SeqRow { seq, len });
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

/// The bits equal those of values stored separately; a part of a key is quantised differently from a whole vector.
#[test]
fn values_of_keys_have_the_bits_of_stored_ones() {
    for format in KvFormat::ALL {
        let same =
            |&(_, key_dim, value_dim): &(usize, usize, usize)| key_dim == value_dim || !is_rotated(format);
        for (heads, key_dim, value_dim) in SHAPES.into_iter().filter(same) {
            let latent = KvLayer::latent(key_dim, value_dim, format);
            let store = Store::new(latent, &[300, 17, 640], 0, 7);
            let mut beside =
                Store::new(KvLayer { values: KvValues::Stored, ..latent }, &[300, 17, 640], 0, 7);
            for (seq, (k, v)) in store.k.iter().zip(&store.v).enumerate() {
                let rows: Vec<SeqRow> =
                    (1..=(k.len() / key_dim) as u32).map(|len| SeqRow { seq: 0, len }).collect();
                let seqs = [SeqKv { blocks: &beside.tables[seq], tails: &[] }];
                beside.arena.write(&Pool::new(1), LAYER, &rows, &seqs, [k, v]);
            }
            let rows = ROWS.map(|(seq, len)| SeqRow { seq, len });
            let q = vector(&mut Random(3), rows.len() * heads * key_dim);
            for isa in crate::testing::isas() {
                let [out, expect] =
                    [&store, &beside].map(|store| bits(&store.attend(isa, 2, heads, &rows, &q)));
                assert_eq!(out, expect, "{format} {heads}/{latent:?} {isa:?}");
            }
        }
    }
}

/// More query heads than the rows of an ordinary unit (DeepSeek V3), in long sequences that share blocks.
#[test]
fn many_query_heads_share_one_key() {
    let (heads, layer) = (128, KvLayer::latent(576, 512, KvFormat::Q8));
    let store = Store::new(layer, &[600, 530], 20, 9);
    let rows = [(0, 599), (0, 600), (1, 529), (1, 530)].map(|(seq, len)| SeqRow { seq, len });
    let q = vector(&mut Random(3), rows.len() * heads * layer.key_dim);
    let best = *Isa::available().last().unwrap();
    let together = bits(&store.attend(best, 3, heads, &rows, &q));
    let alone = rows.iter().zip(q.chunks(heads * layer.key_dim));
    let alone: Vec<f32> = alone.flat_map(|(row, q)| store.attend(best, 1, heads, &[*row], q)).collect();
    assert_eq!(bits(&alone), together);
    assert_eq!(bits(&store.attend(Isa::Scalar, 1, heads, &rows, &q)), together);
}

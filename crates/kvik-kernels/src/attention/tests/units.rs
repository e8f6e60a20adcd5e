//! Attention on emulated matrix units, and in emulated vectors that multiply bfloats: the results do not depend
//! on the machine.

use super::*;
use crate::attention::kernel::AttentionKernels;

/// Rows of few sequences, because emulation is slow; layers in formats that the units support.
fn emulated_case() -> impl Strategy<Value = (KvLayer, usize, Vec<usize>, usize, Vec<SeqRow>, u64)> {
    let formats = || prop::sample::select(vec![KvFormat::Bf16, KvFormat::Bf16, KvFormat::Q8]);
    let dims = || prop::sample::select(vec![8_usize, 40, 80]);
    let lens = (1..600_usize, 1..300_usize);
    let runs = prop::collection::vec((0..2_usize, 1..600_usize, 1..24_usize), 1..3);
    (formats(), formats(), 1..6_usize, dims(), dims(), any::<bool>(), lens, runs, any::<u64>()).prop_map(
        |(k, v, heads, key_dim, value_dim, latent, lens, runs, seed)| {
            let layer = match latent {
                true => KvLayer::latent(key_dim, value_dim.min(key_dim), k),
                false => KvLayer { value_dim, ..KvLayer::full(1, key_dim, k, v) },
            };
            let lens = vec![lens.0, lens.1];
            let rows = runs.into_iter().flat_map(|(seq, end, count)| {
                let end = end.min(lens[seq]);
                let first = end.saturating_sub(count).max(1);
                (first..=end).map(move |len| SeqRow { seq: seq as u32, len: len as u32 })
            });
            let (rows, shared) = (rows.collect(), lens[0].min(lens[1]) / BLOCK_POSITIONS / 2);
            (layer, heads, lens, shared, rows, seed)
        },
    )
}

/// The emulated kernels of `isa`.
fn kernels(isa: Isa, layer: &KvLayer) -> AttentionKernels {
    match isa {
        Isa::Amx => variants::emulated::kernels(layer),
        _ => variants::emulated::vectors::kernels(layer),
    }
}

/// Instruction sets that multiply bfloats.
const ISAS: [Isa; 2] = [Isa::Amx, Isa::Avx512Bf16];

impl Store {
    fn emulated(&self, isa: Isa, threads: usize, heads: usize, rows: &[SeqRow], q: &[f32]) -> Vec<u32> {
        self.by(kernels(isa, &self.layer()), threads, heads, rows, q)
    }

    fn by(
        &self,
        kernels: AttentionKernels,
        threads: usize,
        heads: usize,
        rows: &[SeqRow],
        q: &[f32],
    ) -> Vec<u32> {
        let out = self.attend_by(kernels, threads, heads, rows, q, &self.seqs());
        out.iter().map(|x| if x.is_nan() { u32::MAX } else { x.to_bits() }).collect()
    }
}

proptest! {
    #![proptest_config(crate::testing::cases(32))]

    /// The bits are those of the specification, alone or with others, split or not.
    #[test]
    fn a_row_on_units_depends_on_nothing_but_itself(
        (layer, heads, lens, shared, rows, seed) in emulated_case(),
        extras in layers::extras(),
        picked in prop::collection::vec(any::<prop::sample::Index>(), 3),
    ) {
        let store = extras.store(layer, heads, &lens, shared, seed);
        let len = heads * layer.key_dim;
        let q = vector(&mut Random(seed ^ 1), rows.len() * len);
        for isa in ISAS {
            let expect: Vec<u32> = store.specified(isa, heads, &rows, &q).into_iter().map(f32::to_bits).collect();
            prop_assert_eq!(&store.emulated(isa, 1, heads, &rows, &q), &expect, "together, {:?}", isa);
            prop_assert_eq!(&store.emulated(isa, 3, heads, &rows, &q), &expect, "threads, {:?}", isa);
            for row in picked.iter().map(|picked| picked.index(rows.len())) {
                let alone = store.emulated(isa, 1, heads, &rows[row..=row], &q[row * len..][..len]);
                let of_row = heads * layer.value_dim;
                prop_assert_eq!(&alone[..], &expect[row * of_row..][..of_row], "alone, {:?}", isa);
            }
        }
    }
}

/// In a prompt, values of later positions are multiplied by 0 for earlier rows, but 0 times infinity is NaN.
#[test]
fn values_that_are_no_numbers_stay_with_those_who_see_them() {
    for (layer, wrong) in [
        (KvLayer::full(1, 40, KvFormat::Bf16, KvFormat::Bf16), f32::INFINITY),
        (KvLayer::full(1, 40, KvFormat::Q8, KvFormat::Bf16), f32::NAN),
        (KvLayer::windowed(1, 40, KvFormat::Bf16, KvFormat::Bf16, 20), f32::INFINITY),
    ] {
        let mut store = Store::new(layer, &[60], 0, 5);
        let rows: Vec<SeqRow> = (20..=60).map(|len| SeqRow { seq: 0, len }).collect();
        let q = vector(&mut Random(3), rows.len() * 40);
        let before = ISAS.map(|isa| store.emulated(isa, 1, 1, &rows, &q));
        let (k, mut v) = (store.k[0][40 * 40..][..40].to_vec(), store.v[0][40 * 40..][..40].to_vec());
        v[7] = wrong;
        let seqs = [SeqKv { blocks: &store.tables[0], tails: &[] }];
        store.arena.write(&Pool::new(1), LAYER, &[SeqRow { seq: 0, len: 41 }], &seqs, [&k, &v]);
        for (isa, before) in ISAS.into_iter().zip(before) {
            let after = store.emulated(isa, 1, 1, &rows, &q);
            let specified = store.by(variants::specification(isa, &layer), 1, 1, &rows, &q);
            assert_eq!(after, specified, "{layer:?} {isa:?}");
            for (row, (before, after)) in rows.iter().zip(before.chunks(40).zip(after.chunks(40))) {
                let sees = row.len > 40 && 40 >= layer.kind.first_visible(row.len);
                assert_eq!(before != after, sees, "{layer:?} {isa:?} {row:?}");
            }
        }
    }
}

#[test]
fn units_agree_with_the_textbook() {
    for (k, v) in
        [(KvFormat::Bf16, KvFormat::Bf16), (KvFormat::Q8, KvFormat::Bf16), (KvFormat::Bf16, KvFormat::Q8)]
    {
        let layer = KvLayer::full(1, 128, k, v);
        let store = Store::new(layer, &[300], 0, 7);
        let rows: Vec<SeqRow> = [1, 17, 290, 291, 300].map(|len| SeqRow { seq: 0, len }).into();
        let q = vector(&mut Random(3), rows.len() * 2 * 128);
        let expect = store.naive(2, &rows, &q);
        for isa in ISAS {
            let out = store.emulated(isa, 1, 2, &rows, &q);
            let errors = out.iter().zip(&expect).map(|(a, b)| (f32::from_bits(*a) - b).abs());
            let worst = kvik_testing::largest(errors);
            assert!(worst < tolerance(KvFormat::Bf16), "{k} {v} {isa:?}: {worst}");
        }
    }
}

//! Attention weights of watched rows, compared with calls that do not watch, the textbook, and plain reductions.

use std::ops::Range;

use super::*;

/// Rows of one call, the query heads, and its operands.
struct Call<'a> {
    store: &'a Store,
    heads: usize,
    rows: &'a [SeqRow],
    seqs: &'a [SeqKv<'a>],
    q: &'a [f32],
}

impl Call<'_> {
    fn attention(&self) -> Attention<'_> {
        self.store.attention(self.heads, self.rows, self.q, self.seqs)
    }

    fn watched(
        &self,
        isa: Isa,
        threads: usize,
        watched: impl IntoIterator<Item = usize>,
    ) -> (Vec<f32>, AttnWeights) {
        let mut out = vec![f32::NAN; self.rows.len() * self.heads * self.store.layer().value_dim];
        let (mut scratch, mut weights) = (AttnScratch::new(), AttnWeights::new());
        let pool = Pool::new(threads);
        self.attention().run_watched_with(isa, &pool, &mut scratch, &mut out, watched, &mut weights);
        (out, weights)
    }

    /// The specified result of [`Call::watched`] with the kernels of `isa`.
    fn specified(&self, isa: Isa, watched: &[usize]) -> (Vec<f32>, AttnWeights) {
        let mut out = vec![f32::NAN; self.rows.len() * self.heads * self.store.layer().value_dim];
        let (mut scratch, mut weights) = (AttnScratch::new(), AttnWeights::new());
        let (attention, pool) = (self.attention(), Pool::new(1));
        let kernels = variants::specification(isa, &self.store.layer());
        let watch = weights.watch(&attention, Isa::Scalar, watched.iter().copied());
        attention.run_kernels(kernels, &pool, &mut scratch, &mut out, Some(watch));
        (out, weights)
    }

    /// Textbook weights in f64, on the keys before they were stored.
    fn naive(&self, row: usize, head: usize) -> Vec<f64> {
        let key_dim = self.store.layer().key_dim;
        let q = &self.q[(row * self.heads + head) * key_dim..][..key_dim];
        self.store.naive_weights((self.heads, head), self.rows[row], q)
    }
}

fn row(weights: &AttnWeights, row: usize, head: usize) -> Vec<f32> {
    let mut numbers = vec![7.0];
    weights.row(row, head, &mut numbers);
    numbers
}

/// Tails of heads that dropped different blocks, after the first `shared` blocks of a table.
fn tails(store: &Store, table: &[u32], shared: usize, dropped: &[Vec<bool>]) -> Vec<(Vec<u32>, u32)> {
    let of_head = |(head, dropped): (usize, &Vec<bool>)| {
        let own = table[shared..].iter().enumerate();
        let kept = own.filter(|(i, _)| !dropped.get(*i).copied().unwrap_or(false));
        let tiles: Vec<u32> = kept.map(|(_, &block)| store.arena.layout().tile(block, LAYER, head)).collect();
        let gone = (table.len() - shared - tiles.len()) * BLOCK_POSITIONS;
        (tiles, gone as u32)
    };
    dropped.iter().enumerate().map(of_head).collect()
}

proptest! {
    #![proptest_config(crate::testing::cases(48))]

    #[test]
    fn watching_changes_no_result_and_weights_are_those_of_the_textbook(
        (layer, heads, lens, shared, rows, seed) in case(),
        extras in layers::extras(),
        watched in prop::array::uniform3(any::<prop::sample::Index>()),
    ) {
        let store = extras.store(layer, heads, &lens, shared, seed);
        let q = vector(&mut Random(seed ^ 1), rows.len() * heads * layer.key_dim);
        let seqs = store.seqs();
        let call = Call { store: &store, heads, rows: &rows, seqs: &seqs, q: &q };
        let mut ends = watched.map(|end| end.index(rows.len() + 1));
        ends.sort_unstable();
        let watched: Vec<usize> = (0..ends[0]).chain(ends[1]..ends[2]).collect();

        let best = *Isa::available().last().unwrap();
        let (out, weights) = call.watched(best, 3, watched.clone());
        prop_assert_eq!(bits(&out), bits(&store.attend(best, 1, heads, &rows, &q)));
        let bound = match layer.k {
            KvFormat::F32 => 1e-5,
            KvFormat::F16 => 4e-3,
            KvFormat::Bf16 | KvFormat::Q8 => 4e-2,
            KvFormat::Q6 => 0.1,
            KvFormat::Q5 => 0.2,
            KvFormat::Q4 => 0.4,
            KvFormat::Q3 => 0.7,
        };
        for index in watched.iter().copied() {
            for head in 0..heads {
                let found = row(&weights, index, head);
                prop_assert_eq!(found.len(), rows[index].len as usize);
                let naive = call.naive(index, head);
                let sum: f64 = found.iter().map(|&w| f64::from(w)).sum();
                // The weight of a sink depends on scores, which formats change.
                let expect: f64 = if store.sinks.is_none() { 1.0 } else { naive.iter().sum() };
                let bound_of_sum = if store.sinks.is_none() { 1e-5 } else { bound };
                prop_assert!((sum - expect).abs() < bound_of_sum, "{} for {}", sum, expect);
                let unseen = store.layer().kind.first_visible(rows[index].len) as usize;
                prop_assert!(found[..unseen].iter().all(|&w| w == 0.0));
                let errors = found.iter().zip(&naive).map(|(&w, n)| (f64::from(w) - n).abs());
                let worst = kvik_testing::largest(errors);
                prop_assert!(worst < bound, "{:?} {}", layer.k, worst);
            }
        }
        let by_one = crate::testing::isas().into_iter().map(|isa| (isa, call.watched(isa, 1, watched.clone())));
        for (isa, (out, weights)) in by_one.chain([(best, (out, weights))]) {
            let (expect, expected_weights) = call.specified(isa, &watched);
            prop_assert_eq!(bits(&out), bits(&expect), "{:?}", isa);
            for index in watched.iter().copied() {
                for head in 0..heads {
                    prop_assert_eq!(bits(&row(&weights, index, head)), bits(&row(&expected_weights, index, head)), "{:?}", isa);
                }
            }
        }
    }
}

/// The reduction of one KV head in plain floats, in the order of the kernels.
fn naive_reduce(
    weights: &AttnWeights,
    rows: Range<usize>,
    reduce: WeightReduce,
    among: &[Range<usize>],
    heads: Range<usize>,
    kind: KvKind,
) -> Vec<f32> {
    let mut into: Vec<f32> = Vec::new();
    for index in rows {
        let of_heads: Vec<Vec<f32>> = heads.clone().map(|head| row(weights, index, head)).collect();
        let seen = of_heads[0].len();
        // In a layer with a window, no position was dropped.
        let visible = seen - kind.first_visible(seen as u32) as usize;
        let takes_part = |p: usize| among.is_empty() || among.iter().any(|range| range.contains(&p));
        let divisors: Vec<f32> = of_heads
            .iter()
            .map(|weights| {
                let mut lanes = [0.0_f32; 16];
                (0..seen).filter(|&p| takes_part(p)).for_each(|p| lanes[p % 16] += weights[p]);
                for width in [8, 4, 2, 1] {
                    (0..width).for_each(|i| lanes[i] += lanes[i + width]);
                }
                match () {
                    () if among.is_empty() => 1.0,
                    () if lanes[0] > 0.0 => lanes[0],
                    () => f32::INFINITY,
                }
            })
            .collect();
        into.resize(into.len().max(seen), 0.0);
        for p in (0..seen).filter(|&p| takes_part(p)) {
            let shares: Vec<f32> =
                of_heads.iter().zip(&divisors).map(|(w, divisor)| w[p] / divisor).collect();
            let mean = shares.iter().copied().reduce(|a, b| a + b).unwrap() / shares.len() as f32;
            into[p] = match reduce {
                WeightReduce::Sum => into[p] + mean,
                WeightReduce::Decayed(decay) => into[p].mul_add(decay, mean),
                WeightReduce::Above => into[p] + f32::from(u8::from(mean > 1.0 / visible as f32)),
                WeightReduce::Max => shares.iter().copied().fold(into[p], f32::max),
            };
        }
    }
    into
}

/// Rows at the end of a sequence, and their reduction.
#[derive(Debug, Clone)]
struct Reduced {
    layer: KvLayer,
    heads: usize,
    len: usize,
    rows: usize,
    /// Blocks before the tails, and for each KV head those of the others that it has dropped.
    shared: usize,
    dropped: Vec<Vec<bool>>,
    /// Boundaries of the calls that rows are cut into.
    cuts: Vec<usize>,
    among: Vec<Range<usize>>,
    seed: u64,
}

fn reduced() -> impl Strategy<Value = Reduced> {
    let formats = prop::sample::select(KvFormat::ALL.to_vec());
    let lens = prop_oneof![1..900_usize, prop::sample::select(vec![15, 16, 17, 255, 256, 257, 512])];
    (formats, 1..4_usize, 1..5_usize, lens, 1..40_usize, 0..60_usize, any::<u64>()).prop_flat_map(
        |(format, kv_heads, group, len, rows, shared, seed)| {
            // Rows are within the last block, so that no head has dropped all positions that a row sees.
            let whole = len.div_ceil(BLOCK_POSITIONS) - 1;
            let (shared, rows) = (shared.min(whole), rows.min(len - whole * BLOCK_POSITIONS));
            let dropped =
                prop::collection::vec(prop::collection::vec(any::<bool>(), whole - shared), kv_heads);
            let cuts = prop::collection::vec(0..=rows, 0..4);
            let ranges = prop::collection::vec(0..=len + 20, 0..3_usize).prop_map(|mut ends| {
                ends.extend(ends.clone().iter().map(|end| end + 13));
                ends.sort_unstable();
                ends.chunks_exact(2).map(|pair| pair[0]..pair[1]).collect()
            });
            let layer = KvLayer::full(kv_heads, 16, format, format);
            let heads = kv_heads * group;
            (dropped, cuts, ranges, layers::kinds()).prop_map(move |(mut dropped, cuts, among, kind)| {
                if kind != KvKind::Full {
                    dropped.iter_mut().flatten().for_each(|dropped| *dropped = false);
                }
                let layer = KvLayer { kind, ..layer };
                Reduced { layer, heads, len, rows, shared, dropped, cuts, among, seed }
            })
        },
    )
}

const REDUCES: [WeightReduce; 4] =
    [WeightReduce::Sum, WeightReduce::Decayed(0.9), WeightReduce::Above, WeightReduce::Max];

proptest! {
    #![proptest_config(crate::testing::cases(96))]

    #[test]
    fn reductions_are_the_plain_ones_however_rows_are_cut(
        Reduced { layer, heads, len, rows: count, shared, dropped, mut cuts, among, seed } in reduced()
    ) {
        let store = Store::new(layer, &[len], shared, seed);
        let tails = tails(&store, &store.tables[0], shared, &dropped);
        let tails: Vec<HeadTail<'_>> =
            tails.iter().map(|(tiles, dropped)| HeadTail { tiles, dropped: *dropped }).collect();
        let seqs = [SeqKv { blocks: &store.tables[0][..shared], tails: &tails }];
        let rows: Vec<SeqRow> = (len - count + 1..=len).map(|len| SeqRow { seq: 0, len: len as u32 }).collect();
        let q = vector(&mut Random(seed ^ 1), rows.len() * heads * layer.key_dim);
        let call = Call { store: &store, heads, rows: &rows, seqs: &seqs, q: &q };
        let best = *Isa::available().last().unwrap();
        let (_, weights) = call.watched(best, 2, 0..count);
        let group = heads / layer.kv_heads;
        cuts.extend([0, count]);
        cuts.sort_unstable();

        for reduce in REDUCES {
            for isa in crate::testing::isas() {
                let (pool, mut at_once, mut in_calls) =
                    (Pool::new(3), vec![vec![]; layer.kv_heads], vec![vec![]; layer.kv_heads]);
                weights.reduce_with(isa, &pool, 0..count, reduce, &among, &mut at_once);
                for cut in cuts.windows(2) {
                    // As in a call of these rows alone, which numbers them anew.
                    let rows = &rows[cut[0]..cut[1]];
                    let q = &q[cut[0] * heads * layer.key_dim..][..rows.len() * heads * layer.key_dim];
                    let (_, weights) = Call { rows, q, ..call }.watched(best, 1, 0..rows.len());
                    weights.reduce_with(isa, &pool, 0..rows.len(), reduce, &among, &mut in_calls);
                }
                for kv_head in 0..layer.kv_heads {
                    let expect =
                        naive_reduce(&weights, 0..count, reduce, &among, kv_head * group..(kv_head + 1) * group, layer.kind);
                    prop_assert_eq!(bits(&at_once[kv_head]), bits(&expect), "{:?} {:?}", reduce, isa);
                    prop_assert_eq!(bits(&in_calls[kv_head]), bits(&expect), "{:?} {:?} cut", reduce, isa);
                }
            }
        }
    }
}

/// Long enough for several tasks and threads.
#[test]
fn reductions_of_long_sequences_do_not_depend_on_threads() {
    let layer = KvLayer::full(2, 8, KvFormat::F16, KvFormat::F16);
    let (store, heads) = (Store::new(layer, &[9000], 0, 1), 4);
    let rows: Vec<SeqRow> = (8990..=9000).map(|len| SeqRow { seq: 0, len }).collect();
    let q = vector(&mut Random(2), rows.len() * heads * 8);
    let seqs = [SeqKv { blocks: &store.tables[0], tails: &[] }];
    let call = Call { store: &store, heads, rows: &rows, seqs: &seqs, q: &q };
    let (_, weights) = call.watched(Isa::current(), 3, 0..rows.len());
    for among in [vec![], vec![5..40, 4090..8995]] {
        for reduce in REDUCES {
            let mut into = vec![vec![]; 2];
            weights.reduce(&Pool::new(3), 0..rows.len(), reduce, &among, &mut into);
            for (kv_head, into) in into.iter().enumerate() {
                let expect = naive_reduce(
                    &weights,
                    0..rows.len(),
                    reduce,
                    &among,
                    2 * kv_head..2 * kv_head + 2,
                    layer.kind,
                );
                assert_eq!(bits(into), bits(&expect), "{reduce:?}");
            }
        }
    }
}

/// Reduces rows of a call with two sequences, of which rows 0 and 2 are watched.
fn reduce_rows(rows: Range<usize>, among: &[Range<usize>]) {
    let layer = KvLayer::full(1, 8, KvFormat::F16, KvFormat::F16);
    let store = Store::new(layer, &[20, 20], 0, 1);
    let rows_of_call = [(0, 19), (0, 20), (1, 20)].map(|(seq, len)| SeqRow { seq, len });
    let seqs = store.seqs();
    let call = Call { store: &store, heads: 1, rows: &rows_of_call, seqs: &seqs, q: &[0.5; 24] };
    let (_, weights) = call.watched(Isa::current(), 1, 1..3);
    weights.reduce(&Pool::new(1), rows, WeightReduce::Sum, among, &mut [vec![]]);
}

#[test]
#[should_panic(expected = "not all watched")]
fn rows_that_were_not_watched_are_refused() {
    reduce_rows(0..2, &[]);
}

#[test]
#[should_panic(expected = "rows of one sequence")]
fn rows_of_two_sequences_are_refused() {
    reduce_rows(1..3, &[]);
}

#[test]
#[should_panic(expected = "ranges ascend")]
fn ranges_that_overlap_are_refused() {
    reduce_rows(1..2, &[0..5, 4..9]);
}

//! Kernels on emulated units, compared with the specification.

use proptest::prelude::*;

use super::super::kernel::{AttentionKernels, ScoreCall, Seen, ValueCall};
use super::super::quantised::{query_len, value_scales, weight_bytes};
use super::super::{SPLIT, variants};
use super::{scores, values};
use crate::Isa;
use crate::f32x16::LANES;
use crate::kv::quantised::{Q8, groups};
use crate::kv::{BLOCK_POSITIONS, KvFormat, KvLayer};
use crate::testing::Random;
use crate::x86::amx::Emulated;

fn specification() -> AttentionKernels {
    variants::kernels(Isa::Scalar, &KvLayer::full(1, 64, KvFormat::Q8, KvFormat::Q8))
}

/// The visible positions of each of `query_rows` in `tiles` tiles, for some none.
pub(in crate::attention) fn random_seen(random: &mut Random, query_rows: usize, tiles: usize) -> Vec<Seen> {
    let positions = (tiles * BLOCK_POSITIONS) as u64;
    let mut seen = || {
        let [a, b] = [0, 1].map(|_| (random.bits() % (positions + 1)) as u32);
        let (start, end) = if random.bits().is_multiple_of(2) { (0, b) } else { (a.min(b), a.max(b)) };
        if start < end { Seen { start, end } } else { Seen::NOTHING }
    };
    (0..query_rows).map(|_| seen()).collect()
}

/// Tiles of random bytes followed by scales of up to 1, `[tiles]`, of f32 so that they are aligned as in the
/// arena.
fn random_tiles(random: &mut Random, tiles: usize, bytes: usize, scales: usize) -> Vec<Vec<f32>> {
    let mut tile = || -> Vec<f32> {
        let numbers: Vec<f32> = (0..bytes / 4).map(|_| f32::from_bits(random.bits() as u32)).collect();
        numbers.into_iter().chain((0..scales).map(|_| random.float().abs())).collect()
    };
    (0..tiles).map(|_| tile()).collect()
}

/// Random keys and queries.
struct Keys {
    head_dim: usize,
    /// `[tiles]`
    tiles: Vec<Vec<f32>>,
    queries: Vec<Vec<f32>>,
    seen: Vec<Seen>,
}

impl Keys {
    fn new(head_dim: usize, tiles: usize, query_rows: usize, seed: u64) -> Keys {
        let mut random = Random(seed);
        let bytes = head_dim.div_ceil(2) * BLOCK_POSITIONS * 2;
        let tiles = random_tiles(&mut random, tiles, bytes, groups::<Q8>(head_dim) * BLOCK_POSITIONS);
        let seen = random_seen(&mut random, query_rows, tiles.len());
        let mut query = || {
            let q: Vec<f32> = (0..head_dim).map(|_| random.float()).collect();
            let mut to = vec![0.0; query_len(KvFormat::Q8, head_dim)];
            // SAFETY: the room is that of the format.
            unsafe { (specification().query)(&q, &mut to) };
            to
        };
        let queries = (0..query_rows).map(|_| query()).collect();
        Keys { head_dim, tiles, queries, seen }
    }

    /// The bits of all scores that query rows compute.
    fn scores(&self, scores: unsafe fn(&ScoreCall<'_>)) -> Vec<u32> {
        let tiles: Vec<*const u8> = self.tiles.iter().map(|tile| tile.as_ptr().cast()).collect();
        let q: Vec<*const f32> = self.queries.iter().map(|query| query.as_ptr()).collect();
        let mut out = vec![f32::NAN; q.len() * SPLIT];
        let call = ScoreCall {
            q: &q,
            seen: &self.seen,
            tiles: &tiles,
            value_tiles: &tiles,
            value_scales: 0..0,
            head_dim: self.head_dim,
            scores: out.as_mut_ptr(),
        };
        // SAFETY: all shapes are those of the call, and the machine has the instructions.
        unsafe { scores(&call) };
        let rows = out.chunks_exact(SPLIT).zip(&self.seen);
        let touched = |(row, seen): (&[f32], &Seen)| {
            let blocks = seen.blocks();
            row[blocks.start * BLOCK_POSITIONS..blocks.end * BLOCK_POSITIONS].to_vec()
        };
        rows.flat_map(touched).map(f32::to_bits).collect()
    }
}

/// Random values and probabilities.
struct Values {
    dims: usize,
    /// `[tiles]`
    tiles: Vec<Vec<f32>>,
    /// `[query_rows][SPLIT]`: 0 at invisible positions of a query row's blocks, and NaN outside its blocks.
    p: Vec<f32>,
    seen: Vec<Seen>,
}

impl Values {
    fn new(vectors: usize, tiles: usize, query_rows: usize, seed: u64) -> Values {
        let (mut random, dims) = (Random(seed), vectors * LANES);
        let bytes = value_scales(KvFormat::Q8, dims).start;
        let mut tiles = random_tiles(&mut random, tiles, bytes, groups::<Q8>(dims) * BLOCK_POSITIONS);
        // A quantised value is never -128.
        for tile in &mut tiles {
            for x in &mut tile[..bytes / 4] {
                *x = f32::from_ne_bytes(x.to_ne_bytes().map(|byte| if byte == 128 { 127 } else { byte }));
            }
        }
        let seen = random_seen(&mut random, query_rows, tiles.len());
        let mut p = vec![f32::NAN; query_rows * SPLIT];
        for (p, seen) in p.chunks_exact_mut(SPLIT).zip(&seen) {
            let blocks = seen.blocks();
            p[blocks.start * BLOCK_POSITIONS..blocks.end * BLOCK_POSITIONS].fill(0.0);
            p[seen.positions()].fill_with(|| random.float().abs());
        }
        Values { dims, tiles, p, seen }
    }

    /// The bits of the results of all query rows.
    fn weighted(&self, values: unsafe fn(&ValueCall<'_>)) -> Vec<u32> {
        let tiles: Vec<*const u8> = self.tiles.iter().map(|tile| tile.as_ptr().cast()).collect();
        let room_bytes = self.seen.len() * weight_bytes(KvFormat::Q8, self.dims);
        // The result must not depend on old contents of the buffer.
        let mut room = vec![[f32::NAN; 2]; room_bytes.div_ceil(8)];
        let mut out = vec![f32::NAN; self.seen.len() * self.dims];
        let call = ValueCall {
            p: self.p.as_ptr(),
            seen: &self.seen,
            tiles: &tiles,
            skipped: 0,
            dims: self.dims,
            key_dim: self.dims,
            room: room.as_mut_ptr().cast(),
            turned: std::ptr::null_mut(),
            out: out.as_mut_ptr(),
        };
        // SAFETY: all shapes are those of the call, and the machine has the instructions.
        unsafe { values(&call) };
        out.into_iter().map(f32::to_bits).collect()
    }
}

/// Kernels over q8.
struct Kernels {
    scores: unsafe fn(&ScoreCall<'_>),
    values: unsafe fn(&ValueCall<'_>),
}

fn emulated() -> Kernels {
    unsafe fn emulated_scores(call: &ScoreCall<'_>) {
        // SAFETY: the caller's promise.
        unsafe { scores::<crate::scalar::i32x16::ScalarSums, Emulated>(call) }
    }
    unsafe fn emulated_values(call: &ValueCall<'_>) {
        // SAFETY: the caller's promise.
        unsafe { values::<crate::scalar::i32x16::ScalarSums, Emulated>(call) }
    }
    Kernels { scores: emulated_scores, values: emulated_values }
}

fn emulated_beside_avx512() -> Kernels {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn emulated_scores(call: &ScoreCall<'_>) {
        // SAFETY: the caller's promise.
        unsafe { scores::<crate::x86::i32x16_avx512::Avx512Sums, Emulated>(call) }
    }
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn emulated_values(call: &ValueCall<'_>) {
        // SAFETY: the caller's promise.
        unsafe { values::<crate::x86::i32x16_avx512::Avx512Sums, Emulated>(call) }
    }
    Kernels { scores: emulated_scores, values: emulated_values }
}

fn check(kernels: &Kernels) {
    let shapes =
        (prop_oneof![1..=256_usize, Just(512), Just(576)], 1..=16_usize, 1..=120_usize, any::<u64>());
    proptest!(crate::testing::cases(100), |((head_dim, tiles, query_rows, seed) in shapes)| {
        let keys = Keys::new(head_dim, tiles, query_rows, seed);
        prop_assert_eq!(keys.scores(kernels.scores), keys.scores(specification().scores));
    });
    let shapes = (prop_oneof![1..=16_usize, Just(32), Just(36)], 1..=16_usize, 1..=120_usize, any::<u64>());
    proptest!(crate::testing::cases(100), |((vectors, tiles, query_rows, seed) in shapes)| {
        let case = Values::new(vectors, tiles, query_rows, seed);
        prop_assert_eq!(case.weighted(kernels.values), case.weighted(specification().values));
    });
}

#[test]
fn matrix_units_compute_as_the_specification_does() {
    check(&emulated());
}

#[test]
fn matrix_units_beside_avx512_compute_as_the_specification_does() {
    match Isa::available().contains(&Isa::Avx512) {
        true => check(&emulated_beside_avx512()),
        false => kvik_testing::skip("this machine has no avx512"),
    }
}

/// The largest possible weights and values, all of one sign.
#[test]
fn the_largest_sums_of_a_split_fit() {
    for byte in [127_i8, -127] {
        let mut case = Values::new(3, 16, 64, 1);
        case.seen.fill(Seen { start: 0, end: SPLIT as u32 });
        case.p.fill(1.0);
        let bytes = value_scales(KvFormat::Q8, case.dims).start / 4;
        for tile in &mut case.tiles {
            tile[..bytes].fill(f32::from_ne_bytes([byte as u8; 4]));
            tile[bytes..].fill(1.0);
        }
        let weighted = case.weighted(emulated().values);
        assert_eq!(weighted, case.weighted(specification().values));
        let expect = f32::from(byte) * SPLIT as f32;
        assert!(weighted.iter().all(|&x| (f32::from_bits(x) - expect).abs() < 0.1), "{byte}");
    }
}

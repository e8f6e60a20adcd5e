//! Kernels on emulated units, and in vectors, compared with the specified orders.

use proptest::prelude::*;

use super::specification::{OfUnits, OfVectors, Order};
use super::*;
use crate::Isa;
use crate::attention::SPLIT_BLOCKS;
use crate::attention::kernel::ValueCall;
use crate::attention::tiled::tests::random_seen;
use crate::f32x16::F32x16;
use crate::scalar::f32x16::Scalar;
use crate::testing::Random;
use crate::x86::amx::Emulated;
use crate::x86::f32x16_avx512::Avx512;

/// Random bfloats and their factors.
struct Case {
    dims: usize,
    /// `[tiles][dims][16]` or `[tiles][16][dims]`
    tiles: Vec<Vec<u16>>,
    /// `[query_rows][SPLIT]`; queries are the first `dims` of them.
    factors: Vec<f32>,
    seen: Vec<Seen>,
    skipped: usize,
}

/// Classes of numbers in a test.
#[derive(Debug, Clone, Copy)]
enum Numbers {
    Ordinary,
    /// So small that many products and sums are subnormal.
    Tiny,
    /// Any bits.
    Any,
}

impl Numbers {
    fn draw(self, random: &mut Random) -> f32 {
        match self {
            Numbers::Ordinary => random.float(),
            Numbers::Tiny => random.float() * f32::from_bits((50 + random.bits() as u32 % 30) << 23),
            Numbers::Any => f32::from_bits(random.bits() as u32),
        }
    }
}

impl Case {
    fn new(dims: usize, tiles: usize, query_rows: usize, numbers: Numbers, seed: u64) -> Case {
        let mut random = Random(seed);
        let skipped = random.bits() as usize % (SPLIT_BLOCKS - tiles + 1);
        let seen = random_seen(&mut random, query_rows, tiles);
        let tiles = (0..tiles)
            .map(|_| (0..dims * 16).map(|_| (numbers.draw(&mut random).to_bits() >> 16) as u16).collect())
            .collect();
        let factors = (0..query_rows * SPLIT).map(|_| numbers.draw(&mut random)).collect();
        Case { dims, tiles, factors, seen, skipped }
    }

    /// Zeroes the factors at invisible positions of each query row's blocks.
    fn probabilities(mut self) -> Case {
        for (p, seen) in self.factors.chunks_exact_mut(SPLIT).zip(&self.seen) {
            let blocks = seen.blocks();
            p[blocks.start * BLOCK_POSITIONS..seen.start as usize].fill(0.0);
            p[seen.end as usize..blocks.end * BLOCK_POSITIONS].fill(0.0);
        }
        self
    }

    fn tiles(&self) -> Vec<*const u8> {
        self.tiles.iter().map(|tile| tile.as_ptr().cast()).collect()
    }

    /// The bits of all scores that query rows compute.
    fn scores(&self, scores: unsafe fn(&ScoreCall<'_>)) -> Vec<u32> {
        let (tiles, mut out) = (self.tiles(), vec![f32::NAN; self.factors.len()]);
        let q: Vec<*const f32> = self.factors.chunks_exact(SPLIT).map(<[f32]>::as_ptr).collect();
        let call = ScoreCall {
            q: &q,
            seen: &self.seen,
            tiles: &tiles,
            value_tiles: &tiles,
            value_scales: 0..0,
            head_dim: self.dims,
            scores: out.as_mut_ptr(),
        };
        // SAFETY: all shapes are those of the call, and the machine has the instructions.
        unsafe { scores(&call) };
        let rows = out.chunks_exact(SPLIT).zip(&self.seen);
        marks(rows.flat_map(|(row, seen)| {
            row[seen.blocks().start * BLOCK_POSITIONS..seen.blocks().end * BLOCK_POSITIONS].iter()
        }))
    }

    /// The bits of the results of `query_rows`, computed together, with keys of `key_dim` if they hold the values.
    fn weighted(
        &self,
        values: unsafe fn(&ValueCall<'_>),
        query_rows: Range<usize>,
        key_dim: usize,
    ) -> Vec<u32> {
        let (tiles, mut out) = (self.tiles(), vec![f32::NAN; query_rows.len() * self.dims]);
        let call = ValueCall {
            p: self.factors[query_rows.start * SPLIT..].as_ptr(),
            seen: &self.seen[query_rows],
            tiles: &tiles,
            skipped: self.skipped,
            dims: self.dims,
            key_dim,
            room: std::ptr::null_mut(),
            turned: std::ptr::null_mut(),
            out: out.as_mut_ptr(),
        };
        // SAFETY: as above.
        unsafe { values(&call) };
        marks(out.iter())
    }
}

/// The bits of numbers; all NaNs are equal.
fn marks<'a>(numbers: impl Iterator<Item = &'a f32>) -> Vec<u32> {
    numbers.map(|x| if x.is_nan() { u32::MAX } else { x.to_bits() }).collect()
}

/// Kernels of some lanes.
struct Kernels {
    scores: unsafe fn(&ScoreCall<'_>),
    /// For stored values, and for values in keys.
    values: [unsafe fn(&ValueCall<'_>); 2],
}

macro_rules! kernels {
    ($lanes:ty, $products:ty $(, $features:literal)?) => {{
        $(#[target_feature(enable = $features)])?
        unsafe fn score(call: &ScoreCall<'_>) {
            // SAFETY: the caller's promise.
            unsafe { scores::<$lanes, $products>(call) }
        }
        $(#[target_feature(enable = $features)])?
        unsafe fn weigh(call: &ValueCall<'_>) {
            // SAFETY: as above.
            unsafe { values::<$lanes, $products>(call) }
        }
        $(#[target_feature(enable = $features)])?
        unsafe fn weigh_latents(call: &ValueCall<'_>) {
            // SAFETY: as above.
            unsafe { latents::<$lanes, $products>(call) }
        }
        Kernels { scores: score, values: [weigh, weigh_latents] }
    }};
}

fn check<O: Order>(kernels: &Kernels) {
    let numbers = || prop_oneof![Just(Numbers::Ordinary), Just(Numbers::Tiny), Just(Numbers::Any)];
    let shapes = (1..=140_usize, 1..=16_usize, 1..=40_usize, numbers(), any::<u64>());
    proptest!(crate::testing::cases(48), |((head_dim, tiles, query_rows, numbers, seed) in shapes)| {
        let case = Case::new(head_dim, tiles, query_rows, numbers, seed);
        prop_assert_eq!(case.scores(kernels.scores), case.scores(specification::scores::<O>));
    });
    let shapes = (1..=9_usize, 1..=16_usize, 1..=40_usize, numbers(), any::<u64>(), 0..16_usize);
    proptest!(crate::testing::cases(48), |((vectors, tiles, query_rows, numbers, seed, short) in shapes)| {
        let case = Case::new(vectors * LANES, tiles, query_rows, numbers, seed).probabilities();
        for (values, expect, short) in [
            (kernels.values[0], specification::values::<O> as unsafe fn(&ValueCall<'_>), 0),
            (kernels.values[1], specification::latents::<O>, short),
        ] {
            let (of_row, key_dim) = (case.dims, case.dims - short);
            let expect = case.weighted(expect, 0..query_rows, key_dim);
            prop_assert_eq!(&case.weighted(values, 0..query_rows, key_dim), &expect, "together");
            let row = seed as usize % query_rows;
            let alone = case.weighted(values, row..row + 1, key_dim);
            prop_assert_eq!(&alone[..], &expect[row * of_row..][..of_row], "alone");
        }
    });
}

/// Whether this machine has AVX-512 BF16.
fn has_bfloats() -> bool {
    let has = Isa::available().contains(&Isa::Avx512Bf16);
    if !has {
        kvik_testing::skip("this machine has no avx512bf16");
    }
    has
}

#[test]
fn bfloats_on_units_equal_the_specification() {
    check::<OfUnits>(&kernels!(Scalar, Units<Emulated>));
}

#[test]
fn bfloats_in_vectors_equal_the_specification() {
    check::<OfVectors>(&kernels!(Scalar, Vectors<Scalar>));
}

#[test]
fn bfloats_on_units_beside_avx512_equal_the_specification() {
    if has_bfloats() {
        check::<OfUnits>(&kernels!(
            Avx512,
            Units<Emulated>,
            "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16,avx2,fma,f16c"
        ));
    }
}

#[test]
fn bfloats_in_avx512_equal_the_specification() {
    if has_bfloats() {
        check::<OfVectors>(&kernels!(
            Avx512,
            Vectors<Avx512>,
            "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16,avx2,fma,f16c"
        ));
    }
}

#[test]
fn bfloats_are_rounded_as_those_of_products() {
    #[target_feature(enable = "avx512f,avx512bf16")]
    unsafe fn round(from: &[f32; 16]) -> [u16; 16] {
        let mut to = [0; 16];
        // SAFETY: the caller has found the instruction.
        unsafe { Avx512::load(from.as_ptr()).store_bf16(to.as_mut_ptr()) };
        to
    }
    if !has_bfloats() {
        return;
    }
    let mut random = Random(5);
    let ends = [0.0, -0.0, 1e-40, -1e-40, f32::MIN_POSITIVE, f32::MAX, f32::INFINITY, f32::NAN];
    for number in 0..100_000 {
        let x: [f32; 16] = std::array::from_fn(|i| match number {
            0 => ends[i % ends.len()],
            // Halfway between two bfloats.
            1..1000 => f32::from_bits((random.bits() as u32) << 15 | 1 << 15),
            _ => f32::from_bits(random.bits() as u32),
        });
        let mut expect = [0; 16];
        // SAFETY: 16 numbers each, and the machine has the instruction.
        let found = unsafe {
            Scalar::load(x.as_ptr()).store_bf16(expect.as_mut_ptr());
            round(&x)
        };
        assert_eq!(found, expect, "{x:?}");
    }
}

/// The difference of two sums is negative and subnormal. A row computed with others adds zeros to it, which make
/// it positive; a row computed alone has no more pieces.
#[test]
fn the_sign_of_a_zero_tells_nothing_of_the_company() {
    let mut case = Case::new(LANES, 6, 2, Numbers::Ordinary, 1);
    (case.skipped, case.seen) = (0, vec![Seen { start: 0, end: 33 }, Seen { start: 0, end: 96 }]);
    case.factors.fill(0.0);
    (case.factors[0], case.factors[PIECE]) = (1.0, 1.0);
    case.tiles.iter_mut().for_each(|tile| tile.fill(0xbf00));
    let [smallest, more] = [f32::MIN_POSITIVE, -1.5 * f32::MIN_POSITIVE].map(|x| (x.to_bits() >> 16) as u16);
    case.tiles[0][..LANES].fill(smallest);
    case.tiles[PIECE / BLOCK_POSITIONS][..LANES].fill(more);
    for emulated in [kernels!(Scalar, Units<Emulated>), kernels!(Scalar, Vectors<Scalar>)] {
        assert_eq!(case.weighted(emulated.values[0], 0..1, LANES), [0; LANES]);
        assert_eq!(case.weighted(emulated.values[0], 0..2, LANES)[..LANES], [0; LANES]);
    }
}

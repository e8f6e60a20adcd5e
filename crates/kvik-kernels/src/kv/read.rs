//! Dequantisation of stored keys and values.
//!
//! A float is widened. A quantised value is multiplied by its scale, and the minimum is added by FMA if the format
//! has one; this is an element of a rotated vector, which is then rotated back.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::quantised::{Quantised, scales_at};
use super::rotate::{rotate, rotate_columns};
use super::sequence::check_tails;
use super::tile::FloatTile;
use super::{BLOCK_POSITIONS, HEAD_DIM_MAX, KvArena, KvValues, SeqKv};
use crate::Isa;
use crate::f32x16::{F32x16, LANES};
use crate::i32x16::I32x16;

/// The vectors of one tile, `[16 positions][dims]`, where `dims` is their length rounded up to whole lanes.
type Vectors = [f32; BLOCK_POSITIONS * HEAD_DIM_MAX];

/// Reads the vectors of length `dim` of a tile, including positions that were never stored; the padding of `to`
/// up to whole lanes is unspecified. `next` is the tile that is read next, which need not be readable.
type ReadTile = unsafe fn(tile: *const u8, next: *const u8, dim: usize, to: &mut Vectors);

/// The readers of one instruction set, which the machine must have, for tiles of two formats.
#[derive(Clone, Copy)]
pub(super) struct Readers {
    /// K tiles.
    pub keys: ReadTile,
    /// V tiles.
    pub values: ReadTile,
}

impl KvArena {
    /// The keys of a sequence that a KV head of a layer stores.
    ///
    /// # Panics
    /// If the layer does not exist, or some heads of the sequence have tails and others have none.
    pub fn keys<'a>(&'a self, layer: usize, head: usize, seq: &'a SeqKv<'a>) -> StoredVectors<'a> {
        StoredVectors::keys(Isa::current(), self, [layer, head], seq)
    }

    /// The values of a sequence that a KV head of a layer stores.
    ///
    /// # Panics
    /// As [`KvArena::keys`].
    pub fn values<'a>(&'a self, layer: usize, head: usize, seq: &'a SeqKv<'a>) -> StoredVectors<'a> {
        StoredVectors::values(Isa::current(), self, [layer, head], seq)
    }
}

/// Indices of the tiles of a head.
const KEYS: usize = 0;
const VALUES: usize = 1;

/// The keys or the values that one head stores.
#[derive(Clone, Copy)]
pub struct StoredVectors<'a> {
    arena: &'a KvArena,
    layer: usize,
    head: usize,
    seq: &'a SeqKv<'a>,
    dim: usize,
    /// Length of the vectors in the tiles, of which the returned vectors are a prefix.
    stored_dim: usize,
    /// The first stored position.
    first: usize,
    /// The tile of a head: K or V.
    part: usize,
    read: ReadTile,
}

impl<'a> StoredVectors<'a> {
    fn keys(isa: Isa, arena: &'a KvArena, [layer, head]: [usize; 2], seq: &'a SeqKv<'a>) -> Self {
        let shape = &arena.layout().layers()[layer];
        check_tails(shape, seq);
        let (dim, read) = (shape.key_dim, variants::readers(isa, shape).keys);
        StoredVectors { arena, layer, head, seq, dim, stored_dim: dim, first: 0, part: KEYS, read }
    }

    fn values(isa: Isa, arena: &'a KvArena, [layer, head]: [usize; 2], seq: &'a SeqKv<'a>) -> Self {
        let shape = &arena.layout().layers()[layer];
        let dim = shape.value_dim;
        if shape.values == KvValues::OfKeys {
            return StoredVectors { dim, ..StoredVectors::keys(isa, arena, [layer, head], seq) };
        }
        check_tails(shape, seq);
        let read = variants::readers(isa, shape).values;
        StoredVectors { arena, layer, head, seq, dim, stored_dim: dim, first: 0, part: VALUES, read }
    }

    /// The length of a vector.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// The vectors after the first `count`.
    pub fn skip(self, count: usize) -> Self {
        StoredVectors { first: self.first + count, ..self }
    }

    /// Passes vectors `range` to `with`, in order.
    ///
    /// # Panics
    /// If the head does not exist or stores fewer vectors.
    pub fn each(&self, range: Range<usize>, mut with: impl FnMut(&[f32])) {
        let mut vectors = [0.0; BLOCK_POSITIONS * HEAD_DIM_MAX];
        let dims = self.stored_dim.next_multiple_of(LANES);
        let positions = self.first + range.start..self.first + range.end;
        let mut first = positions.start / BLOCK_POSITIONS * BLOCK_POSITIONS;
        let mut ahead = (first < positions.end).then(|| self.tile(first));
        while let Some(tile) = ahead {
            let end = first + BLOCK_POSITIONS;
            ahead = (end < positions.end).then(|| self.tile(end));
            // SAFETY: the tile exists and has the shape and formats of the layer; writers hold `&mut KvArena`.
            unsafe { (self.read)(tile, ahead.unwrap_or(tile), self.stored_dim, &mut vectors) };
            let read = vectors.chunks_exact(dims).take(positions.end.min(end) - first);
            let wanted = read.skip(positions.start.saturating_sub(first));
            wanted.for_each(|vector| with(&vector[..self.dim]));
            first = end;
        }
    }

    /// The tile of stored position `position`.
    fn tile(&self, position: usize) -> *const u8 {
        let tile = self.seq.tile(self.arena, self.layer, self.head, position / BLOCK_POSITIONS);
        self.arena.tiles(tile, self.layer)[self.part]
    }

    /// Copies vectors `range` to `out`, `[n, dim]`.
    ///
    /// # Panics
    /// If the shape does not fit, or as [`StoredVectors::each`].
    pub fn copy(&self, range: Range<usize>, out: &mut [f32]) {
        assert!(out.len() == range.len() * self.dim, "out is [{}, {}]", range.len(), self.dim);
        let mut out = out.chunks_exact_mut(self.dim);
        self.each(range, |vector| out.next().into_iter().for_each(|out| out.copy_from_slice(vector)));
    }
}

/// The first `dim` dimensions of the keys of a tile, `[16 positions][dim rounded up to whole lanes]`.
///
/// # Safety
/// `tile` is a K tile of at least `dim` dimensions; inlined into a function with the features of `L`.
#[inline(always)]
pub(crate) unsafe fn float_keys<L: F32x16, T: FloatTile>(
    tile: *const u8,
    next: *const u8,
    dim: usize,
    to: &mut [f32],
) {
    // SAFETY: row `d` of the tile; a prefetch reads nothing.
    unsafe {
        turn(dim, to, |d| {
            L::prefetch(T::key_at(next, d));
            T::key::<L>(tile, d)
        });
    }
}

/// # Safety
/// `tile` is a V tile of `dim` dimensions; inlined into a function with the features of `L`.
#[inline(always)]
unsafe fn float_values<L: F32x16, T: FloatTile>(
    tile: *const u8,
    next: *const u8,
    dim: usize,
    to: &mut Vectors,
) {
    let dims = dim.next_multiple_of(LANES);
    for (position, to) in to.chunks_exact_mut(dims).take(BLOCK_POSITIONS).enumerate() {
        for (vector, to) in to.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            // SAFETY: row `position` of the tile has `dims` numbers; a prefetch reads nothing.
            unsafe {
                L::prefetch(T::value_at(next, dims, position, vector));
                T::value::<L>(tile, dims, position, vector).store(to.as_mut_ptr());
            }
        }
    }
}

/// # Safety
/// `tile` is a K tile of `dim` dimensions; inlined into a function with the features of `I`.
#[inline(always)]
unsafe fn quantised_keys<I: I32x16, C: Quantised>(tile: *const u8, dim: usize, to: &mut Vectors) {
    let mut rows = [const { MaybeUninit::<[f32; LANES]>::uninit() }; HEAD_DIM_MAX];
    let rows = &mut rows[..dim];
    // SAFETY: `d` is a dimension of the tile; every row is written.
    unsafe {
        for (d, row) in rows.iter_mut().enumerate() {
            rotated_dimension::<I, C>(tile, dim, d).store(row.as_mut_ptr().cast());
        }
        let rows = rows.assume_init_mut();
        rotate_columns::<I::Floats>(rows);
        turn(dim, to, |d| I::Floats::load(rows[d].as_ptr()));
    }
}

/// Dimension `d` of the rotated keys at 16 positions.
///
/// # Safety
/// `tile` is a K tile of `dim` dimensions, more than `d`; inlined into a function with the features of `I`.
#[inline(always)]
unsafe fn rotated_dimension<I: I32x16, C: Quantised>(tile: *const u8, dim: usize, d: usize) -> I::Floats {
    let scales = scales_at::<C>(tile, dim, BLOCK_POSITIONS).wrapping_add(d / C::GROUP * C::SCALES);
    let word = tile.wrapping_add(d / C::ROWS * BLOCK_POSITIONS * C::WORD);
    // SAFETY: the words that hold row `d` of 16 columns, and the scales of its group.
    unsafe { quantised_row::<I, C>(word, d % C::ROWS).mul_add(C::scale(scales), C::min(scales)) }
}

/// # Safety
/// `tile` is a V tile of `dim` dimensions; inlined into a function with the features of `I`.
#[inline(always)]
unsafe fn quantised_values<I: I32x16, C: Quantised>(tile: *const u8, dim: usize, to: &mut Vectors) {
    let dims = dim.next_multiple_of(LANES);
    let scales = scales_at::<C>(tile, BLOCK_POSITIONS, dims);
    for start in (0..dims).step_by(LANES) {
        let scales = scales.wrapping_add(start / C::GROUP * C::SCALES);
        // SAFETY: the scales of the group that these columns are of.
        let [scale, min] =
            unsafe { [C::scale::<I::Floats>(scales).to_array(), C::min::<I::Floats>(scales).to_array()] };
        for position in 0..BLOCK_POSITIONS {
            let word = tile.wrapping_add((position / C::ROWS * dims + start) * C::WORD);
            // SAFETY: the word that holds row `position` of 16 columns.
            unsafe {
                let values: I::Floats = quantised_row::<I, C>(word, position % C::ROWS);
                let (scale, min) = (I::Floats::splat(scale[position]), I::Floats::splat(min[position]));
                values.mul_add(scale, min).store(to[position * dims + start..][..LANES].as_mut_ptr());
            }
        }
    }
    for vector in to.chunks_exact_mut(dims).take(BLOCK_POSITIONS) {
        rotate(&mut vector[..dim]);
    }
}

/// Extracts one row of 16 columns of a word: multiplies it by 1, and its pair by 0.
///
/// # Safety
/// 16 columns of a word of the format are readable at `word`; inlined into a function with the features of `I`.
#[inline(always)]
unsafe fn quantised_row<I: I32x16, C: Quantised>(word: *const u8, row: usize) -> I::Floats {
    let mut factors = [0_i16; 2];
    factors[row % 2] = 1;
    // SAFETY: the caller's promise.
    unsafe {
        let pairs = C::pairs::<I>(C::words::<I>(word), row / 2);
        I::zero().add_products(pairs, I::splat_pair(factors.as_ptr())).to_floats()
    }
}

/// Transposes: lane `i` of row `d < dim` becomes element `d` of vector `i`.
///
/// # Safety
/// Inlined into a function with the features of `L`.
#[inline(always)]
unsafe fn turn<L: F32x16>(dim: usize, to: &mut [f32], row: impl Fn(usize) -> L) {
    let dims = dim.next_multiple_of(LANES);
    for start in (0..dims).step_by(LANES) {
        // SAFETY: the caller's promise; whole lanes of a vector.
        unsafe {
            let mut block = [L::splat(0.0); LANES];
            for (d, lanes) in (start..dim).zip(&mut block) {
                *lanes = row(d);
            }
            L::transpose(&mut block);
            for (position, lanes) in block.iter().enumerate() {
                lanes.store(to[position * dims + start..][..LANES].as_mut_ptr());
            }
        }
    }
}

/// Declares `readers(k, v)` for one type of lanes, compiled with its target features.
macro_rules! declare_readers {
    ($floats:ty, $sums:ty $(, $features:literal)?) => {
        /// The readers for tiles of keys in format `k` and values in format `v`.
        pub(super) fn readers(
            k: $crate::kv::KvFormat,
            v: $crate::kv::KvFormat,
        ) -> $crate::kv::read::Readers {
            use $crate::kv::quantised::Quantised;
            use $crate::kv::read::{self, Readers, Vectors};
            use $crate::kv::tile::FloatTile;
            use $crate::kv::tiles::with_tile;

            $(#[target_feature(enable = $features)])?
            unsafe fn float_keys<T: FloatTile>(tile: *const u8, next: *const u8, dim: usize, to: &mut Vectors) {
                // SAFETY: the contract of `Readers`.
                unsafe { read::float_keys::<$floats, T>(tile, next, dim, to) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn float_values<T: FloatTile>(tile: *const u8, next: *const u8, dim: usize, to: &mut Vectors) {
                // SAFETY: as above.
                unsafe { read::float_values::<$floats, T>(tile, next, dim, to) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn quantised_keys<C: Quantised>(tile: *const u8, _: *const u8, dim: usize, to: &mut Vectors) {
                // SAFETY: as above.
                unsafe { read::quantised_keys::<$sums, C>(tile, dim, to) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn quantised_values<C: Quantised>(tile: *const u8, _: *const u8, dim: usize, to: &mut Vectors) {
                // SAFETY: as above.
                unsafe { read::quantised_values::<$sums, C>(tile, dim, to) }
            }
            Readers {
                keys: with_tile!(k, T => float_keys::<T>, C => quantised_keys::<C>),
                values: with_tile!(v, T => float_values::<T>, C => quantised_values::<C>),
            }
        }
    };
}

use declare_readers;

mod variants {
    //! The readers, compiled for each instruction set.

    use super::{Readers, declare_readers};
    use crate::Isa;
    use crate::kv::KvLayer;

    #[cfg(any(test, not(target_arch = "aarch64")))]
    mod scalar {
        super::declare_readers!(crate::scalar::f32x16::Scalar, crate::scalar::i32x16::ScalarSums);
    }
    /// Every aarch64 machine has NEON.
    #[cfg(all(not(test), target_arch = "aarch64"))]
    use neon as scalar;

    #[cfg(target_arch = "x86_64")]
    mod avx2 {
        super::declare_readers!(
            crate::x86::f32x16_avx2::Avx2,
            crate::x86::i32x16_avx2::Avx2Sums<false>,
            "avx2,fma,f16c"
        );
    }

    #[cfg(target_arch = "x86_64")]
    mod avx512 {
        super::declare_readers!(
            crate::x86::f32x16_avx512::Avx512,
            crate::x86::i32x16_avx512::Avx512Sums,
            "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c"
        );
    }

    #[cfg(target_arch = "aarch64")]
    mod neon {
        super::declare_readers!(crate::arm::f32x16_neon::Neon, crate::arm::i32x16_neon::NeonSums, "neon");
    }

    /// The readers of `isa` for the formats of `layer`.
    pub(super) fn readers(isa: Isa, layer: &KvLayer) -> Readers {
        let (k, v) = (layer.k, layer.v);
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => avx512::readers(k, v),
            // Dequantisation has no products that AVX-VNNI would make faster.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::AvxVnni => avx2::readers(k, v),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon | Isa::NeonDot | Isa::NeonI8mm => neon::readers(k, v),
            _ => scalar::readers(k, v),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Pool;
    use crate::kv::{HeadTail, KvFormat, KvLayer, KvLayout, SeqRow};
    use crate::testing::Random;

    /// Checks the error of storing a vector: exact conversion for floats, else a bound on the distance.
    fn check_stored(format: KvFormat, stored: &[f32], read: &[f32]) -> Result<(), TestCaseError> {
        let exact = |convert: fn(f32) -> f32| stored.iter().map(|&x| convert(x)).eq(read.iter().copied());
        match format {
            KvFormat::F32 => prop_assert!(exact(|x| x)),
            KvFormat::F16 => prop_assert!(exact(|x| half::f16::from_f32(x).to_f32())),
            KvFormat::Bf16 => prop_assert!(exact(|x| half::bf16::from_f32(x).to_f32())),
            KvFormat::Q8 | KvFormat::Q6 | KvFormat::Q5 | KvFormat::Q4 | KvFormat::Q3 => {
                // Half a step for each element of the rotated vector, which has the same norm as the vector. The
                // steps of few bits are up to an eighth longer than needed, and never worse in sum.
                let length = |x: &mut dyn Iterator<Item = f32>| x.map(|x| x * x).sum::<f32>().sqrt();
                let steps = match format {
                    KvFormat::Q8 => 127.0,
                    KvFormat::Q6 => 32.0 / 1.125,
                    KvFormat::Q5 => 16.0 / 1.125,
                    KvFormat::Q4 => 8.0 / 1.125,
                    _ => 4.0 / 1.125,
                };
                let bound = length(&mut stored.iter().copied()) * (stored.len() as f32).sqrt() / steps;
                let distance = length(&mut stored.iter().zip(read).map(|(a, b)| a - b));
                prop_assert!(distance <= bound * 0.55 + 1e-6, "{} {} of {}", format, distance, bound);
            }
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(crate::testing::cases(64))]

        #[test]
        fn what_is_read_is_what_was_stored_and_the_same_with_any_instructions(
            k in prop::sample::select(KvFormat::ALL.to_vec()),
            v in prop::sample::select(KvFormat::ALL.to_vec()),
            dims in prop::array::uniform2(prop::sample::select(vec![8_usize, 24, 40, 64, 100, 128, 256])),
            kv_heads in 1..4_usize,
            (len, range) in (1..80_usize).prop_flat_map(|len| (Just(len), (0..=len, 0..=len))),
            seed in any::<u64>(),
        ) {
            let [key_dim, value_dim] = dims;
            let layer = KvLayer { value_dim, ..KvLayer::full(kv_heads, key_dim, k, v) };
            let layout = KvLayout::uniform(2, layer);
            let mut arena = KvArena::new(layout, 8).unwrap();
            (0..8).for_each(|block| arena.block_mut(block).fill(0xff));
            let mut random = Random(seed);
            let mut vectors = |dim| -> Vec<f32> { (0..len * kv_heads * dim).map(|_| random.float()).collect() };
            let (keys, values) = (vectors(key_dim), vectors(value_dim));
            let tiles: Vec<Vec<u32>> = (0..kv_heads).map(|head| {
                (0..5).map(|i| arena.layout().tile(7 - i, 1, head)).collect()
            }).collect();
            let tails: Vec<HeadTail<'_>> = tiles.iter().map(|tiles| HeadTail { tiles, dropped: 0 }).collect();
            let seqs = [SeqKv { blocks: &[1], tails: &tails }];
            let rows: Vec<SeqRow> = (1..=len as u32).map(|len| SeqRow { seq: 0, len }).collect();
            arena.write(&Pool::new(1), 1, &rows, &seqs, [&keys, &values]);

            let range = range.0.min(range.1)..range.0.max(range.1);
            for head in 0..kv_heads {
                let read = |isa| {
                    let (mut k, mut v) = (vec![0.0; range.len() * key_dim], vec![0.0; range.len() * value_dim]);
                    StoredVectors::keys(isa, &arena, [1, head], &seqs[0]).copy(range.clone(), &mut k);
                    let values = StoredVectors::values(isa, &arena, [1, head], &seqs[0]);
                    values.skip(range.start).copy(0..range.len(), &mut v);
                    (k, v)
                };
                let (read_k, read_v) = read(Isa::Scalar);
                let at = |position: usize| position * kv_heads + head;
                for (i, position) in range.clone().enumerate() {
                    let of = |x: &[f32], dim: usize, at: usize| x[at * dim..][..dim].to_vec();
                    check_stored(k, &of(&keys, key_dim, at(position)), &of(&read_k, key_dim, i))?;
                    check_stored(v, &of(&values, value_dim, at(position)), &of(&read_v, value_dim, i))?;
                }
                for isa in crate::testing::isas() {
                    let (k, v) = read(isa);
                    let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                    prop_assert_eq!((bits(&k), bits(&v)), (bits(&read_k), bits(&read_v)), "{:?}", isa);
                }
            }
        }
    }
    #[test]
    fn values_that_keys_hold_are_their_beginnings() {
        for format in KvFormat::ALL {
            for (key_dim, value_dim) in [(576, 512), (40, 33), (24, 8)] {
                let mut arena =
                    KvArena::new(KvLayout::uniform(1, KvLayer::latent(key_dim, value_dim, format)), 3)
                        .unwrap();
                let mut random = Random(key_dim as u64);
                let keys: Vec<f32> = (0..40 * key_dim).map(|_| random.float()).collect();
                let seqs = [SeqKv { blocks: &[2, 0, 1], tails: &[] }];
                let rows: Vec<SeqRow> = (1..=40).map(|len| SeqRow { seq: 0, len }).collect();
                arena.write(&Pool::new(1), 0, &rows, &seqs, [&keys, &[]]);
                let (mut k, mut v) = (vec![0.0; 40 * key_dim], vec![0.0; 37 * value_dim]);
                arena.keys(0, 0, &seqs[0]).copy(0..40, &mut k);
                arena.values(0, 0, &seqs[0]).skip(3).copy(0..37, &mut v);
                let expect = k.chunks(key_dim).skip(3).flat_map(|key| key[..value_dim].to_vec());
                assert!(v.into_iter().eq(expect), "{format} {key_dim}");
            }
        }
    }
}

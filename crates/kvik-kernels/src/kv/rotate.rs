//! The Hadamard rotation that vectors undergo before they are quantised.

use crate::f32x16::{F32x16, LANES};

/// Number of elements that are rotated together: the largest power of two that divides the length of a head
/// vector.
#[inline(always)]
pub(crate) fn rotated_together(len: usize) -> usize {
    1 << len.trailing_zeros()
}

/// Rotates a head vector by an orthogonal Hadamard matrix, which is its own inverse.
///
/// The rotation spreads outliers over all dimensions, which reduces the quantisation error. Dot products of two
/// rotated vectors are those of the vectors themselves. If the length is not a power of two, pieces of the
/// largest power of two that divides it are rotated one by one.
#[inline(always)]
pub(crate) fn rotate(x: &mut [f32]) {
    let piece = rotated_together(x.len());
    let norm = 1.0 / (piece as f32).sqrt();
    let (vectors, rest) = x.as_chunks_mut::<LANES>();
    // Loops, not closures: only inlined code is compiled for the machine's registers.
    for lanes in vectors.iter_mut() {
        rotate_lanes(lanes, piece);
    }
    let mut last = [0.0; LANES];
    last[..rest.len()].copy_from_slice(rest);
    rotate_lanes(&mut last, piece);
    rest.copy_from_slice(&last[..rest.len()]);
    let mut half = 1;
    while LANES * half < piece {
        for pair in vectors.chunks_exact_mut(2 * half) {
            let (low, high) = pair.split_at_mut(half);
            for (a, b) in low.as_flattened_mut().iter_mut().zip(high.as_flattened_mut()) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half *= 2;
    }
    for x in x {
        *x *= norm;
    }
}

/// Rotates 16 interleaved vectors, `[dim][16]`: the result equals [`rotate`] of each to the bit.
///
/// # Safety
/// Inlined into a function with the features of `L`.
#[inline(always)]
pub(crate) unsafe fn rotate_columns<L: F32x16>(rows: &mut [[f32; LANES]]) {
    let piece = rotated_together(rows.len());
    // SAFETY: rows of 16.
    unsafe {
        let mut half = 1;
        while half < piece {
            for pair in rows.chunks_exact_mut(2 * half) {
                let (low, high) = pair.split_at_mut(half);
                for (low, high) in low.iter_mut().zip(high) {
                    let (a, b) = (L::load(low.as_ptr()), L::load(high.as_ptr()));
                    a.add(b).store(low.as_mut_ptr());
                    a.sub(b).store(high.as_mut_ptr());
                }
            }
            half *= 2;
        }
        let norm = L::splat(1.0 / (piece as f32).sqrt());
        for row in rows {
            L::load(row.as_ptr()).mul(norm).store(row.as_mut_ptr());
        }
    }
}

/// Rotates at the distances below 16, on lanes that stay in registers.
#[inline(always)]
fn rotate_lanes(lanes: &mut [f32; LANES], piece: usize) {
    if piece > 1 {
        rotate_distance::<1>(lanes);
    }
    if piece > 2 {
        rotate_distance::<2>(lanes);
    }
    if piece > 4 {
        rotate_distance::<4>(lanes);
    }
    if piece > 8 {
        rotate_distance::<8>(lanes);
    }
}

#[inline(always)]
fn rotate_distance<const HALF: usize>(lanes: &mut [f32; LANES]) {
    let x = *lanes;
    *lanes = std::array::from_fn(|i| {
        let other = x[i ^ HALF];
        if i & HALF == 0 { x[i] + other } else { other - x[i] }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    #[test]
    fn rotation_is_its_own_inverse_and_keeps_products() {
        for len in [8, 24, 40, 64, 80, 100, 128, 256] {
            let mut random = Random(len as u64);
            let (x, y): (Vec<f32>, Vec<f32>) = (0..len).map(|_| (random.float(), random.float())).unzip();
            let dot = |x: &[f32], y: &[f32]| -> f32 { x.iter().zip(y).map(|(x, y)| x * y).sum() };
            let (mut rotated, mut other) = (x.clone(), y.clone());
            rotate(&mut rotated);
            rotate(&mut other);
            assert!((dot(&rotated, &other) - dot(&x, &y)).abs() < 1e-4);
            rotate(&mut rotated);
            assert!(rotated.iter().zip(&x).all(|(a, b)| (a - b).abs() < 1e-5), "{len}");
        }
    }

    #[test]
    fn vectors_beside_one_another_are_rotated_as_each_alone() {
        for len in [8, 24, 40, 64, 80, 100, 128, 256] {
            let mut random = Random(len as u64);
            let vectors: Vec<Vec<f32>> =
                (0..LANES).map(|_| (0..len).map(|_| random.float()).collect()).collect();
            let mut rows: Vec<[f32; LANES]> =
                (0..len).map(|d| std::array::from_fn(|i| vectors[i][d])).collect();
            // SAFETY: every machine has the scalar lanes.
            unsafe { rotate_columns::<crate::scalar::f32x16::Scalar>(&mut rows) };
            for (i, mut vector) in vectors.into_iter().enumerate() {
                rotate(&mut vector);
                assert!(rows.iter().zip(&vector).all(|(row, x)| row[i].to_bits() == x.to_bits()), "{len}");
            }
        }
    }

    /// Values that are a prefix of keys are rotated back without the rest.
    #[test]
    fn pieces_are_rotated_as_in_the_whole() {
        for (len, part) in [(576, 512), (576, 64), (100, 48), (40, 16), (24, 16), (160, 96), (36, 32)] {
            let mut random = Random(len as u64);
            let mut whole: Vec<f32> = (0..len).map(|_| random.float()).collect();
            let mut begin = whole[..part].to_vec();
            rotate(&mut whole);
            begin.chunks_exact_mut(rotated_together(len)).for_each(rotate);
            assert!(begin.iter().zip(&whole).all(|(a, b)| a.to_bits() == b.to_bits()), "{part} of {len}");
        }
    }

    #[test]
    fn rotation_spreads_an_outlier() {
        for len in [4, 16, 64] {
            let mut x = vec![0.0; len];
            x[len / 2 + 1] = (len as f32).sqrt();
            rotate(&mut x);
            assert!(x.iter().all(|x| x.abs() == 1.0), "{x:?}");
        }
    }
}

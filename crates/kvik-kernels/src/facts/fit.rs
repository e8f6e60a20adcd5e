//! Least squares over vectors: which change of some vectors brings weighted sums of them nearest to what the sums lack.
//!
//! Products are summed by the kernels for moments, row by row; the small system of equations is solved in `f64`. So
//! the result is the same to the bit on every instruction set.

use std::ops::Range;

use super::kernel::{FactsKernels, half_len, half_start};
use super::variants::kernels_of;
use crate::Isa;
use crate::f32x16::LANES;

/// Floats of a packed piece of rows: half of a first-level cache.
const PIECE: usize = 32 * 256;

/// Weighted sums of vectors.
#[derive(Debug, Clone, Copy)]
pub struct WeightedSums<'a> {
    /// The weight of each vector in each sum, `[n, width]`.
    pub weights: &'a [f32],
    /// Number of vectors.
    pub width: usize,
}

impl WeightedSums<'_> {
    /// Subtracts the part that the vectors with the numbers `columns` have in each sum.
    ///
    /// * `vectors`: `[columns, dim]`
    /// * `lacking`: `[n, dim]`
    ///
    /// # Panics
    /// If a shape does not fit.
    pub fn subtract(&self, columns: Range<usize>, vectors: &[f32], lacking: &mut [f32]) {
        self.subtract_with(&kernels_of(Isa::current()), columns, vectors, lacking);
    }

    fn subtract_with(
        &self,
        kernels: &FactsKernels,
        columns: Range<usize>,
        vectors: &[f32],
        lacking: &mut [f32],
    ) {
        let dim = self.dim(lacking);
        assert!(
            columns.end <= self.width && vectors.len() == columns.len() * dim,
            "vectors are [columns, dim]"
        );
        for (weights, lacking) in self.weights.chunks_exact(self.width).zip(lacking.chunks_exact_mut(dim)) {
            for (weight, vector) in weights[columns.clone()].iter().zip(vectors.chunks_exact(dim)) {
                // SAFETY: the kernels are those of the machine.
                unsafe { (kernels.add_scaled)(lacking, vector, -weight) };
            }
        }
    }

    /// The change of the vectors with the numbers `columns` that minimises the squares of what the sums lack with it,
    /// plus `strength` times the mean square weight of these vectors times the squares of the change: ridge regression
    /// by normal equations. A vector that no sum needs stays as it is, and so do all if a number is not finite.
    ///
    /// * `lacking`: what the sums lack, `[n, dim]`; what the change gives them is subtracted
    ///
    /// Returns the change, `[columns, dim]`.
    ///
    /// # Panics
    /// If a shape does not fit.
    pub fn fit(&self, columns: Range<usize>, strength: f64, lacking: &mut [f32]) -> Vec<f32> {
        self.fit_with(Isa::current(), columns, strength, lacking)
    }

    pub(super) fn fit_with(
        &self,
        isa: Isa,
        columns: Range<usize>,
        strength: f64,
        lacking: &mut [f32],
    ) -> Vec<f32> {
        let (kernels, dim) = (kernels_of(isa), self.dim(lacking));
        let products = self.products(&kernels, columns.clone(), lacking);
        let Some(change) = products.solve(strength) else { return vec![0.0; columns.len() * dim] };
        self.subtract_with(&kernels, columns, &change, lacking);
        change
    }

    /// The length of a vector, by the shape of the sums.
    fn dim(&self, lacking: &[f32]) -> usize {
        let sums = self.weights.len() / self.width.max(1);
        assert!(self.weights.len() == sums * self.width, "weights are [n, width]");
        assert!(lacking.len().is_multiple_of(sums.max(1)), "lacking is [n, dim]");
        (lacking.len() / sums.max(1)).max(1)
    }

    /// The products of the weights of some vectors with each other and with what the sums lack.
    fn products(&self, kernels: &FactsKernels, columns: Range<usize>, lacking: &[f32]) -> Products {
        let (dim, count) = (self.dim(lacking), columns.len());
        let behind = count.next_multiple_of(LANES);
        let lanes = behind + dim.next_multiple_of(LANES);
        let (mut sum, mut moments) = (vec![0.0; lanes], vec![0.0; half_len(lanes)]);
        let rows = (PIECE / lanes).max(1);
        let mut packed = vec![0.0; rows * lanes];
        for (weights, lacking) in self.weights.chunks(rows * self.width).zip(lacking.chunks(rows * dim)) {
            let both = weights.chunks_exact(self.width).zip(lacking.chunks_exact(dim));
            for ((weights, lacking), row) in both.zip(packed.chunks_exact_mut(lanes)) {
                row[..count].copy_from_slice(&weights[columns.clone()]);
                row[behind..behind + dim].copy_from_slice(lacking);
            }
            let packed = &packed[..lacking.len() / dim * lanes];
            // SAFETY: the kernels are those of the machine.
            unsafe { (kernels.add_moments)(packed, &mut sum, &mut moments) };
        }
        Products { count, dim, behind, lanes, moments }
    }
}

/// The normal equations of a fit, as the stored half of second moments.
struct Products {
    /// Number of unknown vectors.
    count: usize,
    dim: usize,
    /// The column of the first element of what the sums lack.
    behind: usize,
    lanes: usize,
    moments: Vec<f32>,
}

impl Products {
    /// The product of two columns, the earlier one first.
    fn of(&self, row: usize, column: usize) -> f64 {
        let start = row / LANES * LANES;
        let at = half_start(self.lanes, start) + (row - start) * (self.lanes - start) + column - start;
        f64::from(self.moments[at])
    }

    /// The change, `[count, dim]`, by Cholesky's decomposition; `None` if there is none.
    fn solve(&self, strength: f64) -> Option<Vec<f32>> {
        let trace: f64 = (0..self.count).map(|index| self.of(index, index)).sum();
        let lower = self.lower(strength * trace / self.count.max(1) as f64)?;
        let row = |index: usize| &lower[index * self.count..][..index];
        let pivot = |index: usize| lower[index * self.count + index];
        let mut x: Vec<f64> = (0..self.count)
            .flat_map(|row| (0..self.dim).map(move |d| self.of(row, self.behind + d)))
            .collect();
        for index in 0..self.count {
            let (known, rest) = x.split_at_mut(index * self.dim);
            let own = &mut rest[..self.dim];
            for (factor, known) in row(index).iter().zip(known.chunks_exact(self.dim)) {
                own.iter_mut().zip(known).for_each(|(own, known)| *own -= factor * known);
            }
            own.iter_mut().for_each(|own| *own /= pivot(index));
        }
        for index in (0..self.count).rev() {
            let (rest, known) = x.split_at_mut(index * self.dim);
            let own = &mut known[..self.dim];
            own.iter_mut().for_each(|own| *own /= pivot(index));
            for (factor, rest) in row(index).iter().zip(rest.chunks_exact_mut(self.dim)) {
                rest.iter_mut().zip(&*own).for_each(|(rest, own)| *rest -= factor * own);
            }
        }
        x.iter().all(|x| x.is_finite()).then(|| x.iter().map(|&x| x as f32).collect())
    }

    /// The lower factor of the products of the unknown with `ridge` added to each square, `[count, count]`; `None` if
    /// they are not positive definite.
    fn lower(&self, ridge: f64) -> Option<Vec<f64>> {
        let n = self.count;
        let mut lower = vec![0.0; n * n];
        for row in 0..n {
            let (before, own) = lower.split_at_mut(row * n);
            for column in 0..row {
                let other = &before[column * n..][..=column];
                let known: f64 = own[..column].iter().zip(other).map(|(a, b)| a * b).sum();
                own[column] = (self.of(column, row) - known) / other[column];
            }
            let known: f64 = own[..row].iter().map(|a| a * a).sum();
            let left = self.of(row, row) + ridge - known;
            if !(left > 0.0 && left.is_finite()) {
                return None;
            }
            own[row] = left.sqrt();
        }
        Some(lower)
    }
}

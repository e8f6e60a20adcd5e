//! Ridge regression by normal equations: which weights give targets from features with the least square error, small
//! weights preferred.
//!
//! Sums are in `f64` and in the order in which samples are added, so equal samples give equal weights on any number of
//! threads. Features are judged by their deviation: the strength means the same for a feature of any unit.

/// The sums of samples of `width` features.
#[derive(Debug, Clone)]
pub(super) struct Equations {
    width: usize,
    samples: f64,
    /// Sums of features, and of products of two features: the lower triangle, `[width][<= row]`.
    sums: Vec<f64>,
    products: Vec<f64>,
    /// Sum of targets, and of products of features and targets, `[width]`.
    target: f64,
    with_target: Vec<f64>,
}

/// Weights of features, and what is added to their sum.
#[derive(Debug, Clone, PartialEq)]
pub struct Fit {
    /// `[width]`
    pub weights: Vec<f32>,
    /// The prediction for features of 0.
    pub bias: f32,
}

impl Equations {
    /// No samples.
    pub(super) fn new(width: usize) -> Equations {
        let products = vec![0.0; width * (width + 1) / 2];
        let zeros = || vec![0.0; width];
        Equations { width, samples: 0.0, sums: zeros(), products, target: 0.0, with_target: zeros() }
    }

    /// Number of features of a sample.
    pub(super) fn width(&self) -> usize {
        self.width
    }

    /// Adds a sample.
    ///
    /// # Panics
    /// If it does not have `width` features.
    pub(super) fn add(&mut self, features: &[f32], target: f32) {
        assert_eq!(features.len(), self.width, "features of a sample");
        self.samples += 1.0;
        self.target += f64::from(target);
        let mut row = 0;
        for (index, &feature) in features.iter().enumerate() {
            let feature = f64::from(feature);
            self.sums[index] += feature;
            self.with_target[index] += feature * f64::from(target);
            let products = &mut self.products[row..=row + index];
            for (product, &other) in products.iter_mut().zip(features) {
                *product += feature * f64::from(other);
            }
            row += index + 1;
        }
    }

    /// The weights that minimise the mean square error plus `strength` times the sum of squares of the weights of
    /// features in units of their deviation. `None` if a sum is not finite, or there are no samples. A feature that
    /// never varies has no weight.
    pub(super) fn solve(&self, strength: f64) -> Option<Fit> {
        let count = self.samples;
        let means: Vec<f64> = self.sums.iter().map(|sum| sum / count).collect();
        let mean = self.target / count;
        let covariance = |row: usize, column: usize| {
            self.products[row * (row + 1) / 2 + column] / count - means[row] * means[column]
        };
        let deviations: Vec<f64> =
            (0..self.width).map(|index| covariance(index, index).max(0.0).sqrt()).collect();
        let scale =
            |index: usize| if deviations[index] > DEVIATION_MIN { 1.0 / deviations[index] } else { 0.0 };
        let mut matrix = vec![0.0; self.products.len()];
        for row in 0..self.width {
            for column in 0..=row {
                let own =
                    if row == column { strength + if scale(row) == 0.0 { 1.0 } else { 0.0 } } else { 0.0 };
                matrix[row * (row + 1) / 2 + column] =
                    covariance(row, column) * scale(row) * scale(column) + own;
            }
        }
        let targets = (0..self.width)
            .map(|index| (self.with_target[index] / count - means[index] * mean) * scale(index));
        let solved = solve_positive(matrix, targets.collect())?;
        let weights: Vec<f64> =
            solved.iter().enumerate().map(|(index, weight)| weight * scale(index)).collect();
        let bias = mean - weights.iter().zip(&means).map(|(weight, mean)| weight * mean).sum::<f64>();
        let is_whole = bias.is_finite() && weights.iter().all(|weight| weight.is_finite());
        is_whole.then(|| Fit {
            weights: weights.iter().map(|&weight| weight as f32).collect(),
            bias: bias as f32,
        })
    }
}

/// Deviation below which a feature counts as constant.
const DEVIATION_MIN: f64 = 1e-9;

/// Solves `matrix * x = right` by Cholesky's decomposition in place; `matrix` is the lower triangle of a symmetric one.
/// `None` if it is not positive definite.
fn solve_positive(mut matrix: Vec<f64>, mut right: Vec<f64>) -> Option<Vec<f64>> {
    let (n, at) = (right.len(), |row: usize, column: usize| row * (row + 1) / 2 + column);
    for row in 0..n {
        for column in 0..=row {
            let (one, other) =
                (&matrix[at(row, 0)..at(row, column)], &matrix[at(column, 0)..at(column, column)]);
            let known: f64 = one.iter().zip(other).map(|(a, b)| a * b).sum();
            let left = matrix[at(row, column)] - known;
            matrix[at(row, column)] = match row == column {
                false => left / matrix[at(column, column)],
                true if left > 0.0 => left.sqrt(),
                true => return None,
            };
        }
    }
    for row in 0..n {
        let known: f64 = (0..row).map(|column| matrix[at(row, column)] * right[column]).sum();
        right[row] = (right[row] - known) / matrix[at(row, row)];
    }
    for row in (0..n).rev() {
        let known: f64 = (row + 1..n).map(|below| matrix[at(below, row)] * right[below]).sum();
        right[row] = (right[row] - known) / matrix[at(row, row)];
    }
    Some(right)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn number(state: &mut u64) -> f32 {
        *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (*state >> 40) as f32 / (1_u64 << 24) as f32 - 0.5
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn weights_that_made_the_targets_are_found(
            truth in prop::collection::vec(-1.0_f32..1.0, 1..12),
            seed in any::<u64>(),
        ) {
            let (mut state, mut equations) = (seed, Equations::new(truth.len()));
            for _ in 0..200 {
                let feature = |index: usize| number(&mut state) * (1 + index) as f32 + 3.0;
                let features: Vec<f32> = (0..truth.len()).map(feature).collect();
                let target = features.iter().zip(&truth).map(|(a, b)| a * b).sum::<f32>() + 0.25;
                equations.add(&features, target);
            }
            let fit = equations.solve(0.0).unwrap();
            for (found, truth) in fit.weights.iter().zip(&truth) {
                prop_assert!((found - truth).abs() < 1e-3, "{:?} for {:?}", fit, truth);
            }
            prop_assert!((fit.bias - 0.25).abs() < 1e-2);
            let gradient = gradient(&equations, &equations.solve(0.3).unwrap(), 0.3);
            prop_assert!(gradient.iter().all(|slope| slope.abs() < 1e-4), "a minimum has no slope: {:?}", gradient);
        }
    }

    /// The slope of what `solve` minimises, by its definition.
    fn gradient(equations: &Equations, fit: &Fit, strength: f64) -> Vec<f64> {
        let n = equations.samples;
        let mean = |i: usize| equations.sums[i] / n;
        let cov = |i: usize, j: usize| {
            let (i, j) = (i.max(j), i.min(j));
            equations.products[i * (i + 1) / 2 + j] / n - mean(i) * mean(j)
        };
        (0..equations.width)
            .map(|i| {
                let fitted: f64 = (0..equations.width).map(|j| cov(i, j) * f64::from(fit.weights[j])).sum();
                let wanted = equations.with_target[i] / n - mean(i) * equations.target / n;
                fitted - wanted + strength * cov(i, i) * f64::from(fit.weights[i])
            })
            .collect()
    }

    #[test]
    fn nothing_and_nonsense_have_no_fit_and_constants_no_weight() {
        assert_eq!(Equations::new(2).solve(0.1), None);
        let mut equations = Equations::new(2);
        equations.add(&[f32::NAN, 1.0], 0.0);
        assert_eq!(equations.solve(0.1), None);
        let mut equations = Equations::new(2);
        (0..10).for_each(|index| equations.add(&[7.0, index as f32], index as f32));
        let fit = equations.solve(0.0).unwrap();
        assert_eq!(fit.weights[0], 0.0);
        assert!((fit.weights[1] - 1.0).abs() < 1e-6);
    }
}

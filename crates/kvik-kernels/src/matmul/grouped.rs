//! Products in which every group of rows is multiplied by a matrix of its own: those of experts.
//!
//! All groups and all products form one list of tiles, split by cost: few rows of many experts and many rows of
//! one are divided evenly among the threads, in one round of the pool. Only the matrices of groups are read.

use std::ops::Range;

use super::kernel::TILES;
use super::{Job, TASKS_PER_THREAD, dispatch, part_rows};
use crate::activations::{Activations, Groups};
use crate::matrix::Matrix;
use crate::{Isa, Pool};

/// The cost of reading a tile, in multiplied rows.
const READING: usize = 2;

/// Multiplies the rows of every group by its matrix of each job: `x` holds the rows of `groups`, and an output is
/// `[places, rows of a matrix]`. Outputs at positions without a row are left as they were.
///
/// # Panics
/// Unless `x` is grouped as `groups` and was set for the matrices, every job has a matrix for each group, all
/// matrices of a job have the same number of rows, and the outputs have that shape.
pub fn matmul_grouped(pool: &Pool, jobs: &mut [(&[Matrix], &mut [f32])], x: &Activations, groups: &Groups) {
    matmul_grouped_with(Isa::current(), pool, jobs, x, groups);
}

/// [`matmul_grouped`] with a chosen family of kernels, which must be one of `Isa::available()`.
pub(super) fn matmul_grouped_with(
    isa: Isa,
    pool: &Pool,
    jobs: &mut [(&[Matrix], &mut [f32])],
    x: &Activations,
    groups: &Groups,
) {
    debug_assert!(Isa::available().contains(&isa));
    assert_eq!(x.rows(), groups.places(), "the inputs stand in groups");
    let mut list = List::default();
    for group in groups.groups() {
        let part = part_rows(group.rows.len(), x.cols());
        for start in group.rows.clone().step_by(part) {
            let rows = start..group.rows.end.min(start + part);
            for (weights, out) in jobs.iter_mut() {
                let (weights, width) = (&weights[group.matrix], weights[0].rows());
                assert_eq!([weights.rows(), weights.cols()], [width, x.cols()], "the shape of a matrix");
                assert_eq!(out.len(), width * x.rows(), "{width} outputs for {} places", x.rows());
                list.push(Job::new(weights, out), rows.clone());
            }
        }
    }
    // SAFETY: `isa` is available, the outputs are ours and as long as they must be, and no two products of the list
    // write the same rows of one.
    unsafe { list.run(isa, pool, x) };
}

/// A list of products.
#[derive(Default)]
struct List<'a> {
    products: Vec<Product<'a>>,
    /// Total cost.
    cost: usize,
}

/// A matrix and the rows that it multiplies.
struct Product<'a> {
    job: Job<'a>,
    rows: Range<usize>,
    /// Cost of the products before this one.
    before: usize,
    /// Cost of `TILES` tiles.
    step: usize,
}

/// A point in a list: the index of the product and a tile of it.
type Point = (usize, usize);

impl<'a> List<'a> {
    fn push(&mut self, job: Job<'a>, rows: Range<usize>) {
        let (before, step) = (self.cost, rows.len() + READING);
        self.cost += step * job.weights.tiles().div_ceil(TILES);
        self.products.push(Product { job, rows, before, step });
    }

    /// # Safety
    /// As [`List::run_part`], for all parts together.
    unsafe fn run(&self, isa: Isa, pool: &Pool, x: &Activations) {
        let least = self.products.iter().map(|product| product.step).min().unwrap_or(1);
        let parts = (pool.threads() * TASKS_PER_THREAD).min(self.cost / least);
        pool.run(parts, &|part| {
            let next = self.bound((part + pool.threads()).min(parts), parts);
            // SAFETY: parts do not overlap; the rest is the caller's promise.
            unsafe { self.run_part(isa, self.bound(part, parts)..self.bound(part + 1, parts), next, x) };
        });
    }

    /// Start of a part: later parts are smaller, so that threads finish together.
    fn bound(&self, part: usize, parts: usize) -> Point {
        let left = parts - part;
        let cost = self.cost - (self.cost as u128 * (left * left) as u128 / (parts * parts) as u128) as usize;
        if cost == self.cost {
            return (self.products.len(), 0);
        }
        let index = self.products.partition_point(|product| product.before <= cost) - 1;
        let product = &self.products[index];
        (index, (cost - product.before) / product.step * TILES)
    }

    /// Start of the tile at a point; at the end of the list, the end of the last tile.
    fn start(&self, (index, tile): Point) -> *const u8 {
        let last = || self.products.last().map(|product| product.job.weights);
        match self.products.get(index) {
            Some(product) => product.job.weights.tile(tile).as_ptr(),
            None => last()
                .map_or(std::ptr::null(), |weights| weights.tile(weights.tiles() - 1).as_ptr_range().end),
        }
    }

    /// Computes the tiles between two points; the thread will probably continue at `next`.
    ///
    /// # Safety
    /// The machine has `isa`, `x` has the layouts of all weights, and the outputs belong to the caller.
    unsafe fn run_part(&self, isa: Isa, between: Range<Point>, next: Point, x: &Activations) {
        let (first, end) = (between.start, between.end);
        for (index, product) in self.products.iter().enumerate().take(end.0 + 1).skip(first.0) {
            let from = if index == first.0 { first.1 } else { 0 };
            let to = if index == end.0 { end.1 } else { product.job.weights.tiles() };
            if from >= to {
                continue;
            }
            let after = if (index + 1, 0) < end { (index + 1, 0) } else { next };
            let kernel = dispatch::kernel(isa, product.job.weights.weight_type());
            // SAFETY: the kernel is that of the type; the rest is the caller's promise.
            unsafe { kernel(&product.job, from..to, self.start(after), x, product.rows.clone()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;
    use crate::WeightType;
    use crate::matmul::matmul_with;
    use crate::testing::{Random, isas, random_blocks};

    /// A batch whose rows each use some of several matrices.
    #[derive(Debug, Clone)]
    struct Case {
        ty: WeightType,
        rows: usize,
        cols: usize,
        /// `[n, used]`
        chosen: Vec<u32>,
        used: usize,
        count: usize,
        seed: u64,
    }

    fn cases() -> impl Strategy<Value = Case> {
        let shape = (select(WeightType::ALL.to_vec()), 1..50usize, 1..3usize);
        (shape, 1..9usize, 1..4usize, 1..60usize, any::<u64>()).prop_map(|(shape, count, used, n, seed)| {
            let (ty, rows, blocks) = shape;
            let (used, mut random) = (used.min(count), Random(seed));
            let chosen = (0..n).flat_map(|_| {
                // Most rows use the first matrices, so that groups have many sizes.
                let first = (random.bits() % (1 + random.bits() % count as u64)) as u32;
                (0..used as u32).map(move |k| (first + k) % count as u32)
            });
            Case { ty, rows, cols: blocks * 256, chosen: chosen.collect(), used, count, seed }
        })
    }

    impl Case {
        fn n(&self) -> usize {
            self.chosen.len() / self.used
        }

        fn weights(&self, seed: u64) -> Vec<Matrix> {
            let pack = |index: u64| {
                let raw = random_blocks(self.ty, self.rows * self.cols, self.seed ^ seed ^ index);
                Matrix::pack(self.ty, self.rows, self.cols, &raw, &Pool::new(1)).unwrap()
            };
            (0..self.count as u64).map(pack).collect()
        }

        fn inputs(&self) -> Vec<f32> {
            let mut random = Random(self.seed);
            (0..self.n() * self.cols).map(|_| random.float()).collect()
        }
    }

    /// The product of one row with one matrix, computed alone.
    fn alone([isa, form]: [Isa; 2], weights: &Matrix, x: &[f32]) -> Vec<f32> {
        let (pool, mut activations, mut out) = (Pool::new(1), Activations::new(), vec![0.0; weights.rows()]);
        activations.set_for(form, &pool, x, weights.cols(), &[weights]);
        matmul_with(isa, &pool, &mut [(weights, &mut out)], &activations);
        out
    }

    /// Two products of the rows of a case, gathered from a batch or set anew, by the kernels of one instruction
    /// set on inputs in the layout of another.
    fn grouped(
        [isa, form]: [Isa; 2],
        case: &Case,
        weights: [&[Matrix]; 2],
        gather: bool,
    ) -> (Groups, [Vec<f32>; 2]) {
        let (pool, x) = (Pool::new(2), case.inputs());
        let users = [&weights[0][0], &weights[1][0]];
        let (mut groups, mut inputs) = (Groups::new(), Activations::new());
        groups.set_for(form, &case.chosen, case.used, case.count);
        if gather {
            let mut batch = Activations::new();
            batch.set_for(form, &pool, &x, case.cols, &users);
            inputs.gather_for(form, &pool, &batch, &users, &groups);
        } else {
            let rows =
                (0..groups.places()).flat_map(|place| &x[groups.row(place) * case.cols..][..case.cols]);
            let rows: Vec<f32> = rows.copied().collect();
            inputs.set_grouped_for(form, &pool, &rows, &users, &groups);
        }
        let mut outs = [0, 1].map(|_| vec![f32::NAN; groups.places() * case.rows]);
        let [first, second] = &mut outs;
        matmul_grouped_with(isa, &pool, &mut [(weights[0], first), (weights[1], second)], &inputs, &groups);
        (groups, outs)
    }

    fn check(isas: [Isa; 2], case: &Case) {
        let (one, two) = (case.weights(1), case.weights(2));
        let x = case.inputs();
        for gather in [false, true] {
            let (groups, outs) = grouped(isas, case, [&one, &two], gather);
            for (choice, &matrix) in case.chosen.iter().enumerate() {
                let x = &x[choice / case.used * case.cols..][..case.cols];
                for (weights, out) in [&one, &two].into_iter().zip(&outs) {
                    let found = &out[groups.place(choice) * case.rows..][..case.rows];
                    assert_eq!(found, alone(isas, &weights[matrix as usize], x), "{isas:?} choice {choice}");
                }
            }
        }
    }

    proptest! {
        #![proptest_config(crate::testing::cases(60))]
        #[test]
        fn a_row_has_the_bits_it_has_alone(case in cases()) {
            isas().into_iter().for_each(|isa| check([isa, isa], &case));
            // Panels for matrix units, which this machine need not have.
            check([Isa::Scalar, Isa::Amx], &case);
        }

        #[test]
        fn groups_are_all_choices_once_and_room_for_their_panels(case in cases()) {
            for isa in Isa::OF_THIS_ARCHITECTURE {
                let mut groups = Groups::new();
                groups.set_for(*isa, &case.chosen, case.used, case.count);
                let mut seen = vec![0; groups.places()];
                for (choice, &matrix) in case.chosen.iter().enumerate() {
                    let place = groups.place(choice);
                    let group = groups.groups().iter().find(|group| group.rows.contains(&place)).unwrap();
                    prop_assert_eq!((group.matrix, groups.row(place)), (matrix as usize, choice / case.used));
                    seen[place] += 1;
                }
                let filled: usize = groups.groups().iter().map(|group| group.rows.len()).sum();
                prop_assert_eq!((filled, seen.iter().sum::<usize>()), (case.chosen.len(), case.chosen.len()));
                prop_assert!(seen.iter().all(|times| *times <= 1));
                prop_assert!(groups.groups().is_sorted_by_key(|group| (group.matrix, group.rows.start)));
            }
        }
    }

    #[test]
    fn parts_cover_every_tile_once_whatever_the_groups_cost() {
        let pool = Pool::new(1);
        let matrix = Matrix::pack(WeightType::F32, 70, 1, &[0; 280], &pool).unwrap();
        for rows in [vec![1], vec![1, 1, 1], vec![500, 1, 1, 40], vec![3; 100]] {
            let mut list = List::default();
            for rows in &rows {
                list.push(Job::new(&matrix, &mut []), 0..*rows);
            }
            for parts in 1..40 {
                let bounds: Vec<Point> = (0..=parts).map(|part| list.bound(part, parts)).collect();
                assert_eq!((bounds[0], bounds[parts]), ((0, 0), (rows.len(), 0)));
                assert!(bounds.is_sorted() && bounds.iter().all(|(_, tile)| tile % TILES == 0), "{bounds:?}");
                assert!(bounds.iter().all(|&(product, tile)| product == rows.len() || tile < matrix.tiles()));
            }
        }
    }
}

//! Statistics of keys, values and queries, which decide the positions that are dropped.
//!
//! Vectors are in the model's space. A result is the same to the bit on any number of threads: sums over rows are
//! split at fixed rows, and the pieces are added in order.

mod expected;
mod fit;
mod kernel;
mod moments;
mod rows;
mod variants;

pub use expected::expected_attention;
pub use fit::WeightedSums;
pub use moments::QueryMoments;
pub use rows::{Rows, likeness, row_norms};

/// Runs tasks in parallel if there is more work than waking threads costs.
fn run_tasks(pool: &crate::Pool, tasks: usize, products: usize, run: &(dyn Fn(usize) + Sync)) {
    if products < PARALLEL_MIN {
        (0..tasks).for_each(run);
    } else {
        pool.run(tasks, run);
    }
}

/// Number of products below which waking other threads costs more than it saves.
const PARALLEL_MIN: usize = 256 * 1024;

#[cfg(test)]
mod tests;

//! What is to be known of keys, values and queries before positions are dropped.
//!
//! Vectors are in the space that the model computed them in. A result is the same to the bit on any number of
//! threads: sums over rows are cut at fixed rows, and the pieces are added in their order.

mod expected;
mod kernel;
mod moments;
mod rows;
mod variants;

pub use expected::expected_attention;
pub use moments::QueryMoments;
pub use rows::{Rows, likeness, redundancy, row_norms};

/// Does tasks in parallel when there is more work than waking threads costs.
fn run_tasks(pool: &crate::Pool, tasks: usize, products: usize, run: &(dyn Fn(usize) + Sync)) {
    if products < PARALLEL_MIN {
        (0..tasks).for_each(run);
    } else {
        pool.run(tasks, run);
    }
}

/// Products below which waking other threads costs more than it saves.
const PARALLEL_MIN: usize = 256 * 1024;

#[cfg(test)]
mod tests;

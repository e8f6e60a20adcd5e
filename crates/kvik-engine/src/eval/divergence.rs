//! Divergence of a model's predictions from its exact ones when keys and values are stored in some layout.

use std::io;

use kvik_cache::{BlockId, Token};
use kvik_kernels::{KvFormat, KvLayout};
use kvik_model::ModelRunner;
use kvik_model::batch::{Batch, Output, Row, Runner, SequenceKv};
use kvik_text::sampler;

use crate::engine::perplexity::Windows;

/// Maximum number of rows computed at a time: enough for the matrix kernels.
const ROWS_MAX: usize = 256;
/// Number of ranges of distances: 1, 2 to 3, 4 to 7, up to 2^31.
const RANGES: usize = 32;

/// Kullback-Leibler divergence of predictions from those with keys and values in f32.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Divergence {
    /// Number of positions compared, and the sum of their divergences in nats, by the base-2 logarithm of the number of
    /// positions they attend to.
    ranges: [(usize, f64); RANGES],
}

impl Divergence {
    /// Mean over all positions, in nats.
    pub fn mean(&self) -> f64 {
        let sum: f64 = self.ranges.iter().map(|(_, sum)| sum).sum();
        sum / self.positions().max(1) as f64
    }

    /// Number of positions compared.
    pub fn positions(&self) -> usize {
        self.ranges.iter().map(|(positions, _)| positions).sum()
    }

    /// Mean over the positions that attend to at least `2^i` and fewer than `2^(i + 1)` positions, as `(2^i, mean)`.
    pub fn by_distance(&self) -> Vec<(usize, f64)> {
        let ranges = self.ranges.iter().enumerate().filter(|(_, (positions, _))| *positions > 0);
        ranges.map(|(i, &(positions, sum))| (1 << i, sum / positions as f64)).collect()
    }

    /// Adds the divergence of the prediction at `position`, which attends to itself and all previous positions.
    pub fn add(&mut self, position: usize, divergence: f64) {
        let (positions, sum) = &mut self.ranges[(position + 1).ilog2() as usize];
        *positions += 1;
        *sum += divergence;
    }
}

/// Computes every window with keys and values in f32 and once with each of `layouts`, from an empty cache, and compares
/// the predictions at all positions. Calls `progress` after each computation.
///
/// `runner` must have blocks and positions for a window; it is left with the last layout. In addition to the runner's
/// memory, this holds the logits of one window, `[window_tokens, vocab]`.
///
/// # Errors
/// If there is no memory for the blocks of a layout.
pub fn measure(
    runner: &mut ModelRunner,
    windows: &Windows,
    layouts: &[KvLayout],
    progress: &mut dyn FnMut(),
) -> io::Result<Vec<Divergence>> {
    let mut found = vec![Divergence::default(); layouts.len()];
    for window in windows.iter() {
        let mut exact = Vec::new();
        runner.store_as(ModelRunner::uniform_layout(runner.model().config(), KvFormat::F32))?;
        compute(runner, window, &mut |_, logits| exact.extend_from_slice(logits));
        progress();
        for (layout, divergence) in layouts.iter().zip(&mut found) {
            runner.store_as(layout.clone())?;
            let vocab = runner.vocab_len();
            compute(runner, window, &mut |position, logits| {
                divergence.add(position, sampler::divergence(&exact[position * vocab..][..vocab], logits));
            });
            progress();
        }
    }
    Ok(found)
}

/// Computes a window from an empty cache; calls `each` with every position and its logits, `[vocab]`.
fn compute(runner: &mut ModelRunner, window: &[Token], each: &mut dyn FnMut(usize, &[f32])) {
    let (vocab, blocks) = (runner.vocab_len(), window.len().div_ceil(kvik_cache::BLOCK_POSITIONS));
    let table: Vec<BlockId> = (0..blocks).map(|block| BlockId(block as u32)).collect();
    let row = |(position, &token): (u32, &Token)| Row {
        sequence: 0,
        token,
        position,
        cache_position: position,
        output: Output::Logits,
    };
    let rows: Vec<Row> = (0..).zip(window).map(row).collect();
    for rows in rows.chunks(ROWS_MAX) {
        let logits = runner.forward(&Batch { rows, sequences: &[SequenceKv::in_blocks(&table)] }, &mut []);
        for (row, logits) in rows.iter().zip(logits.chunks_exact(vocab)) {
            each(row.position as usize, logits);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_over_all_positions_and_over_those_of_a_distance() {
        let mut divergence = Divergence::default();
        assert_eq!((divergence.mean(), divergence.by_distance()), (0.0, Vec::new()));
        (0..6).for_each(|position| divergence.add(position, position as f64));
        assert_eq!((divergence.mean(), divergence.positions()), (2.5, 6));
        assert_eq!(divergence.by_distance(), [(1, 0.0), (2, 1.5), (4, 4.0)]);
    }
}

//! The batches that a device computes before the first request: each kernel is compiled, and a row has the same bits in all.

use std::ops::Range;

use kvik_cache::BlockId;
use kvik_gpu::DeviceError;

use super::experts::rows_of_batches;
use crate::ModelConfig;
use crate::batch::{Output, Row, SequenceKv};

/// Rows of batches: products have kernels for up to 1, 4, 8, 16 and more rows, and attention has others for many rows.
const WARM_ROWS: [u32; 5] = [1, 4, 8, 16, 128];

/// A batch of the same row over and over, each in a sequence of its own, in a block that no sequence uses yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WarmBatch {
    count: u32,
    /// The rows with outputs: the logits of the first of them, and the likeliest tokens of the others.
    wanted: Range<u32>,
}

impl WarmBatch {
    /// A batch of each size for which kernels differ, and one whose output is that of some rows. The first has one row.
    pub(super) fn all(config: &ModelConfig) -> Vec<WarmBatch> {
        let whole = WARM_ROWS.map(|count| WarmBatch { count, wanted: 0..count });
        // Logits of as many rows as experts need may not fit.
        let of_last = [2].into_iter().chain(rows_of_batches(config));
        let of_last = of_last.map(|count| WarmBatch { count, wanted: count - 1..count });
        whole.into_iter().chain(of_last).collect()
    }

    pub(super) fn rows(&self) -> Vec<Row> {
        let output = |sequence| match self.wanted.contains(&sequence) {
            true if sequence == self.wanted.start => Output::Logits,
            true => Output::Likeliest,
            false => Output::None,
        };
        let row =
            |sequence| Row { sequence, token: 0, position: 0, cache_position: 0, output: output(sequence) };
        (0..self.count).map(row).collect()
    }

    pub(super) fn sequences(&self) -> Vec<SequenceKv<'static>> {
        vec![SequenceKv::in_blocks(&[BlockId(0)]); self.count as usize]
    }
}

/// Computes batches, and compares the bits of the logits that `compute` returns with those of the first batch.
///
/// # Errors
/// If a batch fails, or has other bits.
pub(super) fn compare(
    device: &str,
    batches: Vec<WarmBatch>,
    mut compute: impl FnMut(&WarmBatch) -> Result<Vec<u32>, DeviceError>,
) -> Result<(), DeviceError> {
    let mut alone = None;
    for batch in batches {
        let bits = compute(&batch)?;
        if *alone.get_or_insert_with(|| bits.clone()) != bits {
            return Err(DeviceError::Differs { device: device.to_owned(), rows: batch.count as usize });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(count: u32, wanted: Range<u32>) -> WarmBatch {
        WarmBatch { count, wanted }
    }

    #[test]
    fn one_row_has_logits_and_others_have_likeliest_tokens() {
        let outputs = |batch: WarmBatch| batch.rows().iter().map(|row| row.output).collect::<Vec<_>>();
        assert_eq!(outputs(batch(3, 0..3)), [Output::Logits, Output::Likeliest, Output::Likeliest]);
        assert_eq!(outputs(batch(3, 2..3)), [Output::None, Output::None, Output::Logits]);
    }

    #[test]
    fn a_device_whose_results_depend_on_the_batch_is_refused_by_name() {
        let batches = [1, 4, 8].map(|count| batch(count, 0..count));
        let compared = |bits: fn(u32) -> u32| {
            compare("a card", batches.to_vec(), |batch| Ok(vec![7, bits(batch.count)]))
        };
        assert_eq!(compared(|_| 3), Ok(()));
        let error = compared(|count| count / 8).unwrap_err();
        assert_eq!(error, DeviceError::Differs { device: "a card".to_owned(), rows: 8 });
        let told = error.to_string();
        assert!(told.contains("a card") && told.contains("--device cpu"), "{told}");
    }
}

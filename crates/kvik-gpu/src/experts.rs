//! Mixtures of experts on the device: the matrices of all experts, and the experts that rows have chosen.
//!
//! The choices stay on the device: the following kernels read them there.

use bytemuck::{Pod, Zeroable};
use kvik_kernels::WeightType;

use crate::kernel::Piece;
use crate::weights::{check_type, pieces};
use crate::{Buffer, Device, DeviceError};

/// The transformation of a router's scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gating {
    /// Probabilities over all experts; the highest are chosen.
    Softmax,
    /// The highest scores are chosen; probabilities are over those.
    SoftmaxOfChosen,
    /// Sigmoid of each score; the highest are chosen.
    Sigmoid,
    /// The highest scores are chosen; sigmoid is applied to those.
    SigmoidOfChosen,
}

/// The place where the weight of an expert is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weighted {
    /// The output of the expert.
    Output,
    /// The input of the expert.
    Input,
}

/// The selection and weighting of experts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Routing {
    /// Number of experts.
    pub count: usize,
    /// Number of experts per row.
    pub used: usize,
    /// The transformation of scores.
    pub gating: Gating,
    /// Whether the weights of a row are normalised to a sum of one.
    pub normalised: bool,
    /// Factor of all weights.
    pub scale: f32,
}

/// The choices of the rows of a batch: expert and weight of each, `[n, used]`, those of a row in order.
#[derive(Debug)]
pub struct DeviceChoices {
    /// `[n, used]` each.
    pub(crate) experts: Buffer<u32>,
    pub(crate) weights: Buffer<f32>,
    /// Choices sorted by expert, `[n, used]`.
    pub(crate) places: Buffer<u32>,
    /// Batches of consecutive places of one expert.
    pub(crate) batches: Buffer<Batch>,
}

/// Places of one expert in the layout of kernels.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Batch {
    expert: u32,
    first: u32,
    count: u32,
}

impl DeviceChoices {
    /// Makes room for the choices of `n` rows, each of `used` experts.
    ///
    /// # Errors
    /// If there is no memory left.
    pub fn new(device: &Device, n: usize, used: usize) -> Result<DeviceChoices, DeviceError> {
        let choices = n * used;
        Ok(DeviceChoices {
            experts: device.zeros("the experts of rows", choices)?,
            weights: device.zeros("the weights of experts", choices)?,
            places: device.zeros("rows sorted by expert", choices)?,
            // Each batch has at least one choice.
            batches: device.zeros("the batches of experts", choices)?,
        })
    }

    /// Capacity in choices.
    pub(crate) fn len(&self) -> usize {
        self.experts.len()
    }

    /// Pairs of a minimum number of choices per expert and the batch size from there on: with few choices, the
    /// padding of larger batches would be computed in vain. The size does not affect any sum.
    pub const BATCHES: [(usize, usize); 3] = [(0, 1), (2, 4), (5, 8)];

    /// Maximum choices per batch, for `choices` in all.
    pub(crate) fn batch_len(choices: usize, experts: usize) -> usize {
        let enough = |(least, _): &&(usize, usize)| choices.div_ceil(experts) >= *least;
        let (_, len) = DeviceChoices::BATCHES.iter().rfind(enough).expect("the first is for none too");
        *len
    }

    /// Maximum number of batches of `choices` choices.
    pub(crate) fn batches_max(choices: usize, experts: usize) -> usize {
        choices.min(choices / DeviceChoices::batch_len(choices, experts) + experts)
    }
}

/// A matrix that every expert has, `[count][rows, cols]`, in the format of its file.
#[derive(Debug)]
pub struct DeviceStack {
    ty: WeightType,
    count: usize,
    rows: usize,
    cols: usize,
    /// Words from one matrix to the next.
    words: usize,
    /// Number of experts of each band but the last.
    band_experts: usize,
    /// As few bands as the device allows, each of consecutive experts.
    bands: Vec<Buffer<u32>>,
}

impl DeviceStack {
    /// Makes room for the matrices of `count` experts; `name` is used in errors.
    ///
    /// # Errors
    /// If there is no kernel for the type or the number of columns, or no memory.
    ///
    /// # Panics
    /// If `count` is 0.
    pub fn new(
        device: &Device,
        name: &str,
        ty: WeightType,
        [count, rows, cols]: [usize; 3],
    ) -> Result<DeviceStack, DeviceError> {
        assert!(count > 0, "{name} has no experts");
        let row_bytes = check_type(name, ty, [rows, cols])?;
        let words = (rows * row_bytes).div_ceil(4);
        // Kernels may read words after the last block.
        let limit = device.info().binding_bytes_max.saturating_sub(16);
        let band_experts = (limit as usize / (words * 4)).min(count);
        if band_experts == 0 {
            let (what, bytes) = (format!("an expert of {name}"), words as u64 * 4);
            return Err(DeviceError::Limit { what, bytes, limit });
        }
        let band = |first: usize| device.zeros(name, band_experts.min(count - first) * words);
        let bands = (0..count).step_by(band_experts).map(band).collect::<Result<_, _>>()?;
        Ok(DeviceStack { ty, count, rows, cols, words, band_experts, bands })
    }

    /// Uploads `raw`, the matrix of one expert in file format.
    ///
    /// # Errors
    /// If the device is lost.
    ///
    /// # Panics
    /// If the expert does not exist, or the length of `raw` does not match the shape.
    pub fn write(&mut self, device: &Device, expert: usize, raw: &[u8]) -> Result<(), DeviceError> {
        assert!(expert < self.count, "expert {expert} of {}", self.count);
        let bytes = self.ty.row_bytes(self.cols).map(|bytes| bytes * self.rows);
        assert_eq!(Some(raw.len()), bytes, "an expert is [{}, {}]", self.rows, self.cols);
        let start = (expert % self.band_experts * self.words * 4) as u64;
        device.put(&self.bands[expert / self.band_experts], start, raw)
    }

    /// The type of its elements.
    pub fn weight_type(&self) -> WeightType {
        self.ty
    }

    /// Number of experts.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Rows of an expert's matrix: the length of a result.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns of an expert's matrix: the length of an input.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Bytes in the memory of the device.
    pub fn bytes(&self) -> usize {
        self.bands.iter().map(|band| band.len() * size_of::<u32>()).sum()
    }

    /// Words from one matrix to the next.
    pub(crate) fn words(&self) -> usize {
        self.words
    }

    /// The bands, each with the number of its first expert, and its number of experts.
    pub(crate) fn bands(&self) -> impl Iterator<Item = (&Buffer<u32>, usize, usize)> {
        let firsts = (0..self.count).step_by(self.band_experts);
        self.bands
            .iter()
            .zip(firsts)
            .map(|(band, first)| (band, first, self.band_experts.min(self.count - first)))
    }

    /// The pieces that read the stack, and `more`.
    pub(crate) fn pieces(&self, more: &[Piece]) -> Vec<Piece> {
        let mut pieces = pieces(self.ty).expect("checked when it was made");
        pieces.extend_from_slice(more);
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_all_batches() {
        for (experts, counts) in
            [(4, vec![9, 0, 1, 16]), (2, vec![1, 1]), (8, vec![1; 8]), (3, vec![0, 0, 40])]
        {
            let choices: usize = counts.iter().sum();
            let len = DeviceChoices::batch_len(choices, experts);
            let batches: usize = counts.iter().map(|count: &usize| count.div_ceil(len)).sum();
            assert!(batches <= DeviceChoices::batches_max(choices, experts), "{counts:?} by {len}");
            assert!(DeviceChoices::batches_max(choices, experts) <= choices);
        }
    }
}

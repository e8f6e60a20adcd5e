//! Operations of mixtures of experts: the choice of experts, products with their matrices, and the sum of
//! their outputs.

use bytemuck::{Pod, Zeroable};

use super::matmul::TILE_ROWS;
use crate::kernel::Access::{self, Read, Write};
use crate::kernel::{Constant, Kernel, grid_of_elements, piece};
use crate::{Buffer, DeviceChoices, DeviceError, DeviceStack, Gating, Routing, Step, Weighted};

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct SortParams {
    choices: u32,
    batches: u32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct ProductParams {
    cols: u32,
    rows: u32,
    words: u32,
    first_expert: u32,
    experts: u32,
    sharing: u32,
}

/// Rows of `d` numbers.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct RowsParams {
    rows: u32,
    d: u32,
}

/// Buffers of the routing kernel; the last holds the bias of the choice, if there is one.
const ROUTE: [Access; 4] = [Read, Write, Write, Read];

impl Step<'_> {
    /// Chooses experts for `n` rows by the scores of a router.
    ///
    /// * `scores`: `[n, count]`
    /// * `bias`: `[count]`, added for choosing and not for weighting
    ///
    /// # Errors
    /// If the driver refuses a kernel.
    ///
    /// # Panics
    /// If a shape does not fit.
    pub fn route(
        &mut self,
        routing: &Routing,
        (scores, bias): (&Buffer<f32>, Option<&Buffer<f32>>),
        n: usize,
        choices: &mut DeviceChoices,
    ) -> Result<(), DeviceError> {
        let Routing { count, used, gating, normalised, scale } = *routing;
        assert!(scores.len() >= n * count, "scores are [{n}, {count}]");
        assert!(bias.is_none_or(|bias| bias.len() == count), "bias is [{count}]");
        assert!(used <= count && choices.len() >= n * used, "choices are [{n}, {used}]");
        let of_bias = if bias.is_some() { piece!("experts/biased") } else { piece!("experts/unbiased") };
        let is_sigmoid = matches!(gating, Gating::Sigmoid | Gating::SigmoidOfChosen);
        let is_of_chosen = matches!(gating, Gating::SoftmaxOfChosen | Gating::SigmoidOfChosen);
        let kernel = Kernel {
            pieces: vec![piece!("rank"), piece!("sigmoid"), of_bias, piece!("experts/route")],
            constants: vec![
                ("COUNT", Constant::U32(count as u32)),
                ("USED", Constant::U32(used as u32)),
                ("SIGMOID", Constant::Bool(is_sigmoid)),
                ("OF_CHOSEN", Constant::Bool(is_of_chosen)),
                ("NORMALISED", Constant::Bool(normalised)),
            ],
            buffers: if bias.is_some() { &ROUTE } else { &ROUTE[..3] },
            params: size_of::<f32>(),
        };
        let mut buffers = vec![scores.raw(), choices.experts.raw(), choices.weights.raw()];
        buffers.extend(bias.map(Buffer::raw));
        self.dispatch(&kernel, &buffers, &scale, [n as u32, 1, 1])?;
        self.sort(routing, n, choices)
    }

    /// Sorts choices by expert, so that the choices of one expert read its matrices together.
    fn sort(&mut self, routing: &Routing, n: usize, choices: &mut DeviceChoices) -> Result<(), DeviceError> {
        let (count, len) = (routing.count, n * routing.used);
        let kernel = Kernel {
            pieces: vec![piece!("experts/sort")],
            constants: vec![
                ("COUNT", Constant::U32(count as u32)),
                ("BATCH", Constant::U32(DeviceChoices::batch_len(len, count) as u32)),
            ],
            buffers: &[Read, Write, Write],
            params: size_of::<SortParams>(),
        };
        let batches = DeviceChoices::batches_max(len, count) as u32;
        let params = SortParams { choices: len as u32, batches };
        let buffers = [choices.experts.raw(), choices.batches.raw(), choices.places.raw()];
        self.dispatch(&kernel, &buffers, &params, [(len > 0).into(), 1, 1])
    }

    /// `out[choice] = matrix of its expert * x[choice / sharing]`, each with the bits of [`Step::matmul`].
    ///
    /// * `x`: `[choices / sharing, cols]`, where `sharing` choices share an input: all of a row, or 1
    /// * `out`: `[choices, rows]`
    ///
    /// # Errors
    /// If the driver refuses the kernel.
    ///
    /// # Panics
    /// If a shape does not fit.
    pub fn matmul_chosen(
        &mut self,
        stack: &DeviceStack,
        (choices, len): (&DeviceChoices, usize),
        (x, sharing): (&Buffer<f32>, usize),
        out: &mut Buffer<f32>,
    ) -> Result<(), DeviceError> {
        assert!(choices.len() >= len && len.is_multiple_of(sharing), "{len} choices by {sharing}");
        assert!(x.len() >= len / sharing * stack.cols(), "x is [{}, {}]", len / sharing, stack.cols());
        assert!(out.len() >= len * stack.rows(), "out is [{len}, {}]", stack.rows());
        let kernel = Kernel {
            pieces: stack.pieces(&[
                piece!("matmul/results"),
                piece!("matmul/product"),
                piece!("matmul/experts"),
            ]),
            constants: vec![("BATCH", Constant::U32(DeviceChoices::batch_len(len, stack.count()) as u32))],
            buffers: &[Read, Read, Write, Read, Read],
            params: size_of::<ProductParams>(),
        };
        let tiles = stack.rows().div_ceil(TILE_ROWS) as u32;
        let batches = DeviceChoices::batches_max(len, stack.count()) as u32;
        for (band, first, experts) in stack.bands() {
            let params = ProductParams {
                cols: stack.cols() as u32,
                rows: stack.rows() as u32,
                words: stack.words() as u32,
                first_expert: first as u32,
                experts: experts as u32,
                sharing: sharing as u32,
            };
            let buffers = [band.raw(), x.raw(), out.raw(), choices.batches.raw(), choices.places.raw()];
            self.dispatch(&kernel, &buffers, &params, [tiles, batches, 1])?;
        }
        Ok(())
    }

    /// `x[choice] = x[choice] + bias[its expert]`
    ///
    /// * `x`: `[choices, d]`
    /// * `bias`: `[count, d]`
    ///
    /// # Errors
    /// If the driver refuses the kernel.
    ///
    /// # Panics
    /// If a shape does not fit.
    pub fn add_chosen(
        &mut self,
        x: &mut Buffer<f32>,
        (choices, len): (&DeviceChoices, usize),
        bias: &Buffer<f32>,
        d: usize,
    ) -> Result<(), DeviceError> {
        assert!(x.len() >= len * d && choices.len() >= len, "x is [{len}, {d}]");
        assert!(bias.len().is_multiple_of(d), "bias is [count, {d}]");
        let kernel = Kernel {
            pieces: vec![piece!("element"), piece!("experts/add_bias")],
            constants: vec![],
            buffers: &[Read, Read, Write],
            params: size_of::<RowsParams>(),
        };
        let params = RowsParams { rows: len as u32, d: d as u32 };
        let buffers = [choices.experts.raw(), bias.raw(), x.raw()];
        self.dispatch(&kernel, &buffers, &params, grid_of_elements(len * d))
    }

    /// `out[choice] = x[its row] * its weight`, for weights of inputs.
    ///
    /// * `x`: `[n, d]`
    /// * `out`: `[n, used, d]`
    ///
    /// # Errors
    /// If the driver refuses the kernel.
    ///
    /// # Panics
    /// If a shape does not fit.
    pub fn spread(
        &mut self,
        x: &Buffer<f32>,
        choices: &DeviceChoices,
        [n, used, d]: [usize; 3],
        out: &mut Buffer<f32>,
    ) -> Result<(), DeviceError> {
        let len = n * used;
        assert!(x.len() >= n * d && out.len() >= len * d, "x is [{n}, {d}], out [{n}, {used}, {d}]");
        assert!(choices.len() >= len, "choices are [{n}, {used}]");
        let kernel = Kernel {
            pieces: vec![piece!("element"), piece!("experts/spread")],
            constants: vec![("USED", Constant::U32(used as u32))],
            buffers: &[Read, Read, Write],
            params: size_of::<RowsParams>(),
        };
        let params = RowsParams { rows: len as u32, d: d as u32 };
        let buffers = [choices.weights.raw(), x.raw(), out.raw()];
        self.dispatch(&kernel, &buffers, &params, grid_of_elements(len * d))
    }

    /// `out[n] = sum of the outputs of its choices`, in order, times their weights unless these were applied
    /// to the inputs.
    ///
    /// * `outputs`: `[n, used, d]`
    /// * `out`: `[n, d]`
    ///
    /// # Errors
    /// If the driver refuses the kernel.
    ///
    /// # Panics
    /// If a shape does not fit.
    pub fn combine(
        &mut self,
        outputs: &Buffer<f32>,
        (choices, weighted): (&DeviceChoices, Weighted),
        [n, used, d]: [usize; 3],
        out: &mut Buffer<f32>,
    ) -> Result<(), DeviceError> {
        assert!(outputs.len() >= n * used * d, "outputs are [{n}, {used}, {d}]");
        assert!(choices.len() >= n * used && out.len() >= n * d, "out is [{n}, {d}]");
        let kernel = Kernel {
            pieces: vec![piece!("element"), piece!("experts/combine")],
            constants: vec![
                ("USED", Constant::U32(used as u32)),
                ("WEIGHTED", Constant::Bool(weighted == Weighted::Output)),
            ],
            buffers: &[Read, Read, Write],
            params: size_of::<RowsParams>(),
        };
        let params = RowsParams { rows: n as u32, d: d as u32 };
        let buffers = [choices.weights.raw(), outputs.raw(), out.raw()];
        self.dispatch(&kernel, &buffers, &params, grid_of_elements(n * d))
    }
}

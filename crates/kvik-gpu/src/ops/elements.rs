//! Elementwise operations.

use bytemuck::{Pod, Zeroable};
use kvik_kernels::Activation;

use crate::kernel::Access::{Read, Write};
use crate::kernel::{Kernel, Piece, grid_of_elements, piece};
use crate::{Buffer, DeviceError, Step};

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct AddParams {
    len: u32,
    period: u32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct EachParams {
    len: u32,
    factor: f32,
}

/// The pieces that define an activation.
pub(super) fn activation_pieces(activation: Activation) -> [Piece; 2] {
    let piece = match activation {
        Activation::SwiGlu => piece!("activation/swiglu"),
        Activation::GeGlu | Activation::Gelu => piece!("activation/gelu"),
        Activation::SwiGluOai => piece!("activation/swiglu_oai"),
        Activation::ReluSquared => piece!("activation/relu_squared"),
    };
    [piece!("activation/sigmoid"), piece]
}

impl Step<'_> {
    /// Replaces the first `len` elements of `x` by the activation. If it is gated, `x` is `gate` and `up` is as
    /// long; otherwise there is no `up`.
    ///
    /// # Errors
    /// If the driver refuses the kernel.
    ///
    /// # Panics
    /// If a length does not fit, or `up` is missing or unexpected.
    pub fn activate(
        &mut self,
        activation: Activation,
        x: &mut Buffer<f32>,
        up: Option<&Buffer<f32>>,
        len: usize,
    ) -> Result<(), DeviceError> {
        assert_eq!(up.is_some(), activation.is_gated(), "up of {activation:?}");
        assert!(x.len() >= len && up.is_none_or(|up| up.len() >= len), "x and up are [{len}]");
        let mut pieces = activation_pieces(activation).to_vec();
        let Some(up) = up else {
            pieces.push(piece!("each/activated"));
            return self.each(pieces, x, len, 0.0);
        };
        pieces.extend([piece!("element"), piece!("activation/gated")]);
        let params = size_of::<u32>();
        let kernel = Kernel { pieces, constants: vec![], buffers: &[Read, Write], params };
        self.dispatch(&kernel, &[up.raw(), x.raw()], &(len as u32), grid_of_elements(len))
    }

    /// `x = x + y` for the first `len` elements of `x`: `y` is as long, or a bias that is added to every row.
    ///
    /// # Errors
    /// If the driver refuses the kernel.
    ///
    /// # Panics
    /// If `x` is shorter, or `len` is not whole rows of `period` elements of `y`.
    pub fn add(
        &mut self,
        x: &mut Buffer<f32>,
        len: usize,
        (y, period): (&Buffer<f32>, usize),
    ) -> Result<(), DeviceError> {
        assert!(x.len() >= len, "x is [{len}]");
        assert!(y.len() >= period && len.is_multiple_of(period), "y is [{period}] and x [{len}]");
        let kernel = Kernel {
            pieces: vec![piece!("element"), piece!("add")],
            constants: vec![],
            buffers: &[Read, Write],
            params: size_of::<AddParams>(),
        };
        let params = AddParams { len: len as u32, period: period as u32 };
        self.dispatch(&kernel, &[y.raw(), x.raw()], &params, grid_of_elements(len))
    }

    /// `x = factor * x` for the first `len` elements of `x`; a factor of 1 is skipped.
    ///
    /// # Errors
    /// If the driver refuses the kernel.
    ///
    /// # Panics
    /// If `x` is shorter.
    pub fn multiply(&mut self, x: &mut Buffer<f32>, len: usize, factor: f32) -> Result<(), DeviceError> {
        if factor == 1.0 {
            return Ok(());
        }
        self.each(vec![piece!("each/product")], x, len, factor)
    }

    /// Soft cap of the first `len` elements of `x`: `x = cap * tanh(x / cap)`.
    ///
    /// # Errors
    /// If the driver refuses the kernel.
    ///
    /// # Panics
    /// If `x` is shorter.
    pub fn soft_cap(&mut self, x: &mut Buffer<f32>, len: usize, cap: f32) -> Result<(), DeviceError> {
        self.each(vec![piece!("soft_cap"), piece!("each/capped")], x, len, cap)
    }

    /// `x = 1 / (1 + exp(-x))` for the first `len` elements of `x`.
    ///
    /// # Errors
    /// If the driver refuses the kernel.
    ///
    /// # Panics
    /// If `x` is shorter.
    pub fn sigmoid(&mut self, x: &mut Buffer<f32>, len: usize) -> Result<(), DeviceError> {
        self.each(vec![piece!("sigmoid"), piece!("each/sigmoid")], x, len, 0.0)
    }

    /// Applies the function that the last of `pieces` defines to the first `len` elements of `x`.
    fn each(
        &mut self,
        mut pieces: Vec<Piece>,
        x: &mut Buffer<f32>,
        len: usize,
        factor: f32,
    ) -> Result<(), DeviceError> {
        assert!(x.len() >= len, "x is [{len}]");
        pieces.extend([piece!("element"), piece!("each")]);
        let params = size_of::<EachParams>();
        let kernel = Kernel { pieces, constants: vec![], buffers: &[Write], params };
        let params = EachParams { len: len as u32, factor };
        self.dispatch(&kernel, &[x.raw()], &params, grid_of_elements(len))
    }
}

//! Causal convolution of each channel over its last few inputs.

use super::kernel::{RecurrenceKernels, Taps};
use super::rows::check;
use super::variants::kernels_of;
use super::{StateArena, StateRows};
use crate::threads::Disjoint;
use crate::{Isa, Pool};

/// Weights of a convolution over a few inputs, for many channels.
#[derive(Debug, Clone)]
pub struct ConvWeights {
    channels: usize,
    /// `[width][channels]`
    taps: Vec<f32>,
    /// `[channels]`
    bias: Option<Vec<f32>>,
    silu: bool,
}

/// Channels per task.
const CHANNELS: usize = 256;
/// Number of products below which waking other threads costs more than it saves.
const PARALLEL_MIN: usize = 64 * 1024;

impl ConvWeights {
    /// Maximum number of inputs per channel.
    pub const WIDTH_MAX: usize = 8;

    /// * `weights`: `[channels, width]`, those of the row's own input last
    /// * `bias`: `[channels]`
    /// * `silu`: whether `x / (1 + exp(-x))` follows
    ///
    /// # Panics
    /// If a shape does not fit, or `width` is not 1 to [`ConvWeights::WIDTH_MAX`].
    pub fn new(weights: &[f32], width: usize, bias: Option<Vec<f32>>, silu: bool) -> ConvWeights {
        assert!((1..=Self::WIDTH_MAX).contains(&width), "a convolution of {width} inputs");
        assert!(weights.len().is_multiple_of(width), "weights are [channels, {width}]");
        let channels = weights.len() / width;
        assert!(bias.as_ref().is_none_or(|bias| bias.len() == channels), "bias is [{channels}]");
        let tap = |tap: usize| weights.iter().skip(tap).step_by(width).copied();
        ConvWeights { channels, taps: (0..width).flat_map(tap).collect(), bias, silu }
    }

    /// Elements of the state: the inputs of the last rows, `[width - 1][channels]`.
    pub fn state_floats(&self) -> usize {
        self.taps.len() - self.channels
    }

    fn width(&self) -> usize {
        self.taps.len() / self.channels.max(1)
    }
}

/// Convolves the rows of every sequence with the preceding ones, and stores the last inputs in the state.
///
/// * `offset`: start of the layer's elements in a state
/// * `x`, `out`: `[n, channels]`
///
/// # Panics
/// If a shape does not fit, or rows or slots do not exist or are named twice.
pub fn convolve(
    pool: &Pool,
    arena: &mut StateArena,
    offset: usize,
    weights: &ConvWeights,
    sequences: &[StateRows<'_>],
    x: &[f32],
    out: &mut [f32],
) {
    convolve_with(kernels_of(Isa::current()), pool, arena, offset, weights, sequences, x, out);
}

#[expect(clippy::too_many_arguments, reason = "those of `convolve`, and the kernels that tests choose")]
pub(super) fn convolve_with(
    kernels: RecurrenceKernels,
    pool: &Pool,
    arena: &mut StateArena,
    offset: usize,
    weights: &ConvWeights,
    sequences: &[StateRows<'_>],
    x: &[f32],
    out: &mut [f32],
) {
    let channels = weights.channels;
    assert!(channels > 0 && x.len().is_multiple_of(channels), "x is [n, {channels}]");
    assert_eq!(x.len(), out.len(), "x and out are [n, channels]");
    check(arena, sequences, x.len() / channels);
    let (arena, out) = (&*arena, Disjoint::new(out));
    let pieces = channels.div_ceil(CHANNELS);
    let work = |task: usize| {
        let start = task % pieces * CHANNELS;
        let piece = Piece { weights, start, len: CHANNELS.min(channels - start), x };
        let sequence = &sequences[task / pieces];
        piece.outputs(kernels, piece.window(arena, offset, sequence.live), sequence, &out);
        piece.remember(arena, offset, sequence);
    };
    if x.len() * weights.width() < PARALLEL_MIN {
        (0..pieces * sequences.len()).for_each(work);
    } else {
        pool.run(pieces * sequences.len(), &work);
    }
}

/// Some channels of a convolution.
struct Piece<'a> {
    weights: &'a ConvWeights,
    start: usize,
    len: usize,
    /// `[n, channels]`
    x: &'a [f32],
}

/// The stored inputs of some channels, oldest first.
#[derive(Clone, Copy)]
struct Window<'a> {
    arena: &'a StateArena,
    slot: u32,
    /// Offset of the first row's channels in the state; `stride` elements separate rows.
    offset: usize,
    stride: usize,
}

impl<'a> Window<'a> {
    /// # Safety
    /// As long as the returned slice is used, no other thread writes these elements.
    unsafe fn row(self, index: usize, len: usize) -> &'a [f32] {
        // SAFETY: the caller's promise.
        unsafe { self.arena.numbers(self.slot, self.offset + index * self.stride, len) }
    }
}

impl Piece<'_> {
    /// Number of stored inputs.
    fn remembered(&self) -> usize {
        self.weights.width() - 1
    }

    /// The stored inputs of these channels in a slot.
    fn window<'a>(&self, arena: &'a StateArena, offset: usize, slot: u32) -> Window<'a> {
        Window { arena, slot, offset: offset + self.start, stride: self.weights.channels }
    }

    /// Inputs of the channels of this part, from row `row`.
    fn input(&self, row: usize) -> &[f32] {
        &self.x[row * self.weights.channels + self.start..][..self.len]
    }

    /// The input `back` rows before the `done`th row of a sequence: from the batch, or stored.
    ///
    /// # Safety
    /// As long as the returned slice is used, no other thread writes these channels of the window.
    unsafe fn tap<'s>(
        &'s self,
        window: Window<'s>,
        rows: &StateRows<'_>,
        done: usize,
        back: usize,
    ) -> &'s [f32] {
        match done.checked_sub(back) {
            Some(row) => self.input(rows.rows.start + row),
            // SAFETY: the caller's promise.
            None => unsafe { window.row(self.remembered() + done - back, self.len) },
        }
    }

    fn outputs(
        &self,
        kernels: RecurrenceKernels,
        window: Window<'_>,
        sequence: &StateRows<'_>,
        out: &Disjoint<'_, f32>,
    ) {
        let (width, channels) = (self.weights.width(), self.weights.channels);
        let weights: Vec<&[f32]> =
            self.weights.taps.chunks_exact(channels).map(|tap| &tap[self.start..][..self.len]).collect();
        let bias = self.weights.bias.as_ref().map(|bias| &bias[self.start..][..self.len]);
        let mut inputs: Vec<&[f32]> = Vec::with_capacity(width);
        for (done, row) in sequence.rows.clone().enumerate() {
            inputs.clear();
            // SAFETY: no other task has these channels of the slot, and this one writes them later.
            inputs.extend((0..width).rev().map(|back| unsafe { self.tap(window, sequence, done, back) }));
            let taps = Taps { inputs: &inputs, weights: &weights, bias, silu: self.weights.silu };
            // SAFETY: the rows of sequences are disjoint, and so are the channels of tasks; the kernels are those
            // of the machine.
            unsafe { (kernels.convolve)(&taps, out.range(row * channels + self.start, self.len)) };
        }
    }

    /// Stores the last inputs of a sequence: copies first, since they also read the old ones.
    fn remember(&self, arena: &StateArena, offset: usize, sequence: &StateRows<'_>) {
        let window = self.window(arena, offset, sequence.live);
        let live = (sequence.certain, sequence.live);
        for (count, slot) in sequence.saves.iter().copied().chain([live]).filter(|&(count, _)| count > 0) {
            for index in 0..self.remembered() {
                let to = offset + index * self.weights.channels + self.start;
                // SAFETY: no other task has these channels of these slots. Rows are read in ascending order, each
                // after the one that is written, so the two are disjoint.
                unsafe {
                    let input = self.tap(window, sequence, count, self.remembered() - index).as_ptr();
                    std::ptr::copy_nonoverlapping(input, arena.place(slot, to, self.len), self.len);
                }
            }
        }
    }
}

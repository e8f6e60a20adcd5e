//! States with a matrix per head: gated delta rule (Qwen3-Next) and selective scan (Mamba 2).

use super::kernel::{RecurrenceKernels, Step};
use super::rows::check;
use super::variants::kernels_of;
use super::{StateArena, StateRows};
use crate::f32x16::LANES;
use crate::ops::squares;
use crate::threads::Disjoint;
use crate::{Isa, Pool};

/// The update rule of the state `S` of a head; see `kernel::advance`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateRule {
    /// The value that the state stores for `k` moves towards `v` by `rate`.
    Delta,
    /// `rate v` is added at `k`.
    Scan,
}

/// The mapping from heads to key heads, if there are fewer key heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeySharing {
    /// Heads of one key head are adjacent.
    Grouped,
    /// Head `h` reads key head `h % key_heads`.
    Tiled,
}

/// The shape of a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinearShape {
    /// The update rule.
    pub rule: StateRule,
    /// Heads, each with values of its own.
    pub heads: usize,
    /// Heads of keys and queries; divides `heads`.
    pub key_heads: usize,
    /// The mapping from heads to key heads.
    pub sharing: KeySharing,
    /// Dimensions of keys and queries.
    pub key_dim: usize,
    /// Dimensions of values.
    pub value_dim: usize,
}

impl LinearShape {
    /// Elements of the state: `[heads][blocks of 16 values][key_dim][16]`.
    pub fn state_floats(&self) -> usize {
        self.heads * self.blocks() * self.block()
    }

    fn blocks(&self) -> usize {
        self.value_dim.div_ceil(LANES)
    }

    /// Elements of 16 values of a head.
    fn block(&self) -> usize {
        self.key_dim * LANES
    }

    fn key_head(&self, head: usize) -> usize {
        match self.sharing {
            KeySharing::Grouped => head / (self.heads / self.key_heads),
            KeySharing::Tiled => head % self.key_heads,
        }
    }
}

/// A range of columns of a matrix of rows.
#[derive(Debug, Clone, Copy)]
pub struct Columns<'a> {
    /// `[n, width]`
    pub data: &'a [f32],
    /// Columns of the matrix.
    pub width: usize,
    /// The first column of the range.
    pub start: usize,
}

impl<'a> Columns<'a> {
    /// `count` columns of a row, from column `start` of the range on.
    fn row(&self, row: usize, start: usize, count: usize) -> &'a [f32] {
        &self.data[row * self.width + self.start + start..][..count]
    }
}

/// The input of rows to a state.
#[derive(Debug, Clone, Copy)]
pub struct LinearInputs<'a> {
    /// `[n, key_heads, key_dim]` each.
    pub q: Columns<'a>,
    /// As `q`.
    pub k: Columns<'a>,
    /// `[n, heads, value_dim]`
    pub v: Columns<'a>,
    /// The factor of the state before each row, `[n, heads]`.
    pub decays: &'a [f32],
    /// `[n, heads]`
    pub rates: &'a [f32],
    /// The factor of a value that is added to its output, `[heads]`; empty if there is none.
    pub skips: &'a [f32],
}

/// Number of products below which waking other threads costs more than it saves.
const PARALLEL_MIN: usize = 32 * 1024;

/// Updates the state of every sequence with its rows, one by one, and reads it after each:
/// `out` is `[n, heads, value_dim]`.
///
/// * `offset`: start of the layer's elements in a state
///
/// # Panics
/// If a shape does not fit, or rows or slots do not exist or are named twice.
pub fn advance(
    pool: &Pool,
    arena: &mut StateArena,
    offset: usize,
    shape: LinearShape,
    sequences: &[StateRows<'_>],
    inputs: LinearInputs<'_>,
    out: &mut [f32],
) {
    advance_with(kernels_of(Isa::current()), pool, arena, offset, shape, sequences, inputs, out);
}

#[expect(clippy::too_many_arguments, reason = "those of `advance`, and the kernels that tests choose")]
pub(super) fn advance_with(
    kernels: RecurrenceKernels,
    pool: &Pool,
    arena: &mut StateArena,
    offset: usize,
    shape: LinearShape,
    sequences: &[StateRows<'_>],
    inputs: LinearInputs<'_>,
    out: &mut [f32],
) {
    let width = shape.heads * shape.value_dim;
    assert!(width > 0 && out.len().is_multiple_of(width), "out is [n, heads, value_dim]");
    assert!(shape.key_heads > 0 && shape.heads.is_multiple_of(shape.key_heads), "{shape:?}");
    let n = out.len() / width;
    for values in [inputs.decays, inputs.rates] {
        assert_eq!(values.len(), n * shape.heads, "decays and rates are [n, heads]");
    }
    assert!(inputs.skips.is_empty() || inputs.skips.len() == shape.heads, "skips are [heads]");
    check(arena, sequences, n);
    let (arena, out) = (&*arena, Disjoint::new(out));
    let work = |task: usize| {
        let head = Head { shape, head: task % shape.heads, inputs };
        for block in 0..shape.blocks() {
            head.advance(kernels, arena, offset, &sequences[task / shape.heads], block, &out);
        }
    };
    if n * width * shape.key_dim < PARALLEL_MIN {
        (0..shape.heads * sequences.len()).for_each(work);
    } else {
        pool.run(shape.heads * sequences.len(), &work);
    }
}

/// A head of a layer.
struct Head<'a> {
    shape: LinearShape,
    head: usize,
    inputs: LinearInputs<'a>,
}

impl Head<'_> {
    /// Updates 16 of the head's values with the rows of a sequence.
    fn advance(
        &self,
        kernels: RecurrenceKernels,
        arena: &StateArena,
        offset: usize,
        sequence: &StateRows<'_>,
        block: usize,
        out: &Disjoint<'_, f32>,
    ) {
        let LinearShape { heads, value_dim, .. } = self.shape;
        let len = self.shape.block();
        let at = offset + (self.head * self.shape.blocks() + block) * len;
        let first = block * LANES;
        let values = LANES.min(value_dim - first);
        // SAFETY: the slots of sequences are disjoint, and so are the blocks of heads: no other task has
        // these elements.
        let place = |slot: u32| unsafe { std::slice::from_raw_parts_mut(arena.place(slot, at, len), len) };
        let live = place(sequence.live);
        let mut saves = sequence.saves.iter().copied().peekable();
        let mut tried = Vec::new();
        for (done, row) in sequence.rows.clone().enumerate() {
            if done == sequence.certain {
                tried.extend_from_slice(live);
            }
            let state = if done < sequence.certain { &mut *live } else { &mut tried[..] };
            let step = self.step(row, first, values);
            // SAFETY: the rows of sequences are disjoint, and so are the values of tasks; the kernels are those
            // of the machine.
            unsafe {
                let out = out.range((row * heads + self.head) * value_dim + first, values);
                (kernels.advance)(state, &step, out);
            }
            while let Some((_, slot)) = saves.next_if(|&(count, _)| count == done + 1) {
                place(slot).copy_from_slice(live);
            }
        }
    }

    /// The input of a row to some of the head's values.
    fn step(&self, row: usize, first: usize, values: usize) -> Step<'_> {
        let LinearShape { rule, heads, key_dim, value_dim, .. } = self.shape;
        let LinearInputs { q, k, v, decays, rates, skips } = &self.inputs;
        let key = self.shape.key_head(self.head) * key_dim;
        Step {
            rule,
            k: k.row(row, key, key_dim),
            q: q.row(row, key, key_dim),
            v: v.row(row, self.head * value_dim + first, values),
            decay: decays[row * heads + self.head],
            rate: rates[row * heads + self.head],
            skip: skips.get(self.head).copied().unwrap_or(0.0),
        }
    }
}

/// Scales vectors to the norm `scale`: `x scale / sqrt(sum x^2 + eps)`.
///
/// * `x`: `[n, width]`, of which columns `start..start + count * dim` are `count` vectors of a row
///
/// # Panics
/// If a shape does not fit.
pub fn unit_norm(
    pool: &Pool,
    x: &mut [f32],
    width: usize,
    (start, count, dim): (usize, usize, usize),
    eps: f32,
    scale: f32,
) {
    assert!(width > 0 && dim > 0 && x.len().is_multiple_of(width), "x is [n, {width}]");
    assert!(start + count * dim <= width, "{count} vectors of {dim} from {start} in {width} columns");
    let norm_row = |_: usize, row: &mut [f32]| {
        for vector in row[start..start + count * dim].chunks_exact_mut(dim) {
            let factor = scale / (squares(vector) + eps).sqrt();
            vector.iter_mut().for_each(|x| *x *= factor);
        }
    };
    if x.len() < PARALLEL_MIN {
        x.chunks_exact_mut(width).for_each(|row| norm_row(0, row));
    } else {
        pool.run_chunks(x, width, norm_row);
    }
}

//! The inputs of matrix products, in the layouts that the weight types need, computed once per set of users.
//!
//! Rows are grouped into panels with room for one, two, four or `WIDE` rows, which the kernels hold in registers.
//! Panels of quantised values and panels for matrix units have room for `TALL` rows. The last panel may have more
//! room than rows: three rows are computed as four, since all rows share the weights, which are read from memory
//! once. Inside a panel rows are interleaved, so that a kernel reads one stream with constant offsets:
//!
//! ```text
//!   floats [cols][panel width] f32
//!   pairs  [pairs of columns][panel width][2] bfloats; for matrix units [pieces of 32 columns][16 rows][32] bfloats
//!   codes  [pieces of 32 columns][panel width][32] i8;  tall, with blocks of 256: pieces of 64 columns
//!   scales [blocks][panel width] f32
//!   shorts [pairs of columns][panel width][2] i16, scales [chunks][panel width] f32
//!   sums   [chunks][panel width] i32,  half_sums [halves of 16 columns][panel width] i32
//! ```
//!
//! Each row is quantised by itself, so its quantised values do not depend on its panel.

mod filling;
mod floats;
mod grouped;
pub(crate) mod pairs;
mod quantise;
mod shorts;

use std::ops::Range;

use crate::lines::Lines;
use crate::matrix::{CHUNK, Matrix};
use crate::{Isa, Pool, WeightType};
pub(crate) use filling::Filling;
pub use grouped::{Group, Groups};
use shorts::Shorts;

/// Rows of the widest panel in vector registers.
pub(crate) const WIDE: usize = 8;
/// Rows of a panel of matrix units: a full register, since reading out a partly filled one takes as long.
pub(crate) const TALL: usize = 16;

/// Minimum number of rows for tall panels of quantised values, where the machine has matrix units.
const TALL_FROM: usize = TALL;

/// Columns per half sum, for weight types with a scale per 16 columns.
pub(crate) const HALF: usize = CHUNK / 2;

/// Rows of `[n, cols]` inputs, prepared for multiplication. Reused from product to product.
#[derive(Debug, Default)]
pub struct Activations {
    rows: usize,
    cols: usize,
    floats: Option<Lines<f32>>,
    pairs: Option<Lines<u32>>,
    shorts: Option<Shorts>,
    per_32: Option<Quantised>,
    per_256: Option<Quantised>,
    /// Room of the widest panel of quantised values, `WIDE` or `TALL`.
    widest: usize,
    /// Room of the widest panel of bfloats. Matrix units sum in an order of their own, so on them panels are tall
    /// for any number of rows: a row's result does not depend on the number of rows.
    widest_pairs: usize,
    spare: Spare,
}

/// Buffers of layouts that the present users do not need.
#[derive(Debug, Default)]
struct Spare {
    floats: Lines<f32>,
    pairs: Lines<u32>,
    shorts: Shorts,
    per_32: Quantised,
    per_256: Quantised,
}

/// Rows quantised to bytes with a scale per block.
#[derive(Debug, Default)]
pub(crate) struct Quantised {
    pub(crate) codes: Lines<i8>,
    pub(crate) scales: Lines<f32>,
    pub(crate) sums: Lines<i32>,
    /// Filled only for blocks of 256.
    pub(crate) half_sums: Lines<i32>,
}

/// The layout of inputs that a weight type is multiplied with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Floats,
    Pairs,
    /// 14-bit values with a scale per 32 columns.
    Shorts,
    /// Bytes with a scale per this many columns.
    Codes(usize),
}

impl Form {
    pub(crate) fn of(ty: WeightType) -> Form {
        match (ty, ty.codes()) {
            (_, Some(codes)) => Form::Codes(codes.block_len),
            (WeightType::Bf16, _) => Form::Pairs,
            (WeightType::Q14_0, _) => Form::Shorts,
            (_, None) => Form::Floats,
        }
    }
}

/// Consecutive rows that a kernel computes together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Panel {
    pub(crate) start: usize,
    pub(crate) rows: usize,
    /// Rows that the panel has room for.
    pub(crate) width: usize,
}

/// The panels of `rows`; `rows.start` must be the start of a panel.
fn panels(rows: Range<usize>, widest: usize) -> impl Iterator<Item = Panel> + Clone {
    rows.clone().step_by(widest).map(move |start| {
        let rows = (rows.end - start).min(widest);
        let width = if widest == TALL { TALL } else { rows.next_power_of_two() };
        Panel { start, rows, width }
    })
}

/// Rows that the panels of `rows` rows have room for.
fn room(rows: usize, widest: usize) -> usize {
    panels(0..rows, widest).last().map_or(0, |panel| panel.start + panel.width)
}

/// The rows whose panels are filled, divided among the tasks of a pool: a whole batch, or groups with panels
/// of their own.
#[derive(Clone, Copy)]
enum Spans<'a> {
    Whole(usize),
    Groups(&'a [Group]),
}

impl Spans<'_> {
    fn len(self, widest: usize) -> usize {
        match self {
            Spans::Whole(rows) => rows.div_ceil(widest),
            Spans::Groups(groups) => groups.len(),
        }
    }

    fn get(self, index: usize, widest: usize) -> Range<usize> {
        match self {
            Spans::Whole(rows) => index * widest..rows.min((index + 1) * widest),
            Spans::Groups(groups) => groups[index].rows.clone(),
        }
    }

    /// Rows that the panels have room for.
    fn room(self, widest: usize) -> usize {
        match self {
            Spans::Whole(rows) => room(rows, widest),
            Spans::Groups([.., last]) => last.rows.start + room(last.rows.len(), widest),
            Spans::Groups([]) => 0,
        }
    }
}

/// Room of the widest panel of quantised values, for `rows` rows on `isa`.
pub(crate) fn widest_codes(isa: Isa, rows: usize) -> usize {
    if isa == Isa::Amx && rows >= TALL_FROM { TALL } else { WIDE }
}

/// Index of column `col` of row `row` among the quantised values of a panel of width `width`. In a tall panel, a
/// piece is as many columns as a row of a matrix register has bytes, but a product may not span two blocks.
#[inline(always)]
pub(crate) const fn code_index(block_len: usize, width: usize, row: usize, col: usize) -> usize {
    let piece = if width == TALL && block_len >= 64 { 64 } else { CHUNK };
    (col / piece * width + row) * piece + col % piece
}

impl Activations {
    /// An empty set of rows; [`Activations::set`] fills it.
    pub fn new() -> Activations {
        Activations::default()
    }

    /// Stores `x`, `[n, cols]`, in the layouts that `users` need.
    ///
    /// # Panics
    /// Unless `x` is whole rows and every user has `cols` columns.
    pub fn set(&mut self, pool: &Pool, x: &[f32], cols: usize, users: &[&Matrix]) {
        self.set_for(Isa::current(), pool, x, cols, users);
    }

    /// [`Activations::set`] for kernels of `isa`, which the machine need not have.
    pub(crate) fn set_for(&mut self, isa: Isa, pool: &Pool, x: &[f32], cols: usize, users: &[&Matrix]) {
        assert!(cols > 0 && x.len().is_multiple_of(cols), "{} values are not rows of {cols}", x.len());
        assert!(users.iter().all(|user| user.cols() == cols), "every user has {cols} columns");
        self.prepare(isa, [x.len() / cols, cols], widest_codes(isa, x.len() / cols), users);
        self.fill(pool, x, Spans::Whole(self.rows));
    }

    /// Makes room for `rows` rows of `cols` columns in the layouts that `users` need.
    ///
    /// # Panics
    /// Unless every user has `cols` columns.
    pub(crate) fn room_for(&mut self, isa: Isa, [rows, cols]: [usize; 2], users: &[&Matrix]) -> Filling<'_> {
        assert!(users.iter().all(|user| user.cols() == cols), "every user has {cols} columns");
        self.prepare(isa, [rows, cols], widest_codes(isa, rows), users);
        self.filling(Spans::Whole(rows))
    }

    /// Selects the layouts that `users` need.
    fn prepare(&mut self, isa: Isa, [rows, cols]: [usize; 2], widest: usize, users: &[&Matrix]) {
        let wants = |form| users.iter().any(|user| Form::of(user.weight_type()) == form);
        (self.rows, self.cols, self.widest) = (rows, cols, widest);
        self.widest_pairs = if isa == Isa::Amx { TALL } else { WIDE };
        select(&mut self.floats, &mut self.spare.floats, wants(Form::Floats));
        select(&mut self.pairs, &mut self.spare.pairs, wants(Form::Pairs));
        select(&mut self.shorts, &mut self.spare.shorts, wants(Form::Shorts));
        select(&mut self.per_32, &mut self.spare.per_32, wants(Form::Codes(32)));
        select(&mut self.per_256, &mut self.spare.per_256, wants(Form::Codes(256)));
    }

    /// Stores the rows of `x`, `[rows, cols]`, that `spans` names, in the selected layouts.
    fn fill(&mut self, pool: &Pool, x: &[f32], spans: Spans<'_>) {
        let cols = self.cols;
        let filling = self.filling(spans);
        let widest = filling.widest();
        pool.run(spans.len(widest), &|span| {
            let rows = spans.get(span, widest);
            let x = &x[rows.start * cols..rows.end * cols];
            // SAFETY: the spans are disjoint, and the pool hands out each once.
            unsafe { filling.put(rows, 0..cols, x) };
        });
    }

    /// Number of input rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Whether the quantised values are laid out for matrix units.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn tall(&self) -> bool {
        self.widest == TALL
    }

    /// Whether the bfloats are laid out for matrix units, and must be summed in their order.
    pub(crate) fn in_pieces(&self) -> bool {
        self.widest_pairs == TALL
    }

    /// The panels of `rows` in the layout for weights of type `ty`; `rows.start` must start a panel of every
    /// layout.
    pub(crate) fn panels(
        &self,
        ty: WeightType,
        rows: Range<usize>,
    ) -> impl Iterator<Item = Panel> + Clone + use<> {
        let widest = match Form::of(ty) {
            Form::Floats | Form::Shorts => WIDE,
            Form::Pairs => self.widest_pairs,
            Form::Codes(_) => self.widest,
        };
        panels(rows, widest)
    }

    /// Number of columns of a row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The interleaved floats. Panics unless a user of `set` needs them.
    pub(crate) fn floats(&self) -> &[f32] {
        self.floats.as_deref().expect("the activations were set without a user of floats")
    }

    /// The interleaved pairs of bfloats, the even column in the lower half. Panics as `floats`.
    pub(crate) fn pairs(&self) -> &[u32] {
        self.pairs.as_deref().expect("the activations were set without a user of bfloats")
    }

    /// The 14-bit values. Panics as `floats`.
    pub(crate) fn shorts(&self) -> &Shorts {
        self.shorts.as_ref().expect("the activations were set without a user of 14-bit codes")
    }

    /// The quantised values with one scale per `block_len`. Panics unless a user of `set` needs them.
    pub(crate) fn quantised(&self, block_len: usize) -> &Quantised {
        let form = if block_len == 32 { &self.per_32 } else { &self.per_256 };
        form.as_ref().expect("the activations were set without a user of this block length")
    }
}

/// Moves the buffer of a layout in or out of use without freeing it.
fn select<T: Default>(form: &mut Option<T>, spare: &mut T, wanted: bool) {
    match (form.is_some(), wanted) {
        (false, true) => *form = Some(std::mem::take(spare)),
        (true, false) => *spare = form.take().unwrap_or_default(),
        _ => {}
    }
}

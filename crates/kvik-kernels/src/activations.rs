//! The inputs of matrix products, in the forms that the weights want, computed once per set of users.
//!
//! Rows are grouped into panels of one, two, four or `WIDE` rows, which the kernels carry in registers.
//! Inside a panel rows are interleaved, so that a kernel walks one stream with constant offsets:
//!
//! ```text
//!   floats [cols][panel rows] f32
//!   pairs  [pairs of columns][panel rows][2] bfloats
//!   codes  [chunks of 32 columns][panel rows][32] i8
//!   scales [blocks][panel rows] f32
//!   sums   [chunks][panel rows] i32,  half_sums [halves of 16 columns][panel rows] i32
//! ```
//!
//! A row is quantised by itself, so its codes do not depend on the panel it is in.

mod pairs;
mod quantise;

use std::ops::Range;

use crate::matrix::{CHUNK, Matrix};
use crate::threads::Disjoint;
use crate::{Isa, Pool, WeightType};
use quantise::PanelMut;

/// Rows of the widest panel.
pub(crate) const WIDE: usize = 8;

/// Columns whose sum is kept for types with scales per 16.
pub(crate) const HALF: usize = CHUNK / 2;

/// Rows of `[n, cols]` inputs, ready to be multiplied. Reused from product to product.
#[derive(Debug, Default)]
pub struct Activations {
    rows: usize,
    cols: usize,
    floats: Option<Vec<f32>>,
    pairs: Option<Vec<u32>>,
    per_32: Option<Quantised>,
    per_256: Option<Quantised>,
    spare: Spare,
}

/// Buffers of forms that the present users do not need.
#[derive(Debug, Default)]
struct Spare {
    floats: Vec<f32>,
    pairs: Vec<u32>,
    per_32: Quantised,
    per_256: Quantised,
}

/// Rows as bytes with a scale per block.
#[derive(Debug, Default)]
pub(crate) struct Quantised {
    pub(crate) codes: Vec<i8>,
    pub(crate) scales: Vec<f32>,
    pub(crate) sums: Vec<i32>,
    /// Only for blocks of 256.
    pub(crate) half_sums: Vec<i32>,
}

/// The form of the inputs that a type of weights is multiplied with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Floats,
    Pairs,
    /// Bytes with a scale for so many columns.
    Codes(usize),
}

impl Form {
    pub(crate) fn of(ty: WeightType) -> Form {
        match ty.codes() {
            Some(codes) => Form::Codes(codes.block_len),
            None if ty == WeightType::Bf16 => Form::Pairs,
            None => Form::Floats,
        }
    }
}

/// Consecutive rows that a kernel computes together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Panel {
    pub(crate) start: usize,
    pub(crate) rows: usize,
}

/// The panels of `rows`, whose start is a multiple of `WIDE`.
pub(crate) fn panels(rows: Range<usize>) -> impl Iterator<Item = Panel> {
    debug_assert_eq!(rows.start % WIDE, 0);
    let mut start = rows.start;
    std::iter::from_fn(move || {
        let left = rows.end - start;
        let rows = if left >= WIDE { WIDE } else { (left + 1).next_power_of_two() / 2 };
        start += rows;
        (rows > 0).then_some(Panel { start: start - rows, rows })
    })
}

impl Activations {
    /// Empty; [`Activations::set`] fills it.
    pub fn new() -> Activations {
        Activations::default()
    }

    /// Takes `x`, `[n, cols]`, in the forms that `users` need.
    ///
    /// # Panics
    /// Unless `x` is whole rows and every user has `cols` columns.
    pub fn set(&mut self, pool: &Pool, x: &[f32], cols: usize, users: &[&Matrix]) {
        assert!(cols > 0 && x.len().is_multiple_of(cols), "{} values are not rows of {cols}", x.len());
        assert!(users.iter().all(|user| user.cols() == cols), "every user has {cols} columns");
        let wants = |form| users.iter().any(|user| Form::of(user.weight_type()) == form);
        (self.rows, self.cols) = (x.len() / cols, cols);
        select(&mut self.floats, &mut self.spare.floats, wants(Form::Floats));
        select(&mut self.pairs, &mut self.spare.pairs, wants(Form::Pairs));
        select(&mut self.per_32, &mut self.spare.per_32, wants(Form::Codes(32)));
        select(&mut self.per_256, &mut self.spare.per_256, wants(Form::Codes(256)));
        if let Some(floats) = &mut self.floats {
            interleave(pool, x, cols, floats);
        }
        if let Some(pairs) = &mut self.pairs {
            pairs::set(pool, x, cols, pairs);
        }
        if let Some(codes) = &mut self.per_32 {
            codes.set::<32>(pool, x, cols);
        }
        if let Some(codes) = &mut self.per_256 {
            codes.set::<256>(pool, x, cols);
        }
    }

    /// Rows of inputs held.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns of a row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The interleaved floats, for a user that `set` was told about.
    pub(crate) fn floats(&self) -> &[f32] {
        self.floats.as_deref().expect("the activations were set without a user of floats")
    }

    /// The interleaved pairs of bfloats, the even column in the lower half; as `floats`.
    pub(crate) fn pairs(&self) -> &[u32] {
        self.pairs.as_deref().expect("the activations were set without a user of bfloats")
    }

    /// The codes with one scale per `block_len`, for a user that `set` was told about.
    pub(crate) fn quantised(&self, block_len: usize) -> &Quantised {
        let form = if block_len == 32 { &self.per_32 } else { &self.per_256 };
        form.as_ref().expect("the activations were set without a user of this block length")
    }
}

/// Moves the buffer of a form in or out of use without freeing it.
fn select<T: Default>(form: &mut Option<T>, spare: &mut T, wanted: bool) {
    match (form.is_some(), wanted) {
        (false, true) => *form = Some(std::mem::take(spare)),
        (true, false) => *spare = form.take().unwrap_or_default(),
        _ => {}
    }
}

/// `x` is `[n, cols]`, `out` panels of `[cols][panel rows]`.
fn interleave(pool: &Pool, x: &[f32], cols: usize, out: &mut Vec<f32>) {
    out.resize(x.len(), 0.0);
    let rows = x.len() / cols;
    let out = Disjoint::new(out);
    pool.run(rows.div_ceil(WIDE), &|wide| {
        for panel in panels(wide * WIDE..rows.min((wide + 1) * WIDE)) {
            // SAFETY: every panel has its own range, and the pool hands each `wide` out once.
            let out = unsafe { out.range(panel.start * cols, panel.rows * cols) };
            let x = &x[panel.start * cols..][..panel.rows * cols];
            match panel.rows {
                1 => out.copy_from_slice(x),
                2 => interleave_rows::<2>(x, out),
                4 => interleave_rows::<4>(x, out),
                _ => interleave_rows::<WIDE>(x, out),
            }
        }
    });
}

/// From `[R][cols]` to `[cols][R]`.
fn interleave_rows<const R: usize>(x: &[f32], out: &mut [f32]) {
    let (out, _) = out.as_chunks_mut::<R>();
    let rows: [&[f32]; R] = std::array::from_fn(|r| &x[r * out.len()..][..out.len()]);
    for (k, out) in out.iter_mut().enumerate() {
        *out = std::array::from_fn(|r| rows[r][k]);
    }
}

impl Quantised {
    fn set<const BLOCK: usize>(&mut self, pool: &Pool, x: &[f32], cols: usize) {
        let rows = x.len() / cols;
        let halves = if BLOCK == 256 { x.len() / HALF } else { 0 };
        self.codes.resize(x.len(), 0);
        self.scales.resize(x.len() / BLOCK, 0.0);
        self.sums.resize(x.len() / CHUNK, 0);
        self.half_sums.resize(halves, 0);
        let (codes, scales) = (Disjoint::new(&mut self.codes), Disjoint::new(&mut self.scales));
        let (sums, half_sums) = (Disjoint::new(&mut self.sums), Disjoint::new(&mut self.half_sums));
        pool.run(rows.div_ceil(WIDE), &|wide| {
            for panel in panels(wide * WIDE..rows.min((wide + 1) * WIDE)) {
                let range = |per: usize| (panel.start * cols / per, panel.rows * cols / per);
                let ((c, cs), (s, ss), (u, us)) = (range(1), range(BLOCK), range(CHUNK));
                let (h, hs) = if BLOCK == 256 { range(HALF) } else { (0, 0) };
                // SAFETY: every panel has its own ranges, and the pool hands each `wide` out once.
                let mut out = unsafe {
                    PanelMut {
                        rows: panel.rows,
                        codes: codes.range(c, cs),
                        scales: scales.range(s, ss),
                        sums: sums.range(u, us),
                        half_sums: half_sums.range(h, hs),
                    }
                };
                out.quantise::<BLOCK>(Isa::current(), &x[panel.start * cols..][..panel.rows * cols]);
            }
        });
    }
}

//! The layouts of a batch while they are being filled: each task writes some rows, or some columns of them.
//!
//! In every layout, whole blocks of columns are contiguous in a panel, as a panel of only those columns would be.
//! So a slice of columns is written like whole rows, at an offset.

use std::ops::Range;

use super::pairs::{self, row_pairs};
use super::quantise::PanelMut;
use super::shorts::{self, Shorts};
use super::{Activations, HALF, Panel, Quantised, Spans, WIDE, floats, panels};
use crate::Isa;
use crate::matrix::CHUNK;
use crate::threads::Disjoint;

/// The layouts of a batch, with room for all of its rows.
pub(crate) struct Filling<'a> {
    cols: usize,
    /// Room of the widest panel of quantised values.
    widest: usize,
    /// Room of the widest panel of bfloats.
    widest_pairs: usize,
    floats: Option<Disjoint<'a, f32>>,
    pairs: Option<Disjoint<'a, u32>>,
    shorts: Option<ShortParts<'a>>,
    per_32: Option<CodeParts<'a>>,
    per_256: Option<CodeParts<'a>>,
}

/// [`Shorts`] being filled.
struct ShortParts<'a> {
    pairs: Disjoint<'a, u32>,
    scales: Disjoint<'a, f32>,
}

/// [`Quantised`] values being filled.
struct CodeParts<'a> {
    codes: Disjoint<'a, i8>,
    scales: Disjoint<'a, f32>,
    sums: Disjoint<'a, i32>,
    half_sums: Disjoint<'a, i32>,
}

impl Activations {
    /// Makes room for the rows of `spans` in the selected layouts.
    pub(super) fn filling(&mut self, spans: Spans<'_>) -> Filling<'_> {
        let (cols, widest, widest_pairs) = (self.cols, self.widest, self.widest_pairs);
        let floats = self.floats.as_mut().map(|floats| {
            floats.resize(spans.room(WIDE) * cols);
            Disjoint::new(floats)
        });
        let pairs = self.pairs.as_mut().map(|pairs| {
            pairs.resize(spans.room(widest_pairs) * row_pairs(cols, widest_pairs));
            Disjoint::new(pairs)
        });
        let shorts = self.shorts.as_mut().map(|shorts| shorts.parts(spans.room(WIDE) * cols));
        let values = spans.room(widest) * cols;
        let per_32 = self.per_32.as_mut().map(|codes| codes.parts(values, 32));
        let per_256 = self.per_256.as_mut().map(|codes| codes.parts(values, 256));
        Filling { cols, widest, widest_pairs, floats, pairs, shorts, per_32, per_256 }
    }
}

impl Filling<'_> {
    /// Number of columns that are whole blocks of every layout.
    pub(crate) fn block(&self) -> usize {
        if self.per_256.is_some() { 256 } else { CHUNK }
    }

    /// Room of the widest panel of any layout.
    pub(super) fn widest(&self) -> usize {
        if self.pairs.is_some() { self.widest.max(self.widest_pairs) } else { self.widest }
    }

    /// Stores `columns` of `rows` from `x`, `[rows][columns]`.
    ///
    /// # Safety
    /// The rows begin a panel of every layout and end one or the batch, the columns begin a block and end one or
    /// the row, and no other thread accesses them concurrently.
    pub(crate) unsafe fn put(&self, rows: Range<usize>, columns: Range<usize>, x: &[f32]) {
        debug_assert_eq!(x.len(), rows.len() * columns.len());
        let part = Part { rows, columns, of: self.cols, x };
        // SAFETY: as the caller promises; panels and layouts have disjoint ranges.
        unsafe {
            if let Some(floats) = &self.floats {
                part.each(WIDE, |piece, x| floats::interleave(x, piece.panel.width, piece.of(floats, 1)));
            }
            if let Some(pairs) = &self.pairs {
                part.each(self.widest_pairs, |piece, x| {
                    pairs::round(Isa::current(), x, piece.cols(), piece.panel.width, piece.pairs_of(pairs));
                });
            }
            if let Some(ShortParts { pairs, scales }) = &self.shorts {
                part.each(WIDE, |piece, x| {
                    let to = (piece.of(pairs, 2), piece.of(scales, CHUNK));
                    shorts::quantise(x, piece.cols(), piece.panel.width, to);
                });
            }
            if let Some(codes) = &self.per_32 {
                part.each(self.widest, |piece, x| codes.put::<32>(piece, x));
            }
            if let Some(codes) = &self.per_256 {
                part.each(self.widest, |piece, x| codes.put::<256>(piece, x));
            }
        }
    }
}

impl Shorts {
    /// Makes room for `values` values.
    fn parts(&mut self, values: usize) -> ShortParts<'_> {
        self.pairs.resize(values / 2);
        self.scales.resize(values / CHUNK);
        ShortParts { pairs: Disjoint::new(&mut self.pairs), scales: Disjoint::new(&mut self.scales) }
    }
}

impl Quantised {
    /// Makes room for `values` values in blocks of `block_len`.
    fn parts(&mut self, values: usize, block_len: usize) -> CodeParts<'_> {
        self.codes.resize(values);
        self.scales.resize(values / block_len);
        self.sums.resize(values / CHUNK);
        self.half_sums.resize(if block_len == 256 { values / HALF } else { 0 });
        CodeParts {
            codes: Disjoint::new(&mut self.codes),
            scales: Disjoint::new(&mut self.scales),
            sums: Disjoint::new(&mut self.sums),
            half_sums: Disjoint::new(&mut self.half_sums),
        }
    }
}

impl CodeParts<'_> {
    /// # Safety
    /// No other thread uses this piece concurrently.
    unsafe fn put<const BLOCK: usize>(&self, piece: &Piece, x: &[f32]) {
        // SAFETY: as the caller promises.
        let mut panel = unsafe {
            PanelMut {
                width: piece.panel.width,
                codes: piece.of(&self.codes, 1),
                scales: piece.of(&self.scales, BLOCK),
                sums: piece.of(&self.sums, CHUNK),
                half_sums: if BLOCK == 256 { piece.of(&self.half_sums, HALF) } else { &mut [] },
            }
        };
        panel.quantise::<BLOCK>(Isa::current(), x, piece.cols());
    }
}

/// Some columns of some rows of a batch.
struct Part<'a> {
    rows: Range<usize>,
    columns: Range<usize>,
    /// Columns of the batch.
    of: usize,
    /// `[rows][columns]`
    x: &'a [f32],
}

impl Part<'_> {
    /// Calls `write` with the piece in every panel and its rows of `x`.
    fn each(&self, widest: usize, write: impl Fn(&Piece, &[f32])) {
        for panel in panels(self.rows.clone(), widest) {
            let width = self.columns.len();
            let x = &self.x[(panel.start - self.rows.start) * width..][..panel.rows * width];
            write(&Piece { panel, columns: self.columns.clone(), of: self.of }, x);
        }
    }
}

/// Some columns of a panel.
struct Piece {
    panel: Panel,
    columns: Range<usize>,
    /// Columns of the batch.
    of: usize,
}

impl Piece {
    fn cols(&self) -> usize {
        self.columns.len()
    }

    /// The piece's elements of an array with one element per `per` columns of a row.
    ///
    /// # Safety
    /// No other thread uses them concurrently.
    unsafe fn of<'a, T>(&self, array: &Disjoint<'a, T>, per: usize) -> &'a mut [T] {
        // SAFETY: as the caller promises.
        unsafe { self.range(array, |columns| columns / per) }
    }

    /// The piece's pairs.
    ///
    /// # Safety
    /// No other thread uses them concurrently.
    unsafe fn pairs_of<'a>(&self, array: &Disjoint<'a, u32>) -> &'a mut [u32] {
        // SAFETY: as the caller promises.
        unsafe { self.range(array, |columns| row_pairs(columns, self.panel.width)) }
    }

    /// The piece's elements of an array with `elements(n)` elements per `n` columns of a row.
    ///
    /// # Safety
    /// No other thread uses them concurrently.
    unsafe fn range<'a, T>(&self, array: &Disjoint<'a, T>, elements: impl Fn(usize) -> usize) -> &'a mut [T] {
        let Panel { start, width, .. } = self.panel;
        let before = start * elements(self.of) + width * elements(self.columns.start);
        // SAFETY: as the caller promises.
        unsafe { array.range(before, width * elements(self.cols())) }
    }
}

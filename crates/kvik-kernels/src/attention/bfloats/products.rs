//! Multiplication of bfloats on matrix units or in vectors.

use std::marker::PhantomData;

use super::{MATRICES, PAIRS, QUERY_ROWS};
use crate::f32x16::{BfloatLanes, LANES};
use crate::lines::Line;
use crate::x86::amx::{Config, Tiles};

/// A group of query rows and the matrices that multiply them.
pub(crate) struct Operands<'a> {
    /// `[pieces][QUERY_ROWS]`
    pub(super) rows: &'a [Line],
    /// At most [`QUERY_ROWS`].
    pub(super) query_rows: usize,
    /// `[pieces][MATRICES][PAIRS]`
    pub(super) columns: &'a [Line],
    pub(super) pieces: usize,
    /// At most [`MATRICES`].
    pub(super) count: usize,
}

/// Products of query rows and columns, in an order specified in [`bfloats`](super).
///
/// # Safety
/// Implementations must compute exactly what each method states, and access no other memory.
pub(crate) unsafe trait Products {
    /// Maximum query rows of calls that pair up their operands in registers: [`few`](super::few).
    const FEW: usize;

    /// Prepares this thread for the products.
    ///
    /// # Safety
    /// The machine supports them, and this thread does not use another such value later.
    unsafe fn begin() -> Self;

    /// Writes the products to `to`: for each query row, 16 numbers per matrix; rows are `stride` numbers apart.
    ///
    /// # Safety
    /// The operands have the stated shapes, and `to` has room.
    unsafe fn multiply(&mut self, operands: &Operands<'_>, to: *mut f32, stride: usize);
}

/// The matrix units.
pub(crate) struct Units<T>(T);

/// Registers: query rows, two for columns in turns, sums. A product occupies its sums for 52 cycles, and its
/// units for 16.
const ROWS: usize = 0;
const COLUMNS: [usize; 2] = [1, 2];
const SUMS: [usize; MATRICES] = [4, 5, 6, 7];
const CONFIG: Config = Config::new(&[[QUERY_ROWS, LINE]; 8]);
const LINE: usize = size_of::<Line>();

// SAFETY: `multiply_group` writes rows of a whole group: those of a smaller one go through a local buffer.
unsafe impl<T: Tiles> Products for Units<T> {
    const FEW: usize = 0;

    #[inline(always)]
    unsafe fn begin() -> Units<T> {
        // SAFETY: the caller's promise.
        Units(unsafe { T::configured(const { &CONFIG }) })
    }

    #[inline(always)]
    unsafe fn multiply(&mut self, operands: &Operands<'_>, to: *mut f32, stride: usize) {
        // SAFETY: as the caller promises.
        unsafe {
            if operands.query_rows == QUERY_ROWS {
                return self.multiply_group(operands, to, stride);
            }
            let mut sums = [[Line::ZERO; MATRICES]; QUERY_ROWS];
            self.multiply_group(operands, sums.as_mut_ptr().cast(), MATRICES * LANES);
            for (row, sums) in sums[..operands.query_rows].iter().enumerate() {
                let to = to.add(row * stride).cast::<u8>();
                to.copy_from_nonoverlapping(sums.as_ptr().cast(), operands.count * LINE);
            }
        }
    }
}

impl<T: Tiles> Units<T> {
    /// As [`Products::multiply`], with room for [`QUERY_ROWS`].
    #[inline(always)]
    unsafe fn multiply_group(&mut self, operands: &Operands<'_>, to: *mut f32, stride: usize) {
        let Units(units) = self;
        macro_rules! each {
            ($($n:literal $turn:literal),*) => {
                // SAFETY: as the caller promises; each row of a register is a line, and the registers are those of CONFIG.
                unsafe {
                    $(units.zero::<{ SUMS[$n] }>();)*
                    for piece in 0..operands.pieces {
                        let rows = operands.rows.as_ptr().add(piece * QUERY_ROWS);
                        let columns = operands.columns.as_ptr().add(piece * MATRICES * PAIRS);
                        units.load::<ROWS>(rows.cast(), LINE);
                        $(if $n < operands.count {
                            units.load::<{ COLUMNS[$turn] }>(columns.add($n * PAIRS).cast(), LINE);
                            units.dot_bf16::<{ SUMS[$n] }, ROWS, { COLUMNS[$turn] }>();
                        })*
                    }
                    $(if $n < operands.count {
                        let to = to.add($n * LANES).cast();
                        units.store::<{ SUMS[$n] }>(to, stride * size_of::<f32>());
                    })*
                }
            };
        }
        each!(0 0, 1 1, 2 0, 3 1);
    }
}

/// Evaluates `$body` for the number of query rows, or columns, that a block of registers takes of the `$left`
/// remaining.
macro_rules! block {
    ($left:expr, $name:ident of $($size:literal)* => $body:expr) => {
        match $left {
            $($size.. => {
                const $name: usize = $size;
                $body
            })*
            _ => 0,
        }
    };
}
pub(super) use block;

/// Vector lanes that multiply pairs.
pub(crate) struct Vectors<L>(PhantomData<L>);

// SAFETY: every query row and matrix is in one block of sums, and only these are written.
unsafe impl<L: BfloatLanes> Products for Vectors<L> {
    const FEW: usize = 8;

    #[inline(always)]
    unsafe fn begin() -> Vectors<L> {
        Vectors(PhantomData)
    }

    #[inline(always)]
    unsafe fn multiply(&mut self, operands: &Operands<'_>, to: *mut f32, stride: usize) {
        let mut row = 0;
        // SAFETY: as the caller promises.
        unsafe {
            while row < operands.query_rows {
                let to = to.add(row * stride);
                row += block!(operands.query_rows - row, R of 4 2 1 => {
                    block!(operands.count, N of 4 3 2 1 => multiply_block::<L, R, N>(operands, row, to, stride))
                });
            }
        }
    }
}

/// Multiplies `R` query rows, starting at `row`, by the first `N` matrices, and returns `R`.
///
/// # Safety
/// As [`Products::multiply`].
#[inline(always)]
unsafe fn multiply_block<L: BfloatLanes, const R: usize, const N: usize>(
    operands: &Operands<'_>,
    row: usize,
    to: *mut f32,
    stride: usize,
) -> usize {
    // SAFETY: as the caller promises; a line is 16 pairs.
    unsafe {
        let mut sums = Sums::<L, R, N>::zero();
        for piece in 0..operands.pieces {
            let rows = operands.rows.as_ptr().add(piece * QUERY_ROWS + row);
            let columns = operands.columns.as_ptr().add(piece * MATRICES * PAIRS).cast::<f32>();
            let columns = |pair| move |n| L::load(columns.add((n * PAIRS + pair) * LANES));
            sums.add(rows.cast(), PAIRS, columns);
        }
        sums.store(to, stride);
    }
    R
}

/// Sums of `R` query rows and `N` columns of 16 lanes, which stay in registers.
pub(super) struct Sums<L, const R: usize, const N: usize>([[L; N]; R]);

impl<L: BfloatLanes, const R: usize, const N: usize> Sums<L, R, N> {
    /// # Safety
    /// The machine has these lanes.
    #[inline(always)]
    pub(super) unsafe fn zero() -> Self {
        // SAFETY: the caller's promise.
        Sums(unsafe { [[L::splat(0.0); N]; R] })
    }

    /// Adds the products of `pairs` pairs of each query row, whose bits start at `rows`, a line for each row,
    /// with those that `columns` returns for a pair and a column.
    ///
    /// # Safety
    /// The pairs are readable there, and the machine multiplies bfloats.
    #[inline(always)]
    pub(super) unsafe fn add<C: Fn(usize) -> L>(
        &mut self,
        rows: *const f32,
        pairs: usize,
        columns: impl Fn(usize) -> C,
    ) {
        for pair in 0..pairs {
            // SAFETY: the caller's promise.
            let numbers: [L; R] = unsafe {
                std::array::from_fn(
                    #[inline(always)]
                    |r| L::splat(*rows.add(r * PAIRS + pair)),
                )
            };
            let columns = columns(pair);
            for n in 0..N {
                let column = columns(n);
                for (sums, numbers) in self.0.iter_mut().zip(numbers) {
                    // SAFETY: the caller's promise.
                    sums[n] = unsafe { sums[n].dot_bf16(column, numbers) };
                }
            }
        }
    }

    /// Restores the order of lanes in lines that were paired up eight by eight.
    #[inline(always)]
    pub(super) fn order_lines(&mut self) {
        for line in self.0.iter_mut().flat_map(|sums| sums.as_chunks_mut::<2>().0) {
            *line = L::in_order(line[0], line[1]);
        }
    }

    /// Makes negative zeros positive.
    #[inline(always)]
    pub(super) fn plus_zero(self) -> Self {
        // SAFETY: a value exists, so the machine has these lanes.
        let zero = unsafe { L::splat(0.0) };
        Sums(self.0.map(
            #[inline(always)]
            |sums| sums.map(|sum| sum.add(zero)),
        ))
    }

    /// Writes 16 numbers for each column; rows are `stride` numbers apart.
    ///
    /// # Safety
    /// `to` has room.
    #[inline(always)]
    pub(super) unsafe fn store(self, to: *mut f32, stride: usize) {
        for (r, sums) in self.0.into_iter().enumerate() {
            for (n, sum) in sums.into_iter().enumerate() {
                // SAFETY: the caller's promise.
                unsafe { sum.store(to.add(r * stride + n * LANES)) };
            }
        }
    }
}

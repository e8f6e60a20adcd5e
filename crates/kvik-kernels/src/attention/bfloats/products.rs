//! What multiplies bfloats: matrix units, or vectors.

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

/// Products of query rows and columns, in an order that [`bfloats`](super) states.
///
/// # Safety
/// Implementations must compute exactly what the method says, and touch no other memory.
pub(crate) unsafe trait Products {
    /// Calls of at most so many query rows pair up what they read in registers: [`few`](super::few).
    const FEW: usize;

    /// Makes this thread ready for them.
    ///
    /// # Safety
    /// The machine has them, and this thread has no other such value that it goes on to use.
    unsafe fn begin() -> Self;

    /// Writes the products to `to`: a row of 16 numbers for each matrix for each query row, `stride` numbers apart.
    ///
    /// # Safety
    /// The operands are whole, and `to` has room.
    unsafe fn multiply(&mut self, operands: &Operands<'_>, to: *mut f32, stride: usize);
}

/// The matrix units.
pub(crate) struct Units<T>(T);

/// Their registers: query rows, two of columns in turns, sums. A product takes its sums 52 cycles, and its units 16.
const ROWS: usize = 0;
const COLUMNS: [usize; 2] = [1, 2];
const SUMS: [usize; MATRICES] = [4, 5, 6, 7];
const CONFIG: Config = Config::new(&[[QUERY_ROWS, LINE]; 8]);
const LINE: usize = size_of::<Line>();

// SAFETY: `multiply_group` writes rows of a whole group: those of a smaller one go through memory of their own.
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

/// Evaluates `$body` for as many query rows, or columns, as a block of registers takes of `$left` ones that are left.
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

/// Lanes that multiply pairs.
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

/// Multiplies `R` query rows, the first of them `row`, with the first `N` matrices, and returns `R`.
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

    /// Adds the products of `pairs` pairs of each query row, whose bits stand from `rows` on, a line for each row, with
    /// those that `columns` says of a pair and a column.
    ///
    /// # Safety
    /// They stand there, and the machine multiplies bfloats.
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

    /// Puts the lanes of lines, which were paired up eight by eight, in order.
    #[inline(always)]
    pub(super) fn order_lines(&mut self) {
        for line in self.0.iter_mut().flat_map(|sums| sums.as_chunks_mut::<2>().0) {
            *line = L::in_order(line[0], line[1]);
        }
    }

    /// Makes a zero positive.
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
    /// There is room.
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

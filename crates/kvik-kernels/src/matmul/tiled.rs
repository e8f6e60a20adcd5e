//! Products on matrix units: the families of kernels, and their buffers.
//!
//! For quantised types, a task unpacks two tiles to signed bytes and multiplies them by all its panels. From some
//! number of rows on, inputs are in panels for the units; fewer rows use the vector kernels. Both give the same
//! bits, so the choice is a matter of speed alone. Bfloats, whose tiles have the layout of the units, are
//! multiplied by the units only.

mod blocks;
mod folded;
mod pieces;
#[cfg(test)]
mod tests;
mod unpack;

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::Job;
use super::family::{Avx512, CodedFamily, Family, groups, next_group};
use super::formats::Coded;
use super::inner_loop::InnerLoop;
use super::kernel::{TILES, Target};
use crate::activations::{Activations, TALL};
use crate::lanes::Lanes;
use crate::lines::Line;
use crate::matrix::{CHUNK, TILE_ROWS, VECTOR};
use crate::quant::Scales;
use crate::x86::amx::{Config, Tiles};

/// The registers: two for inputs, two for weights, four for sums.
const X: [usize; 2] = [0, 1];
const W: [usize; 2] = [2, 3];
const SUMS: [usize; 4] = [4, 5, 6, 7];

/// Sums of a panel for one tile of weights, in the layout of a register.
type Dots = [[i32; TILE_ROWS]; TALL];

/// Buffer for sums that pass from the units to vectors, in whole cache lines.
#[repr(align(64))]
struct Room([MaybeUninit<Dots>; Room::LEN]);

impl Room {
    /// Two entries per register of sums.
    const LEN: usize = 2 * SUMS.len();

    #[inline(always)]
    fn new() -> Room {
        Room([const { MaybeUninit::uninit() }; Room::LEN])
    }

    #[inline(always)]
    fn start(&mut self) -> *mut Dots {
        self.0.as_mut_ptr().cast()
    }
}

/// The shapes of the registers for products of `cols` columns.
const fn config(cols: usize) -> Config {
    let (x, w, sums) = ([TALL, cols], [cols / 4, VECTOR], [TALL, VECTOR]);
    Config::new(&[x, x, w, w, sums, sums, sums, sums])
}

/// Columns per product on the units for weights of type `F`.
const fn product_cols<F: Coded>() -> usize {
    if folds::<F>() { 64 } else { CHUNK }
}

/// Whether the integer scales of `F` are multiplied into its quantised values.
const fn folds<F: Coded>() -> bool {
    !matches!(F::CODES.scales, Scales::None)
}

thread_local! {
    /// Buffer for unpacked weights, and for sums of all panels of a task.
    static WORK: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
}

/// The work of a task: tiles of a product, two at a time, for some rows.
struct Task<'a> {
    job: &'a Job<'a>,
    span: Range<usize>,
    after: *const u8,
    x: &'a Activations,
    rows: Range<usize>,
}

impl Task<'_> {
    /// # Safety
    /// As [`Kernel`](super::family::Kernel): the features of `L` are enabled and the machine has the units.
    #[inline(always)]
    unsafe fn run_codes<L: Lanes, T: Tiles, F: Coded>(&self, lanes: L) {
        let mut work = WORK.take();
        // SAFETY: the units exist; the buffer is resized before it is used; the rest is the caller's promise.
        unsafe {
            let mut units = T::configured(const { &config(product_cols::<F>()) });
            for tiles in groups(self.span.clone()) {
                let panels = self.targets(tiles);
                match folds::<F>() {
                    true => folded::compute::<L, T, F>(lanes, &mut units, panels, &mut work),
                    false => blocks::compute::<L, T, F>(lanes, &mut units, panels, &mut work),
                }
            }
        }
        WORK.set(work);
    }

    /// # Safety
    /// As [`Kernel`](super::family::Kernel): the machine has the units, and the weights are bfloats.
    unsafe fn run_bf16<T: Tiles>(&self) {
        let mut work = WORK.take();
        // SAFETY: as above.
        unsafe {
            let mut units = T::configured(const { &config(VECTOR) });
            for tiles in groups(self.span.clone()) {
                pieces::compute(&mut units, self.targets(tiles), &mut work);
            }
        }
        WORK.set(work);
    }

    /// The targets of two tiles, one for each panel.
    #[inline(always)]
    fn targets(&self, tiles: [usize; TILES]) -> impl Iterator<Item = Target<'_>> + Clone {
        let weights = self.job.weights;
        let next = next_group(weights, tiles[0] + TILES, self.span.end, self.after);
        self.x.panels(weights.weight_type(), self.rows.clone()).map(move |panel| Target {
            weights,
            tiles,
            starts: tiles.map(|tile| weights.tile(tile).as_ptr()),
            x: self.x,
            panel,
            first: 0,
            next: Some(next),
            out: self.job.out,
        })
    }
}

/// Declares a family of kernels on some matrix units, together with vectors of some lanes; `$few` computes inputs
/// that are not in panels for the units.
macro_rules! tiled_family {
    ($name:ident, $tiles:ty, $lanes:ty, $few:ty, $features:literal) => {
        pub(super) struct $name;

        impl $name {
            /// The kernel of bfloats.
            ///
            /// # Safety
            /// As [`Kernel`](super::family::Kernel).
            pub(super) unsafe fn run_bf16(
                job: &Job,
                span: Range<usize>,
                after: *const u8,
                x: &Activations,
                rows: Range<usize>,
            ) {
                // SAFETY: as the caller promises.
                unsafe { Task { job, span, after, x, rows }.run_bf16::<$tiles>() }
            }
        }

        impl CodedFamily for $name {
            unsafe fn run_codes<F: Coded + InnerLoop>(
                job: &Job,
                span: Range<usize>,
                after: *const u8,
                x: &Activations,
                rows: Range<usize>,
            ) {
                // SAFETY: as the caller promises.
                unsafe {
                    match x.tall() {
                        false => <$few>::run::<F>(job, span, after, x, rows),
                        true => run::<F>(&Task { job, span, after, x, rows }),
                    }
                }

                /// # Safety
                /// As [`Kernel`](super::family::Kernel).
                #[target_feature(enable = $features)]
                unsafe fn run<F: Coded>(task: &Task) {
                    // SAFETY: the features are those of this function; the rest is the caller's promise.
                    unsafe { task.run_codes::<_, $tiles, F>(<$lanes>::new()) }
                }
            }
        }
    };
}

#[cfg(test)]
use tiled_family;

tiled_family!(
    TiledAmx,
    crate::x86::amx::Amx,
    crate::x86::avx512::Avx512<false>,
    Avx512,
    "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni"
);

//! Products on matrix units: the families of kernels, and the room they work in.
//!
//! Of codes, a task unpacks two tiles as signed bytes and multiplies them with all its panels. Inputs stand in
//! panels for the units from some number of rows on; fewer take the vector kernels. Both give the same bits, so
//! which rows take which is a matter of speed alone. Bfloats, which lie in tiles as the units take them, are
//! multiplied by nothing else.

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

/// The registers: two of inputs, two of weights, four of sums.
const X: [usize; 2] = [0, 1];
const W: [usize; 2] = [2, 3];
const SUMS: [usize; 4] = [4, 5, 6, 7];

/// Sums of a panel for one tile of weights, as a register holds them.
type Dots = [[i32; TILE_ROWS]; TALL];

/// Room for sums that go from the units to the vectors, in whole lines of cache.
#[repr(align(64))]
struct Room([MaybeUninit<Dots>; Room::LEN]);

impl Room {
    /// Two for each register of sums.
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

/// Columns of one product on the units for weights of type `F`.
const fn product_cols<F: Coded>() -> usize {
    if folds::<F>() { 64 } else { CHUNK }
}

/// Whether the integer scales of `F` are multiplied into its codes.
const fn folds<F: Coded>() -> bool {
    !matches!(F::CODES.scales, Scales::None)
}

thread_local! {
    /// Room for weights unpacked, and for sums of all panels of a task.
    static WORK: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
}

/// What a task computes: tiles of a product, two at a time, for some rows.
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
        // SAFETY: the units are there; the room is made before it is used; the rest is the caller's promise.
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

/// Declares a family of kernels on some matrix units, beside vectors of some lanes; `$few` computes what does not
/// stand in panels for them.
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

//! Products of codes on matrix units: the families of kernels, and the room they unpack weights into.
//!
//! A task unpacks two tiles of weights as signed bytes and multiplies them with all its full panels; other rows,
//! and tasks of few rows, take the vector kernels. Both give the same bits, so which rows take which is a matter
//! of speed alone.

mod kernel;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::ops::Range;

use super::Job;
use super::family::{Avx512, CodedFamily, Family, groups, next_group};
use super::formats::Coded;
use super::kernel::{TILES, Target};
use crate::activations::{Activations, WIDE, panels};
use crate::matrix::{TILE_ROWS, VECTOR};
use crate::x86::amx::{Line, Tiles};

/// Rows from which matrix units are used: two panels.
///
/// By count of instructions on Sapphire Rapids, for 32 columns of a tile of weights: a panel of 8 rows takes 44
/// cycles of two vector units for 88 instructions, and 13 with matrix units, which wait for the loads of what they
/// wrote; unpacking takes about 16. One panel would already gain 15 of 44, but its weights come from memory, which
/// both wait for. Not measured.
const TILED_ROWS: usize = 2 * WIDE;

thread_local! {
    /// Room for tiles of codes unpacked.
    static UNPACKED: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
}

/// Declares a family of kernels on some matrix units, beside vectors of some lanes; `$few` computes what is not a
/// full panel.
macro_rules! tiled_family {
    ($name:ident, $tiles:ty, $lanes:ty, $few:ty, $features:literal) => {
        pub(super) struct $name;

        impl CodedFamily for $name {
            unsafe fn run_codes<F: Coded>(
                job: &Job,
                span: Range<usize>,
                after: *const u8,
                x: &Activations,
                rows: Range<usize>,
            ) {
                // SAFETY: as the caller promises.
                unsafe {
                    match rows.len() < TILED_ROWS {
                        true => <$few>::run::<F>(job, span, after, x, rows),
                        false => run::<F>(job, span, after, x, rows),
                    }
                }

                /// # Safety
                /// As [`Kernel`](super::family::Kernel).
                #[target_feature(enable = $features)]
                unsafe fn run<F: Coded>(
                    job: &Job,
                    span: Range<usize>,
                    after: *const u8,
                    x: &Activations,
                    rows: Range<usize>,
                ) {
                    let (weights, out) = (job.weights, job.out);
                    let (full, rest) = split(rows);
                    let mut unpacked = UNPACKED.take();
                    unpacked.resize(TILES * weights.cols() * TILE_ROWS / VECTOR, Line::ZERO);
                    // SAFETY: the features are those of this function, and the machine has the units; the room is
                    // that of the tiles; the rest is the caller's promise.
                    unsafe {
                        let lanes = <$lanes>::new();
                        let mut units = <$tiles>::configured(const { &kernel::config(F::CODES.sub_len) });
                        for tiles in groups(span.clone()) {
                            let starts = tiles.map(|tile| weights.tile(tile).as_ptr());
                            let next = next_group(weights, tiles[0] + TILES, span.end, after);
                            let codes = kernel::unpack::<_, F>(
                                lanes,
                                weights,
                                starts,
                                next,
                                unpacked.as_mut_ptr().cast(),
                            );
                            for panel in panels(full.clone()) {
                                let target =
                                    Target { weights, tiles, starts, x, panel, first: 0, next: None, out };
                                kernel::panel::<_, _, F>(lanes, &mut units, &target, codes);
                            }
                            if !rest.is_empty() {
                                let group = tiles[0]..tiles[TILES - 1] + 1;
                                <$few>::run::<F>(job, group, next[0], x, rest.clone());
                            }
                        }
                    }
                    UNPACKED.set(unpacked);
                }
            }
        }
    };
}

#[cfg(test)]
use tiled_family;

/// The rows of full panels, and the others.
fn split(rows: Range<usize>) -> (Range<usize>, Range<usize>) {
    let full = rows.start + rows.len() / WIDE * WIDE;
    (rows.start..full, full..rows.end)
}

tiled_family!(
    TiledAmx,
    crate::x86::amx::Amx,
    crate::x86::avx512::Avx512<false>,
    Avx512,
    "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni"
);

//! The kernels of each instruction set: a family is compiled with its features, for several numbers of rows
//! at a time.

use std::cell::Cell;
use std::ops::Range;

use super::Job;
use super::formats::Coded;
use super::inner_loop::InnerLoop;
use super::kernel::{TILES, Target, unpack_tiles, unpacked_bytes};
use crate::activations::Activations;
use crate::lines::Lines;
use crate::matrix::Matrix;

/// Computes tiles (first range) of a job for rows (second range) of the inputs; its thread will probably continue
/// with tiles that begin at the pointer.
///
/// # Safety
/// The machine has the instructions, the weights are of the type that the kernel was selected for, the inputs
/// have its layout, and no other thread writes these outputs.
pub(super) type Kernel = unsafe fn(&Job, Range<usize>, *const u8, &Activations, Range<usize>);

thread_local! {
    /// Buffer for unpacked tiles.
    static UNPACKED: Cell<Lines<f32>> = Cell::default();
}

/// The kernels of one instruction set.
pub(super) trait Family {
    /// Computes tiles `span` of `job` for the inputs `rows`.
    ///
    /// # Safety
    /// As [`Kernel`].
    unsafe fn run<F: InnerLoop>(
        job: &Job,
        span: Range<usize>,
        after: *const u8,
        x: &Activations,
        rows: Range<usize>,
    );
}

/// The kernels of one instruction set for quantised types.
pub(super) trait CodedFamily {
    /// As [`Family::run`].
    ///
    /// # Safety
    /// As [`Kernel`].
    unsafe fn run_codes<F: Coded + InnerLoop>(
        job: &Job,
        span: Range<usize>,
        after: *const u8,
        x: &Activations,
        rows: Range<usize>,
    );
}

impl<K: Family> CodedFamily for K {
    unsafe fn run_codes<F: Coded + InnerLoop>(
        job: &Job,
        span: Range<usize>,
        after: *const u8,
        x: &Activations,
        rows: Range<usize>,
    ) {
        // SAFETY: as the caller promises.
        unsafe { K::run::<F>(job, span, after, x, rows) }
    }
}

/// The number of rows to compute next, of `left`: the smallest of `numbers` (powers of two, largest first) that is
/// enough, or the largest. A panel has room for the next power of two of its rows, so the surplus rows exist.
///
/// If multiplication is no faster than memory, two surplus rows cost more than a second pass over weights that
/// are in cache by then: five rows are computed as four and one.
const fn at_a_time(numbers: &[usize], left: usize, arrive_late: bool) -> usize {
    let mut at = 0;
    while at + 1 < numbers.len() && numbers[at + 1] >= left {
        at += 1;
    }
    let wasteful = !arrive_late && numbers[at] > left + 1;
    numbers[if wasteful { at + 1 } else { at }]
}

/// Compiles a family for one instruction set, for the given numbers of input rows at a time: powers of
/// two, largest first, down to one.
macro_rules! family {
    ($name:ident, $lanes:ty, $features:literal, $($rows:literal)*) => {
        pub(super) struct $name;

        impl Family for $name {
            unsafe fn run<F: InnerLoop>(
                job: &Job,
                span: Range<usize>,
                after: *const u8,
                x: &Activations,
                rows: Range<usize>,
            ) {
                let (weights, out) = (job.weights, job.out);
                let unpack = F::UNPACK_ROWS.is_some_and(|least| rows.len() >= least);
                let mut unpacked = UNPACKED.take();
                for tiles in groups(span.clone()) {
                    let mut starts = tiles.map(|tile| weights.tile(tile).as_ptr());
                    let next = next_group(weights, tiles[0] + TILES, span.end, after);
                    if unpack {
                        // SAFETY: the features are those of this family; these are tiles of the weights.
                        starts = unsafe { Self::unpack::<F>(weights, starts, &mut unpacked) };
                    }
                    for panel in x.panels(F::TYPE, rows.clone()) {
                        let next = (panel.start == rows.start).then_some(next);
                        let target = Target { weights, tiles, starts, x, panel, first: 0, next, out };
                        // SAFETY: as the caller promises.
                        unsafe {
                            match unpack {
                                true => Self::run_panel::<F::Unpacked>(target),
                                false => Self::run_panel::<F>(target),
                            }
                        }
                    }
                }
                UNPACKED.set(unpacked);
            }
        }

        impl $name {
            /// Computes the rows of a panel.
            ///
            /// # Safety
            /// As [`Kernel`].
            unsafe fn run_panel<F: InnerLoop>(mut target: Target) {
                while target.first < target.panel.rows {
                    let left = target.panel.rows - target.first;
                    // SAFETY: as the caller promises; the panel has room for this many rows, see `at_a_time`.
                    target.first += unsafe {
                        match at_a_time(&[$($rows),*], left, F::ARRIVE_LATE) {
                            $($rows => Self::run_rows::<F, $rows>(&target),)*
                            _ => unreachable!("one of these"),
                        }
                    };
                }
            }

            /// Unpacks tiles into `to`.
            ///
            /// # Safety
            /// The machine has the features, and `tiles` are some of the weights, of type `F`.
            #[target_feature(enable = $features)]
            unsafe fn unpack<F: InnerLoop>(
                weights: &Matrix,
                tiles: [*const u8; TILES],
                to: &mut Lines<f32>,
            ) -> [*const u8; TILES] {
                to.resize(TILES * unpacked_bytes(weights) / size_of::<f32>());
                // SAFETY: the features are those of this function, and `to` has room for all tiles.
                unsafe { unpack_tiles::<_, F>(<$lanes>::new(), weights, tiles, to.as_mut_ptr()) }
            }

            /// Computes `R` rows and returns `R`.
            ///
            /// # Safety
            /// As [`Kernel`], and the panel has room for `R` more rows.
            #[target_feature(enable = $features)]
            unsafe fn run_rows<F: InnerLoop, const R: usize>(target: &Target) -> usize {
                // SAFETY: the features are those of this function; the rest is the caller's promise.
                unsafe { F::rows::<_, R>(<$lanes>::new(), target) };
                R
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
family!(Avx2, crate::x86::avx2::Avx2<false>, "avx2,fma,f16c", 4 2 1);
#[cfg(target_arch = "x86_64")]
family!(AvxVnni, crate::x86::avx2::Avx2<true>, "avx2,fma,f16c,avxvnni", 4 2 1);
#[cfg(target_arch = "x86_64")]
family!(Avx512, crate::x86::avx512::Avx512<false>, "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni", 8 4 2 1);
#[cfg(target_arch = "x86_64")]
family!(Avx512Bf16, crate::x86::avx512::Avx512<true>, "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16", 8 4 2 1);
#[cfg(target_arch = "aarch64")]
family!(Neon, crate::arm::neon::Neon<false, false>, "neon", 2 1);
#[cfg(target_arch = "aarch64")]
family!(NeonDot, crate::arm::neon::Neon<true, false>, "neon,dotprod", 2 1);
#[cfg(target_arch = "aarch64")]
family!(NeonI8mm, crate::arm::neon::Neon<true, true>, "neon,dotprod,i8mm", 2 1);

/// The tiles of `span`, `TILES` at a time. The last group may repeat its last tile.
pub(super) fn groups(span: Range<usize>) -> impl Iterator<Item = [usize; TILES]> {
    let last = span.end - 1;
    span.step_by(TILES).map(move |first| std::array::from_fn(|t| (first + t).min(last)))
}

/// Start of the tiles from `first` on, or `after` if that is past `end`.
pub(super) fn next_group(weights: &Matrix, first: usize, end: usize, after: *const u8) -> [*const u8; TILES] {
    let start = if first < end { weights.tile(first).as_ptr() } else { after };
    std::array::from_fn(|t| start.wrapping_add(t * weights.layout().bytes))
}

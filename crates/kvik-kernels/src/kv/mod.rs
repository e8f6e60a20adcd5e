//! Stored keys and values: formats, the layout of a block, the arena of blocks, and the view of a sequence.

use std::mem::MaybeUninit;

mod arena;
mod compact;
pub(crate) mod few_bits;
mod format;
mod layout;
pub(crate) mod quantised;
pub(crate) mod read;
pub(crate) mod rotate;
pub(crate) mod scale;
pub(crate) mod sequence;
pub(crate) mod tile;
pub(crate) mod tiles;
pub(crate) mod write;

pub use arena::KvArena;
pub use format::{KvFormat, KvFormats, UnknownKvFormat, in_runs};
pub use layout::{KV_LAYOUT_VERSION, KvKind, KvLayer, KvLayout, KvValues};
pub use read::StoredVectors;
pub use sequence::{HeadTail, SeqKv, SeqRow};

/// Positions in a block.
pub const BLOCK_POSITIONS: usize = 16;

/// The longest head vector that a layout allows.
pub(crate) const HEAD_DIM_MAX: usize = 576;

/// Buffer for a head vector. Only the copied elements are initialised, for most vectors are much shorter than
/// the longest.
pub(crate) struct HeadRoom([MaybeUninit<f32>; HEAD_DIM_MAX]);

impl HeadRoom {
    #[inline(always)]
    pub(crate) fn new() -> HeadRoom {
        HeadRoom([const { MaybeUninit::uninit() }; HEAD_DIM_MAX])
    }

    /// Returns a copy of `x`, which is at most as long as the longest head vector.
    #[inline(always)]
    pub(crate) fn copy(&mut self, x: &[f32]) -> &mut [f32] {
        self.0[..x.len()].write_copy_of_slice(x)
    }
}

/// The maximum magnitude of `x`, or NaN if any element is NaN.
#[inline(always)]
pub(crate) fn max_magnitude(x: &[f32]) -> f32 {
    // Without their sign, floats are ordered like their bits, and integers have a fast maximum.
    let magnitudes = x.iter().map(|x| x.to_bits() & !(1 << 31));
    f32::from_bits(magnitudes.fold(0, |max, bits| if bits > max { bits } else { max }))
}

/// The factor that scales numbers of up to `max` in magnitude to numbers of up to `to`.
///
/// The factor is 0 if `max` is NaN, infinite, or zero or nearly so (below `to / f32::MAX`, where numbers then count
/// as zero).
#[inline(always)]
pub(crate) fn factor_to(to: f32, max: f32) -> f32 {
    let factor = to / max;
    if factor.is_finite() { factor } else { 0.0 }
}

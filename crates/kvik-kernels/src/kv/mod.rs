//! Stored keys and values: formats, what layers store in a block, the arena of blocks, and what a sequence
//! stores where.

use std::mem::MaybeUninit;

mod arena;
mod compact;
mod format;
mod layout;
pub(crate) mod quantised;
pub(crate) mod read;
pub(crate) mod rotate;
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

/// Room for a head vector. What is not copied is not filled either, for most are much shorter than the longest.
pub(crate) struct HeadRoom([MaybeUninit<f32>; HEAD_DIM_MAX]);

impl HeadRoom {
    #[inline(always)]
    pub(crate) fn new() -> HeadRoom {
        HeadRoom([const { MaybeUninit::uninit() }; HEAD_DIM_MAX])
    }

    /// A copy of `x`, which is at most as long as the longest head vector.
    #[inline(always)]
    pub(crate) fn copy(&mut self, x: &[f32]) -> &mut [f32] {
        self.0[..x.len()].write_copy_of_slice(x)
    }
}

/// The maximum magnitude of `x`, which is NaN if one is.
#[inline(always)]
pub(crate) fn max_magnitude(x: &[f32]) -> f32 {
    // Without their sign, floats are in the order of their bits, and integers have a fast maximum.
    let magnitudes = x.iter().map(|x| x.to_bits() & !(1 << 31));
    f32::from_bits(magnitudes.fold(0, |max, bits| if bits > max { bits } else { max }))
}

/// The factor that takes numbers of up to `max` in magnitude to numbers of up to `to`.
///
/// It is 0 where no finite factor does: `max` is 0 or nearly so (below `to / f32::MAX`, where numbers
/// then count as nothing), infinite, or not a number.
#[inline(always)]
pub(crate) fn factor_to(to: f32, max: f32) -> f32 {
    let factor = to / max;
    if factor.is_finite() { factor } else { 0.0 }
}

//! Storing of the keys and values of one position and head.

use super::rotate::rotate;
use super::tile::Tile;
use super::{HeadRoom, KvLayer};
use crate::Isa;

/// The destination and the data of a position of a head.
pub(crate) struct Position<'a> {
    pub key_tile: *mut u8,
    pub value_tile: *mut u8,
    /// Length of a row of the V tile.
    pub value_lanes: usize,
    /// The position's index in its block.
    pub offset: usize,
    pub k: &'a [f32],
    /// Empty if keys hold the values.
    pub v: &'a [f32],
}

/// The writers of one instruction set, which the machine must have, for two formats.
#[derive(Clone, Copy)]
pub(crate) struct Writers {
    /// [`Position::write`], or [`Position::write_key`] if keys hold the values
    pub position: unsafe fn(&Position<'_>),
    /// [`write_key`]
    pub key: unsafe fn(tile: *mut u8, offset: usize, key: &[f32]),
}

impl Position<'_> {
    /// # Safety
    /// The tiles are writable tiles of the formats `K` and `V`, `offset < 16`, and `k` and `v` have the
    /// lengths of the tiles.
    #[inline(always)]
    pub(crate) unsafe fn write<K: Tile, V: Tile>(&self) {
        let [mut k_rotated, mut v_rotated] = [HeadRoom::new(), HeadRoom::new()];
        let k = if K::QUANTISED { rotated(self.k, &mut k_rotated) } else { self.k };
        let v = if V::QUANTISED { rotated(self.v, &mut v_rotated) } else { self.v };
        // SAFETY: the caller's promise.
        unsafe {
            K::write_key(self.key_tile, self.offset, k);
            V::write_value(self.value_tile, self.value_lanes, self.offset, v);
        }
    }

    /// Stores the key, which holds the value.
    ///
    /// # Safety
    /// As [`Position::write`], but for the V tile.
    #[inline(always)]
    pub(crate) unsafe fn write_key<K: Tile>(&self) {
        // SAFETY: the caller's promise.
        unsafe { write_key::<K>(self.key_tile, self.offset, self.k) };
    }
}

/// Stores a key alone.
///
/// # Safety
/// `tile` is a writable K tile of the format `K` for keys of this length, and `offset < 16`.
#[inline(always)]
pub(crate) unsafe fn write_key<K: Tile>(tile: *mut u8, offset: usize, key: &[f32]) {
    let mut room = HeadRoom::new();
    let key = if K::QUANTISED { rotated(key, &mut room) } else { key };
    // SAFETY: the caller's promise.
    unsafe { K::write_key(tile, offset, key) };
}

/// Copies `x` to `room` and rotates it.
#[inline(always)]
fn rotated<'a>(x: &[f32], room: &'a mut HeadRoom) -> &'a [f32] {
    let rotated = room.copy(x);
    rotate(rotated);
    rotated
}

/// Declares `writers(layer)`, compiled with the target features of one instruction set.
macro_rules! declare_writers {
    ($($features:literal)?) => {
        /// The writers for one position of one head of a layer.
        pub(super) fn writers(layer: &$crate::kv::KvLayer) -> $crate::kv::write::Writers {
            use $crate::kv::KvValues;
            use $crate::kv::tile::Tile;
            use $crate::kv::tiles::with_tile;
            use $crate::kv::write::{Position, Writers, write_key};

            $(#[target_feature(enable = $features)])?
            unsafe fn position<K: Tile, V: Tile>(to: &Position<'_>) {
                // SAFETY: the contract of `Position::write`.
                unsafe { to.write::<K, V>() }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn position_of_key<K: Tile>(to: &Position<'_>) {
                // SAFETY: the contract of `Position::write_key`.
                unsafe { to.write_key::<K>() }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn key<K: Tile>(tile: *mut u8, offset: usize, key: &[f32]) {
                // SAFETY: the contract of `write_key`.
                unsafe { write_key::<K>(tile, offset, key) }
            }
            let (k, v) = (layer.k, layer.v);
            let position = match layer.values {
                KvValues::Stored => with_tile!(k, K => with_tile!(v, V => position::<K, V>)),
                KvValues::OfKeys => with_tile!(k, K => position_of_key::<K>),
            };
            Writers { position, key: with_tile!(k, K => key::<K>) }
        }
    };
}

#[cfg(any(test, not(target_arch = "aarch64")))]
mod scalar {
    super::declare_writers!();
}
/// Every aarch64 machine has NEON.
#[cfg(all(not(test), target_arch = "aarch64"))]
use neon as scalar;

#[cfg(target_arch = "x86_64")]
mod avx2 {
    super::declare_writers!("avx2,fma,f16c");
}

#[cfg(target_arch = "x86_64")]
mod avxvnni {
    super::declare_writers!("avx2,fma,f16c,avxvnni");
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    super::declare_writers!("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c");
}

#[cfg(target_arch = "aarch64")]
mod neon {
    super::declare_writers!("neon");
}
use declare_writers;

/// The writers of `isa` for the formats of `layer`.
pub(crate) fn writers(isa: Isa, layer: &KvLayer) -> Writers {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => avx512::writers(layer),
        #[cfg(target_arch = "x86_64")]
        Isa::AvxVnni => avxvnni::writers(layer),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => avx2::writers(layer),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon | Isa::NeonDot | Isa::NeonI8mm => neon::writers(layer),
        _ => scalar::writers(layer),
    }
}

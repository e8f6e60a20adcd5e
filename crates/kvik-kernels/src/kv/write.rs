//! Storing of the keys and values of one position and head.

use super::rotate::rotate;
use super::tile::Tile;
use super::{HeadRoom, KvLayer};
use crate::Isa;

/// The writers of one instruction set, which the machine must have, for the formats of a layer.
///
/// Keys and values have a function each: one for both would be compiled for every pair of formats.
#[derive(Clone, Copy)]
pub(crate) struct Writers {
    /// [`write_key`]
    pub key: unsafe fn(tile: *mut u8, offset: usize, key: &[f32]),
    /// [`write_value`], or nothing if keys hold the values
    pub value: unsafe fn(tile: *mut u8, lanes: usize, offset: usize, value: &[f32]),
}

/// Stores the key of a position.
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

/// Stores the value of a position.
///
/// # Safety
/// `tile` is a writable V tile of the format `V` with rows of `lanes` for values of this length, and `offset < 16`.
#[inline(always)]
pub(crate) unsafe fn write_value<V: Tile>(tile: *mut u8, lanes: usize, offset: usize, value: &[f32]) {
    let mut room = HeadRoom::new();
    let value = if V::QUANTISED { rotated(value, &mut room) } else { value };
    // SAFETY: the caller's promise.
    unsafe { V::write_value(tile, lanes, offset, value) };
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
            use $crate::kv::write::{Writers, write_key, write_value};

            $(#[target_feature(enable = $features)])?
            unsafe fn key<K: Tile>(tile: *mut u8, offset: usize, key: &[f32]) {
                // SAFETY: the contract of `write_key`.
                unsafe { write_key::<K>(tile, offset, key) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn value<V: Tile>(tile: *mut u8, lanes: usize, offset: usize, value: &[f32]) {
                // SAFETY: the contract of `write_value`.
                unsafe { write_value::<V>(tile, lanes, offset, value) }
            }
            unsafe fn no_value(_tile: *mut u8, _lanes: usize, _offset: usize, _value: &[f32]) {}

            let value = match layer.values {
                KvValues::Stored => with_tile!(layer.v, V => value::<V>),
                KvValues::OfKeys => no_value,
            };
            Writers { key: with_tile!(layer.k, K => key::<K>), value }
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
        Isa::Avx2 | Isa::AvxVnni => avx2::writers(layer),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon | Isa::NeonDot | Isa::NeonI8mm => neon::writers(layer),
        _ => scalar::writers(layer),
    }
}

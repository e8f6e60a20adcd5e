//! Storing the keys and values of one position and head.

use super::rotate::rotate;
use super::tile::Tile;
use super::{HEAD_DIM_MAX, KvLayer};
use crate::Isa;

/// Where a position of a head is stored, and what.
pub(crate) struct Position<'a> {
    pub key_tile: *mut u8,
    pub value_tile: *mut u8,
    /// Length of a row of the V tile.
    pub value_lanes: usize,
    /// In its block.
    pub offset: usize,
    pub k: &'a [f32],
    pub v: &'a [f32],
}

/// [`Position::write`] for two formats, compiled for one instruction set, which the machine must have.
pub(crate) type WritePosition = unsafe fn(&Position<'_>);

impl Position<'_> {
    /// # Safety
    /// The tiles are writable tiles of the formats `K` and `V`, `offset < 16`, and `k` and `v` have the
    /// lengths of the tiles.
    #[inline(always)]
    pub(crate) unsafe fn write<K: Tile, V: Tile>(&self) {
        let mut buffers = [[0.0; HEAD_DIM_MAX]; 2];
        let [k_rotated, v_rotated] = &mut buffers;
        let k = if K::QUANTISED { rotated(self.k, k_rotated) } else { self.k };
        let v = if V::QUANTISED { rotated(self.v, v_rotated) } else { self.v };
        // SAFETY: the caller's promise.
        unsafe {
            K::write_key(self.key_tile, self.offset, k);
            V::write_value(self.value_tile, self.value_lanes, self.offset, v);
        }
    }
}

/// `x` rotated, in `buffer`.
#[inline(always)]
fn rotated<'a>(x: &[f32], buffer: &'a mut [f32; HEAD_DIM_MAX]) -> &'a [f32] {
    let rotated = &mut buffer[..x.len()];
    rotated.copy_from_slice(x);
    rotate(rotated);
    rotated
}

/// Declares `writer(k, v)`, compiled with the target features of one instruction set.
macro_rules! writers {
    ($($features:literal)?) => {
        /// Stores one position of one head for keys in format `k` and values in format `v`.
        pub(super) fn writer(
            k: $crate::kv::KvFormat,
            v: $crate::kv::KvFormat,
        ) -> $crate::kv::write::WritePosition {
            use $crate::kv::tile::{Tile, with_tile};

            $(#[target_feature(enable = $features)])?
            unsafe fn write<K: Tile, V: Tile>(to: &$crate::kv::write::Position<'_>) {
                // SAFETY: the contract of `WritePosition`.
                unsafe { to.write::<K, V>() }
            }
            with_tile!(k, K => with_tile!(v, V => write::<K, V>))
        }
    };
}

mod scalar {
    super::writers!();
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    super::writers!("avx2,fma,f16c");
}

#[cfg(target_arch = "x86_64")]
mod avxvnni {
    super::writers!("avx2,fma,f16c,avxvnni");
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    super::writers!("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c");
}

#[cfg(target_arch = "aarch64")]
mod neon {
    super::writers!("neon");
}
use writers;

/// The writer of `isa` for the formats of `layer`.
pub(crate) fn writer(isa: Isa, layer: &KvLayer) -> WritePosition {
    let (k, v) = (layer.k, layer.v);
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Bf16 => avx512::writer(k, v),
        #[cfg(target_arch = "x86_64")]
        Isa::AvxVnni => avxvnni::writer(k, v),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => avx2::writer(k, v),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon | Isa::NeonDot | Isa::NeonI8mm => neon::writer(k, v),
        _ => scalar::writer(k, v),
    }
}

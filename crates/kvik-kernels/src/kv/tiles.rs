//! The tile type of each format.

use super::KvFormat;
use super::tile::Tile;

/// Evaluates `$floats` or `$values` with `$tile` or `$quantised` naming the tile type of a format.
macro_rules! with_tile {
    ($format:expr, $tile:ident => $body:expr) => {
        $crate::kv::tiles::with_tile!($format, $tile => $body, $tile => $body)
    };
    ($format:expr, $tile:ident => $floats:expr, $quantised:ident => $values:expr) => {
        match $format {
            $crate::kv::KvFormat::F32 => {
                #[allow(dead_code, reason = "what floats need may not depend on the type")]
                type $tile = $crate::kv::tile::F32;
                $floats
            }
            $crate::kv::KvFormat::F16 => {
                #[allow(dead_code, reason = "what floats need may not depend on the type")]
                type $tile = $crate::kv::tile::F16;
                $floats
            }
            $crate::kv::KvFormat::Bf16 => {
                #[allow(dead_code, reason = "what floats need may not depend on the type")]
                type $tile = $crate::kv::tile::Bf16;
                $floats
            }
            $crate::kv::KvFormat::Q8 => {
                type $quantised = $crate::kv::quantised::Q8;
                $values
            }
            $crate::kv::KvFormat::Q6 => {
                type $quantised = $crate::kv::few_bits::Q6;
                $values
            }
            $crate::kv::KvFormat::Q5 => {
                type $quantised = $crate::kv::few_bits::Q5;
                $values
            }
            $crate::kv::KvFormat::Q4 => {
                type $quantised = $crate::kv::few_bits::Q4;
                $values
            }
            $crate::kv::KvFormat::Q3 => {
                type $quantised = $crate::kv::few_bits::Q3;
                $values
            }
        }
    };
}
pub(crate) use with_tile;

/// Bytes of a K tile of a format.
pub(crate) fn key_bytes(format: KvFormat, head_dim: usize) -> usize {
    with_tile!(format, T => T::key_bytes(head_dim))
}

/// Bytes of a V tile of a format.
pub(crate) fn value_bytes(format: KvFormat, dims: usize) -> usize {
    with_tile!(format, T => T::value_bytes(dims))
}

/// Whether vectors are rotated before they are stored in a format.
pub(crate) fn is_rotated(format: KvFormat) -> bool {
    with_tile!(format, T => T::QUANTISED)
}

//! Stored keys and values: formats, the layout of a block, and the arena of blocks.

mod arena;
mod format;
mod layout;
pub(crate) mod q4;
pub(crate) mod tile;

pub use arena::KvArena;
pub use format::{KvFormat, UnknownKvFormat};
pub use layout::KvLayout;

/// Positions in a block.
pub const BLOCK_POSITIONS: usize = 16;

/// The longest head vector that a layout allows.
pub(crate) const HEAD_DIM_MAX: usize = 256;

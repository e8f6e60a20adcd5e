//! The KV cache's decisions: which blocks hold which prefix, and what goes when space is short.
//!
//! Owns the block pool, the prefix tree and the block tables of running sequences.
//! Never does I/O, reads no clock, starts no thread, knows no tensor and no model.

#![forbid(unsafe_code)]

mod explain;
mod ids;

pub use explain::StopReason;
pub use ids::{BLOCK_POSITIONS, BlockId, SeqId, Token};

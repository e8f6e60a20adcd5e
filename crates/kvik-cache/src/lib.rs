//! The KV cache's decisions: which blocks hold which prefix, and what goes when space is short.
//!
//! Owns the block pool, the prefix tree and the block tables of running sequences.
//! Never does I/O, reads no clock, starts no thread, knows no tensor and no model.

#![forbid(unsafe_code)]

mod cache;
mod check;
mod evict;
mod explain;
mod hash;
mod ids;
#[cfg(test)]
mod model_test;
#[cfg(test)]
mod naive;
mod pool;
mod radix;
pub mod replay;
mod stats;
mod table;

pub use cache::{Admission, Admitted, Cache, CacheConfig, CacheError, CopyHead, Match, NoSpace};
pub use check::Violation;
pub use evict::{Policy, UnknownPolicy};
pub use explain::StopReason;
pub use hash::{Identity, Namespace};
pub use ids::{BLOCK_POSITIONS, BlockId, NamespaceId, SeqId, Token, blocks_for};
pub use stats::{CacheStats, Totals};

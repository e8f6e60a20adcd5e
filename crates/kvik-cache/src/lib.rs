//! The KV cache of kvik: which blocks hold which prefix, and what is evicted when space is short.
//!
//! A *block* holds the keys and values of 16 consecutive positions, all layers and heads. This crate manages blocks
//! and never sees their content: it knows no tensor and no model, does no I/O, reads no clock, starts no thread,
//! and is deterministic. So it can be tested against a naive twin, replayed on recorded traces, and used by other
//! engines.
//!
//! ```text
//!     lookup  admit  reserve  publish  fork  finish      pin  derive_namespace  scan  set_share
//!        │      │                                         │           │          │       │
//!     ┌──▼──────▼─────────────────────────────────────────▼───────────▼──────────▼───────▼──┐
//!     │                                       cache                                         │
//!     └──┬──────────────┬──────────────────────┬──────────────────────────────┬─────────────┘
//!     ┌──▼──┐       ┌───▼───┐              ┌───▼──┐                       ┌───▼───┐
//!     │pins │       │ table ├──────────────► tree │                       │ pool  │
//!     └─────┘       └───┬───┘              └───┬──┘                       └───▲───┘
//!                       └──────────────────────┼──────────────────────────────┘
//!                                          ┌───▼───┐
//!                                          │ evict │
//!                                          └───────┘
//! ```
//!
//! | module      | is responsible for                                    | in -> out                              |
//! |-------------|-------------------------------------------------------|----------------------------------------|
//! | `cache`     | the commands: all or nothing                          | commands -> blocks, copies, refusals   |
//! | `pins`      | where pinned prefixes end                             |                                        |
//! | `table`     | one sequence's blocks and its lease                   | tokens computed -> blocks published    |
//! | `tree`      | prefixes: match, cut, lock, grow; resume points       | tokens -> nodes                        |
//! | `pool`      | blocks: free, owned, shared                           | counts -> block ids                    |
//! | `evict`     | the victim: by tenant, priority and policy            | evictable leaves -> victim             |
//! | [`tier`]    | the tier below RAM: which block is in which slot      | records -> slots to read and write     |
//! | [`retain`]  | which positions of one sequence are retained          | facts -> retained positions            |
//! | [`replay`]  | recorded traces                                       | block ids, capacity -> hit rate, times |
//!
//! Layers that do not store the keys and values of all positions in blocks need more to continue a prefix: `auxiliary`
//! defines this auxiliary state, `tree::places` stores it, `cache::places` decides where.
//!
//! Data without behaviour: `ids`, `namespace` (isolation), `hash` (the identity of a block, in this process and
//! outside), `admission`, `lifetime`, `explain`, `stats`.
//!
//! Modules use those below them in the picture, never those above. In `cache`, `life` is the data and the commands
//! of a sequence; the other files add the commands of one subject each, and `check` the invariants; `naive` is the
//! obviously correct twin, and `model_test` steps both. A new eviction policy is a file in `evict/policies`; a new
//! fact about a block of the tree belongs to `tree::labels`, auxiliary state of a new kind of layer to `auxiliary` and
//! `tree::places`.
//!
//! # A sequence's life
//!
//! ```
//! use kvik_cache::{Admission, Cache, CacheConfig, Namespaces, Policy, Lifetime, SeqId};
//!
//! let config = CacheConfig { blocks: 64, policy: Policy::Lru, ghosts: 64, pinned_max: 32 };
//! let mut cache = Cache::new(config)?;
//! let namespaces = Namespaces { model: [0; 32], kv_format: "f16/f16", adapter: None };
//! let namespace = cache.namespace(&namespaces.shared([0; 16]));
//! let prompt: Vec<u32> = (0..40).collect();
//! for reused in [0, 39] {
//!     let (seq, positions, lifetime) = (SeqId(7), prompt.len(), Lifetime::default());
//!     let admission = Admission { seq, namespace, prompt: &prompt, reuse_max: 39, positions, lifetime };
//!     let admitted = cache.admit(admission)?;
//!     assert_eq!(admitted.reused, reused);
//!     // Carry out `admitted.copy`, compute the other positions into `cache.table(seq)`, then:
//!     cache.finish(seq, &prompt);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod admission;
mod auxiliary;
mod cache;
mod deleted;
mod evict;
mod explain;
mod hash;
mod ids;
mod lifetime;
mod namespace;
mod pins;
mod pool;
pub mod replay;
pub mod retain;
mod stats;
mod table;
pub mod tier;
mod tree;

pub use admission::{Admission, Admitted, Changes, CopyPart, CopyPartial, CopyState, Forked, Match, NoSpace};
pub use auxiliary::{AuxiliaryState, Reach, Windows};
pub use cache::{
    Cache, CacheConfig, CacheError, ForgottenBlocks, NodeInfo, Outline, OutlineNode, OutlineScan, PrefixInfo,
    PrefixOrder, PrefixScan, Violation,
};
pub use deleted::{DeletedPrompts, DeletedWalk};
pub use evict::{Policy, Share, TenantStats, UnknownPolicy};
pub use explain::{Eviction, StopReason};
pub use hash::Identity;
pub use ids::{
    BLOCK_POSITIONS, BlockId, NamespaceId, NodeName, PinId, SeqId, StateId, TenantId, Token, blocks_for,
    whole_blocks,
};
pub use lifetime::{Lifetime, RaisedPriority};
pub use namespace::{Namespace, Namespaces};
pub use pins::{PinInfo, PinLimit, PinScope, Unpinned};
pub use stats::{CacheStats, Totals};
pub use tree::{Change, Followers, StoredBlocks};

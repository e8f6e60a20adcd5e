//! The KV cache of kvik: which blocks hold which prefix, and what goes when space is short.
//!
//! A *block* holds the keys and values of 16 consecutive positions, all layers and heads. This
//! crate decides about blocks and never sees their content: it knows no tensor and no model, does
//! no I/O, reads no clock, starts no thread, and the same calls always give the same answers. So
//! it can be tested against a naive twin, replayed on recorded traces, and used by other engines.
//!
//! ```text
//!              lookup  admit  reserve  publish  fork  finish  abandon
//!                 │                     │
//!            ┌────▼─────────────────────▼────┐
//!            │             cache             │   one sequence's life, all or nothing
//!            └──┬──────────┬─────────────────┘
//!        ┌──────▼──┐  ┌────▼────┐
//!        │  table  ├──►  radix  │                   tables lease paths of the tree
//!        └──────┬──┘  └────┬────┘
//!          ┌────▼───┐ ┌────▼────┐
//!          │  pool  │ │  evict  │                   blocks by state; unlocked leaves by tenant,
//!          └────────┘ └─────────┘                   priority and policy; ghosts of evicted blocks
//! ```
//!
//! | module      | cares about                               | in -> out                              |
//! |-------------|-------------------------------------------|----------------------------------------|
//! | `admission` | what is asked and what is given, as data  |                                        |
//! | `cache`     | what a command needs, before it acts      | commands -> blocks, copies, refusals   |
//! | `table`     | one sequence's blocks and its lease       | tokens computed -> blocks published    |
//! | `radix`     | prefixes: match, cut, lock, grow          | tokens -> nodes                        |
//! | `pool`      | free, owned, shared                       | counts -> block ids                    |
//! | `pins`      | what is never evicted, and how much       | commands -> locks, refusals            |
//! | `keep`      | leases without a request, tenants' shares | commands -> locks, shares              |
//! | `graft`     | namespaces that continue a public prompt  | prefix, namespace -> namespace         |
//! | `look`      | what is there, to be seen and dropped     | order, limit -> prefixes               |
//! | `evict`     | which unlocked leaf goes, a file a policy | leaves that may go -> victim           |
//! | `namespace` | who may share blocks with whom            | model, format, salt -> namespace       |
//! | `hash`      | identity of a block, in and out of here   | namespace, tokens -> 32 bytes          |
//! | `explain`   | why a prefix ends where it ends           |                                        |
//! | `retain`    | how long a prefix is kept, as data        |                                        |
//! | [`tier`]    | the tier below RAM: records of blocks     |                                        |
//! | `stats`     | numbers                                   |                                        |
//! | `check`     | the invariants, executable                | cache -> first violation               |
//! | [`replay`]  | recorded traces                           | block ids, capacity -> hit rate, times |
//! | `naive`     | the twin that is obviously right (tests)  | the same commands -> the same answers  |
//!
//! Modules use those below them in the picture, never those above. A new eviction policy is a file
//! in `evict`; a new fact about a block in the tree belongs to its labels (`radix::labels`).
//!
//! # A sequence's life
//!
//! ```
//! use kvik_cache::{Admission, Cache, CacheConfig, Namespaces, Policy, Retain, SeqId};
//!
//! let config = CacheConfig { blocks: 64, policy: Policy::Lru, ghosts: 64, pinned_max: 32 };
//! let mut cache = Cache::new(config)?;
//! let namespaces = Namespaces { model: [0; 32], kv_format: "f16/f16", adapter: None };
//! let namespace = cache.namespace(&namespaces.shared([0; 16]));
//! let prompt: Vec<u32> = (0..40).collect();
//! for reused in [0, 39] {
//!     let (seq, positions, retain) = (SeqId(7), prompt.len(), Retain::default());
//!     let admission = Admission { seq, namespace, prompt: &prompt, reuse_max: 39, positions, retain };
//!     let admitted = cache.admit(admission)?;
//!     assert_eq!(admitted.reused, reused);
//!     // Carry out `admitted.copy`, compute the other positions into `cache.table(seq)`, then:
//!     cache.finish(seq, &prompt);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod admission;
mod cache;
mod check;
mod evict;
mod explain;
mod graft;
mod hash;
mod ids;
mod keep;
mod look;
#[cfg(test)]
mod model_test;
#[cfg(test)]
mod naive;
mod namespace;
mod pins;
mod pool;
mod radix;
pub mod replay;
mod retain;
mod stats;
mod table;
pub mod tier;

pub use admission::{Admission, Admitted, CopyPartial, Match, NoSpace};
pub use cache::{Cache, CacheConfig, CacheError};
pub use check::Violation;
pub use evict::{Policy, Share, TenantStats, UnknownPolicy};
pub use explain::{Eviction, StopReason};
pub use hash::Identity;
pub use ids::{
    BLOCK_POSITIONS, BlockId, NamespaceId, PinId, SeqId, TenantId, Token, blocks_for, whole_blocks,
};
pub use look::{PrefixInfo, PrefixOrder, PrefixScan};
pub use namespace::{Namespace, Namespaces};
pub use pins::{PinInfo, PinLimit, PinScope, Unpinned};
pub use retain::Retain;
pub use stats::{CacheStats, Totals};

//! Eviction: which unlocked prefix is evicted when space is short.
//!
//! Only the last blocks of an unlocked leaf of the prefix tree can be evicted. The leaf is chosen by *tenant*, the
//! one that exceeds its share the most; by *priority*, the lowest of that tenant; and by *policy*. A leaf whose
//! time to live has ended is evicted before all others. Nothing here changes the tree or sees a node in use: the
//! tree inserts a leaf when it becomes evictable and removes it when it ceases to be.
//!
//! ```text
//!            evictor ────► policies/auto ────► shadow      a small cache of fingerprints per policy
//!               │                                │
//!               └──────► policies ◄──────────────┘         one file a policy
//!                            │
//!          ranking   order   ageing   sample ──► gittins    the building blocks of policies
//! ```
//!
//! `shares` divides the space among tenants, `ghosts` remembers evicted blocks. To add a policy: its file in
//! `policies`, its entry in `policies/mod.rs`, a row in `docs/eviction.md`.

mod ageing;
mod evictor;
mod facts;
mod ghosts;
mod gittins;
mod order;
mod policies;
mod ranking;
mod requests;
mod rhythm;
mod sample;
mod shadow;
mod shares;

pub(crate) use evictor::{Candidate, Evictor, Lane};
pub(crate) use facts::Facts;
pub(crate) use ghosts::{Cause, Ghosts};
pub use policies::{Policy, UnknownPolicy};
pub(crate) use requests::{BlockUse, Request};
pub(crate) use rhythm::Rhythm;
pub(crate) use shares::{Holding, Shares};
pub use shares::{Share, TenantStats};

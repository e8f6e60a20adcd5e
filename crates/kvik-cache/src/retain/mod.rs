//! Which tokens of one sequence are kept: retention, as pure decisions.
//!
//! ```text
//! Retention ── points ──▶ when a sequence forgets: fixed positions of it
//!     │
//!     ├── watch ────────▶ what must be observed of its attention before
//!     └── needs ────────▶ what must be known of each stored position
//!                              │
//!              facts ──▶ decide ──▶ what each KV head goes on storing
//! ```
//!
//! A *policy* gives every stored position of a KV head a score, a *budget* says over which heads positions
//! compete, and *keep* how many of them stay. Each is independent of the others. Facts come in, positions go
//! out: the same facts give the same decision, to the bit. Who computes the facts and moves keys and values
//! is the caller.
//!
//! `policies` holds one file a policy, `amounts` what each is combined with, `budget` says which heads share how many positions, `rank` the order in
//! which positions stay, `points` when, `text` and `check` how a retention is written and what is wrong with it.
//! `state` and `sketch` are what a policy remembers. `naive` is the twin of `decide` that sorts everything. To add a
//! policy: its file in `policies` and its entry in `policies/mod.rs`.

mod amounts;
mod budget;
mod check;
mod decide;
mod error;
mod facts;
mod heads;
mod mix;
#[cfg(test)]
mod naive;
mod points;
mod policies;
mod rank;
mod retention;
mod sketch;
mod state;
#[cfg(test)]
mod tests;
mod text;

pub use amounts::{Budget, Cut, Keep, When};
pub use decide::decide;
pub use error::RetentionError;
pub use facts::{Decision, HeadFacts, LayerFacts, Needs, Reduce, Watch, WatchedRows};
pub use heads::HeadImportance;
pub use points::Points;
pub use policies::{
    Anchor, Counter, CrushBase, Decay, Expected, H2o, Keydiff, Knorm, Kvcrush, Kvzip, NormOrder, Policy,
    Random, Rkv, Sample, Scissorhands, Sinks, Snapkv, Tova, Vnorm, Windowed,
};
pub use retention::Retention;
pub use state::PolicyState;

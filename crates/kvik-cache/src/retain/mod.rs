//! Retention: which positions of one sequence are retained, as pure decisions.
//!
//! ```text
//! Retention ── points ──▶ when a sequence evicts positions: at fixed points of it
//!     │
//!     ├── watch ────────▶ what must be observed of its attention before
//!     └── needs ────────▶ what must be computed for each stored position
//!                              │
//!              facts ──▶ decide ──▶ the positions that each KV head retains
//! ```
//!
//! A *policy* gives every stored position of a KV head a score, a *budget* defines the heads among which positions
//! compete, and *keep* how many of them are retained. Each is independent of the others. Facts come in, positions
//! go out: the same facts yield the same decision, to the bit. The caller computes the facts and moves keys and
//! values.
//!
//! `policies` holds one file per policy, `amounts` the settings each is combined with, `budget` the division among
//! heads, `rank` the order in which positions are retained, `points` the time, `text` and `check` the syntax and
//! validation of a retention. `state` and `sketch` are the memory of a policy. `naive` is the twin of `decide` that
//! sorts everything. To add a policy: its file in `policies` and its entry in `policies/mod.rs`.

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
pub use check::ModelShape;
pub use decide::decide;
pub use error::RetentionError;
pub use facts::{Decision, HeadFacts, LayerFacts, Needs, Reduce, Watch, WatchedRows};
pub use heads::HeadImportance;
pub use points::Points;
pub use policies::*;
pub use retention::Retention;
pub use state::PolicyState;

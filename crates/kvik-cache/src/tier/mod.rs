//! The tier below RAM: which blocks it stores, as decisions without I/O.
//!
//! ```text
//!   find, place, pin, touch  ──►  residency  ──► slots to write, read, erase
//!   written, unpinned        ──►      │          (carried out by the owner of a disk)
//!                    ┌────────┬────┴───┬────────┐
//!                  index  followers    rank     cost
//! ```
//!
//! | module      | is responsible for                                 |
//! |-------------|----------------------------------------------------|
//! | `record`    | the metadata stored with a block's bytes           |
//! | `residency` | which block is in which slot, and in which state   |
//! | `lookup`    | the stored part of a prompt, and hot prefixes      |
//! | `index`     | finding a block by identity and by parent          |
//! | `followers` | continuations of the same tokens in stored blocks  |
//! | `rank`      | the victim when the tier is full                   |
//! | `lifetime`  | uses and expiry of blocks                          |
//! | `clock`     | times on disk that a wrong clock has written       |
//! | `observe`   | slots that another process writes                  |
//! | `levels`    | the tiers below RAM, as one ordered list           |
//! | `cost`      | whether loading is faster than recomputing         |
//! | `runs`      | which blocks share a value in a remote store       |
//! | `writes`    | which computed blocks are worth writing            |
//! | `check`     | the invariants of `residency`                      |

mod check;
mod clock;
mod cost;
mod followers;
mod index;
mod levels;
mod lifetime;
mod lookup;
mod observe;
mod rank;
mod record;
mod residency;
mod runs;
#[cfg(test)]
mod simulator;
#[cfg(test)]
mod tests;
mod writes;

pub use cost::CostModel;
pub use levels::{ByLevel, Level};
pub use lookup::{Chain, Found};
pub use observe::Observed;
pub use rank::DiskShare;
pub use record::{BlockTokens, IoFault, Record, Relation, SlotId, Use};
pub use residency::{Placement, Tier, TierStats, TierTotals};
pub use runs::{run_after, run_ending_at, runs};
pub use writes::{End, Ends, UnknownWritePolicy, Wear, WritePolicy};

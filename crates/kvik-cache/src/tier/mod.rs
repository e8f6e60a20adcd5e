//! The tier below RAM: which blocks are kept there, as decisions and without I/O.
//!
//! ```text
//!   find, place, pin, touch  ──►  residency  ──► slots to write, read, erase
//!   written, unpinned        ──►      │          (whoever has a disk carries them out)
//!                    ┌────────┬────┴───┬────────┐
//!                  index  followers    rank     cost
//! ```
//!
//! | module      | cares about                                        |
//! |-------------|----------------------------------------------------|
//! | `record`    | what stands beside a block's bytes, as data        |
//! | `residency` | which block is in which slot, and in which state   |
//! | `index`     | finding a block by what it is and what is before it |
//! | `followers` | what followed the same tokens in stored blocks     |
//! | `rank`      | the victim when the tier is full                   |
//! | `lifetime`  | uses, and blocks that have outlived their time     |
//! | `cost`      | whether loading is faster than computing           |
//! | `runs`      | which blocks nodes write together where they share  |

mod cost;
mod followers;
mod index;
mod lifetime;
mod rank;
mod record;
mod residency;
mod runs;
#[cfg(test)]
mod simulator;
#[cfg(test)]
mod tests;

pub use cost::{CostModel, Reads};
pub use rank::DiskShare;
pub use record::{BlockTokens, IoFault, Record, Relation, SlotId, Use};
pub use residency::{Chain, Found, Placement, Tier, TierStats, TierTotals};
pub use runs::{run_after, run_ending_at, runs};

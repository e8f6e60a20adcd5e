//! The tier below RAM: which blocks are kept there, as decisions and without I/O.

mod record;

pub use record::{BlockTokens, IoFault, Kinship, Record, SlotId, Use};

//! Which computed blocks are written to the disk, and when: a disk wears with every byte.
//!
//! ```text
//!   a sequence ends ──► ends ──┬─ shared by conversations, or asked again ► written at once
//!                        │     ├─ the conversation goes on ──────────► its new end waits instead
//!                        │     └─ about to leave RAM, or a shutdown ─► written if it is likely to go on
//!                     returns   how likely a conversation goes on, by how long it has paused
//!                     wear      bytes written today and so far, and the budget of a day
//! ```
//!
//! Decides only: the caller computes, copies and measures.

mod ends;
#[cfg(test)]
mod model_test;
mod policy;
mod returns;
mod wear;

pub use ends::{End, Ends};
pub use policy::{UnknownWritePolicy, WritePolicy};
pub use wear::Wear;

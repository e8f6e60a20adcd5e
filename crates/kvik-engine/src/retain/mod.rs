//! Retention at work: a sequence that forgets, from what it observes to where it stores what it keeps.
//!
//! ```text
//!   forward ──▶ Observation ──┐
//!                             ├──▶ facts ──▶ decide ──▶ Decision ──▶ move ──▶ Ragged
//!   stored keys and values ───┘            (kvik-cache)
//! ```
//!
//! | module    | cares about                                                       |
//! |-----------|-------------------------------------------------------------------|
//! | `ragged`  | where each KV head stores what it kept: tiles of own blocks       |
//! | `held`    | what a sequence holds at a point: facts of it, and moving it      |
//! | `sinks`   | the first keys of a stream, rotated anew from copies              |
//! | `repeat`  | the words with which a prompt is repeated                         |
//! | `stream`  | a text without end, read in constant memory                       |
//! | `lab`     | one prompt read once, then kept under many policies and compared  |

mod held;
pub mod lab;
mod ragged;
pub mod repeat;
mod sinks;
pub mod stream;

pub use held::Held;
pub use ragged::{Extent, Ragged, TailViews};
pub use sinks::Sinks;

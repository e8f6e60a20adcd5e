//! Execution of retention policies: observations, facts, and the storage of the retained positions of a sequence.
//!
//! ```text
//!   forward ──▶ Observation ──┐
//!                             ├──▶ facts ──▶ decide ──▶ Decision ──▶ move ──▶ Ragged
//!   stored keys and values ───┘            (kvik-cache)
//! ```
//!
//! | module    | cares about                                                            |
//! |-----------|------------------------------------------------------------------------|
//! | `ragged`  | storage of the retained positions of each KV head: tiles of own blocks |
//! | `held`    | the stored positions at a point: their facts, and moving them          |
//! | `sinks`   | the first keys of a stream, whose RoPE rotation is renewed from copies |
//! | `repeat`  | the prompt that asks a model to repeat its input                       |
//! | `stream`  | an endless text, read in constant memory                               |
//! | `lab`     | one prompt read once, compressed by many policies and compared         |
//! | `shape`   | properties of a model on which it depends what it supports             |

mod held;
pub mod lab;
mod ragged;
pub mod repeat;
mod repeat_words;
mod shape;
mod sinks;
pub mod stream;

pub use held::Held;
pub use ragged::{Extent, Ragged, TailViews};
pub use shape::{kv_heads, model_shape, tile_heads};
pub use sinks::Sinks;

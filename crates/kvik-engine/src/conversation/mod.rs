//! What becomes of the messages of a conversation that no longer fits its context.
//!
//! Works on messages as requests carry them (OpenAI's JSON), which may have any shape. No I/O, no clock, no model.

pub mod lighten;
pub mod quotes;

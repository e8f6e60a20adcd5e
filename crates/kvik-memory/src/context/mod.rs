//! Conversations without end: what of a long one is read, and what is let go.
//!
//! ```text
//! prefix | summary of what was let go | recent messages, whole exchanges
//! ```
//!
//! A conversation is recognised by the [chain](mod@chain) of its messages, so clients that send the whole history need know
//! nothing of it. All of this decides and does no I/O: messages are JSON in OpenAI's shape, sizes are tokens. Any
//! JSON may come: it is a client's.

pub mod chain;
pub mod lighten;
pub mod quotes;
pub mod segments;
pub mod settings;

pub use chain::{ChainId, chain, chain_from};
pub use segments::{Let, Segments, leading_systems};
pub use settings::{MemorySettings, MemorySettingsError};

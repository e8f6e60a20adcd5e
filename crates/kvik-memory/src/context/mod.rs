//! Selection of the part of a long conversation that the model reads.
//!
//! ```text
//! prefix | summary of the dropped messages | recent messages, whole exchanges
//! ```
//!
//! A conversation is recognised by the [chain](mod@chain) of its messages, so clients that send the whole history need
//! not know of any of this. The module makes decisions and does no I/O: messages are JSON in OpenAI's shape, sizes are
//! tokens. The JSON comes from clients, so any value is possible.

pub mod chain;
pub mod lighten;
pub mod quotes;
pub mod segments;
pub mod settings;
pub mod summaries;

pub use chain::{ChainId, chain, chain_from};
pub use segments::{Let, Segments, leading_systems};
pub use settings::{MemorySettings, MemorySettingsError};

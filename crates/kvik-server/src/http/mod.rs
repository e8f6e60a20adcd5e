//! Connections, and the handling of request bodies that is the same for all routes: within bounds, whether clients are
//! slow or hostile.
//!
//! The module is independent of models, and knows tenants only by their ids.

pub mod answer;
pub(crate) mod body_memory;
mod connections;
pub(crate) mod error;
mod exchange;
mod front;
mod half_open;
mod inherited;
pub(crate) mod json;
mod listen;
pub(crate) mod origins;
pub mod readers;
pub(crate) mod tagged;

pub use front::Front;
pub use inherited::inherited;
pub use listen::{ConnectionLimits, serve};
pub use origins::{AllowedHost, AllowedOrigin, Hosts, Senders};

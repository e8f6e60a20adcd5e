//! Conversations that go on without end: kept on disk, and remembered beyond the context of a model.
//!
//! ```text
//! conversations    what was said, by tenant and name        memory    what of it a turn reads, and its summaries
//!        |                                                     |
//!        '------------------------ records --------------------'      small durable tables in one file
//! ```
//!
//! [`context`] decides over messages what of a long conversation is read. The crate neither serves nor computes: what it
//! needs of the program around it is the trait [`Host`](memory::Host).

#![forbid(unsafe_code)]

pub mod clock;
pub mod context;
pub mod conversations;
pub mod deletions;
pub mod hex;
pub mod memory;
pub mod random;
pub mod records;
pub mod shared;
pub mod volatile;

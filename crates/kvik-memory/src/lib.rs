//! Long conversations: stored on disk, and remembered beyond the model's context window.
//!
//! ```text
//! conversations    the messages, by tenant and name      memory    the part of them that a turn reads, and summaries
//!        |                                                  |
//!        '------------------------ records -----------------'      small durable tables in one file
//! ```
//!
//! [`alignment`] and [`volatile`] find what changes between two texts, and in one; [`settle`] moves it behind what does
//! not. [`context`] decides message by message which part of a long conversation the model reads. The crate neither serves
//! requests nor runs models: the trait [`Host`](memory::Host) is all that it needs of the program around it.

#![forbid(unsafe_code)]

pub mod alignment;
pub mod clock;
pub mod context;
pub mod conversations;
pub mod deletions;
pub mod hex;
mod marks;
pub mod memory;
pub mod random;
pub mod records;
pub mod settle;
pub mod shared;
pub mod volatile;

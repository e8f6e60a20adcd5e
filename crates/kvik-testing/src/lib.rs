//! Helpers that the tests of several crates share: files of the checkout, pseudo-random numbers, a web
//! server, a process of its own, the largest of errors, fuzzing, and reporting of skipped tests.
//!
//! The crate has no dependencies, so that tests of all crates can use it.

mod alone;
mod checkout;
mod effort;
mod errors;
pub mod fuzz;
mod skipped;
mod web;

pub use alone::{alone, alone_with};
pub use checkout::{golden, repository, tiny_file, tiny_model};
pub use effort::effort;
pub use errors::largest;
pub use skipped::{outside_data, skip};
pub use web::{Web, WebAnswer, WebFile, WebRepository, WebRequest};

/// A bijection on 64 bits with pseudo-random output (SplitMix64: Steele, Lea, Flood 2014).
pub fn mix(bits: u64) -> u64 {
    let bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

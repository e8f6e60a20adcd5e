//! Random numbers for seeds and names.

use std::hash::{BuildHasher, RandomState};

/// A random number, different at every call; the operating system seeds std's hasher.
pub fn random() -> u64 {
    RandomState::new().hash_one(())
}

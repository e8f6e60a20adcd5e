//! Numbers that nobody can guess twice, for seeds and names of answers.

use std::hash::{BuildHasher, RandomState};

/// A number that differs at every call; std's hasher is seeded by the operating system.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(())
}

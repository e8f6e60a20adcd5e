//! Least frequently used, with ageing: the leaf goes that was reused least often.
//!
//! Of equally frequent ones the least recently used goes. What was popular once would stay for
//! ever; so every victim's rank becomes the ground on which later uses build (LFU with dynamic
//! ageing, Arlitt et al. 2000): a leaf that nobody uses any more is overtaken in time.

use super::aged::Aged;

/// Leaves by reuses.
pub(super) fn lfu() -> Aged {
    Aged::by(|facts| u64::from(facts.reuses))
}

//! Evicts the least frequently used leaf, with dynamic ageing (Arlitt et al. 2000); of equally frequent leaves
//! the least recently used one.

use crate::evict::ageing::Ageing;

/// Leaves by reuses.
pub(super) fn lfu() -> Ageing {
    Ageing::by(|facts| u64::from(facts.reuses))
}

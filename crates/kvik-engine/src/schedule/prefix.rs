//! Prefixes of prompts, as data: how much of them is computed, and how much was reused.

use kvik_cache::{Eviction, SeqId, StopReason, Token};

/// Leading tokens of a sequence that are computed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known {
    pub(super) tokens: usize,
    /// The running sequence that holds them, if the cache alone does not.
    pub(super) running: Option<SeqId>,
}

/// The prefix with which a sequence starts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reused {
    pub(super) tokens: usize,
    /// Why it is not longer.
    pub(super) stop: StopReason,
    /// How the next block was evicted; `None` if it was not.
    pub(super) evicted: Option<Eviction>,
}

/// How many leading tokens may come from the cache.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReuseLimits {
    /// Those before the first one whose attention is observed; `usize::MAX` if none is.
    pub(super) observed: usize,
    /// Those that need not be computed for their output.
    pub(super) unobserved: usize,
}

impl ReuseLimits {
    /// Number of tokens that may come from the cache.
    pub(super) fn reuse_max(&self) -> usize {
        self.observed.min(self.unobserved)
    }

    /// The token from which on attention is observed; `usize::MAX` if it would be computed anyway.
    pub(super) fn observed_from(&self) -> usize {
        if self.observed < self.unobserved { self.observed } else { usize::MAX }
    }
}

impl Known {
    /// A prefix that the cache alone holds.
    pub(super) fn cached(tokens: usize) -> Known {
        Known { tokens, running: None }
    }
}

/// Number of leading tokens that `a` and `b` have in common.
pub fn common_prefix(a: &[Token], b: &[Token]) -> usize {
    // Whole pieces are compared as memory; only the first piece that differs is walked.
    const PIECE: usize = 64;
    let whole = a.chunks_exact(PIECE).zip(b.chunks_exact(PIECE)).take_while(|(a, b)| a == b).count() * PIECE;
    whole + a[whole..].iter().zip(&b[whole..]).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_prefixes() {
        let long: Vec<Token> = (0..200).collect();
        let mut other = long.clone();
        other[130] = 7;
        let check = |a: &[Token], b: &[Token], expect| {
            assert_eq!(common_prefix(a, b), expect);
            assert_eq!(common_prefix(b, a), expect);
        };
        check(&long, &long, 200);
        check(&long, &other, 130);
        check(&long, &long[..64], 64);
        check(&long, &long[..65], 65);
        check(&long, &[], 0);
        check(&long, &[1], 0);
    }
}

//! The eviction policies, one file each, and their registration.

mod arc;
pub(super) mod auto;
mod cost;
mod forecast;
mod lfu;
mod lru;
mod rhythm;
mod s3_fifo;
mod slru;
#[cfg(test)]
mod tests;

use std::str::FromStr;

use super::ranking::Ranking;

/// Makes [`Policy`] from one entry per policy: its documentation, its variant, its name on the command line, and an
/// empty ranking.
macro_rules! policies {
    ($($(#[$doc:meta])+ $variant:ident $name:literal $ranking:expr;)+) => {
        /// The eviction policy of a cache.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
        #[non_exhaustive]
        pub enum Policy {
            $($(#[$doc])+ $variant,)+
            /// Follows whichever of the others would have done best on the traffic so far.
            #[default]
            Auto,
        }

        impl Policy {
            /// The policies that `Auto` chooses from.
            pub(crate) const CANDIDATES: [Policy; [$($name),+].len()] = [$(Policy::$variant),+];

            /// The policy with which `Auto` begins: the best on most traffic.
            pub(crate) const FIRST: Policy = Policy::Forecast;

            /// All policies, in the order of the tables.
            pub const ALL: [Policy; Policy::CANDIDATES.len() + 1] = [$(Policy::$variant,)+ Policy::Auto];

            /// The name on the command line.
            pub fn name(self) -> &'static str {
                match self {
                    $(Policy::$variant => $name,)+
                    Policy::Auto => "auto",
                }
            }

            /// An empty ranking. `Auto` has none of its own; it begins as the first.
            pub(crate) fn ranking(self) -> Box<dyn Ranking> {
                match self {
                    $(Policy::$variant => Box::new($ranking),)+
                    Policy::Auto => Policy::FIRST.ranking(),
                }
            }
        }
    };
}

policies! {
    /// Evicts the least recently used block.
    Lru "lru" lru::Lru::default();
    /// Evicts the least often reused block; the counts of formerly popular blocks age.
    Lfu "lfu" lfu::lfu();
    /// Evicts blocks that were never reused before those that were.
    Slru "slru" slru::Slru::default();
    /// Keeps new blocks in a small queue, and reused ones in the rounds of a main queue.
    S3Fifo "s3-fifo" s3_fifo::S3Fifo::default();
    /// Divides the space between recency and frequency, and adapts the division to wrong evictions.
    Arc "arc" arc::Arc::default();
    /// Evicts the block that takes the least time to recompute.
    Cost "cost" cost::cost();
    /// Evicts the block with the lowest Gittins index: the fewest expected hits, learned from past uses.
    Forecast "forecast" forecast::forecast();
    /// Evicts the block with the lowest Gittins index by the clock: given how long it last paused and has paused now.
    Rhythm "rhythm" rhythm::rhythm();
}

/// Error: the name is not that of a policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown eviction policy `{0}`; known: {known}", known = Policy::ALL.map(Policy::name).join(", "))]
pub struct UnknownPolicy(pub String);

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Policy, UnknownPolicy> {
        let known = Policy::ALL.into_iter().find(|policy| policy.name() == name);
        known.ok_or_else(|| UnknownPolicy(name.to_owned()))
    }
}

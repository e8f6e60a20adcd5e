//! The names of the policies, and what each of them makes.

use std::str::FromStr;

use super::Ranking;
use super::arc::Arc;
use super::cost::cost;
use super::forecast::Forecast;
use super::lfu::lfu;
use super::lru::Lru;
use super::s3_fifo::S3Fifo;
use super::slru::Slru;

/// Which eviction policy a cache uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Policy {
    /// The block goes whose last use is longest ago.
    Lru,
    /// The block goes that was reused least often; what was popular once ages.
    Lfu,
    /// What was never reused goes before what was.
    Slru,
    /// A small queue for newcomers, and rounds in a main queue for what is reused.
    S3Fifo,
    /// Recency and frequency share the room as the evictions that were mistakes say.
    Arc,
    /// The block goes that takes the least time to compute again.
    Cost,
    /// The block goes from which the fewest hits can be hoped for, as learned from past uses.
    Forecast,
    /// Whichever of the others would have done best on the traffic so far.
    #[default]
    Auto,
}

impl Policy {
    /// All of them, in the order of the tables.
    pub const ALL: [Policy; 8] = [
        Policy::Lru,
        Policy::Lfu,
        Policy::Slru,
        Policy::S3Fifo,
        Policy::Arc,
        Policy::Cost,
        Policy::Forecast,
        Policy::Auto,
    ];

    /// Those that `Auto` chooses from, the one it starts with first.
    pub(crate) const CANDIDATES: [Policy; 7] =
        [Policy::Lru, Policy::Lfu, Policy::Slru, Policy::S3Fifo, Policy::Arc, Policy::Cost, Policy::Forecast];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Lru => "lru",
            Policy::Lfu => "lfu",
            Policy::Slru => "slru",
            Policy::S3Fifo => "s3-fifo",
            Policy::Arc => "arc",
            Policy::Cost => "cost",
            Policy::Forecast => "forecast",
            Policy::Auto => "auto",
        }
    }

    /// An empty order of leaves. `Auto` has none of its own; it begins as its first candidate.
    pub(crate) fn ranking(self) -> Box<dyn Ranking> {
        match self {
            Policy::Lru | Policy::Auto => Box::<Lru>::default(),
            Policy::Lfu => Box::new(lfu()),
            Policy::Slru => Box::<Slru>::default(),
            Policy::S3Fifo => Box::<S3Fifo>::default(),
            Policy::Arc => Box::<Arc>::default(),
            Policy::Cost => Box::new(cost()),
            Policy::Forecast => Box::<Forecast>::default(),
        }
    }
}

/// The policy's name is not known.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_read_as_written() {
        for policy in Policy::ALL {
            assert_eq!(policy.name().parse(), Ok(policy));
        }
        let error = "fifo".parse::<Policy>().unwrap_err();
        assert!(error.to_string().contains("s3-fifo"), "{error}");
    }
}

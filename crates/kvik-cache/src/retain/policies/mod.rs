//! The retention policies, one file each, and their registration.

mod decay;
mod expected;
mod h2o;
mod keydiff;
mod knorm;
mod kvcrush;
mod kvzip;
mod random;
mod rkv;
mod rules;
mod sample;
mod scissorhands;
mod sinks;
mod snapkv;
#[cfg(test)]
mod tests;
mod tova;
mod vnorm;
mod windowed;

use std::str::FromStr;

use super::error::RetentionError;
pub use decay::Decay;
pub use expected::Expected;
pub use h2o::{Counter, H2o};
pub use keydiff::Keydiff;
pub use knorm::{Knorm, NormOrder};
pub use kvcrush::{Anchor, CrushBase, Kvcrush};
pub use kvzip::Kvzip;
pub use random::Random;
pub use rkv::Rkv;
pub(super) use rules::{OptionValue, Options, Room, Rules, Scene};
pub use sample::Sample;
pub use scissorhands::Scissorhands;
pub use sinks::Sinks;
pub use snapkv::Snapkv;
pub use tova::Tova;
pub use vnorm::Vnorm;
pub use windowed::Windowed;

/// Makes [`Policy`] from one entry per policy: its documentation, its options, and its name on the command line.
macro_rules! policies {
    ($($(#[$doc:meta])+ $variant:ident $name:literal;)+) => {
        /// A policy, which gives every stored position its score, with its options.
        #[derive(Debug, Clone, Copy, PartialEq)]
        #[non_exhaustive]
        pub enum Policy {
            $($(#[$doc])+ $variant($variant),)+
        }

        $(impl From<$variant> for Policy {
            fn from(policy: $variant) -> Policy {
                Policy::$variant(policy)
            }
        })+

        impl Policy {
            /// All policies with their default options, in the order of the tables.
            pub const ALL: [Policy; [$($name),+].len()] = [$(Policy::$variant($variant::DEFAULT)),+];

            /// The name on the command line.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Policy::$variant(_) => $name,)+
                }
            }

            /// This policy with its default options.
            pub(super) fn with_defaults(&self) -> Policy {
                match self {
                    $(Policy::$variant(_) => Policy::$variant($variant::DEFAULT),)+
                }
            }

            /// Its rules.
            pub(super) fn rules(&self) -> &dyn Rules {
                match self {
                    $(Policy::$variant(rules) => rules,)+
                }
            }

            /// Its options.
            pub(super) fn options(&mut self) -> Vec<(&'static str, &mut dyn OptionValue)> {
                match self {
                    $(Policy::$variant(options) => options.options(),)+
                }
            }
        }
    };
}

policies! {
    /// Retains the first positions and the latest (StreamingLLM).
    Sinks "sinks";
    /// Retains a first and a last quarter, and an even sample of the middle.
    Sample "sample";
    /// Retains random positions: the baseline that every other policy has to beat.
    Random "random";
    /// Retains the keys of the smallest norm, or of the largest.
    Knorm "knorm";
    /// Retains the values of the largest norm.
    Vnorm "vnorm";
    /// Retains the keys that are least similar to the mean key (KeyDiff).
    Keydiff "keydiff";
    /// Retains the positions with the most accumulated attention since the beginning (H2O).
    H2o "h2o";
    /// Retains the positions that few rows of a window found unimportant (Scissorhands).
    Scissorhands "scissorhands";
    /// Retains the positions to which the last row attends (TOVA).
    Tova "tova";
    /// Retains the positions to which the last rows attend, with their neighbours (SnapKV).
    Snapkv "snapkv";
    /// Retains the most attended positions within each window of the sequence.
    Windowed "window";
    /// Retains the most attended positions, recent rows counting more than older ones.
    Decay "decay";
    /// Retains the positions to which queries like the observed ones would attend (Expected Attention).
    Expected "expected";
    /// Retains the positions to which the model attends while it repeats the sequence (KVzip).
    Kvzip "kvzip";
    /// Retains the choice of a base policy, and representatives of what it drops (KVCrush).
    Kvcrush "kvcrush";
    /// Retains the positions to which the last rows attend, less those redundant with other keys (R-KV).
    Rkv "r-kv";
}

impl Policy {
    /// The names of all policies.
    pub fn names() -> Vec<&'static str> {
        Policy::ALL.iter().map(Policy::name).collect()
    }
}

impl FromStr for Policy {
    type Err = RetentionError;

    /// The policy of that name with its default options.
    fn from_str(name: &str) -> Result<Policy, RetentionError> {
        let known = Policy::ALL.into_iter().find(|policy| policy.name() == name);
        known.ok_or_else(|| RetentionError::UnknownPolicy {
            name: name.to_owned(),
            known: Policy::names().join(", "),
        })
    }
}

//! The retention policies, one file each, and the one place where they are registered.

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

/// Makes [`Policy`] from one entry a policy: what it does, its options, and its name on the command line.
macro_rules! policies {
    ($($(#[$doc:meta])+ $variant:ident $name:literal;)+) => {
        /// What gives every stored position its score, with its options.
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
            /// All of them with their default options, in the order of the tables.
            pub const ALL: [Policy; [$($name),+].len()] = [$(Policy::$variant($variant::DEFAULT)),+];

            /// The name on the command line.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Policy::$variant(_) => $name,)+
                }
            }

            /// The same policy with its default options.
            pub(super) fn with_defaults(&self) -> Policy {
                match self {
                    $(Policy::$variant(_) => Policy::$variant($variant::DEFAULT),)+
                }
            }

            /// What it says.
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
    /// Keeps the first positions and the latest (StreamingLLM).
    Sinks "sinks";
    /// Keeps a first and a last quarter, and the middle evenly thinned.
    Sample "sample";
    /// Keeps positions at random: what every other policy has to beat.
    Random "random";
    /// Keeps the keys of the smallest norm, or of the largest.
    Knorm "knorm";
    /// Keeps the values of the largest norm.
    Vnorm "vnorm";
    /// Keeps the keys that are least like the mean key (KeyDiff).
    Keydiff "keydiff";
    /// Keeps what was attended to most since the beginning (H2O).
    H2o "h2o";
    /// Keeps what few rows of a window found unimportant (Scissorhands).
    Scissorhands "scissorhands";
    /// Keeps what the last row attends to (TOVA).
    Tova "tova";
    /// Keeps what the last rows attend to, with its neighbours (SnapKV).
    Snapkv "snapkv";
    /// Keeps what was attended to most within each window of the sequence.
    Windowed "window";
    /// Keeps what was attended to, recent rows before older ones.
    Decay "decay";
    /// Keeps what queries like those seen would attend to (Expected Attention).
    Expected "expected";
    /// Keeps what the model attends to while it repeats the sequence (KVzip).
    Kvzip "kvzip";
    /// Keeps what a base policy keeps, and representatives of what it drops (KVCrush).
    Kvcrush "kvcrush";
    /// Keeps what the last rows attend to, less what other keys say as well (R-KV).
    Rkv "r-kv";
}

impl Policy {
    /// The names of all of them.
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

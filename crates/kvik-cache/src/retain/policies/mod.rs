//! The retention policies, one file each, and their registration.

mod decay;
mod expected;
mod gated;
mod h2o;
mod keydiff;
mod knorm;
mod kvzip;
mod random;
mod rules;
mod sample;
mod scissorhands;
mod sinks;
mod snapkv;
#[cfg(test)]
mod tests;
mod vnorm;
mod windowed;

use std::str::FromStr;

use super::error::RetentionError;
pub use h2o::Counter;
pub use knorm::NormOrder;
pub(super) use rules::{OptionValue, Options, Room, Rules, Scene};
pub use snapkv::WindowRows;

/// Makes [`Policy`] from one entry per policy: its options, its module, and its name on the command line.
macro_rules! policies {
    ($($variant:ident in $module:ident: $name:literal;)+) => {
        $(pub use $module::$variant;)+

        /// A policy, which gives every stored position its score, with its options.
        #[derive(Debug, Clone, Copy, PartialEq)]
        #[non_exhaustive]
        pub enum Policy {
            $(
                #[doc = concat!("[`", stringify!($variant), "`]")]
                $variant($variant),
            )+
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
    Sinks in sinks: "sinks";
    Sample in sample: "sample";
    Random in random: "random";
    Knorm in knorm: "knorm";
    Vnorm in vnorm: "vnorm";
    Keydiff in keydiff: "keydiff";
    H2o in h2o: "h2o";
    Scissorhands in scissorhands: "scissorhands";
    Snapkv in snapkv: "snapkv";
    Windowed in windowed: "window";
    Decay in decay: "decay";
    Expected in expected: "expected";
    Kvzip in kvzip: "kvzip";
    Gated in gated: "gated";
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

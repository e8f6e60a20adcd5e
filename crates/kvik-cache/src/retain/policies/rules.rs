//! What a policy says, and the options it is written with.

use std::ops::Range;

use crate::retain::amounts::Budget;
use crate::retain::facts::{HeadFacts, LayerFacts, Needs, Watch};
use crate::retain::state::LayerState;

/// What a policy says. A policy is a score for every stored position; the rest has defaults.
pub(in crate::retain) trait Rules {
    /// What must be observed; `sinks` leading positions are kept always.
    fn watch(&self, _sinks: usize) -> Watch {
        Watch::Nothing
    }

    /// What must be known of each stored position.
    fn needs(&self) -> Needs {
        Needs::default()
    }

    /// Whether what was observed is added to what was observed before.
    fn accumulates(&self) -> bool {
        false
    }

    /// Leading positions that it keeps always.
    fn sinks(&self) -> usize {
        0
    }

    /// Latest positions that it keeps always when the sequence has `at` tokens.
    fn recent(&self, _at: usize) -> usize {
        0
    }

    /// The budget it is published with.
    fn budget(&self) -> Budget {
        Budget::Head
    }

    /// Tokens from one point to the next.
    fn every(&self) -> usize {
        256
    }

    /// The scores of a layer's stored positions, `[kv_heads][stored]`: the highest stay. NaN is the lowest.
    fn scores(&self, scene: Scene, layer: &LayerFacts, state: &mut LayerState) -> Vec<Vec<f32>>;

    /// The first option whose value it cannot have, that value, and the values that it can have.
    fn fault(&self) -> Option<Fault> {
        None
    }
}

/// An option, its value, and the values that it can have.
pub(in crate::retain) type Fault = (&'static str, String, String);

/// `option` must be so; its value is `value`.
pub(super) fn require(
    holds: bool,
    option: &'static str,
    value: impl ToString,
    expected: &str,
) -> Option<Fault> {
    (!holds).then(|| (option, value.to_string(), expected.to_owned()))
}

/// Where scores are asked for.
#[derive(Debug, Clone, Copy)]
pub(in crate::retain) struct Scene<'a> {
    /// Tokens of the sequence.
    pub(in crate::retain) at: usize,
    /// Index of the layer.
    pub(in crate::retain) layer: usize,
    /// What each head of the layer has room for.
    pub(in crate::retain) rooms: &'a [Room],
}

/// What a head has room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::retain) struct Room {
    /// Positions that it keeps; where heads compete, on average.
    pub(in crate::retain) quota: usize,
    /// Leading positions of the sequence that it keeps always.
    pub(in crate::retain) first: usize,
    /// Latest positions of the sequence that it keeps always.
    pub(in crate::retain) last: usize,
}

impl Room {
    /// The indices of those `positions` that are kept for their score, if they are, and not always.
    pub(in crate::retain) fn judged(&self, positions: &[u32], at: usize) -> Range<usize> {
        let start = positions.partition_point(|&position| (position as usize) < self.first);
        let end = positions.partition_point(|&position| (position as usize).saturating_add(self.last) < at);
        start..end.max(start)
    }
}

/// The scores of each head by itself.
pub(super) fn by_head(layer: &LayerFacts, score: impl Fn(&HeadFacts) -> Vec<f32>) -> Vec<Vec<f32>> {
    layer.heads.iter().map(score).collect()
}

/// The options of a policy, by name.
pub(in crate::retain) trait Options {
    /// Its options, as they are written.
    fn options(&mut self) -> Vec<(&'static str, &mut dyn OptionValue)>;
}

/// The value of an option as text.
pub(in crate::retain) trait OptionValue {
    /// Takes the value that `text` says.
    ///
    /// # Errors
    /// What it should have said.
    fn read(&mut self, text: &str) -> Result<(), String>;

    /// The value as `read` takes it.
    fn text(&self) -> String;
}

/// Makes [`OptionValue`] of a type that reads and writes itself.
macro_rules! option_value {
    ($($kind:ty: $expected:literal;)+) => {
        $(impl OptionValue for $kind {
            fn read(&mut self, text: &str) -> Result<(), String> {
                *self = text.parse().map_err(|_| $expected.to_owned())?;
                Ok(())
            }

            fn text(&self) -> String {
                self.to_string()
            }
        })+
    };
}

option_value! {
    usize: "a whole number";
    u64: "a whole number";
    f32: "a number";
    bool: "true or false";
}

/// Makes the options of a policy: a struct of named values with defaults.
macro_rules! options {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])+ $field:ident: $kind:ty = $default:expr,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq)]
        pub struct $name {
            $($(#[$field_doc])+ pub $field: $kind,)*
        }

        impl $name {
            /// Every option as it is unless told otherwise.
            pub const DEFAULT: $name = $name { $($field: $default,)* };
        }

        impl Default for $name {
            fn default() -> $name {
                $name::DEFAULT
            }
        }

        impl $crate::retain::policies::rules::Options for $name {
            fn options(&mut self) -> Vec<(&'static str, &mut dyn $crate::retain::policies::rules::OptionValue)> {
                vec![$((stringify!($field), &mut self.$field as _),)*]
            }
        }
    };
}

/// Makes a choice among named things.
macro_rules! choice {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])+ $variant:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $($(#[$variant_doc])+ $variant,)+
        }

        impl $crate::retain::policies::rules::OptionValue for $name {
            fn read(&mut self, text: &str) -> Result<(), String> {
                *self = match text {
                    $($text => $name::$variant,)+
                    _ => return Err(format!("one of {}", [$($text),+].join(", "))),
                };
                Ok(())
            }

            fn text(&self) -> String {
                match self {
                    $($name::$variant => $text,)+
                }
                .to_owned()
            }
        }
    };
}

pub(super) use {choice, options};

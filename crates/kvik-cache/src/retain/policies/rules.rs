//! The rules of a policy, and its options.

use std::ops::Range;

use crate::retain::amounts::Budget;
use crate::retain::facts::{HeadFacts, LayerFacts, Needs, Watch};
use crate::retain::state::LayerState;

/// The rules of a policy. The scores of stored positions are required; the rest has defaults.
pub(in crate::retain) trait Rules {
    /// The observation that it needs; `sinks` leading positions are forced.
    fn watch(&self, _sinks: usize) -> Watch {
        Watch::Nothing
    }

    /// The facts that it needs of each stored position.
    fn needs(&self) -> Needs {
        Needs::default()
    }

    /// Returns whether observations accumulate over points.
    fn accumulates(&self) -> bool {
        false
    }

    /// Returns whether the values of retained positions are fitted to the rows that repeat the sequence.
    fn fits(&self) -> bool {
        false
    }

    /// Number of latest positions that it forces when the sequence has `at` tokens.
    fn recent(&self, _at: usize) -> usize {
        0
    }

    /// Returns whether the window that it observes and forces becomes shorter where little is retained:
    /// [`crate::retain::Retention::rows_before`].
    fn window_shrinks(&self) -> bool {
        false
    }

    /// The budget with which it was published.
    fn budget(&self) -> Budget {
        Budget::Head
    }

    /// Tokens from one point to the next.
    fn every(&self) -> usize {
        256
    }

    /// The scores of a layer's stored positions, `[kv_heads][stored]`: the highest are retained. NaN is the lowest.
    fn scores(&self, scene: Scene, layer: &LayerFacts, state: &mut LayerState) -> Vec<Vec<f32>>;

    /// The first option with an invalid value, that value, and the valid values.
    fn fault(&self) -> Option<Fault> {
        None
    }
}

/// An option, its value, and the valid values.
pub(in crate::retain) type Fault = (&'static str, String, String);

/// Returns a fault of `option` with its `value` unless `holds`.
pub(super) fn require(
    holds: bool,
    option: &'static str,
    value: impl ToString,
    expected: &str,
) -> Option<Fault> {
    (!holds).then(|| (option, value.to_string(), expected.to_owned()))
}

/// The circumstances in which scores are computed.
#[derive(Debug, Clone, Copy)]
pub(in crate::retain) struct Scene<'a> {
    /// Tokens of the sequence.
    pub(in crate::retain) at: usize,
    /// Index of the layer.
    pub(in crate::retain) layer: usize,
    /// Number of last rows that are observed before this point; all tokens for a policy that observes every row.
    pub(in crate::retain) rows: usize,
    /// The room of each head of the layer.
    pub(in crate::retain) rooms: &'a [Room],
}

/// The number of positions that a head retains, and which are forced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::retain) struct Room {
    /// Number of positions that it retains; where heads compete, on average.
    pub(in crate::retain) quota: usize,
    /// Leading positions of the sequence that are forced.
    pub(in crate::retain) first: usize,
    /// Latest positions of the sequence that are forced.
    pub(in crate::retain) last: usize,
}

impl Room {
    /// The indices of those `positions` that are not forced and compete by score.
    pub(in crate::retain) fn judged(&self, positions: &[u32], at: usize) -> Range<usize> {
        let start = positions.partition_point(|&position| (position as usize) < self.first);
        let end = positions.partition_point(|&position| (position as usize).saturating_add(self.last) < at);
        start..end.max(start)
    }
}

/// Computes the scores of each head on its own.
pub(super) fn by_head(layer: &LayerFacts, score: impl Fn(&HeadFacts) -> Vec<f32>) -> Vec<Vec<f32>> {
    layer.heads.iter().map(score).collect()
}

/// The options of a policy, by name.
pub(in crate::retain) trait Options {
    /// The options with their names.
    fn options(&mut self) -> Vec<(&'static str, &mut dyn OptionValue)>;
}

/// The value of an option as text.
pub(in crate::retain) trait OptionValue {
    /// Sets the value from its text.
    ///
    /// # Errors
    /// A description of the valid values.
    fn read(&mut self, text: &str) -> Result<(), String>;

    /// The value in the syntax of `read`.
    fn text(&self) -> String;
}

/// Implements [`OptionValue`] for a type that is parsed and printed as such.
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
            /// The default of every option.
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

/// Makes an enumeration of named choices.
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

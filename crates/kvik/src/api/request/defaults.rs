//! What holds where a body says nothing: each dialect has its own.

use serde::de::DeserializeOwned;

use super::number;
use crate::described::JsonSchema;

/// What holds in a dialect where a request says nothing, and its bounds; OpenAI's unless it says otherwise.
pub(crate) trait Defaults {
    /// Temperatures that may be asked for.
    type Temperature: DeserializeOwned + JsonSchema + Into<f64>;

    const TEMPERATURE: f32 = 1.0;
    const TOP_K: usize = 0;
    const TOP_P: f32 = 1.0;
    const MIN_P: f32 = 0.0;
    /// Tokens that penalties look back on; 0 means all.
    const PENALTY_LAST_N: usize = 0;
    /// Largest bias, either way.
    const BIAS_MAX: f64 = 100.0;
    /// Stop strings that one request may bring.
    const STOP_STRINGS_MAX: usize = 16;
}

/// OpenAI's: sample from the whole distribution, penalties look at the whole answer.
#[derive(Debug)]
pub(crate) struct Usual;

impl Defaults for Usual {
    type Temperature = number::Temperature;
}

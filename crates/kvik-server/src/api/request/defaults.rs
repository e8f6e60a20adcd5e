//! Default values of body fields: each dialect has its own.

use serde::de::DeserializeOwned;

use super::number;
use crate::described::JsonSchema;

/// A dialect's defaults and bounds; OpenAI's unless overridden.
pub(crate) trait Defaults {
    /// Type of the valid temperatures.
    type Temperature: DeserializeOwned + JsonSchema + Into<f64>;

    const TEMPERATURE: f32 = 1.0;
    const TOP_K: usize = 0;
    const TOP_P: f32 = 1.0;
    const MIN_P: f32 = 0.0;
    /// Number of tokens that penalties look back on; 0 means all.
    const PENALTY_LAST_N: usize = 0;
    /// Largest absolute bias.
    const BIAS_MAX: f64 = 100.0;
    /// Maximum number of stop strings in one request.
    const STOP_STRINGS_MAX: usize = 16;
}

/// OpenAI's defaults: sample from the whole distribution; penalties consider the whole answer.
#[derive(Debug)]
pub(crate) struct Usual;

impl Defaults for Usual {
    type Temperature = number::Temperature;
}

//! Bounds of body fields: each dialect has its own.

use serde::de::DeserializeOwned;

use super::number;
use crate::described::JsonSchema;

/// A dialect's bounds, and what its penalties look back on; OpenAI's unless overridden.
pub(crate) trait Bounds {
    /// Type of the valid temperatures.
    type Temperature: DeserializeOwned + JsonSchema + Into<f64>;

    /// Number of tokens that a request's penalties look back on, where neither it nor the server says; -1 means all.
    const PENALTY_LAST_N: i64 = -1;
    /// Largest absolute bias.
    const BIAS_MAX: f64 = 100.0;
    /// Maximum number of stop strings in one request.
    const STOP_STRINGS_MAX: usize = 16;
}

/// OpenAI's bounds: penalties consider the whole answer.
#[derive(Debug)]
pub(crate) struct Usual;

impl Bounds for Usual {
    type Temperature = number::Temperature;
}

//! The sampling of requests that set none, as routes tell it.

use kvik_model::load::{SamplingDefaults, SamplingSource, Sourced};
use serde::Serialize;

use crate::described::JsonSchema;

/// The settings of the sampler that are in force where a request sets none, and where each comes from.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct SamplingInForce {
    temperature: InForce<f32>,
    top_k: InForce<usize>,
    top_p: InForce<f32>,
    min_p: InForce<f32>,
    repetition_penalty: InForce<f32>,
    presence_penalty: InForce<f32>,
    frequency_penalty: InForce<f32>,
    /// -1 is all.
    repeat_last_n: InForce<i64>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct InForce<T> {
    value: T,
    /// `flag` of the operator, `file` of the model, `family` of the model, or `kvik`.
    source: &'static str,
    /// The family whose makers recommend it, where it comes from one.
    #[serde(skip_serializing_if = "Option::is_none")]
    family: Option<&'static str>,
}

impl SamplingInForce {
    pub(super) fn of(defaults: &SamplingDefaults) -> SamplingInForce {
        SamplingInForce {
            temperature: defaults.temperature.into(),
            top_k: defaults.top_k.into(),
            top_p: defaults.top_p.into(),
            min_p: defaults.min_p.into(),
            repetition_penalty: defaults.repetition_penalty.into(),
            presence_penalty: defaults.presence_penalty.into(),
            frequency_penalty: defaults.frequency_penalty.into(),
            repeat_last_n: defaults.penalty_last_n.into(),
        }
    }
}

impl<T> From<Sourced<T>> for InForce<T> {
    fn from(Sourced { value, source }: Sourced<T>) -> InForce<T> {
        let family = match source {
            SamplingSource::Family(family) => Some(family),
            _ => None,
        };
        InForce { value, source: source.name(), family }
    }
}

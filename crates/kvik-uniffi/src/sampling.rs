//! Sampling of a model where an answer sets none.

use kvik_library::{SamplingDefaults, Sourced};

use crate::error::signed;

/// A setting of the sampler that is a real number, and its source.
#[derive(Debug, Clone, PartialEq, uniffi::Record)]
pub struct RealSetting {
    /// The value in force.
    pub value: f64,
    /// `file` (the model's files recommend it), `family NAME` (the makers of its family do), or `kvik` (nobody does).
    pub source: String,
}

/// A setting of the sampler that is a whole number, and its source.
#[derive(Debug, Clone, PartialEq, Eq, uniffi::Record)]
pub struct CountSetting {
    /// The value in force.
    pub value: i64,
    /// `file`, `family NAME` or `kvik`, as of a real number.
    pub source: String,
}

/// The sampling of answers whose options set none.
#[derive(Debug, Clone, PartialEq, uniffi::Record)]
pub struct ModelSampling {
    /// Sampling temperature; 0 takes the likeliest token at each position.
    pub temperature: RealSetting,
    /// Number of the likeliest tokens that are kept; 0 keeps all.
    pub top_k: CountSetting,
    /// Probability that the kept tokens have together.
    pub top_p: RealSetting,
    /// Share of the likeliest token's probability that kept tokens have.
    pub min_p: RealSetting,
    /// Divides the logits of tokens that occurred; 1 is off.
    pub repetition_penalty: RealSetting,
    /// Subtracted once from the logits of generated tokens; 0 is off.
    pub presence_penalty: RealSetting,
    /// Subtracted per occurrence from the logits of generated tokens; 0 is off.
    pub frequency_penalty: RealSetting,
    /// Number of tokens that penalties look back on: -1 for all, 0 for no penalties.
    pub penalty_last_n: CountSetting,
}

impl From<SamplingDefaults> for ModelSampling {
    fn from(in_force: SamplingDefaults) -> ModelSampling {
        ModelSampling {
            temperature: in_force.temperature.into(),
            top_k: in_force.top_k.into(),
            top_p: in_force.top_p.into(),
            min_p: in_force.min_p.into(),
            repetition_penalty: in_force.repetition_penalty.into(),
            presence_penalty: in_force.presence_penalty.into(),
            frequency_penalty: in_force.frequency_penalty.into(),
            penalty_last_n: in_force.penalty_last_n.into(),
        }
    }
}

impl From<Sourced<f32>> for RealSetting {
    fn from(Sourced { value, source }: Sourced<f32>) -> RealSetting {
        // As it is written: 0.95, which an `f32` alone is not.
        let written = value.to_string().parse().unwrap_or(f64::from(value));
        RealSetting { value: written, source: source.to_string() }
    }
}

impl<T: TryInto<i64>> From<Sourced<T>> for CountSetting {
    fn from(Sourced { value, source }: Sourced<T>) -> CountSetting {
        CountSetting { value: signed(value), source: source.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_told_as_they_are_written() {
        let told = ModelSampling::from(SamplingDefaults::KVIK);
        let kvik = || "kvik".to_owned();
        assert_eq!(told.top_p, RealSetting { value: 0.95, source: kvik() });
        assert_eq!(told.min_p.value, 0.05);
        assert_eq!(told.top_k, CountSetting { value: 40, source: kvik() });
        assert_eq!(told.penalty_last_n.value, 64);
    }
}

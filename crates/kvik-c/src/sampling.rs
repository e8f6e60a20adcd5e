//! Sampling of a model where an answer sets none, and numbers that stand for none.

use std::ffi::c_char;

use kvik_library::{SamplingSource, Sourced};

use crate::model::KvikModel;
use crate::status::{KvikStatus, call};
use crate::text::{put, reference, word};

/// Value of `temperature` for the likeliest token at each position, without penalties; so is every negative number.
pub const KVIK_GREEDY: f32 = -1.0;
/// Value of `top_k` that keeps all tokens.
pub const KVIK_KEEP_ALL: u32 = 0xffff_ffff;

/// A setting of the sampler, and its source.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct KvikSetting {
    /// The value in force.
    pub value: f64,
    /// `file` (the model's files recommend it), `family NAME` (the makers of its family do), or `kvik` (nobody does).
    pub source: [c_char; 32],
}

/// The sampling of answers whose options set none.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct KvikSampling {
    /// Sampling temperature; 0 takes the likeliest token.
    pub temperature: KvikSetting,
    /// Number of the likeliest tokens that are kept; 0 keeps all.
    pub top_k: KvikSetting,
    /// Probability that the kept tokens have together.
    pub top_p: KvikSetting,
    /// Share of the likeliest token's probability that kept tokens have.
    pub min_p: KvikSetting,
    /// Divides the logits of tokens that occurred; 1 is off.
    pub repetition_penalty: KvikSetting,
    /// Subtracted once from the logits of generated tokens; 0 is off.
    pub presence_penalty: KvikSetting,
    /// Subtracted per occurrence from the logits of generated tokens; 0 is off.
    pub frequency_penalty: KvikSetting,
    /// Number of tokens that penalties look back on: -1 for all, 0 for no penalties.
    pub penalty_last_n: KvikSetting,
}

/// Writes the sampling of answers whose options set neither it nor `reasoning`: what the model's makers recommend, else
/// kvik's defaults.
///
/// # Safety
/// `model` is an open handle, `sampling` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvik_sampling(model: *const KvikModel, sampling: *mut KvikSampling) -> KvikStatus {
    call(|| {
        // SAFETY: the caller promises it.
        let in_force = unsafe { reference(model, "model")? }.0.sampling(None);
        let written = KvikSampling {
            temperature: real(in_force.temperature),
            top_k: setting(in_force.top_k.value as f64, in_force.top_k.source),
            top_p: real(in_force.top_p),
            min_p: real(in_force.min_p),
            repetition_penalty: real(in_force.repetition_penalty),
            presence_penalty: real(in_force.presence_penalty),
            frequency_penalty: real(in_force.frequency_penalty),
            penalty_last_n: setting(in_force.penalty_last_n.value as f64, in_force.penalty_last_n.source),
        };
        // SAFETY: the caller promises it.
        unsafe { put(sampling, written) };
        Ok(())
    })
}

/// A number as it is written, as 0.95, which an `f32` alone is not.
fn real(Sourced { value, source }: Sourced<f32>) -> KvikSetting {
    setting(value.to_string().parse().unwrap_or(f64::from(value)), source)
}

fn setting(value: f64, source: SamplingSource) -> KvikSetting {
    KvikSetting { value, source: word(&source.to_string()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_told_as_it_is_written_with_its_source() {
        let told = real(Sourced { value: 0.95, source: SamplingSource::Family("Qwen3") });
        assert_eq!((told.value, told.source), (0.95, word("family Qwen3")));
    }
}

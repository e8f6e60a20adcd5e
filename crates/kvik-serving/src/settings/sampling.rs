//! Defaults for sampling parameters that a request omits.

use std::ops::RangeInclusive;

use clap::Args;
use kvik_model::load::SamplingOptions;

/// Requests a random seed, as older clients of llama-server do.
pub const RANDOM_SEED: u64 = 0xffff_ffff;
/// Valid values of top-p and min-p.
pub const SHARES: RangeInclusive<f64> = 0.0..=1.0;
/// Valid temperatures: the sampler computes with single floats.
pub const TEMPERATURES: RangeInclusive<f64> = 0.0..=f32::MAX as f64;
/// Valid penalties of repetition.
pub const REPETITIONS: RangeInclusive<f64> = 0.01..=100.0;

/// Defaults of requests that set no sampling, in every API. What no flag says is the model's own: what its makers recommend
/// in its files, or for its family, else 0.8, 40, 0.95 and 0.05.
#[derive(Debug, Clone, Copy, Default, Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Temperature, where a request sets none; 0 always takes the likeliest token [default: what the model's makers
    /// recommend, else 0.8]
    #[arg(long, visible_alias = "temperature", value_name = "T", allow_negative_numbers = true, value_parser = temperature)]
    pub temp: Option<f64>,
    /// Seed, where a request sets none: the same seed gives the same text; -1 draws one each time [default: -1]
    #[arg(long, value_name = "SEED", allow_negative_numbers = true)]
    pub seed: Option<i64>,
    /// Tokens of an answer at most, where a request does not say; -1 is as many as the context holds [default: -1]
    #[arg(long, visible_alias = "max-tokens", value_name = "TOKENS", allow_negative_numbers = true)]
    pub n_predict: Option<i64>,
    /// Keep this many of the likeliest tokens, where a request does not say; 0 and -1 keep all [default: the model's, else 40]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub top_k: Option<i64>,
    /// Keep the likeliest tokens that have this probability together, likewise [default: the model's, else 0.95]
    #[arg(long, value_name = "P", value_parser = share)]
    pub top_p: Option<f64>,
    /// Keep tokens with this share of the likeliest one's probability, likewise [default: the model's, else 0.05]
    #[arg(long, value_name = "P", value_parser = share)]
    pub min_p: Option<f64>,
    /// Divides the logits of tokens that stand there already, likewise [default: the model's, else 1]
    #[arg(long, value_name = "PENALTY", value_parser = repetition)]
    pub repeat_penalty: Option<f64>,
    /// Tokens that penalties look back on, likewise: -1 for all, 0 for no penalties [default: the model's, else
    /// 64; all where a request to OpenAI's API sets a penalty]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub repeat_last_n: Option<i64>,
    /// Lowers the logits of tokens that stand there already, likewise [default: the model's, else 0]
    #[arg(long, value_name = "PENALTY", allow_negative_numbers = true, value_parser = penalty)]
    pub presence_penalty: Option<f64>,
    /// Lowers them as often as they stand there, likewise [default: the model's, else 0]
    #[arg(long, value_name = "PENALTY", allow_negative_numbers = true, value_parser = penalty)]
    pub frequency_penalty: Option<f64>,
}

impl SamplingArgs {
    /// The settings of the sampler that the flags set.
    pub fn options(&self) -> SamplingOptions {
        let real = |number: Option<f64>| number.map(|number| number as f32);
        SamplingOptions {
            // A negative temperature is greedy, as for llama-server.
            temperature: self.temp.map(|temperature| temperature.max(0.0) as f32),
            top_k: self.top_k.map(|k| usize::try_from(k).unwrap_or(0)),
            top_p: real(self.top_p),
            min_p: real(self.min_p),
            repetition_penalty: real(self.repeat_penalty),
            presence_penalty: real(self.presence_penalty),
            frequency_penalty: real(self.frequency_penalty),
            penalty_last_n: self.repeat_last_n.map(|last_n| last_n.max(-1)),
        }
    }

    /// The seed; random with `None`.
    pub fn seed(&self) -> Option<u64> {
        self.seed.and_then(|seed| u64::try_from(seed).ok()).filter(|&seed| seed != RANDOM_SEED)
    }

    /// Maximum tokens of an answer; as many as the context holds with `None`.
    pub fn max_tokens(&self) -> Option<usize> {
        self.n_predict.and_then(|tokens| usize::try_from(tokens).ok())
    }
}

/// Reads a temperature; a negative one is greedy, as for llama-server.
fn temperature(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| TEMPERATURES.contains(&number.abs()));
    number.ok_or_else(|| "write a number such as 0.8; 0 always takes the likeliest token".to_owned())
}

fn share(text: &str) -> Result<f64, String> {
    within(text, SHARES)
}

fn repetition(text: &str) -> Result<f64, String> {
    within(text, REPETITIONS)
}

fn penalty(text: &str) -> Result<f64, String> {
    within(text, -2.0..=2.0)
}

fn within(text: &str, range: RangeInclusive<f64>) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| format!("write a number from {} to {}", range.start(), range.end()))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Flags {
        #[command(flatten)]
        sampling: SamplingArgs,
    }

    #[test]
    fn a_temperature_is_a_number_of_the_sampler() {
        let read = |text: &str| {
            let flags = Flags::try_parse_from(["kvik", &format!("--temp={text}")]);
            flags.ok().and_then(|flags| flags.sampling.options().temperature)
        };
        for (text, temperature) in [("0", 0.0), ("0.5", 0.5), ("-1", 0.0), ("3.4e38", 3.4e38)] {
            assert_eq!(read(text), Some(temperature), "{text}");
        }
        for text in ["nan", "NaN", "inf", "-inf", "infinity", "1e39", "hot", ""] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}

//! Defaults for sampling parameters that a request omits.

use clap::Args;

/// Defaults of requests to OpenAI's routes and llama-server's.
#[derive(Debug, Clone, Copy, Default, Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Temperature of requests that set none [default: that of their API]
    #[arg(long, value_name = "T")]
    pub temp: Option<f64>,
    /// Seed of requests that set none; -1 draws one each time [default: -1]
    #[arg(long, value_name = "SEED", allow_negative_numbers = true)]
    pub seed: Option<i64>,
    /// Tokens of an answer at most, where a request does not say; -1 is as many as the context holds [default: -1]
    #[arg(long, value_name = "TOKENS", allow_negative_numbers = true)]
    pub n_predict: Option<i64>,
    /// Likeliest tokens that are kept, of requests that do not say; 0 and -1 keep all [default: that of their API]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub top_k: Option<i64>,
    /// Probability that the kept tokens have together, of requests that do not say [default: that of their API]
    #[arg(long, value_name = "P", value_parser = share)]
    pub top_p: Option<f64>,
    /// Share of the likeliest token's probability that kept tokens have, likewise [default: that of their API]
    #[arg(long, value_name = "P", value_parser = share)]
    pub min_p: Option<f64>,
    /// Divides the logits of tokens that stand there already, likewise [default: 1]
    #[arg(long, value_name = "PENALTY", value_parser = repetition)]
    pub repeat_penalty: Option<f64>,
    /// Tokens that penalties look back on, likewise: -1 for all, 0 for no penalties [default: that of their API]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub repeat_last_n: Option<i64>,
    /// Lowers the logits of tokens that stand there already, likewise [default: 0]
    #[arg(long, value_name = "PENALTY", allow_negative_numbers = true, value_parser = penalty)]
    pub presence_penalty: Option<f64>,
    /// Lowers them as often as they stand there, likewise [default: 0]
    #[arg(long, value_name = "PENALTY", allow_negative_numbers = true, value_parser = penalty)]
    pub frequency_penalty: Option<f64>,
}

fn share(text: &str) -> Result<f64, String> {
    within(text, 0.0, 1.0)
}

fn repetition(text: &str) -> Result<f64, String> {
    within(text, 0.01, 100.0)
}

fn penalty(text: &str) -> Result<f64, String> {
    within(text, -2.0, 2.0)
}

fn within(text: &str, min: f64, max: f64) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (min..=max).contains(number));
    number.ok_or_else(|| format!("write a number from {min} to {max}"))
}

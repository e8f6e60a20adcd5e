//! What holds where a request does not say how to sample.

use clap::Args;

/// Defaults of requests to OpenAI's routes and llama-server's.
#[derive(Debug, Clone, Copy, Default, Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Temperature of requests that set none [default: that of their API]
    #[arg(long, value_name = "T")]
    pub(crate) temp: Option<f64>,
    /// Seed of requests that set none; -1 draws one each time [default: -1]
    #[arg(long, value_name = "SEED", allow_negative_numbers = true)]
    pub(crate) seed: Option<i64>,
    /// Tokens of an answer at most, where a request does not say; -1 is as many as the context holds [default: -1]
    #[arg(long, value_name = "TOKENS", allow_negative_numbers = true)]
    pub(crate) n_predict: Option<i64>,
}

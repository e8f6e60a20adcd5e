//! The sampling fields.

use std::fmt;

use kvik_cache::Token;
use kvik_engine::api::Sampling;
use kvik_model::load::{SamplingOptions, SamplingSource};
use serde::{
    Deserialize, Deserializer,
    de::{self, DeserializeOwned},
};

use super::{
    bounds::Bounds,
    defaults::{RequestDefaults, random_seed},
    logit_bias,
    number::{Fraction, Penalty, Repetition, Whole, whole},
    parts::Part,
};
use crate::{
    described::JsonSchema,
    http::{error::ApiError, json::Json},
};
use kvik_serving::settings::sampling::RANDOM_SEED;

/// How to choose the next token. The temperatures that may be asked for are a dialect's; what is absent is the server's
/// default, which `/props` tells.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(bound = "T: DeserializeOwned")]
pub(crate) struct SamplingFields<T> {
    /// 0 takes the likeliest token.
    temperature: Option<T>,
    /// Keep this many of the likeliest tokens; 0 and -1 keep all.
    top_k: Option<Whole<-1, { i64::MAX }>>,
    /// Keep the likeliest tokens that have this probability together.
    top_p: Option<Fraction>,
    /// Keep the tokens that have this share of the likeliest one's probability.
    min_p: Option<Fraction>,
    /// Divides the logits of tokens that stand there already.
    repetition_penalty: Option<Repetition>,
    /// llama-server's name of `repetition_penalty`, before which it goes.
    repeat_penalty: Option<Repetition>,
    /// Lowers the logits of tokens that stand there already.
    presence_penalty: Option<Penalty>,
    /// Lowers them as often as they stand there.
    frequency_penalty: Option<Penalty>,
    /// `{"token id": bias}`, or `[[token id or text, bias], ...]`; a bias of `false` forbids the token.
    #[schemars(schema_with = "logit_bias::schema")]
    logit_bias: Option<Json>,
    /// Tokens before which an answer does not end by itself.
    min_tokens: Option<Whole<0, { i64::MAX }>>,
    /// With the same seed an answer is the same; absent or negative it is random.
    #[schemars(with = "Option<i64>")]
    seed: Option<Seed>,
    /// Tokens that penalties look back on: -1 for all, 0 for no penalties.
    repeat_last_n: Option<Whole<-1, { i64::MAX }>>,
}

impl<T: DeserializeOwned + JsonSchema> Part for SamplingFields<T> {}

impl<T: Into<f64>> SamplingFields<T> {
    /// Returns the engine's sampling settings: the request's, and `defaults` where it sets none. `encode` tokenizes a text,
    /// for biases that name one.
    pub(crate) fn sampling<B: Bounds>(
        self,
        defaults: &RequestDefaults,
        encode: &dyn Fn(&str) -> Vec<Token>,
    ) -> Result<Sampling, ApiError> {
        let seed = self.seed.map_or_else(|| defaults.seed(), Seed::drawn);
        let min_tokens = self.min_tokens.and_then(Whole::count).unwrap_or(0);
        let (set, bias) = self.split();
        let mut in_force = defaults.sampling.under(&set, SamplingSource::Request);
        // A dialect has its own meaning of its penalties; that of penalties which the server sets is the same in all.
        if set.has_penalty() && in_force.penalty_last_n.source == SamplingSource::Kvik {
            in_force.penalty_last_n.value = B::PENALTY_LAST_N;
        }
        let logit_bias = logit_bias::read(bias, B::BIAS_MAX, encode)?;
        Ok(Sampling { seed, min_tokens, logit_bias, ..in_force.sampling() })
    }

    /// Whether the seed is drawn: neither the request nor the server has set one.
    pub(super) fn draws_seed(&self, defaults: &RequestDefaults) -> bool {
        self.seed.map_or(defaults.seed.is_none(), Seed::is_drawn)
    }

    /// The settings that the request sets, and its biases.
    fn split(self) -> (SamplingOptions, Option<Json>) {
        let penalty = |penalty: Option<Penalty>| penalty.map(|penalty| f64::from(penalty) as f32);
        let share = |share: Option<Fraction>| share.map(|share| f64::from(share) as f32);
        let repetition = self.repeat_penalty.or(self.repetition_penalty);
        let set = SamplingOptions {
            temperature: self.temperature.map(|temperature| temperature.into() as f32),
            top_k: self.top_k.map(|k| k.count().unwrap_or(0)),
            top_p: share(self.top_p),
            min_p: share(self.min_p),
            repetition_penalty: repetition.map(|penalty| f64::from(penalty) as f32),
            presence_penalty: penalty(self.presence_penalty),
            frequency_penalty: penalty(self.frequency_penalty),
            penalty_last_n: self.repeat_last_n.map(Whole::get),
        };
        (set, self.logit_bias)
    }
}

/// Any 64-bit number. Clients send -1 for a random seed; older clients of llama-server send 4294967295.
#[derive(Debug, Clone, Copy)]
struct Seed(u64);

impl Seed {
    fn is_drawn(self) -> bool {
        self.0 == RANDOM_SEED
    }

    fn drawn(self) -> u64 {
        if self.is_drawn() { random_seed() } else { self.0 }
    }
}

impl<'de> Deserialize<'de> for Seed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Seed, D::Error> {
        deserializer.deserialize_any(SeedVisitor)
    }
}

struct SeedVisitor;

impl de::Visitor<'_> for SeedVisitor {
    type Value = Seed;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number")
    }

    fn visit_u64<E>(self, seed: u64) -> Result<Seed, E> {
        Ok(Seed(seed))
    }

    fn visit_i64<E>(self, seed: i64) -> Result<Seed, E> {
        Ok(Seed(u64::try_from(seed).unwrap_or(RANDOM_SEED)))
    }

    fn visit_f64<E: de::Error>(self, x: f64) -> Result<Seed, E> {
        let seed = whole(x).ok_or_else(|| E::invalid_type(de::Unexpected::Float(x), &self))?;
        self.visit_i64(seed)
    }
}

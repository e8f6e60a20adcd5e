//! The sampling fields.

use std::fmt;

use kvik_cache::Token;
use kvik_engine::api::Sampling;
use kvik_memory::random::random;
use serde::{
    Deserialize, Deserializer,
    de::{self, DeserializeOwned, IntoDeserializer},
};

use super::{
    defaults::Defaults,
    logit_bias,
    number::{Fraction, Penalty, Repetition, Whole, whole},
    parts::Part,
};
use crate::{
    described::JsonSchema,
    http::{error::ApiError, json::Json},
};
use kvik_serving::settings::sampling::SamplingArgs;

/// Mask of seeds that kvik draws and reports: JavaScript represents them exactly.
const SEED_BITS: u64 = (1 << 53) - 1;
/// Requests a random seed.
const RANDOM_SEED: u64 = 0xffff_ffff;

/// How to choose the next token. The temperatures that may be asked for are a dialect's.
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

impl<T: DeserializeOwned> SamplingFields<T> {
    /// Fills missing fields with the server's settings.
    pub(super) fn or(mut self, usual: &SamplingArgs) -> Self {
        self.temperature = self.temperature.or_else(|| number(usual.temp));
        self.seed =
            self.seed.or_else(|| usual.seed.map(|seed| Seed(u64::try_from(seed).unwrap_or(RANDOM_SEED))));
        self.top_k = self.top_k.or(usual.top_k.map(Whole::of));
        self.top_p = self.top_p.or_else(|| number(usual.top_p));
        self.min_p = self.min_p.or_else(|| number(usual.min_p));
        if self.repetition_penalty.is_none() {
            self.repeat_penalty = self.repeat_penalty.or_else(|| number(usual.repeat_penalty));
        }
        self.repeat_last_n = self.repeat_last_n.or(usual.repeat_last_n.map(Whole::of));
        self.presence_penalty = self.presence_penalty.or_else(|| number(usual.presence_penalty));
        self.frequency_penalty = self.frequency_penalty.or_else(|| number(usual.frequency_penalty));
        self
    }
}

/// Converts a number of the server's settings to a field; none if it is out of the dialect's range.
fn number<T: DeserializeOwned>(number: Option<f64>) -> Option<T> {
    T::deserialize::<de::value::F64Deserializer<de::value::Error>>(number?.into_deserializer()).ok()
}

impl<T: Into<f64>> SamplingFields<T> {
    /// Returns the engine's sampling settings; `encode` tokenizes a text, for biases that name one.
    pub(crate) fn sampling<D: Defaults>(
        self,
        encode: &dyn Fn(&str) -> Vec<Token>,
    ) -> Result<Sampling, ApiError> {
        let repetition = self.repeat_penalty.or(self.repetition_penalty);
        let penalty = |penalty: Option<Penalty>| penalty.map_or(0.0, |penalty| f64::from(penalty) as f32);
        let usual = unsaid::<D>();
        let mut sampling = Sampling {
            temperature: self.temperature.map_or(usual.temperature, |temperature| temperature.into() as f32),
            top_k: self.top_k.map_or(usual.top_k, |k| k.count().unwrap_or(0)),
            top_p: self.top_p.map_or(usual.top_p, |p| f64::from(p) as f32),
            min_p: self.min_p.map_or(usual.min_p, |p| f64::from(p) as f32),
            repetition_penalty: repetition.map_or(1.0, |penalty| f64::from(penalty) as f32),
            presence_penalty: penalty(self.presence_penalty),
            frequency_penalty: penalty(self.frequency_penalty),
            logit_bias: logit_bias::read(self.logit_bias, D::BIAS_MAX, encode)?,
            min_tokens: self.min_tokens.and_then(Whole::count).unwrap_or(0),
            seed: self.seed.map_or(usual.seed, Seed::drawn),
            ..usual
        };
        match self.repeat_last_n.map(Whole::count) {
            Some(Some(0)) => {
                sampling.repetition_penalty = 1.0;
                sampling.presence_penalty = 0.0;
                sampling.frequency_penalty = 0.0;
            }
            Some(last_n) => sampling.penalty_last_n = last_n.unwrap_or(0),
            None => {}
        }
        Ok(sampling)
    }
}

/// Returns a dialect's default sampling settings.
pub(crate) fn unsaid<D: Defaults>() -> Sampling {
    Sampling {
        temperature: D::TEMPERATURE,
        top_k: D::TOP_K,
        top_p: D::TOP_P,
        min_p: D::MIN_P,
        repetition_penalty: 1.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        penalty_last_n: D::PENALTY_LAST_N,
        logit_bias: Vec::new(),
        min_tokens: 0,
        seed: Seed(RANDOM_SEED).drawn(),
    }
}

/// Any 64-bit number. Clients send -1 for a random seed; older clients of llama-server send 4294967295.
#[derive(Debug, Clone, Copy)]
struct Seed(u64);

impl Seed {
    fn drawn(self) -> u64 {
        if self.0 == RANDOM_SEED { random() & SEED_BITS } else { self.0 }
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

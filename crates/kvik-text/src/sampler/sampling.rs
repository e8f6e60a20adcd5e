//! Sampling parameters, as plain data.

use kvik_cache::Token;

/// Sampling parameters. Neutral values disable a rule.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: f32,
    /// Keep the `k` likeliest tokens; 0 keeps all.
    pub top_k: usize,
    /// Keep the smallest set whose probability reaches `p`; 1 keeps all.
    pub top_p: f32,
    /// Drop tokens below `p` times the likeliest; 0 keeps all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of seen tokens; 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted once from every generated token; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted per occurrence from every generated token; 0 is off.
    pub frequency_penalty: f32,
    /// Number of most recent tokens that the penalties cover; 0 means all.
    pub penalty_last_n: usize,
    /// Added to the logits of single tokens; negative infinity forbids one.
    pub logit_bias: Vec<(Token, f32)>,
    /// Tokens that an answer must have before an end-of-generation token may end it; a constraint that allows
    /// only the end still ends it.
    pub min_tokens: usize,
    /// Seed of the sampler; the same seed gives the same text regardless of other requests.
    pub seed: u64,
}

impl Sampling {
    /// The likeliest token, with every rule off.
    pub const GREEDY: Sampling = Sampling {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repetition_penalty: 1.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        penalty_last_n: 0,
        logit_bias: Vec::new(),
        min_tokens: 0,
        seed: 0,
    };

    /// Whether a penalty is not neutral.
    pub fn has_penalty(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }
}

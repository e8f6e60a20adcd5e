//! Samples the next token from a row of logits.
//!
//! Order of the rules, as in llama.cpp: logit bias, penalties, grammar mask, then at temperature 0 the likeliest
//! token, otherwise top-k, top-p, min-p and temperature. The draw is a function of (seed, choice, index of the
//! token), so neither other requests nor a preemption change it. Among equal logits the lowest token id wins. NaN
//! counts as impossible. The vocabulary is never sorted: a token is drawn first and checked afterwards
//! (`docs/decisions/2026-11-25-draws.md`).

mod distribution;
mod draw;
mod logprob;
mod penalty;
mod random;
mod sampling;
mod select;

use std::convert::Infallible;

use kvik_cache::Token;
use kvik_kernels::vectorised;

use penalty::Penalties;

pub use logprob::{divergence, logprob, logprobs};
pub use sampling::Sampling;
pub use select::likeliest;

/// Tokens that are tested against a constraint one by one before its full mask is computed.
const TRIES: usize = 12;

/// Sampler of one choice.
#[derive(Debug, Clone)]
pub struct Sampler {
    sampling: Sampling,
    seed: u64,
    /// Tokens accepted so far: the counter of the random draws.
    drawn: u64,
    penalties: Option<Penalties>,
    /// Tokens forbidden until `min_tokens` have been generated.
    ends: Vec<Token>,
}

/// Buffers shared by all samplers of an engine.
#[derive(Debug, Default)]
pub struct Scratch {
    /// Edited logits, `[vocab]`.
    logits: Vec<f32>,
    /// The weights of the parts of a row.
    masses: Vec<f64>,
    candidates: Vec<select::Candidate>,
    /// Weights of the candidates.
    weights: Vec<f32>,
}

impl Sampler {
    /// A sampler for choice `choice` of a request, with `prompt` as its history.
    pub fn new(sampling: &Sampling, choice: u32, prompt: &[Token]) -> Sampler {
        Sampler {
            sampling: sampling.clone(),
            seed: sampling.seed.wrapping_add(u64::from(choice)),
            drawn: 0,
            penalties: Penalties::new(sampling, prompt),
            ends: Vec::new(),
        }
    }

    /// The sampler of choice `choice` of the same request, without reading the prompt again. `self` must not have accepted
    /// a token yet.
    pub fn sibling(&self, choice: u32) -> Sampler {
        Sampler { seed: self.sampling.seed.wrapping_add(u64::from(choice)), ..self.clone() }
    }

    /// Forbids `ends` until `min_tokens` have been generated.
    pub fn holding_back(self, ends: &[Token]) -> Sampler {
        let ends = if self.sampling.min_tokens > 0 { ends.to_vec() } else { Vec::new() };
        Sampler { ends, ..self }
    }

    /// Samples from `logits`, shape `[vocab]`; `mask` contains the tokens that the grammar allows, in words
    /// of 32 bits.
    /// `None` if no token is possible.
    pub fn sample(&self, logits: &[f32], mask: Option<&[u32]>, scratch: &mut Scratch) -> Option<Token> {
        let Some(mask) = mask else { return self.sample_edited(logits, None, scratch) };
        if !self.is_greedy() {
            let allows = |token| Ok::<bool, Infallible>(is_in(mask, token));
            let Ok(likely) = self.sample_likely(logits, scratch, allows);
            if likely.is_some() {
                return likely;
            }
        }
        self.sample_behind_likely(logits, mask, scratch)
    }

    /// The result of [`Sampler::sample`] with a mask, after [`Sampler::sample_likely`] has found no token.
    pub(crate) fn sample_behind_likely(
        &self,
        logits: &[f32],
        mask: &[u32],
        scratch: &mut Scratch,
    ) -> Option<Token> {
        match self.takes_the_likeliest() {
            true => select::likeliest_among(logits, mask),
            false => self.sample_edited(logits, Some(mask), scratch),
        }
    }

    fn sample_edited(&self, logits: &[f32], mask: Option<&[u32]>, scratch: &mut Scratch) -> Option<Token> {
        let mut edited = std::mem::take(&mut scratch.logits);
        let logits = self.edited(logits, mask, &mut edited);
        let token = if self.is_greedy() {
            likeliest(logits)
        } else {
            // The numbers before these have drawn tokens that the mask excludes.
            let refused = if mask.is_some() { TRIES } else { 0 };
            let units = random::units(self.seed, self.drawn).skip(refused);
            draw::draw(&self.sampling, logits, units, scratch)
        };
        scratch.logits = edited;
        token
    }

    /// The result of [`Sampler::sample`] with a mask of all tokens that `allows` accepts, found by testing a few
    /// likely ones: a full mask takes longest if most tokens are in it. `None` if none of them is allowed, or if
    /// the likely tokens depend on the mask.
    ///
    /// # Errors
    /// Returns the errors of `allows`.
    pub fn sample_likely<E>(
        &self,
        logits: &[f32],
        scratch: &mut Scratch,
        allows: impl FnMut(Token) -> Result<bool, E>,
    ) -> Result<Option<Token>, E> {
        if !self.is_greedy() && !draw::is_plain(&self.sampling, logits) {
            return Ok(None);
        }
        let mut edited = std::mem::take(&mut scratch.logits);
        let logits = self.edited(logits, None, &mut edited);
        let token = if self.is_greedy() {
            select::likeliest_allowed(logits, TRIES, &mut scratch.candidates, allows)
        } else {
            let units = random::units(self.seed, self.drawn).take(TRIES);
            draw::draw_allowed(self.sampling.temperature, logits, units, scratch, allows)
        };
        scratch.logits = edited;
        token
    }

    /// Records the sampled token.
    pub fn accept(&mut self, token: Token) {
        self.drawn += 1;
        if let Some(penalties) = &mut self.penalties {
            penalties.accept(token);
        }
    }

    /// Whether the sampler takes the likeliest token from now on, without editing logits.
    pub fn takes_the_likeliest(&self) -> bool {
        self.is_greedy() && !self.edits()
    }

    fn is_greedy(&self) -> bool {
        self.sampling.temperature <= 0.0
    }

    fn edits(&self) -> bool {
        self.penalties.is_some() || !self.sampling.logit_bias.is_empty() || !self.held_back().is_empty()
    }

    fn held_back(&self) -> &[Token] {
        if self.drawn < self.sampling.min_tokens as u64 { &self.ends } else { &[] }
    }

    /// The logits with this request's edits, in `buffer` if there are any.
    fn edited<'a>(&self, logits: &'a [f32], mask: Option<&[u32]>, buffer: &'a mut Vec<f32>) -> &'a [f32] {
        if !self.edits() && mask.is_none() {
            return logits;
        }
        buffer.clear();
        buffer.extend_from_slice(logits);
        self.edit(buffer, mask);
        buffer
    }

    fn edit(&self, logits: &mut [f32], mask: Option<&[u32]>) {
        for &(token, bias) in &self.sampling.logit_bias {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit += bias;
            }
        }
        if let Some(penalties) = &self.penalties {
            penalties.apply(logits);
        }
        if let Some(mask) = mask {
            forbid(logits, mask);
        }
        for &token in self.held_back() {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
}

/// Whether a mask contains a token.
fn is_in(mask: &[u32], token: Token) -> bool {
    mask.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
}

/// Sets the logits of tokens that `mask` excludes to negative infinity.
fn forbid(logits: &mut [f32], mask: &[u32]) {
    let mut words = mask.iter();
    vectorised(
        #[inline(always)]
        || {
            for lane in logits.chunks_mut(32) {
                let word = words.next().copied().unwrap_or(0);
                for (bit, logit) in lane.iter_mut().enumerate() {
                    *logit = if word >> bit & 1 == 0 { f32::NEG_INFINITY } else { *logit };
                }
            }
        },
    );
}

#[cfg(test)]
mod tests;

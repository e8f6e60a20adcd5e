//! Penalties on tokens that occurred before.
//!
//! The repetition penalty covers the prompt and the answer, as in llama.cpp;
//! presence and frequency penalties cover the answer only, as in OpenAI's API.

use std::collections::VecDeque;

use kvik_cache::Token;
use rustc_hash::FxHashMap;

use crate::sampler::Sampling;

/// Occurrences of the tokens inside the window.
#[derive(Debug)]
pub(super) struct Penalties {
    repetition: f32,
    presence: f32,
    frequency: f32,
    counts: FxHashMap<Token, Counts>,
    /// Tokens the window holds; 0 means all.
    window_max: usize,
    /// The window's tokens, oldest first; empty when the window is unbounded.
    window: VecDeque<(Token, Origin)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    Prompt,
    Answer,
}

#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    seen: u32,
    generated: u32,
}

impl Penalties {
    /// `None` when every penalty is neutral.
    pub(super) fn new(sampling: &Sampling, prompt: &[Token]) -> Option<Penalties> {
        let neutral = sampling.repetition_penalty == 1.0
            && sampling.presence_penalty == 0.0
            && sampling.frequency_penalty == 0.0;
        if neutral {
            return None;
        }
        let mut penalties = Penalties {
            repetition: sampling.repetition_penalty,
            presence: sampling.presence_penalty,
            frequency: sampling.frequency_penalty,
            counts: FxHashMap::default(),
            window_max: sampling.penalty_last_n,
            window: VecDeque::new(),
        };
        for &token in prompt {
            penalties.enter(token, Origin::Prompt);
        }
        Some(penalties)
    }

    pub(super) fn accept(&mut self, token: Token) {
        self.enter(token, Origin::Answer);
    }

    /// Edits `logits`, shape `[vocab]`: applies first the repetition factor, then the subtractions.
    pub(super) fn apply(&self, logits: &mut [f32]) {
        for (&token, counts) in &self.counts {
            let Some(logit) = logits.get_mut(token as usize) else { continue };
            if *logit <= 0.0 {
                *logit *= self.repetition;
            } else {
                *logit /= self.repetition;
            }
            if counts.generated > 0 {
                *logit -= counts.generated as f32 * self.frequency + self.presence;
            }
        }
    }

    fn enter(&mut self, token: Token, origin: Origin) {
        let counts = self.counts.entry(token).or_default();
        counts.seen += 1;
        counts.generated += u32::from(origin == Origin::Answer);
        if self.window_max == 0 {
            return;
        }
        self.window.push_back((token, origin));
        if self.window.len() > self.window_max
            && let Some((token, origin)) = self.window.pop_front()
        {
            self.leave(token, origin);
        }
    }

    fn leave(&mut self, token: Token, origin: Origin) {
        let counts = self.counts.get_mut(&token).expect("a token of the window is counted");
        counts.seen -= 1;
        counts.generated -= u32::from(origin == Origin::Answer);
        if counts.seen == 0 {
            self.counts.remove(&token);
        }
    }
}

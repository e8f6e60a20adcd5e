//! Penalties on tokens that occurred before.
//!
//! The repetition penalty covers the prompt and the answer, as in llama.cpp;
//! presence and frequency penalties cover the answer only, as in OpenAI's API.

use std::collections::VecDeque;

use kvik_cache::Token;
use rustc_hash::FxHashMap;

use crate::sampler::Sampling;

/// Occurrences of the tokens inside the window.
#[derive(Debug, Clone)]
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
        if !sampling.has_penalty() {
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
        for &token in penalised(sampling, prompt) {
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

/// The tokens of a prompt that change logits: those inside the window, and none without a repetition penalty. A prompt
/// may be much longer than the window, and it is read while all other requests wait.
fn penalised<'a>(sampling: &Sampling, prompt: &'a [Token]) -> &'a [Token] {
    match sampling.penalty_last_n {
        _ if sampling.repetition_penalty == 1.0 => &[],
        0 => prompt,
        window_max => &prompt[prompt.len().saturating_sub(window_max)..],
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LOGITS: [f32; 12] = [3.0, -1.5, 0.0, -0.0, 1e-3, 2.5, -7.0, 0.3, f32::INFINITY, -0.1, 9.0, -4.0];

    /// Penalties into which every token of the prompt was entered.
    fn of_all(sampling: &Sampling, prompt: &[Token]) -> Penalties {
        let mut penalties = Penalties::new(sampling, &[]).expect("a penalty is set");
        prompt.iter().for_each(|&token| penalties.enter(token, Origin::Prompt));
        penalties
    }

    fn penalise(penalties: &Penalties) -> [u32; 12] {
        let mut logits = LOGITS;
        penalties.apply(&mut logits);
        logits.map(f32::to_bits)
    }

    proptest! {
        #[test]
        fn a_long_prompt_has_the_penalties_of_its_tail(
            prompt in prop::collection::vec(0u32..12, 0..60),
            answer in prop::collection::vec(0u32..12, 0..30),
            penalty_last_n in 0usize..20,
            repetition_penalty in prop::sample::select(vec![1.0f32, 1.3, 0.7]),
        ) {
            let sampling = Sampling {
                repetition_penalty,
                presence_penalty: 0.5,
                frequency_penalty: 0.6,
                penalty_last_n,
                ..Sampling::GREEDY
            };
            let mut tail = Penalties::new(&sampling, &prompt).expect("a penalty is set");
            let mut all = of_all(&sampling, &prompt);
            prop_assert_eq!(penalise(&tail), penalise(&all));
            for token in answer {
                tail.accept(token);
                all.accept(token);
                prop_assert_eq!(penalise(&tail), penalise(&all));
            }
        }
    }

    #[test]
    fn of_a_prompt_only_what_is_penalised_is_read() {
        let prompt: Vec<Token> = (0..1000).collect();
        let read = |repetition_penalty, penalty_last_n| {
            let sampling = Sampling { repetition_penalty, penalty_last_n, ..Sampling::GREEDY };
            penalised(&sampling, &prompt).len()
        };
        assert_eq!([read(1.3, 64), read(1.3, 0), read(1.3, 2000), read(1.0, 0)], [64, 1000, 1000, 0]);
    }
}

//! The scale in which a client is told token counts, as if the model's context were the window that the client assumes.
//!
//! An agent that knows a model's window by name compacts its conversation when the counts come near it. With a smaller
//! context its request would be refused before that. So the context is told as the window, and every count in
//! proportion.
//!
//! A count is a difference of two positions in a request, whose tokens stand in one line: those from the cache, then
//! the computed ones of the prompt, then the generated ones. Positions are scaled and rounded up. Therefore parts always
//! add up to their totals, and prompt and answer that fill the context are told as exactly the window.

use crate::http::error::{ApiError, Overflow};

/// A scale of token counts; the default one tells them as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TokenScale {
    /// Tokens of the window that the client assumes.
    window: usize,
    /// Tokens of the model's context, which are told as that many.
    context: usize,
}

impl Default for TokenScale {
    fn default() -> TokenScale {
        TokenScale { window: 1, context: 1 }
    }
}

impl TokenScale {
    /// The scale that tells a context as a window; both are at least 1.
    pub(crate) fn of(window: usize, context: usize) -> TokenScale {
        TokenScale { window: window.max(1), context: context.max(1) }
    }

    /// The window that the client is told; `None` where counts are told as they are.
    pub(crate) fn window(self) -> Option<usize> {
        (self.window != self.context).then_some(self.window)
    }

    /// The first `tokens` tokens of a request.
    pub(crate) fn told(self, tokens: usize) -> usize {
        let told = (tokens as u128 * self.window as u128).div_ceil(self.context as u128);
        usize::try_from(told).unwrap_or(usize::MAX)
    }

    /// The tokens of a request behind its first `from`, up to its first `to`.
    pub(crate) fn between(self, from: usize, to: usize) -> usize {
        self.told(to).saturating_sub(self.told(from))
    }

    /// The fewest tokens that are told as `told` or more: a threshold of the client in tokens of the model.
    pub(crate) fn reaching(self, told: usize) -> usize {
        let Some(below) = told.checked_sub(1) else { return 0 };
        let most_below = below as u128 * self.context as u128 / self.window as u128;
        usize::try_from(most_below).unwrap_or(usize::MAX).saturating_add(1)
    }

    /// An error in this scale: clients compare the counts of a prompt that is too long with the window.
    pub(crate) fn refusal(self, error: ApiError) -> ApiError {
        let Some((real, window)) = error.overflow().zip(self.window()) else { return error };
        let (prompt_tokens, context_tokens) = (self.told(real.prompt_tokens), self.told(real.context_tokens));
        let told = ApiError::from(Overflow { prompt_tokens, context_tokens, ..real });
        let context = real.context_tokens;
        let message = format!("{told} (a context of {context} tokens is told as {window})");
        let told = told.because(message);
        if let Some(param) = error.param() { told.at(param) } else { told }
    }
}

#[cfg(test)]
mod tests {
    use kvik_engine::api::RequestError;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_scale_is_monotone_and_its_parts_add_up(
            window in 16usize..=1 << 30,
            context in 16usize..=1 << 24,
            mut parts in prop::collection::vec(0usize..=1 << 24, 3),
        ) {
            parts.sort_unstable();
            let (scale, cached, prompt, all) = (TokenScale::of(window, context), parts[0], parts[1], parts[2]);
            let sum = scale.told(cached) + scale.between(cached, prompt) + scale.between(prompt, all);
            prop_assert_eq!(sum, scale.told(all));
            prop_assert!(scale.told(cached) <= scale.told(prompt) && scale.told(prompt) <= scale.told(all));
            prop_assert_eq!(scale.told(all) <= window, all <= context, "{} of {}", all, context);
            // Less than one token more than in proportion.
            let beyond = scale.told(all) as u128 * context as u128 - all as u128 * window as u128;
            prop_assert!(beyond < context as u128);
        }

        #[test]
        fn a_full_context_is_the_window_and_an_empty_one_nothing(
            window in 16usize..=1 << 30, context in 16usize..=1 << 24,
        ) {
            let scale = TokenScale::of(window, context);
            prop_assert_eq!((scale.told(0), scale.told(context)), (0, window));
            prop_assert_eq!(scale.window(), Some(window).filter(|_| window != context));
        }

        #[test]
        fn a_threshold_is_reached_where_its_client_sees_it_reached(
            window in 16usize..=1 << 30, context in 16usize..=1 << 24, told in 0usize..=1 << 30,
        ) {
            let scale = TokenScale::of(window, context);
            let tokens = scale.reaching(told);
            prop_assert!(scale.told(tokens) >= told);
            prop_assert!(tokens == 0 || scale.told(tokens - 1) < told);
        }
    }

    #[test]
    fn the_default_scale_changes_nothing() {
        let scale = TokenScale::default();
        for tokens in [0, 1, 7, 2_048, usize::MAX] {
            assert_eq!((scale.told(tokens), scale.reaching(tokens)), (tokens, tokens));
        }
        let too_long =
            ApiError::from(RequestError::PromptTooLong { prompt_tokens: 5_000, context_tokens: 2_048 });
        assert_eq!((scale.window(), scale.refusal(too_long.clone())), (None, too_long));
    }

    #[test]
    fn a_prompt_that_is_too_long_is_refused_with_the_numbers_that_its_client_compares() {
        let scale = TokenScale::of(200_000, 2_048);
        let real = Overflow { prompt_tokens: 2_049, context_tokens: 2_048, is_at_least: true };
        let told = scale.refusal(ApiError::from(real).at("messages"));
        let expect = Overflow { prompt_tokens: 200_098, context_tokens: 200_000, is_at_least: true };
        assert_eq!((told.overflow(), told.param()), (Some(expect), Some("messages")));
        let message = told.to_string();
        for words in
            ["length is 200000 tokens", "has at least 200098", "a context of 2048 tokens is told as 200000"]
        {
            assert!(message.contains(words), "{message} says {words}");
        }
        let another = ApiError::busy("full", 2);
        assert_eq!(scale.refusal(another.clone()), another);
    }
}

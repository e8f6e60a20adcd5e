//! Perplexity of a model on a text, computed as llama.cpp's `llama-perplexity` does, so that the two can
//! be compared digit by digit.
//!
//! The tokens of the text are cut into windows. Each window is computed cold, in the same blocks, and
//! the begin-of-text token replaces its first token if the model wants one. The first half of a
//! window is context only; each position of the second half but the last is scored on the next token:
//!
//! ```text
//! position   0 .. w/2-1    w/2 .. w-2       w-1
//!            context       predicts next    only predicted
//! ```
//!
//! Tokens after the last whole window are not scored.

use kvik_cache::{BLOCK_POSITIONS, BlockId, StateId, Token};
use kvik_text::sampler;
use kvik_text::tokenizer::Tokenizer;

use kvik_model::batch::{Batch, Output, Row, Runner, SequenceKv, SequenceState};

/// Default tokens of a window.
pub const WINDOW_TOKENS: usize = 512;
/// The shortest window with a token to score.
pub const WINDOW_TOKENS_MIN: usize = 3;
/// Rows computed at a time: enough for the matrix kernels, and their logits still fit a large
/// vocabulary (256 rows of 150,000 tokens are 150 MB).
const ROWS_MAX: usize = 256;

/// Perplexity over the tokens scored so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Perplexity {
    /// Windows computed.
    pub windows: usize,
    /// Tokens scored.
    pub tokens: usize,
    /// Sum of the negative log-likelihoods, and of their squares.
    sum: f64,
    sum_of_squares: f64,
}

impl Perplexity {
    /// Mean negative log-likelihood of a token, in nats.
    pub fn mean(&self) -> f64 {
        self.sum / self.tokens as f64
    }

    /// `e` to the mean negative log-likelihood.
    pub fn value(&self) -> f64 {
        self.mean().exp()
    }

    /// Standard error of [`value`](Perplexity::value), propagated from that of the mean.
    pub fn error(&self) -> f64 {
        let variance = self.sum_of_squares / self.tokens as f64 - self.mean().powi(2);
        self.value() * (variance.max(0.0) / self.tokens.saturating_sub(1).max(1) as f64).sqrt()
    }

    /// Scores the token that came after these logits, `[vocab]`.
    pub fn score(&mut self, logits: &[f32], next: Token) {
        let surprise = -sampler::logprob(logits, next);
        self.tokens += 1;
        self.sum += surprise;
        self.sum_of_squares += surprise * surprise;
    }
}

/// A text cut into windows, ready to be scored.
#[derive(Debug, Clone)]
pub struct Windows {
    /// Whole windows, one after the other: `[windows, window_tokens]`.
    tokens: Vec<Token>,
    window_tokens: usize,
}

impl Windows {
    /// Cuts `text` into windows of `window_tokens`, the first `windows_max` of them.
    ///
    /// A single newline at the end of `text` is dropped, as llama.cpp does for prompt files.
    pub fn new(
        tokenizer: &Tokenizer,
        text: &str,
        window_tokens: usize,
        windows_max: usize,
    ) -> Result<Windows, PerplexityError> {
        let tokens = tokenizer.encode(text.strip_suffix('\n').unwrap_or(text), true, false);
        let bos = tokenizer.required_bos();
        Windows::cut(tokens, bos, window_tokens, windows_max)
    }

    /// Cuts `tokens`; every window begins with `bos` if there is one.
    fn cut(
        mut tokens: Vec<Token>,
        bos: Option<Token>,
        window_tokens: usize,
        windows_max: usize,
    ) -> Result<Windows, PerplexityError> {
        if window_tokens < WINDOW_TOKENS_MIN {
            return Err(PerplexityError::ShortWindow { window_tokens });
        }
        let count = (tokens.len() / window_tokens).min(windows_max);
        if count == 0 {
            return Err(PerplexityError::ShortText { tokens: tokens.len(), window_tokens });
        }
        tokens.truncate(count * window_tokens);
        if let Some(bos) = bos {
            tokens.iter_mut().step_by(window_tokens).for_each(|first| *first = bos);
        }
        Ok(Windows { tokens, window_tokens })
    }

    /// The windows, `[window_tokens]` each.
    pub fn iter(&self) -> impl Iterator<Item = &[Token]> {
        self.tokens.chunks_exact(self.window_tokens)
    }

    /// The windows with even index, and those with odd index.
    pub fn in_turns(&self) -> [Windows; 2] {
        let tokens = |skipped| self.iter().skip(skipped).step_by(2).flatten().copied().collect();
        [0, 1].map(|skipped| Windows { tokens: tokens(skipped), window_tokens: self.window_tokens })
    }

    /// Number of windows.
    pub fn count(&self) -> usize {
        self.tokens.len() / self.window_tokens
    }

    /// KV blocks that a runner needs to compute them.
    pub fn blocks(&self) -> usize {
        self.window_tokens.div_ceil(BLOCK_POSITIONS)
    }

    /// Scores every window on `runner`, which must have [`blocks`](Windows::blocks) blocks from 0 and
    /// positions for a window. Calls `progress` with the perplexity so far after each window.
    pub fn score(&self, runner: &mut dyn Runner, progress: &mut dyn FnMut(&Perplexity)) -> Perplexity {
        let table: Vec<BlockId> = (0..self.blocks()).map(|block| BlockId(block as u32)).collect();
        let mut perplexity = Perplexity::default();
        for window in self.iter() {
            score_window(runner, &table, window, &mut perplexity);
            perplexity.windows += 1;
            progress(&perplexity);
        }
        perplexity
    }
}

/// The recurrent state of the window that is computed, if layers have one.
const WINDOW_STATE: SequenceState<'_> = SequenceState { live: StateId(0), saves: &[], tentative: None };

/// Computes `window` from position 0 and scores its second half.
fn score_window(runner: &mut dyn Runner, table: &[BlockId], window: &[Token], perplexity: &mut Perplexity) {
    let scored = window.len() / 2..window.len() - 1;
    let row = |position: usize| Row {
        sequence: 0,
        token: window[position],
        position: position as u32,
        cache_position: position as u32,
        output: Output::logits_if(scored.contains(&position)),
    };
    let state = (runner.state_bytes() > 0).then_some(WINDOW_STATE);
    state.into_iter().for_each(|state| runner.set_state(state.live, None));
    let sequence = SequenceKv { state, ..SequenceKv::in_blocks(table) };
    for start in (0..scored.end).step_by(ROWS_MAX) {
        let end = scored.end.min(start + ROWS_MAX);
        let rows: Vec<Row> = (start..end).map(row).collect();
        let vocab = runner.vocab_len();
        let logits = runner.forward(&Batch { rows: &rows, sequences: &[sequence] }, &mut []);
        let first = scored.start.max(start);
        for (row, position) in logits.chunks_exact(vocab).zip(first..end) {
            perplexity.score(row, window[position + 1]);
        }
    }
}

/// Why the perplexity of a text cannot be computed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PerplexityError {
    /// The text does not fill one window.
    #[error(
        "the text has {tokens} tokens and a window is {window_tokens}; take a longer text or smaller windows"
    )]
    ShortText {
        /// Tokens of the text.
        tokens: usize,
        /// Tokens of a window.
        window_tokens: usize,
    },
    /// A window has no token to score.
    #[error("windows of {window_tokens} tokens leave none to score; take at least {WINDOW_TOKENS_MIN}")]
    ShortWindow {
        /// Tokens of a window.
        window_tokens: usize,
    },
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test may fail where it stands
mod tests {
    use super::*;
    use kvik_model::observation::Watched;

    const VOCAB: usize = 8;

    /// Gives the token after `t` in the vocabulary the logit `confidence`, and all others 0.
    struct Successor {
        confidence: f32,
        seen: Vec<Row>,
        logits: Vec<f32>,
    }

    impl Successor {
        fn new(confidence: f32) -> Successor {
            Successor { confidence, seen: Vec::new(), logits: Vec::new() }
        }
    }

    impl Runner for Successor {
        fn vocab_len(&self) -> usize {
            VOCAB
        }

        fn copy_partial(&mut self, _: BlockId, _: BlockId, _: usize) {
            unreachable!("windows share nothing");
        }

        fn read_block(&self, _: BlockId, _: &mut [u8]) {}

        fn write_block(&mut self, _: BlockId, _: &[u8]) {}

        fn forward(&mut self, batch: &Batch<'_>, _: &mut [Watched<'_>]) -> &[f32] {
            self.seen.extend(batch.rows);
            self.logits.clear();
            for row in batch.rows.iter().filter(|row| row.output == Output::Logits) {
                let next = (row.token as usize + 1) % VOCAB;
                self.logits.extend((0..VOCAB).map(|t| if t == next { self.confidence } else { 0.0 }));
            }
            &self.logits
        }
    }

    fn counting(count: usize) -> Vec<Token> {
        (0..count).map(|i| (i % VOCAB) as Token).collect()
    }

    fn score(windows: &Windows, runner: &mut Successor) -> Perplexity {
        windows.score(runner, &mut |_| {})
    }

    #[test]
    fn the_second_half_of_each_whole_window_is_scored() {
        let check = |tokens, window, windows_max, windows, scored| {
            let cut = Windows::cut(counting(tokens), None, window, windows_max).unwrap();
            let perplexity = score(&cut, &mut Successor::new(0.0));
            assert_eq!((perplexity.windows, perplexity.tokens), (windows, scored), "{tokens} by {window}");
        };
        check(1024, 512, usize::MAX, 2, 2 * 255);
        check(1023, 512, usize::MAX, 1, 255);
        check(1024, 512, 1, 1, 255);
        check(2100, 1000, usize::MAX, 2, 2 * 499);
        check(30, 7, usize::MAX, 4, 4 * 3);
        check(3, 3, usize::MAX, 1, 1);
    }

    #[test]
    fn the_perplexity_of_a_uniform_model_is_its_vocabulary_size() {
        let windows = Windows::cut(counting(64), None, 32, usize::MAX).unwrap();
        let perplexity = score(&windows, &mut Successor::new(0.0));
        assert!((perplexity.value() - VOCAB as f64).abs() < 1e-5, "{}", perplexity.value());
        assert!(perplexity.error() < 1e-5, "{}", perplexity.error());
    }

    #[test]
    fn each_position_is_scored_on_the_next_token() {
        let windows = Windows::cut(counting(2048), None, 1024, usize::MAX).unwrap();
        let perplexity = score(&windows, &mut Successor::new(50.0));
        assert!((perplexity.value() - 1.0).abs() < 1e-6, "{}", perplexity.value());
    }

    #[test]
    fn the_error_is_propagated_from_the_error_of_the_mean() {
        // Half of the scored tokens cost nothing and half cost 50 nats: deviation 25 over the root of n - 1.
        let mut tokens = counting(512);
        tokens[384..].fill(0);
        let windows = Windows::cut(tokens, None, 512, usize::MAX).unwrap();
        let perplexity = score(&windows, &mut Successor::new(50.0));
        let share = 127.0 / 255.0f64;
        let deviation = 50.0 * (share * (1.0 - share)).sqrt();
        assert!((perplexity.mean() / (50.0 * share) - 1.0).abs() < 1e-6, "{}", perplexity.mean());
        let error = perplexity.error() / perplexity.value();
        assert!((error / (deviation / 254.0f64.sqrt()) - 1.0).abs() < 1e-6, "{error}");
    }

    #[test]
    fn every_window_is_computed_cold_and_begins_with_bos() {
        let windows = Windows::cut(counting(600), Some(7), 300, usize::MAX).unwrap();
        let mut runner = Successor::new(0.0);
        score(&windows, &mut runner);
        let positions: Vec<u32> = (0..299).chain(0..299).collect();
        assert_eq!(runner.seen.iter().map(|row| row.position).collect::<Vec<_>>(), positions);
        for (index, row) in runner.seen.iter().enumerate() {
            let (window, position) = (index / 299, index % 299);
            let token = if position == 0 { 7 } else { ((window * 300 + position) % VOCAB) as Token };
            assert_eq!(
                (row.token, row.output),
                (token, Output::logits_if(position >= 150)),
                "position {position} of {window}"
            );
        }
    }

    #[test]
    fn texts_and_windows_with_no_token_to_score_are_refused() {
        let check = |tokens, window_tokens, expect| {
            assert_eq!(Windows::cut(counting(tokens), None, window_tokens, 9).unwrap_err(), expect);
        };
        check(511, 512, PerplexityError::ShortText { tokens: 511, window_tokens: 512 });
        check(0, 512, PerplexityError::ShortText { tokens: 0, window_tokens: 512 });
        check(512, 2, PerplexityError::ShortWindow { window_tokens: 2 });
        check(512, 0, PerplexityError::ShortWindow { window_tokens: 0 });
    }
}

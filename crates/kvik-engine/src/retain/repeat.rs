//! The prompt that asks a model to repeat its input, so that KVzip (arXiv 2505.23416) observes which positions it needs
//! for that.
//!
//! The prompt is repeated in pieces. After the stored tokens come a request to repeat, the tokens that precede an
//! answer in a conversation, and the piece itself; the attention that these rows pay to the piece is counted.

use std::ops::Range;

use kvik_cache::Token;
use kvik_model::observation::Repeated;

/// Number of tokens repeated at a time.
const PIECE_TOKENS: usize = 2048;
/// Number of tokens of the previous piece that a later request quotes.
const QUOTED_TOKENS: usize = 8;
/// Number of first positions that count as attention sinks in every piece.
const SINKS: usize = 4;

/// The tokens around a repeated piece, for one model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RepeatPrompt {
    /// The tokens before the first message of a conversation: a prompt that begins with them does not repeat them.
    pub prefix: Vec<Token>,
    /// Asks to repeat everything.
    pub ask: Vec<Token>,
    /// Asks to repeat from a quotation on.
    pub ask_more: Vec<Token>,
    /// The tokens that precede an answer.
    pub suffix: Vec<Token>,
}

/// A piece of a prompt that is repeated.
pub(crate) struct Piece {
    /// Its range in the prompt.
    repeated: Range<usize>,
    /// The tokens that are computed after the prompt.
    pub(crate) tokens: Vec<Token>,
}

impl RepeatPrompt {
    /// The request to repeat everything, in words.
    pub const ASK: &str = "\n\nRepeat the previous context exactly.";
    /// The request to repeat from a quotation on, which follows it.
    pub const ASK_MORE: &str = "\n\nRepeat the part of the previous context exactly, starting with";

    /// Maximum number of rows after a prompt of `prompt` tokens that repeating it needs.
    pub fn rows_max(&self, prompt: usize) -> usize {
        let words = self.ask.len().max(self.ask_more.len() + QUOTED_TOKENS) + self.suffix.len();
        words + prompt.min(PIECE_TOKENS)
    }

    /// Number of leading tokens of a prompt that are not repeated: those that it has in common with the prefix, unless
    /// there are no others.
    pub(crate) fn skipped(&self, prompt: &[Token]) -> usize {
        let common = self.prefix.iter().zip(prompt).take_while(|(prefix, token)| prefix == token).count();
        if common == prompt.len() { 0 } else { common }
    }

    /// The pieces of a prompt, in order; a prompt with tokens has one at least.
    pub(crate) fn pieces(&self, prompt: &[Token]) -> Vec<Piece> {
        let first = self.skipped(prompt);
        let starts = (first..prompt.len()).step_by(PIECE_TOKENS);
        let pieces = starts.map(|start| {
            let repeated = start..prompt.len().min(start + PIECE_TOKENS);
            let mut tokens = match start == first {
                true => self.ask.clone(),
                false => [&self.ask_more, &prompt[start - QUOTED_TOKENS..start]].concat(),
            };
            tokens.extend(&self.suffix);
            tokens.extend(&prompt[repeated.clone()]);
            Piece { repeated, tokens }
        });
        pieces.collect()
    }
}

impl Piece {
    /// The stored positions over which attention is normalised, for a prompt of `prompt` tokens: sinks, the piece, and
    /// its repetition.
    pub(crate) fn among(&self, prompt: usize) -> Vec<Range<usize>> {
        let sinks = 0..SINKS.min(self.repeated.start);
        vec![sinks, self.repeated.clone(), prompt..prompt + self.tokens.len()]
    }

    /// The rows of a batch that repeat tokens of a prompt of `prompt` tokens, if its rows from `first` on compute the
    /// tokens `range` of the piece.
    pub(crate) fn repeats(&self, first: usize, range: Range<usize>, prompt: usize) -> Repeated {
        let words = self.tokens.len() - self.repeated.len();
        let start = words.clamp(range.start, range.end);
        let rows = first + start - range.start..first + range.len();
        Repeated { rows, from: self.repeated.start + start.saturating_sub(words), prompt }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_behind_the_prefix_is_repeated_once() {
        let words =
            RepeatPrompt { prefix: vec![100, 101, 102], ask: vec![1, 2], ask_more: vec![3], suffix: vec![9] };
        for length in [0, 2, 3, 4, 100, 2051, 2052, 5000] {
            let prompt: Vec<Token> = (0..length).map(|token| 100 + token).collect();
            let pieces = words.pieces(&prompt);
            let repeated: Vec<Token> =
                pieces.iter().flat_map(|piece| prompt[piece.repeated.clone()].to_vec()).collect();
            let skipped = if prompt.len() > 3 { 3 } else { 0 };
            assert_eq!(repeated, prompt[skipped..]);
            for piece in &pieces {
                assert!(piece.tokens.len() <= words.rows_max(prompt.len()));
                assert!(piece.tokens.ends_with(&prompt[piece.repeated.clone()]));
                let mut again = Vec::new();
                for start in (0..piece.tokens.len()).step_by(7) {
                    let range = start..piece.tokens.len().min(start + 7);
                    let Repeated { rows, from, prompt: tokens } =
                        piece.repeats(100, range.clone(), prompt.len());
                    assert!((100..=100 + range.len()).contains(&rows.start) && rows.end == 100 + range.len());
                    assert_eq!(tokens, prompt.len());
                    again.extend_from_slice(&prompt[from..from + rows.len()]);
                }
                assert_eq!(
                    again,
                    prompt[piece.repeated.clone()],
                    "each token's row is found, however rows come"
                );
            }
        }
    }

    /// A prompt was once repeated from a number of tokens on: one of no more tokens had no piece, and no position of it
    /// a score; another beginning than the template's was not repeated.
    #[test]
    fn a_prompt_is_repeated_from_where_it_leaves_the_prefix() {
        let words = RepeatPrompt { prefix: vec![5, 6, 7], ask: vec![1], ..RepeatPrompt::default() };
        let check = |prompt: &[Token], skipped| {
            let pieces = words.pieces(prompt);
            assert_eq!(pieces.len(), 1, "{prompt:?}");
            assert_eq!(pieces[0].repeated, skipped..prompt.len(), "{prompt:?}");
        };
        check(&[5, 6, 7, 8], 3);
        check(&[5, 6, 8, 8], 2);
        check(&[5, 6, 8], 2);
        check(&[8, 6, 7, 8], 0);
        check(&[5, 6, 7], 0);
        check(&[5], 0);
    }
}

//! Log-probabilities of tokens until it is known whether they are a text's: those of thoughts, calls and tags are not.

use std::{mem, ops::Range};

use crate::api::logprobs::Logprob;

/// The tokens that neither belong to a text yet nor are dropped, in order.
#[derive(Debug, Default)]
pub(super) struct Undecided {
    tokens: Vec<Logprob>,
    /// Bytes that are counted for the events which brought them.
    bytes: u64,
    /// Whether the last event gave tokens to a text.
    kept: bool,
}

impl Undecided {
    /// Adds the tokens of an event, whose text may be held back.
    pub(super) fn extend(&mut self, tokens: impl Iterator<Item = Logprob>) {
        self.tokens.extend(tokens);
    }

    /// Drops all tokens: what they say is no text.
    pub(super) fn clear(&mut self) {
        self.tokens.clear();
    }

    /// Takes the tokens of `text`, and drops those before it, as of a tag that ended thoughts. The text is the last one of
    /// what has arrived, up to the `held` bytes that are not decided; the first one, if what follows it is decided too.
    pub(super) fn take(&mut self, text: &str, held: Option<usize>) -> Vec<Logprob> {
        let bytes: Vec<u8> = self.tokens.iter().flat_map(Logprob::bytes).copied().collect();
        let Range { start, end } = place(&bytes, text, held);
        let all = mem::take(&mut self.tokens);
        let (mut at, mut taken) = (0, Vec::new());
        for token in all {
            let from = at;
            at += token.bytes().len();
            if from >= end {
                self.tokens.push(token);
            } else if from >= start || at > start {
                taken.push(token);
            }
        }
        self.kept |= !taken.is_empty();
        taken
    }

    /// Notes the bytes that are counted for the last event, and returns how many are out of memory now: none while its
    /// tokens are not decided or a text has them.
    pub(super) fn settle(&mut self, last: u64) -> u64 {
        let counted = mem::take(&mut self.bytes) + last;
        if mem::take(&mut self.kept) {
            return 0;
        }
        if self.tokens.is_empty() {
            return counted;
        }
        self.bytes = counted;
        0
    }
}

/// Where a text stands in the bytes of tokens.
fn place(bytes: &[u8], text: &str, held: Option<usize>) -> Range<usize> {
    let begun = |start: usize| start..start + text.len();
    if let Some(start) = find(bytes, text.as_bytes(), held) {
        return begun(start);
    }
    // A text with a character that stands for bytes which are no UTF-8 has all tokens.
    if text.contains(char::REPLACEMENT_CHARACTER) {
        return 0..usize::MAX;
    }
    // A token comes once all of its text has: one that ends inside a character comes after what it says before that.
    let arrived = |&length: &usize| bytes.ends_with(&text.as_bytes()[..length]);
    begun(bytes.len() - (1..=text.len()).rev().find(arrived).unwrap_or(0))
}

/// Where a text begins, of which all tokens are there.
fn find(bytes: &[u8], text: &[u8], held: Option<usize>) -> Option<usize> {
    if text.is_empty() {
        return Some(0);
    }
    match held {
        Some(held) => {
            bytes[..bytes.len().saturating_sub(held)].windows(text.len()).rposition(|at| at == text)
        }
        None => bytes.windows(text.len()).position(|at| at == text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{logprobs::logprob, tests::token};

    /// Undecided tokens with these texts.
    fn tokens(texts: &[&str]) -> Undecided {
        let mut undecided = Undecided::default();
        undecided.extend(texts.iter().filter_map(|text| logprob(&token(1, text, true))));
        undecided
    }

    fn joined(tokens: &[Logprob]) -> String {
        tokens.iter().map(|token| String::from_utf8_lossy(token.bytes())).collect()
    }

    #[test]
    fn a_text_has_its_own_tokens() {
        let check = |texts: &[&str], text: &str, held: Option<usize>, expect: [&str; 2]| {
            let mut undecided = tokens(texts);
            let taken = undecided.take(text, held);
            assert_eq!([joined(&taken), joined(&undecided.tokens)], expect, "{texts:?}");
        };
        check(&["Hi", "!"], "Hi!", Some(0), ["Hi!", ""]);
        check(&["</think>", "\n\n", "<", "b"], "<b", Some(0), ["<b", ""]);
        check(&["</think>", "\n\n", "<", "<"], "<", Some(1), ["<", "<"]);
        check(&["</think>", "t", "h"], "th", Some(0), ["th", ""]);
        check(&["a", "<tool_call>", "a"], "a", None, ["a", "<tool_call>a"]);
        check(&[".\n", "\n<"], ".", Some(2), [".\n", "\n<"]);
        check(&["a", "b"], "\u{fffd}", Some(0), ["ab", ""]);
        check(&["</think>"], "", Some(0), ["", "</think>"]);
    }

    #[test]
    fn a_text_that_comes_before_its_tokens_has_none_of_a_tag() {
        let mut undecided = tokens(&["</think>", "\n\n"]);
        assert_eq!(joined(&undecided.take("é", Some(0))), "");
        undecided.extend(tokens(&["éx", "y"]).tokens.into_iter());
        assert_eq!(joined(&undecided.take("xy", Some(0))), "éxy");
        let mut undecided = tokens(&["</think>", "é"]);
        assert_eq!(joined(&undecided.take("éx", Some(1))), "é");
    }

    #[test]
    fn what_is_dropped_is_out_of_memory_and_what_a_text_has_is_not() {
        let mut undecided = tokens(&["</think>", "\n"]);
        assert_eq!((undecided.settle(10), undecided.settle(5)), (0, 0));
        undecided.clear();
        assert_eq!((undecided.settle(1), undecided.settle(2)), (16, 2));
        let mut undecided = tokens(&["a"]);
        assert_eq!(undecided.settle(10), 0);
        undecided.take("a", Some(0));
        assert_eq!((undecided.settle(1), undecided.settle(2)), (0, 2));
    }
}

//! Puts the tokens of answers, as they were generated, in the place of those that a tokenizer chose for the same bytes.

use std::sync::Arc;

use kvik_cache::Token;
use kvik_text::stream::Vocabulary;

use super::bytes::{TokenBytes, push};

/// Tokens that followed the first bytes of a prompt before.
#[derive(Debug, Clone)]
pub(super) struct Continuation {
    /// Number of these bytes.
    pub(super) at: usize,
    pub(super) tokens: Arc<[Token]>,
}

/// A prompt with answers as they were generated.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Spliced {
    pub(super) tokens: Vec<Token>,
    /// Tokens that a tokenizer would have chosen otherwise.
    pub(super) changed: usize,
    /// Indexes of the continuations whose tokens are in it.
    pub(super) used: Vec<usize>,
}

/// Part of a continuation that a prompt repeats, up to the last boundary between tokens that both have.
struct Repeated {
    tokens: usize,
    /// Where it ends in the prompt.
    end: usize,
}

/// The tokens of a prompt, `own` as bytes, with those of `continuations` where it goes on as they do. These are in the order
/// of their places.
pub(super) fn spliced(
    prompt: &[Token],
    own: &TokenBytes,
    continuations: &[Continuation],
    vocabulary: &Vocabulary,
) -> Spliced {
    let mut splice = Splice { prompt, own, next: 0, tokens: Vec::new(), ends: Vec::new() };
    let (mut used, mut first) = (Vec::new(), 0);
    for at in continuations.chunk_by(|one, other| one.at == other.at) {
        let repeated = at.iter().map(|one| repeated(one, own, vocabulary)).enumerate();
        if let Some((index, longest)) = repeated.max_by_key(|(_, repeated)| repeated.end)
            && splice.put(&at[index], &longest, vocabulary)
        {
            used.push(first + index);
        }
        first += at.len();
    }
    splice.copy_until(own.bytes.len());
    let changed = changed(prompt, own, &splice);
    Spliced { tokens: splice.tokens, changed, used }
}

/// How much of a continuation a prompt repeats.
fn repeated(one: &Continuation, own: &TokenBytes, vocabulary: &Vocabulary) -> Repeated {
    let mut longest = Repeated { tokens: 0, end: one.at };
    let (mut bytes, mut at) = (Vec::new(), one.at);
    for (index, &token) in one.tokens.iter().enumerate() {
        bytes.clear();
        push(token, vocabulary, &mut bytes);
        if !own.bytes.get(at..).is_some_and(|rest| rest.starts_with(&bytes)) {
            break;
        }
        at += bytes.len();
        if own.ending_at(at).is_some() {
            longest = Repeated { tokens: index + 1, end: at };
        }
    }
    longest
}

/// A prompt that is being put together.
struct Splice<'a> {
    prompt: &'a [Token],
    own: &'a TokenBytes,
    /// The next of the prompt's own tokens.
    next: usize,
    tokens: Vec<Token>,
    ends: Vec<usize>,
}

impl Splice<'_> {
    fn end(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Copies the prompt's own tokens that end at most there.
    fn copy_until(&mut self, byte: usize) {
        while self.own.ends.get(self.next).is_some_and(|&end| end <= byte) {
            self.tokens.push(self.prompt[self.next]);
            self.ends.push(self.own.ends[self.next]);
            self.next += 1;
        }
    }

    /// Puts a repeated part in, unless a token that is there already crosses its beginning, or what is there reaches further.
    /// Returns whether it is in.
    fn put(&mut self, one: &Continuation, part: &Repeated, vocabulary: &Vocabulary) -> bool {
        self.copy_until(one.at);
        if part.tokens == 0 || part.end <= self.end() {
            return false;
        }
        let kept = match one.at {
            0 => 0,
            at => match self.ends.binary_search(&at) {
                Ok(index) => index + 1,
                Err(_) => return false,
            },
        };
        self.tokens.truncate(kept);
        self.ends.truncate(kept);
        let generated = &one.tokens[..part.tokens];
        self.tokens.extend_from_slice(generated);
        let ends = TokenBytes::of(generated, vocabulary).ends;
        self.ends.extend(ends.into_iter().map(|end| one.at + end));
        self.next = self.own.ends.partition_point(|&end| end <= part.end);
        true
    }
}

/// Number of tokens that stand elsewhere, or are others, than the prompt's own.
fn changed(prompt: &[Token], own: &TokenBytes, splice: &Splice<'_>) -> usize {
    let mut begin = 0;
    let mut changed = 0;
    for (&token, &end) in splice.tokens.iter().zip(&splice.ends) {
        let same = own.ending_at(end).is_some_and(|index| prompt[index] == token) && own.begins_at(begin);
        changed += usize::from(!same);
        begin = end;
    }
    changed
}

#[cfg(test)]
mod tests {
    use kvik_text::stream::TokenKind;
    use proptest::prelude::*;

    use super::*;

    /// Tokens 0 to 13: all texts of one to three letters of a and b; 14 and 15 are control tokens.
    fn vocabulary() -> Vocabulary {
        let mut texts: Vec<(String, TokenKind)> = Vec::new();
        for length in 1..=3 {
            for number in 0..1 << length {
                let letter = |bit: usize| if number >> bit & 1 == 0 { 'a' } else { 'b' };
                texts.push(((0..length).map(letter).collect(), TokenKind::Text));
            }
        }
        texts.push(("<turn>".to_owned(), TokenKind::Control));
        texts.push(("<end>".to_owned(), TokenKind::EndOfGeneration));
        Vocabulary::new(texts)
    }

    const TURN: Token = 14;
    const END: Token = 15;

    fn text(tokens: &[Token]) -> Vec<u8> {
        TokenBytes::of(tokens, &vocabulary()).bytes
    }

    /// The longest token at each byte, as a tokenizer of few rules would choose.
    fn tokenized(tokens: &[Token]) -> Vec<Token> {
        let vocabulary = vocabulary();
        let mut out = Vec::new();
        for part in tokens.chunk_by(|&one, &other| one < TURN && other < TURN) {
            let bytes = text(part);
            let mut rest = &bytes[..];
            while part[0] < TURN && !rest.is_empty() {
                let fits = |token: &Token| rest.starts_with(vocabulary.bytes(*token));
                let longest = (0..TURN).filter(fits).max_by_key(|&token| vocabulary.bytes(token).len());
                out.push(longest.unwrap());
                rest = &rest[vocabulary.bytes(longest.unwrap()).len()..];
            }
            out.extend(part.iter().filter(|token| **token >= TURN));
        }
        out
    }

    fn splice(prompt: &[Token], continuations: &[(usize, &[Token])]) -> Spliced {
        let own = TokenBytes::of(prompt, &vocabulary());
        let one = |&(at, tokens): &(usize, &[Token])| Continuation { at, tokens: tokens.into() };
        let all: Vec<Continuation> = continuations.iter().map(one).collect();
        spliced(prompt, &own, &all, &vocabulary())
    }

    proptest! {
        #[test]
        fn a_conversation_has_the_tokens_of_its_answers(
            turns in prop::collection::vec(
                (prop::collection::vec(0..TURN, 1..5), prop::collection::vec(0..TURN, 1..12)),
                1..5,
            ),
        ) {
            let (mut said, mut known) = (Vec::new(), Vec::new());
            for (question, answer) in &turns {
                said.push(TURN);
                said.extend(tokenized(question));
                said.push(TURN);
                known.push((text(&said).len(), answer.clone()));
                said.extend(answer);
                said.push(END);
            }
            let known: Vec<(usize, &[Token])> = known.iter().map(|(at, answer)| (*at, &answer[..])).collect();
            let sent = tokenized(&said);
            let spliced = splice(&sent, &known);
            prop_assert_eq!(&spliced.tokens, &said);
            prop_assert_eq!(spliced.changed == 0, sent == said);
        }

        #[test]
        fn the_text_stays_whatever_is_remembered(
            prompt in prop::collection::vec(0..=END, 0..24),
            known in prop::collection::vec((0usize..40, prop::collection::vec(0..=END, 1..10)), 0..6),
        ) {
            let prompt = tokenized(&prompt);
            let mut known: Vec<(usize, &[Token])> = known.iter().map(|(at, answer)| (*at, &answer[..])).collect();
            known.sort_by_key(|(at, _)| *at);
            let spliced = splice(&prompt, &known);
            prop_assert_eq!(text(&spliced.tokens), text(&prompt));
            let controls = |tokens: &[Token]| tokens.iter().filter(|token| **token >= TURN).count();
            prop_assert_eq!(controls(&spliced.tokens), controls(&prompt));
            let own = TokenBytes::of(&prompt, &vocabulary());
            let mut begin = 0;
            for (&token, &end) in spliced.tokens.iter().zip(&TokenBytes::of(&spliced.tokens, &vocabulary()).ends) {
                let is_own = own.begins_at(begin) && own.ending_at(end).is_some_and(|index| prompt[index] == token);
                let is_generated = known.iter().any(|(at, answer)| {
                    *at <= begin && end - begin == text(&[token]).len() && answer.contains(&token)
                });
                prop_assert!(is_own || is_generated, "{token} at {begin}");
                begin = end;
            }
        }
    }

    #[test]
    fn the_tokenizer_goes_on_where_the_texts_part() {
        let [a, b, ab, aab] = ["a", "b", "ab", "aab"]
            .map(|name| (0..TURN).find(|&token| vocabulary().bytes(token) == name.as_bytes()).unwrap());
        let check = |prompt: &[Token], answer: &[Token], expect: &[Token], changed: usize| {
            let spliced = splice(prompt, &[(5, answer)]);
            let found = (&spliced.tokens[..], spliced.changed);
            assert_eq!(found, (expect, changed), "{prompt:?} {answer:?}");
        };
        check(&[TURN, ab, END], &[a, b], &[TURN, a, b, END], 2);
        check(&[TURN, ab, END], &[a, b, a], &[TURN, a, b, END], 2);
        check(&[TURN, ab, b, END], &[a, b, a], &[TURN, a, b, b, END], 2);
        // No boundary is shared inside the part that agrees.
        check(&[TURN, aab, END], &[a, a, a], &[TURN, aab, END], 0);
        check(&[TURN, ab, END], &[b, a], &[TURN, ab, END], 0);
        check(&[TURN, ab, END], &[ab, END], &[TURN, ab, END], 0);
    }

    #[test]
    fn of_several_answers_the_one_that_goes_on_longest_counts() {
        let prompt = [TURN, 2, 2, END];
        let spliced = splice(&prompt, &[(5, &[0, 0]), (5, &[0, 0, 0, 0]), (5, &[1])]);
        let tokens = vec![TURN, 0, 0, 0, 0, END];
        assert_eq!(spliced, Spliced { tokens, changed: 4, used: vec![1] });
        // A second answer continues the first one in its middle.
        let spliced = splice(&prompt, &[(5, &[0, 0, 0]), (7, &[0, 0])]);
        assert_eq!(spliced.tokens, [TURN, 0, 0, 0, 0, END]);
    }
}

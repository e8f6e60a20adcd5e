//! The answer of `/v1/completions`: plain text, for one or more prompts.

use std::{iter, mem, sync::Arc};

use kvik_engine::api::{Event, FinishReason, GeneratedToken};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::head::{Completion, FrameEnd, Head, WholeEnd};
use crate::{
    api::logprobs::{finite, text_bytes},
    app::{
        generation::Answer,
        report::{loops, trailer::Trailer},
        wire::Wire,
    },
    described::JsonSchema,
    http::answer::{value, words, written},
};

words! {
    TextCompletion = "text_completion";
}

/// A complete answer.
pub(super) type WholeText = Completion<TextCompletion, TextChoice, WholeEnd>;
/// The data of an event.
pub(super) type TextFrame = Completion<TextCompletion, TextChoice, FrameEnd>;

/// One of the answers, or what is new of it.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct TextChoice {
    index: usize,
    text: String,
    logprobs: Option<Columns>,
    finish_reason: Option<TextFinish>,
}

/// OpenAI's columns of log-probabilities.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Columns {
    /// Their texts; of a token that ends inside a character its bytes, as `bytes:\xf0\x9f`.
    tokens: Vec<String>,
    token_logprobs: Vec<f64>,
    /// The chosen token and the likeliest ones by their names in `tokens`.
    #[schemars(with = "Vec<std::collections::BTreeMap<String, f64>>")]
    top_logprobs: Vec<Map<String, Value>>,
    text_offset: Vec<usize>,
}

/// Why an answer ends.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
enum TextFinish {
    Stop,
    Length,
}

/// The answer as generated so far. Choice `c` of prompt `p` has index `p * n + c`.
#[derive(Debug)]
pub(crate) struct TextAnswer {
    head: Head,
    include_usage: bool,
    logprobs: bool,
    /// Whether log-probabilities are kept for the whole answer; a stream has sent them.
    keeps_logprobs: bool,
    /// Choices per prompt.
    choices_per_prompt: usize,
    choices: Vec<Choice>,
    /// The frame that ends the last choice; it is held back for the trailer, which it may carry.
    last: Option<TextFrame>,
}

#[derive(Debug)]
struct Choice {
    /// Text before the answer, shared by all choices of a prompt.
    echo: Arc<str>,
    text: String,
    logprobs: Logprobs,
    finish: Option<TextFinish>,
}

/// The columns of log-probabilities so far.
#[derive(Debug, Default)]
struct Logprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<f64>,
    top_logprobs: Vec<Map<String, Value>>,
    text_offset: Vec<usize>,
    length: Length,
}

/// Counts the characters of a text whose tokens may end inside a character.
#[derive(Debug, Default)]
struct Length {
    /// Number of complete characters.
    characters: usize,
    /// Bytes of the incomplete character.
    begun: Vec<u8>,
}

impl TextAnswer {
    /// Creates an answer; `echo` holds the text before the answers of each prompt.
    pub(crate) fn new(
        head: Head,
        echo: Vec<Arc<str>>,
        choices_per_prompt: usize,
        logprobs: bool,
        include_usage: bool,
    ) -> TextAnswer {
        let choices = echo.iter().flat_map(|text| iter::repeat_n(text, choices_per_prompt));
        TextAnswer {
            head,
            include_usage,
            logprobs,
            keeps_logprobs: true,
            choices_per_prompt,
            choices: choices.map(Choice::after).collect(),
            last: None,
        }
    }

    fn index(&self, prompt: usize, choice: u32) -> usize {
        prompt * self.choices_per_prompt + choice as usize
    }

    fn text(&mut self, index: usize, text: &str, tokens: &[GeneratedToken], frames: &mut Vec<Value>) {
        let Some(choice) = self.choices.get_mut(index) else { return };
        choice.text.push_str(text);
        let mut logprobs = None;
        if self.logprobs {
            let before = choice.logprobs.tokens.len();
            choice.logprobs.extend(tokens);
            logprobs = Some(choice.logprobs.columns(before));
            if !self.keeps_logprobs {
                choice.logprobs.clear();
            }
        }
        if !text.is_empty() || (self.logprobs && !tokens.is_empty()) {
            frames.push(value(&self.chunk(index, text, logprobs, None)));
        }
    }

    fn finished(&mut self, index: usize, reason: FinishReason, frames: &mut Vec<Value>) {
        let Some(choice) = self.choices.get_mut(index) else { return };
        loops::cut(&mut choice.text, reason);
        let reason = if reason == FinishReason::Length { TextFinish::Length } else { TextFinish::Stop };
        choice.finish = Some(reason);
        let end = self.chunk(index, "", None, Some(reason));
        if self.choices.iter().all(|choice| choice.finish.is_some()) {
            self.last = Some(end);
        } else {
            frames.push(value(&end));
        }
    }

    /// Sends the last frame, which carries the trailer: the end of the last choice, or the usage after it.
    fn done(&mut self, trailer: &Trailer, frames: &mut Vec<Value>) {
        if !trailer.is_complete() {
            return;
        }
        let mut last = self.last.take();
        if self.include_usage {
            frames.extend(last.as_ref().map(value));
            last = Some(self.head.completion(Vec::new(), FrameEnd::usage(trailer.usage())));
        }
        if let Some(last) = &mut last {
            last.end.ending = Some(trailer.ending());
        }
        frames.extend(last.as_ref().map(value));
    }

    fn chunk(
        &self,
        index: usize,
        text: &str,
        logprobs: Option<Columns>,
        finish_reason: Option<TextFinish>,
    ) -> TextFrame {
        let choice = TextChoice { index, text: text.to_owned(), logprobs, finish_reason };
        self.head.completion(vec![choice], FrameEnd::open(self.include_usage))
    }
}

impl Answer for TextAnswer {
    const WIRE: Wire = Wire::Data { last: Some("[DONE]") };

    /// Each prompt itself, and in the object of each choice and in its text.
    fn repeated_bytes(&self) -> u64 {
        3 * self.choices.iter().map(|choice| choice.echo.len() as u64).sum::<u64>()
    }

    /// Begins a stream by repeating the prompts, if `echo` was set. It sends log-probabilities with their tokens, and
    /// never again.
    fn start(&mut self, frames: &mut Vec<Value>) {
        self.keeps_logprobs = false;
        let echoed = self.choices.iter().enumerate().filter(|(_, choice)| !choice.echo.is_empty());
        frames.extend(echoed.map(|(i, choice)| value(&self.chunk(i, &choice.echo, None, None))));
    }

    fn take(&mut self, prompt: usize, event: Event, trailer: &Trailer, frames: &mut Vec<Value>) {
        match event {
            Event::Text { choice, text, tokens } => {
                self.text(self.index(prompt, choice), &text, &tokens, frames);
            }
            Event::Finished { choice, reason } => self.finished(self.index(prompt, choice), reason, frames),
            Event::Done(_) => self.done(trailer, frames),
            Event::Unconstrained(_) | Event::Prefill { .. } | Event::Vector(_) | Event::Failed(_) => {}
        }
    }

    fn whole(self, trailer: &Trailer) -> Vec<u8> {
        let logprobs = self.logprobs;
        let choice = |(index, choice): (usize, Choice)| {
            let text = choice.echo.to_string() + &choice.text;
            let logprobs = logprobs.then(|| choice.logprobs.columns(0));
            TextChoice { index, text, logprobs, finish_reason: choice.finish }
        };
        let choices = self.choices.into_iter().enumerate().map(choice).collect();
        let end = WholeEnd { usage: trailer.usage(), ending: trailer.ending() };
        let whole: WholeText = self.head.completion(choices, end);
        written(&whole)
    }
}

impl Choice {
    fn after(echo: &Arc<str>) -> Choice {
        let length = Length { characters: echo.chars().count(), begun: Vec::new() };
        let logprobs = Logprobs { length, ..Logprobs::default() };
        Choice { echo: echo.clone(), text: String::new(), logprobs, finish: None }
    }
}

impl Logprobs {
    fn extend(&mut self, tokens: &[GeneratedToken]) {
        for token in tokens {
            let Some((chosen, likeliest)) = &token.logprob else { continue };
            self.text_offset.push(self.length.characters);
            self.length.add(text_bytes(chosen));
            self.tokens.push(name(&chosen.bytes));
            self.token_logprobs.push(finite(chosen.logprob));
            // The chosen token is there also where it is not one of the likeliest.
            let mut top = Map::new();
            for token in iter::once(chosen).chain(likeliest) {
                top.entry(name(&token.bytes)).or_insert_with(|| json!(finite(token.logprob)));
            }
            self.top_logprobs.push(top);
        }
    }

    /// Drops all rows; the offset of the next one remains.
    fn clear(&mut self) {
        *self = Logprobs { length: mem::take(&mut self.length), ..Logprobs::default() };
    }

    /// Returns the columns from row `from` on.
    fn columns(&self, from: usize) -> Columns {
        Columns {
            tokens: self.tokens[from..].to_vec(),
            token_logprobs: self.token_logprobs[from..].to_vec(),
            top_logprobs: self.top_logprobs[from..].to_vec(),
            text_offset: self.text_offset[from..].to_vec(),
        }
    }
}

/// The name of a token: its text, or as OpenAI writes them the bytes of one that ends inside a character.
fn name(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().fold("bytes:".to_owned(), |name, byte| name + &format!("\\x{byte:02x}")),
    }
}

impl Length {
    fn add(&mut self, bytes: &[u8]) {
        self.begun.extend_from_slice(bytes);
        let mut rest = &self.begun[..];
        while let Err(error) = std::str::from_utf8(rest) {
            let (complete, others) = rest.split_at(error.valid_up_to());
            self.characters += String::from_utf8_lossy(complete).chars().count();
            rest = others;
            // Each invalid byte sequence is one replacement character in the text.
            let Some(invalid) = error.error_len() else { break };
            self.characters += 1;
            rest = &rest[invalid..];
        }
        if let Ok(text) = std::str::from_utf8(rest) {
            self.characters += text.chars().count();
            rest = &[];
        }
        self.begun = rest.to_vec();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::api::tests::{hidden, logprob, token};

    /// Returns the offsets of tokens with these bytes.
    fn offsets(tokens: &[&[u8]]) -> Vec<usize> {
        let mut length = Length::default();
        let offset = |bytes: &&[u8]| {
            let offset = length.characters;
            length.add(bytes);
            offset
        };
        tokens.iter().map(offset).collect()
    }

    #[test]
    fn a_character_of_several_tokens_counts_once() {
        assert_eq!(offsets(&[b"a", b"\xf0\x9f", b"\x98\x80", b"b", b"c"]), [0, 1, 1, 2, 3]);
        assert_eq!(offsets(&[b"\xc3", b"\xa9\xe2\x82", b"\xac!", b"x"]), [0, 0, 1, 3]);
        assert_eq!(offsets(&[b"\xff", b"a", b"\xe2\x82", b"b", b"c"]), [0, 1, 2, 2, 4]);
    }

    #[test]
    fn the_chosen_token_is_among_the_likeliest_and_each_has_its_own_name() {
        let check = |chosen: (&[u8], f32), likeliest: &[(&[u8], f32)], expect: Value| {
            let entry = |&(bytes, log): &(&[u8], f32)| logprob(1, bytes, log);
            let told = Some((entry(&chosen), likeliest.iter().map(entry).collect()));
            let mut columns = Logprobs::default();
            columns.extend(&[GeneratedToken { token: 1, logprob: told }]);
            let top = &columns.top_logprobs[0];
            assert_eq!(json!(top), expect);
            assert_eq!(top[&columns.tokens[0]], columns.token_logprobs[0]);
        };
        let cut: [(&[u8], f32); 3] = [(b"\x9f", -0.5), (b"\x8c", -3.0), (b"\xb3", -5.0)];
        let named = json!({"bytes:\\x9f": -0.5, "bytes:\\x8c": -3.0, "bytes:\\xb3": -5.0});
        check(cut[0], &cut, named);
        check((b"c", -4.0), &[(b"a", -0.5), (b"b", -1.0)], json!({"a": -0.5, "b": -1.0, "c": -4.0}));
        check((b"\xf0\x9f", -0.5), &[], json!({"bytes:\\xf0\\x9f": -0.5}));
        // Two tokens of one text: the chosen one is said.
        check((b"a", -1.0), &[(b"a", -0.5), (b"a", -1.0)], json!({"a": -1.0}));
    }

    #[test]
    fn the_name_of_a_control_token_is_none_of_the_text() {
        let mut columns = Logprobs::default();
        columns.extend(&[hidden(5, "<|x|>"), token(6, "a", true)]);
        assert_eq!((columns.tokens, columns.text_offset), (vec!["<|x|>".into(), "a".into()], vec![0, 0]));
    }

    #[test]
    fn a_stream_holds_no_log_probabilities() {
        for (is_stream, held) in [(true, 0), (false, 1000)] {
            let head = Head { id: String::new(), created: 0, model: String::new() };
            let mut answer = TextAnswer::new(head, vec!["".into()], 1, true, false);
            let mut frames = Vec::new();
            if is_stream {
                answer.start(&mut frames);
            }
            for id in 0..1000 {
                answer.text(0, "x", &[token(id, "x", true)], &mut frames);
            }
            let columns = answer.choices[0].logprobs.columns(0);
            let held_in = [columns.tokens.len(), columns.top_logprobs.len(), columns.text_offset.len()];
            assert_eq!(held_in, [held; 3]);
            let sent =
                frames.iter().filter_map(|frame| frame["choices"][0]["logprobs"]["text_offset"].as_array());
            let offsets: Vec<u64> = sent.flatten().filter_map(Value::as_u64).collect();
            assert_eq!(offsets, (0..1000).collect::<Vec<u64>>());
        }
    }

    proptest! {
        #[test]
        fn offsets_count_the_characters_before(bytes in prop::collection::vec(any::<u8>(), 0..40), cuts in prop::collection::vec(0..8usize, 1..20)) {
            let (mut length, mut at) = (Length::default(), 0);
            for cut in cuts {
                let end = (at + cut).min(bytes.len());
                length.add(&bytes[at..end]);
                at = end;
                let begun = length.begun.len();
                prop_assert!(begun < 4);
                prop_assert_eq!(length.characters, String::from_utf8_lossy(&bytes[..at - begun]).chars().count());
            }
        }
    }
}

//! The answer of `/v1/completions`: plain text, for one prompt or several.

use std::sync::Arc;

use kvik_engine::api::{Event, FinishReason, GeneratedToken};
use serde_json::{Map, Value, json};

use super::head::{Head, frame};
use crate::{
    api::logprobs::finite,
    app::{generation::Answer, report::trailer::Trailer, wire::Wire},
};

/// The answer as far as it is known. Choice `c` of prompt `p` has index `p * n + c`.
#[derive(Debug)]
pub(crate) struct TextAnswer {
    head: Head,
    include_usage: bool,
    logprobs: bool,
    /// Choices per prompt.
    choices_per_prompt: usize,
    choices: Vec<Choice>,
    /// The frame that ends the last choice; it waits for the trailer, which it may carry.
    last: Option<Value>,
}

#[derive(Debug)]
struct Choice {
    /// Stands before the text; one copy for all choices of a prompt.
    echo: Arc<str>,
    text: String,
    logprobs: Logprobs,
    finish: Option<&'static str>,
}

/// OpenAI's columns of log-probabilities.
#[derive(Debug, Default)]
struct Logprobs {
    tokens: Vec<Value>,
    token_logprobs: Vec<Value>,
    top_logprobs: Vec<Value>,
    text_offset: Vec<usize>,
    /// Characters of the text before the next token.
    offset: usize,
}

impl TextAnswer {
    /// `echo` holds, per prompt, the text that stands before its answers.
    pub(crate) fn new(
        head: Head,
        echo: Vec<Arc<str>>,
        choices_per_prompt: usize,
        logprobs: bool,
        include_usage: bool,
    ) -> TextAnswer {
        let choices = echo.iter().flat_map(|text| std::iter::repeat_n(text, choices_per_prompt));
        TextAnswer {
            head,
            include_usage,
            logprobs,
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
        let mut logprobs = Value::Null;
        if self.logprobs {
            let before = choice.logprobs.tokens.len();
            choice.logprobs.extend(tokens);
            logprobs = choice.logprobs.json(before);
        }
        if !text.is_empty() || (self.logprobs && !tokens.is_empty()) {
            frames.push(self.chunk(index, text, logprobs, None));
        }
    }

    fn finished(&mut self, index: usize, reason: FinishReason, frames: &mut Vec<Value>) {
        let Some(choice) = self.choices.get_mut(index) else { return };
        let reason = if reason == FinishReason::Length { "length" } else { "stop" };
        choice.finish = Some(reason);
        let end = self.chunk(index, "", Value::Null, Some(reason));
        if self.choices.iter().all(|choice| choice.finish.is_some()) {
            self.last = Some(end);
        } else {
            frames.push(end);
        }
    }

    /// The last frame carries the trailer: the end of the last choice, or the usage after it.
    fn done(&mut self, trailer: &Trailer, frames: &mut Vec<Value>) {
        if !trailer.is_complete() {
            return;
        }
        frames.extend(self.last.take());
        if self.include_usage {
            let mut chunk = frame(&self.head, "text_completion", Vec::new());
            chunk.insert("usage".to_owned(), trailer.usage());
            frames.push(Value::Object(chunk));
        }
        if let Some(Value::Object(last)) = frames.last_mut() {
            trailer.add_to(last);
        }
    }

    fn chunk(&self, index: usize, text: &str, logprobs: Value, finish_reason: Option<&str>) -> Value {
        let choice =
            json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason});
        let mut chunk: Map<String, Value> = frame(&self.head, "text_completion", vec![choice]);
        if self.include_usage {
            chunk.insert("usage".to_owned(), Value::Null);
        }
        Value::Object(chunk)
    }
}

impl Answer for TextAnswer {
    const WIRE: Wire = Wire::Data { last: Some("[DONE]") };

    /// With `echo`, a stream begins by repeating the prompts.
    fn start(&mut self, frames: &mut Vec<Value>) {
        let echoed = self.choices.iter().enumerate().filter(|(_, choice)| !choice.echo.is_empty());
        frames.extend(echoed.map(|(i, choice)| self.chunk(i, &choice.echo, Value::Null, None)));
    }

    fn take(&mut self, prompt: usize, event: Event, trailer: &Trailer, frames: &mut Vec<Value>) {
        match event {
            Event::Text { choice, text, tokens } => {
                self.text(self.index(prompt, choice), &text, &tokens, frames);
            }
            Event::Finished { choice, reason } => self.finished(self.index(prompt, choice), reason, frames),
            Event::Done(_) => self.done(trailer, frames),
            Event::Prefill { .. } | Event::Vector(_) | Event::Failed(_) => {}
        }
    }

    fn whole(self, trailer: &Trailer) -> Value {
        let logprobs = self.logprobs;
        let choice = |(index, choice): (usize, Choice)| {
            let logprobs = if logprobs { choice.logprobs.json(0) } else { Value::Null };
            let text = choice.echo.to_string() + &choice.text;
            json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": choice.finish})
        };
        let choices = self.choices.into_iter().enumerate().map(choice).collect();
        let mut answer = frame(&self.head, "text_completion", choices);
        answer.insert("usage".to_owned(), trailer.usage());
        trailer.add_to(&mut answer);
        Value::Object(answer)
    }
}

impl Choice {
    fn after(echo: &Arc<str>) -> Choice {
        let logprobs = Logprobs { offset: echo.chars().count(), ..Logprobs::default() };
        Choice { echo: echo.clone(), text: String::new(), logprobs, finish: None }
    }
}

impl Logprobs {
    fn extend(&mut self, tokens: &[GeneratedToken]) {
        for token in tokens {
            let Some((chosen, likeliest)) = &token.logprob else { continue };
            let text = String::from_utf8_lossy(&chosen.bytes);
            self.text_offset.push(self.offset);
            self.offset += text.chars().count();
            self.tokens.push(json!(text));
            self.token_logprobs.push(json!(finite(chosen.logprob)));
            let top = likeliest.iter().map(|token| {
                (String::from_utf8_lossy(&token.bytes).into_owned(), json!(finite(token.logprob)))
            });
            self.top_logprobs.push(Value::Object(top.collect()));
        }
    }

    /// The columns from row `from` on.
    fn json(&self, from: usize) -> Value {
        json!({
            "tokens": self.tokens[from..],
            "token_logprobs": self.token_logprobs[from..],
            "top_logprobs": self.top_logprobs[from..],
            "text_offset": self.text_offset[from..],
        })
    }
}

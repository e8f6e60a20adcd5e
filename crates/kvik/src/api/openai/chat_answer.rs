//! The answer of `/v1/chat/completions`: events become messages, or deltas of messages.

use std::time::Instant;

use kvik_engine::api::{Event, FinishReason, GeneratedToken};
use kvik_engine::text::answer::AnswerDelta;
use serde_json::{Map, Value, json};

use super::head::{Head, frame};
use crate::{
    api::{
        chat::{Reply, Worded},
        logprobs::logprob,
        progress::Progress,
        reading::Reading,
    },
    app::{generation::Answer, report::trailer::Trailer, wire::Wire},
};

/// The answer as far as it is known.
#[derive(Debug)]
pub(crate) struct ChatAnswer {
    head: Head,
    shows: Shows,
    logprobs: bool,
    /// What stands for all that was said before, for clients that want it.
    item: Option<Value>,
    choices: Vec<Choice>,
    /// The frame that ends the last choice; it waits for the trailer, which it may carry.
    last: Option<Value>,
}

/// What a stream shows beside the answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shows {
    /// It ends with a frame of usage.
    pub(super) usage: bool,
    /// How far the prompt is computed since then.
    pub(super) progress: Option<Instant>,
}

#[derive(Debug)]
struct Choice {
    reply: Reply,
    started: bool,
    logprobs: Vec<Value>,
    finish: Option<&'static str>,
}

impl ChatAnswer {
    pub(super) fn new(head: Head, worded: Worded, shows: Shows) -> ChatAnswer {
        let Worded { reading, item, logprobs, choices } = worded;
        let choices = (0..choices).map(|_| Choice::new(&reading)).collect();
        ChatAnswer { head, shows, logprobs, item, choices, last: None }
    }

    fn text(&mut self, choice: u32, text: &str, tokens: &[GeneratedToken], frames: &mut Vec<Value>) {
        let logprobs: Vec<Value> =
            if self.logprobs { tokens.iter().filter_map(logprob).collect() } else { Vec::new() };
        let Some(state) = self.choices.get_mut(choice as usize) else { return };
        state.logprobs.extend_from_slice(&logprobs);
        let mut deltas = worded(state.reply.push_tokens(text, tokens.len()));
        // Tokens may arrive before the text they are part of; their log-probabilities are not kept back.
        if deltas.is_empty() && !logprobs.is_empty() {
            deltas.push(json!({"content": ""}));
        }
        self.deltas(choice, deltas, logprobs, frames);
    }

    /// Frames for these deltas; the first carries the log-probabilities of the tokens behind them.
    fn deltas(&mut self, choice: u32, deltas: Vec<Value>, logprobs: Vec<Value>, frames: &mut Vec<Value>) {
        let mut logprobs =
            if self.logprobs { json!({"content": logprobs, "refusal": null}) } else { Value::Null };
        for delta in deltas {
            let state = &mut self.choices[choice as usize];
            if !std::mem::replace(&mut state.started, true) {
                let mut first = json!({"role": "assistant", "content": ""});
                if let Some(item) = &self.item {
                    first["compaction"] = item.clone();
                }
                frames.push(self.chunk(choice, first, Value::Null, None));
            }
            frames.push(self.chunk(choice, delta, logprobs.take(), None));
        }
    }

    fn finished(&mut self, choice: u32, reason: FinishReason, frames: &mut Vec<Value>) {
        let Some(state) = self.choices.get_mut(choice as usize) else { return };
        let mut rest = worded(state.reply.finish());
        let reason = match reason {
            FinishReason::Length => "length",
            _ if !state.reply.calls.is_empty() => "tool_calls",
            _ => "stop",
        };
        state.finish = Some(reason);
        if !state.started && rest.is_empty() {
            rest.push(json!({"content": ""}));
        }
        self.deltas(choice, rest, Vec::new(), frames);
        let end = self.chunk(choice, json!({}), Value::Null, Some(reason));
        if self.choices.iter().all(|choice| choice.finish.is_some()) {
            self.last = Some(end);
        } else {
            frames.push(end);
        }
    }

    /// The last frame carries the trailer: the end of the last choice, or the usage after it.
    fn done(&mut self, trailer: &Trailer, frames: &mut Vec<Value>) {
        frames.extend(self.last.take());
        if self.shows.usage {
            let mut chunk = self.frame("chat.completion.chunk", Vec::new());
            chunk.insert("usage".to_owned(), self.usage(trailer));
            frames.push(Value::Object(chunk));
        }
        if let Some(Value::Object(last)) = frames.last_mut() {
            trailer.add_to(last);
        }
    }

    fn chunk(&self, index: u32, delta: Value, logprobs: Value, finish_reason: Option<&str>) -> Value {
        let choice =
            json!({"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason});
        let mut chunk = self.frame("chat.completion.chunk", vec![choice]);
        if self.shows.usage {
            chunk.insert("usage".to_owned(), Value::Null);
        }
        Value::Object(chunk)
    }

    /// How far the prompt is computed, where the client asked for it.
    fn progress(&self, progress: Progress) -> Option<Value> {
        let since = self.shows.progress?;
        let mut chunk = self.frame("chat.completion.chunk", Vec::new());
        chunk.insert("prompt_progress".to_owned(), progress.json(since));
        Some(Value::Object(chunk))
    }

    /// What it cost, and how much of that were thoughts.
    fn usage(&self, trailer: &Trailer) -> Value {
        let thoughts: usize = self.choices.iter().map(|choice| choice.reply.reasoning_tokens).sum();
        let mut usage = trailer.usage();
        usage["completion_tokens_details"] = json!({"reasoning_tokens": thoughts});
        usage
    }

    fn frame(&self, object: &str, choices: Vec<Value>) -> Map<String, Value> {
        frame(&self.head, object, choices)
    }
}

impl Answer for ChatAnswer {
    const WIRE: Wire = Wire::Data { last: Some("[DONE]") };

    fn take(&mut self, _prompt: usize, event: Event, trailer: &Trailer, frames: &mut Vec<Value>) {
        match event {
            Event::Text { choice, text, tokens } => self.text(choice, &text, &tokens, frames),
            Event::Finished { choice, reason } => self.finished(choice, reason, frames),
            Event::Done(_) => self.done(trailer, frames),
            Event::Prefill { cached, done, total } => {
                frames.extend(self.progress(Progress { cached, done, total }));
            }
            Event::Vector(_) | Event::Failed(_) => {}
        }
    }

    /// As a client keeps it.
    fn message(&self) -> Option<Value> {
        self.choices.first().map(|choice| choice.reply.message())
    }

    fn whole(self, trailer: &Trailer) -> Value {
        let (logprobs, usage) = (self.logprobs, self.usage(trailer));
        let mut choices: Vec<Value> =
            self.choices.into_iter().enumerate().map(|(i, choice)| choice.whole(i, logprobs)).collect();
        if let Some(item) = self.item {
            choices.iter_mut().for_each(|choice| choice["message"]["compaction"] = item.clone());
        }
        let mut answer = frame(&self.head, "chat.completion", choices);
        answer.insert("usage".to_owned(), usage);
        trailer.add_to(&mut answer);
        Value::Object(answer)
    }
}

impl Choice {
    fn new(reading: &Reading) -> Choice {
        Choice { reply: Reply::new(reading), started: false, logprobs: Vec::new(), finish: None }
    }

    fn whole(self, index: usize, logprobs: bool) -> Value {
        let mut message = self.reply.message();
        message["refusal"] = Value::Null;
        let logprobs =
            if logprobs { json!({"content": self.logprobs, "refusal": null}) } else { Value::Null };
        json!({"index": index, "message": message, "logprobs": logprobs, "finish_reason": self.finish})
    }
}

fn worded(deltas: Vec<AnswerDelta>) -> Vec<Value> {
    deltas.into_iter().map(delta).collect()
}

/// What a frame says of it.
fn delta(delta: AnswerDelta) -> Value {
    match delta {
        AnswerDelta::Content(text) => json!({"content": text}),
        AnswerDelta::Reasoning(text) => json!({"reasoning_content": text}),
        AnswerDelta::ToolCall { index, id, name, arguments } => {
            let function = json!({"name": name, "arguments": arguments});
            json!({"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]})
        }
        AnswerDelta::Arguments { index, text } => {
            json!({"tool_calls": [{"index": index, "function": {"arguments": text}}]})
        }
    }
}

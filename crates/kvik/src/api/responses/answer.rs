//! The answer of `/v1/responses`: events of the engine become items, and events of a stream.

use kvik_engine::api::{Event, FinishReason, GeneratedToken};
use kvik_engine::text::answer::AnswerDelta;
use serde_json::{Value, json};

use super::output::{self, Output, Status};
use crate::{
    api::{
        chat::{Reply, Worded},
        logprobs::logprob,
    },
    app::{generation::Answer, report::trailer::Trailer, wire::Wire},
    http::error::ApiError,
};

/// The answer as far as it is known.
#[derive(Debug)]
pub(crate) struct ResponseAnswer {
    output: Output,
    reply: Reply,
    /// Thoughts are given in a form that clients keep.
    sealed_thoughts: bool,
    logprobs: bool,
    /// Of tokens whose text has not come yet.
    pending: Vec<Value>,
    /// The kind of the last item, which goes on.
    open: Option<Kind>,
    status: Status,
    /// Events sent.
    sequence: u64,
}

/// An item whose text comes in pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Message,
    Reasoning,
    Call,
}

impl Kind {
    /// Events of its text begin so.
    fn events(self) -> &'static str {
        match self {
            Kind::Message => "response.output_text",
            Kind::Reasoning => "response.reasoning_text",
            Kind::Call => "response.function_call_arguments",
        }
    }

    fn part(self) -> Value {
        match self {
            Kind::Reasoning => output::reasoning_part(""),
            Kind::Message | Kind::Call => output::text_part(""),
        }
    }
}

impl ResponseAnswer {
    pub(super) fn new(mut output: Output, worded: Worded, sealed_thoughts: bool) -> ResponseAnswer {
        output.items.extend(worded.item);
        ResponseAnswer {
            output,
            reply: Reply::new(&worded.reading),
            sealed_thoughts,
            logprobs: worded.logprobs,
            pending: Vec::new(),
            open: None,
            status: Status::InProgress,
            sequence: 0,
        }
    }

    fn event(&mut self, kind: &str, mut fields: Value, frames: &mut Vec<Value>) {
        fields["type"] = json!(kind);
        fields["sequence_number"] = json!(self.sequence);
        self.sequence += 1;
        frames.push(fields);
    }

    /// An event of the last item.
    fn item_event(&mut self, kind: &str, mut fields: Value, frames: &mut Vec<Value>) {
        let index = self.output.items.len() - 1;
        fields["output_index"] = json!(index);
        if fields.get("item").is_none() {
            fields["item_id"] = self.output.items[index]["id"].clone();
        }
        self.event(kind, fields, frames);
    }

    /// An event of the text of the last item.
    fn text_event(&mut self, kind: &str, mut fields: Value, frames: &mut Vec<Value>) {
        fields["content_index"] = json!(0);
        self.item_event(kind, fields, frames);
    }

    fn last(&self) -> Value {
        self.output.items.last().cloned().unwrap_or_default()
    }

    fn deltas(&mut self, deltas: Vec<AnswerDelta>, frames: &mut Vec<Value>) {
        for delta in deltas {
            match delta {
                AnswerDelta::Content(text) => self.grow(Kind::Message, &text, frames),
                AnswerDelta::Reasoning(text) => self.grow(Kind::Reasoning, &text, frames),
                AnswerDelta::ToolCall { id, name, arguments, .. } => {
                    self.begin_call(&id, &name, frames);
                    self.grow_call(&arguments, frames);
                }
                AnswerDelta::Arguments { text, .. } => self.grow_call(&text, frames),
            }
        }
    }

    /// Adds text to the last item, or begins one of this kind.
    fn grow(&mut self, kind: Kind, text: &str, frames: &mut Vec<Value>) {
        if self.open != Some(kind) {
            self.begin(kind, frames);
        }
        let logprobs = std::mem::take(&mut self.pending);
        if let Some(part) = self.output.items.last_mut().and_then(|item| item.pointer_mut("/content/0")) {
            if let Some(Value::String(all)) = part.get_mut("text") {
                all.push_str(text);
            }
            if let Some(Value::Array(all)) = part.get_mut("logprobs") {
                all.extend_from_slice(&logprobs);
            }
        }
        let mut delta = json!({"delta": text});
        if kind == Kind::Message {
            delta["logprobs"] = Value::Array(logprobs);
        }
        self.text_event(&format!("{}.delta", kind.events()), delta, frames);
    }

    fn begin(&mut self, kind: Kind, frames: &mut Vec<Value>) {
        self.close(frames);
        let item = match kind {
            Kind::Reasoning => output::reasoning(),
            Kind::Message | Kind::Call => output::message(),
        };
        self.output.items.push(item);
        self.item_event("response.output_item.added", json!({"item": self.last()}), frames);
        self.text_event("response.content_part.added", json!({"part": kind.part()}), frames);
        if let Some(item) = self.output.items.last_mut() {
            item["content"] = json!([kind.part()]);
        }
        self.open = Some(kind);
    }

    /// The last item is complete.
    fn close(&mut self, frames: &mut Vec<Value>) {
        let Some(kind) = self.open.take() else { return };
        match kind {
            Kind::Call => self.close_call(frames),
            Kind::Message | Kind::Reasoning => self.close_text(kind, frames),
        }
        if let Some(item) = self.output.items.last_mut() {
            item["status"] = json!("completed");
            if kind == Kind::Reasoning && self.sealed_thoughts {
                output::seal(item);
            }
        }
        self.item_event("response.output_item.done", json!({"item": self.last()}), frames);
    }

    fn begin_call(&mut self, id: &str, name: &str, frames: &mut Vec<Value>) {
        self.close(frames);
        self.output.items.push(output::call(id, name));
        self.item_event("response.output_item.added", json!({"item": self.last()}), frames);
        self.open = Some(Kind::Call);
    }

    /// More arguments of the call that is the last item.
    fn grow_call(&mut self, text: &str, frames: &mut Vec<Value>) {
        let item = self.output.items.last_mut();
        if let Some(Value::String(all)) = item.and_then(|item| item.get_mut("arguments")) {
            all.push_str(text);
        }
        if !text.is_empty() {
            self.item_event("response.function_call_arguments.delta", json!({"delta": text}), frames);
        }
    }

    /// The last call is complete.
    fn close_call(&mut self, frames: &mut Vec<Value>) {
        let call = self.last();
        let done = json!({"arguments": call["arguments"], "name": call["name"]});
        self.item_event("response.function_call_arguments.done", done, frames);
    }

    /// The last text is complete.
    fn close_text(&mut self, kind: Kind, frames: &mut Vec<Value>) {
        let part = self.last()["content"][0].clone();
        let mut done = json!({"text": part["text"]});
        if kind == Kind::Message {
            done["logprobs"] = part["logprobs"].clone();
        }
        self.text_event(&format!("{}.done", kind.events()), done, frames);
        self.text_event("response.content_part.done", json!({"part": part}), frames);
    }

    fn text(&mut self, text: &str, tokens: &[GeneratedToken], frames: &mut Vec<Value>) {
        if self.logprobs && !self.reply.is_thinking() {
            self.pending.extend(tokens.iter().filter_map(logprob));
        }
        let deltas = self.reply.push_tokens(text, tokens.len());
        self.deltas(deltas, frames);
    }

    fn finished(&mut self, reason: FinishReason, frames: &mut Vec<Value>) {
        let rest = self.reply.finish();
        self.deltas(rest, frames);
        if self.output.items.is_empty() {
            // An answer that says nothing is a message all the same.
            self.grow(Kind::Message, "", frames);
        }
        self.close(frames);
        self.status = if reason == FinishReason::Length { Status::Incomplete } else { Status::Completed };
    }

    fn ended(&self, trailer: &Trailer) -> Value {
        self.output.ended(self.status, self.reply.reasoning_tokens, trailer)
    }
}

impl Answer for ResponseAnswer {
    const WIRE: Wire = Wire::Named { ping: None };

    fn start(&mut self, frames: &mut Vec<Value>) {
        let items = std::mem::take(&mut self.output.items);
        for kind in ["response.created", "response.in_progress"] {
            let response = self.output.json(Status::InProgress);
            self.event(kind, json!({"response": response}), frames);
        }
        for item in items {
            self.output.items.push(item);
            for kind in ["response.output_item.added", "response.output_item.done"] {
                self.item_event(kind, json!({"item": self.last()}), frames);
            }
        }
    }

    fn take(&mut self, _prompt: usize, event: Event, trailer: &Trailer, frames: &mut Vec<Value>) {
        match event {
            Event::Text { text, tokens, .. } => self.text(&text, &tokens, frames),
            Event::Finished { reason, .. } => self.finished(reason, frames),
            Event::Done(_) => {
                let kind = format!("response.{}", self.status.name());
                let response = self.ended(trailer);
                self.event(&kind, json!({"response": response}), frames);
            }
            Event::Prefill { .. } | Event::Vector(_) | Event::Failed(_) => {}
        }
    }

    fn message(&self) -> Option<Value> {
        Some(self.reply.message())
    }

    fn stored(&self, trailer: &Trailer) -> Option<Value> {
        Some(self.ended(trailer))
    }

    fn whole(self, trailer: &Trailer) -> Value {
        self.ended(trailer)
    }

    fn failed(&self, error: &ApiError) -> Value {
        let body = error.body();
        json!({
            "type": "error",
            "code": body["error"]["code"],
            "message": body["error"]["message"],
            "param": body["error"]["param"],
            "sequence_number": self.sequence,
        })
    }
}

//! The answer of `/v1/responses`: engine events become items, and events of a stream.

use kvik_engine::api::{Event, FinishReason, GeneratedToken};
use kvik_text::answer::AnswerDelta;
use serde_json::Value;

use super::{
    event::{
        ArgumentsDelta, ArgumentsDeltaSaid, ArgumentsDone, ArgumentsSaid, DeltaKind, DeltaSaid, InItem,
        InPart, InputDelta, InputDeltaSaid, InputDone, InputSaid, ItemKind, ItemSaid, PartKind, PartSaid,
        ResponseKind, ResponseSaid, Said, StreamEvent, TextKind, TextSaid,
    },
    item::{Item, ItemStatus, Part},
    output::{Output, Response, Status},
    tools::CalledNames,
    undecided::Undecided,
};
use crate::{
    api::{
        chat::{Reply, Worded},
        logprobs::{Logprob, logprob},
    },
    app::{
        generation::Answer,
        report::trailer::Trailer,
        wire::{Frame, Wire},
    },
    http::{
        answer::{value, written},
        error::ApiError,
    },
};

/// The answer as generated so far.
#[derive(Debug)]
pub(crate) struct ResponseAnswer {
    output: Output,
    reply: Reply,
    /// Client names of the tools.
    called: CalledNames,
    /// True if thoughts are also returned in a form that clients can send back.
    sealed_thoughts: bool,
    logprobs: bool,
    /// Log-probabilities of tokens that may be a message's.
    undecided: Undecided,
    /// Kind of the last item, while it continues.
    open: Option<Kind>,
    status: Status,
    /// Why it ended.
    finish: Option<FinishReason>,
    /// Number of events sent.
    sequence: u64,
}

/// An item whose text arrives in pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Message,
    Reasoning,
    Call,
}

impl ResponseAnswer {
    pub(super) fn new(
        mut output: Output,
        worded: Worded,
        called: CalledNames,
        sealed_thoughts: bool,
    ) -> ResponseAnswer {
        output.belongs_to(worded.conversation);
        output.items.extend(worded.item.map(Item::Compaction));
        ResponseAnswer {
            output,
            reply: Reply::new(&worded.reading),
            called,
            sealed_thoughts,
            logprobs: worded.logprobs,
            undecided: Undecided::default(),
            open: None,
            status: Status::InProgress,
            finish: None,
            sequence: 0,
        }
    }

    fn event(&mut self, said: Said, frames: &mut Vec<Value>) {
        frames.push(value(&StreamEvent { said, sequence_number: self.sequence }));
        self.sequence += 1;
    }

    /// Sends an event for the start or the end of the last item.
    fn item_event(&mut self, r#type: ItemKind, frames: &mut Vec<Value>) {
        let output_index = self.output.items.len() - 1;
        let item = self.output.items[output_index].clone();
        self.event(Said::Item(ItemSaid { item, output_index, r#type }), frames);
    }

    /// Returns the position of the last item.
    fn in_item(&self) -> InItem {
        let output_index = self.output.items.len() - 1;
        InItem { output_index, item_id: self.output.items[output_index].id().to_owned() }
    }

    /// Returns the position of the only part of the last item.
    fn in_part(&self) -> InPart {
        InPart { content_index: 0, item: self.in_item() }
    }

    /// Sends an event for the start or the end of the only part of the last item.
    fn part_event(&mut self, r#type: PartKind, frames: &mut Vec<Value>) {
        if let Some(part) = self.output.items.last().and_then(Item::part) {
            self.event(Said::Part(PartSaid { part, at: self.in_part(), r#type }), frames);
        }
    }

    fn deltas(&mut self, deltas: Vec<AnswerDelta>, frames: &mut Vec<Value>) {
        let (held, count) = (self.reply.held_bytes(), deltas.len());
        let last_text = deltas.iter().rposition(|delta| matches!(delta, AnswerDelta::Content(_)));
        for (at, delta) in deltas.into_iter().enumerate() {
            // Tokens of thoughts and calls are no message's. A text that came with them drops those before its own.
            if last_text.is_none_or(|last| last < at) {
                self.undecided.clear();
            }
            match delta {
                AnswerDelta::Content(text) => {
                    let logprobs = self.undecided.take(&text, (at + 1 == count).then_some(held));
                    self.grow(Kind::Message, &text, logprobs, frames);
                }
                AnswerDelta::Reasoning(text) => self.grow(Kind::Reasoning, &text, Vec::new(), frames),
                AnswerDelta::ToolCall { id, name, arguments, .. } => {
                    self.begin_call(&id, &name, frames);
                    self.grow_call(&arguments, frames);
                }
                AnswerDelta::Arguments { text, .. } => self.grow_call(&text, frames),
            }
        }
    }

    /// Appends text to the last item, or begins an item of this kind.
    fn grow(&mut self, kind: Kind, text: &str, logprobs: Vec<Logprob>, frames: &mut Vec<Value>) {
        if self.open != Some(kind) {
            self.begin(kind, frames);
        }
        if let Some(item) = self.output.items.last_mut() {
            item.grow(text, &logprobs);
        }
        let (r#type, logprobs) = match kind {
            Kind::Reasoning => (DeltaKind::Reasoning, None),
            Kind::Message | Kind::Call => (DeltaKind::Text, Some(logprobs)),
        };
        let delta = text.to_owned();
        self.event(Said::Delta(DeltaSaid { delta, logprobs, at: self.in_part(), r#type }), frames);
    }

    fn begin(&mut self, kind: Kind, frames: &mut Vec<Value>) {
        self.close(frames);
        let item = match kind {
            Kind::Reasoning => Item::reasoning(),
            Kind::Message | Kind::Call => Item::message(),
        };
        self.output.items.push(item);
        self.item_event(ItemKind::Added, frames);
        if let Some(item) = self.output.items.last_mut() {
            item.begin_part();
        }
        self.part_event(PartKind::Added, frames);
        self.open = Some(kind);
    }

    /// Completes the last item.
    fn close(&mut self, frames: &mut Vec<Value>) {
        self.close_as(ItemStatus::Completed, frames);
    }

    fn close_as(&mut self, status: ItemStatus, frames: &mut Vec<Value>) {
        let Some(kind) = self.open.take() else { return };
        match kind {
            Kind::Call => self.close_call(frames),
            Kind::Message | Kind::Reasoning => self.close_text(frames),
        }
        if let Some(item) = self.output.items.last_mut() {
            item.end(status, self.sealed_thoughts);
        }
        self.item_event(ItemKind::Done, frames);
    }

    fn begin_call(&mut self, id: &str, name: &str, frames: &mut Vec<Value>) {
        self.close(frames);
        self.output.items.push(Item::call(id, self.called.of(name)));
        self.item_event(ItemKind::Added, frames);
        self.open = Some(Kind::Call);
    }

    /// Appends arguments to the call in the last item.
    fn grow_call(&mut self, text: &str, frames: &mut Vec<Value>) {
        let Some(item) = self.output.items.last_mut() else { return };
        item.grow(text, &[]);
        if !text.is_empty() && matches!(item, Item::Call(_)) {
            let (delta, at) = (text.to_owned(), self.in_item());
            let said = ArgumentsDeltaSaid { delta, at, r#type: ArgumentsDelta };
            self.event(Said::ArgumentsDelta(said), frames);
        }
    }

    /// Completes the last call. A custom tool's text arrives as a JSON string and is sent as a whole here.
    fn close_call(&mut self, frames: &mut Vec<Value>) {
        self.output.items.iter_mut().last().into_iter().for_each(Item::read_input);
        let at = self.in_item();
        match self.output.items.last() {
            Some(Item::Call(call)) => {
                let (arguments, name) = (call.arguments.clone(), call.name.clone());
                let said = ArgumentsSaid { arguments, name, at, r#type: ArgumentsDone };
                self.event(Said::Arguments(said), frames);
            }
            Some(Item::CustomCall(call)) => {
                let input = call.input.clone();
                let delta = InputDeltaSaid { delta: input.clone(), at: self.in_item(), r#type: InputDelta };
                self.event(Said::InputDelta(delta), frames);
                self.event(Said::Input(InputSaid { input, at, r#type: InputDone }), frames);
            }
            _ => {}
        }
    }

    /// Completes the last text.
    fn close_text(&mut self, frames: &mut Vec<Value>) {
        let Some(part) = self.output.items.last().and_then(Item::part) else { return };
        let (text, logprobs, r#type) = match part {
            Part::Text(part) => (part.text, Some(part.logprobs), TextKind::Text),
            Part::Reasoning(part) => (part.text, None, TextKind::Reasoning),
        };
        self.event(Said::Text(TextSaid { text, logprobs, at: self.in_part(), r#type }), frames);
        self.part_event(PartKind::Done, frames);
    }

    fn text(&mut self, text: &str, tokens: &[GeneratedToken], frames: &mut Vec<Value>) {
        let deltas = self.reply.push_tokens(text, tokens.len());
        if self.logprobs {
            self.undecided.extend(tokens.iter().filter_map(logprob));
        }
        self.deltas(deltas, frames);
    }

    fn finished(&mut self, reason: FinishReason, frames: &mut Vec<Value>) {
        let rest = self.reply.finish(reason);
        self.deltas(rest, frames);
        if self.output.items.is_empty() {
            // An empty answer still contains a message.
            self.grow(Kind::Message, "", Vec::new(), frames);
        }
        self.undecided.clear();
        self.finish = Some(reason);
        let (status, of_item) = match reason {
            FinishReason::Length => (Status::Incomplete, ItemStatus::Incomplete),
            _ => (Status::Completed, ItemStatus::Completed),
        };
        // If the answer was truncated, so was its last item.
        self.close_as(of_item, frames);
        self.status = status;
    }

    fn ended(&self, trailer: &Trailer) -> Response {
        self.output.ended(self.status, self.reply.reasoning_tokens, trailer)
    }

    /// The same without what was sent of a loop behind its second copy, which a stream cannot take back.
    fn without_loop(&self, trailer: &Trailer) -> Response {
        let mut response = self.ended(trailer);
        if let (Some(item), Some(reason)) = (response.output.last_mut(), self.finish) {
            item.cut(reason);
        }
        response
    }
}

impl Answer for ResponseAnswer {
    const THOUGHTS_RETURN: bool = true;
    const WIRE: Wire = Wire::Named { ping: None };

    /// The fields themselves, once more until a stream has begun, and either the two objects that it begins with or the
    /// last object and its text.
    fn repeated_bytes(&self) -> u64 {
        4 * self.output.echo_bytes()
    }

    fn start(&mut self, frames: &mut Vec<Value>) {
        let items = std::mem::take(&mut self.output.items);
        for r#type in [ResponseKind::Created, ResponseKind::InProgress] {
            let response = self.output.response(Status::InProgress);
            self.event(Said::Response(ResponseSaid { response, r#type }), frames);
        }
        for item in items {
            self.output.items.push(item);
            self.item_event(ItemKind::Added, frames);
            self.item_event(ItemKind::Done, frames);
        }
    }

    fn take(&mut self, _prompt: usize, event: Event, trailer: &Trailer, frames: &mut Vec<Value>) {
        match event {
            Event::Text { text, tokens, .. } => self.text(&text, &tokens, frames),
            Event::Finished { reason, .. } => self.finished(reason, frames),
            Event::Done(_) => {
                let r#type = match self.status {
                    Status::InProgress => ResponseKind::InProgress,
                    Status::Completed => ResponseKind::Completed,
                    Status::Incomplete => ResponseKind::Incomplete,
                    Status::Failed => ResponseKind::Failed,
                };
                let response = self.ended(trailer);
                self.event(Said::Response(ResponseSaid { response, r#type }), frames);
            }
            Event::Unconstrained(_) => self.reply.unconstrain(),
            Event::Prefill { .. } | Event::Vector(_) | Event::Failed(_) => {}
        }
    }

    /// The last events of a stream repeat its items, with their log-probabilities.
    fn releases(&mut self, last: u64, is_streamed: bool) -> u64 {
        match self.logprobs {
            true => self.undecided.settle(last),
            false if is_streamed => last,
            false => 0,
        }
    }

    fn message(&self) -> Option<Value> {
        Some(self.reply.message())
    }

    fn stored(&self, trailer: &Trailer) -> Option<Value> {
        Some(value(&self.without_loop(trailer)))
    }

    fn whole(self, trailer: &Trailer) -> Vec<u8> {
        written(&self.without_loop(trailer))
    }

    fn failed(&self, error: &ApiError) -> Value {
        response_event((self.output.failed(error), ResponseKind::Failed), self.sequence)
    }
}

/// A stream that says only that its answer failed.
pub(super) fn failed_stream(output: &Output, error: &ApiError) -> axum::response::Response {
    let created = (output.response(Status::InProgress), ResponseKind::Created);
    let failed = (output.failed(error), ResponseKind::Failed);
    let frames = [response_event(created, 0), response_event(failed, 1)].map(Frame::Json);
    ResponseAnswer::WIRE.respond(tokio_stream::iter(frames))
}

/// An event that says how the response stands.
fn response_event((response, r#type): (Response, ResponseKind), sequence_number: u64) -> Value {
    value(&StreamEvent { said: Said::Response(ResponseSaid { response, r#type }), sequence_number })
}

//! The answer of `/v1/messages`: engine events become blocks of one message.

use kvik_engine::api::{Event, FinishReason, Report};
use kvik_text::answer::AnswerDelta;
use serde_json::Value;

use super::{
    body::Wanted,
    error::ErrorBody,
    event::{
        Block, CacheCreation, ContextManagement, Delta, Diagnostics, Message, MessageTrailer, MessageUsage,
        MessageWord, MissReason, StandardTier, Stop, StopReason, StreamEvent, ThinkingTokens,
    },
};
use crate::{
    api::chat::{Assistant, Reply, Worded, arguments_object},
    app::{
        generation::Answer,
        report::{
            comparison::{Diagnosis, Part},
            loops,
            token_scale::TokenScale,
            trailer::Trailer,
        },
        wire::Wire,
    },
    http::{
        answer::{value, written},
        error::ApiError,
    },
};

/// Request settings that the answer repeats or depends on.
#[derive(Debug)]
pub(super) struct Spoken {
    pub(super) id: String,
    pub(super) model: String,
    pub(super) stop: Vec<String>,
    /// True if the computed blocks stay in the cache.
    pub(super) leaves: bool,
    /// True if the request asks that they be kept for an hour or longer.
    pub(super) is_kept_long: bool,
    /// Maximum tokens of prompt and answer together.
    pub(super) context: usize,
    /// The scale in which the client is told token counts.
    pub(super) scale: TokenScale,
    pub(super) wanted: Wanted,
}

/// The answer as generated so far.
#[derive(Debug)]
pub(crate) struct MessageAnswer {
    spoken: Spoken,
    reply: Reply,
    /// Complete blocks, and the last one as generated so far.
    blocks: Vec<Block>,
    /// True while the last block continues.
    open: bool,
    /// Arguments of the current call.
    arguments: String,
    started: bool,
    finish: Option<FinishReason>,
}

/// Signature of a thinking block for clients that send it back; nothing is sealed, so it is not verified.
const SIGNATURE: &str = "kvik";

impl MessageAnswer {
    pub(super) fn new(spoken: Spoken, worded: Worded) -> MessageAnswer {
        let mut answer = MessageAnswer {
            spoken,
            reply: Reply::new(&worded.reading),
            blocks: Vec::new(),
            open: false,
            arguments: String::new(),
            started: false,
            finish: None,
        };
        if let Some(item) = worded.item {
            answer.blocks.push(Block::compaction(Some(item.encrypted_content)));
        }
        answer
    }

    /// Sends the first frame, once the reused prefix is known.
    fn begin(&mut self, report: &Report, trailer: &Trailer, frames: &mut Vec<Value>) {
        if std::mem::replace(&mut self.started, true) {
            return;
        }
        let stop = Stop { stop_reason: None, ..self.stop(report) };
        let message = Message { stop, ..self.message_with(Vec::new(), report, trailer) };
        frames.push(value(&StreamEvent::MessageStart { message }));
        if let Some(Block::Compaction { content, .. }) = self.blocks.first() {
            let content_block = Block::compaction(None);
            frames.push(value(&StreamEvent::ContentBlockStart { index: 0, content_block }));
            frames.push(delta(0, Delta::CompactionDelta { content: content.clone() }));
            frames.push(value(&StreamEvent::ContentBlockStop { index: 0 }));
        }
    }

    fn deltas(&mut self, deltas: Vec<AnswerDelta>, frames: &mut Vec<Value>) {
        for delta in deltas {
            match delta {
                AnswerDelta::Content(text) => self.grow_text(text, frames),
                AnswerDelta::Reasoning(text) => self.grow_thought(text, frames),
                AnswerDelta::ToolCall { id, name, arguments, .. } => {
                    self.open_block(Block::tool_use(id, name), frames);
                    self.grow_call(arguments, frames);
                }
                AnswerDelta::Arguments { text, .. } => self.grow_call(text, frames),
            }
        }
    }

    /// Appends text to the last block, or begins a text block.
    fn grow_text(&mut self, more: String, frames: &mut Vec<Value>) {
        if !(self.open && matches!(self.blocks.last(), Some(Block::Text { .. }))) {
            self.open_block(Block::text(), frames);
        }
        if let Some(Block::Text { text, .. }) = self.blocks.last_mut() {
            text.push_str(&more);
        }
        frames.push(delta(self.blocks.len() - 1, Delta::TextDelta { text: more }));
    }

    /// Appends reasoning to the last block, or begins a thinking block.
    fn grow_thought(&mut self, more: String, frames: &mut Vec<Value>) {
        if !(self.open && matches!(self.blocks.last(), Some(Block::Thinking { .. }))) {
            self.open_block(Block::thinking(), frames);
        }
        if let Some(Block::Thinking { thinking, .. }) = self.blocks.last_mut() {
            thinking.push_str(&more);
        }
        frames.push(delta(self.blocks.len() - 1, Delta::ThinkingDelta { thinking: more }));
    }

    /// Appends arguments to the call in the last block.
    fn grow_call(&mut self, text: String, frames: &mut Vec<Value>) {
        self.arguments.push_str(&text);
        if !text.is_empty() {
            frames.push(delta(self.blocks.len() - 1, Delta::InputJsonDelta { partial_json: text }));
        }
    }

    fn open_block(&mut self, block: Block, frames: &mut Vec<Value>) {
        self.close(frames);
        let (index, content_block) = (self.blocks.len(), block.clone());
        frames.push(value(&StreamEvent::ContentBlockStart { index, content_block }));
        self.blocks.push(block);
        self.open = true;
    }

    fn close(&mut self, frames: &mut Vec<Value>) {
        if !std::mem::replace(&mut self.open, false) {
            return;
        }
        let index = self.blocks.len() - 1;
        match &mut self.blocks[index] {
            Block::Thinking { signature, .. } => {
                *signature = SIGNATURE;
                frames.push(delta(index, Delta::SignatureDelta { signature: SIGNATURE }));
            }
            Block::ToolUse { input, .. } => {
                *input = arguments_object(&std::mem::take(&mut self.arguments));
            }
            Block::Compaction { .. } | Block::Text { .. } => {}
        }
        frames.push(value(&StreamEvent::ContentBlockStop { index }));
    }

    /// Sends the last frames: stop reason, usage and cache report.
    fn done(&mut self, trailer: &Trailer, frames: &mut Vec<Value>) {
        let report = trailer.total();
        self.begin(&report, trailer, frames);
        let (delta, usage) = (self.stop(&report), self.usage(&report, trailer));
        let trailer = self.trailer(trailer);
        frames.push(value(&StreamEvent::MessageDelta { delta, usage, trailer }));
        frames.push(value(&StreamEvent::MessageStop));
    }

    fn message_with(&self, content: Vec<Block>, report: &Report, trailer: &Trailer) -> Message {
        Message {
            id: self.spoken.id.clone(),
            r#type: MessageWord,
            role: Assistant,
            model: self.spoken.model.clone(),
            content,
            stop: self.stop(report),
            usage: self.usage(report, trailer),
            trailer: None,
        }
    }

    fn trailer(&self, trailer: &Trailer) -> MessageTrailer {
        let wanted = &self.spoken.wanted;
        MessageTrailer {
            context_management: wanted.context_management.then_some(ContextManagement { applied_edits: [] }),
            diagnostics: wanted.diagnostics.then(|| diagnostics(trailer)),
            kvik: trailer.kvik(0),
        }
    }

    /// Returns the stop reason, and the stop sequence that was found.
    fn stop(&self, report: &Report) -> Stop {
        let because = |reason| Stop { stop_reason: Some(reason), stop_sequence: None };
        let Some(finish) = self.finish else { return Stop { stop_reason: None, stop_sequence: None } };
        // An answer without a token is as long as was asked for, even behind a prompt that fills the context.
        let is_full = report.generated_tokens > 0
            && report.prompt_tokens + report.generated_tokens >= self.spoken.context;
        match finish {
            FinishReason::Length if is_full => because(StopReason::ModelContextWindowExceeded),
            FinishReason::Length => because(StopReason::MaxTokens),
            // The last call may be incomplete.
            FinishReason::Loop(_) => because(StopReason::EndTurn),
            _ if !self.reply.calls.is_empty() => because(StopReason::ToolUse),
            FinishReason::StopString(i) => {
                let stop_sequence = self.spoken.stop.get(i).cloned();
                Stop { stop_sequence, ..because(StopReason::StopSequence) }
            }
            FinishReason::Eos | FinishReason::ConstraintDone => because(StopReason::EndTurn),
        }
    }

    fn usage(&self, report: &Report, trailer: &Trailer) -> MessageUsage {
        let (scale, prompt) = (self.spoken.scale, report.prompt_tokens);
        let computed = scale.between(report.cached_tokens, prompt);
        let (created, not_left) = if self.spoken.leaves { (computed, 0) } else { (0, computed) };
        let (minutes, hour) = if self.spoken.is_kept_long { (0, created) } else { (created, 0) };
        MessageUsage {
            input_tokens: not_left,
            cache_creation_input_tokens: created,
            cache_read_input_tokens: scale.told(report.cached_tokens),
            cache_creation: CacheCreation {
                ephemeral_5m_input_tokens: minutes,
                ephemeral_1h_input_tokens: hour,
            },
            output_tokens: scale.between(prompt, prompt + report.generated_tokens),
            output_tokens_details: ThinkingTokens {
                thinking_tokens: scale.between(prompt, prompt + self.reply.reasoning_tokens),
            },
            service_tier: StandardTier,
            cost: trailer.cost(report),
        }
    }
}

impl Answer for MessageAnswer {
    const THOUGHTS_RETURN: bool = true;
    const WIRE: Wire = Wire::Named { ping: Some("ping") };

    fn take(&mut self, _prompt: usize, event: Event, trailer: &Trailer, frames: &mut Vec<Value>) {
        match event {
            Event::Prefill { cached, total, .. } => {
                let report = Report { prompt_tokens: total, cached_tokens: cached, ..Report::default() };
                self.begin(&report, trailer, frames);
            }
            Event::Text { text, tokens, .. } => {
                let deltas = self.reply.push_tokens(&text, tokens.len());
                self.deltas(deltas, frames);
            }
            Event::Finished { reason, .. } => {
                self.finish = Some(reason);
                let rest = self.reply.finish(reason);
                self.deltas(rest, frames);
                self.close(frames);
                if let Some(Block::Text { text, .. } | Block::Thinking { thinking: text, .. }) =
                    self.blocks.last_mut()
                {
                    loops::cut(text, reason);
                }
            }
            Event::Done(_) => self.done(trailer, frames),
            Event::Unconstrained(_) => self.reply.unconstrain(),
            Event::Vector(_) | Event::Failed(_) => {}
        }
    }

    fn message(&self) -> Option<Value> {
        Some(self.reply.message())
    }

    fn stored(&self, trailer: &Trailer) -> Option<Value> {
        Some(value(&self.message_with(self.blocks.clone(), &trailer.total(), trailer)))
    }

    fn whole(mut self, trailer: &Trailer) -> Vec<u8> {
        let blocks = std::mem::take(&mut self.blocks);
        let message = self.message_with(blocks, &trailer.total(), trailer);
        written(&Message { trailer: Some(self.trailer(trailer)), ..message })
    }

    fn failed(&self, error: &ApiError) -> Value {
        value(&ErrorBody::from(error))
    }
}

/// Formats a delta of the block with this index.
fn delta(index: usize, delta: Delta) -> Value {
    value(&StreamEvent::ContentBlockDelta { index, delta })
}

/// Reports what has changed since the earlier answer, and the tokens that were recomputed because of it.
fn diagnostics(trailer: &Trailer) -> Diagnostics {
    let cache_miss_reason = match trailer.diagnosis() {
        None => None,
        Some(Diagnosis::NotFound) => Some(MissReason::PreviousMessageNotFound),
        Some(Diagnosis::Several) => Some(MissReason::Unavailable),
        Some(Diagnosis::GoesOn { reusable }) if trailer.total().cached_tokens >= reusable => None,
        // The request is not the cause; `kvik.cache.reason` gives it.
        Some(Diagnosis::GoesOn { .. }) => Some(MissReason::Unavailable),
        Some(Diagnosis::Changed { part, common, reusable }) => {
            let cache_missed_input_tokens = trailer.scale().between(common, reusable);
            Some(match part {
                Part::Model => MissReason::ModelChanged { cache_missed_input_tokens },
                Part::Tools => MissReason::ToolsChanged { cache_missed_input_tokens },
                Part::System => MissReason::SystemChanged { cache_missed_input_tokens },
                Part::Settings | Part::Messages => MissReason::MessagesChanged { cache_missed_input_tokens },
            })
        }
    };
    Diagnostics { cache_miss_reason }
}

//! The conversation of a terminal: what each line does to it.

use std::sync::Arc;

use kvik_engine::conversation::MemorySettings;
use serde_json::{Value, json};

use super::{
    client::{Answered, LocalClient},
    line::{HELP, InputLine},
    report,
    screen::Screen,
};
use crate::{app::App, command::talk::TalkArgs, settings::size::ByteSize};

/// Whether and how a conversation is remembered beyond the context.
pub(super) struct Remembering {
    pub(super) on: bool,
    /// The bounds of its segments, or why it cannot be.
    pub(super) settings: Result<MemorySettings, String>,
}

/// A conversation, and where it takes place.
pub(super) struct TerminalChat {
    app: Arc<App>,
    client: LocalClient,
    screen: Screen,
    talk: TalkArgs,
    remembering: Remembering,
    messages: Vec<Value>,
    /// `kvik.memory` of the last answer.
    memory: Value,
}

impl TerminalChat {
    pub(super) fn new(
        app: Arc<App>,
        client: LocalClient,
        screen: Screen,
        talk: TalkArgs,
        remembering: Remembering,
    ) -> TerminalChat {
        let mut chat = TerminalChat {
            app,
            client,
            screen,
            talk,
            remembering,
            messages: Vec::new(),
            memory: Value::Null,
        };
        chat.begin();
        chat
    }

    /// Does what a line says.
    pub(super) fn take(&mut self, line: InputLine<'_>) {
        match line {
            InputLine::Nothing | InputLine::Quit => {}
            InputLine::Say(text) => self.say(text),
            InputLine::Help => self.screen.line(HELP),
            InputLine::System(text) => {
                self.talk.system = (!text.is_empty()).then(|| text.to_owned());
                self.begin();
            }
            InputLine::Reset => self.begin(),
            InputLine::Stats => self.show_stats(),
            InputLine::Memory => self.show_memory(),
            InputLine::Remember(on) => self.remember(on),
            InputLine::Undo => self.undo(),
            InputLine::Wrong(message) => self.screen.line(&message),
        }
    }

    /// A new conversation.
    fn begin(&mut self) {
        let system = self.talk.system.as_ref().map(|text| json!({"role": "system", "content": text}));
        self.messages = system.into_iter().collect();
        self.memory = Value::Null;
    }

    fn say(&mut self, text: &str) {
        self.messages.push(json!({"role": "user", "content": text}));
        let body = self.body();
        let TerminalChat { client, screen, .. } = self;
        match client.chat(&body, &mut |piece| screen.piece(piece)) {
            Ok(Answered::Whole(answer)) => {
                self.messages.push(json!({"role": "assistant", "content": answer.content}));
                self.memory = answer.report["kvik"]["memory"].clone();
                self.screen.answered(&answer);
            }
            // The question is removed, so that another one can follow.
            Ok(Answered::Stopped) => {
                self.messages.pop();
                self.screen.line("");
                self.screen.note("stopped; the question is not part of the conversation");
            }
            Err(error) => {
                self.messages.pop();
                self.screen.line(&format!("error: {error:#}"));
            }
        }
    }

    /// The request of a turn.
    fn body(&self) -> Value {
        let mut body = self.talk.fields(self.app.serving.model.embedded);
        body["messages"] = Value::Array(self.messages.clone());
        body["stream"] = json!(true);
        body["stream_options"] = json!({"include_usage": true});
        body["kvik"] = json!({"memory": self.remembering.on});
        body
    }

    /// Takes back the last question and what answered it.
    fn undo(&mut self) {
        let Some(question) = self.messages.iter().rposition(|message| message["role"] == "user") else {
            return self.screen.line("there is nothing to take back");
        };
        let question = self.messages.drain(question..).next().unwrap_or_default();
        let text = question["content"].as_str().unwrap_or_default();
        self.screen.note(&format!("taken back: {}", report::shortened(text)));
    }

    fn remember(&mut self, on: bool) {
        match &self.remembering.settings {
            Err(why) if on => self.screen.line(&format!("nothing can be remembered: {why}")),
            _ => {
                self.remembering.on = on;
                self.screen.line(if on {
                    "memory is on"
                } else {
                    "memory is off: the conversation ends with the context"
                });
            }
        }
    }

    fn show_memory(&mut self) {
        let lines = match &self.remembering {
            Remembering { settings: Err(why), .. } => vec![format!("nothing can be remembered: {why}")],
            Remembering { on: false, .. } => vec!["memory is off; /memory on switches it on".to_owned()],
            Remembering { settings: Ok(settings), .. } => {
                let mut lines = vec![format!("memory is on: {}", report::settings(settings))];
                if !self.memory.is_null() {
                    lines.push("the last turn read".to_owned());
                    lines.extend(report::segments(&self.memory));
                    lines.extend(report::quoted(&self.memory, &self.messages));
                }
                lines
            }
        };
        lines.iter().for_each(|line| self.screen.line(line));
    }

    fn show_stats(&mut self) {
        let stats = self.app.serving.engine.stats();
        self.screen.line(&format!(
            "{} of {} in use; {} prompt tokens so far, {} of them reused",
            ByteSize((stats.kv_bytes - stats.kv_free_bytes) as u64),
            ByteSize(stats.kv_bytes as u64),
            stats.counters.prompt_tokens,
            stats.counters.reused_tokens,
        ));
    }
}

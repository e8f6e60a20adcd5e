//! The conversation of a terminal, and the effect of each input line on it.

use std::{fs::OpenOptions, io::Write, sync::Arc};

use anyhow::Context;
use kvik_memory::context::MemorySettings;
use serde_json::{Value, json};

use super::{
    client::{Answered, LocalClient},
    kept::{FoundConversation, KeptConversations, ListedConversation},
    line::{HELP, InputLine},
    report,
    screen::Screen,
};
use crate::command::talk::TalkArgs;
use kvik_server::{app::App, clock::unix_seconds};
use kvik_serving::{causes::with_causes, settings::size::ByteSize};

/// Maximum conversations that `/list` shows.
const LISTED_MAX: usize = 50;

/// Settings of memory beyond the context.
pub(super) struct Remembering {
    pub(super) on: bool,
    /// The bounds of its segments, or why memory is unavailable.
    pub(super) settings: Result<MemorySettings, String>,
}

/// `Err` with the reason if conversations end with the program.
pub(super) type Lasting = Result<(), String>;

/// A conversation in the terminal.
pub(super) struct TerminalChat {
    app: Arc<App>,
    client: LocalClient,
    screen: Screen,
    talk: TalkArgs,
    remembering: Remembering,
    lasting: Lasting,
    /// Id of the conversation, once it has an answer or a name of its own.
    id: Option<String>,
    /// Name of the conversation.
    name: Option<String>,
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
        lasting: Lasting,
    ) -> TerminalChat {
        let (id, name, memory) = (None, None, Value::Null);
        TerminalChat { app, client, screen, talk, remembering, lasting, id, name, memory }
    }

    /// Executes an input line.
    pub(super) fn take(&mut self, line: InputLine<'_>) {
        if let Err(error) = self.follow(line) {
            self.screen.line(&format!("error: {}", with_causes(&error)));
        }
    }

    fn follow(&mut self, line: InputLine<'_>) -> anyhow::Result<()> {
        match line {
            InputLine::Nothing | InputLine::Quit => {}
            InputLine::Say(text) => return self.say(text),
            InputLine::Help => self.screen.line(HELP),
            InputLine::System(text) => {
                self.talk.system = (!text.is_empty()).then(|| text.to_owned());
                self.begin();
            }
            InputLine::Reset => self.begin(),
            InputLine::Stats => self.show_stats(),
            InputLine::Memory => return self.show_memory(),
            InputLine::Remember(on) => self.remember(on),
            InputLine::Correct(text) => return self.correct(text),
            InputLine::Undo => return self.undo(),
            InputLine::Save(name) => return self.save(name),
            InputLine::Load(name) => return self.load(name),
            InputLine::List => return self.list(),
            InputLine::Delete(name) => return self.delete(name),
            InputLine::Export(file) => return self.export(file),
            InputLine::Wrong(message) => self.screen.line(&message),
        }
        Ok(())
    }

    fn kept(&self) -> KeptConversations<'_> {
        KeptConversations(&self.client)
    }

    /// Begins a new conversation.
    fn begin(&mut self) {
        (self.id, self.name, self.memory) = (None, None, Value::Null);
    }

    fn say(&mut self, text: &str) -> anyhow::Result<()> {
        let body = self.body(text)?;
        let TerminalChat { client, screen, .. } = self;
        match client.chat(&body, &mut |piece| screen.piece(piece))? {
            Answered::Whole(answer) => {
                let kvik = &answer.report["kvik"];
                let own = |field: &str| kvik["conversation"][field].as_str().map(str::to_owned);
                (self.id, self.name, self.memory) = (own("id"), own("name"), kvik["memory"].clone());
                self.screen.answered(&answer);
            }
            Answered::Stopped => {
                self.screen.line("");
                self.screen.note("stopped; the question is not part of the conversation");
            }
        }
        Ok(())
    }

    /// The request of a turn: its new messages, and its conversation.
    fn body(&self, text: &str) -> anyhow::Result<Value> {
        let mut body = self.talk.fields();
        let (conversation, mut messages) = match &self.id {
            Some(id) => (id.clone(), Vec::new()),
            None => (self.kept().unused_name(text)?, self.system()),
        };
        messages.push(json!({"role": "user", "content": text}));
        body["messages"] = Value::Array(messages);
        body["stream"] = json!(true);
        body["stream_options"] = json!({"include_usage": true});
        body["kvik"] = json!({"memory": self.remembering.on, "conversation": conversation});
        Ok(body)
    }

    /// The initial messages of a new conversation.
    fn system(&self) -> Vec<Value> {
        self.talk.system.iter().map(|text| json!({"role": "system", "content": text})).collect()
    }

    /// Removes the last question and its answer.
    fn undo(&mut self) -> anyhow::Result<()> {
        let found = self.id.as_ref().map(|id| self.kept().find(id)).transpose()?;
        let last = found.as_ref().and_then(last_question);
        let (Some(found), Some(index)) = (&found, last) else {
            self.screen.line("there is nothing to take back");
            return Ok(());
        };
        self.kept().take_back(&found.id, index)?;
        self.memory = Value::Null;
        self.screen.note(&format!("taken back: {}", report::shortened(text_of(&found.messages[index]))));
        Ok(())
    }

    fn save(&mut self, name: &str) -> anyhow::Result<()> {
        let lasting = match &self.lasting {
            Ok(()) => String::new(),
            Err(why) => format!(" until the program ends ({why})"),
        };
        if name.is_empty() {
            let name = self.name.as_deref().unwrap_or("its first words, when it begins");
            self.screen.line(&format!("this conversation is kept{lasting} as: {name}"));
            return Ok(());
        }
        match &self.id {
            Some(id) => self.kept().rename(id, name)?,
            None => self.id = Some(self.kept().begin(name, &self.system())?),
        }
        self.name = Some(name.to_owned());
        self.screen.line(&format!("kept{lasting} as: {name}"));
        Ok(())
    }

    /// Continues the conversation of this name.
    pub(super) fn load(&mut self, name: &str) -> anyhow::Result<()> {
        let found = self.kept().find(name)?;
        let name = found.name.as_ref().unwrap_or(&found.id);
        self.screen.note(&format!("{name}: {} messages", found.messages.len()));
        if let Some(question) = last_question(&found) {
            let (asked, answers) = (&found.messages[question], &found.messages[question + 1..]);
            self.screen.line(&format!("> {}", text_of(asked)));
            answers.iter().for_each(|answer| self.screen.line(text_of(answer)));
        }
        (self.id, self.name, self.memory) = (Some(found.id), found.name, Value::Null);
        Ok(())
    }

    /// Continues the most recently changed conversation.
    pub(super) fn load_newest(&mut self) -> anyhow::Result<()> {
        match self.kept().all()?.first() {
            Some(newest) => self.load(&newest.id),
            None => {
                self.screen.line("There is no conversation yet; this is the first.");
                Ok(())
            }
        }
    }

    /// Shows which conversation could be continued.
    pub(super) fn show_newest(&mut self) -> anyhow::Result<()> {
        if let Some(newest) = self.kept().all()?.first() {
            self.screen.line(&format!("`kvik chat --resume` or /load goes on with: {}", listed(newest)));
        }
        Ok(())
    }

    fn list(&mut self) -> anyhow::Result<()> {
        let all = self.kept().all()?;
        for one in all.iter().take(LISTED_MAX) {
            let mark = if self.id.as_ref() == Some(&one.id) { "*" } else { " " };
            self.screen.line(&format!("{mark} {}", listed(one)));
        }
        match all.len() {
            0 => self.screen.line("there is no conversation yet"),
            all if all > LISTED_MAX => self.screen.line(&format!("  and {} more", all - LISTED_MAX)),
            _ => {}
        }
        Ok(())
    }

    fn delete(&mut self, name: &str) -> anyhow::Result<()> {
        let deleted = self.kept().delete(name)?;
        self.screen.line(&format!("deleted: {name}"));
        if self.id.as_ref() == Some(&deleted) {
            self.begin();
        }
        Ok(())
    }

    fn export(&mut self, file: &str) -> anyhow::Result<()> {
        let id = self.id.as_ref().context("there is nothing to export yet")?;
        let format = if file.ends_with(".md") { "markdown" } else { "json" };
        let text = self.kept().export(id, format)?;
        // An existing file must not be overwritten.
        let opened = OpenOptions::new().write(true).create_new(true).open(file);
        let written = opened.and_then(|mut file| file.write_all(text.as_bytes()));
        written.with_context(|| format!("{file} cannot be written"))?;
        self.screen.line(&format!("written: {file}"));
        Ok(())
    }

    fn remember(&mut self, on: bool) {
        match &self.remembering.settings {
            Err(why) if on => self.screen.line(&format!("nothing can be remembered: {why}")),
            _ => {
                self.remembering.on = on;
                let off = "memory is off: the conversation ends with the context";
                self.screen.line(if on { "memory is on" } else { off });
            }
        }
    }

    fn correct(&mut self, text: &str) -> anyhow::Result<()> {
        let id = self.id.as_ref().context("nothing of this conversation is in a summary yet")?;
        self.kept().correct(id, text)?;
        self.screen.line("corrected; the next turn is told so");
        Ok(())
    }

    fn show_memory(&mut self) -> anyhow::Result<()> {
        let mut lines = vec![match &self.remembering {
            Remembering { settings: Err(why), .. } => format!("nothing can be remembered: {why}"),
            Remembering { on: false, .. } => "memory is off; /memory on switches it on".to_owned(),
            Remembering { settings: Ok(settings), .. } => {
                format!("memory is on: {}", report::settings(settings))
            }
        }];
        if let Some(id) = self.id.as_ref().filter(|_| self.remembering.on) {
            lines.extend(self.remembered(id)?);
        }
        lines.iter().for_each(|line| self.screen.line(line));
        Ok(())
    }

    /// The segments of the last turn, if there was one, and the summary, if there is one.
    fn remembered(&self, id: &str) -> anyhow::Result<Vec<String>> {
        let mut lines = Vec::new();
        if !self.memory.is_null() {
            lines.extend(report::segments(&self.memory));
            lines.extend(report::quoted(&self.memory, &self.kept().find(id)?.messages));
        }
        lines.extend(report::summary(&self.kept().summary(id)?));
        Ok(lines)
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

/// A conversation in one line.
fn listed(one: &ListedConversation) -> String {
    let age = report::age(unix_seconds().saturating_sub(one.updated));
    format!("{}  ({} messages, {age} ago)", one.name(), one.messages)
}

/// The index of the last question of a conversation.
fn last_question(found: &FoundConversation) -> Option<usize> {
    found.messages.iter().rposition(|message| message["role"] == "user")
}

/// The text of a message; empty if it has content parts, which no terminal sends.
fn text_of(message: &Value) -> &str {
    message["content"].as_str().unwrap_or_default()
}

//! The conversation of a terminal, and the effect of each input line on it.

use std::{fs::OpenOptions, io::Write};

use anyhow::Context;
use axum::http::Method;
use kvik_memory::context::chain::text_of;
use serde_json::{Value, json};

use super::{
    ChatArgs,
    kept::{FoundConversation, KeptConversations, ListedConversation},
    line::{HELP, InputLine},
    report,
    screen::Screen,
};
use crate::command::{
    backend::{Backend, Remembering},
    client::{Answered, Turn},
    images,
    talk::TalkArgs,
};
use kvik_server::clock::unix_seconds;
use kvik_serving::{causes::with_causes, settings::size::ByteSize};

/// The route of turns.
const CHATS: &str = "/v1/chat/completions";
/// Maximum conversations that `/list` shows.
const LISTED_MAX: usize = 50;

/// `Err` with the reason if conversations end with the program.
pub(super) type Lasting = Result<(), String>;

/// A conversation in the terminal.
pub(super) struct TerminalChat {
    pub(super) backend: Backend,
    pub(super) screen: Screen,
    pub(super) talk: TalkArgs,
    pub(super) lasting: Lasting,
    /// Id of the conversation, once it has an answer or a name of its own.
    pub(super) id: Option<String>,
    /// Name of the conversation.
    name: Option<String>,
    /// `kvik.memory` of the last answer.
    pub(super) memory: Value,
    /// A question without an answer, to be edited.
    draft: String,
    /// The system message for which the conversation would end, while that is asked.
    asked_system: Option<String>,
    /// What deleted conversations were called and asked.
    deleted: Vec<String>,
}

impl TerminalChat {
    pub(super) fn new(backend: Backend, screen: Screen, args: &ChatArgs, lasting: Lasting) -> TerminalChat {
        TerminalChat {
            backend,
            screen,
            talk: args.talk.clone(),
            lasting,
            id: None,
            name: None,
            memory: Value::Null,
            draft: String::new(),
            asked_system: None,
            deleted: Vec::new(),
        }
    }

    /// Ends running work.
    pub(super) fn close(&self) {
        self.backend.close();
    }

    /// A time in which Ctrl-C stops an answer.
    pub(super) fn turn(&self) -> Turn {
        self.backend.client.turn()
    }

    /// The prompt of the next line.
    pub(super) fn prompt(&self) -> &'static str {
        if self.asked_system.is_some() { "y or n> " } else { "> " }
    }

    /// The beginning of the next line: a question that was not answered.
    pub(super) fn take_draft(&mut self) -> String {
        std::mem::take(&mut self.draft)
    }

    /// Names, questions and system messages of conversations that were deleted since the last call.
    pub(super) fn take_deleted(&mut self) -> Vec<String> {
        std::mem::take(&mut self.deleted)
    }

    /// Takes Ctrl-C at the prompt, which drops the line.
    pub(super) fn interrupt(&mut self) {
        self.asked_system = None;
        self.screen.note("Ctrl-D or /bye leaves");
    }

    /// Takes a line; false if it ends the program.
    pub(super) fn enter(&mut self, line: &str) -> bool {
        if let Some(system) = self.asked_system.take() {
            self.decide(line, system);
            return true;
        }
        let line = InputLine::parse(line);
        let goes_on = line != InputLine::Quit;
        self.take(line);
        goes_on && !self.screen.is_closed()
    }

    /// Executes an input line.
    fn take(&mut self, line: InputLine<'_>) {
        if let Err(error) = self.follow(line) {
            self.screen.error(&format!("error: {}", with_causes(&error)));
        }
    }

    fn follow(&mut self, line: InputLine<'_>) -> anyhow::Result<()> {
        match line {
            InputLine::Nothing | InputLine::Quit => {}
            InputLine::Say(text) => return self.say(text),
            InputLine::Help => self.screen.line(HELP),
            InputLine::System(text) => self.change_system(text),
            InputLine::Show => {
                self.describe_model();
                self.show_values();
            }
            InputLine::Values => self.show_values(),
            InputLine::Set(name, value) => self.talk.set(name, value).map_err(anyhow::Error::msg)?,
            InputLine::Model("") => return self.show_model(),
            InputLine::Model(name) => return self.exchange_model(name),
            InputLine::Reset => self.begin(),
            InputLine::Stats => return self.show_stats(),
            InputLine::Memory => return self.show_memory(),
            InputLine::Remember(on) => self.remember(on),
            InputLine::Correct(text) => return self.correct(text),
            InputLine::Undo => return self.undo(),
            InputLine::Retry => return self.retry(),
            InputLine::Save(name) => return self.save(name),
            InputLine::Load(name) => return self.load(name),
            InputLine::List => return self.list(),
            InputLine::Delete(name) => return self.delete(name),
            InputLine::Export(file) => return self.export(file),
            InputLine::Wrong(message) => self.screen.error(&message),
        }
        Ok(())
    }

    pub(super) fn kept(&self) -> KeptConversations<'_> {
        KeptConversations(&self.backend)
    }

    /// Begins a new conversation.
    fn begin(&mut self) {
        (self.id, self.name, self.memory) = (None, None, Value::Null);
    }

    /// Changes the system message of the next conversation; asks before the present one ends.
    fn change_system(&mut self, text: &str) {
        if self.id.is_none() {
            return self.begin_with(text.to_owned());
        }
        let name = self.name.as_deref().unwrap_or("this conversation");
        let stays = if self.lasting.is_ok() { " stays in /list" } else { " ends with the program" };
        self.screen
            .line(&format!("a system message begins a new conversation; {name}{stays}: begin, y or n?"));
        self.asked_system = Some(text.to_owned());
    }

    /// Takes the answer to the question whether a new conversation begins.
    fn decide(&mut self, answer: &str, system: String) {
        match answer.trim().to_lowercase().as_str() {
            "y" | "yes" => self.begin_with(system),
            _ => self.screen.note("the conversation goes on with the system message that it has"),
        }
    }

    fn begin_with(&mut self, system: String) {
        self.talk.system = Some(system).filter(|system| !system.is_empty());
        self.begin();
    }

    fn show_values(&mut self) {
        let values = self.talk.values(&self.backend.model.sampling);
        values.iter().for_each(|line| self.screen.line(line));
        self.screen.line("/set NAME VALUE changes one for the next answers");
    }

    fn say(&mut self, text: &str) -> anyhow::Result<()> {
        self.draft = text.to_owned();
        images::refuse(text)?;
        match self.ask(text)? {
            true => self.draft.clear(),
            false => self
                .screen
                .note("stopped; the question is not part of the conversation, and can be asked again"),
        }
        Ok(())
    }

    /// Asks, and shows the answer as it arrives; false if it was stopped.
    pub(super) fn ask(&mut self, text: &str) -> anyhow::Result<bool> {
        let body = self.body(text)?;
        let TerminalChat { backend: Backend { client, .. }, screen, .. } = self;
        screen.begin();
        let answered = client.answer(CHATS, body, &mut |piece| {
            screen.piece(piece);
            if screen.is_closed() {
                client.stop();
            }
        });
        Ok(match answered? {
            Answered::Whole(answer) => {
                let kvik = &answer.report["kvik"];
                let own = |field: &str| kvik["conversation"][field].as_str().map(str::to_owned);
                (self.id, self.name, self.memory) = (own("id"), own("name"), kvik["memory"].clone());
                self.screen.answered(&answer);
                true
            }
            Answered::Stopped => {
                self.screen.line("");
                false
            }
        })
    }

    /// The request of a turn: its new messages, and its conversation.
    fn body(&self, text: &str) -> anyhow::Result<Value> {
        let mut body = self.talk.body(self.backend.fields());
        let (conversation, mut messages) = match &self.id {
            Some(id) => (id.clone(), Vec::new()),
            None => (self.kept().unused_name(text)?, self.system()),
        };
        messages.push(json!({"role": "user", "content": text}));
        body["messages"] = Value::Array(messages);
        body["kvik"]["conversation"] = json!(conversation);
        if let Some(remembers) = self.backend.remembering.field() {
            body["kvik"]["memory"] = json!(remembers);
        }
        Ok(body)
    }

    /// The initial messages of a new conversation.
    fn system(&self) -> Vec<Value> {
        self.talk.system.iter().map(|text| json!({"role": "system", "content": text})).collect()
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
            answers.iter().for_each(|answer| self.screen.line(&text_of(answer)));
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
            self.screen.line(&format!("`kvik chat --continue` or /load goes on with: {}", listed(newest)));
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
        let FoundConversation { id, name: own_name, messages } = self.kept().find(name)?;
        let deleted = self.kept().delete(name)?;
        self.deleted.extend([name.to_owned(), id]);
        self.deleted.extend(own_name);
        let is_typed = |message: &&Value| message["role"] == "user" || message["role"] == "system";
        self.deleted.extend(messages.iter().filter(is_typed).map(text_of));
        let left = match deleted.pending {
            true => "; what was computed for it goes as soon as that can be done",
            false => "",
        };
        self.screen.line(&format!("deleted: {name}{left}"));
        if self.id.as_ref() == Some(&deleted.id) {
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
        match &self.backend.remembering.settings {
            Err(why) if on => self.screen.line(&format!("nothing can be remembered: {why}")),
            _ => {
                self.backend.remembering.on = on;
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
        let mut lines = vec![match &self.backend.remembering {
            Remembering { settings: Err(why), .. } => format!("nothing can be remembered: {why}"),
            Remembering { on: false, .. } => "memory is off; /memory on switches it on".to_owned(),
            Remembering { settings: Ok(None), .. } => "memory is on, as the server has it".to_owned(),
            Remembering { settings: Ok(Some(settings)), .. } => {
                format!("memory is on: {}", report::settings(settings))
            }
        }];
        if let Some(id) = self.id.as_ref().filter(|_| self.backend.remembering.on) {
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

    fn show_stats(&mut self) -> anyhow::Result<()> {
        let path = format!("/v1/stats{}", self.backend.query());
        let stats = self.backend.client.call(Method::GET, &path, None)?;
        let (ram, tokens) = (&stats["kv"]["ram"], &stats["tokens"]);
        let bytes = |value: &Value| ByteSize(value.as_u64().unwrap_or(0));
        // A tenant of a server is not told how much there is.
        let room = match ram {
            Value::Null => String::new(),
            ram => format!("{} of {} in use; ", bytes(&ram["bytes"]), bytes(&ram["capacity_bytes"])),
        };
        let (prompt, cached) = (&tokens["prompt"], &tokens["cached"]);
        self.screen.line(&format!("{room}{prompt} prompt tokens so far, {cached} of them reused"));
        Ok(())
    }
}

/// A conversation in one line.
fn listed(one: &ListedConversation) -> String {
    let age = report::age(unix_seconds().saturating_sub(one.updated));
    format!("{}  ({} messages, {age} ago)", one.name(), one.messages)
}

/// The index of the last question of a conversation.
pub(super) fn last_question(found: &FoundConversation) -> Option<usize> {
    found.messages.iter().rposition(|message| message["role"] == "user")
}

//! The last exchange of a conversation: `/undo` takes it back, `/retry` asks its question again.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::ensure;
use axum::http::StatusCode;
use kvik_memory::context::chain::text_of;
use kvik_text::template::has_images;
use serde_json::Value;

use super::{
    conversation::{TerminalChat, last_question},
    report,
};
use crate::command::{client::AskError, images};
use kvik_serving::causes::with_causes;

/// How long an answer that was stopped may hold its conversation, and how often it is looked whether it still does.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(50);

/// The last question of a conversation, and what was said after it.
struct Exchange {
    id: String,
    /// Index of the question.
    index: usize,
    /// The question, and what was said after it.
    messages: Vec<Value>,
}

impl TerminalChat {
    /// Takes the last question and its answer back.
    pub(super) fn undo(&mut self) -> anyhow::Result<()> {
        let Some(last) = self.last_exchange()? else {
            self.screen.line("there is nothing to take back");
            return Ok(());
        };
        self.take_back(&last)?;
        self.screen.note(&format!("taken back: {}", report::shortened(&last.question())));
        Ok(())
    }

    /// Asks the last question again, in place of its answer. Without another answer that one comes back.
    pub(super) fn retry(&mut self) -> anyhow::Result<()> {
        let Some(last) = self.last_exchange()? else {
            self.screen.line("there is nothing to ask again");
            return Ok(());
        };
        ensure!(
            last.asks_in_text(),
            "the last question has a part that is not text, and would be asked without it; ask it in words"
        );
        let question = last.question();
        ensure!(!question.trim().is_empty(), "the last question has no text that could be asked again");
        images::refuse(&question)?;
        let memory = self.memory.clone();
        self.take_back(&last)?;
        let asked = self.ask(&question);
        if !matches!(asked, Ok(true)) {
            self.memory = memory;
            self.restore(&last);
        }
        asked.map(drop)
    }

    /// The last exchange of the conversation; `None` if it has none.
    fn last_exchange(&self) -> anyhow::Result<Option<Exchange>> {
        let Some(id) = &self.id else { return Ok(None) };
        let mut found = self.kept().find(id)?;
        let Some(index) = last_question(&found) else { return Ok(None) };
        Ok(Some(Exchange { messages: found.messages.split_off(index), id: found.id, index }))
    }

    fn take_back(&mut self, last: &Exchange) -> anyhow::Result<()> {
        self.kept().take_back(&last.id, last.index)?;
        self.memory = Value::Null;
        Ok(())
    }

    /// Puts an exchange back that was taken back, and says so; shows its answer where that cannot be.
    fn restore(&mut self, last: &Exchange) {
        match self.put_back(last) {
            Ok(true) => self.screen.note("the answer before is in its place again"),
            Ok(false) => self.screen.note("the new answer was complete already, and is kept; /load shows it"),
            Err(error) => {
                let why = with_causes(&error);
                self.screen.error(&format!("the answer before cannot be put back ({why}); it was:"));
                last.messages[1..].iter().for_each(|answer| self.screen.line(&text_of(answer)));
            }
        }
    }

    /// Puts an exchange back once the stopped answer no longer holds the conversation; false if another answer was
    /// stored in its place.
    fn put_back(&self, last: &Exchange) -> anyhow::Result<bool> {
        let start = Instant::now();
        loop {
            if self.kept().find(&last.id)?.messages.len() > last.index {
                return Ok(false);
            }
            match self.kept().add(&last.id, &last.messages) {
                Err(AskError::Refused { status: StatusCode::CONFLICT, .. }) if start.elapsed() < PATIENCE => {
                    thread::sleep(LOOK);
                }
                added => return Ok(added.map(|()| true)?),
            }
        }
    }
}

impl Exchange {
    fn question(&self) -> String {
        self.messages.first().map(text_of).unwrap_or_default()
    }

    /// True if the question is a text, or parts of text alone.
    fn asks_in_text(&self) -> bool {
        let is_text = |part: &Value| part["type"] == "text";
        self.messages.first().is_none_or(|question| {
            let parts = question["content"].as_array();
            !has_images(question) && parts.is_none_or(|parts| parts.iter().all(is_text))
        })
    }
}

//! A summary as it is made: asked for where the conversation stands, whose beginning is in the cache; or of what is let go,
//! thinned and in pieces, each told to the model with the summary so far.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvik_cache::Token;
use kvik_engine::api::{KeptPrompt, Report, Request};
use kvik_engine::conversation::{
    lighten::{Lighten, lighten},
    segments::exchanges,
};
use kvik_engine::text::answer::{AnswerDelta, AnswerParser};
use serde_json::Value;

use super::book::{Summary, SummaryKey};
use super::measure;
use super::rebuild::{Ahead, Rebuild};
use super::turn::{Purpose, Render};
use crate::app::{keys::Caller, metrics::memory::SummaryOutcome, report::usage, state::App};
use crate::clock::unix_seconds;
use crate::http::error::ApiError;

/// Pieces of a history that are summarised one after the other; of a longer one, a sample is read.
const PIECES_MAX: usize = 8;
/// Characters of a tool's output that a summary is made from.
const TOOL_CHARS: usize = 1024;

/// One summary that is being made.
pub(super) struct Making<'a> {
    app: &'a Arc<App>,
    caller: &'a Caller,
    key: &'a SummaryKey,
    rebuild: &'a Rebuild,
    /// Somebody waits for it.
    is_waited_for: bool,
    /// What it has cost so far.
    spent: Mutex<Report>,
}

impl<'a> Making<'a> {
    /// The summary `key`, for nobody who waits.
    pub(super) fn new(
        app: &'a Arc<App>,
        caller: &'a Caller,
        key: &'a SummaryKey,
        rebuild: &'a Rebuild,
    ) -> Making<'a> {
        Making { app, caller, key, rebuild, is_waited_for: false, spent: Mutex::default() }
    }

    /// The same for somebody who does.
    pub(super) fn waited_for(self) -> Making<'a> {
        Making { is_waited_for: true, ..self }
    }

    /// What it has cost so far.
    pub(super) fn spent(&self) -> Report {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Report> {
        // Sums are whole whatever panicked.
        self.spent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Making<'_> {
    /// Makes it, and computes the conversation as it goes on from it.
    pub(super) async fn run(&self) -> Result<(), ApiError> {
        let book = &self.app.memory.book;
        // A turn that began before the summary was there ends after it: only what it said is computed then.
        let summary = match book.get(self.key) {
            Some(summary) => summary,
            None => self.summary().await?,
        };
        book.keep(self.key, summary.clone());
        // Turns that were answered meanwhile are computed as well, so that the next one finds all of it.
        while let Some((turns, ahead)) = self.app.memory.latest.get(self.key) {
            self.compute(&summary, &ahead).await?;
            if self.app.memory.latest.ends(self.key, turns, book) {
                break;
            }
        }
        Ok(())
    }

    /// The new summary; the old one where the model has nothing to say.
    pub(super) async fn summary(&self) -> Result<Summary, ApiError> {
        let before = self.rebuild.before.as_ref();
        let (text, failed) = match self.said_in_place().await? {
            Some(said) => (said, None),
            None => self.said_of_pieces().await?,
        };
        let outcome = failed.as_ref().map_or(SummaryOutcome::Made, |_| SummaryOutcome::Empty);
        self.app.metrics.memory.summary(outcome);
        let updates = before.map_or(0, |summary| summary.updates) + 1;
        let made = unix_seconds();
        Ok(Summary {
            text,
            covers: self.rebuild.covers,
            updates,
            made,
            used: made,
            ready: false,
            failed,
            corrected: false,
            read: false,
        })
    }

    /// What the model says at the end of the messages that are let go. They are the beginning of what the last turns read,
    /// so that no more than the question is computed. `None` where that cannot be asked, or nothing was said.
    async fn said_in_place(&self) -> Result<Option<String>, ApiError> {
        let Rebuild { words, prefix, systems, let_go, summary_max, .. } = self.rebuild;
        let told = words.told(self.old(), prefix, *systems, let_go);
        let asked = words.ask_in_place(told);
        // A template may refuse another question there; then pieces are asked about.
        let prompt = asked.and_then(|asked| (self.rebuild.render)(self.app, &asked, Purpose::InPlace).ok());
        let context = self.app.serving.model.context;
        match prompt.filter(|prompt| prompt.len() + summary_max <= context) {
            Some(prompt) => Ok(Some(self.say(prompt).await?).filter(|said| !said.is_empty())),
            None => Ok(None),
        }
    }

    /// What it says of piece after piece, and why that is not of all of them.
    async fn said_of_pieces(&self) -> Result<(String, Option<String>), ApiError> {
        let (mut text, mut failed) = (self.old().to_owned(), None);
        for piece in self.pieces() {
            let question = self.rebuild.words.ask(&text, &piece);
            let prompt = (self.rebuild.render)(self.app, &question, Purpose::Summary)?;
            match self.say(prompt).await? {
                said if said.is_empty() => failed = Some("the model gave no summary".to_owned()),
                said => text = said,
            }
        }
        Ok((text, failed))
    }

    /// The summary so far.
    fn old(&self) -> &str {
        self.rebuild.before.as_ref().map_or("", |summary| &summary.text)
    }

    /// The messages that are let go, in pieces that the context has room for.
    fn pieces(&self) -> Vec<Vec<Value>> {
        let mut messages = self.rebuild.let_go.clone();
        lighten(&mut messages, &Lighten { tool_chars: TOOL_CHARS });
        let mut pieces: Vec<(usize, Vec<Value>)> = Vec::new();
        for exchange in exchanges(&messages) {
            let exchange = &messages[exchange];
            let tokens: usize = exchange.iter().map(|message| measure::message(self.app, message)).sum();
            // What is longer than all that may be read at a time is not read at all.
            if tokens > self.rebuild.chunk_max {
                continue;
            }
            match pieces.last_mut() {
                Some((all, piece)) if *all + tokens <= self.rebuild.chunk_max => {
                    *all += tokens;
                    piece.extend_from_slice(exchange);
                }
                _ => pieces.push((tokens, exchange.to_vec())),
            }
        }
        sample(pieces.into_iter().map(|(_, piece)| piece).collect())
    }

    /// What the model says to a prompt that asks for a summary, without thoughts.
    async fn say(&self, prompt: Vec<Token>) -> Result<String, ApiError> {
        let request = Request { max_tokens: self.rebuild.summary_max, ignore_eos: false, ..request(prompt) };
        let (text, report) = if self.is_waited_for {
            let request = Request { background: false, ..request };
            self.app.answer(self.caller, request).await?
        } else {
            self.app.say(self.caller, request).await?
        };
        usage::add(&mut self.lock(), &report);
        let mut parser = AnswerParser::new(false, None);
        let deltas = parser.push(&text).into_iter().chain(parser.finish());
        let content: String = deltas
            .filter_map(|delta| match delta {
                AnswerDelta::Content(text) => Some(text),
                _ => None,
            })
            .collect();
        Ok(content.trim().to_owned())
    }

    /// Computes the conversation as it goes on behind `summary`.
    async fn compute(&self, summary: &Summary, ahead: &Ahead) -> Result<(), ApiError> {
        let words = &self.rebuild.words;
        let messages = words.told(&summary.text, &ahead.prefix, ahead.systems, &ahead.recent);
        compute(self.app, self.caller, &self.rebuild.render, &messages).await
    }
}

/// Computes a conversation for what it leaves in the cache.
pub(super) async fn compute(
    app: &App,
    caller: &Caller,
    render: &Render,
    messages: &[Value],
) -> Result<(), ApiError> {
    let prompt = render(app, messages, Purpose::Ahead)?;
    if prompt.len() > app.serving.model.context {
        return Ok(());
    }
    app.say(caller, request(prompt)).await.map(drop)
}

/// A request of nobody who waits, which computes a prompt.
fn request(tokens: Vec<Token>) -> Request {
    let kept =
        KeptPrompt { tokens, adapters: None, salt: [0; 16], tenant: Default::default(), retention: None };
    Request { lifetime: Default::default(), background: true, ..kept.request() }
}

/// The first and the last quarter of the pieces, and between them as many as may be, evenly: as document 002 thins the
/// input of a summary.
fn sample(pieces: Vec<Vec<Value>>) -> Vec<Vec<Value>> {
    if pieces.len() <= PIECES_MAX {
        return pieces;
    }
    let quarter = PIECES_MAX / 4;
    let (middle, between) = (PIECES_MAX - 2 * quarter, pieces.len() - 2 * quarter);
    let wanted = |index: usize| {
        let inner = index.checked_sub(quarter).filter(|&inner| inner < between);
        inner.is_none_or(|inner| inner * middle % between < middle)
    };
    pieces.into_iter().enumerate().filter(|(index, _)| wanted(*index)).map(|(_, piece)| piece).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn of_a_long_history_head_tail_and_even_middle_are_read() {
        let pieces = |count: usize| (0..count).map(|i| vec![json!(i)]).collect::<Vec<_>>();
        let sampled = |count: usize| -> Vec<u64> {
            sample(pieces(count)).iter().map(|piece| piece[0].as_u64().unwrap()).collect()
        };
        assert_eq!(sampled(8), (0..8).collect::<Vec<u64>>());
        assert_eq!(sampled(9).len(), PIECES_MAX);
        assert_eq!(sampled(24), [0, 1, 2, 7, 12, 17, 22, 23]);
        assert_eq!(sampled(1000).len(), PIECES_MAX);
    }
}

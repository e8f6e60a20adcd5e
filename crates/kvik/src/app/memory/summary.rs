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
use super::turn::Purpose;
use crate::app::{keys::Caller, metrics::memory::SummaryOutcome, report::usage, state::App};
use crate::clock::unix_seconds;
use crate::http::{error::ApiError, readers::Reader};

/// Pieces of a history that are summarised one after the other; of a longer one, a sample is read.
const PIECES_MAX: usize = 8;
/// Characters of a tool's output that a summary is made from.
const TOOL_CHARS: usize = 1024;

/// One summary that is being made.
pub(super) struct Making<'a> {
    app: &'a Arc<App>,
    caller: &'a Caller,
    key: &'a SummaryKey,
    rebuild: Arc<Rebuild>,
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
        rebuild: Arc<Rebuild>,
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
        let known = book.get(self.key);
        let summary = match known {
            Some(summary) => summary,
            None => {
                let summary = self.summary().await?;
                if !self.app.memory.latest.keep(self.key, &summary, book) {
                    return Ok(());
                }
                summary
            }
        };
        // Turns that were answered meanwhile are computed as well, so that the next one finds all of it.
        while let Some((turns, ahead)) = self.app.memory.latest.get(self.key) {
            self.compute(&summary, ahead).await?;
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
        let rebuild = self.rebuild.clone();
        let prompt = in_turn(self.app, self.caller, move |app| Ok(rebuild.asked_in_place(app))).await?;
        match prompt {
            Some(prompt) => Ok(Some(self.say(prompt).await?).filter(|said| !said.is_empty())),
            None => Ok(None),
        }
    }

    /// What it says of piece after piece, and why that is not of all of them.
    async fn said_of_pieces(&self) -> Result<(String, Option<String>), ApiError> {
        let (mut text, mut failed) = (self.rebuild.old().to_owned(), None);
        let rebuild = self.rebuild.clone();
        for piece in in_turn(self.app, self.caller, move |app| Ok(rebuild.pieces(app))).await? {
            let (rebuild, so_far) = (self.rebuild.clone(), text.clone());
            let asked = move |app: &App| {
                let question = rebuild.words.ask(&so_far, &piece);
                (rebuild.render)(app, &question, Purpose::Summary)
            };
            let prompt = in_turn(self.app, self.caller, asked).await?;
            match self.say(prompt).await? {
                said if said.is_empty() => failed = Some("the model gave no summary".to_owned()),
                said => text = said,
            }
        }
        Ok((text, failed))
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
    async fn compute(&self, summary: &Summary, ahead: Ahead) -> Result<(), ApiError> {
        let (rebuild, text) = (self.rebuild.clone(), summary.text.clone());
        let prompt = move |app: &App| {
            let messages = rebuild.words.told(&text, &ahead.prefix, ahead.systems, &ahead.recent);
            (rebuild.render)(app, &messages, Purpose::Ahead)
        };
        compute(self.app, self.caller, prompt).await
    }
}

impl Rebuild {
    /// The prompt that asks for the summary at the end of what it covers; `None` where that cannot be asked: a template
    /// may refuse another question there, and a history may be longer than the context.
    fn asked_in_place(&self, app: &App) -> Option<Vec<Token>> {
        let told = self.words.told(self.old(), self.said.prefix(), self.said.systems, self.let_go());
        let prompt = (self.render)(app, &self.words.ask_in_place(told)?, Purpose::InPlace).ok()?;
        (prompt.len() + self.summary_max <= app.serving.model.context).then_some(prompt)
    }

    /// The summary so far.
    fn old(&self) -> &str {
        self.before.as_ref().map_or("", |summary| &summary.text)
    }

    /// The messages that it covers beyond the summary before it.
    fn let_go(&self) -> &[Value] {
        let covered = self.before.as_ref().map_or(0, |summary| summary.covers);
        &self.said.messages()[covered..self.covers]
    }

    /// The messages that are let go, in pieces that the context has room for.
    fn pieces(&self, app: &App) -> Vec<Vec<Value>> {
        let mut messages = self.let_go().to_vec();
        lighten(&mut messages, &Lighten { tool_chars: TOOL_CHARS });
        let mut pieces: Vec<(usize, Vec<Value>)> = Vec::new();
        for exchange in exchanges(&messages) {
            let exchange = &messages[exchange];
            let tokens: usize = exchange.iter().map(|message| measure::message(app, message)).sum();
            // What is longer than all that may be read at a time is not read at all.
            if tokens > self.chunk_max {
                continue;
            }
            match pieces.last_mut() {
                Some((all, piece)) if *all + tokens <= self.chunk_max => {
                    *all += tokens;
                    piece.extend_from_slice(exchange);
                }
                _ => pieces.push((tokens, exchange.to_vec())),
            }
        }
        sample(pieces.into_iter().map(|(_, piece)| piece).collect())
    }
}

/// Runs what may take its time beside the async threads, when it is the turn of the tenant for large bodies: nobody
/// waits for it, so small ones and other tenants come first.
async fn in_turn<T: Send + 'static>(
    app: &Arc<App>,
    caller: &Caller,
    work: impl FnOnce(&App) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let reader = Reader { tenant: caller.tenant.id, large: true };
    app.in_turn(reader, move |app, _| work(app)).await
}

/// Computes what a conversation is rendered to, for what it leaves in the cache.
pub(super) async fn compute(
    app: &Arc<App>,
    caller: &Caller,
    prompt: impl FnOnce(&App) -> Result<Vec<Token>, ApiError> + Send + 'static,
) -> Result<(), ApiError> {
    let prompt = in_turn(app, caller, prompt).await?;
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

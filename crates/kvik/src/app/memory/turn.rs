//! One turn: what the model reads of a conversation, and what is to be done behind the answer.

use std::ops::Range;
use std::sync::Arc;

use kvik_cache::Token;
use kvik_engine::conversation::{
    ChainId, Let, MemorySettings, Segments, chain, chain::text_of, quotes::Quotes, segments::exchanges,
};
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedSender;

use super::Memory;
use super::book::{Book, Summary, SummaryKey};
use super::rebuild::{Latest, MemoryJob, MemoryTask, Rebuild, Said};
use super::words::Words;
use crate::app::{keys::Caller, state::App};
use crate::http::error::ApiError;

/// Tokens that a template writes around a message, at most with the usual ones.
const AROUND_MESSAGE: usize = 8;
/// Attempts to make a prompt fit whose messages were estimated too small.
const ATTEMPTS: usize = 4;
/// Exchanges that are quoted at a question at most.
const QUOTES_MAX: usize = 6;

/// What messages are rendered for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To be answered.
    Answer,
    /// To be computed ahead: nobody is asked anything.
    Ahead,
    /// To be summarised: without the tools and the settings of the conversation.
    Summary,
}

/// Makes tokens of messages, as the request's template and settings have it.
pub(crate) type Render = Arc<dyn Fn(&App, &[Value], Purpose) -> Result<Vec<Token>, ApiError> + Send + Sync>;

/// The message that an answer will be when the client sends it back.
pub(crate) type ReadAnswer = Box<dyn Fn(&str) -> Value + Send>;

/// A conversation as it is asked.
pub(crate) struct History<'a> {
    pub(crate) caller: &'a Caller,
    pub(crate) messages: &'a [Value],
    /// Tokens to leave for the answer.
    pub(crate) room: usize,
    pub(crate) render: Render,
}

/// What a turn reads.
pub(crate) struct RememberedTurn {
    /// The messages that the model reads.
    pub(crate) messages: Vec<Value>,
    report: Value,
    after: Option<After>,
}

/// What is to be done behind the answer.
struct After {
    work: MemoryJob,
    said: Said,
    read_answer: Option<ReadAnswer>,
    queue: UnboundedSender<MemoryJob>,
    latest: Arc<Latest>,
    book: Arc<Book>,
}

impl Memory {
    /// What a turn reads of its messages.
    ///
    /// # Errors
    /// If the server's bounds do not fit its context, or a template refuses the messages.
    pub(crate) fn turn(&self, app: &App, asked: &History<'_>) -> Result<RememberedTurn, ApiError> {
        let settings = self.settings.as_ref().map_err(|error| {
            ApiError::field("kvik.memory", format!("`kvik.memory` cannot be on with this server: {error}"))
        })?;
        let conversation = Conversation::new(self, app, asked, settings);
        let known = self.book.of(&conversation.tenant, &conversation.chain);
        // What was computed ahead is read first; what was not only where that does not fit.
        let ready = known.iter().find(|summary| summary.ready).cloned();
        let view = conversation.view(ready);
        let view = match known.into_iter().next() {
            Some(newest) if view.forced.is_some() => conversation.view(Some(newest)),
            _ => view,
        };
        let view = conversation.fitting(view)?;
        Ok(conversation.turn(view))
    }
}

/// A conversation, and the facts by which its segments are chosen.
struct Conversation<'a> {
    memory: &'a Memory,
    app: &'a App,
    asked: &'a History<'a>,
    settings: &'a MemorySettings,
    words: Words,
    tenant: String,
    /// Messages that are never let go: system messages, and the opening exchange where that is protected.
    prefix: usize,
    /// System messages.
    systems: usize,
    /// Identities of the messages behind the prefix.
    chain: Vec<ChainId>,
    /// Tokens of all messages, estimated.
    sizes: Vec<usize>,
}

/// What would be read with one summary.
struct View {
    summary: Option<Summary>,
    segments: Segments,
    /// What is let go though no summary covers it.
    forced: Option<Let>,
    /// Exchanges that are not read and fit the question, of the messages behind the prefix; ascending.
    quotes: Vec<Range<usize>>,
}

impl View {
    /// Messages that a summary covers.
    fn covered(&self) -> usize {
        self.summary.as_ref().map_or(0, |summary| summary.covers)
    }

    /// Messages behind the prefix that are not read.
    fn unread(&self) -> usize {
        self.covered() + self.forced.map_or(0, |forced| forced.messages)
    }
}

impl<'a> Conversation<'a> {
    fn new(memory: &'a Memory, app: &'a App, asked: &'a History<'a>, settings: &'a MemorySettings) -> Self {
        let messages = asked.messages;
        let is_system = |message: &&Value| matches!(message["role"].as_str(), Some("system" | "developer"));
        let systems = messages.iter().take_while(is_system).count();
        let opening = exchanges(&messages[systems..]).first().map_or(0, |opening| opening.len());
        let prefix = systems + if settings.protect_first { opening } else { 0 };
        let words = memory.words.clone().unwrap_or_else(|| Words::of(&app.serving.model.own_name, messages));
        let tenant = asked.caller.tenant.name.clone();
        let key = blake3::derive_key("kvik 2026 conversation of a tenant", tenant.as_bytes());
        let chain = chain(&key, &messages[systems..]).split_off(prefix - systems);
        let sizes = messages.iter().map(|message| size(app, message)).collect();
        Conversation { memory, app, asked, settings, words, tenant, prefix, systems, chain, sizes }
    }

    fn view(&self, summary: Option<Summary>) -> View {
        let covered = self.prefix + summary.as_ref().map_or(0, |summary| summary.covers);
        let segments = Segments::new(&self.asked.messages[covered..], &self.sizes[covered..]);
        let forced = segments.forced(self.room(summary.as_ref()), self.settings);
        let mut view = View { summary, segments, forced, quotes: Vec::new() };
        view.quotes = self.quotes(view.unread());
        view
    }

    /// Tokens that recent messages may take.
    fn room(&self, summary: Option<&Summary>) -> usize {
        let told = summary.map_or(0, |summary| encoded(self.app, &summary.text) + AROUND_MESSAGE);
        let prefix: usize = self.sizes[..self.prefix].iter().sum();
        self.app.serving.model.context.saturating_sub(prefix + told + self.asked.room)
    }

    /// The same, with more let go where sizes were estimated too small.
    fn fitting(&self, mut view: View) -> Result<View, ApiError> {
        let most = self.app.serving.model.context - self.asked.room.min(self.app.serving.model.context);
        for _ in 0..ATTEMPTS {
            let tokens = (self.asked.render)(self.app, &self.messages(&view), Purpose::Answer)?.len();
            let left = view.segments.tokens() - view.forced.map_or(0, |forced| forced.tokens);
            let Some(beyond) = tokens.checked_sub(most).filter(|&beyond| beyond > 0) else { break };
            let more = view.segments.forced(left.saturating_sub(beyond), self.settings);
            if more == view.forced {
                break;
            }
            view.forced = more;
            view.quotes = self.quotes(view.unread());
        }
        Ok(view)
    }

    /// The messages that are read.
    fn messages(&self, view: &View) -> Vec<Value> {
        let said = &self.asked.messages[self.prefix..];
        let quotes: Vec<&[Value]> = view.quotes.iter().map(|quote| &said[quote.clone()]).collect();
        let mut messages = self.unquoted(view);
        self.words.quote(&quotes, &mut messages);
        messages
    }

    /// The same without what is quoted, as later turns read it.
    fn unquoted(&self, view: &View) -> Vec<Value> {
        let recent = &self.asked.messages[self.prefix + view.unread()..];
        let mut messages = [&self.asked.messages[..self.prefix], recent].concat();
        if let Some(summary) = view.summary.as_ref().filter(|summary| !summary.text.is_empty()) {
            self.words.tell(&summary.text, self.systems, &mut messages);
        }
        messages
    }

    /// Exchanges among the first `unread` messages behind the prefix that fit the question best and are no longer than
    /// quotes may be, in the order in which they were said.
    fn quotes(&self, unread: usize) -> Vec<Range<usize>> {
        let messages = &self.asked.messages[self.prefix..];
        let question = messages.last().filter(|message| message["role"] == "user" && unread > 0);
        let Some(question) = question else { return Vec::new() };
        let mut left = self.settings.quotes_max;
        let found = Quotes::new(&messages[..unread]).best(&text_of(question), QUOTES_MAX);
        let mut quotes: Vec<Range<usize>> = Vec::new();
        for quote in found {
            let tokens: usize = self.sizes[self.prefix..][quote.messages.clone()].iter().sum();
            if let Some(rest) = left.checked_sub(tokens) {
                left = rest;
                quotes.push(quote.messages);
            }
        }
        quotes.sort_by_key(|quote| quote.start);
        quotes
    }

    fn turn(&self, view: View) -> RememberedTurn {
        let now = super::now();
        if let Some(summary) = &view.summary {
            self.memory.book.note_read(&self.key(summary.covers), now);
        }
        let due = view.segments.due(self.settings);
        let due = due.map(|due| (view.covered() + due.messages, due));
        let is_ready = |covers| self.memory.book.get(&self.key(covers)).is_some_and(|summary| summary.ready);
        let due = due.filter(|&(covers, _)| !is_ready(covers));
        let rebuilding = due.is_some();
        let after = match due {
            Some((covers, _)) => Some(self.rebuild(&view, covers)),
            // The next turn reads this one without what was quoted in it.
            None if !view.quotes.is_empty() => {
                let (messages, render) = (self.unquoted(&view), self.asked.render.clone());
                Some(MemoryTask::Ahead { messages, render })
            }
            None => None,
        };
        let after = after.map(|kind| After {
            work: MemoryJob { caller: self.asked.caller.clone(), kind },
            said: self.said(),
            read_answer: None,
            queue: self.memory.work.clone(),
            latest: self.memory.latest.clone(),
            book: self.memory.book.clone(),
        });
        let report = self.report(&view, rebuilding, now);
        RememberedTurn { messages: self.messages(&view), report, after }
    }

    /// The summary of the first `covers` messages, which is made behind the answer.
    fn rebuild(&self, view: &View, covers: usize) -> MemoryTask {
        let messages = &self.asked.messages[self.prefix..];
        let rebuild = Rebuild {
            before: view.summary.clone(),
            let_go: messages[view.covered()..covers].to_vec(),
            covers,
            summary_max: self.settings.summary_max,
            chunk_max: self.settings.recent_max,
            words: self.words.clone(),
            render: self.asked.render.clone(),
        };
        MemoryTask::Rebuild { key: self.key(covers), rebuild: Box::new(rebuild) }
    }

    fn said(&self) -> Said {
        let (prefix, messages) = self.asked.messages.split_at(self.prefix);
        Said {
            tenant: self.tenant.clone(),
            prefix: prefix.to_vec(),
            systems: self.systems,
            messages: messages.to_vec(),
            chain: self.chain.clone(),
        }
    }

    fn key(&self, covers: usize) -> SummaryKey {
        SummaryKey { tenant: self.tenant.clone(), chain: self.chain[covers - 1] }
    }

    /// The object `kvik.memory`.
    fn report(&self, view: &View, rebuilding: bool, now: u64) -> Value {
        let (covered, unread) = (view.covered(), view.unread());
        let sum = |sizes: &[usize]| sizes.iter().sum::<usize>();
        let recent = self.prefix + unread;
        let mut report = json!({
            "messages": {
                "prefix": self.prefix,
                "summarised": covered,
                "let_go": unread - covered,
                "recent": self.asked.messages.len() - recent,
            },
            "tokens": {
                "prefix": sum(&self.sizes[..self.prefix]),
                "summary": view.summary.as_ref().map_or(0, |summary| encoded(self.app, &summary.text)),
                "recent": sum(&self.sizes[recent..]),
                "discarded_since": view.segments.discarded(self.settings),
            },
            "quotes": view.quotes.iter().map(|quote| [self.prefix + quote.start, self.prefix + quote.end]).collect::<Vec<_>>(),
            "rebuilding": rebuilding,
            "rebuilt": view.summary.as_ref().is_some_and(|summary| !summary.read),
            "computed_ahead": view.summary.as_ref().is_some_and(|summary| summary.ready),
        });
        if let Some(summary) = &view.summary {
            report["summary"] =
                json!({"age_s": now.saturating_sub(summary.made), "updates": summary.updates});
            if let Some(failed) = &summary.failed {
                report["summary"]["failed"] = json!(failed);
            }
        }
        report
    }
}

impl RememberedTurn {
    /// From now on the answer is read so, to be computed ahead with what it answers.
    pub(crate) fn reads_answer(&mut self, read: ReadAnswer) {
        if let Some(after) = &mut self.after {
            after.read_answer = Some(read);
        }
    }

    /// The object `kvik.memory`.
    pub(crate) fn report(&self) -> &Value {
        &self.report
    }

    /// The answer is complete: what is to be done behind it begins.
    pub(crate) fn answered(&mut self, text: &str) {
        if let Some(words) = in_words(&self.report) {
            tracing::info!("{words}");
        }
        let Some(After { mut work, mut said, read_answer, queue, latest, book }) = self.after.take() else {
            return;
        };
        let answer = read_answer.map(|read| read(text));
        let begins = match &mut work.kind {
            MemoryTask::Rebuild { key, .. } => {
                said.messages.extend(answer);
                latest.note(key, &said, &book)
            }
            MemoryTask::Ahead { messages, .. } => {
                messages.extend(answer);
                true
            }
        };
        if begins {
            // Nobody receives it where the server stops.
            let _ = queue.send(work);
        }
    }
}

/// What was read of a conversation, where that is not all of it.
fn in_words(report: &Value) -> Option<String> {
    let count = |name: &str| report["messages"][name].as_u64().unwrap_or(0);
    let (summarised, let_go, recent) = (count("summarised"), count("let_go"), count("recent"));
    let quotes = report["quotes"].as_array().map_or(0, Vec::len);
    let then = if report["rebuilding"] == true { "; a new summary is made behind it" } else { "" };
    (summarised + let_go > 0 || !then.is_empty()).then(|| {
        format!(
            "conversation: {recent} messages read as they were said, {summarised} in a summary, {let_go} let go, {quotes} exchanges quoted{then}"
        )
    })
}

/// Tokens of a message, about.
fn size(app: &App, message: &Value) -> usize {
    let calls = message.get("tool_calls").map_or_else(String::new, Value::to_string);
    encoded(app, &text_of(message)) + encoded(app, &calls) + AROUND_MESSAGE
}

/// Tokens of a text; at least as many as a text has that is too long to be looked at.
fn encoded(app: &App, text: &str) -> usize {
    match text.len() <= app.text_bytes_max() {
        true => app.serving.tokenizer.encode(text, false, false).len(),
        false => app.serving.tokenizer.tokens_at_least(text.len()).max(app.serving.model.context),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_says_what_was_not_read() {
        let report = |summarised: u64, rebuilding: bool| {
            let messages = json!({"summarised": summarised, "let_go": 0, "recent": 9});
            json!({"messages": messages, "quotes": [[1, 3]], "rebuilding": rebuilding})
        };
        assert_eq!(in_words(&report(0, false)), None);
        let words = in_words(&report(4, true)).unwrap();
        assert!(
            words.contains("4 in a summary") && words.ends_with("a new summary is made behind it"),
            "{words}"
        );
    }
}

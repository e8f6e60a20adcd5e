//! The view of a conversation that a turn reads: a summary, recent messages, and quotes of the others.

use std::ops::Range;

use crate::context::{
    ChainId, Let, MemorySettings, Segments, chain::text_of, quotes::Quotes, segments::question_before,
};
use serde_json::{Value, json};

use super::book::{Summary, SummaryKey};
use super::compaction::Compaction;
use super::host::Host;
use super::identity::Identity;
use super::measure::Measure;
use super::render::{ComputeTerms, Purpose, Render};
use super::words::Wording;

/// Maximum attempts to make a prompt fit whose messages were estimated too small.
const ATTEMPTS: usize = 4;
/// Maximum number of exchanges that are quoted with a question.
const QUOTES_MAX: usize = 6;

/// A conversation as requested.
pub struct History<'a, H: Host> {
    /// Account of the request.
    pub caller: &'a H::Caller,
    /// All messages, the question last.
    pub messages: Vec<Value>,
    /// Compaction item before them, if any.
    pub before: Option<&'a Compaction>,
    /// `Some` if the conversation is to be compacted and the item returned to the client, with a threshold in tokens if
    /// one is given.
    pub compacting: Option<Option<usize>>,
    /// Tokens to reserve for the answer.
    pub room: usize,
    /// Rendering of messages to tokens.
    pub render: Render<H::Error>,
    /// How its prompts are computed.
    pub terms: ComputeTerms,
}

/// A conversation that may be longer than the context, with the facts that determine its segments.
pub(super) struct LongConversation<'a, H: Host> {
    pub(super) measure: &'a Measure,
    pub(super) asked: &'a History<'a, H>,
    /// Bounds, within the room that the prompt leaves besides its messages.
    pub(super) settings: MemorySettings,
    /// Tokens of messages that are summarised at a time.
    chunk_max: usize,
    pub(super) wording: Wording,
    pub(super) tenant: String,
    /// Number of messages that are never dropped: system messages, and the opening exchange if it is protected.
    pub(super) prefix: usize,
    /// Number of system messages.
    pub(super) systems: usize,
    /// Identities of the messages after the prefix.
    pub(super) chain: Vec<ChainId>,
    /// Estimated tokens of each message; 0 for messages that no view reads.
    sizes: Vec<usize>,
    /// Tokens of the prompt besides its messages: tools, and what a template writes on its own.
    around: usize,
}

/// Identity and settings of a conversation, without its messages.
pub(super) struct Outline {
    pub(super) settings: MemorySettings,
    pub(super) chunk_max: usize,
    pub(super) wording: Wording,
    pub(super) tenant: String,
    prefix: usize,
    systems: usize,
    pub(super) chain: Vec<ChainId>,
}

impl Outline {
    /// Numbers of system messages, of messages that are never dropped, and of the messages after them that the summary
    /// covers which was read.
    pub(super) fn counts(&self, read: Option<&Summary>) -> [usize; 3] {
        [self.systems, self.prefix, read.map_or(0, |summary| summary.covers)]
    }
}

/// The part of a conversation that would be read with a given summary.
pub(super) struct View {
    pub(super) summary: Option<Summary>,
    pub(super) segments: Segments,
    /// Messages that are dropped although no summary covers them.
    pub(super) forced: Option<Let>,
    /// Exchanges that are not otherwise read and match the question, among the messages after the prefix; ascending.
    pub(super) quotes: Vec<Range<usize>>,
}

impl View {
    /// Number of messages that the summary covers.
    pub(super) fn covered(&self) -> usize {
        self.summary.as_ref().map_or(0, |summary| summary.covers)
    }

    /// Number of messages after the prefix that are not read.
    pub(super) fn unread(&self) -> usize {
        self.covered() + self.forced.map_or(0, |forced| forced.messages)
    }
}

impl<'a, H: Host> LongConversation<'a, H> {
    pub(super) fn new(
        measure: &'a Measure,
        asked: &'a History<'a, H>,
        settings: MemorySettings,
        wording: &Wording,
    ) -> Self {
        let messages = &asked.messages[..];
        let tenant = H::tenant(asked.caller).to_owned();
        let Identity { systems, prefix, chain } =
            Identity::of(&tenant, messages, asked.before, settings.protect_first);
        LongConversation {
            measure,
            asked,
            settings,
            chunk_max: settings.recent_max,
            wording: wording.clone(),
            tenant,
            prefix,
            systems,
            chain,
            sizes: vec![0; messages.len()],
            around: 0,
        }
    }

    /// Chooses the view, given the summaries of the conversation's beginnings, those that cover most first.
    ///
    /// The newest summary that is prefilled in advance is preferred; the newest of all is used only if that view does
    /// not fit.
    ///
    /// # Errors
    /// If a template refuses the messages.
    pub(super) fn view(&mut self, known: &[Summary]) -> Result<View, H::Error> {
        let ready = known.iter().find(|summary| summary.ready);
        self.measure_behind(ready.map_or(0, |summary| summary.covers));
        self.measure_around();
        let mut view = self.behind(ready.cloned());
        let newest = known.first().filter(|newest| newest.covers > view.covered());
        // Sizes may be estimated too small to see at once that the view does not fit.
        if view.forced.is_none() || newest.is_none() {
            view = self.fitting(view)?;
        }
        match newest {
            Some(newest) if view.forced.is_some() => self.fitting(self.behind(Some(newest.clone()))),
            _ => Ok(view),
        }
    }

    /// Measures the messages after a summary of `covered` messages, which covers most of a long history.
    fn measure_behind(&mut self, covered: usize) {
        let read = (0..self.prefix).chain(self.prefix + covered..self.asked.messages.len());
        read.for_each(|index| self.sizes[index] = self.measure.message(&self.asked.messages[index]));
    }

    /// Measures what the prompt has besides its messages, and has a summary due within the room that this leaves.
    fn measure_around(&mut self) {
        let question = json!({"role": "user", "content": "?"});
        let least = [&self.asked.messages[..self.prefix], std::slice::from_ref(&question)].concat();
        // Where a template refuses even this, the error is that of the conversation.
        let rendered = (self.asked.render)(&least, Purpose::Answer).map_or(0, |tokens| tokens.len());
        self.around = rendered.saturating_sub(self.prefix_tokens() + self.measure.message(&question));
        let others = self.settings.summary_max.saturating_add(self.settings.quotes_max);
        self.settings = self.settings.within(self.room(None).saturating_sub(others));
    }

    /// The view after a summary, without quotes.
    fn behind(&self, summary: Option<Summary>) -> View {
        let covered = self.prefix + summary.as_ref().map_or(0, |summary| summary.covers);
        let (messages, sizes) = (&self.asked.messages[covered..], &self.sizes[covered..]);
        let segments = Segments::new(messages, sizes, &self.settings);
        let forced = segments.forced(self.room(summary.as_ref()), &self.settings);
        View { summary, segments, forced, quotes: Vec::new() }
    }

    /// Tokens that recent messages may take.
    fn room(&self, summary: Option<&Summary>) -> usize {
        let told =
            summary.map_or(0, |summary| self.measure.text(&summary.text) + self.measure.around_message);
        let others = self.prefix_tokens() + self.around + told + self.asked.room;
        self.measure.context().saturating_sub(others)
    }

    /// Adds quotes, and makes the view fit if it does not with them, or because sizes were estimated too small. Where no
    /// message is dropped yet, quotes are dropped first; where some are, others make room for quotes as well.
    fn fitting(&self, mut view: View) -> Result<View, H::Error> {
        let mut quotes_max = self.settings.quotes_max;
        for _ in 0..ATTEMPTS {
            view.quotes = self.quotes(view.unread(), quotes_max);
            let Some(beyond) = self.beyond(&view)? else { return Ok(view) };
            if view.forced.is_none() && !view.quotes.is_empty() {
                let quoted: usize = view.quotes.iter().map(|quote| self.quoted(quote)).sum();
                quotes_max = quoted.saturating_sub(beyond);
                continue;
            }
            let left = view.segments.tokens() - view.forced.map_or(0, |forced| forced.tokens);
            let more = view.segments.forced(left.saturating_sub(beyond), &self.settings);
            if more == view.forced {
                break;
            }
            view.forced = more;
        }
        view.quotes.clear();
        Ok(view)
    }

    /// Tokens of the prompt beyond those that the context has for it, if any.
    fn beyond(&self, view: &View) -> Result<Option<usize>, H::Error> {
        let most = self.measure.context().saturating_sub(self.asked.room);
        let tokens = (self.asked.render)(&self.messages(view), Purpose::Answer)?.len();
        Ok(tokens.checked_sub(most).filter(|&beyond| beyond > 0))
    }

    /// Messages that the model reads.
    pub(super) fn messages(&self, view: &View) -> Vec<Value> {
        let said = &self.asked.messages[self.prefix..];
        let quotes: Vec<&[Value]> = view.quotes.iter().map(|quote| &said[quote.clone()]).collect();
        let mut messages = self.unquoted(view);
        self.wording.asking(said.last().map_or(&[], std::slice::from_ref)).quote(&quotes, &mut messages);
        messages
    }

    /// Messages that the model reads, without quotes, as later turns read them.
    pub(super) fn unquoted(&self, view: &View) -> Vec<Value> {
        let (prefix, said) = self.asked.messages.split_at(self.prefix);
        let summary = view.summary.as_ref().map_or("", |summary| &summary.text);
        self.wording.telling(summary).told(summary, prefix, self.systems, &read_behind(said, view.unread()))
    }

    /// The exchanges among the first `unread` messages after the prefix that match the question best, of `most` tokens
    /// together at most, in their original order.
    fn quotes(&self, unread: usize, most: usize) -> Vec<Range<usize>> {
        let messages = &self.asked.messages[self.prefix..];
        let is_asked = unread > 0 && most > 0;
        let question = messages.last().filter(|message| message["role"] == "user" && is_asked);
        let Some(question) = question else { return Vec::new() };
        let mut left = most;
        let found = Quotes::new(&messages[..unread]).best(&text_of(question), QUOTES_MAX);
        let mut quotes: Vec<Range<usize>> = Vec::new();
        for quote in found {
            if let Some(rest) = left.checked_sub(self.quoted(&quote.messages)) {
                left = rest;
                quotes.push(quote.messages);
            }
        }
        quotes.sort_by_key(|quote| quote.start);
        quotes
    }

    /// Tokens of an exchange among the messages after the prefix.
    fn quoted(&self, exchange: &Range<usize>) -> usize {
        let said = &self.asked.messages[self.prefix..][exchange.clone()];
        said.iter().map(|message| self.measure.message(message)).sum()
    }

    /// The conversation's identity and settings, without its messages.
    pub(super) fn outline(self) -> Outline {
        let LongConversation { settings, chunk_max, wording, tenant, prefix, systems, chain, .. } = self;
        Outline { settings, chunk_max, wording, tenant, prefix, systems, chain }
    }

    /// Key of the summary of the first `covers` messages after the prefix.
    pub(super) fn key(&self, covers: usize) -> SummaryKey {
        SummaryKey { tenant: self.tenant.clone(), chain: self.chain[covers - 1] }
    }

    /// Compaction item for the conversation up to its answer, if a summary is read that the client does not have yet.
    pub(super) fn compacted(&self, view: &View) -> Option<Compaction> {
        let summary = view.summary.clone().filter(|summary| summary.covers > 0)?;
        let (prefix, said) = self.asked.messages.split_at(self.prefix);
        let (systems, opening) = prefix.split_at(self.systems);
        let ChainId(chain) = self.chain[summary.covers - 1];
        let recent = read_behind(said, summary.covers);
        Some(Compaction { systems: systems.to_vec(), opening: opening.to_vec(), summary, chain, recent })
    }

    /// How close the recent messages are to being dropped before the next summary is finished, from 0 to 1.
    pub(super) fn pressure(&self, view: &View) -> f64 {
        let room = self.room(view.summary.as_ref()).saturating_sub(self.settings.quotes_max);
        view.segments.pressure(room, &self.settings)
    }

    /// Tokens of the prefix.
    pub(super) fn prefix_tokens(&self) -> usize {
        self.sizes[..self.prefix].iter().sum()
    }

    /// Tokens of the recent messages in a view.
    pub(super) fn recent_tokens(&self, view: &View) -> usize {
        self.sizes[self.prefix + view.unread()..].iter().sum()
    }
}

/// The messages behind the first `unread`, behind the question of an exchange that is cut there.
fn read_behind(said: &[Value], unread: usize) -> Vec<Value> {
    [question_before(said, unread), &said[unread..]].concat()
}

//! What a turn reads of a conversation: a summary, recent messages, and what is quoted of the others.

use std::ops::Range;

use crate::context::{ChainId, Let, MemorySettings, Segments, chain::text_of, quotes::Quotes};
use serde_json::Value;

use super::book::{Summary, SummaryKey};
use super::compaction::Compaction;
use super::host::Host;
use super::identity::Identity;
use super::measure::Measure;
use super::render::{Purpose, Render};
use super::words::Wording;

/// Attempts to make a prompt fit whose messages were estimated too small.
const ATTEMPTS: usize = 4;
/// Exchanges that are quoted at a question at most.
const QUOTES_MAX: usize = 6;

/// A conversation as it is asked.
pub struct History<'a, H: Host> {
    /// Who asks.
    pub caller: &'a H::Caller,
    /// All that was said, the question last.
    pub messages: Vec<Value>,
    /// What stands before them.
    pub before: Option<&'a Compaction>,
    /// It is to be compacted, at so many tokens where it says so, and the item be given to the client.
    pub compacting: Option<Option<usize>>,
    /// Tokens to leave for the answer.
    pub room: usize,
    /// How messages become tokens.
    pub render: Render<H::Error>,
}

/// A conversation that may be longer than the context, and the facts by which its segments are chosen.
pub(super) struct LongConversation<'a, H: Host> {
    pub(super) measure: &'a Measure,
    pub(super) asked: &'a History<'a, H>,
    pub(super) settings: MemorySettings,
    pub(super) wording: Wording,
    pub(super) tenant: String,
    /// Messages that are never let go: system messages, and the opening exchange where that is protected.
    pub(super) prefix: usize,
    /// System messages.
    pub(super) systems: usize,
    /// Identities of the messages behind the prefix.
    pub(super) chain: Vec<ChainId>,
    /// Tokens of all messages, estimated; 0 for those that no view reads.
    sizes: Vec<usize>,
}

/// Which conversation it is, and how it is remembered: what is left of it without its messages.
pub(super) struct Outline {
    pub(super) settings: MemorySettings,
    pub(super) wording: Wording,
    pub(super) tenant: String,
    prefix: usize,
    systems: usize,
    pub(super) chain: Vec<ChainId>,
}

impl Outline {
    /// System messages, messages that are never let go, and those behind them that the summary covers that was read.
    pub(super) fn counts(&self, read: Option<&Summary>) -> [usize; 3] {
        [self.systems, self.prefix, read.map_or(0, |summary| summary.covers)]
    }
}

/// What would be read with one summary.
pub(super) struct View {
    pub(super) summary: Option<Summary>,
    pub(super) segments: Segments,
    /// What is let go though no summary covers it.
    pub(super) forced: Option<Let>,
    /// Exchanges that are not read and fit the question, of the messages behind the prefix; ascending.
    pub(super) quotes: Vec<Range<usize>>,
}

impl View {
    /// Messages that a summary covers.
    pub(super) fn covered(&self) -> usize {
        self.summary.as_ref().map_or(0, |summary| summary.covers)
    }

    /// Messages behind the prefix that are not read.
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
        let (wording, sizes) = (wording.clone(), vec![0; messages.len()]);
        LongConversation { measure, asked, settings, wording, tenant, prefix, systems, chain, sizes }
    }

    /// What is read of it, given the summaries of its beginnings, those that cover most first.
    ///
    /// What was computed ahead is read first; what was not only where that does not fit.
    ///
    /// # Errors
    /// If a template refuses the messages.
    pub(super) fn view(&mut self, known: &[Summary]) -> Result<View, H::Error> {
        let ready = known.iter().find(|summary| summary.ready);
        self.measure_behind(ready.map_or(0, |summary| summary.covers));
        let mut view = self.behind(ready.cloned());
        let newest = known.first().filter(|newest| newest.covers > view.covered());
        // Sizes may be estimated too small to see at once that it does not fit.
        if view.forced.is_none() || newest.is_none() {
            view = self.fitting(view)?;
        }
        match newest {
            Some(newest) if view.forced.is_some() => self.fitting(self.behind(Some(newest.clone()))),
            _ => Ok(view),
        }
    }

    /// Measures what is read behind a summary of so many messages. A long history is mostly covered by it.
    fn measure_behind(&mut self, covered: usize) {
        let read = (0..self.prefix).chain(self.prefix + covered..self.asked.messages.len());
        read.for_each(|index| self.sizes[index] = self.measure.message(&self.asked.messages[index]));
    }

    /// What is read behind a summary, nothing being quoted.
    fn behind(&self, summary: Option<Summary>) -> View {
        let covered = self.prefix + summary.as_ref().map_or(0, |summary| summary.covers);
        let segments = Segments::new(&self.asked.messages[covered..], &self.sizes[covered..]);
        let forced = segments.forced(self.room(summary.as_ref()), &self.settings);
        View { summary, segments, forced, quotes: Vec::new() }
    }

    /// Tokens that recent messages may take.
    fn room(&self, summary: Option<&Summary>) -> usize {
        let told =
            summary.map_or(0, |summary| self.measure.text(&summary.text) + self.measure.around_message);
        let prefix: usize = self.sizes[..self.prefix].iter().sum();
        self.measure.context().saturating_sub(prefix + told + self.asked.room)
    }

    /// The same with quotes, and with more let go where sizes were estimated too small.
    fn fitting(&self, mut view: View) -> Result<View, H::Error> {
        let most = self.measure.context().saturating_sub(self.asked.room);
        view.quotes = self.quotes(view.unread());
        for _ in 0..ATTEMPTS {
            let tokens = (self.asked.render)(&self.messages(&view), Purpose::Answer)?.len();
            let left = view.segments.tokens() - view.forced.map_or(0, |forced| forced.tokens);
            let Some(beyond) = tokens.checked_sub(most).filter(|&beyond| beyond > 0) else { break };
            let more = view.segments.forced(left.saturating_sub(beyond), &self.settings);
            if more == view.forced {
                break;
            }
            view.forced = more;
            view.quotes = self.quotes(view.unread());
        }
        Ok(view)
    }

    /// The messages that are read.
    pub(super) fn messages(&self, view: &View) -> Vec<Value> {
        let said = &self.asked.messages[self.prefix..];
        let quotes: Vec<&[Value]> = view.quotes.iter().map(|quote| &said[quote.clone()]).collect();
        let mut messages = self.unquoted(view);
        self.wording.asking(said.last().map_or(&[], std::slice::from_ref)).quote(&quotes, &mut messages);
        messages
    }

    /// The same without what is quoted, as later turns read it.
    pub(super) fn unquoted(&self, view: &View) -> Vec<Value> {
        let (prefix, said) = self.asked.messages.split_at(self.prefix);
        let summary = view.summary.as_ref().map_or("", |summary| &summary.text);
        self.wording.telling(summary).told(summary, prefix, self.systems, &said[view.unread()..])
    }

    /// Exchanges among the first `unread` messages behind the prefix that fit the question best and are no longer than
    /// quotes may be, in the order in which they were said.
    fn quotes(&self, unread: usize) -> Vec<Range<usize>> {
        let messages = &self.asked.messages[self.prefix..];
        let is_asked = unread > 0 && self.settings.quotes_max > 0;
        let question = messages.last().filter(|message| message["role"] == "user" && is_asked);
        let Some(question) = question else { return Vec::new() };
        let mut left = self.settings.quotes_max;
        let found = Quotes::new(&messages[..unread]).best(&text_of(question), QUOTES_MAX);
        let mut quotes: Vec<Range<usize>> = Vec::new();
        for quote in found {
            let said = &messages[quote.messages.clone()];
            let tokens = said.iter().map(|message| self.measure.message(message)).sum();
            if let Some(rest) = left.checked_sub(tokens) {
                left = rest;
                quotes.push(quote.messages);
            }
        }
        quotes.sort_by_key(|quote| quote.start);
        quotes
    }

    /// What is left of it without its messages.
    pub(super) fn outline(self) -> Outline {
        let LongConversation { settings, wording, tenant, prefix, systems, chain, .. } = self;
        Outline { settings, wording, tenant, prefix, systems, chain }
    }

    /// Where the summary of the first `covers` messages behind the prefix is.
    pub(super) fn key(&self, covers: usize) -> SummaryKey {
        SummaryKey { tenant: self.tenant.clone(), chain: self.chain[covers - 1] }
    }

    /// What stands for the conversation up to its answer, where a summary that the client does not have yet is read.
    pub(super) fn compacted(&self, view: &View) -> Option<Compaction> {
        let summary = view.summary.clone().filter(|summary| summary.covers > 0)?;
        let (prefix, said) = self.asked.messages.split_at(self.prefix);
        let (systems, opening) = prefix.split_at(self.systems);
        let ChainId(chain) = self.chain[summary.covers - 1];
        let recent = said[summary.covers..].to_vec();
        Some(Compaction { systems: systems.to_vec(), opening: opening.to_vec(), summary, chain, recent })
    }

    /// How near its recent messages are to being let go before the next summary is there, from 0 to 1.
    pub(super) fn pressure(&self, view: &View) -> f64 {
        let room = self.room(view.summary.as_ref()).saturating_sub(self.settings.quotes_max);
        view.segments.pressure(room, &self.settings)
    }

    /// Tokens of the prefix.
    pub(super) fn prefix_tokens(&self) -> usize {
        self.sizes[..self.prefix].iter().sum()
    }

    /// Tokens of the recent messages that a view reads.
    pub(super) fn recent_tokens(&self, view: &View) -> usize {
        self.sizes[self.prefix + view.unread()..].iter().sum()
    }
}

//! Report of the part of a conversation that a turn read, for the client and for the log.

use serde::Serialize;

use super::book::SummaryKind;
use super::host::Host;
use super::view::{LongConversation, View};
use crate::clock::unix_seconds;

/// Report of a turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TurnReport {
    /// Number of messages by how they were read.
    pub messages: MessagesRead,
    /// Approximate tokens of the parts that were read.
    pub tokens: TokensRead,
    /// Ranges of the quoted messages, as start and end.
    pub quotes: Vec<[usize; 2]>,
    /// True if a new summary is made after the answer.
    pub rebuilding: bool,
    /// True if the summary is read for the first time.
    pub rebuilt: bool,
    /// True if the conversation after the summary was prefilled in advance.
    pub computed_ahead: bool,
    /// Summary that was read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<SummaryRead>,
    /// Advice about system messages that change with every turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

/// Numbers of messages of a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct MessagesRead {
    /// Messages that are never dropped.
    pub prefix: usize,
    /// Messages in the summary.
    pub summarised: usize,
    /// Messages in no summary, and not read.
    pub let_go: usize,
    /// Messages read verbatim.
    pub recent: usize,
}

/// Approximate numbers of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct TokensRead {
    /// Tokens of messages that are never dropped.
    pub prefix: usize,
    /// Tokens of the summary.
    pub summary: usize,
    /// Tokens of recent messages.
    pub recent: usize,
    /// Tokens of messages that the next summary would cover.
    pub discarded_since: usize,
}

/// A summary that was read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SummaryRead {
    /// Seconds since it was made.
    pub age_s: u64,
    /// Number of summaries in the series that led to this one, itself included.
    pub updates: u64,
    /// How its text came about.
    pub kind: SummaryKind,
    /// Reason why the summary contains nothing new, if so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

impl TurnReport {
    pub(super) fn of<H: Host>(
        conversation: &LongConversation<'_, H>,
        view: &View,
        rebuilding: bool,
    ) -> TurnReport {
        let (prefix, covered, unread) = (conversation.prefix, view.covered(), view.unread());
        let summary = view.summary.as_ref();
        let quoted = view.quotes.iter().map(|quote| [prefix + quote.start, prefix + quote.end]);
        TurnReport {
            messages: MessagesRead {
                prefix,
                summarised: covered,
                let_go: unread - covered,
                recent: conversation.asked.messages.len() - prefix - unread,
            },
            tokens: TokensRead {
                prefix: conversation.prefix_tokens(),
                summary: summary.map_or(0, |summary| conversation.measure.text(&summary.text)),
                recent: conversation.recent_tokens(view),
                discarded_since: view.segments.discarded(&conversation.settings),
            },
            quotes: quoted.collect(),
            rebuilding,
            rebuilt: summary.is_some_and(|summary| !summary.read),
            computed_ahead: summary.is_some_and(|summary| summary.ready),
            summary: summary.map(|summary| SummaryRead {
                age_s: unix_seconds().saturating_sub(summary.made),
                updates: summary.updates,
                kind: summary.kind,
                failed: summary.failed.clone(),
            }),
            advice: None,
        }
    }

    /// Text for the log, unless all of the conversation was read and no summary is due.
    pub(super) fn in_words(&self) -> Option<String> {
        let MessagesRead { summarised, let_go, recent, .. } = self.messages;
        let quotes = self.quotes.len();
        let then = if self.rebuilding { "; a new summary is made behind it" } else { "" };
        (summarised + let_go > 0 || !then.is_empty()).then(|| {
            format!(
                "conversation: {recent} messages read as they were said, {summarised} in a summary, {let_go} let go, {quotes} exchanges quoted{then}"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_says_what_was_not_read() {
        let report = |summarised, rebuilding| TurnReport {
            messages: MessagesRead { prefix: 0, summarised, let_go: 0, recent: 9 },
            tokens: TokensRead { prefix: 0, summary: 0, recent: 0, discarded_since: 0 },
            quotes: vec![[1, 3]],
            rebuilding,
            rebuilt: false,
            computed_ahead: false,
            summary: None,
            advice: None,
        };
        assert_eq!(report(0, false).in_words(), None);
        let words = report(4, true).in_words().unwrap();
        assert!(
            words.contains("4 in a summary") && words.ends_with("a new summary is made behind it"),
            "{words}"
        );
    }
}

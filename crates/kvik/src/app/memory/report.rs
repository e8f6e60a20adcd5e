//! What an answer says of what was read: the object `kvik.memory`, and the line of the log.

use serde_json::{Value, json};

use super::view::{LongConversation, View};
use crate::clock::unix_seconds;

/// The object `kvik.memory`.
pub(super) fn of(conversation: &LongConversation<'_>, view: &View, rebuilding: bool) -> Value {
    let (prefix, covered, unread) = (conversation.prefix, view.covered(), view.unread());
    let summary = view.summary.as_ref();
    let quoted = view.quotes.iter().map(|quote| [prefix + quote.start, prefix + quote.end]);
    let mut report = json!({
        "messages": {
            "prefix": prefix,
            "summarised": covered,
            "let_go": unread - covered,
            "recent": conversation.asked.messages.len() - prefix - unread,
        },
        "tokens": {
            "prefix": conversation.prefix_tokens(),
            "summary": summary.map_or(0, |summary| conversation.measure.text(&summary.text)),
            "recent": conversation.recent_tokens(view),
            "discarded_since": view.segments.discarded(&conversation.settings),
        },
        "quotes": quoted.collect::<Vec<_>>(),
        "rebuilding": rebuilding,
        "rebuilt": summary.is_some_and(|summary| !summary.read),
        "computed_ahead": summary.is_some_and(|summary| summary.ready),
    });
    if let Some(summary) = summary {
        let age = unix_seconds().saturating_sub(summary.made);
        report["summary"] = json!({"age_s": age, "updates": summary.updates});
        if let Some(failed) = &summary.failed {
            report["summary"]["failed"] = json!(failed);
        }
    }
    report
}

/// What was read of a conversation, where that is not all of it.
pub(super) fn in_words(report: &Value) -> Option<String> {
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

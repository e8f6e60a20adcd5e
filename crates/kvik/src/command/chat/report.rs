//! Reports about an answer: its cost, and the parts of the conversation that it was computed from.

use kvik_memory::context::{MemorySettings, chain::text_of};
use serde_json::Value;

use crate::command::client::Answer;

/// The note below an answer that ends in reasoning.
pub(in crate::command) const WITHIN_REASONING: &str = "the answer ended within its thoughts";
/// Maximum characters of a message quoted on one line.
const QUOTED_CHARS: usize = 100;

/// A status on one line: tokens reused, computed and generated, and which messages were in the prompt.
pub(in crate::command) fn status(answer: &Answer) -> String {
    let Answer { report, first_token, .. } = answer;
    let timings = &report["timings"];
    let cost = format!(
        "{} prompt tokens: {} reused, {} computed; first token after {:.0} ms; {} generated at {:.1} tokens/s",
        grouped(&report["usage"]["prompt_tokens"]),
        grouped(&timings["cache_n"]),
        grouped(&timings["prompt_n"]),
        first_token.as_secs_f64() * 1e3,
        grouped(&timings["predicted_n"]),
        timings["predicted_per_second"].as_f64().unwrap_or(0.0),
    );
    let memory = &report["kvik"]["memory"];
    if is_whole(memory) { cost } else { format!("{cost} | memory: {}", messages_read(memory)) }
}

/// Whether the answer was ended because it only repeated itself.
pub(in crate::command) fn was_loop(answer: &Answer) -> bool {
    !answer.report["kvik"]["loop"].is_null()
}

/// Whether every message was in the prompt verbatim, and will be in the next turn.
fn is_whole(memory: &Value) -> bool {
    let messages = &memory["messages"];
    count(&messages["summarised"]) + count(&messages["let_go"]) == 0 && memory["rebuilding"] != true
}

/// The non-empty segments of a turn.
fn messages_read(memory: &Value) -> String {
    let messages = &memory["messages"];
    let quotes = memory["quotes"].as_array().map_or(0, Vec::len);
    let segments = [
        (count(&messages["summarised"]), "messages in a summary"),
        (count(&messages["let_go"]), "let go"),
        (count(&messages["recent"]), "recent"),
        (quotes as u64, "quoted"),
    ];
    let segments = segments.iter().filter(|(messages, _)| *messages > 0);
    let mut parts: Vec<String> = segments.map(|(messages, name)| format!("{messages} {name}")).collect();
    if memory["rebuilding"] == true {
        parts.push("a new summary is being made".to_owned());
    }
    parts.join(", ")
}

/// The bounds of memory.
pub(super) fn settings(settings: &MemorySettings) -> String {
    let MemorySettings { recent_max, summary_max, trigger_discard, quotes_max, protect_first } = *settings;
    let first = if protect_first { "; the opening exchange is never let go" } else { "" };
    format!(
        "recent messages of {recent_max} tokens; for every {trigger_discard} beyond, a new summary of at most {summary_max}; quotes of {quotes_max} at a question{first}"
    )
}

/// The segments of a turn's prompt, in a table.
pub(super) fn segments(memory: &Value) -> Vec<String> {
    let (messages, tokens) = (&memory["messages"], &memory["tokens"]);
    let row = |name: &str, messages: &str, tokens: &str| format!("{name:<20}{messages:>10}{tokens:>10}");
    let segment =
        |name: &str, messages: &Value, tokens: &Value| row(name, &grouped(messages), &grouped(tokens));
    let mut lines = vec![
        row("the last turn read", "messages", "tokens"),
        segment("  system", &messages["prefix"], &tokens["prefix"]),
        segment("  summary", &messages["summarised"], &tokens["summary"]),
        segment("  recent", &messages["recent"], &tokens["recent"]),
    ];
    if count(&messages["let_go"]) > 0 {
        lines.push(segment("  not read", &messages["let_go"], &Value::Null));
    }
    lines
}

/// The newest summary, in lines; empty if there is none.
pub(super) fn summary(summary: &Value) -> Vec<String> {
    if summary.is_null() {
        return Vec::new();
    }
    let (covers, age) = (grouped(&summary["covers"]), age(count(&summary["age_s"])));
    if let Some(why) = summary["failed"].as_str() {
        return vec![format!(
            "of {covers} messages no summary could be made {age} ago ({why}): they are gone"
        )];
    }
    let source = match (summary["corrected"] == true, summary["kind"].as_str()) {
        (true, _) => ", corrected",
        (false, Some("facts")) => ", a list of facts",
        (false, Some("extracted")) => ", extracted sentences",
        (false, _) => "",
    };
    let times = ordinal(count(&summary["updates"]));
    let text = summary["text"].as_str().unwrap_or_default().to_owned();
    vec![format!("the summary of {covers} messages, made {age} ago for the {times} time{source}:"), text]
}

/// The first messages of the quoted exchanges, taken from the messages of the turn's request.
pub(super) fn quoted(memory: &Value, messages: &[Value]) -> Vec<String> {
    let quotes = memory["quotes"].as_array().map_or(&[] as &[Value], Vec::as_slice);
    let opening =
        |quote: &Value| messages.get(count(&quote[0]) as usize).map(|message| shortened(&text_of(message)));
    quotes.iter().filter_map(opening).map(|text| format!("  quoted: {text}")).collect()
}

/// A text on one line of bounded length.
pub(super) fn shortened(text: &str) -> String {
    let mut line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((end, _)) = line.char_indices().nth(QUOTED_CHARS) {
        line.truncate(end);
        line.push_str("...");
    }
    line
}

/// A time span, in its largest unit.
pub(super) fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

/// A count with commas between groups of three digits.
fn grouped(value: &Value) -> String {
    let digits = count(value).to_string();
    let commas = |(i, digit): (usize, char)| {
        let comma = (i > 0 && (digits.len() - i).is_multiple_of(3)).then_some(',');
        comma.into_iter().chain([digit])
    };
    digits.chars().enumerate().flat_map(commas).collect()
}

fn ordinal(n: u64) -> String {
    let ending = match (n % 10, n % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("{n}{ending}")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    fn answer(memory: Value) -> Answer {
        let report = json!({
            "usage": {"prompt_tokens": 1204},
            "timings": {"cache_n": 1180, "prompt_n": 24, "predicted_n": 12, "predicted_per_second": 88.04},
            "kvik": {"memory": memory},
        });
        Answer { first_token: Duration::from_millis(31), report, ends_in_reasoning: false }
    }

    fn memory(summarised: u64, quotes: Value) -> Value {
        json!({
            "messages": {"prefix": 1, "summarised": summarised, "let_go": 0, "recent": 20},
            "tokens": {"prefix": 14, "summary": 31, "recent": 1221, "discarded_since": 197},
            "quotes": quotes, "rebuilding": false,
        })
    }

    #[test]
    fn the_status_line_says_what_was_reused_and_what_was_read() {
        let cost = "1,204 prompt tokens: 1,180 reused, 24 computed; first token after 31 ms; 12 generated at 88.0 tokens/s";
        let check =
            |memory: Value, expect: &str| assert_eq!(status(&answer(memory)), format!("{cost}{expect}"));
        check(Value::Null, "");
        check(memory(0, json!([])), "");
        check(memory(58, json!([[14, 16]])), " | memory: 58 messages in a summary, 20 recent, 1 quoted");
        let mut rebuilding = memory(0, json!([]));
        rebuilding["rebuilding"] = json!(true);
        check(rebuilding, " | memory: 20 recent, a new summary is being made");
    }

    #[test]
    fn what_was_quoted_is_shown_in_one_line_each() {
        let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
        let messages = [json!({"content": parts}), json!({"content": "é".repeat(101)})];
        let lines = quoted(&memory(2, json!([[0, 1], [1, 2], [7, 9]])), &messages);
        assert_eq!(lines, ["  quoted: a b".to_owned(), format!("  quoted: {}...", "é".repeat(100))]);
    }

    #[test]
    fn the_summary_is_shown_or_why_there_is_none() {
        let made = json!({"text": "A dog.", "covers": 1200, "age_s": 119, "updates": 2, "failed": null});
        let check = |change: Value, expect: &[&str]| {
            let mut made = made.clone();
            made.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
            assert_eq!(summary(&made), expect);
        };
        let title = "the summary of 1,200 messages, made 1 min ago for the 2nd time";
        check(json!({}), &[&format!("{title}:"), "A dog."]);
        check(json!({"corrected": true, "kind": "facts"}), &[&format!("{title}, corrected:"), "A dog."]);
        check(json!({"kind": "extracted"}), &[&format!("{title}, extracted sentences:"), "A dog."]);
        let failed = "of 1,200 messages no summary could be made 1 min ago (it was empty): they are gone";
        check(json!({"failed": "it was empty"}), &[failed]);
        assert!(summary(&Value::Null).is_empty());
    }

    #[test]
    fn numbers_are_written_for_people() {
        let written = [0, 999, 1000, 1_234_567].map(|n| grouped(&json!(n)));
        assert_eq!(written, ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(
            [1, 2, 3, 4, 11, 12, 21, 111].map(ordinal),
            ["1st", "2nd", "3rd", "4th", "11th", "12th", "21st", "111th"]
        );
        assert_eq!([59, 60, 3600, 86_400].map(age), ["59 s", "1 min", "1 h", "1 d"]);
    }
}

//! Spans of a conversation's messages in its prompt.
//!
//! A template writes arbitrary text around the messages, so they are searched by their content, in order. A short
//! content may also occur elsewhere ("user" is in every header). So all contents are fitted into the prompt twice, each
//! as far left and each as far right as possible, and a message has a span only where both agree.

use std::{borrow::Cow, ops::Range};

use kvik_memory::context::chain::text_of;
use serde_json::Value;

/// Contents not found before the search is abandoned. Each miss costs a pass over the prompt.
const MISSES_MAX: usize = 32;

/// A message of a conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct Message<'a> {
    /// `system`, `user` and the like; empty where there is none.
    pub role: &'a str,
    /// Its text; the text parts of structured content are joined.
    pub content: Cow<'a, str>,
}

impl Message<'_> {
    /// The part of the content that templates render: trimmed, and without the thoughts of earlier answers.
    fn shown(&self) -> &str {
        let content = match self.role {
            "assistant" => self.content.rsplit("</think>").next().unwrap_or_default(),
            _ => &self.content,
        };
        content.trim()
    }
}

/// The messages in OpenAI's shape; a value of another shape has no text.
pub fn messages(messages: &Value) -> Vec<Message<'_>> {
    messages.as_array().map_or_else(Vec::new, |messages| messages.iter().map(message).collect())
}

fn message(message: &Value) -> Message<'_> {
    let role = message.get("role").and_then(Value::as_str).unwrap_or_default();
    let content = match message.get("content") {
        Some(Value::String(text)) => Cow::Borrowed(text.as_str()),
        _ => Cow::Owned(text_of(message)),
    };
    Message { role, content }
}

/// Byte span of each message in `prompt`; `None` where it is ambiguous or not found.
pub(crate) fn message_spans(prompt: &str, messages: &[Message<'_>]) -> Vec<Option<Range<usize>>> {
    let contents: Vec<&str> = messages.iter().map(Message::shown).collect();
    let (mut left, mut right) = (0, prompt.len());
    let leftmost = fit(contents.iter(), |content| {
        let at = left + prompt[left..].find(content)?;
        left = at + content.len();
        Some(at..left)
    });
    let mut rightmost = fit(contents.iter().rev(), |content| {
        right = prompt[..right].rfind(content)?;
        Some(right..right + content.len())
    });
    rightmost.reverse();
    let agreed = |(left, right)| if left == right { left } else { None };
    leftmost.into_iter().zip(rightmost).map(agreed).collect()
}

/// The span that `find` gives each content, until too many are not found.
fn fit<'a>(
    contents: impl Iterator<Item = &'a &'a str>,
    mut find: impl FnMut(&str) -> Option<Range<usize>>,
) -> Vec<Option<Range<usize>>> {
    let mut misses = 0;
    let span = |content: &&str| {
        if content.is_empty() || misses == MISSES_MAX {
            return None;
        }
        let span = find(content);
        misses += usize::from(span.is_none());
        span
    };
    contents.map(span).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The texts found for a conversation of these contents.
    fn found<'a>(prompt: &'a str, contents: &[&str]) -> Vec<Option<&'a str>> {
        let said: Vec<Value> = contents.iter().map(|c| json!({"role": "user", "content": c})).collect();
        let said = Value::Array(said);
        message_spans(prompt, &messages(&said))
            .into_iter()
            .map(|span| span.map(|range| &prompt[range]))
            .collect()
    }

    #[test]
    fn contents_are_found_in_order() {
        let prompt = "<user>hello<end><user>and more<end><user>hello<end>";
        assert_eq!(
            found(prompt, &["hello", "and more", "hello"]),
            [Some("hello"), Some("and more"), Some("hello")]
        );
        assert_eq!(found(prompt, &[" hello\n", "and more", "hello"])[0], Some("hello"), "trimmed");
    }

    #[test]
    fn what_may_stand_in_two_spans_has_none() {
        let prompt = "<user>user<end><user>and more<end>";
        assert_eq!(found(prompt, &["user", "and more"]), [None, Some("and more")]);
    }

    #[test]
    fn what_the_template_left_out_has_no_place() {
        let prompt = "<user>hello<end>";
        assert_eq!(found(prompt, &["gone", "hello", ""]), [None, Some("hello"), None]);
    }

    #[test]
    fn parts_are_lines_and_thoughts_left_out() {
        let said = json!([
            {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
            {"role": "assistant", "content": "<think>hm</think>\n\nthree"},
            {"role": "tool", "content": null},
            "no object",
        ]);
        let prompt = "one\ntwo|three|";
        assert_eq!(message_spans(prompt, &messages(&said)), [Some(0..7), Some(8..13), None, None]);
    }

    #[test]
    fn a_search_that_finds_nothing_ends() {
        let contents: Vec<String> = (0..100).map(|i| format!("absent {i}")).chain(["here".into()]).collect();
        let contents: Vec<&str> = contents.iter().map(String::as_str).collect();
        assert_eq!(found("here", &contents)[100], None, "given up from the left");
    }
}

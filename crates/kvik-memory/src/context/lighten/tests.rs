use proptest::prelude::*;
use serde_json::json;

use super::*;

fn any_text() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        8 => "[a-c ]{0,40}",
        2 => Just("<think>".to_owned()),
        2 => Just("</think>".to_owned()),
        1 => Just(REPEATED.to_owned()),
        1 => (0usize..200).prop_map(note),
        1 => "\\PC{0,20}",
    ];
    prop::collection::vec(word, 0..8).prop_map(|words| words.concat())
}

/// Well-formed contents and arbitrary ones.
fn any_content() -> impl Strategy<Value = Value> {
    let part = prop_oneof![
        4 => any_text().prop_map(|text| json!({"type": "text", "text": text})),
        1 => any_text().prop_map(|text| json!({"type": "image_url", "text": text})),
        1 => Just(json!(["text"])),
    ];
    prop_oneof![
        6 => any_text().prop_map(Value::from),
        2 => prop::collection::vec(part, 0..4).prop_map(Value::from),
        1 => Just(Value::Null),
        1 => Just(json!({"text": 1})),
    ]
}

fn any_message() -> impl Strategy<Value = Value> {
    let role = prop::sample::select(vec!["system", "developer", "user", "assistant", "tool", "tool"]);
    let thought = prop_oneof![any_content().prop_map(Some), Just(None)];
    let message = (role, any_content(), thought).prop_map(|(role, content, thought)| {
        let mut message = json!({"role": role, "content": content, "tool_call_id": "c1"});
        if let Some(thought) = thought {
            message["reasoning_content"] = thought.clone();
            message["reasoning"] = thought;
        }
        message
    });
    let odd = any_content();
    prop_oneof![9 => message, 1 => odd, 1 => Just(json!({"role": 3})), 1 => Just(json!({"role": "tool"}))]
}

fn any_messages() -> impl Strategy<Value = Vec<Value>> {
    prop::collection::vec(any_message(), 0..12)
}

/// Characters of a message's content and thoughts.
fn message_chars(message: &Value) -> usize {
    let fields = ["content", "reasoning_content", "reasoning"].map(|field| message.get(field));
    fields.into_iter().flatten().filter(|value| !value.is_null()).map(chars).sum()
}

/// The part of a message that `lighten` must not change.
fn frame(message: &Value) -> Value {
    let mut frame = message.clone();
    if matches!(role(message), Some("tool" | "assistant")) {
        let fields = frame.as_object_mut().unwrap();
        fields.retain(|field, _| !matches!(field.as_str(), "content" | "reasoning_content" | "reasoning"));
    }
    frame
}

proptest! {
    #[test]
    fn only_tool_outputs_and_thoughts_become_shorter(messages in any_messages(), tool_chars in 0usize..200) {
        let mut lighter = messages.clone();
        let lightened = lighten(&mut lighter, &Lighten { tool_chars });
        let total = |messages: &[Value]| messages.iter().map(message_chars).sum::<usize>();
        prop_assert_eq!(total(&messages) - total(&lighter), lightened.chars);
        prop_assert_eq!(lighter.len(), messages.len());
        for (before, after) in messages.iter().zip(&lighter) {
            prop_assert_eq!(frame(before), frame(after));
            prop_assert!(message_chars(after) <= message_chars(before));
        }
    }

    #[test]
    fn lightening_twice_changes_nothing_more(messages in any_messages(), tool_chars in 0usize..200) {
        let mut once = messages;
        lighten(&mut once, &Lighten { tool_chars });
        let mut twice = once.clone();
        prop_assert_eq!(lighten(&mut twice, &Lighten { tool_chars }), Lightened::default());
        prop_assert_eq!(once, twice);
    }

    #[test]
    fn tool_outputs_are_within_the_limit(messages in any_messages(), tool_chars in TOOL_CHARS_MIN..200) {
        let mut messages = messages;
        lighten(&mut messages, &Lighten { tool_chars });
        for output in messages.iter().filter(|m| role(m) == Some("tool")).filter_map(|m| text(m.get("content")?)) {
            prop_assert!(output.chars().count() <= tool_chars);
        }
    }

    #[test]
    fn earlier_messages_take_no_part(messages in any_messages(), from in 0usize..12, tool_chars in 0usize..200) {
        let from = from.min(messages.len());
        let (mut all, mut later) = (messages.clone(), messages[from..].to_vec());
        lighten(&mut all, &Lighten { tool_chars });
        lighten(&mut later, &Lighten { tool_chars });
        prop_assert_eq!(&all[from..], &later[..]);
    }
}

fn check(messages: Value, expect: Value, lightened: Lightened) {
    let mut messages = messages.as_array().unwrap().clone();
    assert_eq!(lighten(&mut messages, &Lighten { tool_chars: TOOL_CHARS_MIN }), lightened);
    assert_eq!(Value::from(messages), expect);
}

#[test]
fn the_latest_of_equal_outputs_stays() {
    let output = "total 12,\nREADME.md, Cargo.toml";
    let parts =
        json!([{"type": "text", "text": "total 12,"}, {"type": "text", "text": "README.md, Cargo.toml"}]);
    check(
        json!([
            {"role": "tool", "tool_call_id": "a", "content": parts},
            {"role": "tool", "tool_call_id": "b", "content": "ok"},
            {"role": "tool", "tool_call_id": "c", "content": output},
            {"role": "tool", "tool_call_id": "d", "content": "ok"},
        ]),
        json!([
            {"role": "tool", "tool_call_id": "a", "content": REPEATED},
            {"role": "tool", "tool_call_id": "b", "content": "ok"},
            {"role": "tool", "tool_call_id": "c", "content": output},
            {"role": "tool", "tool_call_id": "d", "content": "ok"},
        ]),
        Lightened { tool_outputs: 1, thoughts: 0, chars: output.len() - REPEATED.len() },
    );
}

#[test]
fn outputs_that_differ_in_the_middle_are_not_the_same() {
    let output = |middle: &str| format!("{}{middle}{}", "å".repeat(500), "z".repeat(500));
    let short = format!("{}\n[... 971 characters let go ...]\n{}", "å".repeat(15), "z".repeat(15));
    check(
        json!([{"role": "tool", "content": output("1")}, {"role": "tool", "content": output("2")}]),
        json!([{"role": "tool", "content": short}, {"role": "tool", "content": short}]),
        Lightened { tool_outputs: 2, thoughts: 0, chars: 2 * (1001 - short.chars().count()) },
    );
}

#[test]
fn thoughts_of_assistants_are_removed() {
    check(
        json!([
            {"role": "assistant", "reasoning_content": "hm", "content": "yes", "tool_calls": [], "name": "x"},
            {"role": "assistant", "reasoning": null, "content": "\n<think>a</think>\n\n<think>b</think>no"},
            {"role": "assistant", "content": "<think>cut off"},
            {"role": "user", "content": "<think>mine</think>"},
        ]),
        json!([
            {"role": "assistant", "content": "yes", "tool_calls": [], "name": "x"},
            {"role": "assistant", "content": "no"},
            {"role": "assistant", "content": "<think>cut off"},
            {"role": "user", "content": "<think>mine</think>"},
        ]),
        Lightened { tool_outputs: 0, thoughts: 3, chars: 2 + 35 },
    );
}

//! Identities of the beginnings of a conversation: a chain of hashes, one per message.

use kvik_text::template::text_of_part;
use serde_json::Value;

/// Identity of a message together with all messages before it, within one tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChainId(pub [u8; 32]);

impl ChainId {
    /// Identity of the empty beginning.
    pub const BEGINNING: ChainId = ChainId([0; 32]);
}

/// Identities of the beginnings `messages[..=i]`, one per message.
///
/// Only the content of a message counts: its role, text, calls, and the id of the call whose result it is. Fields that
/// clients add or omit when they send an answer back (`refusal`, `annotations`, thoughts) do not count. `key` separates
/// tenants: without it, equal identities would reveal that two tenants had the same conversation.
pub fn chain(key: &[u8; 32], messages: &[Value]) -> Vec<ChainId> {
    chain_from(ChainId::BEGINNING, key, messages)
}

/// Continues the chain of the messages that `before` identifies.
pub fn chain_from(mut before: ChainId, key: &[u8; 32], messages: &[Value]) -> Vec<ChainId> {
    let next = |message: &Value| {
        let mut hasher = blake3::Hasher::new_keyed(key);
        hasher.update(&before.0);
        for part in said(message) {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        before = ChainId(hasher.finalize().into());
        before
    };
    messages.iter().map(next).collect()
}

/// The parts of a message that its identity covers.
fn said(message: &Value) -> [String; 4] {
    let text = |name: &str| message.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let calls = message.get("tool_calls").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let calls: String = calls.iter().map(said_by_call).collect();
    [text("role"), text_of(message), calls, text("tool_call_id")]
}

/// Name and arguments; the id counts where a result names it. Dialects write arguments as JSON text or as a value, and
/// clients format that text differently.
fn said_by_call(call: &Value) -> String {
    let function = call.get("function").unwrap_or(&Value::Null);
    let arguments = match function.get("arguments") {
        Some(Value::String(text)) => {
            serde_json::from_str(text).unwrap_or_else(|_| Value::from(text.as_str()))
        }
        Some(value) => value.clone(),
        None => Value::Null,
    };
    format!("{}\0{arguments}\0", function.get("name").unwrap_or(&Value::Null))
}

/// Text of a message as prompts have it, its parts separated by line breaks, with words in the place of pictures; empty if
/// it has none.
pub fn text_of(message: &Value) -> String {
    match message.get("content") {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => parts.iter().filter_map(text_of_part).collect::<Vec<_>>().join("\n"),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use kvik_text::template::{ChatTemplate, RenderInput};
    use proptest::prelude::*;
    use serde_json::{Map, json};

    use super::*;

    const KEY: [u8; 32] = [7; 32];

    fn user(text: &str) -> Value {
        json!({"role": "user", "content": text})
    }

    #[test]
    fn what_is_not_said_does_not_count() {
        let plain = [user("h\ni"), json!({"role": "assistant", "content": "Hello."})];
        let decorated = [
            json!({"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]}),
            json!({"role": "assistant", "content": "Hello.", "refusal": null, "annotations": [],
                "reasoning_content": "a greeting", "tool_calls": []}),
        ];
        assert_eq!(chain(&KEY, &plain), chain(&KEY, &decorated));
    }

    #[test]
    fn a_text_is_the_one_of_the_prompt() {
        let template = ChatTemplate::new("{{ messages[0].content }}", "", "").unwrap();
        let image = json!({"type": "image_url", "image_url": {"url": "x"}});
        let (asked, refused) =
            (json!({"type": "text", "text": "Look."}), json!({"type": "refusal", "refusal": "No."}));
        for content in [
            json!(null),
            json!("Look."),
            json!([]),
            json!([asked, image]),
            json!([image, image]),
            json!([asked, refused]),
        ] {
            let earlier = json!({"role": "user", "content": content});
            let messages = json!([earlier, {"role": "assistant", "content": "Yes."}]);
            let input = RenderInput {
                messages,
                tools: None,
                add_generation_prompt: true,
                enable_thinking: None,
                kwargs: Map::new(),
                now: SystemTime::UNIX_EPOCH,
            };
            assert_eq!(text_of(&earlier), template.render(&input).unwrap().text, "{earlier}");
        }
    }

    #[test]
    fn arguments_are_read_as_what_they_say() {
        let call = |arguments: Value| {
            let function = json!({"name": "f", "arguments": arguments});
            chain(&KEY, &[json!({"role": "assistant", "tool_calls": [{"function": function}]})])
        };
        let value = call(json!({"x": [1, "a"]}));
        assert_eq!(call(json!("{\"x\":[1,\"a\"]}")), value);
        assert_eq!(call(json!("{ \"x\": [1, \"a\"] }")), value);
        assert_ne!(call(json!("{\"x\":[1]}")), value);
        assert_ne!(call(json!("{\"x\":")), call(json!("{")), "what is no JSON is a text");
    }

    #[test]
    fn what_is_said_counts() {
        let call = |name: &str, arguments: &str| {
            let function = json!({"name": name, "arguments": arguments});
            json!({"role": "assistant", "content": null, "tool_calls": [{"id": "x", "function": function}]})
        };
        let different = [
            user("a"),
            user("b"),
            json!({"role": "assistant", "content": "a"}),
            call("f", "{}"),
            call("f", "{\"x\": 1}"),
            call("g", "{}"),
            json!({"role": "tool", "content": "a", "tool_call_id": "1"}),
            json!({"role": "tool", "content": "a", "tool_call_id": "2"}),
            json!(7),
        ];
        let ids: Vec<ChainId> =
            different.iter().map(|message| chain(&KEY, std::slice::from_ref(message))[0]).collect();
        for (i, id) in ids.iter().enumerate() {
            assert!(!ids[..i].contains(id), "{}", different[i]);
        }
        assert_ne!(chain(&[8; 32], &different), chain(&KEY, &different), "another tenant's");
    }

    proptest! {
        #[test]
        fn identities_agree_as_far_as_messages_do(
            texts in prop::collection::vec("[ab]{0,2}", 0..8),
            other in prop::collection::vec("[ab]{0,2}", 0..8),
        ) {
            let messages = |texts: &[String]| texts.iter().map(|text| user(text)).collect::<Vec<_>>();
            let (one, two) = (chain(&KEY, &messages(&texts)), chain(&KEY, &messages(&other)));
            let common = texts.iter().zip(&other).take_while(|(a, b)| a == b).count();
            prop_assert_eq!(one.iter().zip(&two).take_while(|(a, b)| a == b).count(), common);
            prop_assert!(one.iter().skip(common).all(|id| !two[common.min(two.len())..].contains(id)));
        }
    }
}

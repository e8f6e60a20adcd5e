//! Export of a conversation as Markdown.

use kvik_memory::context::chain::text_of;
use serde_json::Value;

/// Formats a conversation under its name, with the role of each message.
pub(super) fn markdown(name: &str, messages: &[Value]) -> String {
    let said = messages.iter().map(said);
    [format!("# {name}\n")].into_iter().chain(said).collect::<Vec<String>>().join("\n")
}

/// Formats a message under its role, with its calls.
fn said(message: &Value) -> String {
    let role = message["role"].as_str().unwrap_or_default();
    let text = text_of(message);
    let calls = message["tool_calls"].as_array().map_or(&[][..], Vec::as_slice);
    let text = (!text.is_empty()).then_some(text);
    let parts: Vec<String> = text.into_iter().chain(calls.iter().map(called)).collect();
    format!("**{role}**\n\n{}\n", parts.join("\n\n"))
}

/// Formats a call in a code fence that is longer than any in its arguments.
fn called(call: &Value) -> String {
    let function = &call["function"];
    let arguments =
        function["arguments"].as_str().map_or_else(|| function["arguments"].to_string(), str::to_owned);
    let mut fence = "```".to_owned();
    while arguments.contains(&fence) {
        fence.push('`');
    }
    format!("{fence}json\n{} {arguments}\n{fence}", function["name"].as_str().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn words_stand_in_the_place_of_a_picture() {
        let image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,eA=="}});
        let messages = [json!({"role": "user", "content": [{"type": "text", "text": "Look."}, image]})];
        let expect = "# trip\n\n**user**\n\nLook.\n[an image, which this model cannot see]\n";
        assert_eq!(markdown("trip", &messages), expect);
    }

    #[test]
    fn who_said_what_is_there_and_what_was_called() {
        let call = json!({"id": "x", "function": {"name": "weather", "arguments": "{\"city\": \"```\"}"}});
        let messages = [
            json!({"role": "user", "content": [{"type": "text", "text": "How is"}, {"type": "text", "text": "it?"}]}),
            json!({"role": "assistant", "content": null, "tool_calls": [call]}),
        ];
        assert_eq!(
            markdown("trip", &messages),
            "# trip\n\n**user**\n\nHow is\nit?\n\n**assistant**\n\n````json\nweather {\"city\": \"```\"}\n````\n"
        );
    }
}

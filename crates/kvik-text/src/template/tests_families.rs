//! Small templates in the forms of families whose calls are not plain JSON, or whose reasoning has tags of
//! its own.

use serde_json::{Value as Json, json};

use super::*;

const CHANNELS: &str = include_str!("golden/tools/channels.jinja");
const DICT: &str = include_str!("golden/tools/dict.jinja");
const PYTHON: &str = include_str!("golden/tools/python.jinja");
const IN_SYSTEM: &str = include_str!("golden/tools/in_system.jinja");
const PARTS: &str = include_str!("golden/tools/parts.jinja");

fn call(id: &str, city: &str) -> Json {
    let arguments = json!({"city": city}).to_string();
    json!({"id": id, "type": "function", "function": {"name": "weather", "arguments": arguments}})
}

/// The template's output for two calls, their results and the reasoning before them, without a system message.
fn rendered(source: &str, content: &str) -> String {
    let messages = json!([
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": content, "reasoning_content": "Two.", "tool_calls": [call("a", "Oslo"), call("b", "Rome")]},
        {"role": "tool", "tool_call_id": "b", "name": "weather", "content": "sun"},
        {"role": "tool", "tool_call_id": "a", "name": "weather", "content": "snow"},
    ]);
    prompt(source, messages, true, None)
}

fn prompt(source: &str, messages: Json, tools: bool, enable_thinking: Option<bool>) -> String {
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    let tool = json!({"type": "function", "function": {"name": "weather", "description": "W", "parameters": parameters}});
    let input = RenderInput {
        messages,
        tools: tools.then(|| json!([tool])),
        add_generation_prompt: true,
        enable_thinking,
        kwargs: Map::new(),
        now: std::time::UNIX_EPOCH,
    };
    ChatTemplate::new(source, "<BOS>", "<EOS>").unwrap().render(&input).unwrap().text
}

/// The family's template renders one call per message, and either the reasoning or the text before it.
#[test]
fn every_call_of_a_message_is_written_with_its_result() {
    let calls = "<|start|>assistant to=functions.weather<|channel|>commentary json<|message|>{\"city\": \"Oslo\"}<|call|>\
        <|start|>functions to=assistant<|channel|>commentary<|message|>\"snow\"<|end|>\
        <|start|>assistant to=functions.weather<|channel|>commentary json<|message|>{\"city\": \"Rome\"}<|call|>\
        <|start|>functions to=assistant<|channel|>commentary<|message|>\"sun\"<|end|><|start|>assistant";
    let reasoned =
        |text: &str| format!("<|start|>assistant<|channel|>analysis<|message|>{text}<|end|>{calls}");
    let text = rendered(CHANNELS, "");
    assert!(text.ends_with(&reasoned("Two.")), "{text}");
    let text = rendered(CHANNELS, "I look.");
    assert!(text.ends_with(&reasoned("Two.\nI look.")), "{text}");
}

#[test]
fn calls_and_reasoning_are_written_in_the_form_of_the_family() {
    let check = |source: &str, parts: &[&str]| {
        let text = rendered(source, "");
        for part in parts {
            assert!(text.contains(part), "{part} is in {text}");
        }
    };
    check(
        DICT,
        &[
            "<|channel>thought\nTwo.\n<channel|><|tool_call>call:weather{city:<|\"|>Oslo<|\"|>}<tool_call|><|tool_call>",
            "<|tool_response>response:weather{value:<|\"|>snow<|\"|>}",
        ],
    );
    check(
        PYTHON,
        &[
            "List of tools: <|tool_list_start|>",
            "assistant\n<|tool_call_start|>[weather(city=\"Oslo\"), weather(city=\"Rome\")]<|tool_call_end|><|im_end|>",
            "<|tool_response_start|>sun",
        ],
    );
    check(
        IN_SYSTEM,
        &[
            "<|system|><|tool|>[{\"name\":\"weather\",",
            "<|/tool|><|end|>",
            "<|assistant|><|tool_call|>[{\"name\": \"weather\", \"arguments\": {\"city\":\"Oslo\"}}, {",
            "<|user|><tool_response>\nsun\n</tool_response>\n<tool_response>\nsnow",
        ],
    );
    check(
        PARTS,
        &[
            "[THINK]Two.[/THINK][TOOL_CALLS]weather[ARGS]{\"city\": \"Oslo\"}[TOOL_CALLS]weather",
            "[TOOL_RESULTS]sun[/TOOL_RESULTS]",
        ],
    );
}

/// With tools offered the answer may have to be a call, which is not part of the content.
#[test]
fn an_answer_without_reasoning_begins_in_its_content() {
    let hello = || json!([{"role": "user", "content": "Hi"}]);
    let text = prompt(CHANNELS, hello(), false, Some(false));
    assert!(
        text.contains("Reasoning: low") && text.ends_with("<|start|>assistant<|channel|>final<|message|>"),
        "{text}"
    );
    let text = prompt(CHANNELS, hello(), true, Some(false));
    assert!(text.contains("Reasoning: low") && text.ends_with("<|start|>assistant"), "{text}");
    let text = prompt(CHANNELS, hello(), false, None);
    assert!(text.contains("Reasoning: medium") && text.ends_with("<|start|>assistant"), "{text}");
    assert!(prompt(DICT, hello(), false, Some(false)).ends_with("<|channel>thought\n<channel|>"));
    assert!(prompt(DICT, hello(), false, Some(true)).ends_with("<|turn>model\n"));
}

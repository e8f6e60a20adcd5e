//! The templates of published models: the rendering of a conversation with tools and reasoning, and the parsing
//! of the form in which the model answers.
//!
//! They are not part of the repository: `KVIK_VOCABULARIES` names the directory with their folder `templates`.

use std::path::PathBuf;

use serde_json::{Value as Json, json};

use super::*;
use crate::answer::ArgumentsForm;

/// The directory of the templates.
fn directory() -> Option<PathBuf> {
    let directory = std::env::var_os("KVIK_VOCABULARIES");
    if directory.is_none() {
        kvik_testing::skip("KVIK_VOCABULARIES is not set");
    }
    directory.map(|directory| PathBuf::from(directory).join("templates"))
}

fn template(name: &str) -> Option<ChatTemplate> {
    let source = std::fs::read_to_string(directory()?.join(format!("{name}.jinja"))).unwrap();
    Some(ChatTemplate::new(&source, "<BOS>", "<EOS>").unwrap())
}

fn input(messages: Json) -> RenderInput {
    RenderInput {
        messages,
        tools: None,
        add_generation_prompt: true,
        enable_thinking: None,
        kwargs: Map::new(),
        now: std::time::UNIX_EPOCH,
    }
}

fn weather() -> Json {
    let properties = json!({"city": {"type": "string", "description": "Where"}, "days": {"type": "integer"}});
    let parameters = json!({"type": "object", "properties": properties, "required": ["city"]});
    json!([{"type": "function", "function": {"name": "weather", "description": "W", "parameters": parameters}}])
}

fn call(id: &str, city: &str) -> Json {
    let arguments = json!({"city": city}).to_string();
    json!({"id": id, "type": "function", "function": {"name": "weather", "arguments": arguments}})
}

/// Two calls in one message, their results, an answer, and a new question.
fn conversation() -> Json {
    json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather in Oslo and Rome?"},
        {"role": "assistant", "content": "", "reasoning_content": "Two cities.",
         "tool_calls": [call("callid001", "Oslo"), call("callid002", "Rome")]},
        {"role": "tool", "tool_call_id": "callid001", "name": "weather", "content": "snow in the north"},
        {"role": "tool", "tool_call_id": "callid002", "name": "weather", "content": "sun in the south"},
    ])
}

/// The parts of a template's answers: the text that opens reasoning, the marker of calls, the form of their
/// arguments.
const FAMILIES: [(&str, &str, &str, &str); 38] = [
    ("openai-gpt-oss-120b", "channels", "<|channel|>", "json"),
    ("google-gemma-4-31B-it", "<|channel>thought", "<|tool_call>", "dict"),
    ("google-gemma-4-31B-it-interleaved", "<|channel>thought", "<|tool_call>", "dict"),
    ("google-gemma-2-2b-it", "<think>", "<tool_call>", "json"),
    ("mistralai-Mistral-Nemo-Instruct-2407", "<think>", "[TOOL_CALLS]", "json"),
    ("Mistral-Small-3.2-24B-Instruct-2506", "<think>", "[TOOL_CALLS]", "json"),
    ("unsloth-mistral-Devstral-Small-2507", "<think>", "[TOOL_CALLS]", "json"),
    ("mistralai-Ministral-3-14B-Reasoning-2512", "[THINK]", "[TOOL_CALLS]", "json"),
    ("meta-llama-Llama-3.1-8B-Instruct", "<think>", "", "json"),
    ("meta-llama-Llama-3.2-3B-Instruct", "<think>", "", "json"),
    ("meta-llama-Llama-3.3-70B-Instruct", "<think>", "", "json"),
    ("deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "<think>", "<｜tool▁calls▁begin｜>", "json"),
    ("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "<think>", "<｜tool▁calls▁begin｜>", "json"),
    ("llama-cpp-deepseek-r1", "<think>", "<｜tool▁calls▁begin｜>", "json"),
    ("deepseek-ai-DeepSeek-V3.1", "<think>", "<｜tool▁calls▁begin｜>", "json"),
    ("deepseek-ai-DeepSeek-V3.2", "<think>", "<｜DSML｜function_calls>", "parameters"),
    ("GLM-4.6", "<think>", "<tool_call>", "parameters"),
    ("GLM-4.7-Flash", "<think>", "<tool_call>", "parameters"),
    ("Qwen3-Coder", "<think>", "<tool_call>", "parameters"),
    ("Qwen3.5-4B", "<think>", "<tool_call>", "parameters"),
    ("Qwen-Qwen3-0.6B", "<think>", "<tool_call>", "json"),
    ("Qwen-Qwen2.5-7B-Instruct", "<think>", "<tool_call>", "json"),
    ("Qwen-QwQ-32B", "<think>", "<tool_call>", "json"),
    ("LFM2-8B-A1B", "<think>", "<|tool_call_start|>", "python"),
    ("LFM2.5-8B-A1B", "<think>", "<|tool_call_start|>", "python"),
    ("LFM2.5-Instruct", "<think>", "<|tool_call_start|>", "python"),
    ("ibm-granite-granite-3.3-2B-Instruct", "<think>", "<|tool_call|>", "json"),
    ("ibm-granite-granite-4.0", "<think>", "<tool_call>", "json"),
    ("ibm-granite-granite-4.1", "<think>", "<tool_call>", "json"),
    ("microsoft-Phi-3.5-mini-instruct", "<think>", "<tool_call>", "json"),
    ("HuggingFaceTB-SmolLM3-3B", "<think>", "<tool_call>", "json"),
    ("NVIDIA-Nemotron-Nano-v2", "<think>", "<TOOLCALL>", "json"),
    ("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "<think>", "<tool_call>", "parameters"),
    ("CohereForAI-c4ai-command-r7b-12-2024-tool_use", "<|START_THINKING|>", "<|START_ACTION|>", "json"),
    ("Cohere2MoE", "<|START_THINKING|>", "<|START_ACTION|>", "json"),
    ("ByteDance-Seed-OSS", "<seed:think>", "<seed:tool_call>", "parameters"),
    ("meetkai-functionary-medium-v3.1", "<think>", "<function=", "json"),
    ("MiniMax-M2", "<think>", "<minimax:tool_call>", "parameters"),
];

#[test]
fn the_form_of_an_answer_is_that_of_the_template() {
    for (name, opens, marker, arguments) in FAMILIES {
        let Some(template) = template(name) else { return };
        let found = match template.reasoning_form() {
            ReasoningForm::Tags(tags) => tags.open,
            ReasoningForm::Channels => "channels",
        };
        let form = template.tool_form();
        let kind = match &form.arguments {
            ArgumentsForm::Json => "json",
            ArgumentsForm::Parameters { .. } => "parameters",
            ArgumentsForm::Python => "python",
            ArgumentsForm::Dict { .. } => "dict",
        };
        assert_eq!((found, form.marker(), kind), (opens, marker, arguments), "{name}: {form:?}");
    }
}

#[test]
fn tools_calls_and_results_are_rendered() {
    let mut wrong = Vec::new();
    for (name, ..) in FAMILIES {
        let Some(template) = template(name) else { return };
        let with_tools = RenderInput { tools: Some(weather()), ..input(conversation()) };
        let prompt = match template.render(&with_tools) {
            Ok(prompt) => prompt.text,
            Err(error) => {
                wrong.push(format!("{name}: {error}"));
                continue;
            }
        };
        let parts = ["Where", "Oslo", "Rome", "snow in the north", "sun in the south"];
        let places = parts.map(|part| prompt.rfind(part));
        if places.contains(&None) || places[3] > places[4] {
            wrong.push(format!("{name}: {parts:?} are at {places:?} of {prompt}"));
        }
        if !template.learned().system && !prompt.contains("Be brief.\n\nWeather in Oslo") {
            wrong.push(format!("{name}: the system message is not in the question of {prompt}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// The reasoning before calls with results, for templates that render it.
#[test]
fn the_reasoning_behind_calls_is_rendered() {
    for name in [
        "openai-gpt-oss-120b",
        "google-gemma-4-31B-it",
        "mistralai-Ministral-3-14B-Reasoning-2512",
        "deepseek-ai-DeepSeek-V3.2",
        "GLM-4.6",
        "Qwen3.5-4B",
        "Qwen-Qwen3-0.6B",
        "LFM2.5-8B-A1B",
        "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
        "Cohere2MoE",
        "ByteDance-Seed-OSS",
        "MiniMax-M2",
    ] {
        let Some(template) = template(name) else { return };
        let with_tools =
            RenderInput { tools: Some(weather()), enable_thinking: Some(true), ..input(conversation()) };
        let prompt = template.render(&with_tools).unwrap().text;
        assert!(prompt.contains("Two cities."), "{name}: {prompt}");
    }
}

/// Reasoning can be disabled: by the template, or by closing it.
#[test]
fn the_switch_for_reasoning_reaches_the_template() {
    for (name, off) in [
        ("google-gemma-4-31B-it", "<|channel>thought\n<channel|>"),
        ("deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "<think>\n\n</think>\n\n"),
        ("deepseek-ai-DeepSeek-V3.1", "</think>"),
        ("deepseek-ai-DeepSeek-V3.2", "</think>"),
        ("GLM-4.6", "<think></think>"),
        ("GLM-4.7-Flash", "</think>"),
        ("Qwen3.5-4B", "<think>\n\n</think>\n\n"),
        ("Qwen-Qwen3-0.6B", "<think>\n\n</think>\n\n"),
        ("HuggingFaceTB-SmolLM3-3B", "<think>\n\n</think>\n"),
        ("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "<think></think>"),
        ("NVIDIA-Nemotron-Nano-v2", "<think>\n\n</think>\n\n"),
        ("Cohere2MoE", "<|START_THINKING|><|END_THINKING|>"),
        ("CohereForAI-c4ai-command-r7b-12-2024-tool_use", "<|START_THINKING|><|END_THINKING|>"),
        ("openai-gpt-oss-120b", "<|start|>assistant<|channel|>final<|message|>"),
    ] {
        let Some(template) = template(name) else { return };
        let prompt = |enable_thinking| {
            let hello = input(json!([{"role": "user", "content": "Hi"}]));
            template.render(&RenderInput { enable_thinking, ..hello }).unwrap().text
        };
        assert!(prompt(Some(false)).ends_with(off), "{name}: {}", prompt(Some(false)));
        assert!(!prompt(Some(true)).ends_with(off), "{name}: {}", prompt(Some(true)));
    }
    let Some(granite) = template("ibm-granite-granite-3.3-2B-Instruct") else { return };
    let hello = input(json!([{"role": "user", "content": "Hi"}]));
    let on = granite.render(&RenderInput { enable_thinking: Some(true), ..hello }).unwrap().text;
    assert!(on.contains("<think></think>"), "{on}");
}

//! Tools in templates: the derived form is the template's, and models whose template does not support tools can
//! use them too.

use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::*;
use crate::answer::{AnswerDelta, AnswerParser, AnswerStart, ArgumentsForm, Offer};

/// Templates in the forms of published models, written by us.
const TEMPLATES: [(&str, &str); 7] = [
    ("llama3", include_str!("golden/llama3.jinja")),
    ("mistral_list", include_str!("golden/tools/mistral_list.jinja")),
    ("mistral_named", include_str!("golden/tools/mistral_named.jinja")),
    ("functions", include_str!("golden/tools/functions.jinja")),
    ("deepseek", include_str!("golden/tools/deepseek.jinja")),
    ("coder", include_str!("golden/tools/coder.jinja")),
    ("glm", include_str!("golden/tools/glm.jinja")),
];

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::new(source, "<BOS>", "<EOS>").unwrap()
}

fn named(name: &str) -> ChatTemplate {
    template(TEMPLATES.iter().find(|(known, _)| *known == name).unwrap().1)
}

fn input(messages: Json, tools: Option<Json>) -> RenderInput {
    RenderInput {
        messages,
        tools,
        add_generation_prompt: false,
        enable_thinking: None,
        kwargs: Map::new(),
        now: std::time::UNIX_EPOCH,
    }
}

fn weather() -> Json {
    let city = json!({"type": "string"});
    let properties = json!({"city": city, "days": {"type": "integer"}});
    let parameters = json!({"type": "object", "properties": properties});
    json!([{"type": "function", "function": {"name": "weather", "description": "W", "parameters": parameters}}])
}

fn call(city: &str, days: i64) -> Json {
    let arguments = json!({"city": city, "days": days});
    json!({"id": "abcdefghi", "type": "function", "function": {"name": "weather", "arguments": arguments}})
}

/// The text that a template renders for a message, after the user message.
fn rendered(template: &ChatTemplate, message: Json) -> String {
    let user = json!({"role": "user", "content": "W?"});
    let prompt = |messages: Json| template.render(&input(messages, Some(weather()))).unwrap().text;
    let before = prompt(json!([user]));
    prompt(json!([user, message]))[before.len()..].to_owned()
}

/// Calls and other text of an answer.
fn read(form: &ToolForm, text: &str) -> (Vec<(String, Json)>, String) {
    let tools = weather()[0]["function"]["parameters"].clone();
    let offer = Offer {
        form: form.clone(),
        tools: vec![("weather".to_owned(), tools)],
        calls_max: usize::MAX,
        certain: false,
    };
    let mut parser = AnswerParser::new(AnswerStart::usual(false), Some(Arc::new(offer)), "");
    let (mut calls, mut content) = (Vec::new(), String::new());
    for delta in [parser.push(text), parser.finish()].concat() {
        match delta {
            AnswerDelta::ToolCall { name, arguments, .. } => {
                calls.push((name, serde_json::from_str(&arguments).unwrap()));
            }
            AnswerDelta::Arguments { .. } => panic!("nothing makes these calls certain"),
            AnswerDelta::Content(text) | AnswerDelta::Reasoning(text) => content.push_str(&text),
        }
    }
    (calls, content)
}

#[test]
fn rendered_calls_are_read_back() {
    for (name, source) in TEMPLATES {
        let template = template(source);
        let form = template.tool_form();
        let one = json!({"role": "assistant", "content": "", "tool_calls": [call("Å \"b\"}\n", 2)]});
        let text = rendered(&template, one);
        let expect = ("weather".to_owned(), json!({"city": "Å \"b\"}\n", "days": 2}));
        // Only the call, without the template's header before it and the end of the turn after it.
        let start = text.find(if form.marker().is_empty() { "{\"name\"" } else { form.marker() });
        let rendered = &text[start.unwrap_or_else(|| panic!("{name}: {text:?}"))..];
        let rendered = rendered.split("<EOS>").next().unwrap().split("<|e").next().unwrap();
        let rendered = rendered.strip_suffix("<|im_end|>\n").unwrap_or(rendered);
        let (calls, content) = read(&form, rendered);
        assert_eq!(calls, std::slice::from_ref(&expect), "{name}: {rendered:?}");
        assert_eq!(content.trim(), "", "{name}: {rendered:?}");
        if !form.marker().is_empty() {
            let (calls, content) = read(&form, &format!("I look.\n{rendered}"));
            assert_eq!((calls, content.trim()), (vec![expect], "I look."), "{name}");
        }
    }
}

#[test]
fn several_calls_are_read_if_the_template_renders_them() {
    for (name, source) in TEMPLATES {
        let template = template(source);
        let form = template.tool_form();
        assert_eq!(form.several, name != "llama3", "{name}");
        if !form.several {
            continue;
        }
        let both = json!({"role": "assistant", "content": "", "tool_calls": [call("a", 1), call("b", 2)]});
        let text = rendered(&template, both);
        let rendered = &text[text.find(form.marker()).unwrap()..];
        let rendered = rendered.split("<EOS>").next().unwrap().split("<|e").next().unwrap();
        let rendered = rendered.strip_suffix("<|im_end|>\n").unwrap_or(rendered);
        let (calls, content) = read(&form, rendered);
        let cities: Vec<&Json> = calls.iter().map(|(_, arguments)| &arguments["city"]).collect();
        assert_eq!(cities, ["a", "b"], "{name}: {rendered:?}");
        assert_eq!(content.trim(), "", "{name}: {rendered:?}");
    }
}

#[test]
fn learned_forms_are_those_of_the_templates() {
    let check = |name: &str, marker: &str, opening: &str, begin: &str| {
        let form = named(name).tool_form();
        assert_eq!((form.marker(), &*form.opening, &*form.begin), (marker, opening, begin), "{name}");
    };
    check("llama3", "", "", "{\"name\": \"");
    check("mistral_list", "[TOOL_CALLS]", "[TOOL_CALLS] [", "{\"name\": \"");
    check("mistral_named", "[TOOL_CALLS]", "", "[TOOL_CALLS]");
    check("functions", "<function=", "", "<function=");
    check("coder", "<tool_call>", "", "<tool_call>\n<function=");
    check("glm", "<tool_call>", "", "<tool_call>");
    assert_eq!(named("llama3").tool_form().middle, "\", \"parameters\": ");
    assert!(matches!(named("coder").tool_form().arguments, ArgumentsForm::Parameters { .. }));
    let Some(qwen) = kvik_testing::outside_data() else { return };
    let qwen = std::fs::read_to_string(qwen.join("templates/Qwen-Qwen3-0.6B.jinja")).unwrap();
    assert_eq!(template(&qwen).tool_form(), ToolForm::tagged());
}

#[test]
fn a_constraint_has_the_form_of_the_template() {
    use crate::forms::{CallStart, Calls};
    let tools = [("f".to_owned(), json!({"type": "object"}))];
    let constraint = |name: &str| named(name).tool_form().constraint(&tools, None, 5);
    let begin = |calls: &Calls| format!("{}{}", calls.opening, calls.tools[0].begin);
    let llama = constraint("llama3").unwrap();
    assert_eq!(llama.start, CallStart::LazyAtStart);
    assert_eq!(begin(&llama), "{\"name\": \"f\", \"parameters\": ");
    assert_eq!((&*llama.tools[0].end, llama.calls_max), ("}", 1), "its template takes one call at a time");
    let mistral = constraint("mistral_list").unwrap();
    assert_eq!(mistral.start, CallStart::Lazy { trigger: "[TOOL_CALLS]".into() });
    assert_eq!(begin(&mistral), "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": ");
    assert_eq!((&*mistral.separator, &*mistral.closing, mistral.calls_max), (", ", "]", 5));
    assert_eq!(mistral.tools[0].end, "}", "the model need not generate an identifier");
    for name in ["mistral_named", "functions", "deepseek"] {
        let calls = constraint(name).unwrap();
        let CallStart::Lazy { trigger } = &calls.start else { panic!("{name}") };
        assert!(begin(&calls).starts_with(trigger.as_str()), "{name}");
    }
    assert_eq!(constraint("coder"), None, "its arguments are no JSON");
}

const CONVERSATION: &str = r#"[
    {"role": "user", "content": "W?"},
    {"role": "assistant", "content": "I look.", "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{\"city\": \"a\"}"}}]},
    {"role": "tool", "tool_call_id": "1", "content": "rain"}
]"#;

#[test]
fn models_whose_template_has_no_tools_get_an_instruction() {
    let tiny = template(include_str!("golden/tiny.jinja"));
    let messages: Json = serde_json::from_str(CONVERSATION).unwrap();
    let text = tiny.render(&input(messages.clone(), Some(weather()))).unwrap().text;
    assert_eq!(tiny.tool_form(), ToolForm::tagged());
    assert!(text.starts_with("<|im_start|>system\n"), "{text}");
    for part in [
        "\"name\":\"weather\"",
        "I look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"a\"}}\n</tool_call>",
        "<|im_start|>user\n<tool_response>\nrain\n</tool_response>",
    ] {
        assert!(text.contains(part), "{part} is in {text}");
    }
    // The system message is kept at the start, so that the cache can reuse it.
    let system = json!({"role": "system", "content": "Be brief."});
    let with_system = json!([system, {"role": "user", "content": "W?"}]);
    let text = tiny.render(&input(with_system, Some(weather()))).unwrap().text;
    assert!(text.starts_with("<|im_start|>system\nBe brief.\n\n"), "{text}");
    // A template that refuses the role `system` gets the instruction in the first user message.
    let strict = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    let mut told = messages.clone();
    told.as_array_mut().unwrap().insert(0, system);
    for (messages, end) in [(messages, "\n\nW?<assistant>"), (told, "\n\nBe brief.\n\nW?<assistant>")] {
        let text = template(strict).render(&input(messages, Some(weather()))).unwrap().text;
        assert!(text.starts_with("<user>You can call tools."), "{text}");
        assert!(text.contains(end), "{text}");
    }
}

#[test]
fn without_tools_there_is_no_instruction() {
    let tiny = template(include_str!("golden/tiny.jinja"));
    let hello = json!([{"role": "user", "content": "Hi"}]);
    let text = tiny.render(&input(hello, None)).unwrap().text;
    assert_eq!(text, "<|im_start|>user\nHi<|im_end|>\n");
}

#[test]
fn a_template_that_supports_tools_gets_no_instruction() {
    for (name, source) in TEMPLATES {
        let messages = json!([{"role": "user", "content": "W?"}]);
        let text = template(source).render(&input(messages, Some(weather()))).unwrap().text;
        assert!(text.contains("weather") && !text.contains("You can call tools."), "{name}: {text}");
    }
}

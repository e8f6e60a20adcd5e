//! Every available template, with every shape in which clients offer tools and send back a server's answers.
//!
//! The small templates of the families are always available; `KVIK_VOCABULARIES` names a directory with a folder
//! `templates` of those of published models.

use serde_json::{Value as Json, json};

use super::*;

const OWN: [(&str, &str); 15] = [
    ("tiny", include_str!("golden/tiny.jinja")),
    ("zephyr", include_str!("golden/zephyr.jinja")),
    ("llama3", include_str!("golden/llama3.jinja")),
    ("channels", include_str!("golden/tools/channels.jinja")),
    ("coder", include_str!("golden/tools/coder.jinja")),
    ("deepseek", include_str!("golden/tools/deepseek.jinja")),
    ("dict", include_str!("golden/tools/dict.jinja")),
    ("functions", include_str!("golden/tools/functions.jinja")),
    ("glm", include_str!("golden/tools/glm.jinja")),
    ("in_system", include_str!("golden/tools/in_system.jinja")),
    ("mistral_list", include_str!("golden/tools/mistral_list.jinja")),
    ("mistral_named", include_str!("golden/tools/mistral_named.jinja")),
    ("parts", include_str!("golden/tools/parts.jinja")),
    ("python_calls", include_str!("golden/tools/python.jinja")),
    ("queue", include_str!("golden/tools/queue.jinja")),
];

/// Templates that depend on variables that no server sets, but the request's `chat_template_kwargs` may.
const OF_OTHER_VARIABLES: [&str; 1] = ["fireworks-ai-llama-3-firefunction-v2"];

/// All available templates, by name.
fn templates() -> Vec<(String, ChatTemplate)> {
    let mut sources: Vec<(String, String)> =
        OWN.iter().map(|(name, source)| ((*name).to_owned(), (*source).to_owned())).collect();
    if let Some(directory) = std::env::var_os("KVIK_VOCABULARIES") {
        for entry in std::fs::read_dir(std::path::Path::new(&directory).join("templates")).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "jinja") {
                let name = path.file_stem().unwrap().to_string_lossy().into_owned();
                sources.push((name, std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    sources.retain(|(name, _)| !OF_OTHER_VARIABLES.contains(&name.as_str()));
    sources.sort();
    let compiled = |(name, source): (String, String)| {
        let template = ChatTemplate::new(&source, "<BOS>", "<EOS>");
        (name.clone(), template.unwrap_or_else(|error| panic!("{name}: {error}")))
    };
    sources.into_iter().map(compiled).collect()
}

fn input(messages: Json, tools: Option<Json>) -> RenderInput {
    RenderInput {
        messages,
        tools,
        add_generation_prompt: true,
        enable_thinking: None,
        kwargs: Map::new(),
        now: std::time::UNIX_EPOCH,
    }
}

fn user(text: &str) -> Json {
    json!({"role": "user", "content": text})
}

fn weather() -> Json {
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string", "description": "Where"}}, "required": ["city"]});
    json!([{"type": "function", "function": {"name": "weather", "description": "The weather", "parameters": parameters}}])
}

/// A message with a call of `weather` with these arguments.
fn called(arguments: Json) -> Json {
    let call = json!({"id": "call_0_a1b2c3d4e5f60718", "type": "function", "function": {"name": "weather", "arguments": arguments}});
    json!({"role": "assistant", "content": null, "tool_calls": [call]})
}

fn result() -> Json {
    json!({"role": "tool", "tool_call_id": "call_0_a1b2c3d4e5f60718", "content": "zqSnow"})
}

/// Renders with every template, and fails with all errors.
fn check(what: &str, render: impl Fn(&ChatTemplate) -> Result<(), String>) {
    let wrong =
        |(name, template): (String, ChatTemplate)| Some(format!("{name}: {}", render(&template).err()?));
    let wrong: Vec<String> = templates().into_iter().filter_map(wrong).collect();
    assert!(wrong.is_empty(), "{what}, {} templates:\n{}", wrong.len(), wrong.join("\n"));
}

/// The prompt, which must contain these parts.
fn rendered(template: &ChatTemplate, input: &RenderInput, parts: &[&str]) -> Result<String, String> {
    let text = template.render(input).map_err(|error| error.to_string())?.text;
    match parts.iter().find(|part| !text.contains(**part)) {
        Some(part) => Err(format!("{part} is missing in {text:?}")),
        None => Ok(text),
    }
}

#[test]
fn nothing_fails_to_render_unsaid() {
    check("failures", |template| match &template.failures()[..] {
        [] => Ok(()),
        failures => Err(failures.join("; ")),
    });
}

#[test]
fn tools_of_every_shape_are_rendered() {
    let object = |properties: Json| json!({"type": "object", "properties": properties});
    let city = |schema: Json| object(json!({"city": schema}));
    let mut functions = Vec::new();
    for description in [None, Some(Json::Null), Some(json!("")), Some(json!("Says"))] {
        for parameters in [
            None,
            Some(Json::Null),
            Some(json!({})),
            Some(json!({"type": "object"})),
            Some(object(Json::Null)),
            Some(object(json!({}))),
            Some(json!({"type": "object", "properties": {}, "required": [], "additionalProperties": false})),
            Some(city(json!({"type": "string"}))),
            Some(city(json!({"type": "string", "description": null}))),
        ] {
            let mut function = json!({"name": "zqLook"});
            for (name, value) in [("description", &description), ("parameters", &parameters)] {
                if let Some(value) = value {
                    function[name] = value.clone();
                }
            }
            functions.push(function);
        }
    }
    for schema in [
        json!({}),
        json!({"description": "Where"}),
        json!({"type": ["string", "null"]}),
        json!({"anyOf": [{"type": "string"}, {"type": "null"}], "default": null}),
        json!({"enum": ["a", "b"]}),
        json!({"type": "array"}),
        json!({"type": "array", "items": {}}),
        json!({"type": "object"}),
        json!({"type": "object", "properties": {"a": {}}}),
        json!({"$ref": "#/$defs/a"}),
    ] {
        functions.push(json!({"name": "zqLook", "description": "Says", "parameters": city(schema)}));
    }
    check("tools", |template| {
        let wrong = |function: &Json| {
            let tools = Some(json!([{"type": "function", "function": function}]));
            let error = rendered(template, &input(json!([user("hi")]), tools), &["zqLook"]).err()?;
            Some(format!("{function}: {error:.200}"))
        };
        let wrong: Vec<String> = functions.iter().filter_map(wrong).collect();
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n    ")) }
    });
}

#[test]
fn what_was_said_can_be_sent_back() {
    let arguments = [
        json!("{\"city\": \"zqOslo\"}"),
        json!({"city": "zqOslo"}),
        json!("{\"city\": \"zqOslo\", \"days\": [1, {\"a"),
        json!("{\"city\": \"zqOs"),
        json!(r#"{"city": "zqOslo", "half": "\ud83d"}"#),
        json!("{"),
        json!(""),
        json!("{}"),
        json!("null"),
        Json::Null,
        json!({}),
    ];
    check("calls", |template| {
        let mut wrong = Vec::new();
        for arguments in &arguments {
            let whole = arguments.to_string().contains("zqOslo");
            let parts: &[&str] =
                if whole { &["weather", "zqOslo", "zqSnow"] } else { &["weather", "zqSnow"] };
            for offered in [Some(weather()), None] {
                let messages = json!([user("hi"), called(arguments.clone()), result()]);
                let rendered = rendered(template, &input(messages, offered.clone()), parts);
                wrong.extend(
                    rendered.err().map(|error| format!("{arguments}, {}: {error:.300}", offered.is_some())),
                );
            }
        }
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n    ")) }
    });
}

#[test]
fn a_result_need_not_name_its_call() {
    check("results", |template| {
        let mut nameless = result();
        nameless.as_object_mut().unwrap().remove("tool_call_id");
        let mut called = called(json!("{\"city\": \"zqOslo\"}"));
        let named = |result: Json, called: &Json| {
            let messages = json!([user("hi"), called, result]);
            rendered(template, &input(messages, Some(weather())), &["zqOslo", "zqSnow"])
        };
        if named(nameless.clone(), &called)? != named(result(), &called)? {
            return Err("a result without an id is another prompt".to_owned());
        }
        called["tool_calls"][0].as_object_mut().unwrap().remove("id");
        named(nameless, &called).map(drop)
    });
}

#[test]
fn reasoning_has_two_names_and_content_two_shapes() {
    check("names", |template| {
        let prompt = |name: &str, content: Json| {
            let mut answer = json!({"role": "assistant", "content": content});
            answer[name] = json!("zqThought");
            let mut called = called(json!("{\"city\": \"zqOslo\"}"));
            called[name] = json!("zqThought");
            let messages = json!([user("hi"), answer, user("and now?"), called, result()]);
            rendered(template, &input(messages, Some(weather())), &["zqSaid", "zqOslo"])
        };
        let usual = prompt("reasoning_content", json!("zqSaid"))?;
        for (name, content) in [
            ("reasoning", json!("zqSaid")),
            ("reasoning", json!([{"type": "text", "text": "zqSaid"}])),
            ("reasoning_content", json!([{"type": "text", "text": "zqSaid"}])),
        ] {
            let other = prompt(name, content)?;
            if other != usual {
                return Err(format!("{name} gives {other:?}, not {usual:?}"));
            }
        }
        Ok(())
    });
}

/// An answer may have been cut off before its first text, or during its reasoning.
#[test]
fn answers_without_content_can_be_sent_back() {
    check("answers", |template| {
        for answer in [
            json!({"role": "assistant", "content": ""}),
            json!({"role": "assistant", "content": null, "reasoning_content": "zqThought"}),
            json!({"role": "assistant", "content": "{", "reasoning_content": "zqThought"}),
            json!({"role": "assistant", "content": "", "tool_calls": []}),
        ] {
            let messages = json!([user("hi"), answer, user("zqAgain")]);
            for tools in [Some(weather()), None] {
                let rendered = rendered(template, &input(messages.clone(), tools), &["zqAgain"]);
                rendered.map_err(|error| format!("{answer}: {error:.300}"))?;
            }
        }
        Ok(())
    });
}

/// The template's identifiers contain the tool's name, which it writes nowhere else; clients send those of
/// other servers.
#[test]
fn identifiers_name_the_tool_where_nothing_else_does() {
    let template = ChatTemplate::new(include_str!("golden/tools/queue.jinja"), "", "<EOS>").unwrap();
    let called = called(json!("{\"city\": \"Oslo\"}"));
    let messages = json!([user("hi"), called, result(), called, result()]);
    let text = template.render(&input(messages, Some(weather()))).unwrap().text;
    let turn = |number: usize| {
        format!(
            "<|assistant|><|calls|><|call|>functions.weather:{number}<|arguments|>{{\"city\": \"Oslo\"}}<|end_call|><|end_calls|><EOS>\
             <|tool|>## Return of functions.weather:{number}\nzqSnow<EOS>"
        )
    };
    assert!(text.ends_with(&format!("<|user|>hi<EOS>{}{}<|assistant|>", turn(0), turn(1))), "{text}");
    let form = template.tool_form();
    assert_eq!((&*form.opening, &*form.begin), ("<|calls|>", "<|call|>functions."), "{form:?}");
    assert_eq!(
        (&*form.end, &*form.closing, form.several),
        ("<|end_call|>", "<|end_calls|>", true),
        "{form:?}"
    );
}

#[test]
fn what_a_template_fails_to_render_is_said() {
    let failures = |source: &str| ChatTemplate::new(source, "", "").unwrap().failures();
    let calls = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if m.tool_calls %}{{ m.tool_calls.shuffle() }}{% endif %}{% endfor %}";
    let said = failures(calls);
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(
        said[0].contains("calls of tools") && said[0].contains("\"shuffle\"") && said[0].contains("line 1")
    );
    assert!(said[1].contains("results of calls"));
    let tools =
        "{% for m in messages %}{{ m.content }}{% endfor %}{% if tools %}{{ tools | frobnicate }}{% endif %}";
    assert!(
        failures(tools)[0].contains("does not render tools") && failures(tools)[0].contains("frobnicate")
    );
    let silent = failures("{% for m in messages %}<{{ m.role }}>{% endfor %}");
    assert!(silent.len() == 1 && silent[0].contains("does not render a message"), "{silent:?}");
    // The failures are those of the template that is used with tools.
    let both = ChatTemplate::new("{{ messages[0].content }}", "", "").unwrap().and_for_tools(calls).unwrap();
    assert_eq!(both.failures(), said);
    // A template may refuse input that its model was not trained on.
    let strict = "{% for m in messages %}{% if m.tool_calls %}{{ raise_exception('no') }}{% endif %}{{ m.content }}{% endfor %}";
    assert_eq!(failures(strict), [""; 0]);
}

/// A model may have a template for tools, which need not render conversations without them.
#[test]
fn the_template_for_tools_is_used_with_tools() {
    let plain = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    let for_tools = "TOOLS{% for t in tools %}{{ t.function.name }}{% endfor %}{% for m in messages %}<{{ m.role }}>{{ m.content }}\
        {% for c in m.tool_calls or [] %}<tool_call>{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}</tool_call>{% endfor %}{% endfor %}";
    let template = ChatTemplate::new(plain, "", "").unwrap().and_for_tools(for_tools).unwrap();
    let hi = json!([user("hi")]);
    let render =
        |messages: &Json, tools: Option<Json>| template.render(&input(messages.clone(), tools)).unwrap().text;
    assert_eq!(render(&hi, None), "<user>hi");
    assert_eq!(render(&hi, Some(weather())), "TOOLSweather<user>hi");
    let messages = json!([user("hi"), called(json!("{\"city\": \"Oslo\"}")), result()]);
    let said = "<user>hi<assistant><tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}</tool_call><tool>zqSnow";
    assert_eq!(render(&messages, Some(weather())), format!("TOOLSweather{said}"));
    assert_eq!(render(&messages, None), format!("TOOLS{said}"), "results are no messages of the user");
    assert_eq!(template.tool_form().begin, "<tool_call>{\"name\": \"");
}

#[test]
fn a_template_of_go_is_called_so() {
    let error = |source: &str| ChatTemplate::new(source, "", "").unwrap_err().to_string();
    for source in [
        "{{ if .System }}<|system|>{{ .System }}{{ end }}{{ .Prompt }}",
        "{{- range $i, $_ := .Messages }}{{ $.Role }}{{ end }}",
        "{{- if or .System .Tools }}x{{ end }}",
    ] {
        assert!(error(source).contains("one of Go") && error(source).contains("--chat-template"), "{source}");
    }
    let jinja = error("{% if %}");
    assert!(!jinja.contains("Go") && jinja.contains("--chat-template"), "{jinja}");
}

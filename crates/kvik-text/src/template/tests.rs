use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value as Json, json};

use super::*;

fn input(messages: Json) -> RenderInput {
    RenderInput {
        messages,
        tools: None,
        add_generation_prompt: true,
        enable_thinking: None,
        kwargs: Map::new(),
        // 2026-11-20 09:05:03 UTC
        now: UNIX_EPOCH + Duration::from_secs(1_795_165_503),
    }
}

fn hello() -> RenderInput {
    input(json!([{"role": "user", "content": "Hi"}]))
}

fn render(source: &str, input: &RenderInput) -> Result<String, TemplateError> {
    Ok(ChatTemplate::new(source, "<BOS>", "</s>")?.render(input)?.text)
}

fn golden_source(name: &str) -> Option<String> {
    Some(match name {
        "tiny" => include_str!("golden/tiny.jinja").into(),
        "zephyr" => include_str!("golden/zephyr.jinja").into(),
        "llama3" => include_str!("golden/llama3.jinja").into(),
        "python" => include_str!("golden/python.jinja").into(),
        _ => {
            let path = kvik_testing::outside_data()?.join("templates/Qwen-Qwen3-0.6B.jinja");
            std::fs::read_to_string(path).unwrap()
        }
    })
}

#[test]
fn prompts_equal_those_of_python() {
    let cases: Vec<Json> = serde_json::from_str(include_str!("golden/golden.json")).unwrap();
    assert!(cases.len() > 20);
    for case in cases {
        let name = case["template"].as_str().unwrap();
        let Some(source) = golden_source(name) else { continue };
        let input = RenderInput {
            tools: Some(case["tools"].clone()).filter(|tools| !tools.is_null()),
            add_generation_prompt: case["add_generation_prompt"].as_bool().unwrap(),
            enable_thinking: case["enable_thinking"].as_bool(),
            ..input(case["messages"].clone())
        };
        let prompt = render(&source, &input).unwrap();
        assert_eq!(prompt, case["prompt"].as_str().unwrap(), "{name}: {case}");
    }
}

#[test]
fn content_parts_and_null_become_text() {
    let messages = json!([
        {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": null},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
    ]);
    let prompt = render(CHATML, &input(messages)).unwrap();
    assert_eq!(
        prompt,
        "<|im_start|>system\na\nb<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n\
         <|im_start|>assistant\nNo.<|im_end|>\n<|im_start|>assistant\n"
    );
}

/// In the shape of SmolVLM's, which would lose the text of every message.
#[test]
fn a_template_that_reads_parts_alone_is_given_parts() {
    let source = "{{ bos_token }}{% for m in messages %}{{ m['role'] | capitalize }}\
        {% if m['content'][0]['type'] == 'image' %}{{ ':' }}{% else %}{{ ': ' }}{% endif %}\
        {% for part in m['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}\
        {% elif part['type'] == 'image' %}<image>{% endif %}{% endfor %}<end>{% endfor %}\
        {% if add_generation_prompt %}Assistant:{% endif %}";
    let template = ChatTemplate::new(source, "<BOS>", "").unwrap();
    let messages = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "c<end>"},
    ]);
    let Prompt { text, inputs } = template.render(&input(messages)).unwrap();
    let turns = "System: Be brief.<end>User: a\nb<end>Assistant: <end>User: c<end><end>Assistant:";
    assert_eq!(text, format!("<BOS>{turns}"));
    assert!(inputs.iter().any(|range| &text[range.clone()] == "c<end>"), "{inputs:?}");
    assert_eq!(template.failures(), [""; 0]);
}

/// Gemma 2 refuses the role; other templates omit its messages.
#[test]
fn a_system_message_is_in_the_question_if_the_template_has_no_role_for_it() {
    let refuses = "{% for m in messages %}{% if m.role == 'system' %}\
        {{ raise_exception('System role not supported') }}{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    let omits = "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    let said = |role: &str, text: &str| json!({"role": role, "content": text});
    for source in [refuses, omits] {
        let check = |messages: &[Json], expect: &str| {
            assert_eq!(render(source, &input(json!(messages))).unwrap(), expect, "{source}");
        };
        let (question, answer) = (said("user", "c"), said("assistant", "d"));
        let leading = [said("system", "a"), said("developer", "b")];
        check(&[&leading[..], &[question.clone(), answer.clone()]].concat(), "<user>a\n\nb\n\nc<assistant>d");
        let later = [question.clone(), answer.clone(), said("system", "b"), said("user", "e")];
        check(&later, "<user>c<assistant>d<user>b\n\ne");
        check(&[question.clone(), said("system", "b"), answer], "<user>c\n\nb<assistant>d");
        check(&[said("system", ""), question], "<user>c");
        check(&[said("system", "a")], "<user>a");
    }
    let takes = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    let messages = json!([said("system", "a"), said("user", "c")]);
    assert_eq!(render(takes, &input(messages)).unwrap(), "<system>a<user>c");
}

/// Agents look at images on their own, and send everything back with each turn.
#[test]
fn a_picture_that_a_tool_returned_or_was_asked_about_before_has_words_in_its_place() {
    let image = json!({"type": "image_url", "image_url": {"url": "data:,x"}});
    let messages = json!([
        {"role": "user", "content": [{"type": "text", "text": "a"}, image], "images": ["eA=="]},
        {"role": "assistant", "content": "b", "images": [image]},
        {"role": "tool", "content": [image]},
        {"role": "user", "content": [image]},
    ]);
    let prompt = render(CHATML, &input(messages)).unwrap();
    assert_eq!(prompt.matches("[an image, which this model cannot see]").count(), 3, "{prompt}");
}

#[test]
fn a_picture_is_not_answered_by_a_message_that_says_nothing() {
    let image = json!({"type": "image_url", "image_url": {"url": "data:,x"}});
    let check = |answers: &[Json], is_refused: bool| {
        let question = json!({"role": "user", "content": [{"type": "text", "text": "a"}, image]});
        let messages = [&[question][..], answers].concat();
        let error = render(CHATML, &input(json!(messages))).err().map(|error| error.to_string());
        let is_named = |error: &String| error.starts_with("messages[0].content[1].type: ");
        assert_eq!(error.is_some(), is_refused, "{answers:?}");
        assert!(error.as_ref().is_none_or(is_named), "{error:?}");
    };
    let answer = |content: Json| json!({"role": "assistant", "content": content});
    let empty = || answer(json!(""));
    for content in [json!(null), json!(""), json!([]), json!([{"type": "text", "text": ""}])] {
        check(&[answer(content.clone())], true);
        check(&[answer(content.clone()), empty()], true);
        check(&[answer(json!("A dog.")), answer(content)], false);
    }
    check(&[json!({"role": "assistant", "tool_calls": [], "reasoning_content": "so"})], true);
    let call = json!({"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    check(&[json!({"role": "assistant", "content": null, "tool_calls": [call]})], false);
    check(&[answer(json!([{"type": "refusal", "refusal": "No."}]))], false);
    check(&[empty(), json!({"role": "user", "content": "And?"})], false);
}

#[test]
fn errors_name_the_invalid_field() {
    let check = |messages: Json, expect: &str| {
        let error = render(CHATML, &input(messages)).unwrap_err().to_string();
        assert!(error.starts_with(expect), "{error:?} does not start with {expect:?}");
    };
    check(json!("hi"), "messages: an array");
    check(json!([3]), "messages[0]: an object");
    check(json!([{"role": "user"}, {"content": "x"}]), "messages[1].role");
    check(json!([{"role": "user", "content": 3}]), "messages[0].content");
    check(
        json!([{"role": "user", "content": [{"type": "image_url"}]}]),
        "messages[0].content[0].type: \"image_url\"",
    );
    check(
        json!([{"role": "user", "content": "a", "images": []}, {"role": "user", "content": "b", "images": "eA=="}]),
        "messages[1].images: images",
    );
    check(
        json!([{"role": "user", "tool_calls": [{"function": {}}]}]),
        "messages[0].tool_calls[0].function.name",
    );
    // Arguments that are only cut off are no error: see `tests_shapes.rs`.
    for arguments in ["}", "{\"a\" 1}", "{\"a\": 1}}", "{a: 1", "weather"] {
        let call = json!({"function": {"name": "f", "arguments": arguments}});
        check(
            json!([{"role": "user", "tool_calls": [call]}]),
            "messages[0].tool_calls[0].function.arguments",
        );
    }
}

#[test]
fn reasoning_can_be_switched_off_in_the_prompt() {
    let off = RenderInput { enable_thinking: Some(false), ..hello() };
    assert!(render(CHATML, &off).unwrap().ends_with("assistant\n<think>\n\n</think>\n\n"));
}

#[test]
fn reasoning_is_on_unless_the_request_switches_it_off() {
    let prompt = |end: &str, enable_thinking: Option<bool>| {
        let source = format!("{{{{ messages[0].content }}}}{end}");
        render(&source, &RenderInput { enable_thinking, ..hello() }).unwrap()
    };
    // Reads only its truth value: undefined would close the reasoning.
    let bare = "{{ '<think>\n' }}{% if not enable_thinking %}</think>{% endif %}";
    assert_eq!(prompt(bare, None), "Hi<think>\n");
    assert_eq!(prompt(bare, Some(true)), "Hi<think>\n");
    assert_eq!(prompt(bare, Some(false)), "Hi<think>\n</think>");
    // Defines the meaning of an unset variable itself.
    let asks = "{% if enable_thinking is defined and enable_thinking %}<think>{% endif %}";
    assert_eq!(prompt(asks, None), "Hi");
    let sets = "{% if not enable_thinking is defined %}{% set enable_thinking = false %}{% endif %}{% if enable_thinking %}<think>{% endif %}";
    assert_eq!(prompt(sets, None), "Hi");
    let compares = "{% if enable_thinking == false %}off{% endif %}{% if enable_thinking %}on{% endif %}";
    assert_eq!(prompt(compares, None), "Hion");
    // Always opens it.
    assert_eq!(prompt("{{ '<think>\n' }}", None), "Hi<think>\n");
    assert_eq!(prompt("{{ '<think>\n' }}", Some(false)), "Hi<think>\n\n</think>\n\n");
    assert_eq!(prompt("", Some(false)), "Hi");
}

#[test]
fn kwargs_add_variables_and_replace_none() {
    let with = |name: &str, value: Json| {
        let mut input = hello();
        input.kwargs.insert(name.into(), value);
        render("{{ mood }} {{ messages[0].content }}", &input)
    };
    assert_eq!(with("mood", json!("calm")).unwrap(), "calm Hi");
    for name in RESERVED {
        let error = with(name, json!([])).unwrap_err();
        assert!(error.to_string().contains(&format!("`chat_template_kwargs.{name}`")), "{error}");
    }
    let mut input = hello();
    input.kwargs.insert("documents".into(), json!(["a"]));
    assert_eq!(render("{{ documents[0] }}", &input).unwrap(), "a");
}

#[test]
fn hostile_templates_are_stopped() {
    let forever = "{% macro f() %}{% for i in range(9999) %}{% for j in range(9999) %}{{ i }}{% endfor %}{% endfor %}{% endmacro %}{% for i in range(9999) %}{{ f() }}{% endfor %}";
    assert!(matches!(render(forever, &hello()), Err(TemplateError::OutOfSteps { .. })));
    let recursive = "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}";
    assert!(matches!(render(recursive, &hello()), Err(TemplateError::Failed { .. })));
    let long = "{% set s = 'x' * 10000000 %}{% for i in range(100) %}{{ s }}{% endfor %}";
    assert!(matches!(render(long, &hello()), Err(TemplateError::TooLong { .. })));
    let raises = "{{ raise_exception('no ' + messages[0].role) }}";
    match render(raises, &hello()) {
        Err(TemplateError::Raised { message }) => assert_eq!(message, "no user"),
        other => panic!("{other:?}"),
    }
    assert!(matches!(render("{% if %}", &hello()), Err(TemplateError::Syntax { .. })));
    assert!(matches!(render("{{ messages.nothing.at_all }}", &hello()), Err(TemplateError::Failed { .. })));
    assert!(matches!(render("{{ '%s' - 3 }}", &hello()), Err(TemplateError::Failed { .. })));
}

/// Each of these once ended the server, or blocked it for more than ten seconds.
#[test]
fn memory_is_limited() {
    let check = |source: &str| match render(source, &hello()) {
        Err(TemplateError::OutOfMemory { .. } | TemplateError::OutOfSteps { .. }) => {}
        other => panic!("{source} gives {other:?}"),
    };
    check("{{ 'x' | indent(4000000000, true) }}");
    check("{{ 'x' * 10**9 }}");
    check("{{ 'x'.center(10**12) }}{{ 'x' | center(10**12) }}");
    check("{{ '%999999999999s' % 'x' }}");
    check("{{ [0] * 10**9 }}");
    check("{{ ('x' * 100000) | replace('x', 'y' * 100000) }}");
    check("{{ range(99999) | join('x' * 100000) }}");
    let doubled =
        "{% set ns = namespace(x='x') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}";
    check(doubled);
    check(&doubled.replace('+', "~"));
    check(&doubled.replace("ns.x + ns.x", "[ns.x, ns.x]").replace("{% endfor %}", "{% endfor %}{{ ns.x }}"));
    assert_eq!(render("{{ 'x' | indent(4000000000) }}", &hello()).unwrap(), "x");
}

#[test]
fn deep_values_do_not_overflow_the_stack() {
    let nest = "{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% for j in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}{% endfor %}";
    match render(nest, &hello()) {
        Err(TemplateError::Failed { reason }) => assert!(reason.contains("nested too deeply"), "{reason}"),
        other => panic!("{other:?}"),
    }
    let shown = "{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x | tojson }}";
    assert!(matches!(render(shown, &hello()), Err(TemplateError::Failed { .. })));
}

#[test]
fn a_prompt_marks_the_text_of_the_request() {
    let prompt = ChatTemplate::new(CHATML, "", "").unwrap().render(&hello()).unwrap();
    assert_eq!(prompt.text, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    assert_eq!(prompt.inputs.iter().map(|input| &prompt.text[input.clone()]).collect::<String>(), "Hi");
}

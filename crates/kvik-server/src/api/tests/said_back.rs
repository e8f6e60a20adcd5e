//! Round trips: answers are sent back in any dialect, with tools in any format, and the prompt contains all
//! of them.

use super::*;

/// A template that accesses fields that most requests have, without checking for them.
const STRICT: &str = "{% for t in tools or [] %}[{{ t.function.name + ': ' + t.function.description }}{% for p in t.function.parameters.properties %} {{ p }}{% endfor %}]{% endfor %}\
    {% for m in messages %}<{{ m.role }}>{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}{{ m.content }}\
    {% for c in m.tool_calls or [] %}[{{ c.function.name }}{% for k, v in c.function.arguments.items() %} {{ k }}={{ v }}{% endfor %}]{% endfor %}<|im_end|>{% endfor %}";

/// The routes of the dialects with conversations.
const ROUTES: [&str; 4] = ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat"];

async fn post(server: &Server, path: &str, body: &Value) -> (StatusCode, Value) {
    let headers = [("anthropic-version", "2023-06-01")];
    json_of(server.send_with("POST", path, body.to_string(), &headers).await).await
}

/// Returns the prompt of this request.
async fn prompt(server: &Server, path: &str, body: &Value) -> String {
    let (status, answer) = post(server, path, body).await;
    assert_eq!(status, 200, "{path} {body}: {answer}");
    server.app.serving.texts.tokenizer.decode(&server.asked().prompt)
}

/// Returns a body with these messages in the dialect of a route.
fn body(path: &str, messages: Value) -> Value {
    match path {
        "/v1/responses" => json!({"model": "x", "input": messages}),
        "/v1/messages" => json!({"model": "x", "max_tokens": 99, "messages": messages}),
        _ => json!({"model": "x", "messages": messages, "stream": false}),
    }
}

/// Returns a tool with these fields in addition to its name.
fn tool(path: &str, fields: &Value) -> Value {
    let function = with(json!({"name": "look"}), fields.clone());
    match path {
        "/v1/responses" => with(json!({"type": "function"}), function),
        "/v1/messages" => {
            let schema = fields.get("parameters").filter(|schema| !schema.is_null());
            let mut tool = with(function, json!({"input_schema": schema.unwrap_or(&json!({}))}));
            tool.as_object_mut().unwrap().shift_remove("parameters");
            tool
        }
        _ => json!({"type": "function", "function": function}),
    }
}

#[tokio::test]
async fn tools_need_neither_a_description_nor_parameters() {
    let server = Server::with_template(STRICT, "hi");
    for path in ROUTES {
        for fields in [
            json!({}),
            json!({"description": null}),
            json!({"description": null, "parameters": null}),
            json!({"parameters": {}}),
            json!({"parameters": {"type": "object"}}),
            json!({"description": "", "parameters": {"type": "object", "properties": {}}}),
        ] {
            let tools = json!({"tools": [tool(path, &fields)]});
            let asked = with(body(path, json!([{"role": "user", "content": "hi"}])), tools);
            let text = prompt(&server, path, &asked).await;
            assert!(text.contains("[look: ]"), "{path} {fields}: {text}");
        }
    }
}

/// Returns the messages that a client of a route stores from an answer.
fn kept(path: &str, answer: &Value) -> Vec<Value> {
    match path {
        "/v1/chat/completions" => vec![answer["choices"][0]["message"].clone()],
        "/v1/messages" => vec![json!({"role": "assistant", "content": answer["content"]})],
        "/v1/responses" => answer["output"].as_array().unwrap().clone(),
        _ => vec![answer["message"].clone()],
    }
}

#[tokio::test]
async fn a_call_that_was_cut_off_comes_back() {
    const CUT: &str = "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"city\": \"Oslo\", \"days\": 1";
    // Without a system prompt, because the template renders no other text.
    let whole = "<tool_call>\n{\"name\": \"look\", \"arguments\": ".len();
    for end in [whole + 1, whole + "{\"city\": \"Os".len(), CUT.len()] {
        let cut = CUT[..end].to_owned();
        let server = Server::new(move |request| Ok(say(request, &cut, FinishReason::Length)));
        for path in ROUTES {
            let user = json!({"role": "user", "content": "hi"});
            let schema = json!({"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}});
            let tools = json!({"tools": [tool(path, &json!({"parameters": schema}))]});
            let (status, answer) = post(&server, path, &with(body(path, json!([user])), tools.clone())).await;
            assert_eq!(status, 200, "{path}: {answer}");
            let messages = [vec![user.clone()], kept(path, &answer), vec![user]].concat();
            let text = prompt(&server, path, &with(body(path, json!(messages)), tools)).await;
            assert!(text.contains("look"), "{path}: {text}");
            if end == CUT.len() {
                assert!(text.contains("Oslo"), "{path}: {text}");
            }
        }
    }
}

#[tokio::test]
async fn a_cut_call_of_messages_keeps_its_complete_arguments() {
    let cut = "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"city\": \"Oslo\", \"days\": 1";
    let server = Server::new(move |request| Ok(say(request, cut, FinishReason::Length)));
    for (path, at) in
        [("/v1/messages", "/content/0/input"), ("/api/chat", "/message/tool_calls/0/function/arguments")]
    {
        let tools = json!({"tools": [tool(path, &json!({"parameters": {"type": "object"}}))]});
        let asked = with(body(path, json!([{"role": "user", "content": "hi"}])), tools);
        let (_, answer) = post(&server, path, &asked).await;
        assert_eq!(answer.pointer(at), Some(&json!({"city": "Oslo"})), "{path}: {answer}");
    }
}

#[tokio::test]
async fn reasoning_has_two_names() {
    let server = Server::with_template(STRICT, "hi");
    let path = "/v1/chat/completions";
    for name in ["reasoning_content", "reasoning"] {
        let mut said = json!({"role": "assistant", "content": "Yes."});
        said[name] = json!("I think.");
        let user = json!({"role": "user", "content": "hi"});
        let text = prompt(&server, path, &body(path, json!([user, said, user]))).await;
        assert_eq!(text, "<user>hi<|im_end|><assistant>(I think.)Yes.<|im_end|><user>hi<|im_end|>", "{name}");
    }
}

#[tokio::test]
async fn a_line_for_billing_is_no_part_of_any_prompt() {
    const LINE: &str = "x-anthropic-billing-header: cc_version=2; cch=1f;";
    let server = Server::with_template(STRICT, "hi");
    for path in ROUTES {
        let asked = |system: Value| match path {
            "/v1/messages" => {
                with(body(path, json!([{"role": "user", "content": "hi"}])), json!({"system": system}))
            }
            _ => {
                body(path, json!([{"role": "system", "content": system}, {"role": "user", "content": "hi"}]))
            }
        };
        let kind = if path == "/v1/responses" { "input_text" } else { "text" };
        let block = |text: &str| json!({"type": kind, "text": text});
        let both = format!("{LINE}\nBe brief.");
        let mut systems = vec![json!("Be brief."), json!(both)];
        if path != "/api/chat" {
            systems.extend([json!([block(&both)]), json!([block(LINE), block("Be brief.")])]);
        }
        for system in systems {
            let text = prompt(&server, path, &asked(system.clone())).await;
            // `/v1/messages` disables reasoning at the end.
            assert!(
                text.starts_with("<system>Be brief.<|im_end|><user>hi<|im_end|>"),
                "{path} {system}: {text}"
            );
        }
    }
}

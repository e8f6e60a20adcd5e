//! `/v1/messages`: engine requests, and the format of answers.

use kvik_cache::{Lifetime, RaisedPriority};

use super::*;

const VERSION: [(&str, &str); 1] = [("anthropic-version", "2023-06-01")];

fn ask() -> Value {
    json!({"model": "x", "max_tokens": 50, "messages": [{"role": "user", "content": "Hello there, my friend."}]})
}

async fn post(server: &Server, path: &str, body: &Value) -> (StatusCode, Value) {
    json_of(server.send_with("POST", path, body.to_string(), &VERSION).await).await
}

/// Returns the names and data of a stream's events.
async fn events(server: &Server, body: Value) -> Vec<(String, Value)> {
    let body = with(body, json!({"stream": true})).to_string();
    let response = server.send_with("POST", "/v1/messages", body, &VERSION).await;
    assert_eq!(response.status(), 200);
    let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    let mut events = Vec::new();
    for event in text.split("\n\n").filter(|event| !event.is_empty()) {
        let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).unwrap().to_owned();
        let data: Value = serde_json::from_str(&field("data: ")).unwrap();
        assert_eq!(data["type"], field("event: ").as_str());
        events.push((field("event: "), data));
    }
    events
}

/// Collects the message from a stream as a client does.
fn gathered(events: &[(String, Value)]) -> Value {
    let mut message = Value::Null;
    for (name, data) in events {
        let at = data["index"].as_u64().unwrap_or(0) as usize;
        match name.as_str() {
            "message_start" => message = data["message"].clone(),
            "content_block_start" => {
                assert_eq!(message["content"].as_array().unwrap().len(), at);
                message["content"].as_array_mut().unwrap().push(data["content_block"].clone());
            }
            "content_block_delta" => grow(&mut message["content"][at], &data["delta"]),
            "content_block_stop" => parse_input(&mut message["content"][at]),
            "message_delta" => {
                message.as_object_mut().unwrap().extend(data["delta"].as_object().unwrap().clone());
                for name in ["usage", "kvik", "diagnostics"] {
                    if let Some(value) = data.get(name) {
                        message[name] = value.clone();
                    }
                }
            }
            "message_stop" | "ping" => {}
            other => panic!("{other}"),
        }
    }
    message
}

fn grow(block: &mut Value, delta: &Value) {
    let (field, more) = match delta["type"].as_str().unwrap() {
        "text_delta" => ("text", "text"),
        "thinking_delta" => ("thinking", "thinking"),
        "signature_delta" => ("signature", "signature"),
        "input_json_delta" => ("partial", "partial_json"),
        other => panic!("{other}"),
    };
    let text = format!("{}{}", block[field].as_str().unwrap_or_default(), delta[more].as_str().unwrap());
    block[field] = json!(text);
}

fn parse_input(block: &mut Value) {
    if let Some(partial) = block.as_object_mut().unwrap().remove("partial") {
        block["input"] = serde_json::from_str(partial.as_str().unwrap()).unwrap();
    }
}

/// Removes the fields that differ between answers to the same request.
fn comparable(mut message: Value) -> Value {
    let object = message.as_object_mut().unwrap();
    object.remove("id");
    for block in object["content"].as_array_mut().unwrap() {
        block.as_object_mut().unwrap().remove("id");
    }
    message
}

#[tokio::test]
async fn an_answer_has_every_field_and_its_usage_adds_up() {
    let server = Server::saying("Hi.");
    let (status, answer) = post(&server, "/v1/messages", &ask()).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!((&answer["type"], &answer["role"]), (&json!("message"), &json!("assistant")));
    assert_eq!(answer["content"], json!([{"type": "text", "text": "Hi."}]));
    assert_eq!((&answer["stop_reason"], &answer["stop_sequence"]), (&json!("end_turn"), &Value::Null));
    let count = |name: &str| answer["usage"][name].as_u64().unwrap() as usize;
    let all = count("input_tokens") + count("cache_creation_input_tokens") + count("cache_read_input_tokens");
    assert_eq!((all, count("cache_read_input_tokens")), (server.asked().prompt.len(), 3));
    assert_eq!((count("input_tokens"), count("output_tokens")), (0, 3));
    let private = with(ask(), json!({"kvik": {"cache": "private"}}));
    let (_, answer) = post(&server, "/v1/messages", &private).await;
    assert_eq!(answer["usage"]["cache_creation_input_tokens"], 0, "nothing is left in the cache");
    assert!(answer["usage"]["input_tokens"].as_u64().unwrap() > 0);
}

#[tokio::test]
async fn a_stream_says_what_the_whole_answer_says() {
    for text in SAYINGS {
        let server = Server::saying(text);
        let tool = json!({"name": "look", "input_schema": {"type": "object"}});
        let body = with(ask(), json!({"tools": [tool], "thinking": {"type": "adaptive"}}));
        let (status, whole) = post(&server, "/v1/messages", &body).await;
        assert_eq!(status, 200, "{whole}");
        let events = events(&server, body).await;
        assert_eq!(events[0].0, "message_start", "{text:?}");
        assert_eq!(events.last().unwrap().0, "message_stop");
        assert_eq!(comparable(gathered(&events)), comparable(whole), "{text:?}");
    }
}

#[tokio::test]
async fn why_an_answer_ends_is_said_in_their_words() {
    let check = async |reason: FinishReason, text: &'static str, expect: Value| {
        let server = Server::new(move |request| Ok(say(request, text, reason)));
        let tool = json!({"name": "f", "input_schema": {"type": "object"}});
        let body = with(ask(), json!({"stop_sequences": ["END"], "tools": [tool]}));
        let (_, answer) = post(&server, "/v1/messages", &body).await;
        assert_eq!(json!([answer["stop_reason"], answer["stop_sequence"]]), expect, "{reason:?}");
    };
    check(FinishReason::Eos, "Hi.", json!(["end_turn", null])).await;
    check(FinishReason::Length, "Hi.", json!(["max_tokens", null])).await;
    check(FinishReason::StopString(0), "Hi.", json!(["stop_sequence", "END"])).await;
    let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
    check(FinishReason::Eos, call, json!(["tool_use", null])).await;
}

#[tokio::test]
async fn the_fields_reach_the_engine() {
    let server = Server::saying("Hi.");
    let body = with(
        ask(),
        json!({"temperature": 0.5, "top_p": 0.9, "top_k": 7, "max_tokens": 9, "stop_sequences": ["a", ""]}),
    );
    post(&server, "/v1/messages", &body).await;
    let asked = server.asked();
    let sampling = (asked.sampling.temperature, asked.sampling.top_p, asked.sampling.top_k);
    assert_eq!((sampling, asked.max_tokens, asked.stop), ((0.5, 0.9, 7), 9, vec!["a".to_owned()]));
    assert_eq!(asked.lifetime, Lifetime::default());
    for (ttl, priority, secs) in [(json!(null), 25, 300), (json!("5m"), 25, 300), (json!("1h"), 50, 3600)] {
        let block = json!({"type": "text", "text": "x", "cache_control": {"type": "ephemeral", "ttl": ttl}});
        let (_, answer) = post(&server, "/v1/messages", &with(ask(), json!({"system": [block]}))).await;
        let created = answer["usage"]["cache_creation_input_tokens"].as_u64().unwrap();
        let (minutes, hour) = if secs == 3600 { (0, created) } else { (created, 0) };
        let expect = json!({"ephemeral_5m_input_tokens": minutes, "ephemeral_1h_input_tokens": hour});
        assert_eq!((created > 0, &answer["usage"]["cache_creation"]), (true, &expect), "{ttl}");
        let raised = RaisedPriority { priority, lasts: Duration::from_secs(secs) };
        assert_eq!(
            server.asked().lifetime,
            Lifetime { raised: Some(raised), ..Lifetime::default() },
            "{ttl}"
        );
    }
    let own = json!({"cache_control": {"type": "ephemeral"}, "kvik": {"ttl_s": 60}});
    post(&server, "/v1/messages", &with(ask(), own)).await;
    assert_eq!(server.asked().lifetime.raised, None, "what kvik's own fields say holds");
}

#[tokio::test]
async fn tokens_are_counted_as_they_are_read() {
    let server = Server::saying("Hi.");
    let tool = json!({"name": "f", "input_schema": {"type": "object"}});
    let body = with(ask(), json!({"system": "Be brief.", "tools": [tool]}));
    post(&server, "/v1/messages", &body).await;
    let read = server.asked().prompt.len();
    let mut count = body;
    count.as_object_mut().unwrap().remove("max_tokens");
    assert_eq!(
        post(&server, "/v1/messages/count_tokens", &count).await,
        (StatusCode::OK, json!({"input_tokens": read}))
    );
}

#[tokio::test]
async fn a_miss_is_diagnosed_in_their_words() {
    let server = Server::saying("Hi.");
    let none = with(ask(), json!({"system": "one", "diagnostics": {"previous_message_id": null}}));
    let (_, first) = post(&server, "/v1/messages", &none).await;
    assert_eq!(first["diagnostics"], json!({"cache_miss_reason": null}));
    let compared =
        |more: Value| with(with(ask(), json!({"diagnostics": {"previous_message_id": first["id"]}})), more);
    let reason = async |body: Value| {
        let (_, answer) = post(&server, "/v1/messages", &body).await;
        answer["diagnostics"]["cache_miss_reason"]["type"].clone()
    };
    assert_eq!(reason(compared(json!({"system": "two"}))).await, "system_changed");
    let tool = json!([{"name": "f", "input_schema": {"type": "object"}}]);
    assert_eq!(reason(compared(json!({"system": "one", "tools": tool}))).await, "tools_changed");
    let other = json!([{"role": "user", "content": "Something else entirely, of some length."}]);
    assert_eq!(reason(compared(json!({"system": "one", "messages": other}))).await, "messages_changed");
    let unknown = with(ask(), json!({"diagnostics": {"previous_message_id": "msg_0"}}));
    assert_eq!(reason(unknown).await, "previous_message_not_found");
}

#[tokio::test]
async fn bad_input_is_refused_in_their_shape_by_its_name() {
    let server = Server::saying("Hi.");
    let check = async |body: Value, at: &str| {
        let (status, error) = post(&server, "/v1/messages", &body).await;
        assert_eq!(status, 400, "{error}");
        assert_eq!(
            (&error["type"], &error["error"]["type"]),
            (&json!("error"), &json!("invalid_request_error"))
        );
        assert_eq!(error["error"]["param"], at, "{error}");
        assert!(error["error"]["message"].as_str().unwrap().contains(at), "{error}");
        assert!(error["request_id"].as_str().unwrap().starts_with("req_"));
    };
    check(json!({"messages": []}), "max_tokens").await;
    check(with(ask(), json!({"max_tokens": -1})), "max_tokens").await;
    check(with(ask(), json!({"max_tokens": "many"})), "max_tokens").await;
    check(with(ask(), json!({"messages": []})), "messages").await;
    check(with(ask(), json!({"temperature": 1.5})), "temperature").await;
    check(with(ask(), json!({"tools": [{"name": "f"}]})), "tools[0].input_schema").await;
    check(with(ask(), json!({"tool_choice": {"type": "tool", "name": "f"}})), "tool_choice").await;
    check(with(ask(), json!({"thinking": {"type": "much"}})), "thinking.type").await;
    let edit = json!({"edits": [{"type": 7}]});
    check(with(ask(), json!({"context_management": edit})), "context_management.edits[0].type").await;
    let image = json!([{"role": "user", "content": [{"type": "image", "source": {}}]}]);
    check(with(ask(), json!({"messages": image})), "messages[0].content[0].type").await;
    let nonsense = json!({"type": "json_schema", "schema": {"type": "nonsense"}});
    let config = json!({"format": nonsense});
    check(with(ask(), json!({"output_config": config})), "output_config.format.schema.type").await;
    check(with(ask(), json!({"output_format": nonsense})), "output_format.schema.type").await;
    let object = json!({"type": "json_schema", "schema": {"type": "object"}});
    check(with(ask(), json!({"output_config": config, "output_format": object})), "output_format").await;
}

/// `output_format` is the name of Anthropic's beta.
#[tokio::test]
async fn the_form_of_an_answer_has_an_older_name() {
    let server = Server::saying("{}");
    let format = json!({"type": "json_schema", "schema": {"type": "object"}});
    let mut constraints = Vec::new();
    for fields in [
        json!({"output_config": {"format": format}}),
        json!({"output_format": format}),
        json!({"output_format": format, "output_config": {"effort": "low"}}),
        json!({"output_format": format, "output_config": {"format": format}}),
    ] {
        let (status, answer) = post(&server, "/v1/messages", &with(ask(), fields)).await;
        assert_eq!(status, 200, "{answer}");
        constraints.push(server.asked().constraint);
    }
    assert!(constraints[0].is_some());
    assert!(constraints.iter().all(|constraint| *constraint == constraints[0]), "{constraints:?}");
}

/// A request for no tokens fills the cache ahead of a question. The second prompt fills the context.
#[tokio::test]
async fn an_answer_of_no_tokens_has_no_content() {
    for prompt_tokens in [9, 2048] {
        let server = Server::new(move |request| {
            let computed_tokens = prompt_tokens - 3;
            let report = Report { prompt_tokens, cached_tokens: 3, computed_tokens, ..report(request, 0) };
            Ok(vec![Event::Finished { choice: 0, reason: FinishReason::Length }, Event::Done(report)])
        });
        let body = with(ask(), json!({"max_tokens": 0}));
        let (status, whole) = post(&server, "/v1/messages", &body).await;
        assert_eq!((status.as_u16(), server.asked().max_tokens), (200, 0), "{whole}");
        assert_eq!((&whole["content"], &whole["stop_reason"]), (&json!([]), &json!("max_tokens")));
        let count = |name: &str| whole["usage"][name].as_u64().unwrap() as usize;
        assert_eq!((count("cache_read_input_tokens"), count("output_tokens")), (3, 0));
        assert_eq!(count("cache_creation_input_tokens"), prompt_tokens - 3);
        let events = events(&server, body).await;
        assert_eq!(comparable(gathered(&events)), comparable(whole));
    }
}

#[tokio::test]
async fn a_version_that_is_unknown_is_refused_and_none_is_needed() {
    let server = Server::saying("Hi.");
    for path in ["/v1/messages", "/v1/messages/count_tokens"] {
        let ask = async |headers: &[(&str, &str)]| {
            json_of(server.send_with("POST", path, ask().to_string(), headers).await).await
        };
        assert_eq!(ask(&[]).await.0, 200);
        let (status, error) = ask(&[("anthropic-version", "2019-01-01")]).await;
        assert_eq!((status.as_u16(), &error["type"]), (400, &json!("error")), "{error}");
        assert_eq!(error["error"]["param"], "anthropic-version");
    }
}

/// Fields, tools, blocks and edits that only Anthropic's servers support.
#[tokio::test]
async fn what_is_not_known_here_is_ignored_and_said() {
    let server = Server::saying("Hi.");
    let body = with(
        ask(),
        json!({
            "presence_penalty": 1, "container": {"id": "x"}, "mcp_servers": [{"type": "url"}],
            "thinking": {"type": "enabled", "budget_tokens": 1024, "depth": 3}, "output_config": {"effort": "low", "tone": "x"},
            "context_management": {"edits": [{"type": "clear_tool_uses_20250919", "keep": {}}], "more": 1},
            "tools": [
                {"name": "look", "input_schema": {"type": "object"}, "colour": "red"},
                {"type": "bash_20250124", "name": "bash"}, {"type": "web_search_20250305", "name": "web_search"},
                {"type": "mcp_toolset", "mcp_server_name": "x"},
            ],
        }),
    );
    let (status, told) = post(&server, "/v1/messages", &body).await;
    assert_eq!(status, 200, "{told}");
    let notes: Vec<&str> =
        told["kvik"]["notes"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    for named in [
        "`presence_penalty`",
        "`container`",
        "`mcp_servers`",
        "`thinking.depth`",
        "`output_config.tone`",
        "`context_management.edits[0]`",
        "`context_management.more`",
        "`tools[0].colour`",
        "`tools[2]`",
        "`tools[3]`",
    ] {
        assert!(notes.iter().any(|note| note.contains(named)), "{named} is not among {notes:#?}");
    }
    assert_eq!(notes.len(), 10, "{notes:#?}");
}

/// A model is given the schema of a tool that Anthropic defines by its type alone.
#[tokio::test]
async fn tools_that_anthropic_names_and_clients_run_are_offered() {
    let template = "{{ tools | tojson }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    let server = Server::with_template(template, "Hi.");
    for (tool, names) in [
        (json!({"type": "bash_20250124", "name": "bash"}), ["\"bash\"", "restart"]),
        (
            json!({"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 9}),
            ["str_replace_based_edit_tool", "insert_line"],
        ),
        (json!({"type": "memory_20250818", "name": "memory"}), ["\"memory\"", "/memories"]),
    ] {
        let (status, told) = post(&server, "/v1/messages", &with(ask(), json!({"tools": [tool]}))).await;
        assert_eq!((status.as_u16(), &told["kvik"]["notes"]), (200, &Value::Null), "{told}");
        let read = server.app.serving.texts.tokenizer.decode(&server.asked().prompt);
        assert!(names.iter().all(|name| read.contains(name)), "{read}");
    }
}

/// A thread as the tool runners of Anthropic's SDKs use it: it is created, then only new messages are sent.
#[tokio::test]
async fn a_thread_goes_on_from_what_was_kept_of_it() {
    let template =
        "{{ tools | tojson if tools }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    let server = Server::with_template(template, "Hi.");
    let tool = json!({"name": "look", "input_schema": {"type": "object"}});
    let begun = with(ask(), json!({"system": "Be brief.", "tools": [tool], "thread": {"type": "create"}}));
    let (status, first) = post(&server, "/v1/messages", &begun).await;
    assert_eq!(status, 200, "{first}");
    let next = |previous: &Value, text: &str| {
        let thread = json!({"type": "continue", "previous_message_id": previous});
        json!({"model": "x", "max_tokens": 50, "thread": thread, "messages": [{"role": "user", "content": text}]})
    };
    let read = || server.app.serving.texts.tokenizer.decode(&server.asked().prompt);
    let (status, second) = post(&server, "/v1/messages", &next(&first["id"], "And you?")).await;
    assert_eq!(status, 200, "{second}");
    let so_far = "<system>Be brief.<user>Hello there, my friend.<assistant>Hi.<user>And you?";
    assert!(read().contains(so_far) && read().contains("look"), "{}", read());
    let count = next(&first["id"], "And you?");
    let (status, counted) = post(&server, "/v1/messages/count_tokens", &count).await;
    assert_eq!((status.as_u16(), &counted["input_tokens"]), (200, &json!(server.asked().prompt.len())));
    post(&server, "/v1/messages", &next(&second["id"], "Well?")).await;
    assert!(
        read().contains(&format!("{so_far}<assistant>Hi.<user>Well?")) && read().contains("look"),
        "{}",
        read()
    );
    for path in ["/v1/messages", "/v1/messages/count_tokens"] {
        let twice = with(next(&second["id"], "Well?"), json!({"kvik": {"conversation": "diary"}}));
        let (status, error) = post(&server, path, &twice).await;
        assert_eq!((status.as_u16(), &error["error"]["param"]), (400, &json!("thread")), "{path}: {error}");
    }
    // By the error's code, clients resend the whole conversation if a thread is not found.
    let private = with(begun, json!({"kvik": {"cache": "private"}}));
    let (_, private) = post(&server, "/v1/messages", &private).await;
    assert!(private["kvik"]["notes"][0].as_str().unwrap().contains("`thread`"), "{private}");
    for id in [&private["id"], &json!("msg_0")] {
        let (status, error) = post(&server, "/v1/messages", &next(id, "x")).await;
        assert_eq!(
            (status.as_u16(), &error["error"]["details"]["error_code"]),
            (404, &json!("thread_not_found"))
        );
    }
}

#[tokio::test]
async fn a_stream_that_fails_ends_with_an_error_of_theirs() {
    let server = Server::breaking();
    let events = events(&server, ask()).await;
    let (name, last) = events.last().unwrap();
    assert_eq!((name.as_str(), &last["error"]["type"]), ("error", &json!("api_error")));
}

//! Ollama's routes: engine requests, and the format of answers.

use super::*;

/// Returns the lines of a stream.
async fn lines(server: &Server, path: &str, body: Value) -> Vec<Value> {
    let response = server.send("POST", path, body.to_string()).await;
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()[header::CONTENT_TYPE], "application/x-ndjson");
    let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn whole(body: Value) -> Value {
    with(body, json!({"stream": false}))
}

fn question() -> Value {
    json!({"model": "x", "prompt": "Why?"})
}

/// Returns the joined text and the joined thoughts of lines.
fn said(lines: &[Value], text: &str) -> (String, String) {
    let join = |pointer: &str| lines.iter().filter_map(|line| line.pointer(pointer)?.as_str()).collect();
    match text {
        "content" => (join("/message/content"), join("/message/thinking")),
        _ => (join("/response"), join("/thinking")),
    }
}

#[tokio::test]
async fn a_chat_streams_lines_that_say_what_the_whole_says() {
    for text in ["Hi.", "<think>\nLet me see.\n</think>\n\nIt is so.", ""] {
        let server = Server::saying(text);
        let (status, answer) = server.post("/api/chat", whole(hello())).await;
        assert_eq!(status, 200, "{answer}");
        let lines = lines(&server, "/api/chat", hello()).await;
        let (content, thoughts) = said(&lines, "content");
        assert_eq!(answer["message"]["content"], content.as_str());
        assert_eq!(answer["message"]["thinking"].as_str().unwrap_or_default(), thoughts);
        let last = lines.last().unwrap();
        assert_eq!((&last["done"], &last["done_reason"]), (&json!(true), &json!("stop")));
        for name in ["prompt_eval_count", "eval_count", "total_duration", "kvik"] {
            assert_eq!(last[name], answer[name], "{name}");
        }
        assert!(lines[..lines.len() - 1].iter().all(|line| line["done"] == false));
    }
}

#[tokio::test]
async fn the_whole_duration_is_that_since_the_request_came() {
    let server = Server::taking(Duration::from_millis(700));
    for (path, body) in [("/api/chat", hello()), ("/api/generate", question())] {
        let (_, answer) = server.post(path, whole(body.clone())).await;
        assert_eq!(answer["total_duration"], 700_000_000, "{path}: {answer}");
        let lines = lines(&server, path, body).await;
        assert_eq!(lines.last().unwrap()["total_duration"], 700_000_000, "{path}");
        assert_eq!(answer["load_duration"], 0, "the model was there: {answer}");
    }
}

#[tokio::test]
async fn calls_have_objects_as_arguments() {
    let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>";
    let server = Server::saying(call);
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}});
    let body = with(hello(), json!({"tools": [tool]}));
    let (_, answer) = server.post("/api/chat", whole(body.clone())).await;
    let function = &answer["message"]["tool_calls"][0]["function"];
    assert_eq!(function, &json!({"index": 0, "name": "f", "arguments": {"x": 1}}));
    let lines = lines(&server, "/api/chat", body).await;
    let calls = lines.iter().find_map(|line| line.pointer("/message/tool_calls/0/function"));
    assert_eq!(calls, Some(function));
}

#[tokio::test]
async fn a_prompt_goes_on_from_the_context_of_an_answer() {
    let server = Server::saying("Hi.");
    let (_, first) = server.post("/api/generate", whole(question())).await;
    assert_eq!(first["response"], "Hi.");
    let prompt = server.asked().prompt;
    let context: Vec<u32> = serde_json::from_value(first["context"].clone()).unwrap();
    assert_eq!(context, [&prompt[..], &[100, 101, 102]].concat());
    for (raw, before) in [(false, vec![]), (false, context.clone()), (true, vec![]), (true, context.clone())]
    {
        let fields = json!({"context": before, "raw": raw});
        server.post("/api/generate", whole(with(question(), fields.clone()))).await;
        assert_eq!(server.asked().prompt_is_text, before.is_empty(), "{fields}");
    }
    server.post("/api/generate", whole(with(question(), json!({"context": context})))).await;
    assert_eq!(server.asked().prompt, [&context[..], &prompt].concat());
    let (_, raw) = server.post("/api/generate", whole(with(question(), json!({"raw": true})))).await;
    assert!(raw.get("context").is_none());
    assert!(server.asked().prompt.len() < prompt.len(), "no template around it");
}

#[tokio::test]
async fn options_reach_the_engine_by_their_names() {
    let server = Server::saying("Hi.");
    let options = json!({"temperature": 0, "top_k": 5, "top_p": 0.5, "min_p": 0.1, "seed": 7, "num_predict": 9,
        "stop": ["END"], "repeat_penalty": 1.1, "repeat_last_n": 3, "num_ctx": 4096, "num_gpu": 99});
    server.post("/api/chat", whole(with(hello(), json!({"options": options})))).await;
    let asked = server.asked();
    assert_eq!((asked.sampling.temperature, asked.sampling.top_k, asked.sampling.seed), (0.0, 5, 7));
    assert_eq!((asked.sampling.repetition_penalty, asked.sampling.penalty_last_n), (1.1, 3));
    assert_eq!((asked.max_tokens, asked.stop), (9, vec!["END".to_owned()]));
}

/// Ollama stops at `num_predict` only where it is above 0.
#[tokio::test]
async fn a_length_of_zero_is_no_limit() {
    let server = Server::saying("Hi.");
    for (path, body) in [("/api/chat", hello()), ("/api/generate", question())] {
        let mut lengths = Vec::new();
        for options in [json!({}), json!({"num_predict": 0})] {
            server.post(path, whole(with(body.clone(), json!({"options": options})))).await;
            lengths.push(server.asked().max_tokens);
        }
        assert!(lengths[0] > 0 && lengths[1] == lengths[0], "{path}: {lengths:?}");
    }
}

#[tokio::test]
async fn what_asks_for_nothing_loads_what_is_loaded() {
    let server = Server::saying("Hi.");
    for (path, body) in
        [("/api/chat", json!({"model": "x", "messages": []})), ("/api/generate", json!({"model": "x"}))]
    {
        for (stays, reason) in [(json!("5m"), "load"), (json!(0), "unload"), (json!("0s"), "unload")] {
            let (status, answer) = server.post(path, with(body.clone(), json!({"keep_alive": stays}))).await;
            assert_eq!((status.as_u16(), &answer["done_reason"]), (200, &json!(reason)), "{path} {stays}");
        }
    }
    for (path, body, field) in [
        ("/api/embed", json!({"model": "x"}), "embeddings"),
        ("/api/embed", json!({"model": "x", "input": ""}), "embeddings"),
        ("/api/embed", json!({"model": "x", "input": [], "keep_alive": "5m0s"}), "embeddings"),
        ("/api/embeddings", json!({"model": "x", "keep_alive": 0}), "embedding"),
        ("/api/embeddings", json!({"model": "x", "prompt": ""}), "embedding"),
    ] {
        let (status, answer) = server.post(path, body).await;
        assert_eq!((status.as_u16(), &answer[field]), (200, &json!([])), "{path} {answer}");
    }
    assert!(server.engine.asked.lock().unwrap().is_empty());
}

#[tokio::test]
async fn the_one_model_is_listed_shown_and_running() {
    let server = Server::saying("Hi.");
    let weights = server.app.serving.model.bytes;
    for (path, size) in [("/api/tags", weights), ("/api/ps", server.app.bytes_used())] {
        let (status, answer) = server.get(path).await;
        assert_eq!((status.as_u16(), answer["models"].as_array().unwrap().len()), (200, 1), "{answer}");
        assert_eq!(answer["models"][0]["name"], server.app.serving.model.name);
        assert_eq!(answer["models"][0]["size"], size, "{path}");
    }
    let (_, shown) = server.post("/api/show", json!({"model": "anything"})).await;
    assert_eq!(shown["capabilities"][0], "completion");
    assert_eq!(shown["model_info"]["general.architecture"], "llama");
    assert!(server.get("/api/version").await.1["version"].is_string());
    for (template, thinks) in
        [("{% if thinking %}x{% endif %}{{ messages }}", true), ("{{ messages }}{{ tools }}", false)]
    {
        let server = Server::with_template(template, "Hi.");
        let (_, shown) = server.post("/api/show", json!({"model": "anything"})).await;
        let capabilities = shown["capabilities"].as_array().unwrap();
        assert_eq!(capabilities.contains(&json!("thinking")), thinks, "{template}: {shown}");
    }
}

#[tokio::test]
async fn what_concerns_other_models_is_refused_with_what_to_do_instead() {
    const BODY: &str = r#"{"model": "hf.co/o/r", "source": "x", "destination": "y"}"#;
    let server = Server::saying("Hi.");
    for (method, path) in [
        ("POST", "/api/pull"),
        ("POST", "/api/push"),
        ("POST", "/api/create"),
        ("POST", "/api/copy"),
        ("DELETE", "/api/delete"),
    ] {
        let (status, error) = json_of(server.send(method, path, BODY).await).await;
        assert_eq!(status, 501, "{path}");
        let instead = ["kvik serve --shelf", "nothing is sent", "config.toml"];
        assert!(instead.iter().any(|words| error["error"].as_str().unwrap().contains(words)), "{error}");
    }
}

#[tokio::test]
async fn bad_input_is_refused_in_their_shape_by_its_name() {
    let server = Server::saying("Hi.");
    let check = async |path: &str, body: Value, at: &str| {
        let (status, error) = server.post(path, body).await;
        let text = error["error"].as_str().unwrap_or_else(|| panic!("{error}"));
        assert!(status == 400 && text.contains(&format!("`{at}`")), "{status} {text}");
    };
    let chat = |more: Value| with(hello(), more);
    check("/api/chat", chat(json!({"messages": "hi"})), "messages").await;
    check("/api/chat", chat(json!({"stream": "no"})), "stream").await;
    check("/api/chat", chat(json!({"options": []})), "options").await;
    check("/api/chat", chat(json!({"options": {"top_p": 3}})), "options.top_p").await;
    check("/api/chat", chat(json!({"options": {"num_predict": "all"}})), "options.num_predict").await;
    check("/api/chat", chat(json!({"options": {"mirostat": 2}})), "options.mirostat").await;
    check("/api/chat", chat(json!({"format": 7})), "format").await;
    check("/api/chat", chat(json!({"format": {"type": "nonsense"}})), "format.type").await;
    for think in ["much", "none", "minimal", "xhigh"] {
        check("/api/chat", chat(json!({"think": think})), "think").await;
    }
    check("/api/chat", chat(json!({"tools": [{"function": {}}]})), "tools[0].function.name").await;
    let image = json!([{"role": "user", "content": "x", "images": ["aGk="]}]);
    check("/api/chat", json!({"messages": image}), "messages[0].images").await;
    let ask = |more: Value| with(question(), more);
    check("/api/generate", ask(json!({"template": "x"})), "template").await;
    check("/api/generate", ask(json!({"context": ["x"]})), "context[0]").await;
    check("/api/generate", ask(json!({"kvik": {"memory": true}})), "kvik.memory").await;
    check("/api/embed", json!({"input": [""]}), "input").await;
    check("/api/embed", json!({"input": ["a", ""]}), "input[1]").await;
    check("/api/embed", json!({"input": "a", "dimensions": "all"}), "dimensions").await;
    assert!(server.engine.asked.lock().unwrap().is_empty(), "nothing is computed for it");
}

#[tokio::test]
async fn where_names_are_strict_another_models_is_not_loaded() {
    let strict = AppConfig { strict_model: true, ..config() };
    let server = Server::build(|request| Ok(say(request, "Hi.", FinishReason::Eos)), Keys::new([]), strict);
    for path in ["/api/chat", "/api/generate", "/api/embed", "/api/embeddings"] {
        for (model, expect) in [("kvik", 200), ("llama3", 404)] {
            let (status, answer) = server.post(path, json!({"model": model})).await;
            assert_eq!(status.as_u16(), expect, "{path} {model}: {answer}");
        }
    }
}

/// A request that only loads the model is read like any other.
#[tokio::test]
async fn a_keep_alive_that_is_no_time_is_refused() {
    let server = Server::saying("Hi.");
    for (path, asked) in [
        ("/api/chat", hello()),
        ("/api/chat", json!({"messages": []})),
        ("/api/generate", question()),
        ("/api/generate", json!({})),
        ("/api/embed", json!({"input": "One."})),
        ("/api/embed", json!({})),
        ("/api/embeddings", json!({"prompt": ""})),
    ] {
        for stays in [json!("soon"), json!(""), json!("5 m"), json!(1e300), json!(true), json!([5])] {
            let (status, error) = server.post(path, with(asked.clone(), json!({"keep_alive": stays}))).await;
            let text = error["error"].as_str().unwrap_or_else(|| panic!("{path} {stays}: {error}"));
            assert!(status == 400 && text.starts_with("`keep_alive` must be"), "{path} {stays}: {text}");
        }
    }
}

#[tokio::test]
async fn a_stream_that_fails_ends_with_an_error_of_theirs() {
    let server = Server::breaking();
    let lines = lines(&server, "/api/chat", hello()).await;
    assert!(lines.last().unwrap()["error"].as_str().unwrap().contains("broken"));
}

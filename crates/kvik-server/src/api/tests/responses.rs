//! `/v1/responses`: engine requests, the format of answers, and stored answers.

use kvik_memory::deletions::Owner;

use super::*;
use crate::accounts::tenants::DEFAULT_NAME;

fn ask(input: impl Into<Value>) -> Value {
    json!({"model": "x", "input": input.into()})
}

async fn answer(server: &Server, body: Value) -> Value {
    let (status, answer) = server.post("/v1/responses", body).await;
    assert_eq!(status, 200, "{answer}");
    answer
}

/// Returns the events of a stream and checks that they are numbered consecutively.
async fn events(server: &Server, body: Value) -> Vec<Value> {
    let data = server.stream("/v1/responses", with(body, json!({"stream": true}))).await;
    let events: Vec<Value> = data.iter().map(|data| serde_json::from_str(data).unwrap()).collect();
    for (at, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], at, "{event}");
    }
    events
}

/// Collects items from a stream as a client does, and checks that the deltas agree with the final texts.
fn gathered(events: &[Value]) -> Vec<Value> {
    let mut items: Vec<Value> = Vec::new();
    let mut text = String::new();
    for event in events {
        match event["type"].as_str().unwrap() {
            "response.output_item.added" => {
                assert_eq!(event["output_index"], items.len());
                text.clear();
                items.push(event["item"].clone());
            }
            "response.output_text.delta"
            | "response.reasoning_text.delta"
            | "response.function_call_arguments.delta"
            | "response.custom_tool_call_input.delta" => {
                assert_eq!(event["item_id"], items.last().unwrap()["id"]);
                text.push_str(event["delta"].as_str().unwrap());
            }
            "response.output_text.done" | "response.reasoning_text.done" => {
                assert_eq!(event["text"], text.as_str())
            }
            "response.function_call_arguments.done" => assert_eq!(event["arguments"], text.as_str()),
            "response.custom_tool_call_input.done" => assert_eq!(event["input"], text.as_str()),
            "response.output_item.done" => *items.last_mut().unwrap() = event["item"].clone(),
            _ => {}
        }
    }
    items
}

/// Removes the fields that differ between any two answers.
fn comparable(items: &[Value]) -> Vec<Value> {
    let mut items = items.to_vec();
    for item in &mut items {
        let item = item.as_object_mut().unwrap();
        item.remove("id");
        item.remove("call_id");
    }
    items
}

#[tokio::test]
async fn an_answer_has_the_fields_that_clients_read() {
    let server = Server::saying("Hi.");
    let body = with(ask("Hello there, my friend."), json!({"metadata": {"a": "b"}, "temperature": 0.5}));
    let answer = answer(&server, body).await;
    assert_eq!((&answer["object"], &answer["status"]), (&json!("response"), &json!("completed")));
    assert_eq!(answer["output"][0]["content"][0]["text"], "Hi.");
    assert_eq!((&answer["metadata"], &answer["temperature"]), (&json!({"a": "b"}), &json!(0.5)));
    let usage = &answer["usage"];
    assert_eq!(usage["input_tokens"], server.asked().prompt.len());
    assert_eq!(
        (&usage["input_tokens_details"]["cached_tokens"], &usage["output_tokens"]),
        (&json!(3), &json!(3))
    );
    assert_eq!(answer["kvik"]["cache"]["cached_tokens"], 3);
}

#[tokio::test]
async fn what_an_answer_gives_back_has_openais_limits() {
    let server = Server::saying("Hi.");
    let long = |chars: usize| json!("é".repeat(chars));
    for field in ["prompt_cache_key", "safety_identifier", "user"] {
        answer(&server, with(ask("Hello."), json!({field: long(512)}))).await;
        let (status, answer) =
            server.post("/v1/responses", with(ask("Hello."), json!({field: long(513)}))).await;
        assert_eq!((status.as_u16(), &answer["error"]["param"]), (400, &json!(field)), "{answer}");
    }
    answer(&server, with(ask("Hello."), json!({"metadata": {"a": long(512)}}))).await;
    for (metadata, at) in [
        (json!({"a": long(513)}), "metadata.a"),
        (json!({"a": {}}), "metadata.a"),
        (json!(["a"]), "metadata"),
    ] {
        let (status, answer) =
            server.post("/v1/responses", with(ask("Hello."), json!({"metadata": metadata}))).await;
        assert_eq!((status.as_u16(), &answer["error"]["param"]), (400, &json!(at)), "{answer}");
    }
}

/// All of it filled the memory: a stream began with two copies of what it gives back, and the messages of a chat are
/// kept until its end.
#[tokio::test]
async fn what_is_kept_of_a_request_counts_until_its_answer_is_read() {
    let server = Server::saying("Hi.");
    let (long, taken) = ("x".repeat(500_000), || server.app.server.bodies.taken());
    let prompt = "x ".repeat(750);
    let message = |more: Value| with(json!({"role": "user", "content": "Hello."}), more);
    for (path, fields, expect) in [
        (
            "/v1/responses",
            json!({"input": "Hello.", "reasoning": {"summary": long}, "store": false}),
            1_700_000..1_900_000,
        ),
        ("/v1/chat/completions", json!({"messages": [message(json!({"x": long}))]}), 250_000..400_000),
        ("/v1/completions", json!({"prompt": prompt, "n": 64, "echo": true}), 50_000..150_000),
        ("/completion", json!({"prompt": prompt, "n": 64}), 30_000..320_000),
        // Words stand in the place of pictures, whose data is not kept.
        (
            "/v1/chat/completions",
            json!({"messages": [
                message(json!({"content": [{"type": "image_url", "image_url": {"url": long}}]})),
                {"role": "assistant", "content": "I see."},
                message(json!({})),
            ]}),
            0..1,
        ),
    ] {
        let unread = server.send("POST", path, with(fields, json!({"stream": true})).to_string()).await;
        assert_eq!(unread.status(), 200);
        assert!(expect.contains(&taken()), "{path}: {}", taken());
        drop(unread);
        assert_eq!(taken(), 0, "{path}");
    }
}

#[tokio::test]
async fn a_stream_says_what_the_whole_answer_says() {
    for text in SAYINGS {
        let server = Server::saying(text);
        let tool = json!({"type": "function", "name": "look", "parameters": {"type": "object"}});
        let more = json!({"tools": [tool], "include": ["reasoning.encrypted_content", "message.output_text.logprobs"]});
        let body = with(ask("Hello there, my friend."), more);
        let whole = answer(&server, body.clone()).await;
        let events = events(&server, body).await;
        let last = events.last().unwrap();
        assert_eq!(
            (&events[0]["type"], &last["type"]),
            (&json!("response.created"), &json!("response.completed"))
        );
        let output = last["response"]["output"].as_array().unwrap();
        assert_eq!(&gathered(&events), output, "{text:?}");
        assert_eq!(comparable(output), comparable(whole["output"].as_array().unwrap()), "{text:?}");
        assert_eq!(last["response"]["usage"], whole["usage"]);
    }
}

#[tokio::test]
async fn an_answer_that_is_cut_off_is_incomplete() {
    let server = Server::new(|request| Ok(say(request, "Hi", FinishReason::Length)));
    let whole = answer(&server, ask("Hello.")).await;
    assert_eq!(whole["status"], "incomplete");
    assert_eq!(whole["incomplete_details"]["reason"], "max_output_tokens");
    let events = events(&server, ask("Hello.")).await;
    assert_eq!(events.last().unwrap()["type"], "response.incomplete");
}

#[tokio::test]
async fn thoughts_are_counted_and_read_again_from_what_stands_for_them() {
    let server = Server::saying("<think>\nLet me see.\n</think>\n\nIt is so.");
    let sealing = json!({"include": ["reasoning.encrypted_content"], "store": false});
    let first = answer(&server, with(ask("Why?"), sealing)).await;
    assert!(first["usage"]["output_tokens_details"]["reasoning_tokens"].as_u64().unwrap() > 5);
    let mut items = first["output"].as_array().unwrap().clone();
    items[0].as_object_mut().unwrap().remove("content");
    let history = |items: &[Value]| {
        let mut input = vec![json!({"role": "user", "content": "Why?"})];
        input.extend_from_slice(items);
        input.push(json!({"role": "user", "content": "And?"}));
        ask(input)
    };
    answer(&server, history(first["output"].as_array().unwrap())).await;
    let with_text = server.asked().prompt;
    answer(&server, history(&items)).await;
    assert_eq!(server.asked().prompt, with_text);
}

#[tokio::test]
async fn an_answer_is_gone_on_from_by_its_id() {
    let server = Server::saying("Hi.");
    let first = answer(&server, with(ask("One?"), json!({"instructions": "Be brief."}))).await;
    let id = first["id"].as_str().unwrap();
    let second = with(ask("Two?"), json!({"previous_response_id": id}));
    let second = answer(&server, second).await;
    let read = server.asked().prompt;
    let said = json!([
        {"role": "user", "content": "One?"}, {"role": "assistant", "content": "Hi."}, {"role": "user", "content": "Two?"},
    ]);
    answer(&server, ask(said)).await;
    assert_eq!(
        server.asked().prompt,
        read,
        "the same as if all of it were sent, without the old instructions"
    );
    let branch = with(ask("Other?"), json!({"previous_response_id": id}));
    answer(&server, branch).await;
    assert!(server.asked().prompt.len() < read.len() + 4, "a branch knows nothing of the other");

    let (status, shown) = server.get(&format!("/v1/responses/{id}")).await;
    assert_eq!((status.as_u16(), &shown), (200, &first));
    // A client reads its events, and would find none.
    let (status, refused) = server.get(&format!("/v1/responses/{id}?stream=true&starting_after=3")).await;
    assert_eq!((status.as_u16(), &refused["error"]["param"]), (400, &json!("stream")), "{refused}");
    let (_, items) = server.get(&format!("/v1/responses/{id}/input_items")).await;
    assert_eq!(items["data"][0]["content"][0]["text"], "One?");
    let (status, gone) = json_of(server.send("DELETE", &format!("/v1/responses/{id}"), "").await).await;
    assert_eq!((status.as_u16(), &gone["deleted"]), (200, &json!(true)));
    let (status, error) = server.get(&format!("/v1/responses/{id}")).await;
    assert_eq!((status.as_u16(), &error["error"]["code"]), (404, &json!("response_not_found")));
    let broken = with(ask("Three?"), json!({"previous_response_id": second["id"]}));
    let (status, error) = server.post("/v1/responses", broken).await;
    assert_eq!((status.as_u16(), &error["error"]["param"]), (404, &json!("previous_response_id")));
}

#[tokio::test]
async fn what_an_answer_was_given_is_listed_page_by_page() {
    let server = Server::saying("Hi.");
    let said = |role: &str, text: &str| json!({"role": role, "content": text});
    let given = json!([said("user", "One?"), said("assistant", "Hi."), said("user", "Two?")]);
    let answered = answer(&server, ask(given)).await;
    let path = format!("/v1/responses/{}/input_items?order=asc&limit=2", answered["id"].as_str().unwrap());
    let (_, first) = server.get(&path).await;
    let last = first["last_id"].as_str().unwrap_or_else(|| panic!("{first}"));
    assert_eq!((&first["data"][1]["type"], &first["has_more"]), (&json!("message"), &json!(true)));
    let (status, rest) = server.get(&format!("{path}&after={last}")).await;
    assert_eq!((status.as_u16(), &rest["data"][0]["content"]), (200, &json!("Two?")), "{rest}");
    assert_eq!((rest["data"].as_array().unwrap().len(), &rest["has_more"]), (1, &json!(false)));
}

fn reference(id: &Value) -> Value {
    json!({"type": "item_reference", "id": id})
}

/// Vercel's AI SDK sends the ids of items instead of the items that an answer had.
#[tokio::test]
async fn an_item_is_read_by_its_id_as_if_it_were_sent() {
    let text = "<think>\nLet me see.\n</think>\n\nI look.\n<tool_call>\n{\"name\": \"look\", \"arguments\": {\"at\": 1}}\n</tool_call>";
    let server = Server::saying(text);
    let tool = json!({"type": "function", "name": "look", "parameters": {"type": "object"}});
    let asking = |input: Value| with(ask(input), json!({"tools": [tool]}));
    let first = answer(&server, asking(json!("Look."))).await;
    let items = first["output"].as_array().unwrap();
    let kinds: Vec<&str> = items.iter().filter_map(|item| item["type"].as_str()).collect();
    assert_eq!(kinds, ["reasoning", "message", "function_call"]);
    let history = |items: &[Value]| {
        let result = json!({"type": "function_call_output", "call_id": first["output"][2]["call_id"], "output": "seen"});
        let mut input = vec![json!({"role": "user", "content": "Look."})];
        input.extend_from_slice(items);
        input.extend([result, json!({"role": "user", "content": "And?"})]);
        asking(Value::Array(input))
    };
    answer(&server, history(items)).await;
    let read = server.asked().prompt;
    let referring = [
        reference(&items[0]["id"]),
        json!({"type": null, "id": items[1]["id"]}),
        json!({"id": items[2]["id"]}),
    ];
    answer(&server, history(&referring)).await;
    assert_eq!(server.asked().prompt, read);
    answer(&server, history(&[referring[0].clone(), items[2].clone()])).await;
    assert_ne!(server.asked().prompt, read, "only what is referred to is read");
    let (status, counted) = server.post("/v1/responses/input_tokens", history(&referring)).await;
    assert_eq!((status.as_u16(), &counted["input_tokens"]), (200, &json!(read.len())), "{counted}");
}

#[tokio::test]
async fn a_conversation_of_references_is_compacted() {
    let server = Server::saying("They spoke of the sea.");
    let mut said = Vec::new();
    for text in ["Tell me of the sea.", "And deep?"] {
        let answered = answer(&server, ask(text)).await;
        said.extend([json!({"role": "user", "content": text}), reference(&answered["output"][0]["id"])]);
    }
    let (status, compacted) = server.post("/v1/responses/compact", ask(said)).await;
    assert_eq!(
        (status.as_u16(), &compacted["output"][0]["type"]),
        (200, &json!("compaction")),
        "{compacted}"
    );
}

/// The prompts of its summary have the messages of a stored answer, whose deletion would not find them.
#[tokio::test]
async fn what_a_compaction_computes_from_an_answer_is_noted_for_it() {
    let server = Server::saying("They spoke of the sea.");
    let stored = answer(&server, ask("Tell me of the sea.")).await;
    let body = with(ask("And deep?"), json!({"previous_response_id": stored["id"]}));
    let (status, compacted) = server.post("/v1/responses/compact", body).await;
    assert_eq!(status, 200, "{compacted}");
    let owner = Owner::new(DEFAULT_NAME, stored["id"].as_str().unwrap());
    let noted = server.app.server.prompt_log.of(&owner).unwrap();
    let noted: Vec<_> = noted.flat_map(|noted| noted.unwrap().prompts).collect();
    let asked = server.asked().prompt;
    assert!(noted.contains(&asked), "{asked:?}: {noted:?}");
}

#[tokio::test]
async fn an_item_that_is_not_stored_is_unknown() {
    let server = Server::saying("Hi.");
    let referring = |id: &Value| ask(json!([reference(id), {"role": "user", "content": "And?"}]));
    let unknown = async |id: &Value| {
        for path in ["/v1/responses", "/v1/responses/input_tokens", "/v1/responses/compact"] {
            let (status, error) = server.post(path, referring(id)).await;
            assert_eq!(status, 404, "{path}: {error}");
            let message = format!("Item with id '{}' not found.", id.as_str().unwrap());
            let expect = json!({"message": message, "type": "invalid_request_error", "param": "input", "code": "item_not_found"});
            assert_eq!(error["error"], expect, "{path}");
        }
    };
    for more in [json!({"store": false}), json!({"kvik": {"cache": "private"}})] {
        let answered = answer(&server, with(ask("One?"), more)).await;
        unknown(&answered["output"][0]["id"]).await;
    }
    let stored = answer(&server, ask("One?")).await;
    let id = &stored["output"][0]["id"];
    answer(&server, referring(id)).await;
    let (status, error) = server.post("/v1/responses", ask(json!([reference(id), reference(id)]))).await;
    assert_eq!((status.as_u16(), &error["error"]["param"]), (400, &json!("input")), "{error}");
    let path = format!("/v1/responses/{}", stored["id"].as_str().unwrap());
    assert_eq!(server.send("DELETE", &path, "").await.status(), 200);
    unknown(id).await;
}

#[tokio::test]
async fn what_is_not_to_be_stored_is_not() {
    let server = Server::saying("Hi.");
    for more in
        [json!({"store": false}), json!({"kvik": {"cache": "private"}}), json!({"conversation": "talk"})]
    {
        let answer = answer(&server, with(ask("One?"), more)).await;
        assert_eq!(answer["store"], false);
        let (status, _) = server.get(&format!("/v1/responses/{}", answer["id"].as_str().unwrap())).await;
        assert_eq!(status, 404);
    }
    let (_, kept) = server.get("/v1/conversations/talk").await;
    assert_eq!(kept["messages"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn tokens_are_counted_as_they_are_read() {
    let server = Server::saying("Hi.");
    let body = with(ask("Hello there."), json!({"instructions": "Be brief."}));
    answer(&server, body.clone()).await;
    let (status, counted) = server.post("/v1/responses/input_tokens", body).await;
    assert_eq!(status, 200, "{counted}");
    assert_eq!(counted["input_tokens"], server.asked().prompt.len());
}

#[tokio::test]
async fn a_conversation_is_compacted_and_goes_on_from_the_item() {
    let server = Server::saying("They spoke of the sea.");
    let said = json!([
        {"role": "user", "content": "Tell me of the sea."}, {"role": "assistant", "content": "It is wide."},
        {"role": "user", "content": "And deep?"}, {"role": "assistant", "content": "Very."},
    ]);
    let (status, compacted) = server.post("/v1/responses/compact", ask(said)).await;
    assert_eq!(status, 200, "{compacted}");
    assert!(server.asked().background.is_none(), "somebody waits for it");
    let item = compacted["output"][0].clone();
    assert_eq!(item["type"], "compaction");
    assert!(compacted["usage"]["output_tokens"].as_u64().unwrap() > 0);
    answer(&server, ask(json!([item, {"role": "user", "content": "Is it salty?"}]))).await;
    let read = server.app.serving.texts.tokenizer.decode(&server.asked().prompt);
    assert!(
        read.contains("They spoke of the sea.") && read.contains("salty") && !read.contains("wide"),
        "{read}"
    );
}

#[tokio::test]
async fn bad_input_is_refused_by_its_name() {
    let server = Server::saying("Hi.");
    let check = async |body: Value, at: &str| {
        let (status, error) = server.post("/v1/responses", body).await;
        assert!(status.is_client_error(), "{error}");
        assert_eq!(error["error"]["param"], at, "{error}");
    };
    check(json!({"model": "x"}), "input").await;
    check(ask(json!([])), "input").await;
    check(ask(7), "input").await;
    check(ask(json!([{"type": "magic"}])), "input").await;
    check(ask(json!([{"type": "item_reference"}])), "input[0].id").await;
    check(ask(json!([{"id": 7}])), "input[0].id").await;
    check(with(ask("x"), json!({"background": true})), "background").await;
    check(with(ask("x"), json!({"tools": [{"name": "f"}]})), "tools[0].type").await;
    check(with(ask("x"), json!({"tool_choice": {"type": "web_search"}})), "tool_choice.type").await;
    let grammar = json!({"type": "grammar", "syntax": "yacc", "definition": ""});
    let custom = json!({"type": "custom", "name": "f", "format": grammar});
    check(with(ask("x"), json!({"tools": [custom]})), "tools[0].format.syntax").await;
    check(with(ask("x"), json!({"tool_choice": "maybe"})), "tool_choice").await;
    check(with(ask("x"), json!({"temperature": -1})), "temperature").await;
    check(with(ask("x"), json!({"truncation": "some"})), "truncation").await;
    check(with(ask("x"), json!({"previous_response_id": "resp_0"})), "previous_response_id").await;
    let on = json!({"previous_response_id": "a"});
    for conversation in [json!({"conversation": "b"}), json!({"kvik": {"conversation": "b"}})] {
        let body = with(with(ask("x"), on.clone()), conversation);
        for path in ["/v1/responses", "/v1/responses/input_tokens"] {
            let (status, error) = server.post(path, body.clone()).await;
            let error = &error["error"];
            assert_eq!((status.as_u16(), &error["param"]), (400, &json!("previous_response_id")), "{error}");
            assert!(error["message"].as_str().unwrap().contains("conversation`"), "{path}: {error}");
        }
    }
    check(with(ask("x"), json!({"conversation": 7})), "conversation").await;
    let format = json!({"format": {"type": "json_schema", "schema": {"type": "nonsense"}}});
    check(with(ask("x"), json!({"text": format})), "text.format.schema.type").await;
}

/// The body of a coding agent: fields, tools and items that only OpenAI's servers support.
#[tokio::test]
async fn what_an_agent_sends_for_others_is_ignored_and_said() {
    let server = Server::saying("Hi.");
    let body = json!({
        "model": "x", "instructions": "Be brief.", "store": false, "stream_options": {"include_obfuscation": false},
        "client_metadata": {"originator": "cli"}, "return_progress": true, "reasoning": {"effort": "medium", "summary": "auto"},
        "text": {"verbosity": "low"}, "include": ["reasoning.encrypted_content", "web_search_call.action.sources"],
        "tools": [
            {"type": "function", "name": "look", "strict": false, "parameters": {"type": "object"}},
            {"type": "web_search", "external_web_access": true}, {"type": "image_generation"},
            {"type": "namespace", "name": "mcp__sea", "description": "x", "tools": [{"type": "function", "name": "dive"}]},
        ],
        "tool_choice": "auto",
        "input": [
            {"role": "user", "content": "Hello."},
            {"type": "web_search_call", "id": "ws_1", "status": "completed"},
            {"role": "user", "content": "And?"},
        ],
    });
    let told = answer(&server, body).await;
    let notes: Vec<&str> =
        told["kvik"]["notes"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    for named in [
        "`client_metadata`",
        "`return_progress`",
        "`reasoning.summary`",
        "`text.verbosity`",
        "web_search_call.action.sources",
        "`tools[1]`",
        "`tools[2]`",
        "`input[1]`",
    ] {
        assert!(notes.iter().any(|note| note.contains(named)), "{named} is not among {notes:#?}");
    }
    assert_eq!(notes.len(), 8, "{notes:#?}");
}

/// A call is sent in the format of its tool: with its namespace, or as the text of a custom tool.
#[tokio::test]
async fn a_call_is_told_as_its_tool_is_known() {
    let tools = json!([
        {"type": "namespace", "name": "mcp__sea", "tools": [{"type": "function", "name": "dive"}]},
        {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start: \"+\" /.+/"}},
    ]);
    let dive = "<tool_call>\n{\"name\": \"mcp__sea__dive\", \"arguments\": {\"deep\": true}}\n</tool_call>";
    let patch =
        "<tool_call>\n{\"name\": \"patch\", \"arguments\": {\"input\": \"+a \\\"b\\\"\"}}\n</tool_call>";
    for (text, fields) in [
        (
            dive,
            json!({"type": "function_call", "name": "dive", "namespace": "mcp__sea", "arguments": "{\"deep\": true}"}),
        ),
        (patch, json!({"type": "custom_tool_call", "name": "patch", "input": "+a \"b\""})),
    ] {
        let server = Server::saying(text);
        let body = with(ask("Go."), json!({"tools": tools, "store": false}));
        let whole = answer(&server, body.clone()).await;
        let mut expect = fields.clone();
        let item = &whole["output"][0];
        (expect["id"], expect["call_id"], expect["status"]) =
            (item["id"].clone(), item["call_id"].clone(), json!("completed"));
        assert_eq!(item, &expect);
        let events = events(&server, body.clone()).await;
        assert_eq!(comparable(&gathered(&events)), comparable(whole["output"].as_array().unwrap()));
        // When it is sent back, it is read as the original call.
        let sent_back = json!([
            {"role": "user", "content": "Go."}, item,
            {"type": "function_call_output", "call_id": item["call_id"], "output": "done"},
        ]);
        answer(&server, with(body, json!({"input": sent_back}))).await;
        let read = server.app.serving.texts.tokenizer.decode(&server.asked().prompt);
        assert!(read.contains("done"), "{read}");
    }
}

#[tokio::test]
async fn a_call_that_is_chosen_stands_beside_the_form_of_a_text() {
    let server = Server::saying("{\"name\": \"look\", \"arguments\": {}}");
    let tool = json!({"type": "function", "name": "look", "parameters": {"type": "object"}});
    let format = json!({"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}});
    for choice in [json!({"type": "function", "name": "look"}), json!("required")] {
        let more = json!({"tools": [tool], "tool_choice": choice, "text": format});
        let told = answer(&server, with(ask("Look."), more)).await;
        assert!(told["kvik"]["notes"][0].as_str().unwrap().contains("tool_choice"), "{told}");
    }
    let schema = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}});
    let mut chat = json!({"messages": [{"role": "user", "content": "Look."}], "response_format": schema});
    chat["tools"] = json!([{"type": "function", "function": {"name": "look"}}]);
    chat["tool_choice"] = json!("required");
    let (status, told) = server.post("/v1/chat/completions", chat.clone()).await;
    assert_eq!(status, 200, "{told}");
    chat["tool_choice"] = json!("auto");
    let (_, told) = server.post("/v1/chat/completions", chat.clone()).await;
    assert_eq!(told["kvik"]["notes"], Value::Null, "a call may stand in place of the text");
    chat.as_object_mut().unwrap().remove("response_format");
    (chat["tool_choice"], chat["regex"]) = (json!("required"), json!("a+"));
    assert_eq!(
        server.post("/v1/chat/completions", chat).await.0,
        400,
        "a grammar is the form of all that is said"
    );
}

#[tokio::test]
async fn a_stream_that_fails_says_so_in_its_last_event_and_stores_nothing() {
    let server = Server::breaking();
    let events = events(&server, ask("Hello.")).await;
    let last = events.last().unwrap();
    assert_eq!((&last["type"], &last["response"]["status"]), (&json!("response.failed"), &json!("failed")));
    let error = &last["response"]["error"];
    assert!(error["code"].is_string() && error["message"].is_string(), "{last}");
    let id = events[0]["response"]["id"].as_str().unwrap();
    assert_eq!(server.get(&format!("/v1/responses/{id}")).await.0, 404);
}

/// Codex compacts at this event, and at no status.
#[tokio::test]
async fn a_prompt_that_is_too_long_is_told_in_the_stream() {
    let too_long = RequestError::PromptTooLong { prompt_tokens: 5000, context_tokens: 2048 };
    for (refusal, in_stream) in [(too_long, true), (RequestError::EmptyPrompt, false)] {
        let server = Server::new(move |_| Err(refusal.clone()));
        let (status, told) = server.post("/v1/responses", ask("Hello.")).await;
        assert_eq!(status, 400, "{told}");
        let streamed = with(ask("Hello."), json!({"stream": true}));
        if !in_stream {
            assert_eq!(server.post("/v1/responses", streamed).await.0, 400);
            continue;
        }
        let [created, failed] = &events(&server, streamed).await[..] else { panic!("two events") };
        assert_eq!(
            (&created["type"], &failed["type"]),
            (&json!("response.created"), &json!("response.failed"))
        );
        assert_eq!(created["response"]["id"], failed["response"]["id"]);
        let error = &failed["response"]["error"];
        assert_eq!(error["code"], "context_length_exceeded");
        assert_eq!(error["message"], told["error"]["message"]);
    }
}

/// The last events of this stream repeat its log-probabilities, which take memory until then; those of thoughts are
/// not in the answer.
#[tokio::test]
async fn what_an_answer_holds_until_its_end_is_counted() {
    let texts = ["x".repeat(1000), format!("<think>{}</think>y", "x".repeat(1000))];
    let servers = texts.map(|text| Server::new(move |request| Ok(say(request, &text, FinishReason::Eos))));
    let [plain, thinking] = &servers;
    let streamed = |body: Value, more: Value| with(with(body, more), json!({"stream": true}));
    let listed = json!({"include": ["message.output_text.logprobs"]});
    for (server, path, body, end, is_held) in [
        (plain, "/v1/responses", streamed(ask("Hi."), listed.clone()), "response.completed", true),
        (thinking, "/v1/responses", streamed(ask("Hi."), listed.clone()), "response.completed", false),
        (plain, "/v1/responses", streamed(ask("Hi."), json!({})), "response.completed", false),
        (plain, "/v1/chat/completions", streamed(hello(), json!({"logprobs": true})), "[DONE]", false),
    ] {
        let response = server.send("POST", path, body.to_string()).await;
        let mut frames = response.into_body().into_data_stream();
        let mut frame = Vec::new();
        while !String::from_utf8_lossy(&frame).contains(end) {
            frame = tokio_stream::StreamExt::next(&mut frames).await.unwrap().unwrap().to_vec();
        }
        assert_eq!(server.app.server.bodies.taken() > 0, is_held, "{path} to {end}");
    }
    for (server, is_held) in [(plain, true), (thinking, false)] {
        let whole = server.send("POST", "/v1/responses", with(ask("Hi."), listed.clone()).to_string()).await;
        assert_eq!(server.app.server.bodies.taken() > 0, is_held, "{}", whole.status());
    }
}

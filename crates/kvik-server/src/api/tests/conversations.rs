//! Stored conversations over the routes: engine requests, stored messages, and visibility.

use axum::http::StatusCode;
use axum::response::Response;
use kvik_engine::api::{Event, FinishReason, RequestError};
use kvik_memory::memory::{MemoryConfig, make_summaries};
use serde_json::{Value, json};

use super::{
    Server, config, json_of,
    kept::TENANTS,
    memory_bounds::{self, at_rest},
    say,
    tenants::{ask, busy_server, code, keys},
    with,
};
use crate::app::{AppConfig, keys::Keys};
use kvik_serving::settings::size::ByteSize;

const CHAT: &str = "/v1/chat/completions";
const ALL: &str = "/v1/conversations";

fn said(role: &str, text: &str) -> Value {
    json!({"role": role, "content": text})
}

/// A turn with these messages in the conversation `reference`.
fn turn(reference: &str, messages: Value) -> Value {
    json!({"messages": messages, "kvik": {"conversation": reference}})
}

fn server() -> Server {
    Server::build(|request| Ok(say(request, "Hi!", FinishReason::Eos)), keys(TENANTS), config())
}

async fn send(server: &Server, key: &str, method: &str, path: &str, body: Value) -> (StatusCode, Value) {
    json_of(ask(server, key, method, path, body).await).await
}

async fn done(server: &Server, key: &str, method: &str, path: &str, body: Value) -> Value {
    let (status, answer) = send(server, key, method, path, body).await;
    assert_eq!(status, 200, "{method} {path}: {answer}");
    answer
}

/// Sends a request that must be refused with this status and code; returns the error.
async fn refused(server: &Server, (method, path): (&str, &str), body: Value, expect: (u16, &str)) -> Value {
    let (status, answer) = send(server, "acme", method, path, body).await;
    assert_eq!((status.as_u16(), code(&answer)), expect, "{method} {path}: {answer}");
    answer["error"].clone()
}

async fn messages(server: &Server, key: &str, reference: &str) -> Value {
    done(server, key, "GET", &format!("{ALL}/{reference}"), Value::Null).await["messages"].take()
}

/// Returns the text of the engine's last prompt.
fn asked(server: &Server) -> String {
    let prompt = server.asked().prompt;
    server.app.serving.texts.tokenizer.decode(&prompt)
}

#[tokio::test]
async fn a_client_sends_what_is_new_and_the_server_knows_the_rest() {
    let server = server();
    let first = turn("trip", json!([said("system", "Be brief."), said("user", "I am in Oslo.")]));
    let answer = done(&server, "acme", "POST", CHAT, first).await;
    let kept = &answer["kvik"]["conversation"];
    assert_eq!((&kept["name"], &kept["messages"]), (&json!("trip"), &json!(3)), "{answer}");
    assert!(answer["kvik"]["memory"].is_object(), "it is remembered beyond the context");
    let id = kept["id"].as_str().unwrap().to_owned();

    let answer = done(&server, "acme", "POST", CHAT, turn(&id, json!([said("user", "Where am I?")]))).await;
    assert_eq!(answer["kvik"]["conversation"], json!({"id": id, "name": "trip", "messages": 5}));
    let prompt = asked(&server);
    for part in ["Be brief.", "I am in Oslo.", "Hi!", "Where am I?"] {
        assert!(prompt.contains(part), "{part}: {prompt}");
    }
    let other = turn("trip", json!([said("system", "Be long."), said("user", "And now?")]));
    let off = with(other, json!({"kvik": {"conversation": "trip", "memory": false}}));
    let answer = done(&server, "acme", "POST", CHAT, off).await;
    assert!(answer["kvik"].get("memory").is_none(), "{answer}");
    assert!(!asked(&server).contains("Be brief."), "the request's own system messages replace others");
    let hi = said("assistant", "Hi!");
    let expect = json!([
        said("system", "Be long."),
        said("user", "I am in Oslo."),
        hi,
        said("user", "Where am I?"),
        hi,
        said("user", "And now?"),
        hi
    ]);
    assert_eq!(messages(&server, "acme", "trip").await, expect);
}

#[tokio::test]
async fn a_stream_says_the_conversation_once_and_it_is_written_before_the_end() {
    let server = server();
    let body = with(turn("trip", json!([said("user", "Hello.")])), json!({"stream": true}));
    let response = ask(&server, "acme", "POST", CHAT, body).await;
    let text = text_of(response).await;
    assert_eq!(text.matches("\"conversation\":").count(), 1, "{text}");
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    assert_eq!(
        messages(&server, "acme", "trip").await,
        json!([said("user", "Hello."), said("assistant", "Hi!")])
    );
}

async fn text_of(response: Response) -> String {
    let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The result of a call names the id that the client was sent.
#[tokio::test]
async fn a_call_is_written_with_the_id_that_was_told() {
    let call = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>";
    let server = Server::saying(call);
    let tool = json!({"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}});
    let body = with(turn("trip", json!([said("user", "Hello.")])), json!({"tools": [tool]}));
    let answer = done(&server, "", "POST", CHAT, body).await;
    let told = &answer["choices"][0]["message"]["tool_calls"][0];
    assert_eq!(told["function"]["name"], "weather", "{answer}");
    let written = messages(&server, "", "trip").await;
    assert_eq!((&written[1]["tool_calls"][0], written[1].get("refusal")), (told, None), "{written}");
}

#[tokio::test]
async fn nothing_is_written_of_an_answer_that_fails_or_is_given_up() {
    let fails = |request: &kvik_engine::api::Request| {
        let mut events = say(request, "Hi!", FinishReason::Eos);
        events.truncate(2);
        events.push(Event::Failed(RequestError::Internal("worn out".into())));
        Ok(events)
    };
    let server = Server::build(fails, keys(TENANTS), config());
    for stream in [false, true] {
        let body = with(turn("trip", json!([said("user", "Hello.")])), json!({"stream": stream}));
        let text = text_of(ask(&server, "acme", "POST", CHAT, body).await).await;
        assert!(text.contains("worn out") && !text.contains("[DONE]"), "{text}");
        refused(&server, ("GET", &format!("{ALL}/trip")), Value::Null, (404, "conversation_not_found")).await;
    }

    let server = busy_server(TENANTS);
    done(&server, "acme", "POST", ALL, json!({"name": "trip", "messages": [said("user", "1")]})).await;
    let body = with(turn("trip", json!([said("user", "2")])), json!({"stream": true}));
    let response = ask(&server, "acme", "POST", CHAT, body.clone()).await;
    for (method, path) in [
        ("POST", CHAT.to_owned()),
        ("DELETE", format!("{ALL}/trip")),
        ("DELETE", format!("{ALL}/trip/messages?from=0")),
    ] {
        let body = if method == "POST" { body.clone() } else { Value::Null };
        refused(&server, (method, &path), body, (409, "conversation_busy")).await;
    }
    refused(&server, ("POST", &format!("{ALL}/trip")), json!({"name": "x"}), (409, "conversation_busy"))
        .await;
    assert_eq!(
        messages(&server, "acme", "trip").await,
        json!([said("user", "1")]),
        "it can be read meanwhile"
    );
    drop(response);
    let taken = done(&server, "acme", "DELETE", &format!("{ALL}/trip/messages?from=1"), Value::Null).await;
    assert_eq!(taken["messages"], 1, "the client has left");
}

#[tokio::test]
async fn conversations_are_begun_listed_renamed_taken_back_and_deleted() {
    let server = server();
    let begun = done(&server, "acme", "POST", ALL, json!({})).await;
    assert_eq!((&begun["name"], &begun["messages"], &begun["bytes"]), (&Value::Null, &json!(0), &json!(0)));
    let said = json!([said("system", "s"), said("user", "1"), said("assistant", "2"), said("user", "3")]);
    let first = done(&server, "acme", "POST", ALL, json!({"name": "a/b", "messages": said})).await;
    assert!(first["bytes"].as_u64().unwrap() > 100 && first["created"].as_u64().unwrap() > 0, "{first}");
    let branch = json!({"from": "a/b", "upto": 3, "name": "c"});
    let branch = done(&server, "acme", "POST", ALL, branch).await;
    assert_eq!(branch["messages"], 3);

    let list = async |query: &str| done(&server, "acme", "GET", &format!("{ALL}{query}"), Value::Null).await;
    let ids = |list: &Value| -> Vec<Value> {
        list["data"].as_array().unwrap().iter().map(|head| head["id"].clone()).collect()
    };
    let (page, all) = (list("?limit=2").await, [&branch, &first, &begun].map(|head| head["id"].clone()));
    assert_eq!((ids(&page), &page["has_more"]), (all[..2].to_vec(), &json!(true)));
    let page = list(&format!("?after={}", all[1].as_str().unwrap())).await;
    assert_eq!((ids(&page), &page["has_more"]), (all[2..].to_vec(), &json!(false)));

    let renamed = done(&server, "acme", "POST", &format!("{ALL}/a%2Fb"), json!({"name": "b"})).await;
    assert_eq!((&renamed["id"], &renamed["name"]), (&first["id"], &json!("b")));
    let taken = done(&server, "acme", "DELETE", &format!("{ALL}/b/messages?from=2"), Value::Null).await;
    assert_eq!(taken["messages"], 2);
    assert_eq!(messages(&server, "acme", "b").await, json!([said[0], said[1]]));
    assert_eq!(
        messages(&server, "acme", "c").await,
        json!([said[0], said[1], said[2]]),
        "a branch is its own"
    );
    let deleted = done(&server, "acme", "DELETE", &format!("{ALL}/b"), Value::Null).await;
    assert_eq!(deleted, json!({"id": first["id"], "object": "conversation.deleted", "deleted": true}));
    refused(&server, ("DELETE", &format!("{ALL}/b")), Value::Null, (404, "conversation_not_found")).await;
}

/// OpenAI's clients read the items that they added, as a list, and each by its id.
#[tokio::test]
async fn items_are_added_and_shown_and_the_last_ones_are_taken_back() {
    let server = server();
    done(&server, "acme", "POST", ALL, json!({"name": "trip", "messages": [said("user", "Look.")]})).await;
    let path = format!("{ALL}/trip/items");
    let of = |id: &Value| format!("{path}/{}", id.as_str().unwrap());
    let more = json!([
        said("assistant", "I look."),
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "seen"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "so"}]},
        said("assistant", "Done."),
    ]);
    let added = done(&server, "acme", "POST", &path, json!({"items": more})).await;
    let all = done(&server, "acme", "GET", &format!("{path}?order=asc"), Value::Null).await;
    let all = all["data"].as_array().unwrap();
    let ids: Vec<Value> = all.iter().map(|item| item["id"].clone()).collect();
    let expect =
        json!({"object": "list", "data": all[1..], "first_id": ids[1], "last_id": ids[5], "has_more": false});
    assert_eq!(added, expect);
    for item in all {
        assert_eq!(&done(&server, "acme", "GET", &of(&item["id"]), Value::Null).await, item);
    }
    for method in ["GET", "DELETE"] {
        let unknown = of(&json!("msg_x"));
        let error = refused(&server, (method, &unknown), Value::Null, (404, "item_not_found")).await;
        assert_eq!(error["message"], "Item with id 'msg_x' not found.");
    }
    // Each step: the item that is taken back, the number of messages then, and items that are not: those of earlier
    // messages, and those beside which something else would be lost.
    for (last, left, others) in [(5, 3, vec![0, 2, 3, 4]), (3, 2, vec![0, 1, 2])] {
        for other in others {
            let error = refused(&server, ("DELETE", &of(&ids[other])), Value::Null, (400, "")).await;
            assert_eq!(error["param"], "item_id", "{error}");
        }
        let taken = done(&server, "acme", "DELETE", &of(&ids[last]), Value::Null).await;
        assert_eq!((&taken["object"], &taken["messages"]), (&json!("conversation"), &json!(left)));
    }
    refused(&server, ("DELETE", &of(&ids[1])), Value::Null, (400, "")).await;
    assert_eq!(messages(&server, "acme", "trip").await[1]["content"], "I look.");
}

/// System messages at the beginning of what is added replace those of the conversation, and the others are the last ones.
#[tokio::test]
async fn added_items_have_the_ids_under_which_they_are_listed() {
    let server = server();
    let begun =
        json!({"name": "trip", "messages": [said("system", "a"), said("system", "b"), said("user", "1")]});
    done(&server, "acme", "POST", ALL, begun).await;
    let path = format!("{ALL}/trip/items");
    for (items, indexes) in [
        (json!([said("user", "2")]), vec![3]),
        (json!([said("system", "c"), said("user", "3")]), vec![0, 3]),
        (json!([]), vec![]),
    ] {
        let added = done(&server, "acme", "POST", &path, json!({"items": items})).await;
        let all = done(&server, "acme", "GET", &format!("{path}?order=asc"), Value::Null).await;
        let expect: Vec<Value> = indexes.iter().map(|&index: &usize| all["data"][index].clone()).collect();
        assert_eq!(added["data"], json!(expect), "{all}");
    }
    assert_eq!(messages(&server, "acme", "trip").await[3], said("user", "3"));
}

#[tokio::test]
async fn what_is_exported_is_taken_again_unchanged() {
    let server = server();
    done(&server, "acme", "POST", CHAT, turn("trip", json!([said("system", "s"), said("user", "Hello.")])))
        .await;
    done(&server, "acme", "POST", ALL, json!({"name": "empty", "messages": []})).await;
    for name in ["trip", "empty"] {
        let path = format!("{ALL}/{name}");
        let exported = done(&server, "acme", "GET", &format!("{path}/export"), Value::Null).await;
        refused(&server, ("POST", ALL), exported.clone(), (409, "conversation_exists")).await;
        done(&server, "acme", "DELETE", &path, Value::Null).await;
        done(&server, "acme", "POST", ALL, exported.clone()).await;
        assert_eq!(done(&server, "acme", "GET", &format!("{path}/export"), Value::Null).await, exported);
    }
    let response =
        ask(&server, "acme", "GET", &format!("{ALL}/trip/export?format=markdown"), Value::Null).await;
    assert_eq!(response.headers()["content-type"], "text/markdown; charset=utf-8");
    let text = text_of(response).await;
    assert!(text.starts_with("# trip\n") && text.contains("**assistant**\n\nHi!"), "{text}");
}

#[tokio::test]
async fn what_another_tenant_has_does_not_exist() {
    let server = server();
    let theirs = done(&server, "beta", "POST", CHAT, turn("trip", json!([said("user", "Secret.")]))).await;
    let theirs = theirs["kvik"]["conversation"]["id"].as_str().unwrap().to_owned();
    for reference in [theirs.as_str(), "trip", "conv_000000000000000000000000"] {
        let path = format!("{ALL}/{reference}");
        // The item of the last message, of their conversation.
        let item = format!("{path}/items/msg_{}_1_0", reference.rsplit('_').next().unwrap());
        let nowhere = (404, "conversation_not_found");
        for (method, path, body) in [
            ("GET", path.clone(), Value::Null),
            ("DELETE", path.clone(), Value::Null),
            ("POST", path.clone(), json!({"name": "mine"})),
            ("GET", format!("{path}/export"), Value::Null),
            ("GET", format!("{path}/export?format=markdown"), Value::Null),
            ("DELETE", format!("{path}/messages?from=0"), Value::Null),
            ("GET", format!("{path}/items"), Value::Null),
            ("POST", format!("{path}/items"), json!({"items": [said("user", "?")]})),
            ("GET", item.clone(), Value::Null),
            ("DELETE", item, Value::Null),
            ("POST", ALL.to_owned(), json!({"from": reference})),
            ("GET", format!("{path}/memory"), Value::Null),
            ("POST", format!("{path}/memory"), json!({"summary": "Nothing."})),
        ] {
            refused(&server, (method, &path), body, nowhere).await;
        }
    }
    let error = refused(
        &server,
        ("POST", CHAT),
        turn(&theirs, json!([said("user", "?")])),
        (404, "conversation_not_found"),
    )
    .await;
    assert_eq!(error["param"], "kvik.conversation");
    refused(&server, ("GET", &format!("{ALL}?after={theirs}")), Value::Null, (404, "conversation_not_found"))
        .await;
    assert_eq!(done(&server, "acme", "GET", ALL, Value::Null).await["data"], json!([]));
    let mine = done(&server, "acme", "POST", CHAT, turn("trip", json!([said("user", "Hello.")]))).await;
    assert_eq!(mine["kvik"]["conversation"]["messages"], 2, "the same name is another conversation");
    assert!(!asked(&server).contains("Secret."));
    assert_eq!(messages(&server, "beta", "trip").await[0], said("user", "Secret."), "nobody changed it");
}

#[tokio::test]
async fn what_cannot_be_kept_is_refused_at_its_field() {
    let server = server();
    let hello = json!([said("user", "Hello.")]);
    let chat = async |extra: Value, messages: Value, param: &str| {
        let body = with(turn("trip", messages), extra);
        let error = refused(&server, ("POST", CHAT), body, (400, "")).await;
        assert_eq!(error["param"], param, "{error}");
    };
    chat(json!({"n": 2}), hello.clone(), "n").await;
    chat(json!({"kvik": {"conversation": "x", "cache": "private"}}), hello.clone(), "kvik.cache").await;
    chat(json!({"cache_prompt": false}), hello.clone(), "kvik.cache").await;
    let open = json!([said("user", "Hello."), said("assistant", "He")]);
    chat(json!({}), open, "continue_final_message").await;
    chat(json!({}), json!([]), "messages").await;
    chat(json!({}), json!([{"role": "user"}]), "messages[0].content").await;
    chat(json!({"kvik": {"conversation": "a\nb"}}), hello.clone(), "kvik.conversation").await;
    chat(json!({"kvik": {"conversation": ""}}), hello.clone(), "kvik.conversation").await;
    for (path, body) in
        [("/v1/completions", json!({"prompt": "a"})), ("/v1/cache/explain", json!({"messages": hello}))]
    {
        let body = with(body, json!({"kvik": {"conversation": "x"}}));
        let error = refused(&server, ("POST", path), body, (400, "")).await;
        assert_eq!(error["param"], "kvik.conversation", "{error}");
    }
    for path in ["/v1/cache/explain", "/v1/responses/compact"] {
        let body = json!({"input": "Hello.", "conversation": "x"});
        let error = refused(&server, ("POST", path), body, (400, "")).await;
        assert_eq!(error["param"], "conversation", "{error}");
    }

    done(&server, "acme", "POST", ALL, json!({"name": "trip", "messages": hello})).await;
    let check = async |method: &str, path: &str, body: Value, param: &str| {
        let error = refused(&server, (method, path), body, (400, "")).await;
        assert_eq!(error["param"], param, "{error}");
    };
    check("POST", ALL, json!({"name": "conv_x"}), "name").await;
    check("POST", ALL, json!({"name": "x".repeat(129)}), "name").await;
    check("POST", ALL, json!({"messages": "Hello."}), "messages").await;
    check("POST", ALL, json!({"messages": [{"role": "robot", "content": ""}]}), "messages[0].role").await;
    check("POST", ALL, json!({"messages": hello, "from": "trip"}), "from").await;
    check("POST", ALL, json!({"upto": 1}), "upto").await;
    check("POST", ALL, json!({"from": "trip", "upto": 2}), "upto").await;
    check("POST", "/v1/conversations/trip", json!({"name": "a\tb"}), "name").await;
    check("DELETE", "/v1/conversations/trip/messages?from=2", Value::Null, "from").await;
    check("GET", "/v1/conversations/trip/export?format=pdf", Value::Null, "format").await;
    assert_eq!(messages(&server, "acme", "trip").await, hello, "nothing of it left a trace");
}

#[tokio::test]
async fn ten_thousand_messages_are_kept_and_a_body_too_large_is_not() {
    let server = server();
    let many: Vec<Value> = (0..10_000).map(|i| said("user", &i.to_string())).collect();
    let begun = done(&server, "acme", "POST", ALL, json!({"name": "many", "messages": many})).await;
    assert_eq!(begun["messages"], 10_000);
    assert_eq!(messages(&server, "acme", "many").await, json!(many));
    let large = json!({"messages": [said("user", &"x".repeat(2 << 20))]});
    refused(&server, ("POST", ALL), large, (413, "body_too_large")).await;
}

/// Each addition alone was within the limit, and no turn could build all of them.
#[tokio::test]
async fn what_is_added_has_room_beside_what_is_there() {
    let config = AppConfig { body_limit: ByteSize(32 << 20), ..config() };
    let server = Server::build(|request| Ok(say(request, "Hi!", FinishReason::Eos)), keys(TENANTS), config);
    let call = json!({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"});
    let calls = vec![call; 60_000];
    done(&server, "acme", "POST", ALL, json!({"name": "trip", "items": calls})).await;
    let path = format!("{ALL}/trip/items");
    refused(&server, ("POST", &path), json!({"items": calls}), (400, "conversation_limit")).await;
}

#[tokio::test]
async fn conversations_last_as_long_as_what_they_are_written_in() {
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        let records = kvik_memory::records::Records::open(dir.path(), std::time::Duration::ZERO).unwrap();
        let config = AppConfig { conversations: Some(records), ..config() };
        Server::build(|request| Ok(say(request, "Hi!", FinishReason::Eos)), Keys::new([]), config)
    };
    let server = open();
    done(&server, "", "POST", CHAT, turn("trip", json!([said("user", "Hello.")]))).await;
    drop(server);
    let server = open();
    let answer = done(&server, "", "POST", CHAT, turn("trip", json!([said("user", "Again.")]))).await;
    assert_eq!(answer["kvik"]["conversation"]["messages"], 4);
}

#[tokio::test]
async fn tokens_are_counted_with_what_the_server_keeps() {
    let server = server();
    let begun = turn("trip", json!([said("system", "Be brief."), said("user", "I am in Oslo.")]));
    let id = done(&server, "acme", "POST", CHAT, begun).await["kvik"]["conversation"]["id"].take();
    let question = turn("trip", json!([said("user", "Where am I?")]));
    for (path, count, body) in [
        (CHAT, "/v1/chat/completions/input_tokens", question.clone()),
        ("/v1/messages", "/v1/messages/count_tokens", with(question, json!({"max_tokens": 9}))),
        ("/v1/responses", "/v1/responses/input_tokens", json!({"input": "And?", "conversation": {"id": id}})),
    ] {
        let counted = done(&server, "acme", "POST", count, body.clone()).await;
        let answer = done(&server, "acme", "POST", path, body).await;
        assert_eq!(counted["input_tokens"], server.asked().prompt.len(), "{path}");
        assert!(asked(&server).contains("I am in Oslo."), "{path}");
        if path == "/v1/responses" {
            assert_eq!(answer["conversation"], json!({"id": id}));
        }
    }
    let foreign = json!({"input": "And?", "conversation": id});
    let (status, answer) = send(&server, "beta", "POST", "/v1/responses/input_tokens", foreign).await;
    assert_eq!((status.as_u16(), code(&answer)), (404, "conversation_not_found"));
}

#[tokio::test]
async fn a_template_is_applied_to_what_the_server_keeps() {
    const APPLY: &str = "/apply-template";
    let server = server();
    let begun = turn("trip", json!([said("system", "Be brief."), said("user", "I am in Oslo.")]));
    let id = done(&server, "acme", "POST", CHAT, begun).await["kvik"]["conversation"]["id"].take();
    let question = turn(id.as_str().unwrap(), json!([said("user", "Where am I?")]));
    let rendered = done(&server, "acme", "POST", APPLY, question.clone()).await;
    let (status, answer) = send(&server, "beta", "POST", APPLY, question.clone()).await;
    assert_eq!((status.as_u16(), code(&answer)), (404, "conversation_not_found"));
    done(&server, "acme", "POST", CHAT, question.clone()).await;
    assert_eq!(rendered["prompt"], asked(&server));
    let mistaken = with(question, json!({"kvik": {"conversations": "trip"}}));
    let (status, answer) = send(&server, "acme", "POST", APPLY, mistaken).await;
    assert_eq!(status, 400, "{answer}");
}

/// A server whose model gives the same answer to everything, and to each request for a summary.
fn remembering() -> Server {
    let memory = MemoryConfig {
        recent_max: Some(300),
        summary_max: Some(64),
        trigger_discard: Some(120),
        quotes_max: Some(0),
        ..MemoryConfig::default()
    };
    let script = |request: &kvik_engine::api::Request| {
        Ok(say(request, memory_bounds::answer(request), FinishReason::Eos))
    };
    let server = Server::build(script, keys(TENANTS), AppConfig { memory, ..config() });
    tokio::spawn(make_summaries(server.app.clone()));
    server
}

/// Sends turns of small talk until a summary that was updated `updates` times is read and no other one is made. Each turn
/// waits for the work after the one before.
async fn talks(server: &Server, updates: u64) -> Value {
    for number in 0..100 {
        let text = format!("The bus number {number} was late again. I had noodles for lunch.");
        let answer = done(server, "acme", "POST", CHAT, turn("trip", json!([said("user", &text)]))).await;
        at_rest(server).await;
        let memory = &answer["kvik"]["memory"];
        if memory["summary"]["updates"].as_u64().is_some_and(|made| made >= updates)
            && memory["rebuilding"] == false
        {
            return answer;
        }
    }
    panic!("no summary in a hundred turns")
}

#[tokio::test]
async fn what_is_remembered_is_shown_and_corrected_and_the_next_turn_reads_it() {
    let server = remembering();
    let path = &format!("{ALL}/trip/memory");
    done(&server, "acme", "POST", ALL, json!({"name": "trip", "messages": [said("system", "Be brief.")]}))
        .await;
    let nothing = done(&server, "acme", "GET", path, Value::Null).await;
    assert_eq!((&nothing["object"], &nothing["summary"]), (&json!("conversation.memory"), &Value::Null));
    refused(&server, ("POST", path), json!({"summary": "x"}), (404, "summary_not_found")).await;

    let answer = talks(&server, 1).await;
    let covered = answer["kvik"]["memory"]["messages"]["summarised"].as_u64().unwrap();
    let updates = answer["kvik"]["memory"]["summary"]["updates"].as_u64().unwrap();
    let summary = done(&server, "acme", "GET", path, Value::Null).await["summary"].take();
    assert_eq!((&summary["text"], &summary["kind"]), (&json!(memory_bounds::SUMMARY), &json!("summary")));
    assert_eq!((&summary["covers"], &summary["updates"]), (&json!(covered), &json!(updates)));
    assert_eq!((&summary["messages"], &summary["corrected"]), (&json!([1, 1 + covered]), &json!(false)));

    let text = "The bus was late, and Bolt had noodles.";
    let corrected = done(&server, "acme", "POST", path, json!({"summary": text})).await["summary"].take();
    assert_eq!((&corrected["text"], &corrected["corrected"]), (&json!(text), &json!(true)));
    assert_eq!(done(&server, "acme", "GET", path, Value::Null).await["summary"]["text"], text);
    done(&server, "acme", "POST", CHAT, turn("trip", json!([said("user", "And?")]))).await;
    let asked: Vec<String> = server
        .engine
        .asked
        .lock()
        .unwrap()
        .iter()
        .map(|request| server.app.serving.texts.tokenizer.decode(&request.prompt))
        .collect();
    assert!(asked.iter().any(|prompt| prompt.contains(text) && prompt.contains("And?")), "{asked:?}");
    // The next summary is based on the corrected one.
    talks(&server, updates + 1).await;
    let summary = done(&server, "acme", "GET", path, Value::Null).await["summary"].take();
    // It has what the corrected one told and the model's text lacks.
    let next = format!("{}\n{text}", memory_bounds::SUMMARY);
    assert_eq!((&summary["text"], &summary["corrected"]), (&json!(next), &json!(false)));
}

#[tokio::test]
async fn what_is_deleted_is_remembered_no_more() {
    let server = remembering();
    talks(&server, 1).await;
    let path = &format!("{ALL}/trip");
    let exported = done(&server, "acme", "GET", &format!("{path}/export"), Value::Null).await;
    done(&server, "acme", "DELETE", path, Value::Null).await;
    done(&server, "acme", "POST", ALL, exported).await;
    let memory = done(&server, "acme", "GET", &format!("{path}/memory"), Value::Null).await;
    assert_eq!(memory["summary"], Value::Null);
}

#[tokio::test]
async fn a_correction_that_cannot_be_told_is_refused_with_both_numbers() {
    let server = remembering();
    talks(&server, 1).await;
    let path = &format!("{ALL}/trip/memory");
    for (text, part) in [("word ".repeat(200), "64 at most"), (" ".to_owned(), "is empty")] {
        let error = refused(&server, ("POST", path), json!({"summary": text}), (400, "")).await;
        assert_eq!(error["param"], "summary");
        assert!(error["message"].as_str().unwrap().contains(part), "{error}");
    }
    let error = refused(&server, ("POST", path), json!({"summary": "word ".repeat(100)}), (400, "")).await;
    let tokens = server.app.serving.texts.tokenizer.encode(&"word ".repeat(100), false, false).len();
    assert!(error["message"].as_str().unwrap().contains(&format!("has {tokens} tokens")), "{error}");
    assert_eq!(done(&server, "acme", "GET", path, Value::Null).await["summary"]["corrected"], false);
    let (status, _) = send(&server, "beta", "POST", path, json!({"summary": "Mine."})).await;
    assert_eq!(status, 404);
}

#[tokio::test]
async fn a_text_is_found_in_what_was_said_by_the_tenant_itself() {
    let server = server();
    for (key, name, text) in
        [("acme", "trip", "I am in Oslo."), ("acme", "food", "Soup."), ("beta", "x", "Oslo!")]
    {
        let body = json!({"name": name, "messages": [said("user", "Hello."), said("user", text)]});
        done(&server, key, "POST", ALL, body).await;
    }
    let find =
        async |query: &str| done(&server, "acme", "GET", &format!("{ALL}?search={query}"), Value::Null).await;
    let answer = find("%20oSLO%20").await;
    let [trip] = &answer["data"].as_array().unwrap()[..] else { panic!("{answer}") };
    assert_eq!((&trip["name"], &trip["messages"]), (&json!("trip"), &json!(2)));
    assert_eq!(trip["found"], json!({"message": 1, "before": "I am in ", "text": "Oslo", "after": "."}));
    assert_eq!((&answer["has_more"], &answer["next"]), (&json!(false), &Value::Null));
    let named = find("foo").await;
    assert_eq!((&named["data"][0]["name"], &named["data"][0]["found"]), (&json!("food"), &Value::Null));
    let first = find("hello&limit=1").await;
    assert_eq!((&first["data"][0]["name"], &first["has_more"]), (&json!("food"), &json!(true)));
    let second = find(&format!("hello&limit=1&after={}", first["next"].as_str().unwrap())).await;
    assert_eq!((&second["data"][0]["name"], &second["has_more"]), (&json!("trip"), &json!(false)));
    let long = "x".repeat(257);
    for (query, status, parameter) in [
        ("", 400, "search"),
        ("%20", 400, "search"),
        (&long, 400, "search"),
        ("a&after=conv_1", 404, "after"),
    ] {
        let path = format!("{ALL}?search={query}");
        let (answered, answer) = send(&server, "acme", "GET", &path, Value::Null).await;
        assert_eq!((answered.as_u16(), &answer["error"]["param"]), (status, &json!(parameter)), "{answer}");
    }
}

//! Interactions of parts, over the routes: each test is named by a row of `docs/where-parts-meet.md`.

use std::time::{Duration, Instant};

use axum::http::StatusCode;
use kvik_engine::api::FinishReason;
use kvik_memory::{
    memory::{MemoryConfig, make_summaries},
    records::Records,
};
use serde_json::{Value, json};

use super::{
    Server, config, json_of, kept, lora,
    memory_bounds::Held,
    say,
    tenants::{code, keys},
    with,
};
use crate::{
    accounts::tenants::{DEFAULT_NAME, Secret},
    app::{AppConfig, seal::Seal},
};
use kvik_serving::settings::{model::CacheArgs, size::ByteSize};

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";
const ALL: &str = "/v1/conversations";
const PAIR: &str = "[tenant.acme]\nKEY:acme;\n[tenant.beta]\nKEY:beta;\n";

fn server() -> Server {
    Server::build(|request| Ok(say(request, "Hi!", FinishReason::Eos)), keys(PAIR), config())
}

async fn send(server: &Server, key: &str, method: &str, path: &str, body: Value) -> (StatusCode, Value) {
    let bearer = format!("Bearer {key}");
    let headers = [("authorization", &bearer[..]), ("anthropic-version", "2023-06-01")];
    let body = if body.is_null() { String::new() } else { body.to_string() };
    json_of(server.send_with(method, path, body, &headers).await).await
}

async fn done(server: &Server, method: &str, path: &str, body: Value) -> Value {
    let (status, answer) = send(server, "acme", method, path, body).await;
    assert_eq!(status, 200, "{method} {path}: {answer}");
    answer
}

/// Sends a request that must be refused at this field; Ollama's errors have no field and give the reason.
async fn refused(server: &Server, path: &str, body: Value, field: &str) -> Value {
    let (status, answer) = send(server, "acme", "POST", path, body).await;
    assert_eq!(status, 400, "{path}: {answer}");
    match answer["error"].get("param") {
        Some(param) => assert_eq!(param, field, "{path}: {answer}"),
        None => assert!(answer.to_string().contains("leave nothing behind"), "{path}: {answer}"),
    }
    answer["error"].clone()
}

/// Holds for every dialect's way to request privacy.
#[tokio::test]
async fn a_private_request_is_neither_written_down_nor_summarised_in_any_dialect() {
    let server = server();
    let hello = json!([{"role": "user", "content": "Hello."}]);
    let kvik = |name: &str, value: Value| json!({"kvik": {"cache": "private", name: value}});
    for private in [json!({"cache_prompt": false}), json!({"kvik": {"cache": "private"}})] {
        let asked = |more: Value| with(with(json!({"input": "Hello."}), private.clone()), more);
        refused(&server, RESPONSES, asked(json!({"conversation": "diary"})), "conversation").await;
        refused(&server, RESPONSES, asked(json!({"conversation": {"id": "diary"}})), "conversation").await;
        refused(&server, RESPONSES, asked(json!({"truncation": "auto"})), "truncation").await;
        let plain = done(&server, "POST", RESPONSES, asked(json!({"truncation": "disabled"}))).await;
        assert!(plain["kvik"].get("memory").is_none(), "{plain}");
        let id = plain["id"].as_str().unwrap();
        let (status, _) = send(&server, "acme", "GET", &format!("{RESPONSES}/{id}"), Value::Null).await;
        assert_eq!(status, 404, "it is not stored");
    }
    for (path, body) in [
        (CHAT, json!({"messages": hello})),
        ("/api/chat", json!({"messages": hello, "stream": false})),
        ("/v1/messages", json!({"messages": hello, "max_tokens": 4})),
    ] {
        let conversation = with(body.clone(), kvik("conversation", json!("diary")));
        refused(&server, path, conversation, "kvik.cache").await;
        refused(&server, path, with(body, kvik("memory", json!(true))), "kvik.memory").await;
    }
    assert_eq!(done(&server, "GET", ALL, Value::Null).await["data"], json!([]));
}

/// A summary contains what was said. Once the messages are removed, nothing refers to the summary, not even
/// the deletion of the conversation.
#[tokio::test]
async fn what_is_taken_back_is_remembered_no_more() {
    for (from, left) in [(1, 0), (usize::MAX, 1)] {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::open(dir.path(), Duration::ZERO).unwrap();
        let world = Held::new(usize::MAX, AppConfig { records: Some(records.clone()), ..config() });
        let said = world.talks().await;
        tokio::spawn(make_summaries(world.server.app.clone()));
        world.until("the summary", || world.asked() >= 2).await;
        world.rests().await;
        let kept = || records.table::<Value>("summaries").all_from("").unwrap().records.len();
        world.until("its record", || kept() == 1).await;
        let from = from.min(said.as_array().unwrap().len());
        world.done("DELETE", &format!("{ALL}/trip/messages?from={from}"), Value::Null).await;
        let memory = world.done("GET", &format!("{ALL}/trip/memory"), Value::Null).await;
        assert_eq!(memory["summary"].is_null(), left == 0, "{memory}");
        assert_eq!(kept(), left, "on the disk");
        world.done("DELETE", &format!("{ALL}/trip"), Value::Null).await;
        assert_eq!(kept(), 0, "on the disk, of a conversation that is deleted");
    }
}

/// Stores responses, each of which continues the one before, until a summary of them is due, and makes it. The first has
/// this input too. Returns their ids.
async fn summarised_responses(world: &Held, mut input: Vec<Value>) -> Vec<String> {
    let (mut ids, mut is_due) = (Vec::<String>::new(), false);
    while !is_due {
        let text = format!("The bus number {} was late again. I had noodles for lunch.", ids.len());
        input.push(json!({"role": "user", "content": text}));
        let body = json!({"input": input, "previous_response_id": ids.last()});
        let answer = world.done("POST", RESPONSES, body).await;
        ids.push(answer["id"].as_str().unwrap().to_owned());
        is_due = answer["kvik"]["memory"]["rebuilding"] == true;
        assert!(ids.len() < 200, "no summary is due: {answer}");
        input.clear();
    }
    tokio::spawn(make_summaries(world.server.app.clone()));
    world.until("the summary", || world.asked() >= 2).await;
    world.rests().await;
    ids
}

/// Deleting a response deletes its summaries, which are found by the messages up to it.
#[tokio::test]
async fn a_stored_response_that_is_deleted_is_remembered_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let records = Records::open(dir.path(), Duration::ZERO).unwrap();
    let world = Held::new(usize::MAX, AppConfig { records: Some(records.clone()), ..config() });
    let ids = summarised_responses(&world, Vec::new()).await;
    let kept = || records.table::<Value>("summaries").all_from("").unwrap().records.len();
    world.until("its record", || kept() == 1).await;
    let path = |id: &String| format!("{RESPONSES}/{id}");
    world.done("DELETE", &path(ids.last().unwrap()), Value::Null).await;
    assert_eq!(kept(), 1, "the summary says nothing of the newest");
    for id in ids.iter().rev().skip(1) {
        world.done("DELETE", &path(id), Value::Null).await;
    }
    assert_eq!(kept(), 0, "on the disk");
}

/// The summary covers many responses, and its identity is that of the last of them.
#[tokio::test]
async fn a_summary_is_deleted_with_any_response_that_it_covers() {
    let summary = json!({"text": "The bus was late.", "covers": 4, "updates": 1, "made": 1});
    let recent = json!([{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hi!"}]);
    let compaction =
        json!({"systems": [], "opening": [], "summary": summary, "chain": vec![7; 32], "recent": recent});
    let compaction = serde_json::from_value(compaction).unwrap();
    for (first, has_item) in [(0, false), (1, false), (0, true), (1, true)] {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::open(dir.path(), Duration::ZERO).unwrap();
        let world = Held::new(usize::MAX, AppConfig { records: Some(records.clone()), ..config() });
        let item = has_item.then(|| world.server.app.seal.item(DEFAULT_NAME, &compaction).unwrap());
        let mut ids = summarised_responses(&world, item.into_iter().collect()).await;
        let kept = || records.table::<Value>("summaries").all_from("").unwrap().records.len();
        world.until("its record", || kept() == 1).await;
        world.done("DELETE", &format!("{RESPONSES}/{}", ids.remove(first)), Value::Null).await;
        assert_eq!(kept(), 0, "with response {first}, behind an item: {has_item}");
        for id in ids {
            world.done("DELETE", &format!("{RESPONSES}/{id}"), Value::Null).await;
        }
    }
}

/// A message of many small values; a million are about as large in memory as one body may be.
fn heavy(values: usize) -> Value {
    json!({"role": "user", "content": "x", "more": vec![json!([1]); values]})
}

/// Every turn builds the whole conversation in memory, so its size is bounded by that of a body.
#[tokio::test]
async fn a_conversation_of_many_small_values_does_not_grow_beyond_what_a_body_may_be() {
    let server = server();
    let turn = |message: Value| json!({"messages": [message], "kvik": {"conversation": "trip"}});
    done(&server, "POST", ALL, json!({"name": "trip", "messages": [heavy(120_000)]})).await;
    done(&server, "POST", CHAT, turn(heavy(1000))).await;
    let error = refused(&server, CHAT, turn(heavy(120_000)), "kvik.conversation").await;
    assert_eq!(error["code"], "conversation_limit", "{error}");
    let exported = done(&server, "GET", &format!("{ALL}/trip/export"), Value::Null).await;
    let again = with(exported, json!({"name": "again"}));
    assert_eq!(done(&server, "POST", ALL, again).await["messages"], 3, "what is exported can be sent again");
}

/// Chains of stored answers have the same bound.
#[tokio::test]
async fn a_chain_of_stored_answers_says_no_more_than_a_body_may() {
    let server = server();
    let role = |number: usize| ["user", "assistant"][number % 2];
    let item = |number: usize| json!({"role": role(number), "content": ""});
    let said = |count: usize| (0..count).map(item).collect::<Value>();
    let off = json!({"truncation": "auto"});
    let first = done(&server, "POST", RESPONSES, with(json!({"input": said(32_801)}), off.clone())).await;
    let next =
        |count: usize| with(json!({"input": said(count), "previous_response_id": first["id"]}), off.clone());
    refused(&server, RESPONSES, next(32_801), "input").await;
    done(&server, "POST", RESPONSES, next(1)).await;
}

/// Whoever knows or guesses the id of an item reads nothing of it, by any route that reads items.
#[tokio::test]
async fn an_item_of_a_stored_response_is_its_tenants_alone() {
    let server = server();
    let first = done(&server, "POST", RESPONSES, json!({"input": "Secret."})).await;
    let reference = json!({"type": "item_reference", "id": first["output"][0]["id"]});
    let items = json!([reference, {"role": "user", "content": "What was it?"}]);
    done(&server, "POST", RESPONSES, json!({"input": items})).await;
    done(&server, "POST", ALL, json!({"name": "mine", "items": items})).await;
    let kept = done(&server, "GET", &format!("{ALL}/mine"), Value::Null).await;
    assert_eq!(kept["messages"][0], json!({"role": "assistant", "content": "Hi!"}));
    assert_eq!(send(&server, "beta", "POST", ALL, json!({"name": "theirs"})).await.0, 200);
    for (path, body) in [
        (RESPONSES, json!({"input": items})),
        ("/v1/responses/input_tokens", json!({"input": items})),
        ("/v1/responses/compact", json!({"input": items})),
        (ALL, json!({"items": items})),
        ("/v1/conversations/theirs/items", json!({"items": items})),
    ] {
        let (status, answer) = send(&server, "beta", "POST", path, body).await;
        assert_eq!((status.as_u16(), code(&answer)), (404, "item_not_found"), "{path}: {answer}");
    }
}

/// A summary is placed in the system message, which begins the prompt. A conversation that names a compressed
/// prefix is therefore not summarised, and is not refused when a summary would be used.
#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_that_begins_with_a_kept_part_goes_on_where_a_summary_would_change_its_beginning() {
    let memory = MemoryConfig {
        on: true,
        recent_max: Some(300),
        summary_max: Some(64),
        trigger_discard: Some(120),
        ..MemoryConfig::default()
    };
    let cache = CacheArgs::in_ram(2048, ByteSize(64 << 20));
    let server = kept::Server::configured("", cache, AppConfig { memory, ..config() });
    tokio::spawn(make_summaries(server.app.clone()));
    let system = json!({"role": "system", "content": "You are a helpful assistant for whoever waits for a bus that is late."});
    let kept = json!({"messages": [system], "retain": "keydiff:0.5"});
    server.done("", "PUT", "/v1/prompts/manual", kept).await;
    let mut messages = vec![system];
    for turn in 0..20 {
        let text = format!("The bus number {turn} was late again. I had noodles for lunch.");
        messages.push(json!({"role": "user", "content": text}));
        let body = json!({"messages": messages, "max_tokens": 8, "temperature": 0, "kvik": {"kept_prefix": "manual"}});
        let answer = server.done("", "POST", CHAT, body.clone()).await;
        assert_eq!(answer["kvik"]["retain"]["policy"], "keydiff:0.5", "turn {turn}: {answer}");
        assert!(answer["kvik"].get("memory").is_none(), "{answer}");
        for (more, field) in [
            (json!({"kvik": {"kept_prefix": "manual", "memory": true}}), "kvik.kept_prefix"),
            (json!({"context_management": [{"type": "compaction"}]}), "context_management"),
        ] {
            let (status, refused) = server.send("", "POST", CHAT, with(body.clone(), more)).await;
            assert_eq!((status.as_u16(), &refused["error"]["param"]), (400, &json!(field)), "{refused}");
        }
        messages.push(answer["choices"][0]["message"].clone());
        server.settles_down().await;
    }
}

/// A slot's prompt can be saved, so a private request leaves its slot empty.
#[tokio::test]
async fn a_slot_holds_nothing_of_a_private_request() {
    let server = server();
    let asked = |private: bool| json!({"prompt": "Hello there.", "id_slot": 0, "cache_prompt": !private});
    let key = (server.app.keys().tenants().named("acme").unwrap().id, 0);
    done(&server, "POST", "/completion", asked(false)).await;
    assert!(server.app.slots.get(key).is_some_and(|tokens| !tokens.is_empty()));
    done(&server, "POST", "/completion", asked(true)).await;
    assert_eq!(server.app.slots.get(key), None);
}

/// Adapters are part of a prompt's identity: the same text with other adapters is another prompt.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_with_other_adapters_is_compared_as_one_of_another_model() {
    let dir = tempfile::tempdir().unwrap();
    let server = lora::configured(dir.path(), "", config());
    let words =
        "The bus was late again, and I had noodles for lunch while I waited for the next one to come.";
    let ask = async |model: &str, with: &Value| {
        let body = json!({
            "model": model, "messages": [{"role": "user", "content": words}], "max_tokens": 2,
            "prompt_cache_options": {"comparison_response_id": with},
        });
        server.done("", "POST", CHAT, body).await
    };
    let first = ask("one", &Value::Null).await;
    let check = async |model: &str, expect: Value| {
        let answer = ask(model, &first["id"]).await;
        let found = &answer["prompt_cache_diagnostics"];
        assert_eq!(found["reason"], expect["reason"], "{model}: {answer}");
        assert_eq!(found["type"], expect["type"], "{model}: {answer}");
    };
    check("one", json!({"type": "cache_hit"})).await;
    for other in ["two", "kvik-tiny"] {
        check(other, json!({"type": "cache_miss", "reason": "model_changed"})).await;
    }
}

/// A tenant's conversations are limited, so that starting, listing and naming them take bounded time. At the
/// limit, new ones are refused until one is deleted; other tenants are unaffected.
#[tokio::test]
async fn of_a_hundred_thousand_conversations_of_one_tenant_as_many_are_kept_as_may_be() {
    const MAX: usize = 4096;
    const ASKED: usize = if cfg!(debug_assertions) { 6_000 } else { 100_000 };
    let records = Records::in_memory();
    let open = || {
        let config = AppConfig { conversations: Some(records.clone()), ..config() };
        Server::build(|request| Ok(say(request, "Hi!", FinishReason::Eos)), keys(PAIR), config)
    };
    let server = open();
    let begin = |number: usize| {
        let mut held = server.app.server.conversations.begin("acme", Some(&format!("trip {number}")))?;
        held.append(&[json!({"role": "user", "content": format!("Bus {number}.")})])?;
        Ok::<String, kvik_memory::conversations::ConversationError>(held.key().id.clone())
    };
    let ids: Vec<String> = (0..MAX).map(|number| begin(number).unwrap()).collect();
    let started = Instant::now();
    assert!((MAX..ASKED).all(|number| begin(number).is_err()));
    assert!(started.elapsed() < Duration::from_secs(60), "{:?} for what is refused", started.elapsed());
    let named = |number: usize| json!({"name": format!("trip {number}")});
    let refusal = send(&server, "acme", "POST", ALL, named(MAX)).await;
    assert_eq!((refusal.0.as_u16(), code(&refusal.1)), (400, "conversation_limit"), "{}", refusal.1);
    let turn = json!({"messages": [{"role": "user", "content": "x"}], "kvik": {"conversation": "another"}});
    let refusal = send(&server, "acme", "POST", CHAT, turn.clone()).await;
    assert_eq!((refusal.0.as_u16(), code(&refusal.1)), (400, "conversation_limit"), "{}", refusal.1);
    assert_eq!(send(&server, "beta", "POST", CHAT, turn).await.0, 200, "another tenant's");
    drop(server);

    let started = Instant::now();
    let server = open();
    assert!(started.elapsed() < Duration::from_secs(10), "{:?} to start", started.elapsed());
    let (mut listed, mut after) = (0, String::new());
    loop {
        let page = done(&server, "GET", &format!("{ALL}?limit=1000{after}"), Value::Null).await;
        let data = page["data"].as_array().unwrap();
        listed += data.len();
        if page["has_more"] == false {
            break;
        }
        after = format!("&after={}", data.last().unwrap()["id"].as_str().unwrap());
    }
    assert_eq!(listed, MAX);
    let found = done(&server, "GET", &format!("{ALL}?search=bus%2077."), Value::Null).await;
    assert!(found.to_string().len() < 64 << 10, "a page of a search is small");
    done(&server, "DELETE", &format!("{ALL}/{}", ids[7]), Value::Null).await;
    done(&server, "POST", ALL, named(MAX)).await;
    done(&server, "GET", &format!("{ALL}/trip%20{MAX}"), Value::Null).await;
}

/// Summaries are texts that are computed with the default adapters, whatever adapters the turn had, so
/// requests with other adapters read the same summary.
#[tokio::test(flavor = "multi_thread")]
async fn a_summary_does_not_depend_on_the_adapters_of_the_turn_that_it_is_made_behind() {
    let dir = tempfile::tempdir().unwrap();
    let mut history = vec![json!({"role": "system", "content": "You are a helpful assistant."})];
    for turn in 0..12 {
        history.push(json!({"role": "user", "content": format!("The bus number {turn} was late again.")}));
        history.push(json!({"role": "assistant", "content": "That is annoying. I hope tomorrow is better."}));
    }
    history.push(json!({"role": "user", "content": "Hello."}));
    let summary_behind = async |asked: &str, then: &str| {
        let memory = little_memory();
        let server = lora::configured(dir.path(), "", AppConfig { memory, ..config() });
        tokio::spawn(make_summaries(server.app.clone()));
        let body = |model: &str| {
            json!({"model": model, "messages": history, "max_tokens": 4, "temperature": 0,
                "context_management": [{"type": "compaction"}]})
        };
        server.done("", "POST", CHAT, body(asked)).await;
        server.settles_down().await;
        let answer = server.done("", "POST", CHAT, body(then)).await;
        let item = &answer["choices"][0]["message"]["compaction"]["encrypted_content"];
        let item = item.as_str().unwrap_or_else(|| panic!("no item: {answer}"));
        server.app.seal.open(DEFAULT_NAME, item).unwrap().summary.text
    };
    let plain = summary_behind("kvik-tiny", "kvik-tiny").await;
    assert!(!plain.is_empty());
    assert_eq!(summary_behind("one", "two").await, plain);
    assert_eq!(summary_behind("two", "one").await, plain);
}

/// Bounds that a short conversation exceeds.
fn little_memory() -> MemoryConfig {
    MemoryConfig {
        recent_max: Some(200),
        summary_max: Some(48),
        trigger_discard: Some(80),
        quotes_max: Some(0),
        ..MemoryConfig::default()
    }
}

/// The conversation behind a summary is computed as its turns are, so that the next one finds it.
#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_is_computed_behind_its_summary_with_the_adapters_of_its_turns() {
    let dir = tempfile::tempdir().unwrap();
    let memory = MemoryConfig { on: true, ..little_memory() };
    let server = lora::configured(dir.path(), "", AppConfig { memory, ..config() });
    tokio::spawn(make_summaries(server.app.clone()));
    let mut messages = vec![json!({"role": "system", "content": "You are a helpful assistant."})];
    for turn in 0..60 {
        let text = format!("The bus number {turn} was late again.");
        messages.push(json!({"role": "user", "content": text}));
        let body = json!({"model": "one", "messages": messages, "max_tokens": 8, "temperature": 0});
        let answer = server.done("", "POST", CHAT, body).await;
        messages.push(answer["choices"][0]["message"].clone());
        server.settles_down().await;
        let memory = &answer["kvik"]["memory"];
        if memory["rebuilt"] == true {
            let usage = &answer["usage"];
            let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
            let is_found = usage["prompt_tokens"].as_u64().unwrap() - cached < 64;
            assert!(is_found && memory["computed_ahead"] == true, "{answer}");
            return;
        }
    }
    panic!("no summary is read in sixty turns");
}

/// Embeddings are computed with the default adapters, and are cached for those adapters only.
#[tokio::test(flavor = "multi_thread")]
async fn embeddings_are_those_of_the_adapters_that_apply_to_all() {
    let dir = tempfile::tempdir().unwrap();
    let server = lora::configured(dir.path(), "", config());
    let embed = async |scale: f64| {
        server.done("", "POST", "/lora-adapters", json!([{"id": 0, "scale": scale}])).await;
        let body = json!({"input": "The bus was late again, and I had noodles for lunch while I waited."});
        server.done("", "POST", "/v1/embeddings", body).await["data"][0]["embedding"].take()
    };
    let (plain, with, half) = (embed(0.0).await, embed(1.0).await, embed(0.5).await);
    assert!(plain != with && with != half && plain != half);
    assert_eq!([embed(1.0).await, embed(0.0).await, embed(0.5).await], [with, plain, half]);
}

/// An item in the format of each dialect.
#[tokio::test]
async fn an_item_of_a_tenant_is_read_in_all_its_dialects_and_refused_to_others_in_each() {
    let server = Server::build(
        |request| Ok(say(request, "They spoke of the sea.", FinishReason::Eos)),
        keys(PAIR),
        config(),
    );
    let said = json!([{"role": "user", "content": "Tell me of the sea, which is wide."}]);
    let compacted = done(&server, "POST", "/v1/responses/compact", json!({"input": said})).await;
    let item = compacted["output"][0].clone();
    let sealed = item["encrypted_content"].clone();
    let question = json!({"role": "user", "content": "Is it salty?"});
    let block = json!({"role": "assistant", "content": [{"type": "compaction", "content": sealed}]});
    let chat = json!({"messages": [{"role": "user", "content": "dropped"}, item, question]});
    let with_field =
        json!({"messages": [{"role": "assistant", "content": "It is so.", "compaction": item}, question]});
    let asked = [
        (CHAT, chat),
        (CHAT, with_field),
        (RESPONSES, json!({"input": [item, question]})),
        ("/v1/messages", json!({"messages": [block, question], "max_tokens": 4})),
        ("/v1/messages/count_tokens", json!({"messages": [block, question]})),
    ];
    for (path, body) in asked {
        let asked_before = server.engine.asked.lock().unwrap().len();
        done(&server, "POST", path, body.clone()).await;
        if server.engine.asked.lock().unwrap().len() > asked_before {
            let read = server.app.serving.texts.tokenizer.decode(&server.asked().prompt);
            let is_read = read.contains("They spoke of the sea.") && read.contains("salty");
            assert!(is_read && !read.contains("wide") && !read.contains("dropped"), "{path}: {read}");
        }
        // Another tenant, and the same one with an item that is truncated, doubled or replaced.
        let (status, answer) = send(&server, "beta", "POST", path, body.clone()).await;
        assert_eq!(status, 400, "{path}: {answer}");
        let whole = sealed.as_str().unwrap();
        for other in [&whole[..whole.len() / 2], &format!("{whole}{whole}"), "", &"A".repeat(1 << 19)] {
            let body: Value = serde_json::from_str(&body.to_string().replace(whole, other)).unwrap();
            let (status, answer) = send(&server, "acme", "POST", path, body).await;
            assert_eq!(status, 400, "{path}: {answer}");
        }
        // The item may be sent repeatedly.
        done(&server, "POST", path, body).await;
    }
}

/// Another model with the same secret, whose context is smaller than the item.
#[tokio::test]
async fn an_item_that_is_longer_than_the_context_of_this_model_is_refused_with_the_numbers() {
    let secret = Secret::of_this_process();
    let summary = |words: usize| {
        let summary = json!({"text": "late again ".repeat(words), "covers": 4, "updates": 1, "made": 1});
        let recent = json!([{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hi!"}]);
        let compaction =
            json!({"systems": [], "opening": [], "summary": summary, "chain": vec![7; 32], "recent": recent});
        let compaction = serde_json::from_value(compaction).unwrap();
        Seal::new(secret.clone()).item("acme", &compaction).unwrap()
    };
    let script = |request: &kvik_engine::api::Request| Ok(say(request, "Hi!", FinishReason::Eos));
    let server = Server::build(script, keys(PAIR), AppConfig { secret: Some(secret.clone()), ..config() });
    let body = |words: usize| json!({"messages": [summary(words), {"role": "user", "content": "And?"}]});
    done(&server, "POST", CHAT, body(10)).await;
    let (status, answer) = send(&server, "acme", "POST", CHAT, body(20_000)).await;
    assert_eq!((status.as_u16(), code(&answer)), (400, "context_length_exceeded"), "{answer}");
}

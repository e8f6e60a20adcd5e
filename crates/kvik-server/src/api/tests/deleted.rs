//! Deletions while models are loaded and unloaded, the model of a conversation, and what tenants see of the
//! server.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use kvik_engine::api::FinishReason;
use kvik_memory::{
    deletions::Owner,
    records::{FILE_NAME, Records},
};
use serde_json::{Value, json};

use super::{
    Server, config, json_of, kept, say,
    shelf::World,
    tenants::{code, keys},
};
use crate::{
    accounts::{ledger::hanging::Gate, tenants::DEFAULT_NAME},
    app::{AppConfig, keys::Keys},
};
use kvik_serving::settings::{model::CacheArgs, size::ByteSize};

const TENANTS: &str = "[tenant.acme]\nKEY:acme;\n";

fn said(conversation: &str, model: Option<&str>) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "Hello."}], "max_tokens": 2});
    body["kvik"] = json!({"conversation": conversation});
    if let Some(model) = model {
        body["model"] = json!(model);
    }
    body
}

async fn done(world: &World, method: &str, path: &str, body: &Value) -> Value {
    let (status, answer) = json_of(world.send(method, path, body).await).await;
    assert_eq!(status.as_u16(), 200, "{method} {path}: {answer}");
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deletion_does_not_wait_for_a_model_that_is_loaded() {
    let world = Arc::new(World::new(&["a", "b"]));
    let id =
        done(&world, "POST", "/v1/chat/completions", &said("talk", Some("a"))).await["kvik"]["conversation"]
            ["id"]
            .take();
    let path = format!("/v1/conversations/{}", id.as_str().unwrap());
    world.seen.stalls.store(true, Ordering::Relaxed);
    let loading = tokio::spawn({
        let world = world.clone();
        async move { world.send("POST", "/v1/completions", &json!({"model": "b", "prompt": "x"})).await.status() }
    });
    world.until(1, "loading").await;
    for _ in 0..2 {
        let began = Instant::now();
        let answer = done(&world, "DELETE", &path, &Value::Null).await;
        assert_eq!((&answer["deleted"], &answer["pending"]), (&json!(false), &json!(true)), "{answer}");
        assert!(began.elapsed() < Duration::from_secs(4));
        assert_eq!(world.send("GET", &path, &Value::Null).await.status().as_u16(), 404, "nobody reads it");
    }
    world.seen.stalls.store(false, Ordering::Relaxed);
    assert_eq!(loading.await.unwrap().as_u16(), 200);
    let answer = done(&world, "DELETE", &path, &Value::Null).await;
    assert_eq!((&answer["deleted"], &answer["pending"]), (&json!(true), &Value::Null));
    assert_eq!(world.send("DELETE", &path, &Value::Null).await.status().as_u16(), 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deletion_by_name_is_of_the_conversation_that_has_it_now() {
    const TALK: &str = "/v1/conversations/talk";
    let world = Arc::new(World::new(&["a", "b"]));
    done(&world, "POST", "/v1/chat/completions", &said("talk", Some("a"))).await;
    world.seen.stalls.store(true, Ordering::Relaxed);
    let loading = tokio::spawn({
        let world = world.clone();
        async move { world.send("POST", "/v1/completions", &json!({"model": "b", "prompt": "x"})).await.status() }
    });
    world.until(1, "loading").await;
    assert_eq!(done(&world, "DELETE", TALK, &Value::Null).await["pending"], true);
    let new = done(&world, "POST", "/v1/conversations", &json!({"name": "talk"})).await;
    let held = world.server.conversations.hold(DEFAULT_NAME, "talk").unwrap();
    let (status, busy) = json_of(world.send("DELETE", TALK, &Value::Null).await).await;
    assert_eq!((status.as_u16(), code(&busy)), (409, "conversation_busy"), "the older one is not meant");
    drop(held);
    assert_eq!(done(&world, "DELETE", TALK, &Value::Null).await["id"], new["id"]);
    world.seen.stalls.store(false, Ordering::Relaxed);
    assert_eq!(loading.await.unwrap().as_u16(), 200);
}

#[tokio::test]
async fn a_conversation_goes_on_with_its_model_until_another_one_is_named() {
    let world = World::new(&["a", "b"]);
    for (named, asked) in [(Some("b"), "b"), (None, "b"), (Some(""), "b"), (Some("a"), "a"), (None, "a")] {
        // Requests for other models run in between.
        let other = if asked == "a" { "b" } else { "a" };
        done(&world, "POST", "/v1/completions", &json!({"model": other, "prompt": "x"})).await;
        let answer = done(&world, "POST", "/v1/chat/completions", &said("talk", named)).await;
        assert_eq!(answer["model"], asked, "{named:?}");
        let shown = done(&world, "GET", "/v1/conversations/talk", &Value::Null).await;
        assert_eq!(shown["model"], asked);
    }
    let fork = json!({"name": "fork", "from": "talk"});
    assert_eq!(done(&world, "POST", "/v1/conversations", &fork).await["model"], "a");
    done(&world, "POST", "/v1/completions", &json!({"model": "b", "prompt": "x"})).await;
    assert_eq!(done(&world, "POST", "/v1/chat/completions", &said("fork", None)).await["model"], "a");
    for strange in [json!("x"), json!(7), json!({"conversation": 7}), Value::Null] {
        let mut body = said("talk", Some("a"));
        body["kvik"] = strange;
        let answer = json_of(world.send("POST", "/v1/chat/completions", &body).await).await;
        assert_eq!(answer.1["model"].as_str().unwrap_or("a"), "a", "the model that is named is asked");
    }
}

#[tokio::test]
async fn tenants_do_not_see_where_files_of_the_server_are() {
    let world = World::keyed(&["a", "b"], keys(TENANTS));
    let hello = json!({"model": "a", "prompt": "x"});
    assert_eq!(world.send_as("acme", "POST", "/v1/completions", &hello).await.status().as_u16(), 200);
    world.seen.breaks.store(true, Ordering::Relaxed);
    let broken = json!({"model": "b", "prompt": "x"});
    for (key, sees) in [("acme", false), ("root", true)] {
        let mut all = String::new();
        for (method, path, body) in [
            ("POST", "/v1/completions", &broken),
            ("GET", "/v1/shelf", &Value::Null),
            ("GET", "/v1/models", &Value::Null),
            ("GET", "/v1/models/b", &Value::Null),
            ("POST", "/api/show", &json!({"model": "a"})),
            ("POST", "/api/show", &json!({"model": "b"})),
            ("GET", "/api/tags", &Value::Null),
            ("GET", "/props", &Value::Null),
            ("GET", "/server_info", &Value::Null),
            ("GET", "/model_info", &Value::Null),
        ] {
            let (_, answer) = json_of(world.send_as(key, method, path, body).await).await;
            all += &answer.to_string();
        }
        assert_eq!(
            (all.contains("/secret/"), all.contains("its file is broken")),
            (sees, sees),
            "{key}: {all}"
        );
        assert_eq!(all.contains("the server's log says why"), !sees);
    }
}

#[tokio::test]
async fn a_prompt_that_cannot_take_the_place_of_another_leaves_it_there() {
    let server = kept::Server::new("");
    let put = |first: u32, count: u32| json!({"prompt": kept::tokens(first, count)});
    server.done("", "PUT", "/v1/prompts/a", put(1, 64)).await;
    let before = server.done("", "GET", "/v1/prompts/a", Value::Null).await;
    assert_eq!((&before["cached"], &before["pinned"]), (&json!(true), &json!(true)));
    // Other prompts use up the room for pins.
    let mut others = 0;
    loop {
        let (status, _) =
            server.send("", "PUT", &format!("/v1/prompts/other-{others}"), put(10 + others, 480)).await;
        if status != 200 {
            break;
        }
        others += 1;
        assert!(others < 250, "there is a limit");
    }
    let (status, answer) = server.send("", "PUT", "/v1/prompts/a", put(7, 490)).await;
    assert_eq!(status.as_u16(), 400, "{answer}");
    assert_eq!(server.done("", "GET", "/v1/prompts/a", Value::Null).await, before);
    server.done("", "DELETE", "/v1/prompts/other-0", Value::Null).await;
    let after = server.done("", "PUT", "/v1/prompts/a", put(7, 80)).await;
    assert_eq!(after["tokens"], 80);
    let (_, old) = server.send("", "POST", "/v1/cache/explain", put(1, 64)).await;
    assert_eq!(cached(&old), 0, "the old one is let go: {old}");
}

/// Prompt tokens that an explanation says are cached.
fn cached(explained: &Value) -> u64 {
    explained["kvik"]["cache"]["cached_tokens"].as_u64().unwrap()
}

#[tokio::test]
async fn a_prompt_that_cannot_be_written_down_leaves_the_one_before_it() {
    let gate = Gate::default();
    let config = AppConfig { records: Some(gate.records()), ..config() };
    let server = kept::Server::configured("", CacheArgs::in_ram(512, ByteSize(8 << 20)), config);
    let put = |first: u32, count: u32| json!({"prompt": kept::tokens(first, count)});
    server.done("", "PUT", "/v1/prompts/a", put(1, 64)).await;
    let before = server.done("", "GET", "/v1/prompts/a", Value::Null).await;
    gate.set_full(true);
    for (name, prompt) in [("a", put(7, 80)), ("b", put(9, 48)), ("c", put(11, 70)), ("d", put(13, 10))] {
        let (status, answer) = server.send("", "PUT", &format!("/v1/prompts/{name}"), prompt.clone()).await;
        assert_eq!((status.as_u16(), code(&answer)), (503, "storage_unavailable"), "{name}: {answer}");
        let (_, found) = server.send("", "POST", "/v1/cache/explain", prompt).await;
        assert_eq!(cached(&found), 0, "it is not kept without its name: {found}");
    }
    assert_eq!(server.done("", "GET", "/v1/prompts/a", Value::Null).await, before);
    assert_eq!(server.send("", "GET", "/v1/prompts/b", Value::Null).await.0, 404);
    gate.set_full(false);
    let again = async {
        while server.send("", "PUT", "/v1/prompts/a", put(7, 80)).await.0 != 200 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), again).await.expect("there is room again");
    assert_eq!(server.done("", "GET", "/v1/prompts/a", Value::Null).await["tokens"], 80);
}

/// A server that answers everything with a word.
fn answering(config: AppConfig) -> Server {
    Server::build(|request| Ok(say(request, "Hi!", FinishReason::Eos)), Keys::new([]), config)
}

/// Nobody can delete what never was, and its notes kept the blocks of what others delete.
#[tokio::test]
async fn prompts_noted_by_a_killed_process_for_answers_that_it_never_wrote_are_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        let conversations = Some(Records::open(dir.path(), Duration::ZERO).unwrap());
        answering(AppConfig { conversations, state_dir: Some(dir.path().to_owned()), ..config() })
    };
    let server = open();
    let (_, talk) = server.post("/v1/chat/completions", said("talk", None)).await;
    let (_, response) = server.post("/v1/responses", json!({"input": "Hello."})).await;
    let unwritten = Owner::new(DEFAULT_NAME, "resp_0");
    server.app.server.prompt_log.note([0; 16], &unwritten, &[1; 40]).unwrap();
    drop(server);
    let server = open();
    let noted = |id: &str| server.app.server.prompt_log.of(&Owner::new(DEFAULT_NAME, id)).unwrap().count();
    assert_eq!(noted("resp_0"), 0);
    for written in [&talk["kvik"]["conversation"]["id"], &response["id"]] {
        assert_eq!(noted(written.as_str().unwrap()), 1, "{written}");
    }
}

/// They are the only way to find what was computed for a conversation.
#[tokio::test]
async fn prompts_stay_noted_for_conversations_of_records_that_may_be_put_back() {
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        let conversations = Some(Records::open(dir.path(), Duration::ZERO).unwrap());
        answering(AppConfig { conversations, state_dir: Some(dir.path().to_owned()), ..config() })
    };
    let (_, talk) = open().post("/v1/chat/completions", said("talk", None)).await;
    let owner = Owner::new(DEFAULT_NAME, talk["kvik"]["conversation"]["id"].as_str().unwrap());
    let noted = |server: &Server| server.app.server.prompt_log.of(&owner).unwrap().count();
    let (file, before) = (dir.path().join(FILE_NAME), dir.path().join("before"));
    std::fs::rename(&file, &before).unwrap();
    assert_eq!(noted(&open()), 1, "new records");
    std::fs::write(&file, "this is a letter to my aunt".repeat(1000)).unwrap();
    assert_eq!(noted(&open()), 1, "new records beside broken ones");
    assert_eq!(noted(&open()), 1, "and later");
    std::fs::rename(&before, &file).unwrap();
    let server = open();
    let path = format!("/v1/conversations/{}", owner.id);
    let (_, deleted) = json_of(server.send("DELETE", &path, "").await).await;
    assert_eq!((&deleted["deleted"], noted(&server)), (&json!(true), 0), "{deleted}");
}

#[tokio::test]
async fn what_a_response_has_taught_of_prompts_is_deleted_with_it() {
    let records = Records::in_memory();
    let conversations = Some(records.clone());
    let server = answering(AppConfig { settle_prompts: true, conversations, ..config() });
    let instructions: String = (0..20).map(|rule| format!("This is rule {rule} of the house. ")).collect();
    let (_, response) =
        server.post("/v1/responses", json!({"input": "Hello.", "instructions": instructions})).await;
    server.app.server.settler.write().unwrap();
    let taught = || records.table::<Value>("settled").all_from("").unwrap().records.len();
    assert_eq!(taught(), 1, "{response}");
    let path = format!("/v1/responses/{}", response["id"].as_str().unwrap());
    let (_, deleted) = json_of(server.send("DELETE", &path, "").await).await;
    assert_eq!((&deleted["deleted"], taught()), (&json!(true), 0), "{deleted}");
}

//! Pinned prompts over the routes, with the real engine, the embedded model, and tenants.

use std::{path::Path, sync::Arc, time::Duration};

use axum::{
    Router,
    body::{Body, to_bytes},
    http::Request as HttpRequest,
    http::StatusCode,
};
use kvik_engine::store::{Picked, erase_at_rest};
use kvik_memory::records::Records;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::{
    config, json_of,
    tenants::{busy_server, code, keys},
    with,
};
use crate::{accounts::ledger::Ledger, api::router, app::App, app::AppConfig, app::keys::Keys};
use kvik_serving::{
    handle::Handle,
    load,
    settings::{
        capacity::Capacity,
        disk_place::DiskPlace,
        model::{CacheArgs, ModelArgs, Retokenise},
        size::ByteSize,
    },
};

/// A server with the embedded model. The administrator's key is `root`, and each tenant's key is its name.
pub(super) struct Server {
    pub(super) app: Arc<App>,
    router: Router,
    handle: Handle,
}

impl Server {
    pub(super) fn new(tenants: &str) -> Server {
        Server::with(tenants, CacheArgs::in_ram(512, ByteSize(8 << 20)))
    }

    pub(super) fn with(tenants: &str, cache: CacheArgs) -> Server {
        Server::configured(tenants, cache, config())
    }

    pub(super) fn configured(tenants: &str, cache: CacheArgs, config: AppConfig) -> Server {
        let keys = if tenants.is_empty() { Keys::new([]) } else { keys(tenants) };
        let loaded =
            load::open(&ModelArgs::embedded(), &cache, Capacity { parallel: 2, queue: 8, ..Capacity::ONE })
                .unwrap();
        loaded.handle.set_tenants(keys.tenants().parts());
        let records = config.records.as_ref();
        let ledger = Ledger::new(records, std::time::SystemTime::now);
        let app = App::new(loaded.serving, keys, Arc::new(ledger), config);
        Server { router: router(app.clone()), app, handle: loaded.handle }
    }

    pub(super) async fn send(&self, key: &str, method: &str, path: &str, body: Value) -> (StatusCode, Value) {
        let request = HttpRequest::builder().method(method).uri(path);
        let request = request.header("authorization", format!("Bearer {key}"));
        let request = request.header("content-type", "application/json").header("host", "127.0.0.1");
        let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
        json_of(self.router.clone().oneshot(request.body(body).unwrap()).await.unwrap()).await
    }

    /// Returns an answer of any type as text.
    pub(super) async fn send_text_of(
        &self,
        key: &str,
        method: &str,
        path: &str,
        body: Value,
    ) -> (StatusCode, String) {
        let request = HttpRequest::builder().method(method).uri(path);
        let request = request.header("authorization", format!("Bearer {key}"));
        let request = request.header("content-type", "application/json").header("host", "127.0.0.1");
        let request = request.header("anthropic-version", "2023-06-01");
        let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
        let response = self.router.clone().oneshot(request.body(body).unwrap()).await.unwrap();
        let status = response.status();
        let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        (status, String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Sends a body that is not JSON.
    pub(super) async fn send_text(
        &self,
        method: &str,
        path: &str,
        body: &'static str,
    ) -> (StatusCode, Value) {
        let request = HttpRequest::builder().method(method).uri(path).header("host", "127.0.0.1");
        let request = request.header("content-type", "application/json").body(Body::from(body));
        json_of(self.router.clone().oneshot(request.unwrap()).await.unwrap()).await
    }

    /// Returns the answer to a request that must succeed.
    pub(super) async fn done(&self, key: &str, method: &str, path: &str, body: Value) -> Value {
        let (status, answer) = self.send(key, method, path, body).await;
        assert_eq!(status, 200, "{method} {path}: {answer}");
        answer
    }

    /// Returns the text of an answer that must succeed.
    async fn text(&self, key: &str, request: axum::http::request::Builder, body: Value) -> String {
        let request = request.header("authorization", format!("Bearer {key}"));
        let request = request.header("content-type", "application/json").header("host", "127.0.0.1");
        let request = request.body(Body::from(body.to_string())).unwrap();
        let response = self.router.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), 200);
        let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    /// Returns the frames of a stream.
    pub(super) async fn frames(&self, key: &str, path: &str, body: Value) -> Vec<Value> {
        let text = self.text(key, HttpRequest::post(path), body).await;
        let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
        data.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
    }

    /// Returns the metrics as Prometheus reads them.
    pub(super) async fn metrics(&self) -> String {
        self.text("root", HttpRequest::get("/metrics"), Value::Null).await
    }

    /// Returns the number of prompt tokens that a completion finds in the cache.
    async fn cached(&self, key: &str, prompt: &[u32]) -> u64 {
        let body = json!({"prompt": prompt, "max_tokens": 1});
        let answer = self.done(key, "POST", "/v1/completions", body).await;
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    }

    /// Waits until `pinned` blocks are pinned and, if given, `shared` blocks are in the tree: statistics are
    /// those of the last step.
    pub(super) async fn settles(&self, pinned: usize, shared: Option<usize>) {
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        loop {
            let stats = self.app.serving.engine.stats().cache;
            if stats.pinned == pinned && shared.is_none_or(|shared| stats.shared == shared) {
                return;
            }
            assert!(
                std::time::Instant::now() < deadline,
                "not {pinned} pinned, {shared:?} shared: {stats:?}"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until nothing runs, including background work after answers.
    pub(super) async fn settles_down(&self) {
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        let mut quiet = 0;
        while quiet < 4 {
            assert!(std::time::Instant::now() < deadline, "something runs on");
            tokio::time::sleep(Duration::from_millis(10)).await;
            let rests = self.app.serving.engine.stats().running + self.app.memory.pending.count() == 0;
            quiet = if rests { quiet + 1 } else { 0 };
        }
    }

    pub(super) async fn has_pinned(&self, blocks: usize) {
        self.settles(blocks, None).await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.handle.shutdown(Duration::ZERO);
    }
}

pub(super) const TENANTS: &str = "[tenant.acme]\nKEY:acme;\nshare = \"public-prompts\"\n\
    [tenant.beta]\nKEY:beta;\nshare = \"public-prompts\"\n";

pub(super) fn tokens(first: u32, count: u32) -> Vec<u32> {
    (0..count).map(|i| 40 + (first * 31 + i * 7) % 200).collect()
}

fn messages() -> Value {
    let text = "You sort the notifications of a phone into folders. Say one word, the name of the folder.";
    json!({"messages": [{"role": "system", "content": text}, {"role": "user", "content": "A parcel came."}]})
}

#[tokio::test]
async fn the_admin_alone_publishes_and_what_is_changed_is_changed() {
    let server = Server::new(TENANTS);
    let prompt = tokens(1, 100);
    let body = |public: Value| json!({"prompt": prompt, "public": public});
    let (status, answer) = server.send("acme", "PUT", "/v1/prompts/x", body(json!(true))).await;
    assert_eq!((status.as_u16(), code(&answer)), (403, "admin_key_required"));
    assert_eq!(answer["error"]["param"], "public");
    server.settles(0, Some(0)).await;

    let put = async |public: bool| {
        let put = server.done("root", "PUT", "/v1/prompts/x", body(json!(public))).await;
        let shown = server.done("root", "GET", "/v1/prompts/x", Value::Null).await;
        assert_eq!((&put["public"], &shown["public"]), (&json!(public), &json!(public)));
    };
    let continued = [prompt.clone(), tokens(9, 20)].concat();
    put(true).await;
    put(false).await;
    assert_eq!(server.cached("acme", &continued).await, 0, "un-published with the same tokens");
    put(true).await;
    assert_eq!(server.cached("beta", &continued).await, 96, "published though it was kept already");
}

#[tokio::test]
async fn only_the_admin_touches_a_public_prompt() {
    let server = Server::new("");
    let body = json!({"prompt": tokens(1, 100), "public": true});
    server.done("", "PUT", "/v1/prompts/x", body.clone()).await;
    assert_eq!(
        server.done("", "GET", "/v1/prompts/x", Value::Null).await["public"],
        true,
        "its one user may"
    );
    server.app.server.replace_keys(Keys::new(["plain"]).with_admin(Some("root")).unwrap());
    for (method, body) in [("PUT", json!({"prompt": tokens(2, 50)})), ("DELETE", Value::Null)] {
        let (status, answer) = server.send("plain", method, "/v1/prompts/x", body).await;
        assert_eq!((status.as_u16(), code(&answer)), (403, "admin_key_required"), "{method}");
    }
    server.done("root", "DELETE", "/v1/prompts/x", Value::Null).await;
    server.has_pinned(0).await;
}

/// Bodies of the other form, and of unknown fields, are as large as a client likes.
#[tokio::test]
async fn only_what_a_prompt_is_computed_from_is_kept_of_its_body() {
    let server = Server::new("");
    let large = json!([{"x": "A".repeat(1 << 18)}]);
    let kept = || server.app.registry.all()[0].1.body.text().to_owned();
    server
        .done("", "PUT", "/v1/prompts/x", json!({"prompt": [41, 42], "tools": large, "public": true}))
        .await;
    assert_eq!(kept(), r#"{"prompt":[41,42],"public":true}"#);
    let chat = with(messages(), json!({"prompt": large, "unknown": large, "reasoning_effort": "low"}));
    server.done("", "PUT", "/v1/prompts/x", chat).await;
    let chat: Value = serde_json::from_str(&kept()).unwrap();
    assert_eq!(chat, with(messages(), json!({"reasoning_effort": "low"})));
}

#[tokio::test]
async fn a_prompt_with_much_that_its_template_does_not_read_is_refused() {
    let config = AppConfig { body_limit: ByteSize(32 << 20), ..config() };
    let server = Server::configured("", CacheArgs::in_ram(512, ByteSize(8 << 20)), config);
    let body = |bytes: usize| {
        let message =
            json!({"role": "system", "content": "Sort the notifications.", "note": "A".repeat(bytes)});
        json!({"messages": [message]})
    };
    server.done("", "PUT", "/v1/prompts/x", body(1)).await;
    for name in ["x", "y"] {
        let (status, answer) = server.send("", "PUT", &format!("/v1/prompts/{name}"), body(17 << 20)).await;
        assert_eq!((status.as_u16(), code(&answer)), (400, "prompt_limit"), "{name}: {answer}");
    }
    let kept = server.app.registry.all();
    assert!(kept.len() == 1 && kept[0].1.body.text().len() < 200, "as it was before: {kept:?}");
}

/// A server whose prompts and disk caches are on record, with its disk cache in a directory.
fn on_disk(dir: &Path, records: &Records, retokenise: Retokenise) -> Server {
    let cache = CacheArgs {
        cache_disk: DiskPlace::Directory(dir.to_owned()),
        cache_disk_size: ByteSize(16 << 20),
        retokenise,
        ..CacheArgs::in_ram(512, ByteSize(8 << 20))
    };
    let (conversations, cache_disk) = (Some(records.clone()), Some(dir.to_owned()));
    Server::configured(
        "",
        cache,
        AppConfig { records: conversations.clone(), conversations, cache_disk, ..config() },
    )
}

#[tokio::test]
async fn a_deleted_prompt_is_gone_from_disk_caches_of_earlier_settings() {
    let [earlier, now] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let records = Records::in_memory();
    let server = on_disk(earlier.path(), &records, Retokenise::On);
    server.done("", "PUT", "/v1/prompts/x", json!({"prompt": tokens(1, 100)})).await;
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while server.app.serving.engine.stats().disk.is_none_or(|disk| disk.writing > 0 || disk.tier.used < 6) {
        assert!(std::time::Instant::now() < deadline, "it is not written");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(server);
    let stored = || {
        let mut blocks = 0;
        let count = |found: Vec<_>| {
            blocks += found.len();
            Picked::Slots(Vec::new())
        };
        assert_eq!(erase_at_rest(earlier.path(), count).unwrap().in_use, 0);
        blocks
    };
    assert!(stored() >= 6);
    let server = on_disk(now.path(), &records, Retokenise::On);
    let deleted = server.done("", "DELETE", "/v1/prompts/x", Value::Null).await;
    assert_eq!((&deleted["deleted"], stored()), (&json!(true), 0), "{deleted}");
}

/// A server that remembers no answers may begin where another one has.
#[tokio::test]
async fn a_cache_is_cleared_with_the_answers_that_an_earlier_server_remembered() {
    let dir = tempfile::tempdir().unwrap();
    let records = Records::in_memory();
    let remembered = || {
        let files = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
        files.filter(|path| path.extension().is_some_and(|end| end == "answers")).count()
    };
    let server = on_disk(dir.path(), &records, Retokenise::On);
    server.done("", "POST", "/v1/chat/completions", with(messages(), json!({"max_tokens": 8}))).await;
    drop(server);
    assert_eq!(remembered(), 1);
    let server = on_disk(dir.path(), &records, Retokenise::Off);
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    // The earlier server may hold its file for a moment.
    while remembered() > 0 {
        assert!(std::time::Instant::now() < deadline, "they are left");
        server.done("", "DELETE", "/v1/cache", Value::Null).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn two_names_on_one_prompt_are_two() {
    let server = Server::new("");
    for name in ["x", "y"] {
        server.done("", "PUT", &format!("/v1/prompts/{name}"), json!({"prompt": tokens(1, 100)})).await;
    }
    // The last tokens do not fill a block, so this is the same pin.
    server.done("", "PUT", "/v1/prompts/z", json!({"prompt": tokens(1, 98)})).await;
    for (name, left) in [("x", vec!["y", "z"]), ("z", vec!["y"]), ("y", vec![])] {
        server.done("", "DELETE", &format!("/v1/prompts/{name}"), Value::Null).await;
        for other in left {
            let state = server.done("", "GET", &format!("/v1/prompts/{other}"), Value::Null).await;
            assert_eq!(
                (&state["cached"], &state["pinned"]),
                (&json!(true), &json!(true)),
                "{other}: {state}"
            );
        }
    }
    server.settles(0, Some(0)).await;
}

/// No pin covers what is less than a block.
#[tokio::test]
async fn what_is_less_than_a_block_goes_with_its_name_too() {
    let server = Server::new("");
    let put = async |name: &str, prompt: &[u32]| {
        server.done("", "PUT", &format!("/v1/prompts/{name}"), json!({"prompt": prompt})).await;
    };
    let delete = async |name: &str| {
        server.done("", "DELETE", &format!("/v1/prompts/{name}"), Value::Null).await;
    };
    put("x", &tokens(1, 10)).await;
    put("y", &tokens(2, 10)).await;
    server.settles(0, Some(2)).await;
    delete("x").await;
    server.settles(0, Some(1)).await;
    delete("y").await;
    server.settles(0, Some(0)).await;

    // The whole blocks of the first begin the other, which its own pin keeps.
    put("x", &tokens(1, 70)).await;
    put("y", &[tokens(1, 64), tokens(5, 50)].concat()).await;
    server.settles(7, Some(7 + 2)).await;
    delete("x").await;
    server.settles(7, Some(7 + 1)).await;
    delete("y").await;
    server.settles(0, Some(0)).await;
}

#[tokio::test]
async fn a_deleted_prompt_of_less_than_a_block_takes_nothing_of_those_that_begin_so() {
    let server = Server::new("");
    for (name, count) in [("x", 10), ("y", 70)] {
        server.done("", "PUT", &format!("/v1/prompts/{name}"), json!({"prompt": tokens(1, count)})).await;
    }
    server.done("", "DELETE", "/v1/prompts/x", Value::Null).await;
    let state = server.done("", "GET", "/v1/prompts/y", Value::Null).await;
    assert_eq!(state["ram"], 70, "also what no pin covers: {state}");
}

#[tokio::test]
async fn a_prompt_stays_kept_when_what_no_pin_covers_is_evicted() {
    let server = Server::new("");
    let put = async || server.done("", "PUT", "/v1/prompts/x", json!({"prompt": tokens(1, 100)})).await;
    let state = async || server.done("", "GET", "/v1/prompts/x", Value::Null).await;
    put().await;
    for other in 10..160 {
        if state().await["ram"] == 96 {
            break;
        }
        server.cached("", &tokens(other, 400)).await;
    }
    let kept = state().await;
    assert_eq!((&kept["ram"], &kept["cached"]), (&json!(96), &json!(true)), "{kept}");
    let again = put().await;
    assert_eq!((&again["built"], &again["computed_tokens"]), (&json!(false), &json!(0)), "{again}");
    assert_eq!((&again["tokens"], &again["cached_tokens"]), (&json!(100), &json!(96)), "{again}");
    assert_eq!(state().await["builds"], 1);
}

#[tokio::test]
async fn a_changed_prompt_lets_go_of_what_it_was() {
    let server = Server::new("");
    for first in [1, 2, 3] {
        server.done("", "PUT", "/v1/prompts/x", json!({"prompt": tokens(first, 100)})).await;
        server.has_pinned(6).await;
    }
}

#[tokio::test]
async fn a_continuation_of_a_public_prompt_is_kept_and_let_go_by_who_keeps_it() {
    let server = Server::new(TENANTS);
    let public = tokens(1, 100);
    server.done("root", "PUT", "/v1/prompts/base", json!({"prompt": public, "public": true})).await;
    let continued = [public.clone(), tokens(9, 130)].concat();
    let own = json!({"prompt": continued});
    for _ in 0..2 {
        let put = server.done("beta", "PUT", "/v1/prompts/mine", own.clone()).await;
        assert_eq!(put["cached_tokens"], 96, "{put}");
        let state = server.done("beta", "GET", "/v1/prompts/mine", Value::Null).await;
        assert_eq!((&state["cached"], &state["ram"]), (&json!(true), &json!(230)), "{state}");
        server.has_pinned(6 + 8).await;
        server.done("beta", "DELETE", "/v1/prompts/mine", Value::Null).await;
        server.has_pinned(6).await;
    }
    server.done("beta", "POST", "/v1/cache/pin", own.clone()).await;
    server.has_pinned(14).await;
    let evicted = server.done("beta", "POST", "/v1/cache/evict", own).await;
    assert_eq!(evicted["pins"], 1);
    server.has_pinned(6).await;
    server.done("root", "DELETE", "/v1/prompts/base", Value::Null).await;
    server.settles(0, Some(0)).await;
}

#[tokio::test]
async fn the_body_that_pinned_is_the_body_that_evicts() {
    let server = Server::new("");
    let chat = with(messages(), json!({"max_tokens": 30, "ignore_eos": true}));
    let pinning = with(chat.clone(), json!({"kvik": {"pin": true}}));
    for pin in [("/v1/chat/completions", &pinning), ("/v1/cache/pin", &chat)] {
        server.done("", "POST", pin.0, pin.1.clone()).await;
        let pins = server.done("", "GET", "/v1/cache/pins", Value::Null).await;
        assert_eq!(pins["data"].as_array().unwrap().len(), 1, "{pins}");
        let evicted = server.done("", "POST", "/v1/cache/evict", pinning.clone()).await;
        assert_eq!(evicted["pins"], 1, "{}", pin.0);
        server.has_pinned(0).await;
    }
    server.settles(0, Some(0)).await;
    server.done("", "PUT", "/v1/prompts/x", messages()).await;
    let evicted = server.done("", "POST", "/v1/cache/evict", messages()).await;
    assert_eq!(evicted["prompts"], json!(["x"]), "it says whose name it still has");
}

#[tokio::test]
async fn pins_are_bounded_and_the_admin_takes_them_back() {
    let server = Server::new(TENANTS);
    let mut refused = None;
    for first in 1..200 {
        let body = json!({"prompt": tokens(first, 160), "max_tokens": 1, "kvik": {"pin": true}});
        let (status, answer) = server.send("acme", "POST", "/v1/completions", body).await;
        if status != 200 {
            refused = Some((status.as_u16(), answer));
            break;
        }
    }
    let (status, answer) = refused.expect("there is a limit");
    assert_eq!((status, code(&answer)), (400, "pin_limit"), "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("kvik cache unpin"), "{answer}");
    let stats = server.app.serving.engine.stats().cache;
    assert!(
        stats.pinned <= stats.pinned_max.div_ceil(3) && stats.pinned_max <= stats.blocks / 2,
        "{stats:?}"
    );
    server.done("beta", "POST", "/v1/cache/pin", json!({"prompt": tokens(1, 160)})).await;
    assert_eq!(server.cached("beta", &tokens(500, 400)).await, 0, "others still run");

    let pins = server.done("acme", "GET", "/v1/cache/pins", Value::Null).await;
    let pins = pins["data"].as_array().unwrap().clone();
    assert!(pins.iter().all(|pin| pin["tenant"] == "acme"), "{pins:?}");
    let path = format!("/v1/cache/pins/{}", pins[0]["id"]);
    assert_eq!(server.send("beta", "DELETE", &path, Value::Null).await.0, 404, "nobody unpins another's");
    server.done("acme", "DELETE", &path, Value::Null).await;
    let (status, _) = server.send("acme", "DELETE", "/v1/cache/pins?tenant=beta", Value::Null).await;
    assert_eq!(status, 403);
    let unpinned = server.done("root", "DELETE", "/v1/cache/pins?tenant=acme", Value::Null).await;
    assert_eq!(unpinned["pins"], pins.len() - 1);
    assert_eq!(server.done("root", "DELETE", "/v1/cache/pins", Value::Null).await["pins"], 1, "beta's");
    server.has_pinned(0).await;
}

#[tokio::test]
async fn keeping_and_pinning_are_billed_like_any_request() {
    let limited =
        TENANTS.replacen("KEY:acme;", "KEY:acme;\nprices = { input = 2 }\ntokens-per-minute = 60", 1);
    for (method, path) in [("PUT", "/v1/prompts/x"), ("POST", "/v1/cache/pin")] {
        let server = Server::new(&limited);
        let answer = server.done("acme", method, path, json!({"prompt": tokens(1, 100)})).await;
        assert_eq!(answer["usage"]["cost"], 200.0, "{answer}");
        let usage = server.done("acme", "GET", "/v1/usage", Value::Null).await;
        assert_eq!(usage["data"][0]["computed_tokens"], 100, "{usage}");
        let (status, answer) = server.send("acme", method, path, json!({"prompt": tokens(2, 100)})).await;
        assert_eq!((status.as_u16(), code(&answer)), (429, "rate_limit_exceeded"), "{path}");
    }
}

#[tokio::test]
async fn keeping_and_pinning_take_a_place_and_end_with_their_client() {
    for (method, path) in [("PUT", "/v1/prompts/x"), ("POST", "/v1/cache/pin")] {
        let server = busy_server(&TENANTS.replacen("KEY:acme;", "KEY:acme;\nparallel = 1", 1));
        let body = || json!({"prompt": tokens(1, 100)}).to_string();
        let headers = [("authorization", "Bearer acme"), ("content-type", "application/json")];
        let first = server.send_with(method, path, body(), &headers);
        assert!(tokio::time::timeout(Duration::from_secs(2), first).await.is_err(), "the engine is busy");
        let open = server.engine.open.lock().unwrap().pop().unwrap();
        assert!(open.is_closed(), "{path}: its client has left");
        let refused = json_of(server.send_with(method, path, body(), &headers).await).await;
        assert_eq!(refused.0, 429, "{path}: the place is given back by the engine: {}", refused.1);
        drop(open);
    }
}

#[tokio::test]
async fn a_tenant_sees_its_own_prefixes_and_who_shares_sees_numbers() {
    let shared = "[tenant.a]\nKEY:a;\nshare = \"shared\"\n[tenant.b]\nKEY:b;\nshare = \"shared\"\n[tenant.c]\nKEY:c;\n";
    let server = Server::new(shared);
    for (key, first) in [("a", 1), ("b", 2), ("c", 3)] {
        server.cached(key, &tokens(first, 50)).await;
    }
    let seen = async |key: &str| {
        let answer = server.done(key, "GET", "/v1/cache?limit=9", Value::Null).await;
        let prefixes = answer["prefixes"].as_array().unwrap().clone();
        let texts = prefixes.iter().filter(|prefix| prefix["text"].is_string()).count();
        let tenants: Vec<String> =
            prefixes.iter().map(|prefix| prefix["tenant"].as_str().unwrap().to_owned()).collect();
        (tenants.join(" "), texts)
    };
    for key in ["a", "b"] {
        assert_eq!(seen(key).await, ("shared shared".to_owned(), 0), "whose a text is nobody can tell");
    }
    assert_eq!(seen("c").await, ("c".to_owned(), 1));
    let (tenants, texts) = seen("root").await;
    assert_eq!((tenants.split(' ').count(), texts), (3, 3));
}

#[tokio::test]
async fn looking_into_the_cache_is_a_request() {
    let server = Server::new(&TENANTS.replacen("KEY:acme;", "KEY:acme;\nrequests-per-minute = 3", 1));
    for path in ["/v1/cache", "/v1/cache/pins", "/v1/prompts"] {
        server.done("acme", "GET", path, Value::Null).await;
    }
    let (status, answer) = server.send("acme", "GET", "/v1/cache", Value::Null).await;
    assert_eq!((status.as_u16(), code(&answer)), (429, "rate_limit_exceeded"));
    server.done("acme", "GET", "/health", Value::Null).await;
}

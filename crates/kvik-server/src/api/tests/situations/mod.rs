//! `kvik.cache` in a table of situations, with the real engine and the embedded model. Each row has its own
//! server: earlier requests, and the one whose report is checked.
//!
//! The number of reused tokens is checked against the longest prefix that an earlier prompt shares, against
//! the engine's count of computed tokens, and against the explanation requested beforehand.

mod rows;

use std::{path::Path, sync::Arc, time::Duration};

use axum::{
    Router,
    body::{Body, to_bytes},
    http::Request as HttpRequest,
};
use clap::Parser;
use kvik_cache::Token;
use kvik_text::template::ChatTemplate;
use serde_json::{Value, json};
use tower::ServiceExt;

use self::rows::*;
use super::super::kvik::explain;
use crate::{accounts::ledger::Ledger, api::router, app::App, app::keys::Keys, http::json};
use kvik_serving::{
    handle::Handle,
    load,
    settings::{
        capacity::Capacity,
        disk_place::DiskPlace,
        model::{CacheArgs, ModelArgs},
        size::ByteSize,
    },
};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";
const LLAMA: &str = "/completion";

/// A long system message.
const RULES: &str = "You sort the notifications of a phone into folders. A notification belongs to the folder \
    whose description fits it best. When none fits, say so in one word. Never invent a folder.";

/// ChatML with tools and calls, which the model's own template does not render.
const TEMPLATE: &str = "\
{%- if tools %}{{- '<|im_start|>system\\n# Tools\\n' + (tools | tojson) + '<|im_end|>\\n' }}{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content }}
    {%- for call in message.tool_calls or [] %}{{- '<tool_call>' + (call.function | tojson) + '</tool_call>' }}{%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}";

/// A server with the embedded model.
struct Server {
    app: Arc<App>,
    router: Router,
    handle: Handle,
}

impl Server {
    fn new(cache_ram: ByteSize) -> Server {
        Server::with(&ModelArgs::embedded(), &CacheArgs::in_ram(320, cache_ram))
    }

    /// Creates a server with its disk tier in `directory`, with keys and values in the format `kv`.
    fn on_disk(directory: &Path, kv: &str) -> Server {
        #[derive(Parser)]
        struct Flags {
            #[command(flatten)]
            model: ModelArgs,
        }
        let Flags { model } = Flags::parse_from(["kvik", "--kv", kv]);
        let cache = CacheArgs {
            cache_disk: DiskPlace::Directory(directory.to_owned()),
            cache_disk_size: ByteSize(64 << 20),
            ..CacheArgs::in_ram(320, ByteSize(1 << 20))
        };
        Server::with(&model, &cache)
    }

    fn with(model: &ModelArgs, cache: &CacheArgs) -> Server {
        let capacity = Capacity { parallel: 2, queue: 8, ..Capacity::ONE };
        let mut loaded = load::open(model, cache, capacity).unwrap();
        let template = ChatTemplate::new(TEMPLATE, "", "<|im_end|>").unwrap();
        Arc::get_mut(&mut loaded.serving.texts).unwrap().template = Some(template);
        let ledger = Ledger::new(None, std::time::SystemTime::now);
        let app = App::new(loaded.serving, Keys::new([]), Arc::new(ledger), super::config());
        Server { router: router(app.clone()), app, handle: loaded.handle }
    }

    async fn text(&self, path: &str, body: &Value) -> String {
        let request = HttpRequest::post(path)
            .header("content-type", "application/json")
            .body(Body::from(body.to_string()))
            .unwrap();
        let response = self.router.clone().oneshot(request).await.unwrap();
        let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    /// Returns the answer, or the last frame of a stream.
    async fn post(&self, path: &str, body: &Value) -> Value {
        let text = self.text(path, body).await;
        let mut frames =
            text.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
        let answer: Value = serde_json::from_str(frames.next_back().unwrap_or(&text)).unwrap();
        assert!(answer.get("error").is_none(), "{body} {answer}");
        answer
    }

    /// Returns the prompts of a body.
    fn prompts(&self, body: &Value) -> Vec<Vec<Token>> {
        let (requests, _) = explain::requests(&self.app, "", &json::Body::of(body).unwrap()).unwrap();
        requests.into_iter().map(|request| request.prompt).collect()
    }
}

/// A request: its path and its body.
type Ask = (&'static str, Value);

/// The expected place where reuse stops.
#[derive(Debug, Clone, Copy)]
enum At {
    /// Nowhere: the whole prompt is cached.
    Nowhere,
    /// In this message.
    Message(usize),
    /// In text of the template, outside of any message.
    Template,
}

/// A row of the table.
#[derive(Clone)]
struct Situation {
    name: &'static str,
    before: Vec<Ask>,
    now: Ask,
    reason: &'static str,
    at: At,
    /// Beginning of the text that was not reused.
    after: &'static str,
}

/// Runs a row and checks the whole report.
async fn check(situation: Situation) {
    let Situation { name, before, now: (path, body), reason, at, after } = situation;
    let server = Server::new(ByteSize(8 << 20));
    let mut seen: Vec<Vec<Token>> = Vec::new();
    for (path, body) in &before {
        server.post(path, body).await;
        if body["cache_prompt"] != false {
            seen.extend(server.prompts(body));
        }
    }
    let foretold = server.post("/v1/cache/explain", &body).await;
    let answer = server.post(path, &body).await;
    let cache = &answer["kvik"]["cache"];
    assert_eq!(&foretold["kvik"]["cache"], cache, "{name}: explained beforehand");
    assert_eq!(cache["reason"], reason, "{name}: {cache}");

    let prompt = &server.prompts(&body)[0];
    let shared = |other: &Vec<Token>| other.iter().zip(prompt).take_while(|(a, b)| a == b).count();
    let all = prompt.len() - usize::from(body["max_tokens"] != 0);
    let known = match reason {
        "other_tenant_or_private" | "retained" => 0,
        _ => seen.iter().map(shared).max().unwrap_or(0),
    };
    let cached = cache["cached_tokens"].as_u64().unwrap() as usize;
    assert_eq!(cached, known.min(all), "{name}: the longest prefix there is");
    assert_eq!(answer["timings"]["prompt_n"], prompt.len() - cached, "{name}: the rest was computed");
    assert_eq!(cache["prompt_tokens"], prompt.len(), "{name}");
    assert_eq!(cache["by_tier"], json!({"ram": cached, "disk": 0}), "{name}");
    assert!(cache.get("evicted").is_none(), "{name}");
    check_place(name, &cache["stopped_at"], at, after, &body);
    if let At::Message(_) | At::Template = at {
        assert_eq!(cache["stopped_at"]["token"], cached, "{name}");
        let text = server.app.serving.texts.tokenizer.decode(prompt);
        let around =
            format!("{}{}", string(&cache["stopped_at"]["before"]), string(&cache["stopped_at"]["after"]));
        assert!(text.contains(&around), "{name}: {around:?} is in {text:?}");
    }
}

fn check_place(name: &str, stopped: &Value, at: At, after: &str, body: &Value) {
    let (message, role) = match at {
        At::Nowhere => return assert_eq!(*stopped, Value::Null, "{name}"),
        At::Message(index) => (json!(index), body["messages"][index]["role"].clone()),
        At::Template => (Value::Null, Value::Null),
    };
    assert_eq!((&stopped["message"], &stopped["role"]), (&message, &role), "{name}: {stopped}");
    assert!(string(&stopped["after"]).starts_with(after), "{name}: {after:?} begins {stopped}");
}

fn string(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}

#[tokio::test]
async fn every_situation_is_explained() {
    let situations = [conversations(), contents(), tools(), calls(), token_ids(), settings()].concat();
    assert!(situations.len() >= 40, "{}", situations.len());
    for situation in situations {
        check(situation).await;
    }
}

#[tokio::test]
async fn a_prompt_that_had_to_go_is_said_to_be_evicted() {
    let server = Server::new(ByteSize(1 << 20));
    let blocks = server.app.serving.engine.stats().cache.blocks as u32;
    let prompt = |first: u32| ids(&(first..first + 64).collect::<Vec<_>>());
    let (_, first) = prompt(300);
    server.post(TEXT, &first).await;
    for other in 0..blocks / 4 + 1 {
        server.post(TEXT, &prompt(400 + 10 * other).1).await;
    }
    let found = server.post("/v1/cache/explain", &first).await["kvik"]["cache"].clone();
    assert_eq!(found["reason"], "evicted", "{found}");
    let answer = server.post(TEXT, &first).await;
    assert_eq!(answer["kvik"]["cache"]["reason"], "evicted", "{answer}");
    assert_eq!(answer["kvik"]["cache"]["stopped_at"]["token"], found["cached_tokens"]);
}

#[tokio::test]
async fn an_explanation_changes_nothing() {
    let server = Server::new(ByteSize(1 << 20));
    let blocks = server.app.serving.engine.stats().cache.blocks as u32;
    let prompt = |first: u32| ids(&(first..first + 16).collect::<Vec<_>>()).1;
    server.post(TEXT, &prompt(300)).await;
    server.post(TEXT, &prompt(400)).await;
    let before = server.app.serving.engine.stats().cache;
    for _ in 0..5 {
        server.post("/v1/cache/explain", &prompt(300)).await;
        server.post("/v1/cache/explain", &prompt(500)).await;
    }
    assert_eq!(server.app.serving.engine.stats().cache, before);
    // If explaining counted as a use, the second prompt would be evicted.
    for other in 0..blocks - 1 {
        server.post(TEXT, &prompt(1000 + 20 * other)).await;
    }
    let reason = async |first| {
        server.post("/v1/cache/explain", &prompt(first)).await["kvik"]["cache"]["reason"].clone()
    };
    assert_eq!(reason(300).await, "evicted");
    assert_eq!(reason(400).await, "complete");
}

#[tokio::test]
async fn several_prompts_have_a_report_each() {
    let server = Server::new(ByteSize(8 << 20));
    server.post(TEXT, &ids(&[5; 20]).1).await;
    let body = json!({"prompt": [vec![5; 20], vec![6; 3]], "max_tokens": 1});
    let foretold = server.post("/v1/cache/explain", &body).await;
    for path in [TEXT, LLAMA] {
        let answer = server.post(path, &body).await;
        let caches = match path {
            TEXT => answer["kvik"]["cache"].clone(),
            _ => answer.as_array().unwrap().iter().map(|result| result["kvik"]["cache"].clone()).collect(),
        };
        if path == TEXT {
            assert_eq!(caches, foretold["kvik"]["cache"]);
        }
        assert_eq!((&caches[0]["reason"], &caches[0]["cached_tokens"]), (&json!("complete"), &json!(19)));
        assert_eq!(caches[1]["prompt_tokens"], 3);
    }
}

#[tokio::test]
async fn a_finished_answer_is_part_of_what_is_known() {
    let server = Server::new(ByteSize(8 << 20));
    let asked = with(chat(&[("user", "Tell me a story")]), json!({"max_tokens": 24, "ignore_eos": true}));
    let answer = server.post(CHAT, &asked.1).await;
    let prompt = answer["usage"]["prompt_tokens"].as_u64().unwrap();
    let said = string(&answer["choices"][0]["message"]["content"]).to_owned();
    let next = chat(&[("user", "Tell me a story"), ("assistant", &said), ("user", "Go on")]);
    let found = server.post("/v1/cache/explain", &next.1).await["kvik"]["cache"].clone();
    assert!(found["cached_tokens"].as_u64().unwrap() >= prompt, "{found}");
}

/// Anthropic's clients fill the cache ahead of a question with a request for no tokens.
#[tokio::test]
async fn a_prompt_is_cached_without_an_answer() {
    let server = Server::new(ByteSize(8 << 20));
    let messages = json!([{"role": "user", "content": RULES}]);
    let ask =
        |max_tokens: usize| json!({"max_tokens": max_tokens, "system": "Be brief.", "messages": messages});
    let usage = async |max_tokens: usize| {
        let foretold = server.post("/v1/cache/explain", &ask(max_tokens)).await;
        let answer = server.post("/v1/messages", &ask(max_tokens)).await;
        let content = answer["content"].as_array().unwrap();
        assert!(max_tokens > 0 || content.is_empty() && answer["stop_reason"] == "max_tokens", "{answer}");
        let usage = ["cache_creation_input_tokens", "cache_read_input_tokens"]
            .map(|name| answer["usage"][name].as_u64().unwrap());
        assert_eq!(foretold["kvik"]["cache"]["cached_tokens"], usage[1], "explained beforehand");
        usage
    };
    let [prompt, read] = usage(0).await;
    assert!(prompt > 0 && read == 0, "{prompt} {read}");
    assert_eq!(usage(0).await, [0, prompt]);
    assert_eq!(usage(1).await, [1, prompt - 1], "its last token is computed for the first one of the answer");
}

#[tokio::test]
async fn what_cannot_be_run_cannot_be_explained() {
    let server = Server::new(ByteSize(8 << 20));
    let refused = async |body: Value, param: Option<&str>| {
        let text = server.text("/v1/cache/explain", &body).await;
        let answer: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(answer["error"]["param"].as_str(), param, "{answer}");
        assert!(answer["error"]["message"].is_string(), "{answer}");
    };
    refused(json!({}), Some("prompt")).await;
    refused(json!({"prompt": []}), Some("prompt")).await;
    refused(json!({"prompt": ""}), None).await;
    refused(json!({"prompt": vec![5; 400]}), None).await;
    refused(json!({"messages": []}), Some("messages")).await;
    refused(json!({"prompt": "a", "kvik": {"speed": 9}}), Some("kvik.speed")).await;
}

#[tokio::test]
async fn an_answer_is_compared_with_an_earlier_one() {
    let server = Server::new(ByteSize(8 << 20));
    let (_, first) = with(base(), json!({"tools": [tool("find_folder", "Finds a folder.")]}));
    let answer = server.post(CHAT, &first).await;
    assert!(answer.get("prompt_cache_diagnostics").is_none(), "not asked for");
    let id = answer["id"].clone();
    let compare = async |path: &str, mut body: Value, id: &Value| {
        body["prompt_cache_options"] = json!({"comparison_response_id": id, "mode": "implicit"});
        server.post(path, &body).await["prompt_cache_diagnostics"].clone()
    };
    let hit = json!({"type": "cache_hit"});
    assert_eq!(compare(CHAT, first.clone(), &id).await, hit);
    let streamed = with((CHAT, first.clone()), json!({"stream": true})).1;
    assert_eq!(compare(CHAT, streamed, &id).await, hit, "in the last frame");
    let not_found = json!({"type": "comparison_response_not_found"});
    assert_eq!(compare(CHAT, first.clone(), &json!("chatcmpl-0")).await, not_found);

    let check = async |body: Value, reason: &str| {
        let found = compare(CHAT, body, &id).await;
        let (missed, reusable) = (&found["cache_missed_tokens"], &found["comparison_reusable_tokens"]);
        assert_eq!((&found["type"], &found["reason"]), (&json!("cache_miss"), &json!(reason)), "{found}");
        assert!(missed.as_u64() > Some(0) && missed.as_u64() <= reusable.as_u64(), "{found}");
    };
    check(with(base(), json!({"tools": [tool("find_date", "Finds a folder.")]})).1, "tools_changed").await;
    check(base().1, "tools_changed").await;
    let edited =
        json!({"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]});
    check(with((CHAT, first.clone()), edited).1, "input_changed").await;

    let text = |prompt: &str| json!({"prompt": prompt, "max_tokens": 1});
    let id = server.post(TEXT, &text("Once upon a time there was a fox")).await["id"].clone();
    assert_eq!(compare(TEXT, text("Once upon a time there was a fox"), &id).await, hit);
    assert_eq!(
        compare(TEXT, text("Thrice upon a time there was a fox"), &id).await["reason"],
        "input_changed"
    );
    assert_eq!(
        compare(TEXT, json!({"prompt": ["a", "b"], "max_tokens": 1}), &id).await["type"],
        "unavailable"
    );
}

#[tokio::test]
async fn after_a_restart_the_disk_is_named() {
    check_restart("f16", "q8").await;
}

#[tokio::test]
async fn a_kv_map_finds_its_own_blocks_after_a_restart_and_no_others() {
    check_restart("0-2:f16/q8,3-5:f32/q5", "0-1:f16/q8,2-5:f32/q5").await;
}

/// Checks that blocks in the format `kv` are found again on disk, and are not used for the format `other`.
async fn check_restart(kv: &str, other: &str) {
    let directory = tempfile::tempdir().unwrap();
    // Longer than what is loaded at the start.
    let long = ids(&(300..540).collect::<Vec<_>>()).1;
    let server = Server::on_disk(directory.path(), kv);
    let cold = server.post(TEXT, &long).await;
    server.handle.shutdown(Duration::from_secs(20));
    drop(server);

    let server = Server::on_disk(directory.path(), kv);
    let found = server.post("/v1/cache/explain", &long).await["kvik"]["cache"].clone();
    assert_eq!((&found["reason"], &found["cached_tokens"]), (&json!("complete"), &json!(239)), "{found}");
    let answer = server.post(TEXT, &long).await;
    let cache = &answer["kvik"]["cache"];
    assert_eq!((&cache["reason"], &cache["cached_tokens"]), (&json!("complete"), &json!(239)), "{cache}");
    let [ram, disk] = ["ram", "disk"].map(|tier| cache["by_tier"][tier].as_u64().unwrap());
    assert!(ram + disk == 239 && disk > 0, "{cache}");
    assert_eq!(answer["timings"]["prompt_n"], 1);
    assert_eq!(answer["content"], cold["content"]);
    let warm = server.post(TEXT, &long).await;
    assert_eq!(warm["kvik"]["cache"]["by_tier"], json!({"ram": 239, "disk": 0}));
    server.handle.shutdown(Duration::from_secs(20));
    drop(server);

    let server = Server::on_disk(directory.path(), other);
    for path in ["/v1/cache/explain", TEXT] {
        let cache = server.post(path, &long).await["kvik"]["cache"].clone();
        assert_eq!(cache["reason"], "other_kv_format", "{path}: {cache}");
        assert_eq!(cache["cached_tokens"], 0, "{path}: {cache}");
    }
}

#[tokio::test]
async fn what_has_outlived_its_time_is_said_to_be_expired() {
    let server = Server::new(ByteSize(1 << 20));
    let (path, brief) = with(ids(&[5; 40]), json!({"kvik": {"ttl_s": 1}}));
    server.post(path, &brief).await;
    let reason = async || server.post("/v1/cache/explain", &brief).await["kvik"]["cache"]["reason"].clone();
    for _ in 0..1000 {
        if reason().await != "complete" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(reason().await, "expired");
    assert_eq!(server.post(path, &brief).await["kvik"]["cache"]["reason"], "expired");
}

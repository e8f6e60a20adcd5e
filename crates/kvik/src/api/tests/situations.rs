//! What `kvik.cache` says in one situation after the other, with the real engine and the model
//! inside. Each row is a server of its own: requests that came before, and the one that is explained.
//!
//! How many tokens are reused is checked against the longest prefix that any earlier prompt shares,
//! against what the engine says it computed, and against the explanation asked for beforehand.

use std::{path::Path, sync::Arc, time::Duration};

use axum::{
    Router,
    body::{Body, to_bytes},
    http::Request as HttpRequest,
};
use clap::Parser;
use kvik_cache::Token;
use kvik_engine::text::template::ChatTemplate;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::super::kvik::explain;
use crate::{
    accounts::ledger::Ledger,
    api::router,
    app::App,
    app::keys::Keys,
    http::json,
    serving::load::{self, Capacity, Handle},
    settings::{
        disk_place::DiskPlace,
        model::{CacheArgs, ModelArgs},
        size::ByteSize,
    },
};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";
const LLAMA: &str = "/completion";

/// A system message of many tokens.
const RULES: &str = "You sort the notifications of a phone into folders. A notification belongs to the folder \
    whose description fits it best. When none fits, say so in one word. Never invent a folder.";

/// The model's own template does not print tools: ChatML that does, and calls.
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

    /// One that keeps what it computes in `directory`, with keys and values in this format.
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
        let capacity = Capacity { parallel: 2, queue: 8 };
        let mut loaded = load::open(model, cache, capacity).unwrap();
        loaded.serving.template = Some(ChatTemplate::new(TEMPLATE, "", "<|im_end|>").unwrap());
        let ledger = Ledger::new(&loaded.serving.model.name, None, std::time::SystemTime::now);
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

    /// The answer, or the last frame of the stream of it.
    async fn post(&self, path: &str, body: &Value) -> Value {
        let text = self.text(path, body).await;
        let mut frames =
            text.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
        let answer: Value = serde_json::from_str(frames.next_back().unwrap_or(&text)).unwrap();
        assert!(answer.get("error").is_none(), "{body} {answer}");
        answer
    }

    /// The prompts that a body asks for.
    fn prompts(&self, body: &Value) -> Vec<Vec<Token>> {
        let (requests, _) = explain::requests(&self.app, &json::Body::of(body).unwrap()).unwrap();
        requests.into_iter().map(|request| request.prompt).collect()
    }
}

/// A request: where it goes and its body.
type Ask = (&'static str, Value);

/// Where reuse is to stop.
#[derive(Debug, Clone, Copy)]
enum At {
    /// Nowhere: all of the prompt is there.
    Nowhere,
    /// In this message.
    Message(usize),
    /// In the text that is nobody's message.
    Template,
}

/// One row.
#[derive(Clone)]
struct Situation {
    name: &'static str,
    before: Vec<Ask>,
    now: Ask,
    reason: &'static str,
    at: At,
    /// How the text that was not reused begins.
    after: &'static str,
}

/// Runs a row and checks all that is said.
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
    let known =
        if reason == "other_tenant_or_private" { 0 } else { seen.iter().map(shared).max().unwrap_or(0) };
    let cached = cache["cached_tokens"].as_u64().unwrap() as usize;
    assert_eq!(cached, known.min(all), "{name}: the longest prefix there is");
    assert_eq!(answer["timings"]["prompt_n"], prompt.len() - cached, "{name}: the rest was computed");
    assert_eq!(cache["prompt_tokens"], prompt.len(), "{name}");
    assert_eq!(cache["by_tier"], json!({"ram": cached, "disk": 0}), "{name}");
    assert!(cache.get("evicted").is_none(), "{name}");
    check_place(name, &cache["stopped_at"], at, after, &body);
    if let At::Message(_) | At::Template = at {
        assert_eq!(cache["stopped_at"]["token"], cached, "{name}");
        let text = server.app.serving.tokenizer.decode(prompt);
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

/// A chat of one token.
fn chat(messages: &[(&str, &str)]) -> Ask {
    let messages: Vec<Value> =
        messages.iter().map(|(role, content)| json!({"role": role, "content": content})).collect();
    (CHAT, json!({"messages": messages, "max_tokens": 1, "temperature": 0}))
}

/// Continues token ids by one.
fn ids(ids: &[u32]) -> Ask {
    (TEXT, json!({"prompt": ids, "max_tokens": 1, "temperature": 0}))
}

/// The same request with more fields.
fn with((path, mut body): Ask, fields: Value) -> Ask {
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    (path, body)
}

/// A row where all of the prompt is there.
fn whole(name: &'static str, before: &[Ask], now: Ask) -> Situation {
    Situation { name, before: before.to_vec(), now, reason: "complete", at: At::Nowhere, after: "" }
}

/// A row where a known prompt goes on with something else than `after`.
fn other(name: &'static str, before: &[Ask], now: Ask, at: At, after: &'static str) -> Situation {
    Situation { name, before: before.to_vec(), now, reason: "diverged", at, after }
}

/// A row where `after` was never seen.
fn new(name: &'static str, before: &[Ask], now: Ask, at: At, after: &'static str) -> Situation {
    Situation { name, before: before.to_vec(), now, reason: "first_seen", at, after }
}

/// The rules and a question.
fn base() -> Ask {
    asking("Parcel arrived at the door")
}

fn asking(question: &str) -> Ask {
    chat(&[("system", RULES), ("user", question)])
}

/// The question answered, and another.
fn long() -> Ask {
    answered("Parcel arrived at the door", "Deliveries, without a doubt")
}

fn answered(question: &str, answer: &str) -> Ask {
    let next = "Mail from Ann about lunch";
    chat(&[("system", RULES), ("user", question), ("assistant", answer), ("user", next)])
}

fn conversations() -> Vec<Situation> {
    let (template, user) = (At::Template, At::Message(1));
    let at_the_shop = || answered("Parcel arrived at the shop", "Deliveries, without a doubt");
    let i_think = chat(&[
        ("system", RULES),
        ("user", "Parcel arrived at the door"),
        ("assistant", "Deliveries, I think"),
    ]);
    vec![
        new("nothing was ever asked", &[], base(), template, "<|im_start|>system"),
        whole("the same again", &[base()], base()),
        whole("no answer wanted", &[base()], with(base(), json!({"max_tokens": 0}))),
        whole("asked twice before", &[base(), base()], base()),
        whole("the same after another", &[base(), asking("Mail")], base()),
        other("a message edited", &[long()], at_the_shop(), user, " shop"),
        other("the last message edited", &[base()], asking("Parcel arrived at the shop"), user, " shop"),
        other("a message cut short", &[base()], asking("Parcel arrived"), template, "<|im_end|>"),
        other("a message goes on", &[base()], asking("Parcel arrived at the door, twice"), user, ","),
        other("messages left out", &[long()], asking("Mail from Ann about lunch"), user, "Mail"),
        new("the conversation goes on", &[base()], long(), At::Message(2), "Deliveries"),
        other("it goes on, edited", &[base()], at_the_shop(), user, " shop"),
        other("the nearest of two is taken", &[base(), long()], i_think, At::Message(2), " I"),
    ]
}

fn contents() -> Vec<Situation> {
    let (system, answer) = (At::Message(0), At::Message(2));
    let family = answered("Parcel arrived at the door", "Family, without a doubt");
    let two_words = RULES.replace("one word", "two words");
    let two_words = chat(&[("system", &two_words), ("user", "Parcel arrived at the door")]);
    let song = chat(&[("system", "Sing a song about trees"), ("user", "Parcel arrived at the door")]);
    let no_rules = chat(&[("user", "Parcel arrived at the door")]);
    let [crackers, balloons] =
        ["🎉🎉", "🎈🎈"].map(|end| chat(&[("user", &format!("Grüße aus 日本 {end}"))]));
    vec![
        other("an answer edited", &[long()], family, answer, "Family"),
        other("the rules edited", &[base()], two_words, system, " two words"),
        other("the rules replaced", &[base()], song, system, "Sing"),
        other("the rules left out", &[base()], no_rules, At::Template, "user"),
        other("characters of several bytes", &[crackers], balloons, system, "🎈🎈"),
    ]
}

fn tool(name: &str, description: &str) -> Value {
    let parameters = json!({"type": "object", "properties": {}});
    json!({"type": "function", "function": {"name": name, "description": description, "parameters": parameters}})
}

fn find() -> Value {
    tool("find_folder", "Finds a folder.")
}

fn add() -> Value {
    tool("add_folder", "Adds a folder.")
}

/// The question with these tools.
fn offering(tools: Value) -> Ask {
    with(base(), json!({"tools": tools}))
}

fn tools() -> Vec<Situation> {
    let both = || offering(json!([find(), add()]));
    let function = &find()["function"];
    let respelled = json!({"type": "function", "function": {
        "description": function["description"],
        "name": function["name"],
        "parameters": function["parameters"],
    }});
    let seeks = tool("find_folder", "Seeks a folder.");
    let template = At::Template;
    vec![
        whole("the same tools again", &[both()], both()),
        other("tools in another order", &[both()], offering(json!([add(), find()])), template, ""),
        other("keys in another order", &[both()], offering(json!([respelled, add()])), template, ""),
        other("a tool described otherwise", &[both()], offering(json!([seeks, add()])), template, ""),
        other("one tool less", &[both()], offering(json!([find()])), template, ""),
        other("one tool more", &[offering(json!([find()]))], both(), template, ""),
        other("no tools any more", &[both()], base(), At::Message(0), "You"),
        whole("no choice of tools", &[base()], with(both(), json!({"tool_choice": "none"}))),
    ]
}

/// The question, a call with these arguments, and its result.
fn calling(arguments: &str, result: &str) -> Ask {
    let function = json!({"name": "find_folder", "arguments": arguments});
    let call = json!({"id": "1", "type": "function", "function": function});
    let messages = json!([
        {"role": "system", "content": RULES},
        {"role": "user", "content": "Parcel arrived at the door"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": result},
    ]);
    with(offering(json!([find()])), json!({"messages": messages}))
}

fn calls() -> Vec<Situation> {
    let parcels = || calling("{\"name\": \"parcels\"}", "found in drawer seven");
    let letters = calling("{\"name\": \"letters\"}", "found in drawer seven");
    let nine = calling("{\"name\": \"parcels\"}", "found in drawer nine");
    vec![
        new("a call goes on", &[offering(json!([find()]))], parcels(), At::Template, ""),
        whole("the same call again", &[parcels()], parcels()),
        other("a call with other arguments", &[parcels()], letters, At::Template, ""),
        other("another result", &[parcels()], nine, At::Message(3), " nine"),
    ]
}

fn token_ids() -> Vec<Situation> {
    let changed = |at: usize| {
        let mut changed: Vec<u32> = (300..340).collect();
        changed[at] = 7;
        ids(&changed)
    };
    let first = |tokens: u32| ids(&(300..300 + tokens).collect::<Vec<_>>());
    let several = json!({"prompt": [(300..340).collect::<Vec<_>>(), vec![9; 3]], "max_tokens": 1});
    let at = At::Template;
    vec![
        whole("ids again", &[first(40)], first(40)),
        new("the first id changed", &[first(40)], changed(0), at, ""),
        other("the second id changed", &[first(40)], changed(1), at, ""),
        other("the last id of a block changed", &[first(40)], changed(15), at, ""),
        other("the first id of a block changed", &[first(40)], changed(16), at, ""),
        other("the last id changed", &[first(40)], changed(39), at, ""),
        new("one id more", &[first(39)], first(40), at, ""),
        new("ids go on after a whole block", &[first(32)], first(40), at, ""),
        new("ids go on in a block", &[first(20)], first(40), at, ""),
        whole("the beginning of a prompt", &[first(40)], first(20)),
        whole("the first block of a prompt", &[first(40)], first(16)),
        whole("a single id", &[first(1)], first(1)),
        whole("one of several prompts before", &[(TEXT, several)], first(40)),
    ]
}

fn settings() -> Vec<Situation> {
    let adding = |fields: Value| with(base(), fields);
    let private = |name, fields| {
        let at = (At::Template, "<|im_start|>");
        Situation { reason: "other_tenant_or_private", ..new(name, &[base()], adding(fields), at.0, at.1) }
    };
    let parts = json!({"messages": [
        {"role": "developer", "content": [{"type": "text", "text": RULES}]},
        {"role": "user", "content": "Parcel arrived at the door"},
    ]});
    let usage = json!({"stream": true, "stream_options": {"include_usage": true}});
    let no_thoughts = json!({"enable_thinking": false});
    let text = || (LLAMA, json!({"prompt": "Once upon a time there was", "n_predict": 1, "max_tokens": 1}));
    vec![
        private("a private request", json!({"kvik": {"cache": "private"}})),
        private("private by llama-server's field", json!({"cache_prompt": false})),
        new("after a private one", &[adding(json!({"cache_prompt": false}))], base(), At::Template, ""),
        whole("shared on request", &[base()], adding(json!({"kvik": {"cache": "shared", "priority": 9}}))),
        whole("several choices", &[base()], adding(json!({"n": 3}))),
        whole("after several choices", &[adding(json!({"n": 3}))], base()),
        whole("a stream", &[base()], adding(json!({"stream": true}))),
        whole("a stream with usage", &[base()], adding(usage)),
        new("a stream of something new", &[], adding(json!({"stream": true})), At::Template, ""),
        whole("another temperature", &[base()], adding(json!({"temperature": 1.5, "seed": 3}))),
        whole("a constraint", &[base()], adding(json!({"response_format": {"type": "json_object"}}))),
        whole("no opening of the answer", &[base()], adding(json!({"add_generation_prompt": false}))),
        new("thinking switched off", &[base()], adding(no_thoughts), At::Template, "<think>"),
        whole("content in parts, a developer", &[base()], adding(parts)),
        whole("in llama-server's words", &[text()], text()),
    ]
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
    // Were looking a use, the second prompt would be the one that goes.
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
    let directory = tempfile::tempdir().unwrap();
    // More than is warmed up at the start.
    let long = ids(&(300..540).collect::<Vec<_>>()).1;
    let server = Server::on_disk(directory.path(), "f16");
    server.post(TEXT, &long).await;
    server.handle.shutdown(Duration::from_secs(20));
    drop(server);

    let server = Server::on_disk(directory.path(), "f16");
    let found = server.post("/v1/cache/explain", &long).await["kvik"]["cache"].clone();
    assert_eq!((&found["reason"], &found["cached_tokens"]), (&json!("complete"), &json!(239)), "{found}");
    let answer = server.post(TEXT, &long).await;
    let cache = &answer["kvik"]["cache"];
    assert_eq!((&cache["reason"], &cache["cached_tokens"]), (&json!("complete"), &json!(239)), "{cache}");
    let [ram, disk] = ["ram", "disk"].map(|tier| cache["by_tier"][tier].as_u64().unwrap());
    assert!(ram + disk == 239 && disk > 0, "{cache}");
    assert_eq!(answer["timings"]["prompt_n"], 1);
    let warm = server.post(TEXT, &long).await;
    assert_eq!(warm["kvik"]["cache"]["by_tier"], json!({"ram": 239, "disk": 0}));
    server.handle.shutdown(Duration::from_secs(20));
    drop(server);

    let server = Server::on_disk(directory.path(), "q8");
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

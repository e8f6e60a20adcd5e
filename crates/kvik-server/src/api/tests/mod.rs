//! The routes over a scripted engine: requests to the engine, and formatting of its events.

mod answers;
mod anthropic;
mod bodies;
mod compaction;
mod connections;
mod conversations;
mod conversations_of_a_fleet;
mod deleted;
pub(super) mod described;
mod document;
mod doors;
mod embedding;
mod every_route;
mod fill;
mod hints;
mod kept;
mod kept_parts;
mod llama;
mod logprobs;
mod lora;
mod memory;
mod memory_bounds;
mod memory_judged;
mod memory_room;
mod memory_worlds;
mod no_template;
mod ollama;
mod openapi;
mod outside;
mod page;
mod pairs;
mod requests;
mod responses;
mod retain;
mod running_answers;
mod said_back;
mod sampling;
mod sglang;
mod shelf;
mod shelf_histories;
mod shelf_pulls;
mod shelf_races;
mod shelf_tenants;
mod situations;
mod stats;
mod tenants;
mod told_window;
mod tools;
mod tree;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{Request as HttpRequest, StatusCode, header},
    response::Response,
};
use kvik_engine::api::{
    ChoiceTokens, Event, EventSink, FinishReason, GeneratedToken, Pooling, Probe, Repetition, Report,
    Request, RequestError, TokenLogprob,
};
use kvik_engine::stats::EngineStats;
use kvik_model::load::{LoadedModel, Ranking};
use kvik_model::pulse::Life;
use kvik_session::{AheadMode, Embedder, NextTurns, Texts};
use kvik_text::template::ChatTemplate;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::{
    accounts::ledger::{Ledger, hanging::Gate},
    api::router,
    app::App,
    app::AppConfig,
    app::keys::Keys,
    http::Hosts,
    http::Senders,
};
use kvik_serving::{
    Inference, ModelCard, Serving,
    settings::{model::ModelArgs, size::ByteSize},
};

/// Returns the engine's events for a request.
type Script = Box<dyn Fn(&Request) -> Result<Vec<Event>, RequestError> + Send + Sync>;

/// An engine that plays a script and records its requests.
pub(crate) struct Scripted {
    script: Script,
    pub(crate) asked: Mutex<Vec<Request>>,
    /// State of the engine.
    pub(crate) life: Mutex<Life>,
    /// Sinks of all requests: an engine may hold the sink of a request that has ended.
    pub(crate) open: Mutex<Vec<Box<dyn EventSink>>>,
    /// While it is shut, a step runs that explanations wait for.
    pub(crate) step: Gate,
}

impl Scripted {
    fn new(
        script: impl Fn(&Request) -> Result<Vec<Event>, RequestError> + Send + Sync + 'static,
    ) -> Scripted {
        let (asked, life, open) = (Mutex::default(), Mutex::default(), Mutex::default());
        Scripted { script: Box::new(script), asked, life, open, step: Gate::default() }
    }
}

impl Inference for Scripted {
    fn submit(&self, request: Request, mut sink: Box<dyn EventSink>) -> Result<(), RequestError> {
        let events = (self.script)(&request)?;
        self.asked.lock().unwrap().push(request);
        let goes_away = events.is_empty();
        for event in events {
            sink.send(event);
        }
        if !goes_away {
            self.open.lock().unwrap().push(sink);
        }
        Ok(())
    }

    fn explain(&self, request: Request) -> Result<Probe, RequestError> {
        self.step.pass();
        Ok(Probe {
            prompt_tokens: request.prompt.len(),
            known_tokens: 0,
            loaded: Default::default(),
            retokenised: 0,
            stop: kvik_cache::StopReason::FirstSeen,
            evicted: None,
            at: Duration::ZERO,
        })
    }

    fn life(&self) -> Life {
        *self.life.lock().unwrap()
    }

    fn stats(&self) -> EngineStats {
        EngineStats {
            running: 2,
            running_behind: 1,
            waiting: 2,
            kv_bytes: 4096,
            kv_owned_bytes: 512,
            kv_shared_bytes: 1024,
            kv_withheld_bytes: 512,
            kv_free_bytes: 2048,
            counters: Default::default(),
            compute_rate: Some(250.5),
            disk: None,
            remote: None,
            cache: kvik_cache::CacheStats {
                withheld: 1,
                places_evictable: 0,
                places: 0,
                in_use: 2,
                blocks: 8,
                free: 4,
                owned: 1,
                shared: 2,
                evictable: 2,
                pinned: 0,
                pinned_max: 4,
                nodes: 2,
                tokens: 32,
                sequences: 1,
                totals: Default::default(),
            },
        }
    }
}

/// A server over a script.
pub(crate) struct Server {
    pub(crate) engine: Arc<Scripted>,
    pub(crate) app: Arc<App>,
    router: Router,
}

/// Possible answers of a model: text, text after thoughts, a call of the tool `look`, nothing.
const SAYINGS: [&str; 4] = [
    "Hi.",
    "<think>\nLet me see.\n</think>\n\nIt is so.",
    "I look.\n<tool_call>\n{\"name\": \"look\", \"arguments\": {\"at\": [1, \"a\"]}}\n</tool_call>",
    "",
];

/// Default configuration of a test server.
pub(crate) fn config() -> AppConfig {
    AppConfig {
        senders: Senders {
            hosts: Hosts::new([127, 0, 0, 1].into(), Vec::new()),
            origins: vec!["https://page.example".parse().unwrap()],
        },
        shows_slots: true,
        strict_model: false,
        settle_prompts: false,
        body_limit: ByteSize(1 << 20),
        prices: None,
        clock: Arc::new(|| Duration::ZERO),
        admission_slots: 20,
        records: None,
        conversations: None,
        shared_records: None,
        memory: Default::default(),
        secret: None,
        spans: None,
        sampling: Default::default(),
        told_windows: Vec::new(),
        state_dir: None,
        cache_disk: None,
    }
}

impl Server {
    pub(crate) fn new(
        script: impl Fn(&Request) -> Result<Vec<Event>, RequestError> + Send + Sync + 'static,
    ) -> Server {
        Server::with(script, Keys::new([]), ByteSize(1 << 20))
    }

    fn with(
        script: impl Fn(&Request) -> Result<Vec<Event>, RequestError> + Send + Sync + 'static,
        keys: Keys,
        body_limit: ByteSize,
    ) -> Server {
        Server::build(script, keys, AppConfig { body_limit, ..config() })
    }

    pub(crate) fn build(
        script: impl Fn(&Request) -> Result<Vec<Event>, RequestError> + Send + Sync + 'static,
        keys: Keys,
        config: AppConfig,
    ) -> Server {
        Server::build_with(script, keys, config, None)
    }

    /// Creates a server with another chat template than the model's own; its answer is `text`.
    pub(crate) fn with_template(template: &str, text: &'static str) -> Server {
        let script = move |request: &Request| Ok(say(request, text, FinishReason::Eos));
        Server::build_with(script, Keys::new([]), config(), Some(template))
    }

    fn build_with(
        script: impl Fn(&Request) -> Result<Vec<Event>, RequestError> + Send + Sync + 'static,
        keys: Keys,
        config: AppConfig,
        template: Option<&str>,
    ) -> Server {
        let engine = Arc::new(Scripted::new(script));
        Server::of(serving("tiny", engine.clone(), template), engine, keys, config)
    }

    fn of(serving: Serving, engine: Arc<Scripted>, keys: Keys, config: AppConfig) -> Server {
        let records = config.records.as_ref();
        let ledger = Ledger::new(records, || std::time::SystemTime::UNIX_EPOCH);
        let app = App::new(serving, keys, Arc::new(ledger), config);
        Server { engine, router: router(app.clone()), app }
    }

    /// Creates a server that answers with `text` in pieces of one character, with token ids from 100 on.
    pub(crate) fn saying(text: &'static str) -> Server {
        Server::new(move |request| Ok(say(request, text, FinishReason::Eos)))
    }

    /// Creates a server by whose clock an answer takes this time.
    pub(crate) fn taking(time: Duration) -> Server {
        let now = Arc::new(Mutex::new(Duration::ZERO));
        let told = now.clone();
        let script = move |request: &Request| {
            *now.lock().unwrap() += time;
            Ok(say(request, "Hi!", FinishReason::Eos))
        };
        let clock = Arc::new(move || *told.lock().unwrap());
        Server::build(script, Keys::new([]), AppConfig { clock, ..config() })
    }

    /// Creates a server whose answers fail after two characters.
    pub(crate) fn breaking() -> Server {
        Server::new(|request| {
            let mut events = say(request, "Hi", FinishReason::Eos);
            events.truncate(3);
            events.push(Event::Failed(RequestError::Internal("broken".into())));
            Ok(events)
        })
    }

    async fn send(&self, method: &str, path: &str, body: impl Into<Body>) -> Response {
        self.send_with(method, path, body, &[]).await
    }

    pub(crate) async fn send_with(
        &self,
        method: &str,
        path: &str,
        body: impl Into<Body>,
        headers: &[(&str, &str)],
    ) -> Response {
        let mut request = HttpRequest::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if !headers.iter().any(|(name, _)| *name == "content-type") {
            request = request.header("content-type", "application/json");
        }
        self.router.clone().oneshot(request.body(body.into()).unwrap()).await.unwrap()
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> (StatusCode, Value) {
        json_of(self.send("POST", path, body.to_string()).await).await
    }

    async fn get(&self, path: &str) -> (StatusCode, Value) {
        json_of(self.send("GET", path, "").await).await
    }

    /// Returns the data of a stream's events.
    async fn stream(&self, path: &str, body: Value) -> Vec<String> {
        let response = self.send("POST", path, body.to_string()).await;
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()[header::CONTENT_TYPE], "text/event-stream");
        let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        text.lines().filter_map(|line| line.strip_prefix("data: ")).map(str::to_owned).collect()
    }

    pub(crate) fn asked(&self) -> Request {
        self.engine.asked.lock().unwrap().last().unwrap().clone()
    }
}

/// A model under this name that answers from a script.
fn serving(name: &str, engine: Arc<Scripted>, template: Option<&str>) -> Serving {
    let loaded: LoadedModel = ModelArgs::embedded().load().unwrap();
    let source = template.or(loaded.chat_template.as_deref()).unwrap();
    let template = ChatTemplate::new(source, "", "<|im_end|>").unwrap();
    let model = ModelCard {
        name: name.into(),
        own_name: "kvik-tiny".into(),
        family: "llama".into(),
        source: "test".into(),
        embedded: true,
        context: 2048,
        parallel: 4,
        bytes: 1,
        loaded: 7,
        digest: [0; 32],
        sampling: Default::default(),
    };
    Serving {
        cache: None,
        engine,
        next_turns: NextTurns::new(AheadMode::Off),
        texts: Arc::new(Texts::new(loaded.tokenizer, Some(template), model.context)),
        model,
        retaining: Default::default(),
        embedder: Embedder {
            pooling: Pooling::Last,
            ranking: Ranking::Embedding,
            width: 4,
            classifier: None,
        },
        lora: Default::default(),
    }
}

pub(crate) async fn json_of(response: Response) -> (StatusCode, Value) {
    let status = response.status();
    let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    let text = String::from_utf8_lossy(&bytes);
    (status, serde_json::from_slice(&bytes).unwrap_or_else(|error| panic!("{error}: {text}")))
}

/// Returns a generated token, with log-probabilities if they were asked for.
pub(crate) fn token(id: u32, text: &str, logprobs: bool) -> GeneratedToken {
    let entry = || logprob(id, text.as_bytes(), -0.5);
    GeneratedToken { token: id, logprob: logprobs.then(|| (entry(), vec![entry()])) }
}

/// Returns the log-probability of a token of the text.
pub(crate) fn logprob(token: u32, bytes: &[u8], logprob: f32) -> TokenLogprob {
    TokenLogprob { token, bytes: bytes.to_vec(), shown: true, logprob }
}

/// Returns the same of a control token of this name, which adds nothing to the text.
pub(crate) fn hidden(id: u32, name: &str) -> GeneratedToken {
    let entry = || TokenLogprob { shown: false, ..logprob(id, name.as_bytes(), -0.5) };
    GeneratedToken { token: id, logprob: Some((entry(), vec![entry()])) }
}

/// Returns the events of an answer with `text` in every choice.
pub(crate) fn say(request: &Request, text: &str, reason: FinishReason) -> Vec<Event> {
    let total = request.prompt.len();
    let mut events = vec![Event::Prefill { cached: total.min(3), done: total, total }];
    for (i, character) in text.chars().enumerate() {
        for choice in 0..request.choices {
            let text = character.to_string();
            let tokens = vec![token(100 + i as u32, &text, request.logprobs.is_some())];
            events.push(Event::Text { choice, text, tokens });
        }
    }
    events.extend((0..request.choices).map(|choice| Event::Finished { choice, reason }));
    events.push(Event::Done(report(request, text.chars().count())));
    events
}

pub(crate) fn report(request: &Request, generated: usize) -> Report {
    let decoded = generated.saturating_sub(1);
    let of_each = ChoiceTokens { generated, decoded, ..ChoiceTokens::default() };
    Report {
        prompt_tokens: request.prompt.len(),
        cached_tokens: request.prompt.len().min(3),
        computed_tokens: request.prompt.len().saturating_sub(3),
        generated_tokens: generated * request.choices as usize,
        decoded_tokens: decoded * request.choices as usize,
        choices: vec![of_each; request.choices as usize],
        prefill: Duration::from_millis(20),
        prompt_time: Duration::from_millis(20),
        decode: Duration::from_millis(10),
        ..Report::default()
    }
}

pub(crate) fn hello() -> Value {
    json!({"messages": [{"role": "user", "content": "Hello there, my friend."}]})
}

/// Returns `base` with the fields of `extra`.
pub(crate) fn with(mut base: Value, extra: Value) -> Value {
    base.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    base
}

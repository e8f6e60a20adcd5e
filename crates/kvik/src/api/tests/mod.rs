//! The routes over a scripted engine: what is asked of it, and how its events are worded.

mod bodies;
mod connections;
mod doors;
mod kept;
mod openapi;
mod situations;
mod tenants;
mod tools;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{Request as HttpRequest, StatusCode, header},
    response::Response,
};
use kvik_engine::api::{
    Event, EventSink, FinishReason, GeneratedToken, Probe, Report, Request, RequestError, TokenLogprob,
};
use kvik_engine::load::LoadedModel;
use kvik_engine::stats::EngineStats;
use kvik_engine::text::template::ChatTemplate;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::{
    accounts::ledger::Ledger,
    api::router,
    app::App,
    app::AppConfig,
    app::keys::Keys,
    http::Hosts,
    http::Senders,
    serving::{Inference, ModelCard, Serving},
    settings::{model::ModelArgs, size::ByteSize},
};

/// What the engine would say to a request.
type Script = Box<dyn Fn(&Request) -> Result<Vec<Event>, RequestError> + Send + Sync>;

/// An engine that plays a script and remembers what it was asked.
pub(crate) struct Scripted {
    script: Script,
    pub(crate) asked: Mutex<Vec<Request>>,
    /// Sinks of requests that have not ended.
    pub(crate) open: Mutex<Vec<Box<dyn EventSink>>>,
}

impl Inference for Scripted {
    fn submit(&self, request: Request, mut sink: Box<dyn EventSink>) -> Result<(), RequestError> {
        let events = (self.script)(&request)?;
        self.asked.lock().unwrap().push(request);
        let ends = events.is_empty() || matches!(events.last(), Some(Event::Done(_) | Event::Failed(_)));
        for event in events {
            sink.send(event);
        }
        if !ends {
            self.open.lock().unwrap().push(sink);
        }
        Ok(())
    }

    fn explain(&self, request: Request) -> Result<Probe, RequestError> {
        unreachable!("no script explains {request:?}")
    }

    fn stats(&self) -> EngineStats {
        EngineStats {
            running: 1,
            waiting: 2,
            kv_bytes: 4096,
            kv_owned_bytes: 512,
            kv_shared_bytes: 1024,
            kv_free_bytes: 2560,
            counters: Default::default(),
            disk: None,
            cache: kvik_cache::CacheStats {
                blocks: 8,
                free: 5,
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

/// How a server treats its clients where a test does not say.
pub(crate) fn config() -> AppConfig {
    AppConfig {
        senders: Senders {
            hosts: Hosts::new([127, 0, 0, 1].into(), Vec::new()),
            origins: vec!["https://page.example".parse().unwrap()],
        },
        strict_model: false,
        body_limit: ByteSize(1 << 20),
        prices: None,
        clock: Arc::new(|| Duration::ZERO),
        admission_slots: 20,
        records: None,
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

    /// With another chat template than the model's own; says `text`.
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
        let engine =
            Arc::new(Scripted { script: Box::new(script), asked: Mutex::default(), open: Mutex::default() });
        let loaded: LoadedModel = ModelArgs::embedded().load().unwrap();
        let source = template.or(loaded.chat_template.as_deref()).unwrap();
        let template = ChatTemplate::new(source, "", "<|im_end|>").unwrap();
        let model = ModelCard {
            name: "tiny".into(),
            own_name: "kvik-tiny".into(),
            source: "test".into(),
            embedded: true,
            context: 2048,
            parallel: 4,
            bytes: 1,
            loaded: 7,
            digest: [0; 32],
        };
        let serving = Serving {
            cache: None,
            engine: engine.clone(),
            tokenizer: Arc::new(loaded.tokenizer),
            template: Some(template),
            model,
        };
        let ledger = Ledger::new(&serving.model.name, None, || std::time::SystemTime::UNIX_EPOCH);
        let app = App::new(serving, keys, Arc::new(ledger), config);
        Server { engine, router: router(app.clone()), app }
    }

    /// Says `text` in pieces of one character, with token ids from 100 on.
    pub(crate) fn saying(text: &'static str) -> Server {
        Server::new(move |request| Ok(say(request, text, FinishReason::Eos)))
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

    /// The data of a stream's events.
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

pub(crate) async fn json_of(response: Response) -> (StatusCode, Value) {
    let status = response.status();
    let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    let text = String::from_utf8_lossy(&bytes);
    (status, serde_json::from_slice(&bytes).unwrap_or_else(|error| panic!("{error}: {text}")))
}

fn token(id: u32, text: &str, logprobs: bool) -> GeneratedToken {
    let entry = || TokenLogprob { token: id, bytes: text.as_bytes().to_vec(), logprob: -0.5 };
    GeneratedToken { token: id, logprob: logprobs.then(|| (entry(), vec![entry()])) }
}

/// The events of an answer that says `text` in every choice.
pub(crate) fn say(request: &Request, text: &str, reason: FinishReason) -> Vec<Event> {
    let mut events = vec![Event::Prefill { done: request.prompt.len(), total: request.prompt.len() }];
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
    Report {
        prompt_tokens: request.prompt.len(),
        cached_tokens: request.prompt.len().min(3),
        computed_tokens: request.prompt.len().saturating_sub(3),
        generated_tokens: generated * request.choices as usize,
        prefill: Duration::from_millis(20),
        decode: Duration::from_millis(10),
        ..Report::default()
    }
}

pub(crate) fn hello() -> Value {
    json!({"messages": [{"role": "user", "content": "Hello there, my friend."}]})
}

/// `base` with the fields of `extra`.
pub(crate) fn with(mut base: Value, extra: Value) -> Value {
    base.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    base
}

#[tokio::test]
async fn a_chat_is_answered_in_openais_shape() {
    let server = Server::saying("Hi!");
    let (status, answer) = server.post("/v1/chat/completions", hello()).await;
    assert_eq!(status, 200);
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["model"], "tiny");
    assert!(answer["id"].as_str().unwrap().starts_with("chatcmpl-"));
    let choice = json!({
        "index": 0,
        "message": {"role": "assistant", "content": "Hi!", "refusal": null},
        "logprobs": null,
        "finish_reason": "stop",
    });
    assert_eq!(answer["choices"], json!([choice]));
    let prompt = server.asked().prompt.len();
    assert_eq!(answer["usage"]["prompt_tokens"], prompt);
    assert_eq!(answer["usage"]["completion_tokens"], 3);
    assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 3);
    assert_eq!(answer["timings"]["cache_n"], 3);
    assert_eq!(answer["timings"]["prompt_n"], prompt - 3);
}

#[tokio::test]
async fn the_prompt_is_the_template_applied() {
    let server = Server::saying("Hi!");
    server.post("/v1/chat/completions", hello()).await;
    let text = server.app.serving.tokenizer.decode(&server.asked().prompt);
    assert_eq!(text, "<|im_start|>user\nHello there, my friend.<|im_end|>\n<|im_start|>assistant\n");
    let (_, rendered) = server.post("/apply-template", hello()).await;
    assert_eq!(rendered["prompt"], text);
}

/// Joins the deltas of choice `index` at `field`.
fn joined(chunks: &[Value], index: usize, field: &str) -> String {
    let deltas = chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap());
    deltas
        .filter(|choice| choice["index"] == index)
        .filter_map(|choice| choice["delta"][field].as_str())
        .collect()
}

fn chunks(events: &[String]) -> Vec<Value> {
    let (done, chunks) = events.split_last().unwrap();
    assert_eq!(done, "[DONE]");
    chunks.iter().map(|chunk| serde_json::from_str(chunk).unwrap()).collect()
}

#[tokio::test]
async fn a_chat_streams_deltas_that_join_to_the_answer() {
    let server = Server::saying("Grüße!");
    let events = server
        .stream("/v1/chat/completions", with(hello(), json!({"stream": true, "n": 2, "logprobs": true})))
        .await;
    let chunks = chunks(&events);
    for choice in 0..2 {
        assert_eq!(joined(&chunks, choice, "content"), "Grüße!");
        let of_choice: Vec<&Value> =
            chunks.iter().map(|chunk| &chunk["choices"][0]).filter(|c| c["index"] == choice).collect();
        assert_eq!(of_choice[0]["delta"], json!({"role": "assistant", "content": ""}));
        let ends: Vec<&&Value> = of_choice.iter().filter(|c| !c["finish_reason"].is_null()).collect();
        assert_eq!(ends.len(), 1, "a choice ends once");
        let logprobs: usize =
            of_choice.iter().filter_map(|c| c["logprobs"]["content"].as_array()).map(Vec::len).sum();
        assert_eq!(logprobs, 6, "one entry per token");
    }
    assert!(chunks.iter().all(|chunk| chunk.get("usage").is_none()));
    assert_eq!(chunks.last().unwrap()["timings"]["cache_n"], 3);
}

#[tokio::test]
async fn usage_is_streamed_when_asked_for() {
    let server = Server::saying("Hi!");
    for path in ["/v1/chat/completions", "/v1/completions"] {
        let body = json!({"prompt": "abc", "stream": true, "stream_options": {"include_usage": true}});
        let chunks = chunks(&server.stream(path, with(hello(), body)).await);
        let (last, others) = chunks.split_last().unwrap();
        assert!(others.iter().all(|chunk| chunk["usage"].is_null() && !chunk["choices"][0].is_null()));
        assert_eq!(last["choices"], json!([]));
        assert_eq!(last["usage"]["completion_tokens"], 3);
        assert_eq!(last["timings"]["predicted_n"], 3);
    }
}

#[tokio::test]
async fn finish_reasons() {
    let reasons = [
        (FinishReason::Eos, "stop", "eos"),
        (FinishReason::StopString(1), "stop", "word"),
        (FinishReason::ConstraintDone, "stop", "eos"),
        (FinishReason::Length, "length", "limit"),
    ];
    for (reason, openai, llama) in reasons {
        let server = Server::new(move |request| Ok(say(request, "Hi!", reason)));
        let body = || with(hello(), json!({"prompt": "abc", "stop": ["x", "END"]}));
        let (_, chat) = server.post("/v1/chat/completions", body()).await;
        assert_eq!(chat["choices"][0]["finish_reason"], openai);
        let (_, text) = server.post("/v1/completions", body()).await;
        assert_eq!(text["choices"][0]["finish_reason"], openai);
        let (_, native) = server.post("/completion", body()).await;
        assert_eq!(native["stop_type"], llama);
        assert_eq!(native["stopping_word"], if llama == "word" { "END" } else { "" });
    }
}

#[tokio::test]
async fn reasoning_and_calls_are_told_apart_from_content() {
    let said = "<think>\nHm.\n</think>\n\nI look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>";
    let server = Server::saying(said);
    let tools =
        json!([{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]);
    let (_, answer) = server.post("/v1/chat/completions", with(hello(), json!({"tools": tools}))).await;
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(choice["message"]["reasoning_content"].as_str().unwrap().trim(), "Hm.");
    assert_eq!(choice["message"]["content"].as_str().unwrap().trim(), "I look.");
    let call = &choice["message"]["tool_calls"][0];
    assert_eq!(call["type"], "function");
    assert_eq!(call["function"]["name"], "weather");
    let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(arguments, json!({"city": "Oslo"}));

    let body = with(hello(), json!({"tools": tools, "stream": true}));
    let chunks = chunks(&server.stream("/v1/chat/completions", body).await);
    assert_eq!(
        joined(&chunks, 0, "reasoning_content"),
        choice["message"]["reasoning_content"].as_str().unwrap()
    );
    assert_eq!(joined(&chunks, 0, "content"), choice["message"]["content"].as_str().unwrap());
    let calls: Vec<&Value> = chunks
        .iter()
        .map(|chunk| &chunk["choices"][0]["delta"]["tool_calls"][0])
        .filter(|c| !c.is_null())
        .collect();
    assert_eq!(calls[0]["index"], 0);
    assert_eq!(calls[0]["function"]["name"], "weather");
}

#[tokio::test]
async fn a_required_call_is_a_constraint() {
    use kvik_engine::api::{CallStart, Constraint};
    let server = Server::saying(
        "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>",
    );
    let tools =
        json!([{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]);
    let body = with(hello(), json!({"tools": tools, "tool_choice": "required"}));
    let (_, answer) = server.post("/v1/chat/completions", body.clone()).await;
    let Some(Constraint::Calls(calls)) = server.asked().constraint else { panic!("calls are forced") };
    assert_eq!((calls.start, calls.calls_max), (CallStart::Forced { after: None }, 1));
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(choice["message"]["content"], Value::Null);
    assert_eq!(choice["message"]["tool_calls"][0]["function"]["arguments"], "{\"city\": \"Oslo\"}");
    let chunks = chunks(&server.stream("/v1/chat/completions", with(body, json!({"stream": true}))).await);
    assert_eq!(joined(&chunks, 0, "content"), "");
}

#[tokio::test]
async fn an_answer_says_what_of_its_schema_was_not_enforced() {
    let server = Server::saying("{\"tags\": []}");
    let schema = json!({"type": "object", "properties": {"tags": {"type": "array", "uniqueItems": true}}});
    let format =
        json!({"type": "json_schema", "json_schema": {"name": "x", "strict": true, "schema": schema}});
    let body = with(hello(), json!({"response_format": format}));
    let (_, answer) = server.post("/v1/chat/completions", body.clone()).await;
    let notes = json!(["$.properties.tags.uniqueItems: not enforced: it can only be checked at the end"]);
    assert_eq!(answer["kvik"]["schema_notes"], notes, "{answer}");
    let chunks = chunks(&server.stream("/v1/chat/completions", with(body, json!({"stream": true}))).await);
    assert!(chunks.iter().any(|chunk| chunk["kvik"]["schema_notes"] == notes), "{chunks:?}");
    let (_, answer) = server.post("/completion", json!({"prompt": "a", "json_schema": schema})).await;
    assert_eq!(answer["kvik"]["schema_notes"], notes, "{answer}");
    let (_, answer) = server.post("/v1/chat/completions", hello()).await;
    assert_eq!(answer["kvik"]["schema_notes"], Value::Null);
}

#[tokio::test]
async fn completions_of_several_prompts_keep_their_order() {
    let server = Server::new(|request| {
        let text = format!("<{}>", request.prompt.len());
        Ok(say(request, &text, FinishReason::Length))
    });
    let body = json!({"prompt": [[1, 2, 3, 4], [1, 2, 3, 4, 5]], "n": 2, "echo": false, "seed": 1});
    let (status, answer) = server.post("/v1/completions", body.clone()).await;
    assert_eq!(status, 200, "{answer}");
    let texts: Vec<(u64, &str)> = answer["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|choice| (choice["index"].as_u64().unwrap(), choice["text"].as_str().unwrap()))
        .collect();
    assert_eq!(texts, [(0, "<4>"), (1, "<4>"), (2, "<5>"), (3, "<5>")]);
    assert_eq!(answer["usage"]["prompt_tokens"], 9);
    let chunks = chunks(&server.stream("/v1/completions", with(body, json!({"stream": true}))).await);
    for (index, text) in texts {
        let of_choice = chunks.iter().map(|chunk| &chunk["choices"][0]).filter(|c| c["index"] == index);
        assert_eq!(of_choice.filter_map(|c| c["text"].as_str()).collect::<String>(), text);
    }
}

#[tokio::test]
async fn completions_echo_and_column_logprobs() {
    let server = Server::saying("né");
    let (_, answer) = server.post("/v1/completions", json!({"prompt": "Once ", "echo": true})).await;
    assert_eq!(answer["choices"][0]["text"], "Once né");
    let (_, answer) = server.post("/v1/completions", json!({"prompt": "Once ", "logprobs": 1})).await;
    let expect = json!({
        "tokens": ["n", "é"],
        "token_logprobs": [-0.5, -0.5],
        "top_logprobs": [{"n": -0.5}, {"é": -0.5}],
        "text_offset": [0, 1],
    });
    assert_eq!(answer["choices"][0]["logprobs"], expect);
    assert_eq!(server.asked().logprobs, Some(1));
}

#[tokio::test]
async fn completion_answers_in_llama_servers_words() {
    let server = Server::saying("Hi!");
    let body =
        json!({"prompt": "Once upon", "n_predict": 5, "return_tokens": true, "n_probs": 1, "temperature": 0});
    let (status, answer) = server.post("/completion", body.clone()).await;
    assert_eq!(status, 200);
    assert_eq!(answer["content"], "Hi!");
    assert_eq!(answer["tokens"], json!([100, 101, 102]));
    assert_eq!(answer["stop"], true);
    assert_eq!(answer["tokens_predicted"], 3);
    assert_eq!(answer["tokens_evaluated"], server.asked().prompt.len());
    assert_eq!(answer["tokens_cached"], 3);
    assert_eq!(answer["generation_settings"]["n_predict"], 5);
    assert_eq!(answer["generation_settings"]["top_k"], 40);
    assert_eq!(answer["prompt"], "Once upon");
    assert_eq!(answer["completion_probabilities"][0]["top_logprobs"][0]["token"], "H");
    assert_eq!(server.asked().max_tokens, 5);

    let events = server.stream("/completion", with(body, json!({"stream": true}))).await;
    let frames: Vec<Value> = events.iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    let text: String = frames.iter().map(|frame| frame["content"].as_str().unwrap()).collect();
    assert_eq!(text, "Hi!");
    let stops: Vec<bool> = frames.iter().map(|frame| frame["stop"].as_bool().unwrap()).collect();
    assert_eq!(stops, [false, false, false, true]);
    assert_eq!(frames[3]["timings"]["predicted_n"], 3);
}

#[tokio::test]
async fn tokens_and_back() {
    let server = Server::saying("");
    let text = "Grüße, 日本 🎉<|im_end|>";
    let (_, tokens) = server.post("/tokenize", json!({"content": text})).await;
    let (_, back) = server.post("/detokenize", tokens.clone()).await;
    assert_eq!(back["content"], text);
    let (_, pieces) = server.post("/tokenize", json!({"content": text, "with_pieces": true})).await;
    let ids: Vec<Value> =
        pieces["tokens"].as_array().unwrap().iter().map(|piece| piece["id"].clone()).collect();
    assert_eq!(json!(ids), tokens["tokens"]);
    let (_, plain) = server.post("/tokenize", json!({"content": text, "parse_special": false})).await;
    assert!(plain["tokens"].as_array().unwrap().len() > ids.len());
}

#[tokio::test]
async fn what_the_request_says_reaches_the_engine() {
    let server = Server::saying("Hi!");
    let body = json!({
        "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "seed": 11, "stop": "END",
        "max_completion_tokens": 9, "max_tokens": 8, "logprobs": true, "top_logprobs": 2, "n": 3,
        "ignore_eos": true, "cache_prompt": false, "presence_penalty": 0.25, "frequency_penalty": -0.5,
        "logit_bias": {"5": 2}, "never_heard_of": [1, {"x": null}],
    });
    server.post("/v1/chat/completions", with(hello(), body)).await;
    let asked = server.asked();
    assert_eq!((asked.max_tokens, asked.choices, asked.logprobs), (9, 3, Some(2)));
    assert_eq!((asked.ignore_eos, asked.reuse), (true, false));
    assert_eq!(asked.stop, ["END"]);
    let sampling = &asked.sampling;
    assert_eq!((sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p), (0.5, 0.9, 7, 0.1));
    assert_eq!((sampling.presence_penalty, sampling.frequency_penalty, sampling.seed), (0.25, -0.5, 11));
    assert_eq!(sampling.logit_bias, [(5, 2.0)]);
}

#[tokio::test]
async fn thinking_is_switched_off_by_either_field() {
    let server = Server::saying("");
    for body in
        [json!({"enable_thinking": false}), json!({"chat_template_kwargs": {"enable_thinking": false}})]
    {
        let (_, rendered) = server.post("/apply-template", with(hello(), body)).await;
        assert!(rendered["prompt"].as_str().unwrap().ends_with("<think>\n\n</think>\n\n"), "{rendered}");
    }
}

#[tokio::test]
async fn wrong_requests_name_their_field() {
    let server = Server::saying("Hi!");
    let check = async |path: &str, body: Value, status: u16, param: &str| {
        let (got, answer) = server.post(path, body.clone()).await;
        let error = &answer["error"];
        assert_eq!(got.as_u16(), status, "{body} {answer}");
        assert_eq!(error["param"].as_str().unwrap_or(""), param, "{body} {answer}");
        assert!(!error["message"].as_str().unwrap().is_empty());
        let keys: Vec<&String> = error.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["message", "type", "param", "code"]);
    };
    let chat = "/v1/chat/completions";
    check(chat, json!({}), 400, "messages").await;
    check(chat, json!([]), 400, "").await;
    check(chat, with(hello(), json!({"model": 5})), 400, "model").await;
    check(chat, with(hello(), json!({"max_tokens": -5})), 400, "max_tokens").await;
    check(chat, with(hello(), json!({"max_completion_tokens": "x"})), 400, "max_completion_tokens").await;
    check(chat, with(hello(), json!({"stream": "yes"})), 400, "stream").await;
    check(chat, with(hello(), json!({"stream_options": {}})), 400, "stream_options").await;
    let wrong_options = json!({"stream": true, "stream_options": {"include_usage": 1}});
    check(chat, with(hello(), wrong_options), 400, "stream_options.include_usage").await;
    check(chat, with(hello(), json!({"logprobs": true, "top_logprobs": 21})), 400, "top_logprobs").await;
    check(chat, with(hello(), json!({"top_logprobs": 2})), 400, "top_logprobs").await;
    check(chat, with(hello(), json!({"chat_template_kwargs": 1})), 400, "chat_template_kwargs").await;
    check("/v1/completions", json!({}), 400, "prompt").await;
    check("/v1/completions", json!({"prompt": "a", "suffix": "b"}), 400, "suffix").await;
    check("/v1/completions", json!({"prompt": "a", "best_of": 3}), 400, "best_of").await;
    check("/v1/completions", json!({"prompt": "a", "echo": true, "logprobs": 1}), 400, "echo").await;
    check("/completion", json!({"prompt": true}), 400, "prompt").await;
    check("/completion", json!({"prompt": "a", "n_predict": "x"}), 400, "n_predict").await;
    check("/tokenize", json!({"content": 5}), 400, "content").await;
    check("/detokenize", json!({"tokens": [1, -1]}), 400, "tokens[1]").await;
    check("/detokenize", json!({"tokens": [1_000_000_000]}), 400, "tokens[0]").await;
    check("/apply-template", json!({}), 400, "messages").await;
}

#[tokio::test]
async fn what_the_engine_refuses_is_answered_with_its_status() {
    let check = async |error: RequestError, status: u16, code: Option<&str>| {
        let later = error.clone();
        let at_once = Server::new(move |_| Err(error.clone()));
        let at_last = Server::new(move |_| Ok(vec![Event::Failed(later.clone())]));
        for server in [&at_once, &at_last] {
            for stream in [false, true] {
                let body = with(hello(), json!({"stream": stream}));
                let (got, answer) = server.post("/v1/chat/completions", body).await;
                assert_eq!(got.as_u16(), status, "{answer}");
                assert_eq!(answer["error"]["code"].as_str(), code, "{answer}");
            }
        }
    };
    let too_long = RequestError::PromptTooLong { prompt_tokens: 5000, context_tokens: 2048 };
    check(too_long, 400, Some("context_length_exceeded")).await;
    check(RequestError::QueueFull { waiting: 3, retry_after_s: 2 }, 429, Some("queue_full")).await;
    check(RequestError::Stopping, 503, Some("stopping")).await;
    check(RequestError::Internal("x".into()), 500, Some("internal_error")).await;
}

#[tokio::test]
async fn a_stream_that_fails_half_way_ends_with_an_error_and_without_done() {
    let server = Server::new(|request| {
        let mut events = say(request, "Hi!", FinishReason::Eos);
        events.truncate(3);
        events.push(Event::Failed(RequestError::Stopping));
        Ok(events)
    });
    let events = server.stream("/v1/chat/completions", with(hello(), json!({"stream": true}))).await;
    let last: Value = serde_json::from_str(events.last().unwrap()).unwrap();
    assert_eq!(last["error"]["code"], "stopping");
}

#[tokio::test(start_paused = true)]
async fn a_long_prefill_sends_comments_and_a_closed_stream_is_noticed() {
    let server = Server::new(|request| Ok(vec![Event::Prefill { done: 0, total: request.prompt.len() }]));
    let body = with(hello(), json!({"stream": true})).to_string();
    let mut body = server.send("POST", "/v1/chat/completions", body).await.into_body().into_data_stream();
    for _ in 0..3 {
        let comment = tokio_stream::StreamExt::next(&mut body).await.unwrap().unwrap();
        assert_eq!(&comment[..], b":\n\n");
    }
    let closed = || server.engine.open.lock().unwrap()[0].is_closed();
    assert!(!closed());
    drop(body);
    assert!(closed(), "the engine can see that nobody listens");
}

#[tokio::test]
async fn an_engine_that_has_gone_is_an_error() {
    let server = Server::new(|_| Ok(Vec::new()));
    let (status, answer) = server.post("/v1/chat/completions", hello()).await;
    assert_eq!((status.as_u16(), answer["error"]["code"].as_str()), (500, Some("internal_error")));
}

#[tokio::test]
async fn bodies_that_are_no_json() {
    let server = Server::saying("Hi!");
    let deep = format!("{{\"messages\": {}", "[".repeat(100_000));
    let bodies: [&[u8]; 7] =
        [b"", b"{", b"null", b"\xff\xfe", b"{\"messages\": \"\xff\"}", deep.as_bytes(), b"{\"n\": 1e999}"];
    for body in bodies {
        for path in ["/v1/chat/completions", "/v1/completions", "/completion", "/tokenize"] {
            let response = server.send("POST", path, body.to_vec()).await;
            let (status, answer) = json_of(response).await;
            assert_eq!(status, 400, "{answer}");
        }
    }
}

#[tokio::test]
async fn a_body_beyond_the_limit_is_refused_announced_or_not() {
    let server =
        Server::with(|request| Ok(say(request, "", FinishReason::Eos)), Keys::new([]), ByteSize(1000));
    let body = json!({"content": "x".repeat(2000)}).to_string();
    for length in [Some("2014"), Some("900"), None] {
        let headers: Vec<(&str, &str)> = length.map(|n| ("content-length", n)).into_iter().collect();
        let response = server.send_with("POST", "/tokenize", body.clone(), &headers).await;
        let (status, answer) = json_of(response).await;
        assert_eq!((status.as_u16(), answer["error"]["code"].as_str()), (413, Some("body_too_large")));
    }
}

#[tokio::test]
async fn a_prompt_that_cannot_fit_is_refused_before_it_is_tokenized() {
    let server =
        Server::with(|request| Ok(say(request, "", FinishReason::Eos)), Keys::new([]), ByteSize(32 << 20));
    let text = "x".repeat(10 << 20);
    let bodies = [
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": text}]})),
        ("/v1/completions", json!({"prompt": text})),
        ("/completion", json!({"prompt": text})),
    ];
    for (path, body) in bodies {
        let (status, answer) = server.post(path, body).await;
        assert_eq!(status, 400, "{path}");
        assert_eq!(answer["error"]["code"], "context_length_exceeded");
        assert!(answer["error"]["message"].as_str().unwrap().contains("2048"), "{answer}");
    }
}

#[tokio::test]
async fn keys_are_asked_for_everywhere_but_health() {
    let server = Server::with(
        |request| Ok(say(request, "Hi!", FinishReason::Eos)),
        Keys::new(["sesame"]),
        ByteSize(1 << 20),
    );
    assert_eq!(server.get("/health").await.0, 200);
    for path in ["/v1/models", "/props", "/nowhere"] {
        let (status, answer) = server.get(path).await;
        assert_eq!((status.as_u16(), answer["error"]["code"].as_str()), (401, Some("invalid_api_key")));
    }
    let (status, _) = server.post("/v1/chat/completions", hello()).await;
    assert_eq!(status, 401);
    let key = [("authorization", "Bearer sesame")];
    let response = server.send_with("POST", "/v1/chat/completions", hello().to_string(), &key).await;
    assert_eq!(response.status(), 200);
}

#[tokio::test]
async fn models_health_props_and_unknown_routes() {
    let server = Server::saying("Hi!");
    let (_, models) = server.get("/v1/models").await;
    assert_eq!(models["data"][0]["id"], "tiny");
    assert_eq!(server.get("/v1/models/tiny").await.1["object"], "model");
    let (status, missing) = server.get("/v1/models/gpt-none").await;
    assert_eq!((status.as_u16(), missing["error"]["code"].as_str()), (404, Some("model_not_found")));
    assert_eq!(server.get("/health").await.1["status"], "ok");
    let (_, props) = server.get("/props").await;
    assert_eq!(props["default_generation_settings"]["n_ctx"], 2048);
    assert_eq!(props["total_slots"], 4);
    assert!(props["chat_template"].as_str().unwrap().contains("im_start"));
    assert_eq!(server.get("/nowhere").await.0, 404);
    assert_eq!(server.get("/v1/chat/completions").await.0, 405);
    for model in ["tiny", "kvik-tiny", "kvik", ""] {
        assert_eq!(server.post("/v1/chat/completions", with(hello(), json!({"model": model}))).await.0, 200);
    }
}

#[tokio::test]
async fn a_stopping_server_refuses_and_says_so() {
    let server = Server::saying("Hi!");
    server.app.stop();
    assert_eq!(server.get("/health").await.0, 503);
    let (status, answer) = server.post("/v1/chat/completions", hello()).await;
    assert_eq!((status.as_u16(), answer["error"]["code"].as_str()), (503, Some("stopping")));
}

#[tokio::test]
async fn metrics_count_what_was_computed() {
    let server = Server::saying("Hi!");
    server.post("/v1/chat/completions", hello()).await;
    server.get("/wp-login.php").await;
    let response = server.send("GET", "/metrics", "").await;
    let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    for line in [
        "kvik_http_requests_total{route=\"/v1/chat/completions\",status=\"200\"} 1",
        "kvik_http_requests_total{route=\"unknown\",status=\"404\"} 1",
        "kvik_cached_tokens_total 3",
        "kvik_generated_tokens_total 3",
        "kvik_requests_running 1",
        "kvik_requests_waiting 2",
        "kvik_kv_used_bytes 1536",
        "kvik_blocks_total 8",
        "kvik_blocks_free 5",
        "kvik_blocks_cached 2",
    ] {
        assert!(text.contains(line), "{line} is in\n{text}");
    }
}

#[tokio::test]
async fn only_allowed_pages_may_call() {
    let server = Server::saying("Hi!");
    let allowed = async |origin: &str| {
        let headers = [("origin", origin), ("access-control-request-method", "POST")];
        let response = server.send_with("OPTIONS", "/v1/chat/completions", "", &headers).await;
        response.headers().get("access-control-allow-origin").is_some()
    };
    assert!(allowed("https://page.example").await);
    assert!(!allowed("https://other.example").await);
}

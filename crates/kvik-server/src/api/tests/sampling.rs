//! Sampling where requests set none: one set of defaults on every route that samples, and its order of precedence.

use kvik_engine::api::Sampling;
use kvik_model::load::{SamplingDefaults, SamplingOptions, SamplingSource};

use super::*;
use kvik_serving::settings::sampling::SamplingArgs;

/// Fields of one request.
struct Fields {
    /// Without sampling.
    plain: Value,
    /// The object in which sampling is set: the body itself, or `options`.
    options: Option<&'static str>,
}

/// Every route that samples. `/infill` is read as `/completion`, and the embedded model has no tokens for it.
fn routes() -> Vec<(&'static str, Fields)> {
    let messages = hello()["messages"].clone();
    let body = |plain: Value| Fields { plain, options: None };
    let ollama =
        |plain: Value| Fields { plain: with(plain, json!({"stream": false})), options: Some("options") };
    vec![
        ("/v1/chat/completions", body(hello())),
        ("/chat/completions", body(hello())),
        ("/v1/completions", body(json!({"prompt": "Once upon"}))),
        ("/v1/responses", body(json!({"input": "Hello there."}))),
        ("/responses", body(json!({"input": "Hello there."}))),
        ("/v1/messages", body(json!({"messages": messages, "max_tokens": 9}))),
        ("/completion", body(json!({"prompt": "Once upon"}))),
        ("/completions", body(json!({"prompt": "Once upon"}))),
        ("/api/chat", ollama(hello())),
        ("/api/generate", ollama(json!({"prompt": "Why?"}))),
        ("/api/generate", ollama(json!({"prompt": "Why?", "raw": true}))),
    ]
}

impl Fields {
    fn setting(&self, fields: Value) -> Value {
        match self.options {
            Some(name) => with(self.plain.clone(), json!({name: fields})),
            None => with(self.plain.clone(), fields),
        }
    }
}

/// A server whose model has these defaults, with these flags.
fn server(model: SamplingDefaults, sampling: SamplingArgs) -> Server {
    let script = |request: &Request| Ok(say(request, "Hi.", FinishReason::Eos));
    let engine = Arc::new(Scripted::new(script));
    let mut serving = serving("tiny", engine.clone(), None);
    serving.model.sampling = model;
    let ledger = Ledger::new(None, || std::time::SystemTime::UNIX_EPOCH);
    let app = App::new(serving, Keys::new([]), Arc::new(ledger), AppConfig { sampling, ..config() });
    Server { engine, router: router(app.clone()), app }
}

/// The sampling of the request that a body becomes, without its seed.
async fn asked(server: &Server, path: &str, body: Value) -> Sampling {
    let (status, answer) = server.post(path, body).await;
    assert_eq!(status, 200, "{path}: {answer}");
    Sampling { seed: 0, ..server.asked().sampling }
}

/// Settings that kvik does not have by itself, one of each kind of number.
fn recommended() -> SamplingDefaults {
    let family = SamplingOptions { temperature: Some(0.3), min_p: Some(0.15), ..SamplingOptions::NONE };
    let file = SamplingOptions {
        temperature: Some(0.6),
        top_k: Some(20),
        repetition_penalty: Some(1.05),
        ..SamplingOptions::NONE
    };
    SamplingDefaults::KVIK.under(&family, SamplingSource::Family("F")).under(&file, SamplingSource::File)
}

#[tokio::test]
async fn every_route_has_the_same_defaults() {
    for model in [SamplingDefaults::KVIK, recommended()] {
        let server = server(model, SamplingArgs::default());
        for (path, fields) in routes() {
            assert_eq!(asked(&server, path, fields.plain).await, model.sampling(), "{path}");
        }
    }
    let kvik = SamplingDefaults::KVIK.sampling();
    assert_eq!((kvik.temperature, kvik.top_k, kvik.top_p, kvik.min_p), (0.8, 40, 0.95, 0.05));
}

#[tokio::test]
async fn flags_are_before_the_model_and_requests_before_both_on_every_route() {
    let flags = SamplingArgs { temp: Some(0.25), top_p: Some(0.5), seed: Some(7), ..SamplingArgs::default() };
    let server = server(recommended(), flags);
    let expect = Sampling { temperature: 0.25, top_p: 0.5, ..recommended().sampling() };
    for (path, fields) in routes() {
        assert_eq!(asked(&server, path, fields.plain.clone()).await, expect, "{path}");
        assert_eq!(server.asked().sampling.seed, 7, "{path}");
        // A client that says 1 gets 1, though it is the default of some APIs.
        let own = fields.setting(json!({"temperature": 1, "top_p": 1}));
        assert_eq!(
            asked(&server, path, own).await,
            Sampling { temperature: 1.0, top_p: 1.0, ..expect.clone() }
        );
        let greedy = fields.setting(json!({"temperature": 0}));
        assert_eq!(
            asked(&server, path, greedy).await,
            Sampling { temperature: 0.0, ..expect.clone() },
            "{path}"
        );
    }
}

#[tokio::test]
async fn the_flag_bounds_every_answer_whose_request_sets_no_length() {
    let flags = SamplingArgs { n_predict: Some(11), ..SamplingArgs::default() };
    let server = server(recommended(), flags);
    for (path, fields) in routes().into_iter().filter(|(path, _)| *path != "/v1/messages") {
        let (name, absent): (&str, &[i64]) = match (path, fields.options) {
            ("/v1/responses" | "/responses", _) => ("max_output_tokens", &[]),
            // For Ollama 0 is no limit, and -2 the rest of the context.
            (_, Some(_)) => ("num_predict", &[-1, -2, 0]),
            _ => ("max_tokens", &[-1]),
        };
        asked(&server, path, fields.plain.clone()).await;
        assert_eq!(server.asked().max_tokens, 11, "{path}");
        for set in absent {
            asked(&server, path, fields.setting(json!({name: set}))).await;
            assert_eq!(server.asked().max_tokens, 11, "{path} {set}");
        }
        asked(&server, path, fields.setting(json!({name: 12}))).await;
        assert_eq!(server.asked().max_tokens, 12, "{path}");
    }
}

#[tokio::test]
async fn a_chat_without_thinking_has_the_numbers_for_it() {
    let loaded = LoadedModel::open(&kvik_testing::golden("arch-qwen3.gguf")).unwrap();
    let qwen3 = loaded.sampling_defaults();
    let (on, off) = (qwen3.sampling(), qwen3.for_thinking(Some(false)).sampling());
    assert_eq!((on.temperature, on.top_p, off.temperature, off.top_p), (0.6, 0.95, 0.7, 0.8));
    let usual = server(qwen3, SamplingArgs::default());
    let messages = json!({"messages": hello()["messages"], "max_tokens": 9});
    let input = json!({"input": "Hello there."});
    for (path, body, switch) in [
        ("/v1/chat/completions", hello(), json!({"enable_thinking": false})),
        ("/v1/chat/completions", hello(), json!({"reasoning_effort": "none"})),
        ("/v1/responses", input.clone(), json!({"reasoning": {"effort": "none"}})),
        ("/api/chat", with(hello(), json!({"stream": false})), json!({"think": false})),
        ("/api/generate", json!({"prompt": "Why?", "stream": false}), json!({"think": false})),
    ] {
        assert_eq!(asked(&usual, path, body.clone()).await, on, "{path}");
        assert_eq!(asked(&usual, path, with(body, switch)).await, off, "{path}");
    }
    // In this dialect what says nothing is answered without thinking.
    assert_eq!(asked(&usual, "/v1/messages", messages.clone()).await, off);
    let thinking = json!({"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2048});
    assert_eq!(asked(&usual, "/v1/messages", with(messages, thinking)).await, on);
    let quiet = with(input, json!({"reasoning": {"effort": "none"}}));
    let (_, answer) = usual.post("/v1/responses", quiet).await;
    assert_eq!((&answer["temperature"], &answer["top_p"]), (&json!(0.7), &json!(0.8)));
    let flags = server(qwen3, SamplingArgs { temp: Some(0.25), ..SamplingArgs::default() });
    let quiet = with(hello(), json!({"enable_thinking": false}));
    let expect = Sampling { temperature: 0.25, ..off };
    assert_eq!(asked(&flags, "/v1/chat/completions", quiet).await, expect);
}

#[tokio::test]
async fn penalties_of_a_request_look_back_as_its_dialect_does() {
    let all = 0;
    let check = async |server: &Server, path: &str, body: Value, expect: usize| {
        assert_eq!(asked(server, path, body).await.penalty_last_n, expect, "{path}");
    };
    let penalty = json!({"frequency_penalty": 0.5});
    let chat = with(hello(), penalty.clone());
    let text = with(json!({"prompt": "Once upon"}), penalty);
    let usual = server(recommended(), SamplingArgs::default());
    check(&usual, "/v1/chat/completions", hello(), 64).await;
    check(&usual, "/v1/chat/completions", chat.clone(), all).await;
    check(&usual, "/completion", text.clone(), 64).await;
    let flags = SamplingArgs { repeat_last_n: Some(9), ..SamplingArgs::default() };
    let told = server(recommended(), flags);
    check(&told, "/v1/chat/completions", chat, 9).await;
    check(&told, "/completion", text, 9).await;
}

#[tokio::test]
async fn routes_tell_the_defaults_and_their_sources() {
    let flags = SamplingArgs { top_p: Some(0.5), ..SamplingArgs::default() };
    let server = server(recommended(), flags);
    let (_, props) = server.get("/props").await;
    let defaults = &props["sampling_defaults"];
    assert_eq!(defaults["temperature"], json!({"value": 0.6, "source": "file"}));
    assert_eq!(defaults["top_k"], json!({"value": 20, "source": "file"}));
    assert_eq!(defaults["top_p"], json!({"value": 0.5, "source": "flag"}));
    assert_eq!(defaults["min_p"], json!({"value": 0.15, "source": "family", "family": "F"}));
    assert_eq!(defaults["presence_penalty"], json!({"value": 0.0, "source": "kvik"}));
    assert_eq!(props["default_generation_settings"]["params"]["top_k"], 20);
    let (_, shown) = server.post("/api/show", json!({"model": "tiny"})).await;
    assert_eq!(&shown["sampling_defaults"], defaults);
    let lines: Vec<Vec<&str>> =
        shown["parameters"].as_str().unwrap().lines().map(|line| line.split_whitespace().collect()).collect();
    let expect = [
        ["temperature", "0.6"],
        ["top_k", "20"],
        ["top_p", "0.5"],
        ["min_p", "0.15"],
        ["repeat_penalty", "1.05"],
    ];
    assert_eq!(lines, expect);
    let (_, response) = server.post("/v1/responses", json!({"input": "Hello there."})).await;
    assert_eq!((&response["temperature"], &response["top_p"]), (&json!(0.6), &json!(0.5)));
}

#[tokio::test]
async fn each_prompt_of_a_body_draws_its_own_seed() {
    let flags = SamplingArgs { seed: Some(7), ..SamplingArgs::default() };
    let (plain, flagged) = (server(recommended(), SamplingArgs::default()), server(recommended(), flags));
    let check = async |server: &Server, path: &str, seed: Value, expect: Option<u64>| {
        server.engine.asked.lock().unwrap().clear();
        let (status, answer) = server.post(path, json!({"prompt": ["abc", "abc"], "seed": seed})).await;
        assert_eq!(status, 200, "{path}: {answer}");
        let asked: Vec<u64> =
            server.engine.asked.lock().unwrap().iter().map(|request| request.sampling.seed).collect();
        assert_eq!((asked.len(), asked[0] == asked[1]), (2, expect.is_some()), "{path} {seed}: {asked:?}");
        assert!(expect.is_none_or(|expect| asked[0] == expect), "{path} {seed}: {asked:?}");
        if path == "/completion" {
            let told = [0_usize, 1].map(|at| answer[at]["generation_settings"]["seed"].clone());
            assert_eq!(json!(told), json!(asked), "{seed}");
        }
    };
    for path in ["/v1/completions", "/completion"] {
        for absent in [json!(null), json!(-1), json!(0xffff_ffff_u32)] {
            check(&plain, path, absent, None).await;
        }
        check(&plain, path, json!(5), Some(5)).await;
        check(&flagged, path, json!(null), Some(7)).await;
        check(&flagged, path, json!(-1), None).await;
    }
}

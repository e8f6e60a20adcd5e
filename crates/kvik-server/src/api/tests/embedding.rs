//! Embeddings and reranking: engine requests, and the format of their vectors.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use kvik_cache::{Eviction, Policy, StopReason};
use kvik_engine::api::{Event, FinishReason, Pooling, Request, RequestError, Wants};
use serde_json::{Value, json};

use super::{Server, report};

/// Returns a vector that depends on the prompt: of width 4, or with the requested logits.
fn vector(request: &Request) -> Vec<f32> {
    let len = if let Wants::Logits(tokens) = &request.wants { tokens.len() } else { 4 };
    (0..len).map(|i| (request.prompt.len() * 7 + i * 5) as f32 % 11.0 - 3.0).collect()
}

fn events(request: &Request) -> Vec<Event> {
    let finished = Event::Finished { choice: 0, reason: FinishReason::Length };
    vec![Event::Vector(vector(request)), finished, Event::Done(report(request, 0))]
}

fn server() -> Server {
    Server::new(|request| Ok(events(request)))
}

fn normalised(mut vector: Vec<f32>) -> Vec<f32> {
    let norm = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
    vector.iter_mut().for_each(|x| *x /= norm);
    vector
}

fn floats(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

fn are_near(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6)
}

#[tokio::test]
async fn every_form_of_input_is_embedded_in_its_order() {
    for (input, count) in [
        (json!("Once upon a time"), 1),
        (json!(["One.", "Two, three."]), 2),
        (json!([5, 6, 7]), 1),
        (json!([[5, 6, 7], [8]]), 2),
    ] {
        let server = server();
        let (status, answer) = server.post("/v1/embeddings", json!({"input": input})).await;
        assert_eq!(status, 200, "{answer}");
        assert_eq!((&answer["object"], &answer["model"]), (&json!("list"), &json!("tiny")));
        let asked = server.engine.asked.lock().unwrap();
        assert_eq!((asked.len(), answer["data"].as_array().unwrap().len()), (count, count));
        let mut tokens = 0;
        for (index, request) in asked.iter().enumerate() {
            assert_eq!(request.wants, Wants::Embedding(Pooling::Last));
            assert_eq!((request.max_tokens, request.choices, request.reuse), (0, 1, true));
            assert!(!request.lifetime.pin);
            let data = &answer["data"][index];
            assert_eq!((&data["object"], &data["index"]), (&json!("embedding"), &json!(index)));
            assert!(are_near(&floats(&data["embedding"]), &normalised(vector(request))), "{data}");
            tokens += request.prompt.len();
        }
        let usage = &answer["usage"];
        assert_eq!((&usage["prompt_tokens"], &usage["total_tokens"]), (&json!(tokens), &json!(tokens)));
        assert!(usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap() >= count as u64);
        assert_eq!(answer["kvik"]["cache"]["prompt_tokens"], tokens);
        assert_eq!(answer["kvik"]["cache"].get("prompts").is_some(), count > 1);
    }
}

#[tokio::test]
async fn base64_holds_the_same_numbers_and_fewer_dimensions_are_scaled_again() {
    let body = |extra: Value| super::with(json!({"input": ["One.", "Two, three."]}), extra);
    let ask = async |extra| server().post("/v1/embeddings", body(extra)).await.1["data"].clone();
    let whole = ask(json!({})).await;
    let coded = ask(json!({"encoding_format": "base64"})).await;
    let short = ask(json!({"dimensions": 2})).await;
    for index in 0..2 {
        let whole = floats(&whole[index]["embedding"]);
        let bytes = STANDARD.decode(coded[index]["embedding"].as_str().unwrap()).unwrap();
        let numbers: Vec<f32> =
            bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect();
        assert_eq!(numbers, whole);
        assert!(are_near(&floats(&short[index]["embedding"]), &normalised(whole[..2].to_vec())));
    }
}

/// In OpenAI's dialect numbers of dimensions that no vector has are errors; in Ollama's they ask for all.
#[tokio::test]
async fn ollamas_dimensions_are_all_where_they_say_none_or_too_many() {
    let width = async |dimensions: Value| {
        let body = json!({"model": "tiny", "input": "One.", "dimensions": dimensions});
        let (status, answer) = server().post("/api/embed", body).await;
        assert_eq!(status, 200, "{answer}");
        floats(&answer["embeddings"][0]).len()
    };
    for (dimensions, expect) in
        [(json!(2), 2), (json!(2.0), 2), (json!(4), 4), (json!(0), 4), (json!(-1), 4), (json!(5), 4)]
    {
        assert_eq!(width(dimensions.clone()).await, expect, "{dimensions}");
    }
}

#[tokio::test]
async fn llama_servers_shape_and_scales() {
    let ask = async |body: Value| {
        let server = server();
        let (status, answer) = server.post("/embedding", body).await;
        assert_eq!(status, 200, "{answer}");
        let vector = vector(&server.asked());
        (answer, vector)
    };
    let (answer, vector) = ask(json!({"content": "One."})).await;
    assert_eq!((answer.as_array().unwrap().len(), &answer[0]["index"]), (1, &json!(0)));
    assert!(are_near(&floats(&answer[0]["embedding"][0]), &normalised(vector)));
    let (answer, vector) = ask(json!({"input": "One.", "embd_normalize": -1})).await;
    assert_eq!(floats(&answer[0]["embedding"][0]), vector);
}

#[tokio::test]
async fn what_cannot_be_embedded_is_refused_at_its_place() {
    let check = async |path: &str, body: Value, param: &str, words: &[&str]| {
        let server = server();
        let (status, answer) = server.post(path, body).await;
        assert_eq!((status.as_u16(), &answer["error"]["param"]), (400, &json!(param)), "{answer}");
        let message = answer["error"]["message"].as_str().unwrap();
        words.iter().for_each(|word| assert!(message.contains(word), "{message} says {word}"));
        assert!(server.engine.asked.lock().unwrap().is_empty(), "nothing was computed: {answer}");
    };
    let long = "word ".repeat(3000);
    let v1 = "/v1/embeddings";
    check(v1, json!({}), "input", &[]).await;
    check(v1, json!({"input": []}), "input", &["empty"]).await;
    check(v1, json!({"input": ""}), "input", &[]).await;
    check(v1, json!({"input": ["a", ""]}), "input[1]", &[]).await;
    check(v1, json!({"input": [[1], []]}), "input[1]", &[]).await;
    check(v1, json!({"input": 5}), "input", &[]).await;
    check(v1, json!({"input": ["a", {"b": 1}]}), "input[1].prompt_string", &[]).await;
    check(v1, json!({"input": [[1], [999_999_999]]}), "input[1]", &["999999999"]).await;
    check(v1, json!({"input": ["a", "b", "c", long]}), "input[3]", &["input[3]", "2048", "3001"]).await;
    check(v1, json!({"input": vec!["a"; 2049]}), "input", &["2049", "2048"]).await;
    check(v1, json!({"input": "a", "dimensions": 0}), "dimensions", &["0"]).await;
    check(v1, json!({"input": "a", "dimensions": 5}), "dimensions", &["5", "4"]).await;
    check(v1, json!({"input": "a", "encoding_format": "hex"}), "encoding_format", &[]).await;
    check(v1, json!({"input": "a", "kvik": {"retain": "snapkv:0.5"}}), "kvik.retain", &[]).await;
    check(v1, json!({"input": "a", "kvik": {"conversation": "x"}}), "kvik.conversation", &[]).await;
    check("/embedding", json!({}), "content", &[]).await;
    check("/embedding", json!({"content": "a", "embd_normalize": -2}), "embd_normalize", &[]).await;
    let rerank = "/v1/rerank";
    check(rerank, json!({"documents": ["a"]}), "query", &[]).await;
    check(rerank, json!({"query": "", "documents": ["a"]}), "query", &[]).await;
    check(rerank, json!({"query": "q"}), "documents", &[]).await;
    check(rerank, json!({"query": "q", "documents": []}), "documents", &[]).await;
    check(rerank, json!({"query": "q", "documents": ["a", ""]}), "documents[1]", &[]).await;
    check(rerank, json!({"query": "q", "documents": ["a", 5]}), "documents[1]", &[]).await;
    check(rerank, json!({"query": "q", "documents": [{"title": "t"}]}), "documents[0].text", &[]).await;
    check(rerank, json!({"query": "q", "documents": ["a", long]}), "documents[1]", &["2048"]).await;
    check(rerank, json!({"query": "q", "documents": ["a"], "top_n": 0}), "top_n", &[]).await;
    check(rerank, json!({"query": "q", "texts": []}), "texts", &["empty"]).await;
    check(rerank, json!({"query": "q", "texts": ["a", ""]}), "texts[1]", &[]).await;
    check(rerank, json!({"query": "q", "texts": ["a", long]}), "texts[1]", &["2048"]).await;
    check(rerank, json!({"query": "q", "texts": ["a"], "documents": ["a"]}), "texts", &["documents"]).await;
}

#[tokio::test]
async fn how_long_ago_the_rest_of_a_prompt_was_evicted_is_said() {
    let server = Server::new(|request| {
        let mut events = events(request);
        if let Some(Event::Done(report)) = events.last_mut() {
            report.admitted_at = Duration::from_secs(4);
            report.cache = Some(StopReason::Evicted);
            report.evicted = Some(Eviction { at: Duration::from_millis(2500), policy: Policy::Lru });
        }
        Ok(events)
    });
    let (_, answer) = server.post("/v1/embeddings", json!({"input": "One."})).await;
    let expect = json!({"seconds_ago": 1.5, "policy": "lru"});
    assert_eq!(answer["kvik"]["cache"]["evicted"], expect, "{answer}");
}

/// Two thousand texts are submitted to the engine a few at a time, however they end.
#[tokio::test]
async fn many_texts_do_not_fill_the_queue() {
    let (inside, most) = (std::sync::Arc::new(AtomicUsize::new(0)), std::sync::Arc::new(AtomicUsize::new(0)));
    let (inside_now, most_now) = (inside.clone(), most.clone());
    let server = Server::new(move |request| {
        let now = inside_now.fetch_add(1, Ordering::Relaxed) + 1;
        most_now.fetch_max(now, Ordering::Relaxed);
        if now > 3 {
            inside_now.fetch_sub(1, Ordering::Relaxed);
            return Err(RequestError::QueueFull { waiting: 3, retry_after_s: 1 });
        }
        // Its events wait in the channel, so three are in the engine until the first is read.
        if now == 3 {
            inside_now.store(0, Ordering::Relaxed);
        }
        Ok(events(request))
    });
    let input: Vec<String> = (0..2048).map(|i| "word ".repeat(i % 5 + 1)).collect();
    let (status, answer) = server.post("/v1/embeddings", json!({"input": input})).await;
    assert_eq!(status, 200, "{answer}");
    let asked = server.engine.asked.lock().unwrap();
    assert_eq!((asked.len(), answer["data"].as_array().unwrap().len()), (2048, 2048));
    for (index, request) in asked.iter().enumerate() {
        let found = floats(&answer["data"][index]["embedding"]);
        assert!(are_near(&found, &normalised(vector(request))), "{index}");
    }
}

#[tokio::test]
async fn a_full_queue_refuses_only_who_has_nothing_in_it() {
    let server = Server::new(|_| Err(RequestError::QueueFull { waiting: 9, retry_after_s: 2 }));
    let (status, answer) = server.post("/v1/embeddings", json!({"input": ["a", "b"]})).await;
    assert_eq!((status.as_u16(), &answer["error"]["code"]), (429, &json!("queue_full")));
    let calls = AtomicUsize::new(0);
    let server = Server::new(move |request| match calls.fetch_add(1, Ordering::Relaxed) % 2 {
        0 => Ok(events(request)),
        _ => Err(RequestError::QueueFull { waiting: 9, retry_after_s: 2 }),
    });
    let (status, answer) = server.post("/v1/embeddings", json!({"input": vec!["a b c"; 30]})).await;
    assert_eq!((status.as_u16(), answer["data"].as_array().unwrap().len()), (200, 30));
}

#[tokio::test]
async fn documents_come_in_the_order_of_their_scores() {
    let documents = json!(["One.", {"text": "Two, three, four.", "id": 5}, "Five, six, seven, eight, nine."]);
    let body = json!({"query": "How many?", "documents": documents, "return_documents": true});
    for path in ["/v1/rerank", "/rerank", "/v1/reranking", "/reranking"] {
        let server = server();
        let (status, answer) = server.post(path, body.clone()).await;
        assert_eq!(status, 200, "{answer}");
        assert_eq!(server.engine.asked.lock().unwrap().len(), 4, "the query and three documents");
        let results = answer["results"].as_array().unwrap();
        let scores: Vec<f64> =
            results.iter().map(|result| result["relevance_score"].as_f64().unwrap()).collect();
        assert!(scores.is_sorted_by(|a, b| a >= b) && scores.iter().all(|score| score.abs() <= 1.0 + 1e-9));
        let mut indices: Vec<u64> = results.iter().map(|result| result["index"].as_u64().unwrap()).collect();
        let second = results.iter().find(|result| result["index"] == 1).unwrap();
        assert_eq!(second["document"]["text"], "Two, three, four.");
        indices.sort_unstable();
        assert_eq!(indices, [0, 1, 2]);
        let (_, best) = server.post(path, super::with(body.clone(), json!({"top_n": 1}))).await;
        assert_eq!(best["results"], json!([results[0]]));
    }
}

#[tokio::test]
async fn texts_are_answered_with_an_array_as_by_tei() {
    let texts = json!(["One.", "Two, three, four.", "Five, six, seven, eight, nine."]);
    let server = server();
    let asked = json!({"query": "How many?", "documents": texts, "return_documents": true});
    let (_, listed) = server.post("/rerank", asked).await;
    let entry = |result: &Value| {
        let text = &result["document"]["text"];
        json!({"index": result["index"], "score": result["relevance_score"], "text": text})
    };
    let expect: Vec<Value> = listed["results"].as_array().unwrap().iter().map(entry).collect();
    let asked = json!({"query": "How many?", "texts": texts});
    for path in ["/v1/rerank", "/rerank", "/v1/reranking", "/reranking"] {
        let fields = json!({"return_text": true, "raw_scores": false, "truncate": true});
        let (status, answer) = server.post(path, super::with(asked.clone(), fields)).await;
        assert_eq!((status.as_u16(), answer), (200, json!(expect)), "{path}");
        let (_, best) = server.post(path, super::with(asked.clone(), json!({"top_n": 1}))).await;
        assert_eq!(best, json!([{"index": expect[0]["index"], "score": expect[0]["score"]}]), "{path}");
    }
}

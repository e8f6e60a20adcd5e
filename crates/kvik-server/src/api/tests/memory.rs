//! Conversations beyond the context over the routes, with the real engine and the embedded model.

use std::time::{Duration, Instant};

use kvik_memory::memory::{MemoryConfig, Wording, Words, make_summaries};
use serde_json::{Value, json};

use super::{
    config,
    kept::{Server, TENANTS},
};
use crate::{accounts::tenants::Secret, app::AppConfig};
use kvik_serving::settings::{model::CacheArgs, size::ByteSize};

const CONTEXT: usize = 1024;
pub(super) const CHAT: &str = "/v1/chat/completions";

/// Creates a server with memory that quotes up to `quotes_max` tokens and creates summaries.
pub(super) fn server(tenants: &str, quotes_max: usize) -> Server {
    sealed_by(tenants, quotes_max, None)
}

/// Creates the same server, whose compaction items other servers with this secret can open.
pub(super) fn sealed_by(tenants: &str, quotes_max: usize, secret: Option<Secret>) -> Server {
    remembering(tenants, settings(quotes_max), secret)
}

/// Settings that make summaries due after few turns.
fn settings(quotes_max: usize) -> MemoryConfig {
    MemoryConfig {
        on: true,
        recent_max: Some(300),
        summary_max: Some(64),
        trigger_discard: Some(120),
        quotes_max: Some(quotes_max),
        ..MemoryConfig::default()
    }
}

fn remembering(tenants: &str, memory: MemoryConfig, secret: Option<Secret>) -> Server {
    let cache = CacheArgs::in_ram(CONTEXT, ByteSize(64 << 20));
    let server = Server::configured(tenants, cache, AppConfig { memory, secret, ..config() });
    tokio::spawn(make_summaries(server.app.clone()));
    server
}

pub(super) fn said(role: &str, text: &str) -> Value {
    json!({"role": role, "content": text})
}

/// A client that holds a conversation and sends all of it.
#[derive(Clone)]
struct Client {
    key: &'static str,
    messages: Vec<Value>,
}

impl Client {
    fn new(key: &'static str) -> Client {
        Client { key, messages: vec![said("system", "You are a helpful assistant.")] }
    }

    /// Runs one turn and appends the answer to the conversation.
    async fn says(&mut self, server: &Server, text: &str) -> Value {
        self.messages.push(said("user", text));
        let body = json!({"messages": self.messages, "temperature": 0, "max_tokens": 24});
        let answer = server.done(self.key, "POST", CHAT, body).await;
        self.messages.push(answer["choices"][0]["message"].clone());
        answer
    }

    /// Runs turns of small talk until a summary that covers `covered` messages is read.
    async fn talks(&mut self, server: &Server, covered: u64) -> Value {
        let deadline = Instant::now() + Duration::from_secs(180);
        for turn in 0.. {
            let text = format!("The bus number {turn} was late again. I had noodles for lunch.");
            let answer = self.says(server, &text).await;
            if memory(&answer)["messages"]["summarised"].as_u64().unwrap() >= covered {
                return answer;
            }
            assert!(Instant::now() < deadline, "no summary of {covered} messages: {answer}");
            // A pause for reading.
            server.settles_down().await;
        }
        unreachable!("turns do not end")
    }
}

pub(super) fn memory(answer: &Value) -> &Value {
    &answer["kvik"]["memory"]
}

fn cached(answer: &Value) -> [u64; 2] {
    let usage = &answer["usage"];
    [&usage["prompt_tokens"], &usage["prompt_tokens_details"]["cached_tokens"]].map(|n| n.as_u64().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_goes_on_beyond_the_context_and_knows_what_was_said() {
    let server = server("", 0);
    let mut client = Client::new("");
    client.says(&server, "Please remember that my dog is called Bolt.").await;
    let rebuilt = client.talks(&server, 2).await;
    let report = memory(&rebuilt);
    assert_eq!(report["rebuilt"], true, "{report}");
    assert_eq!(report["computed_ahead"], true, "{report}");
    let [prompt, reused] = cached(&rebuilt);
    assert!(prompt - reused < 64, "the turn after a rebuild computes what is new: {prompt}, {reused}");
    for turn in 0..3 {
        client.talks(&server, 2 + 40 * turn).await;
        let answer = client.says(&server, "What is my dog called?").await;
        let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
        assert!(text.contains("Bolt"), "{text}: {answer}");
        assert!(cached(&answer)[0] <= CONTEXT as u64, "{answer}");
    }
    let metrics = server.metrics().await;
    for counted in ["turns_total{read=\"summary\"}", "summaries_total{outcome=\"made\"}"] {
        assert!(metrics.contains(&format!("kvik_memory_{counted}")), "{metrics}");
    }
    assert!(metrics.contains("kvik_memory_quotes_total 0\n"), "{metrics}");
    let said = client.messages.iter().map(|message| message["content"].as_str().unwrap());
    let tokens: usize =
        said.map(|text| server.app.serving.texts.tokenizer.encode(text, false, false).len()).sum();
    assert!(tokens > CONTEXT, "the history alone is longer than the context: {tokens}");
}

/// The omitted messages are the beginning of the turns' prompts: asked there, a summary costs only its
/// question.
#[tokio::test(flavor = "multi_thread")]
async fn a_summary_that_is_asked_for_in_place_computes_nothing_anew() {
    let tiny = Wording::new(None, "kvik-tiny").asking(&[]).clone();
    let mut in_place = tiny.clone();
    in_place.in_place = Some("What is my dog called?".to_owned());
    let computed_with = async |words: Words| {
        let server = remembering("", MemoryConfig { words: Some(words), ..settings(0) }, None);
        let mut client = Client::new("");
        client.says(&server, "Please remember that my dog is called Bolt.").await;
        let rebuilt = client.talks(&server, 2).await;
        assert_eq!(memory(&rebuilt)["computed_ahead"], true, "{rebuilt}");
        let answer = client.says(&server, "What is my dog called?").await;
        let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
        assert!(text.contains("Bolt"), "the summary says it: {text}");
        let metrics = server.metrics().await;
        let computed = metrics.lines().find_map(|line| line.strip_prefix("kvik_computed_tokens_total "));
        computed.unwrap().parse::<u64>().unwrap()
    };
    let (told, asked) = (computed_with(tiny).await, computed_with(in_place).await);
    assert!(asked + 60 < told, "{asked} tokens computed, and {told} where it is told what was said");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_let_go_is_quoted_at_a_question_that_it_fits_and_the_next_turn_is_warm() {
    let server = server("", 128);
    let mut client = Client::new("");
    client.says(&server, "Please remember that my dog is called Bolt.").await;
    client.talks(&server, 40).await;
    let asked = client.says(&server, "What is my dog called?").await;
    assert_eq!(memory(&asked)["quotes"][0], json!([1, 3]), "the exchange that told it: {asked}");
    server.settles_down().await;
    let next = client.says(&server, "Thank you.").await;
    let [prompt, reused] = cached(&next);
    assert!(prompt - reused < 64, "what was not quoted is computed ahead: {prompt}, {reused}");
}

/// Quotes are added to the text of the question, of which they would leave nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn a_picture_in_a_question_with_quotes_is_refused_at_its_place() {
    let words = Wording::new(None, "qwen").asking(&[]).clone();
    let server = remembering("", MemoryConfig { words: Some(words), ..settings(128) }, None);
    let mut messages = vec![said("user", "My dog is called Bolt."), said("assistant", "Got it.")];
    for turn in 0..100 {
        messages.push(said("user", &format!("The bus number {turn} was late again.")));
        messages.push(said("assistant", "That is annoying. I hope tomorrow is better."));
    }
    let ask = async |content: Value| {
        let messages = [&messages[..], &[json!({"role": "user", "content": content})]].concat();
        server.send("", "POST", CHAT, json!({"messages": messages, "max_tokens": 4})).await
    };
    let text = json!({"type": "text", "text": "Is Bolt on this picture?"});
    let (status, answer) = ask(json!([text])).await;
    assert_eq!((status.as_u16(), &memory(&answer)["quotes"][0]), (200, &json!([0, 2])), "{answer}");
    let image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,eA=="}});
    let (status, answer) = ask(json!([text, image])).await;
    let at = json!("messages[202].content[1].type");
    assert_eq!((status.as_u16(), &answer["error"]["param"]), (400, &at), "{answer}");
}

/// Until a summary is ready, the beginning is omitted step by step, and no request is refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_history_of_one_request_is_answered_at_once_from_its_end() {
    let server = server("", 0);
    let mut client = Client::new("");
    for turn in 0..400 {
        client.messages.push(said("user", &format!("The bus number {turn} was late again.")));
        client.messages.push(said("assistant", "That is annoying. I hope tomorrow is better."));
    }
    let answer = client.says(&server, "Thank you.").await;
    let messages = &memory(&answer)["messages"];
    assert_eq!((&messages["prefix"], &messages["summarised"]), (&json!(1), &json!(0)), "{messages}");
    assert!(messages["let_go"].as_u64().unwrap() > 600 && messages["recent"].as_u64().unwrap() > 4);
    assert!(cached(&answer)[0] <= CONTEXT as u64);
    client.talks(&server, 600).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_branch_reads_the_summary_of_what_it_shares_and_another_tenant_none() {
    let server = server(TENANTS, 0);
    let mut client = Client::new("acme");
    client.says(&server, "Please remember that my dog is called Bolt.").await;
    let first = client.talks(&server, 2).await;
    let covered = memory(&first)["messages"]["summarised"].as_u64().unwrap() as usize;
    client.talks(&server, covered as u64 + 2).await;

    let mut edited = client.clone();
    edited.messages.truncate(1 + covered + 3);
    edited.messages[1 + covered] = said("user", "I was wrong about the bus.");
    let answer = edited.says(&server, "Thank you.").await;
    assert_eq!(memory(&answer)["messages"]["summarised"], covered, "what precedes the edit: {answer}");

    let mut altered = client.clone();
    altered.messages[1] = said("user", "Please remember that my dog is called Luna.");
    let answer = altered.says(&server, "Thank you.").await;
    assert_eq!(memory(&answer)["messages"]["summarised"], 0, "{answer}");

    let mut stranger = Client { key: "beta", ..client.clone() };
    let answer = stranger.says(&server, "Thank you.").await;
    assert_eq!(memory(&answer)["messages"]["summarised"], 0, "another tenant's: {answer}");
}

/// A tenant with one admission slot can continue while its summaries are computed.
#[tokio::test(flavor = "multi_thread")]
async fn a_summary_takes_no_place_of_its_tenant() {
    let server = server("[tenant.acme]\nKEY:acme;\nparallel = 1\n", 0);
    let mut client = Client::new("acme");
    for turn in 0..40 {
        client
            .says(&server, &format!("The bus number {turn} was late again. I had noodles for lunch."))
            .await;
    }
    client.talks(&server, 40).await;
}

/// A summary is read by prompts that begin otherwise than those of the turns, so each is noted for its answer.
#[tokio::test(flavor = "multi_thread")]
async fn of_a_deleted_thread_no_prompt_of_a_summary_is_left() {
    let server = server("", 0);
    let (mut ids, deadline) = (Vec::<String>::new(), Instant::now() + Duration::from_secs(180));
    let is_made = |metrics: String| {
        let made = "kvik_memory_summaries_total{outcome=\"made\"} ";
        metrics.lines().filter_map(|line| line.strip_prefix(made)).any(|count| count != "0")
    };
    while !is_made(server.metrics().await) {
        assert!(Instant::now() < deadline, "no summary");
        let text = format!("The bus number {} was late again. I had noodles for lunch.", ids.len());
        let thread = match ids.last() {
            None => json!({"type": "create"}),
            Some(id) => json!({"type": "continue", "previous_message_id": id}),
        };
        let body = json!({"model": "x", "max_tokens": 24, "temperature": 0, "thread": thread,
            "system": "You are a helpful assistant.", "messages": [said("user", &text)]});
        let answer = server.done("", "POST", "/v1/messages", body).await;
        ids.push(answer["id"].as_str().unwrap().to_owned());
        server.settles_down().await;
    }
    for id in ids.iter().rev() {
        let deleted = server.done("", "DELETE", &format!("/v1/responses/{id}"), Value::Null).await;
        assert_eq!(deleted["deleted"], true, "{deleted}");
    }
    server.settles(0, Some(0)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_remembered_is_said() {
    let server = server("", 0);
    let refused = async |path: &str, body: Value, field: &str, part: &str| {
        let (status, answer) = server.send("", "POST", path, body).await;
        assert_eq!(status, 400, "{answer}");
        assert_eq!(answer["error"]["param"], field, "{answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains(part), "{answer}");
    };
    let hello = json!([said("user", "Hello.")]);
    let private = json!({"memory": true, "cache": "private"});
    refused(CHAT, json!({"messages": hello, "kvik": private}), "kvik.memory", "leave nothing behind").await;
    let prompt = json!({"prompt": "Hello.", "kvik": {"memory": true}});
    refused("/v1/completions", prompt, "kvik.memory", "/v1/chat/completions").await;
    let (status, answer) =
        server.send("", "POST", CHAT, json!({"messages": [said("user", &"word ".repeat(3000))]})).await;
    assert_eq!(
        (status.as_u16(), &answer["error"]["code"]),
        (400, &json!("context_length_exceeded")),
        "{answer}"
    );
    assert!(answer["error"]["message"].as_str().unwrap().contains("1024"), "{answer}");

    let off = server.done("", "POST", CHAT, json!({"messages": hello, "kvik": {"memory": false}})).await;
    assert!(off["kvik"].get("memory").is_none());
    let private =
        server.done("", "POST", CHAT, json!({"messages": hello, "kvik": {"cache": "private"}})).await;
    assert!(private["kvik"].get("memory").is_none(), "what leaves nothing behind is not remembered");
}

/// A message longer than the context, ten thousand messages, messages without text, none at all, and an
/// altered middle.
#[tokio::test(flavor = "multi_thread")]
async fn histories_of_any_kind_are_answered_or_refused_with_the_numbers() {
    let server = server("", 64);
    let chat = async |messages: &[Value]| {
        server.send("", "POST", CHAT, json!({"messages": messages, "max_tokens": 4})).await
    };
    let long = [said("system", "Be brief."), said("user", &"one two ".repeat(1000))];
    let (status, answer) = chat(&long).await;
    let message = answer["error"]["message"].as_str().unwrap();
    assert_eq!((status.as_u16(), &answer["error"]["code"]), (400, &json!("context_length_exceeded")));
    let numbers: Vec<usize> =
        message.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
    assert!(numbers.contains(&CONTEXT) && numbers.iter().any(|&tokens| tokens > 2000), "{message}");

    let lines = |count: usize| -> Vec<Value> {
        (0..count).map(|i| said(["user", "assistant"][i % 2], &format!("Line {i}."))).collect()
    };
    let (status, answer) = chat(&lines(10_001)).await;
    let read = &memory(&answer)["messages"];
    assert_eq!((status.as_u16(), &read["summarised"]), (200, &json!(0)), "{answer}");
    assert!(read["let_go"].as_u64().unwrap() > 9_000, "{answer}");
    let empty: Vec<Value> = (0..301).map(|i| said(["user", "assistant"][i % 2], "")).collect();
    let (status, answer) = chat(&empty).await;
    assert_eq!(status, 200, "{answer}");
    let (status, answer) = chat(&[]).await;
    assert_eq!((status.as_u16(), &answer["error"]["param"]), (400, &json!("messages")), "{answer}");

    server.settles_down().await;
    let mut altered = lines(10_001);
    altered[5] = said("assistant", "Line five.");
    let (status, answer) = chat(&altered).await;
    assert_eq!((status.as_u16(), &memory(&answer)["messages"]["summarised"]), (200, &json!(0)), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn system_messages_that_change_with_every_turn_are_advised_against() {
    let server = server("", 0);
    let mut client = Client::new("");
    let advice = |answer: &Value| memory(answer)["advice"].as_str().map(str::to_owned);
    for minute in 10..13 {
        client.messages[0] = said("system", &format!("Be brief. It is 2026-11-22 13:{minute}."));
        let answer = client.says(&server, "Hello.").await;
        assert_eq!(advice(&answer).is_some(), minute > 10, "{answer}");
        assert!(advice(&answer).is_none_or(|advice| advice.contains(&format!("13:{minute}"))), "{answer}");
    }
    assert_eq!(advice(&client.says(&server, "Hello.").await), None);
}

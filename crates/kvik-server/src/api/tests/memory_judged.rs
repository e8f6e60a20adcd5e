//! Summaries of weak models over a scripted engine: what is requested again, what stands in, and that answers say so.

use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::to_bytes;
use kvik_engine::api::{FinishReason, Request};
use kvik_memory::memory::{MemoryConfig, make_summaries};
use serde_json::{Value, json};

use super::{
    Server, config, json_of,
    memory_bounds::{SUMMARY, at_rest},
    say,
};
use crate::app::{AppConfig, keys::Keys};

const CHAT: &str = "/v1/chat/completions";

fn is_for_a_summary(request: &Request) -> bool {
    request.background.is_some() && request.max_tokens > 0
}

/// Says this and talks on until a summary is read of a model that answers the first request for one and all further ones
/// so; returns the server, and `kvik.memory` of the last answer.
async fn talk(said: &str, first: &'static str, then: &'static str) -> (Server, Value) {
    let memory = MemoryConfig {
        on: true,
        recent_max: Some(300),
        summary_max: Some(64),
        trigger_discard: Some(120),
        quotes_max: Some(0),
        ..MemoryConfig::default()
    };
    let asked = AtomicUsize::new(0);
    let script = move |request: &Request| {
        let text = match is_for_a_summary(request) {
            true if asked.fetch_add(1, Ordering::SeqCst) == 0 => first,
            true => then,
            false => "Hi!",
        };
        Ok(say(request, text, FinishReason::Eos))
    };
    let server = Server::build(script, Keys::new([]), AppConfig { memory, ..config() });
    tokio::spawn(make_summaries(server.app.clone()));
    let mut text = said.to_owned();
    for number in 0..200 {
        let body = json!({"messages": [{"role": "user", "content": text}], "kvik": {"conversation": "trip"}});
        let (status, answer) = server.post(CHAT, body).await;
        assert_eq!(status, 200, "{answer}");
        let memory = &answer["kvik"]["memory"];
        if memory["messages"]["summarised"].as_u64() > Some(0) {
            return (server, memory.clone());
        }
        at_rest(&server).await;
        text = format!("The bus number {number} was late again. I had noodles for lunch.");
    }
    panic!("no summary is read in two hundred turns")
}

/// The kind and the text of the summary that is shown.
async fn shown(server: &Server) -> (Value, String) {
    let (_, mut shown) = json_of(server.send("GET", "/v1/conversations/trip/memory", "").await).await;
    let summary = shown["summary"].take();
    (summary["kind"].clone(), summary["text"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn what_a_weak_model_gives_is_requested_again_and_at_last_extracted() {
    const DOG: &str = "User: My dog is called Bolt.";
    for (first, then, kind, part, refused) in [
        (SUMMARY, "", "summary", SUMMARY, &[][..]),
        ("I see.", "- dog: Bolt", "facts", "- dog: Bolt", &["empty"][..]),
        ("I hope so!", "", "extracted", DOG, &["says_nothing", "empty"][..]),
        (
            "Bolt! Bolt! Bolt! Bolt!",
            "有一辆公共汽车晚点了。",
            "extracted",
            DOG,
            &["repeats_itself", "other_language"][..],
        ),
    ] {
        let (server, memory) = talk("My dog is called Bolt.", first, then).await;
        assert_eq!(memory["summary"]["kind"], kind, "{memory}");
        assert!(memory["summary"].get("failed").is_none(), "{memory}");
        let (shown, text) = shown(&server).await;
        assert!(shown == kind && text.contains(part), "{shown}: {text}");
        let hot: Vec<bool> = {
            let asked = server.engine.asked.lock().unwrap();
            let for_summaries = asked.iter().filter(|request| is_for_a_summary(request));
            for_summaries.map(|request| request.sampling.temperature > 0.0).collect()
        };
        assert_eq!(hot, if kind == "summary" { vec![false] } else { vec![false, true] }, "{first}");
        let metrics =
            to_bytes(server.send("GET", "/metrics", "").await.into_body(), usize::MAX).await.unwrap();
        let metrics = String::from_utf8(metrics.to_vec()).unwrap();
        let counted = |name: &str| metrics.contains(&format!("kvik_memory_summaries_{name}\n"));
        assert!(counted(&format!("made_total{{kind=\"{kind}\"}} 1")), "{metrics}");
        for flaw in refused {
            assert!(counted(&format!("refused_total{{flaw=\"{flaw}\"}} 1")), "{flaw}: {metrics}");
        }
    }
}

/// An exchange that is longer than the recent messages is summarised by the beginning and the end of what is said.
#[tokio::test]
async fn of_a_message_that_is_longer_than_a_piece_beginning_and_end_are_extracted() {
    let long = "The bus was late, and nobody at the stop knew when the next one comes. ".repeat(40);
    let said = format!("My dog is called Bolt. {long}My locker code is 4711.");
    let (server, memory) = talk(&said, "", "").await;
    assert_eq!((&memory["summary"]["kind"], memory["summary"].get("failed")), (&json!("extracted"), None));
    let (_, text) = shown(&server).await;
    assert!(text.contains("My dog is called Bolt.") && text.contains("My locker code is 4711."), "{text}");
}

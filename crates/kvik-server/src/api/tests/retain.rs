//! Retention: fields that reach the engine, refusals, and the report in the answer.

use kvik_cache::retain::{Retention, RetentionError};
use kvik_engine::api::Retained;

use super::*;

/// The completion routes, each with a valid body.
fn routes() -> [(&'static str, Value); 3] {
    let prompt = json!({"prompt": "Once upon a time"});
    [("/v1/chat/completions", hello()), ("/v1/completions", prompt.clone()), ("/completion", prompt)]
}

/// Returns `body` with this text as the field `kvik.retain`.
fn retaining(body: &Value, retain: &str) -> String {
    let body = body.to_string();
    format!("{}, \"kvik\": {{\"retain\": {retain}}}}}", body.strip_suffix('}').unwrap())
}

#[tokio::test]
async fn what_is_asked_for_reaches_the_engine() {
    let server = Server::saying("Hi!");
    let check = async |path: &str, body: &Value, retain: &str, expect: Option<&str>| {
        let response = server.send("POST", path, retaining(body, retain)).await;
        assert_eq!(response.status(), 200, "{path} {retain}");
        let expect = expect.map(|text| text.parse::<Retention>().unwrap());
        assert_eq!(server.asked().retention, expect, "{path} {retain}");
    };
    for (path, body) in routes() {
        check(path, &body, "null", None).await;
        check(path, &body, r#""none""#, None).await;
        check(path, &body, r#""snapkv:0.25,window=16""#, Some("snapkv:0.25,window=16")).await;
        let object = r#"{"policy": "h2o", "keep": 100, "budget": "all", "recent": null}"#;
        check(path, &body, object, Some("h2o:100,budget=all")).await;
        check(path, &body, r#"{"policy": "h2o", "keep": 9, "keep": 0.5}"#, Some("h2o:0.5")).await;
    }
}

#[tokio::test]
async fn hostile_values_are_answered_with_their_field() {
    let server = Server::saying("Hi!");
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let long = format!("\"{}\"", "snapkv,".repeat(100_000));
    for (path, body) in routes() {
        for (retain, at) in [
            (r#""auto""#, "kvik.retain.policy"),
            (r#""""#, "kvik.retain.policy"),
            ("5", "kvik.retain"),
            ("[]", "kvik.retain"),
            (&deep, "kvik"),
            (&long, "kvik.retain"),
            (r#"{"policy": "snapkv", "keep": NaN}"#, ""),
            (r#"{"policy": "snapkv", "keep": 1e400}"#, "kvik"),
            (r#"{"policy": "snapkv", "keep": -1}"#, "kvik.retain.keep"),
            (r#"{"policy": "snapkv", "keep": [0.5]}"#, "kvik.retain.keep"),
            (r#"{"policy": "snapkv", "keep": 99999999999999999999999}"#, "kvik.retain.keep"),
            (r#"{"policy": "snapkv", "window": 99999999999999999999999}"#, "kvik.retain.window"),
            (r#"{"policy": "snapkv", "every": 0}"#, "kvik.retain.every"),
            (r#"{"policy": "snapkv", "\u0000": 0}"#, "kvik.retain.\0"),
            (r#"{"policy": {"snapkv": 1}}"#, "kvik.retain.policy"),
        ] {
            let response = server.send("POST", path, retaining(&body, retain)).await;
            let (status, answer) = json_of(response).await;
            assert_eq!(status, 400, "{path} {answer}");
            assert_eq!(answer["error"]["param"].as_str().unwrap_or(""), at, "{path} {answer}");
            assert!(answer.to_string().len() < 2000, "{path}: no long value is repeated");
        }
    }
    assert!(server.engine.asked.lock().unwrap().is_empty(), "nothing was submitted");
}

#[tokio::test]
async fn what_the_engine_cannot_do_names_the_field() {
    let server = Server::new(|_| Err(RequestError::Retention(RetentionError::NotCalibrated)));
    for (path, body) in routes() {
        let response = server.send("POST", path, retaining(&body, r#""snapkv:0.5,budget=calibrated""#)).await;
        let (status, answer) = json_of(response).await;
        assert_eq!((status.as_u16(), &answer["error"]["param"]), (400, &json!("kvik.retain.budget")));
        assert!(answer["error"]["message"].as_str().unwrap().starts_with("kvik.retain.budget: "), "{answer}");
    }
}

/// Returns the events of an engine with retention: 100 of 400 positions of four heads are kept.
fn forgetful(request: &Request) -> Vec<Event> {
    let mut events = say(request, "Hi!", FinishReason::Eos);
    if let (Some(retention), Some(Event::Done(report))) = (request.retention, events.last_mut()) {
        let (smallest_head, largest_head) = (10, 55);
        let retained = Retained {
            retention,
            tokens: 100,
            kept: 100,
            dropped: 300,
            smallest_head,
            largest_head,
            tightened: vec![90],
            positions: request.show_kept.then(|| {
                vec![vec![vec![0..4, 96..100], vec![0..45, 50..90]], vec![vec![], vec![7..8, 9..99]]]
            }),
        };
        report.retained = Some(Box::new(retained));
    }
    events
}

#[tokio::test]
async fn every_answer_says_what_was_kept() {
    let server = Server::new(|request| Ok(forgetful(request)));
    let expect = json!({
        "policy": "h2o:0.25", "tokens": 100, "positions_kept": 100, "positions_dropped": 300, "share_kept": 0.25,
        "smallest_head": 10, "largest_head": 55, "tightened": 1, "measured": false,
    });
    for (path, body) in routes() {
        let asked = with(body.clone(), json!({"kvik": {"retain": {"policy": "h2o", "keep": 0.25}}}));
        assert_eq!(server.post(path, asked.clone()).await.1["kvik"]["retain"], expect, "{path}");
        let events = server.stream(path, with(asked, json!({"stream": true}))).await;
        let frames: Vec<Value> = events.iter().filter_map(|event| serde_json::from_str(event).ok()).collect();
        let said: Vec<&Value> = frames.iter().filter_map(|frame| frame["kvik"].get("retain")).collect();
        assert_eq!(said, [&expect], "{path}: the last frame says it, and no other");
        let (_, exact) = server.post(path, body).await;
        assert!(exact["kvik"].get("retain").is_none(), "{path}: nothing was to be forgotten");
    }
    let (_, several) =
        server.post("/v1/completions", json!({"prompt": ["a", "b"], "kvik": {"retain": "sinks:0.5"}})).await;
    assert_eq!(several["kvik"]["retain"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn an_answer_shows_which_positions_were_kept_where_that_is_asked_for() {
    let server = Server::new(|request| Ok(forgetful(request)));
    let expect = json!({
        "layers": 2, "heads": 2, "tokens": 100, "kept": [[[0, 4], [96, 100]], [[0, 45], [50, 90]], [], [[7, 8], [9, 99]]],
    });
    for (path, body) in routes() {
        for (show, shown) in [(json!(true), true), (json!(false), false), (json!(null), false)] {
            let retain = json!({"policy": "h2o", "keep": 0.25, "show": show});
            let asked = with(body.clone(), json!({"kvik": {"retain": retain}}));
            let (status, answer) = server.post(path, asked).await;
            assert_eq!(status, 200, "{path} {answer}");
            let positions = answer["kvik"]["retain"].get("positions");
            assert_eq!(positions, shown.then_some(&expect), "{path} {show}");
        }
        let wrong = with(body, json!({"kvik": {"retain": {"policy": "h2o", "show": "yes"}}}));
        let (status, answer) = server.post(path, wrong).await;
        assert_eq!(
            (status.as_u16(), &answer["error"]["param"]),
            (400, &json!("kvik.retain.show")),
            "{answer}"
        );
    }
}

#[tokio::test]
async fn metrics_name_the_policy_alone() {
    let server = Server::new(|request| Ok(forgetful(request)));
    for keep in [0.25, 0.5] {
        let body = with(hello(), json!({"kvik": {"retain": {"policy": "h2o", "keep": keep}}}));
        server.post("/v1/chat/completions", body).await;
    }
    server.post("/v1/chat/completions", hello()).await;
    let response = server.send("GET", "/metrics", "").await;
    let text = String::from_utf8(to_bytes(response.into_body(), usize::MAX).await.unwrap().to_vec()).unwrap();
    for line in [
        "kvik_retain_requests_total{policy=\"h2o\"} 2",
        "kvik_retain_positions_kept_total{policy=\"h2o\"} 200",
        "kvik_retain_positions_dropped_total{policy=\"h2o\"} 600",
    ] {
        assert!(text.contains(line), "{line} is in\n{text}");
    }
}

//! Retention: what of it reaches the engine, what is refused, and what the answer says of it.

use kvik_cache::retain::{Retention, RetentionError};

use super::*;

/// The routes that complete something, with a body that each takes.
fn routes() -> [(&'static str, Value); 3] {
    let prompt = json!({"prompt": "Once upon a time"});
    [("/v1/chat/completions", hello()), ("/v1/completions", prompt.clone()), ("/completion", prompt)]
}

/// `body` with a field `kvik.retain` of this text.
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
            (&deep, "kvik.retain"),
            (&long, "kvik.retain"),
            (r#"{"policy": "snapkv", "keep": NaN}"#, ""),
            (r#"{"policy": "snapkv", "keep": 1e400}"#, "kvik.retain"),
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

//! Requests that must not be admitted: foreign origins, foreign hosts, other content types.

use serde_json::json;

use axum::extract::Request;

use super::{Server, config, hello, json_of, say, with};
use crate::{
    app::AppConfig,
    app::{keys::Keys, loading},
};

const CHAT: &str = "/v1/chat/completions";

fn server(keys: Keys) -> Server {
    Server::build(|request| Ok(say(request, "Hi!", kvik_engine::api::FinishReason::Eos)), keys, config())
}

/// Returns the status and error code of a request with these headers.
async fn ask(server: &Server, method: &str, path: &str, headers: &[(&str, &str)]) -> (u16, String) {
    let body = if method == "POST" { hello().to_string() } else { String::new() };
    let (status, answer) = json_of(server.send_with(method, path, body, headers).await).await;
    (status.as_u16(), answer["error"]["code"].as_str().unwrap_or_default().to_owned())
}

fn refused(status: u16, code: &str) -> (u16, String) {
    (status, code.to_owned())
}

#[tokio::test]
async fn a_server_without_keys_answers_to_its_own_hosts_only() {
    let server = server(Keys::new([]));
    for (method, path) in [("POST", CHAT), ("GET", "/v1/models"), ("GET", "/health"), ("GET", "/nowhere")] {
        let (status, code) = ask(&server, method, path, &[("host", "evil.example:8080")]).await;
        assert_eq!((status, code.as_str()), (403, "host_not_allowed"), "{method} {path}");
        assert_ne!(ask(&server, method, path, &[("host", "localhost:8080")]).await.0, 403, "{method} {path}");
        assert_ne!(ask(&server, method, path, &[]).await.0, 403, "{method} {path}");
    }
    assert!(server.engine.asked.lock().unwrap().len() == 2, "what was refused did not reach the engine");
}

#[tokio::test]
async fn a_key_opens_under_any_host_and_health_wants_the_right_one() {
    let server = server(Keys::new(["sesame"]));
    let foreign = ("host", "evil.example");
    assert_eq!(ask(&server, "POST", CHAT, &[foreign, ("x-api-key", "sesame")]).await.0, 200);
    assert_eq!(ask(&server, "POST", CHAT, &[foreign]).await, refused(401, "invalid_api_key"));
    assert_eq!(ask(&server, "GET", "/health", &[foreign]).await, refused(403, "host_not_allowed"));
    assert_eq!(ask(&server, "GET", "/health", &[("host", "127.0.0.1")]).await.0, 200);
}

#[tokio::test]
async fn a_foreign_page_is_refused_with_a_key_and_without() {
    let host = ("host", "127.0.0.1:8080");
    for keys in [Keys::new([]), Keys::new(["sesame"])] {
        let server = server(keys);
        let key = ("x-api-key", "sesame");
        for (origin, expect) in [
            ("https://evil.example", 403),
            ("null", 403),
            ("http://127.0.0.1:3000", 403),
            ("http://127.0.0.1:8080", 200),
            ("https://page.example", 200),
        ] {
            for (method, path) in [("POST", CHAT), ("GET", "/v1/models"), ("GET", "/health")] {
                let (status, code) = ask(&server, method, path, &[host, key, ("origin", origin)]).await;
                assert_eq!(status, expect, "{origin}: {method} {path}");
                assert_eq!(code, if expect == 403 { "origin_not_allowed" } else { "" });
            }
        }
    }
}

#[tokio::test]
async fn a_body_that_a_page_may_have_sent_says_that_it_is_json() {
    let server = server(Keys::new([]));
    for kind in [
        "application/json",
        "application/json; charset=utf-8",
        "Application/JSON",
        "application/vnd.api+json",
    ] {
        assert_eq!(ask(&server, "POST", CHAT, &[("content-type", kind)]).await.0, 200, "{kind}");
    }
    for kind in
        ["text/plain", "application/x-www-form-urlencoded", "text/json", "application/jsonp", "json", ""]
    {
        // curl labels every body as a form, and some clients send an empty type.
        assert_eq!(ask(&server, "POST", CHAT, &[("content-type", kind)]).await.0, 200, "{kind}");
        let of_page = [("content-type", kind), ("origin", "https://page.example")];
        let response = server.send_with("POST", CHAT, hello().to_string(), &of_page).await;
        let (status, answer) = json_of(response).await;
        assert_eq!(
            (status.as_u16(), &answer["error"]["code"]),
            (415, &json!("content_type_not_json")),
            "{kind}"
        );
        assert!(
            answer["error"]["message"].as_str().unwrap().contains("Content-Type: application/json"),
            "{answer}"
        );
    }
    let packed =
        ask(&server, "POST", CHAT, &[("content-type", "application/json"), ("content-encoding", "gzip")]);
    assert_eq!(packed.await, refused(415, "content_encoding_not_supported"));
    let plain = [("content-type", "application/json"), ("content-encoding", "identity")];
    assert_eq!(ask(&server, "POST", CHAT, &plain).await.0, 200);
}

#[tokio::test]
async fn an_allowed_page_may_send_the_headers_of_the_official_client() {
    let server = server(Keys::new([]));
    let wanted = "authorization,content-type,x-api-key,x-stainless-os,x-stainless-retry-count";
    let headers = [
        ("origin", "https://page.example"),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", wanted),
    ];
    let response = server.send_with("OPTIONS", CHAT, "", &headers).await;
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["access-control-allow-headers"], wanted);
    assert_eq!(response.headers()["access-control-allow-origin"], "https://page.example");
    let response = server.send_with("POST", CHAT, hello().to_string(), &headers[..1]).await;
    assert_eq!(response.headers()["access-control-expose-headers"], "*", "retry-after can be read");
}

#[tokio::test]
async fn another_models_name_is_answered_by_this_one_unless_names_are_strict() {
    let lenient = server(Keys::new([]));
    let strict = AppConfig { strict_model: true, ..config() };
    let strict = Server::build(
        |request| Ok(say(request, "Hi!", kvik_engine::api::FinishReason::Eos)),
        Keys::new([]),
        strict,
    );
    for (path, body) in [(CHAT, hello()), ("/v1/completions", json!({"prompt": "abc"}))] {
        let ask = async |server: &Server, model: &str| {
            let body = with(body.clone(), json!({"model": model})).to_string();
            json_of(server.send_with("POST", path, body, &[]).await).await
        };
        let (status, answer) = ask(&lenient, "gpt-4o").await;
        assert_eq!((status.as_u16(), &answer["model"]), (200, &json!("tiny")), "{answer}");
        let (status, answer) = ask(&strict, "gpt-4o").await;
        assert_eq!((status.as_u16(), &answer["error"]["code"]), (404, &json!("model_not_found")), "{answer}");
        assert_eq!(answer["error"]["param"], "model");
        assert_eq!(ask(&strict, "kvik").await.0, 200);
    }
    for server in [&lenient, &strict] {
        assert_eq!(ask(server, "GET", "/v1/models/gpt-4o", &[]).await.0, 404);
    }
}

#[tokio::test]
async fn llama_servers_other_names_lead_to_the_same_and_the_404_lists_all() {
    let server = server(Keys::new([]));
    let shape = async |method: &str, path: &str| {
        let body = with(hello(), json!({"prompt": "abc"})).to_string();
        let (status, answer) = json_of(server.send_with(method, path, body, &[]).await).await;
        let keys: Vec<String> = answer.as_object().unwrap().keys().cloned().collect();
        (status, answer["object"].clone(), keys)
    };
    for (method, path, alias) in [
        ("POST", CHAT, "/chat/completions"),
        ("POST", "/completion", "/completions"),
        ("GET", "/v1/models", "/models"),
        ("GET", "/v1/models/tiny", "/models/tiny"),
        ("GET", "/health", "/v1/health"),
        ("GET", "/ready", "/v1/ready"),
    ] {
        let expect = shape(method, path).await;
        assert_eq!(expect.0, 200, "{path}");
        assert_eq!(shape(method, alias).await, expect, "{alias}");
    }
    let (status, answer) = json_of(server.send_with("GET", "/nowhere", "", &[]).await).await;
    assert_eq!(status, 404);
    for path in [
        "/v1/chat/completions",
        "/completions",
        "/v1/cache/pin",
        "/v1/health",
        "/metrics",
        "/v1/prompts/{name}",
    ] {
        assert!(answer["error"]["message"].as_str().unwrap().contains(path), "{path}: {answer}");
    }
}

#[tokio::test]
async fn wrong_paths_methods_and_queries_get_errors_in_json() {
    let server = server(Keys::new([]));
    for (method, path, status) in [
        ("GET", "/v1/prompts/%ff", 400),
        ("GET", "/v1/cache?limit=many", 400),
        ("GET", "/v1/cache?wrong=1", 400),
        ("GET", "/v1/usage?since=never", 400),
        ("PATCH", CHAT, 405),
        ("POST", "/v1/models", 405),
        ("GET", "/v1//models", 404),
    ] {
        let (got, answer) = json_of(server.send_with(method, path, "", &[]).await).await;
        assert_eq!(got.as_u16(), status, "{method} {path}: {answer}");
        let keys: Vec<&String> = answer["error"].as_object().unwrap().keys().collect();
        assert_eq!(keys, ["message", "type", "param", "code"], "{path}");
        assert!(!answer["error"]["message"].as_str().unwrap().is_empty(), "{path}");
    }
    let response = server.send_with("PATCH", CHAT, "", &[]).await;
    assert!(response.headers()["allow"].to_str().unwrap().contains("POST"), "{response:?}");
    for (path, takes) in
        [(CHAT, "it takes POST"), ("/v1/messages", "it takes POST"), ("/v1/cache", "it takes GET, DELETE")]
    {
        let (_, answer) = json_of(server.send_with("PATCH", path, "", &[]).await).await;
        assert!(answer["error"]["message"].as_str().unwrap().ends_with(takes), "{path}: {answer}");
    }
}

#[tokio::test]
async fn a_server_that_loads_says_so_in_llama_servers_words() {
    let router = loading::router(config().senders, true);
    let loading = async |path: &str, host: &str| {
        use tower::ServiceExt;
        let request = Request::get(path).header("host", host).body(axum::body::Body::empty()).unwrap();
        router.clone().oneshot(request).await.unwrap()
    };
    for path in ["/health", "/ready", "/v1/models", "/nowhere"] {
        let response = loading(path, "localhost").await;
        assert_eq!(response.headers()["retry-after"], "1");
        let (status, answer) = json_of(response).await;
        assert_eq!(status, 503);
        let expect =
            json!({"message": "Loading model", "type": "unavailable_error", "param": null, "code": 503});
        assert_eq!(answer, json!({"error": expect}));
    }
    assert_eq!(loading("/health", "evil.example").await.status(), 403);
}

//! The routes and those who may not come in: foreign pages, foreign hosts, bodies of other kinds.

use serde_json::json;

use super::{
    tests::{Server, config, hello, json_of, say},
    *,
};

const CHAT: &str = "/v1/chat/completions";

fn server(keys: Keys) -> Server {
    Server::build(|request| Ok(say(request, "Hi!", kvik_engine::api::FinishReason::Eos)), keys, config())
}

/// Status and code of what a request with these headers is answered.
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
async fn a_body_says_that_it_is_json() {
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
        let response = server.send_with("POST", CHAT, hello().to_string(), &[("content-type", kind)]).await;
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

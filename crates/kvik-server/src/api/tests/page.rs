//! The web page: available to everyone who may reach the server, and unchanged while the model loads.

use axum::{
    body::{Body, to_bytes},
    extract::Request,
    response::Response,
};
use kvik_engine::api::FinishReason;
use tower::ServiceExt;

use super::{Server, config, json_of, say};
use crate::app::{keys::Keys, loading};

fn server() -> Server {
    Server::build(|request| Ok(say(request, "Hi!", FinishReason::Eos)), Keys::new(["sesame"]), config())
}

/// Checks that this is the page, with all protective headers; returns its tag.
async fn assert_page(response: Response) -> String {
    assert_eq!(response.status(), 200);
    let headers = response.headers().clone();
    let policy = headers["content-security-policy"].to_str().unwrap();
    for rule in ["default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'"] {
        assert!(policy.split("; ").any(|found| found == rule), "{rule}: {policy}");
    }
    assert!(!policy.contains("unsafe") && !policy.contains('*') && !policy.contains("http"), "{policy}");
    assert_eq!(headers["content-type"], "text/html; charset=utf-8");
    assert_eq!(headers["x-content-type-options"], "nosniff");
    assert_eq!(headers["referrer-policy"], "no-referrer");
    assert_eq!(headers["cache-control"], "no-cache");
    let text = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    assert!(text.starts_with(b"<!doctype html>"));
    headers["etag"].to_str().unwrap().to_owned()
}

#[tokio::test]
async fn the_page_wants_no_key_and_its_data_do() {
    let server = server();
    let tag = assert_page(server.send("GET", "/", "").await).await;
    assert_eq!(assert_page(server.send("GET", "/page/index.html", "").await).await, tag);
    let known = server.send_with("GET", "/", "", &[("if-none-match", &tag)]).await;
    assert_eq!((known.status().as_u16(), &known.headers()["etag"]), (304, &tag.parse().unwrap()));
    assert_eq!(server.get("/v1/models").await.0, 401);
    assert_eq!(server.get("/pages").await.0, 401, "only what begins with /page/ is the page's");
}

#[tokio::test]
async fn what_is_no_file_of_the_page_is_not_found() {
    let server = server();
    for path in [
        "/page/nothing.js",
        "/page/index",
        "/page/../src/lib.rs",
        "/page/..%2fCargo.toml",
        "/page/%2e%2e/page/index.html",
        "/page//index.html",
        "/page/%2fetc%2fpasswd",
    ] {
        let (status, answer) = server.get(path).await;
        assert_eq!((status.as_u16(), &answer["error"]["code"]), (404, &"unknown_file".into()), "{path}");
    }
}

#[tokio::test]
async fn a_foreign_name_or_page_does_not_get_it() {
    let server = server();
    for (header, code) in [
        (("host", "evil.example"), "host_not_allowed"),
        (("origin", "https://evil.example"), "origin_not_allowed"),
    ] {
        for path in ["/", "/page/index.html"] {
            let (status, answer) = json_of(server.send_with("GET", path, "", &[header]).await).await;
            assert_eq!((status.as_u16(), &answer["error"]["code"]), (403, &code.into()), "{path}");
        }
    }
}

#[tokio::test]
async fn the_page_is_there_while_the_model_loads() {
    let router = loading::router(config().senders, false);
    let ask = async |method: &str, path: &str, host: &str| {
        let request = Request::builder().method(method).uri(path).header("host", host);
        router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
    };
    assert_page(ask("GET", "/", "localhost").await).await;
    assert_page(ask("GET", "/page/index.html", "localhost").await).await;
    assert_eq!(ask("GET", "/", "evil.example").await.status(), 403);
    assert_eq!(ask("POST", "/", "localhost").await.status(), 503);
    assert_eq!(ask("GET", "/v1/models", "localhost").await.status(), 503);
}

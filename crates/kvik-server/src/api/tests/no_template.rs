//! A model without a chat template: every chat route names the alternative, and completions work.

use std::sync::Arc;

use super::*;

/// Creates a server of a base model.
fn base() -> Server {
    let engine = Arc::new(Scripted::new(|request| Ok(say(request, "and so on", FinishReason::Eos))));
    let mut serving = serving("base", engine.clone(), None);
    Arc::get_mut(&mut serving.texts).unwrap().template = None;
    let ledger = Ledger::new(None, || std::time::SystemTime::UNIX_EPOCH);
    let app = App::new(serving, Keys::new([]), Arc::new(ledger), config());
    Server { engine, router: router(app.clone()), app }
}

#[tokio::test]
async fn every_route_of_chats_says_what_works_instead() {
    let server = base();
    let messages = json!([{"role": "user", "content": "Hello"}]);
    let chats = [
        ("/v1/chat/completions", json!({"messages": messages})),
        ("/v1/messages", json!({"model": "base", "messages": messages, "max_tokens": 4})),
        ("/v1/responses", json!({"input": "Hello"})),
        ("/api/chat", json!({"model": "base", "messages": messages})),
        ("/apply-template", json!({"messages": messages})),
    ];
    for (path, body) in chats {
        let version = [("anthropic-version", "2023-06-01")];
        let answer = server.send_with("POST", path, body.to_string(), &version).await;
        let (status, error) = json_of(answer).await;
        assert_eq!(status, 400, "{path}: {error}");
        for word in ["`base`", "no chat template", "/v1/completions", "--chat-template FILE"] {
            assert!(error.to_string().contains(word), "{path}: {error} says {word}");
        }
    }
    let (status, answer) = server.post("/v1/completions", json!({"prompt": "Once"})).await;
    assert_eq!((status, &answer["choices"][0]["text"]), (StatusCode::OK, &json!("and so on")));
}

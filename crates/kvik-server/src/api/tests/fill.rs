//! The middle of a text, asked for in three dialects.

use std::sync::Arc;

use kvik_engine::api::FinishReason;
use kvik_text::files::{
    bytes::FileBytes,
    gguf::{Gguf, write::GgufWriter},
};
use kvik_text::tokenizer::Tokenizer;
use serde_json::{Value, json};

use super::{Keys, Scripted, Server, Texts, config, say, serving};

/// The body of each route that asks for the middle between two texts.
fn bodies(before: &str, after: &str) -> [(&'static str, Value); 3] {
    [
        ("/infill", json!({"input_prefix": before, "input_suffix": after, "n_predict": 8})),
        ("/v1/completions", json!({"prompt": before, "suffix": after, "max_tokens": 8})),
        (
            "/api/generate",
            json!({"prompt": before, "suffix": after, "options": {"num_predict": 8}, "stream": false}),
        ),
    ]
}

/// Tokens are `▁`, `a` and `b`, then those for the parts of a text.
pub(super) fn server() -> Server {
    let tokens = ["▁", "a", "b", "<PRE>", "<SUF>", "<MID>"].map(str::to_owned);
    let mut file = GgufWriter::new();
    file.text("tokenizer.ggml.model", "llama")
        .texts("tokenizer.ggml.tokens", &tokens)
        .f32s("tokenizer.ggml.scores", &[0.0; 6])
        .i32s("tokenizer.ggml.token_type", &[1, 1, 1, 3, 3, 3]);
    let file = Gguf::from_bytes(FileBytes::Owned(file.to_bytes())).unwrap();
    let tokenizer = Tokenizer::from_gguf(&file).unwrap();
    let engine = Arc::new(Scripted::new(|request| Ok(say(request, "x", FinishReason::Eos))));
    let mut serving = serving("tiny", engine.clone(), None);
    serving.texts = Arc::new(Texts::new(tokenizer, None, serving.model.context));
    Server::of(serving, engine, Keys::new([]), config())
}

#[tokio::test]
async fn every_dialect_asks_for_the_middle_with_the_models_tokens() {
    let server = server();
    let (prefix, suffix, middle) = (3, 4, 5);
    for (path, body) in bodies("ab", "b") {
        let (status, answer) = server.post(path, body).await;
        assert_eq!(status, 200, "{path}: {answer}");
        let prompt = server.asked().prompt;
        let without_spaces: Vec<_> = prompt.into_iter().filter(|&token| token != 0).collect();
        assert_eq!(without_spaces, [prefix, 1, 2, suffix, 2, middle], "{path}");
    }
    // The middle at the beginning of a text, and an empty suffix, which asks for nothing.
    let (status, _) =
        server.post("/api/generate", json!({"prompt": "", "suffix": "a", "stream": false})).await;
    assert_eq!((status.as_u16(), server.asked().prompt.last()), (200, Some(&middle)));
    server.post("/v1/completions", json!({"prompt": "a", "suffix": ""})).await;
    assert!(!server.asked().prompt.contains(&middle));
    let (status, answer) = server.post("/v1/completions", json!({"prompt": [1, 2], "suffix": "a"})).await;
    assert_eq!((status.as_u16(), &answer["error"]["param"]), (400, &json!("suffix")));
}

#[tokio::test]
async fn a_long_text_keeps_what_is_beside_the_middle() {
    let server = server();
    let bodies_of = |more: &str, count: usize| {
        bodies(&format!("{more}{}", "a".repeat(count)), &format!("{}{more}", "b".repeat(count)))
    };
    // Longer than what is tokenized of a text, which ends within a character.
    let longest = kvik_text::tokenizer::text_bytes_max(2048);
    for (path, body) in bodies_of("", 5000).into_iter().chain(bodies_of("é", longest - 1)) {
        let (status, answer) = server.post(path, body).await;
        assert_eq!(status, 200, "{path}: {answer}");
        let prompt = server.asked().prompt;
        let count = |wanted| prompt.iter().filter(|&&token| token == wanted).count();
        assert!(prompt.len() <= 2048 - 8, "{path}: {}", prompt.len());
        assert!(count(1) > 1500 && count(2) > 500, "{path}: {} before, {} after", count(1), count(2));
    }
}

#[tokio::test]
async fn a_model_without_such_tokens_says_what_it_lacks() {
    let server = Server::saying("a");
    for (path, body) in bodies("a", "b") {
        let (status, answer) = server.post(path, body).await;
        assert_eq!(status, 501, "{path}: {answer}");
        let error = &answer["error"];
        let message = error["message"].as_str().or(error.as_str()).unwrap();
        let missing = "Infill is not supported by this model: prefix token is missing. suffix token is missing. middle token is missing.";
        assert_eq!(message, missing, "{path}");
    }
}

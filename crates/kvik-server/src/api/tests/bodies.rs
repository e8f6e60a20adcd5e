//! The cost of bodies: hostile and large ones over a scripted engine.

use std::{sync::Arc, time::Duration};

use axum::http::StatusCode;
use kvik_engine::api::{Event, Report, Request};
use kvik_text::template::ChatTemplate;
use serde_json::{Value, json};

use super::{Server, config, json_of};
use crate::{api::conversation_prompt, app::AppConfig, app::keys::Keys};
use kvik_serving::settings::size::ByteSize;

/// The completion routes.
const ROUTES: [&str; 3] = ["/v1/chat/completions", "/v1/completions", "/completion"];

/// Creates a server whose engine answers immediately, without text, also as many prompts as a request may bring.
fn server() -> Server {
    Server::build(done, Keys::new([]), AppConfig { admission_slots: 64, ..config() })
}

fn done(request: &Request) -> Result<Vec<Event>, kvik_engine::api::RequestError> {
    Ok(vec![Event::Done(Report { prompt_tokens: request.prompt.len(), ..Report::default() })])
}

async fn post(server: &Server, route: &str, body: String) -> (StatusCode, Value) {
    json_of(server.send_with("POST", route, body, &[("content-type", "application/json")]).await).await
}

/// Returns a valid body for the route, with additional fields.
fn with(route: &str, more: &str) -> String {
    let prompt = match route {
        "/v1/chat/completions" => r#""messages": [{"role": "user", "content": "hi"}]"#,
        _ => r#""prompt": "hi""#,
    };
    if more.is_empty() { format!("{{{prompt}}}") } else { format!("{{{prompt}, {more}}}") }
}

#[tokio::test]
async fn what_nobody_reads_is_not_built() {
    let server = server();
    let deep = format!("\"unknown\": {}{}", "[".repeat(200_000), "]".repeat(200_000));
    for route in ROUTES {
        // Building the value would fail at 128 levels; ignored values are never built.
        let (status, answer) = post(&server, route, with(route, &deep)).await;
        assert_eq!(status, 200, "{route} {answer}");
    }
}

/// PowerShell and .NET write the mark in front of a file's text, and `curl --data-binary @FILE` sends it.
#[tokio::test]
async fn a_body_may_begin_with_the_byte_order_mark() {
    let server = server();
    let bodies = ROUTES.map(|route| (route, with(route, "")));
    for (route, body) in bodies.into_iter().chain([("/tokenize", r#"{"content": "hi"}"#.to_owned())]) {
        let (status, answer) = post(&server, route, format!("\u{feff}{body}")).await;
        assert_eq!(status, 200, "{route} {answer}");
    }
}

#[tokio::test]
async fn what_is_read_is_built_within_a_budget() {
    let config = AppConfig { body_limit: ByteSize(16 << 20), ..config() };
    let server = Server::build(done, Keys::new([]), config);
    let many = vec!["[[1]]"; 1_000_000].join(",");
    let empty = vec!["\"\""; 1_500_000].join(",");
    let check = async |route: &str, field: &str, value: &str| {
        let (status, answer) = post(&server, route, with(route, &format!("\"{field}\": {value}"))).await;
        assert_eq!((status.as_u16(), &answer["error"]["param"]), (400, &json!(field)), "{answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains("64 MiB"), "{answer}");
    };
    check("/v1/chat/completions", "tools", &format!("[[{many}]]")).await;
    check("/v1/chat/completions", "tools", &format!("[{many}]")).await;
    check("/v1/chat/completions", "messages", &format!("[{many}]")).await;
    check("/v1/completions", "logit_bias", &format!("[{many}]")).await;
    check("/completion", "stop", &format!("[{empty}]")).await;
    check("/completion", "json_schema", &format!("[{many}]")).await;
    check("/completion", "image_data", &format!("[{many}]")).await;
    // A value that no type accepts is not built at all.
    let (status, answer) =
        post(&server, "/completion", with("/completion", &format!("\"stop\": [{many}]"))).await;
    assert_eq!((status.as_u16(), &answer["error"]["param"]), (400, &json!("stop[0]")), "{answer}");
}

/// Returns a body with a prompt of many times the context.
fn long(more: &str) -> String {
    format!("{{\"prompt\": \"{}\"{more}}}", "a ".repeat(300_000))
}

#[tokio::test]
async fn a_prompt_that_cannot_fit_is_refused_before_it_is_copied() {
    let server = server();
    for route in ["/v1/completions", "/completion"] {
        let (status, answer) = post(&server, route, long(r#", "echo": true, "n": 64"#)).await;
        assert_eq!((status.as_u16(), &answer["error"]["code"]), (400, &json!("context_length_exceeded")));
        let tokens = answer["error"]["n_prompt_tokens"].as_u64().unwrap();
        assert!(tokens > 2048 && answer["error"]["n_ctx"] == 2048, "{answer}");
    }
    assert!(server.engine.asked.lock().unwrap().is_empty(), "nothing was submitted");
}

#[tokio::test]
async fn answers_repeat_prompts_up_to_a_limit() {
    let server = server();
    let tokenizer = &server.app.serving.texts.tokenizer;
    let longest = (0..tokenizer.vocab_len() as u32).max_by_key(|&id| tokenizer.decode(&[id]).len()).unwrap();
    let ask = async |route: &str, prompts: usize, n: usize| {
        let body =
            json!({"prompt": vec![vec![longest; 2000]; prompts], "n": n, "echo": true, "max_tokens": 0});
        post(&server, route, body.to_string()).await
    };
    for (route, field) in [("/v1/completions", "echo"), ("/completion", "n")] {
        let (status, answer) = ask(route, 64, 64).await;
        assert_eq!((status.as_u16(), &answer["error"]["param"]), (400, &json!(field)));
    }
    let (_, answer) = ask("/v1/completions", 1, 3).await;
    let echoed = answer["choices"][2]["text"].as_str().unwrap();
    assert_eq!(echoed.len(), 2000 * tokenizer.decode(&[longest]).len());
}

#[tokio::test]
async fn a_large_constraint_is_not_copied_for_many_prompts() {
    let server = server();
    let ask = async |route: &str, prompts: usize, items: usize| {
        let schema = json!({"enum": vec![[[1]]; items]});
        let body = json!({"prompt": vec!["hi"; prompts], "json_schema": schema});
        post(&server, route, body.to_string()).await
    };
    for route in ["/v1/completions", "/completion"] {
        assert_eq!(ask(route, 64, 1000).await.0, 200);
        assert_eq!(ask(route, 1, 10_000).await.0, 200);
        let (status, answer) = ask(route, 64, 10_000).await;
        assert_eq!((status.as_u16(), &answer["error"]["param"]), (400, &json!("prompt")), "{answer}");
    }
}

#[tokio::test]
async fn tokenize_takes_texts_up_to_a_limit() {
    let config = AppConfig { body_limit: ByteSize(8 << 20), ..config() };
    let server = Server::build(done, Keys::new([]), config);
    let tokenize = async |bytes: usize, more: &str| {
        post(&server, "/tokenize", format!("{{\"content\": \"{}\"{more}}}", "a".repeat(bytes))).await
    };
    let (status, answer) = tokenize(1 << 20, "").await;
    let count = answer["tokens"].as_array().unwrap().len();
    assert!(status == 200 && count > 1000, "{count}");
    let (status, answer) = tokenize(1 << 16, ", \"with_pieces\": true").await;
    let pieces = answer["tokens"].as_array().unwrap();
    let bytes: usize = pieces.iter().map(|token| token["piece"].as_str().unwrap().len()).sum();
    assert_eq!((status.as_u16(), pieces.len(), bytes), (200, count >> 4, 1 << 16));
    let (status, answer) = tokenize((1 << 20) + 1, "").await;
    assert_eq!((status.as_u16(), &answer["error"]["param"]), (400, &json!("content")));
}

#[tokio::test]
async fn detokenize_gives_texts_up_to_a_limit() {
    let config = AppConfig { body_limit: ByteSize(8 << 20), ..config() };
    let server = Server::build(done, Keys::new([]), config);
    let tokenizer = &server.app.serving.texts.tokenizer;
    let long = tokenizer.token_of("Ġnotifications").unwrap();
    let bytes = tokenizer.token_bytes(long).len();
    let detokenize = async |count: usize| {
        post(&server, "/detokenize", format!("{{\"tokens\": {:?}}}", vec![long; count])).await
    };
    let most = (16 << 20) / bytes;
    let (status, answer) = detokenize(most).await;
    assert_eq!((status.as_u16(), answer["content"].as_str().map(str::len)), (200, Some(most * bytes)));
    let (status, answer) = detokenize(most + 1).await;
    assert_eq!((status.as_u16(), &answer["error"]["param"]), (400, &json!("tokens")));
}

/// A request that waits for its submission to the engine keeps its slot for reading; small bodies must not
/// wait for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_body_that_takes_its_time_holds_up_no_small_one() {
    let (open, door) = std::sync::mpsc::channel::<()>();
    let door = std::sync::Mutex::new(door);
    let script = move |request: &Request| {
        if request.prompt.len() > 1000 {
            door.lock().unwrap().recv().ok();
        }
        done(request)
    };
    let server = Arc::new(Server::build(script, Keys::new([]), config()));
    let large = |server: Arc<Server>| {
        let body = json!({"prompt": vec![5; 1500], "user": "x".repeat(70_000)}).to_string();
        tokio::spawn(async move { post(&server, "/v1/completions", body).await.0 })
    };
    let slow: Vec<_> = (0..3).map(|_| large(server.clone())).collect();
    for route in ROUTES {
        let small = tokio::time::timeout(Duration::from_secs(60), post(&server, route, with(route, "")));
        assert_eq!(small.await.expect("it does not wait").0, 200);
    }
    drop(open);
    for answer in slow {
        assert_eq!(answer.await.unwrap(), 200);
    }
}

#[tokio::test]
async fn the_length_of_an_answer_is_understood_on_every_route() {
    let server = server();
    let max_tokens = async |route: &str, more: &str| {
        let (status, answer) = post(&server, route, with(route, more)).await;
        assert_eq!(status, 200, "{route} {more} {answer}");
        server.engine.asked.lock().unwrap().last().unwrap().max_tokens
    };
    for route in ROUTES {
        for name in ["max_tokens", "max_completion_tokens", "n_predict"] {
            assert_eq!(max_tokens(route, &format!("\"{name}\": 4")).await, 4, "{route} {name}");
            assert_eq!(max_tokens(route, &format!("\"{name}\": -1")).await, 2048, "{route} {name}");
        }
    }
    assert_eq!(max_tokens("/v1/completions", "").await, 16);
}

#[tokio::test]
async fn what_is_not_obeyed_is_refused_on_every_route() {
    let server = server();
    for route in ROUTES {
        let (status, answer) = post(&server, route, with(route, r#""mirostat": 2"#)).await;
        assert_eq!((status.as_u16(), &answer["error"]["param"]), (400, &json!("mirostat")), "{route}");
        let (status, _) =
            post(&server, route, with(route, r#""mirostat": 0, "typical_p": 1, "lora": []"#)).await;
        assert_eq!(status, 200, "{route}");
    }
    let chat = ROUTES[0];
    let (_, answer) = post(&server, chat, with(chat, r#""functions": [{"name": "f"}]"#)).await;
    assert_eq!(answer["error"]["param"], "functions");
    let (_, answer) = post(&server, chat, with(chat, r#""reasoning_effort": "immense""#)).await;
    assert_eq!(answer["error"]["param"], "reasoning_effort");
}

#[tokio::test]
async fn effort_decides_whether_to_think_where_nothing_else_does() {
    let template = "{{ enable_thinking if enable_thinking is defined else 'open' }} {{ reasoning_effort }}";
    let template = ChatTemplate::new(template, "", "").unwrap();
    let check = |more: Value, expect: &str| {
        let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let prompt = conversation_prompt(body, &template, std::time::SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(prompt.text.to_lowercase().trim(), expect, "{more}");
    };
    check(json!({}), "open");
    check(json!({"reasoning_effort": "none"}), "false");
    check(json!({"reasoning_effort": "minimal"}), "false minimal");
    check(json!({"reasoning_effort": "high"}), "open high");
    check(json!({"reasoning_effort": "none", "enable_thinking": true}), "true");
    check(
        json!({"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}}),
        "open high",
    );
}

#[tokio::test]
async fn an_answer_of_llama_server_counts_all_tokens_and_says_when_the_context_ran_out() {
    use kvik_engine::api::{ChoiceTokens, FinishReason, GeneratedToken};
    let answer = async |generated: usize, reason: FinishReason, more: &str| {
        let script = move |_: &Request| {
            let token = || GeneratedToken { token: 5, logprob: None };
            let shown = generated - usize::from(reason == FinishReason::Eos);
            let tokens = (0..shown).map(|_| token()).collect();
            let choices = vec![ChoiceTokens { generated, ..ChoiceTokens::default() }];
            let report =
                Report { prompt_tokens: 5, generated_tokens: generated, choices, ..Report::default() };
            Ok(vec![
                Event::Text { choice: 0, text: "x".into(), tokens },
                Event::Finished { choice: 0, reason },
                Event::Done(report),
            ])
        };
        let server = Server::build(script, Keys::new([]), config());
        post(&server, "/completion", with("/completion", more)).await.1
    };
    let check = |answer: Value, predicted: usize, truncated: bool| {
        assert_eq!(answer["tokens_predicted"], predicted);
        assert_eq!(answer["timings"]["predicted_n"], predicted);
        assert_eq!(answer["truncated"], truncated, "{answer}");
    };
    check(answer(8, FinishReason::Eos, "").await, 8, false);
    check(answer(8, FinishReason::Length, r#""n_predict": 8"#).await, 8, false);
    check(answer(2044, FinishReason::Length, "").await, 2044, true);
    check(answer(2044, FinishReason::Length, r#""n_predict": 9000"#).await, 2044, true);
    check(answer(8, FinishReason::Length, r#""n_indent": 4"#).await, 8, false);
    check(answer(8, FinishReason::Length, r#""t_max_predict_ms": 9"#).await, 8, false);
}

//! Request fields that reach the engine, and fields that are refused.

use super::*;

#[tokio::test]
async fn what_the_request_says_reaches_the_engine() {
    let server = Server::saying("Hi!");
    let body = json!({
        "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "seed": 11, "stop": "END",
        "max_completion_tokens": 9, "max_tokens": 8, "logprobs": true, "top_logprobs": 2, "n": 3,
        "ignore_eos": true, "cache_prompt": false, "presence_penalty": 0.25, "frequency_penalty": -0.5,
        "logit_bias": {"5": 2}, "never_heard_of": [1, {"x": null}],
    });
    server.post("/v1/chat/completions", with(hello(), body)).await;
    let asked = server.asked();
    assert_eq!((asked.max_tokens, asked.choices, asked.logprobs), (9, 3, Some(2)));
    assert_eq!((asked.ignore_eos, asked.reuse), (true, false));
    assert_eq!(asked.stop, ["END"]);
    let sampling = &asked.sampling;
    assert_eq!((sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p), (0.5, 0.9, 7, 0.1));
    assert_eq!((sampling.presence_penalty, sampling.frequency_penalty, sampling.seed), (0.25, -0.5, 11));
    assert_eq!(sampling.logit_bias, [(5, 2.0)]);
}

#[tokio::test]
async fn thinking_is_switched_off_by_either_field() {
    let server = Server::saying("");
    for body in
        [json!({"enable_thinking": false}), json!({"chat_template_kwargs": {"enable_thinking": false}})]
    {
        let (_, rendered) = server.post("/apply-template", with(hello(), body)).await;
        assert!(rendered["prompt"].as_str().unwrap().ends_with("<think>\n\n</think>\n\n"), "{rendered}");
    }
}

#[tokio::test]
async fn wrong_requests_name_their_field() {
    let server = Server::saying("Hi!");
    let check = async |path: &str, body: Value, status: u16, param: &str| {
        let (got, answer) = server.post(path, body.clone()).await;
        let error = &answer["error"];
        assert_eq!(got.as_u16(), status, "{body} {answer}");
        assert_eq!(error["param"].as_str().unwrap_or(""), param, "{body} {answer}");
        assert!(!error["message"].as_str().unwrap().is_empty());
        let keys: Vec<&String> = error.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["message", "type", "param", "code"]);
    };
    let chat = "/v1/chat/completions";
    check(chat, json!({}), 400, "messages").await;
    check(chat, json!([]), 400, "").await;
    check(chat, with(hello(), json!({"model": 5})), 400, "model").await;
    check(chat, with(hello(), json!({"max_tokens": -5})), 400, "max_tokens").await;
    check(chat, with(hello(), json!({"max_completion_tokens": "x"})), 400, "max_completion_tokens").await;
    check(chat, with(hello(), json!({"stream": "yes"})), 400, "stream").await;
    let wrong_options = json!({"stream": true, "stream_options": {"include_usage": 1}});
    check(chat, with(hello(), wrong_options), 400, "stream_options.include_usage").await;
    check(chat, with(hello(), json!({"logprobs": true, "top_logprobs": 21})), 400, "top_logprobs").await;
    check(chat, with(hello(), json!({"top_logprobs": 2})), 400, "top_logprobs").await;
    check(chat, with(hello(), json!({"chat_template_kwargs": 1})), 400, "chat_template_kwargs").await;
    check("/v1/completions", json!({}), 400, "prompt").await;
    check("/v1/completions", json!({"prompt": "a", "suffix": 7}), 400, "suffix").await;
    check("/v1/completions", json!({"prompt": "a", "best_of": 3}), 400, "best_of").await;
    check("/v1/completions", json!({"prompt": "a", "echo": true, "logprobs": 1}), 400, "echo").await;
    // More than the engine runs and queues: waiting does not help.
    let many = json!({"prompt": vec!["a"; config().admission_slots + 1]});
    check("/v1/completions", many.clone(), 400, "prompt").await;
    check("/completion", many, 400, "prompt").await;
    check("/completion", json!({"prompt": true}), 400, "prompt").await;
    check("/completion", json!({"prompt": "a", "n_predict": "x"}), 400, "n_predict").await;
    check("/tokenize", json!({"content": 5}), 400, "content").await;
    check("/detokenize", json!({"tokens": [1, -1]}), 400, "tokens[1]").await;
    check("/detokenize", json!({"tokens": [1_000_000_000]}), 400, "tokens[0]").await;
    check("/apply-template", json!({}), 400, "messages").await;
}

#[tokio::test]
async fn what_the_engine_refuses_is_answered_with_its_status() {
    let check = async |error: RequestError, status: u16, code: Option<&str>| {
        let later = error.clone();
        let at_once = Server::new(move |_| Err(error.clone()));
        let at_last = Server::new(move |_| Ok(vec![Event::Failed(later.clone())]));
        for server in [&at_once, &at_last] {
            for stream in [false, true] {
                let body = with(hello(), json!({"stream": stream}));
                let (got, answer) = server.post("/v1/chat/completions", body).await;
                assert_eq!(got.as_u16(), status, "{answer}");
                assert_eq!(answer["error"]["code"].as_str(), code, "{answer}");
            }
        }
    };
    let too_long = RequestError::PromptTooLong { prompt_tokens: 5000, context_tokens: 2048 };
    check(too_long, 400, Some("context_length_exceeded")).await;
    check(RequestError::QueueFull { waiting: 3, retry_after_s: 2 }, 429, Some("queue_full")).await;
    check(RequestError::Stopping, 503, Some("stopping")).await;
    check(RequestError::Internal("x".into()), 500, Some("internal_error")).await;
}

#[tokio::test]
async fn a_stream_that_fails_half_way_ends_with_an_error_and_without_done() {
    let server = Server::new(|request| {
        let mut events = say(request, "Hi!", FinishReason::Eos);
        events.truncate(3);
        events.push(Event::Failed(RequestError::Stopping));
        Ok(events)
    });
    let events = server.stream("/v1/chat/completions", with(hello(), json!({"stream": true}))).await;
    let last: Value = serde_json::from_str(events.last().unwrap()).unwrap();
    assert_eq!(last["error"]["code"], "stopping");
}

#[tokio::test(start_paused = true)]
async fn a_long_prefill_sends_comments_and_a_closed_stream_is_noticed() {
    let server =
        Server::new(|request| Ok(vec![Event::Prefill { cached: 0, done: 0, total: request.prompt.len() }]));
    let body = with(hello(), json!({"stream": true})).to_string();
    let mut body = server.send("POST", "/v1/chat/completions", body).await.into_body().into_data_stream();
    for _ in 0..3 {
        let comment = tokio_stream::StreamExt::next(&mut body).await.unwrap().unwrap();
        assert_eq!(&comment[..], b":\n\n");
    }
    let closed = || server.engine.open.lock().unwrap()[0].is_closed();
    assert!(!closed());
    drop(body);
    assert!(closed(), "the engine can see that nobody listens");
}

#[tokio::test]
async fn an_engine_that_has_gone_is_an_error() {
    let server = Server::new(|_| Ok(Vec::new()));
    let (status, answer) = server.post("/v1/chat/completions", hello()).await;
    assert_eq!((status.as_u16(), answer["error"]["code"].as_str()), (500, Some("internal_error")));
}

#[tokio::test]
async fn bodies_that_are_no_json() {
    let server = Server::saying("Hi!");
    let deep = format!("{{\"messages\": {}", "[".repeat(100_000));
    let bodies: [&[u8]; 7] =
        [b"", b"{", b"null", b"\xff\xfe", b"{\"messages\": \"\xff\"}", deep.as_bytes(), b"{\"n\": 1e999}"];
    for body in bodies {
        for path in ["/v1/chat/completions", "/v1/completions", "/completion", "/tokenize"] {
            let response = server.send("POST", path, body.to_vec()).await;
            let (status, answer) = json_of(response).await;
            assert_eq!(status, 400, "{answer}");
        }
    }
}

#[tokio::test]
async fn a_body_beyond_the_limit_is_refused_announced_or_not() {
    let server =
        Server::with(|request| Ok(say(request, "", FinishReason::Eos)), Keys::new([]), ByteSize(1000));
    let body = json!({"content": "x".repeat(2000)}).to_string();
    for length in [Some("2014"), Some("900"), None] {
        let headers: Vec<(&str, &str)> = length.map(|n| ("content-length", n)).into_iter().collect();
        let response = server.send_with("POST", "/tokenize", body.clone(), &headers).await;
        let (status, answer) = json_of(response).await;
        assert_eq!((status.as_u16(), answer["error"]["code"].as_str()), (413, Some("body_too_large")));
    }
}

#[tokio::test]
async fn a_prompt_that_cannot_fit_is_refused_before_it_is_tokenized() {
    let server =
        Server::with(|request| Ok(say(request, "", FinishReason::Eos)), Keys::new([]), ByteSize(32 << 20));
    let text = "x".repeat(10 << 20);
    let bodies = [
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": text}]})),
        ("/v1/completions", json!({"prompt": text})),
        ("/completion", json!({"prompt": text})),
    ];
    for (path, body) in bodies {
        let (status, answer) = server.post(path, body).await;
        assert_eq!(status, 400, "{path}");
        assert_eq!(answer["error"]["code"], "context_length_exceeded");
        assert!(answer["error"]["message"].as_str().unwrap().contains("2048"), "{answer}");
    }
}

#[tokio::test]
async fn keys_are_asked_for_everywhere_but_health() {
    let server = Server::with(
        |request| Ok(say(request, "Hi!", FinishReason::Eos)),
        Keys::new(["sesame"]),
        ByteSize(1 << 20),
    );
    assert_eq!(server.get("/health").await.0, 200);
    for path in ["/v1/models", "/props", "/nowhere"] {
        let (status, answer) = server.get(path).await;
        assert_eq!((status.as_u16(), answer["error"]["code"].as_str()), (401, Some("invalid_api_key")));
    }
    let (status, _) = server.post("/v1/chat/completions", hello()).await;
    assert_eq!(status, 401);
    let key = [("authorization", "Bearer sesame")];
    let response = server.send_with("POST", "/v1/chat/completions", hello().to_string(), &key).await;
    assert_eq!(response.status(), 200);
}

#[tokio::test]
async fn models_health_props_and_unknown_routes() {
    let server = Server::saying("Hi!");
    let (_, models) = server.get("/v1/models").await;
    assert_eq!(models["data"][0]["id"], "tiny");
    assert_eq!(server.get("/v1/models/tiny").await.1["object"], "model");
    let (status, missing) = server.get("/v1/models/gpt-none").await;
    assert_eq!((status.as_u16(), missing["error"]["code"].as_str()), (404, Some("model_not_found")));
    assert_eq!(server.get("/health").await.1["status"], "ok");
    let (_, props) = server.get("/props").await;
    assert_eq!(props["default_generation_settings"]["n_ctx"], 2048);
    assert_eq!(props["total_slots"], 4);
    assert!(props["chat_template"].as_str().unwrap().contains("im_start"));
    for (path, told) in
        [("/nowhere", "kvik serves "), ("/api/v0/models", "LM Studio"), ("/api/v0/nowhere", "kvik serves ")]
    {
        let (status, answer) = server.get(path).await;
        assert_eq!((status.as_u16(), answer["error"]["code"].as_str()), (404, Some("unknown_route")));
        assert!(answer["error"]["message"].as_str().unwrap().contains(told), "{answer}");
    }
    assert_eq!(server.get("/v1/chat/completions").await.0, 405);
    for model in ["tiny", "kvik-tiny", "kvik", ""] {
        assert_eq!(server.post("/v1/chat/completions", with(hello(), json!({"model": model}))).await.0, 200);
    }
}

#[tokio::test]
async fn a_stuck_engine_is_neither_healthy_nor_ready_and_its_metric_says_since_when() {
    use kvik_model::pulse::{Life, Phase};
    let server = Server::with(
        |request| Ok(say(request, "Hi!", FinishReason::Eos)),
        Keys::new(["sesame"]),
        ByteSize(1 << 20),
    );
    let paths = ["/health", "/v1/health", "/ready", "/v1/ready"];
    let stand = |phase, seconds| {
        *server.engine.life.lock().unwrap() = Life { phase, age: Duration::from_secs_f64(seconds) };
    };
    for round in 0..2 {
        stand(Phase::Compute, 2.0);
        for (path, word) in paths.into_iter().zip(["ok", "ok", "ready", "ready"]) {
            let (status, answer) = server.get(path).await;
            assert_eq!((status.as_u16(), answer), (200, json!({"status": word})), "{path}, round {round}");
        }
        stand(Phase::Publish, 7.26);
        for path in paths {
            let (status, answer) = server.get(path).await;
            assert_eq!(status, 503, "{path}");
            assert_eq!(answer["error"]["code"], "engine_stuck");
            assert!(answer["error"]["message"].as_str().unwrap().contains("7.3 s"), "{answer}");
            let said = (&answer["status"], &answer["seconds"], &answer["phase"]);
            assert_eq!(said, (&json!("stuck"), &json!(7.3), &json!("publish")));
        }
        let key = [("authorization", "Bearer sesame")];
        let metrics = server.send_with("GET", "/metrics", "", &key).await;
        let metrics = to_bytes(metrics.into_body(), usize::MAX).await.unwrap();
        let metrics = String::from_utf8_lossy(&metrics);
        assert!(metrics.contains("\nkvik_engine_last_step_seconds 7.26\n"), "{metrics}");
        assert!(metrics.contains("\nkvik_log_lines_dropped_total 0\n"), "{metrics}");
    }
}

#[tokio::test]
async fn a_stopping_server_refuses_and_says_so() {
    let server = Server::saying("Hi!");
    server.app.server.stop();
    assert_eq!(server.get("/health").await.0, 503);
    assert_eq!(server.get("/ready").await.0, 503);
    let (status, answer) = server.post("/v1/chat/completions", hello()).await;
    assert_eq!((status.as_u16(), answer["error"]["code"].as_str()), (503, Some("stopping")));
}

#[tokio::test]
async fn metrics_count_what_was_computed() {
    let server = Server::saying("Hi!");
    server.post("/v1/chat/completions", hello()).await;
    server.get("/wp-login.php").await;
    let response = server.send("GET", "/metrics", "").await;
    let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    for line in [
        "kvik_http_requests_total{route=\"/v1/chat/completions\",status=\"200\"} 1",
        "kvik_http_requests_total{route=\"unknown\",status=\"404\"} 1",
        "kvik_cached_tokens_total 3",
        "kvik_generated_tokens_total 3",
        "kvik_decoded_tokens_total 2",
        "kvik_requests_running 2",
        "kvik_requests_waiting 2",
        "kvik_kv_used_bytes 2048",
        "kvik_kv_usage_ratio 0.25",
        "kvik_block_tokens 16",
        "kvik_blocks_total 8",
        "kvik_blocks_free 4",
        "kvik_blocks_cached 2",
        "kvik_blocks_withheld 1",
    ] {
        assert!(text.contains(line), "{line} is in\n{text}");
    }
}

#[tokio::test]
async fn only_an_answer_that_is_waited_for_has_a_first_token() {
    let server = Server::saying("Hi!");
    assert_eq!(server.post("/v1/chat/completions", hello()).await.0, 200);
    assert_eq!(server.post("/v1/embeddings", json!({"input": "One."})).await.0, 200);
    let text = scraped(server.router.clone()).await;
    // The speed of computing is measured without a disk too.
    for line in ["kvik_time_to_first_token_seconds_count 1", "kvik_prefill_tokens_per_second 250"] {
        assert!(text.contains(&format!("\n{line}\n")), "{line} is in\n{text}");
    }
}

/// What happens before the engine takes a request is waited for too.
#[tokio::test]
async fn a_first_token_is_waited_for_from_the_arrival_of_its_request() {
    let server = Server::taking(Duration::from_millis(700));
    assert_eq!(server.post("/v1/chat/completions", hello()).await.0, 200);
    let text = scraped(server.router.clone()).await;
    assert!(text.contains("\nkvik_time_to_first_token_seconds_sum 0.7\n"), "{text}");
}

#[tokio::test]
async fn an_answer_has_one_first_token_whether_or_not_it_is_completed() {
    let server = Server::breaking();
    assert_eq!(server.post("/v1/chat/completions", with(hello(), json!({"n": 2}))).await.0, 500);
    let text = scraped(server.router.clone()).await;
    assert!(text.contains("\nkvik_time_to_first_token_seconds_count 1\n"), "{text}");
}

/// Its answer never begins.
#[tokio::test]
async fn a_request_whose_client_leaves_is_counted() {
    let server = Server::new(|request| Ok(say(request, "Hi!", FinishReason::Eos).drain(..1).collect()));
    let asked = server.post("/v1/chat/completions", hello());
    assert!(tokio::time::timeout(Duration::from_millis(100), asked).await.is_err());
    let text = scraped(server.router.clone()).await;
    let line = "kvik_http_requests_total{route=\"/v1/chat/completions\",status=\"499\"} 1";
    assert!(text.contains(line), "{line} is in\n{text}");
}

#[tokio::test]
async fn a_request_at_which_the_server_panics_is_counted_as_its_fault() {
    let server = Server::new(|_| panic!("for the test"));
    let router = server.router.clone();
    let asked = tokio::spawn(async move { server.post("/v1/chat/completions", hello()).await });
    // It ends with the panic, or is answered.
    let _ = asked.await;
    let text = scraped(router).await;
    let line = "kvik_http_requests_total{route=\"/v1/chat/completions\",status=\"500\"} 1";
    assert!(text.contains(line), "{line} is in\n{text}");
}

async fn scraped(router: Router) -> String {
    let request = HttpRequest::builder().uri("/metrics").body(Body::empty()).unwrap();
    let response = router.oneshot(request).await.unwrap();
    String::from_utf8(to_bytes(response.into_body(), usize::MAX).await.unwrap().to_vec()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn scrapes_at_once_have_all_numbers_each() {
    let server = Server::saying("Hi!");
    let scrapes = (0..4).map(|_| {
        let router = server.router.clone();
        tokio::spawn(async move {
            for _ in 0..200 {
                let text = scraped(router.clone()).await;
                for line in ["kvik_blocks_total 8", "kvik_block_tokens 16", "kvik_tree_tokens 32"] {
                    assert!(text.contains(&format!("\n{line}\n")), "{line} is in\n{text}");
                }
            }
        })
    });
    for scrape in scrapes.collect::<Vec<_>>() {
        scrape.await.unwrap();
    }
}

#[tokio::test]
async fn only_allowed_pages_may_call() {
    let server = Server::saying("Hi!");
    let allowed = async |origin: &str| {
        let headers = [("origin", origin), ("access-control-request-method", "POST")];
        let response = server.send_with("OPTIONS", "/v1/chat/completions", "", &headers).await;
        response.headers().get("access-control-allow-origin").is_some()
    };
    assert!(allowed("https://page.example").await);
    assert!(!allowed("https://other.example").await);
}

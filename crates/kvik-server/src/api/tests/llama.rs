//! llama-server's routes: its fields, and features that kvik lacks.

use kvik_engine::api::{LineLimits, Sampling};

use super::*;
use kvik_serving::settings::sampling::SamplingArgs;

fn story() -> Value {
    json!({"prompt": "Once upon a time"})
}

#[tokio::test]
async fn a_grammar_in_gbnf_is_a_constraint() {
    let server = Server::saying("ab");
    let (status, answer) =
        server.post("/completion", with(story(), json!({"grammar": "root ::= \"a\" \"b\"*"}))).await;
    assert_eq!(status, 200, "{answer}");
    let Some(kvik_engine::api::Constraint::Lark(lark)) = server.asked().constraint else {
        panic!("no grammar")
    };
    assert!(lark.starts_with("start: "), "{lark}");
    let (status, answer) =
        server.post("/completion", with(story(), json!({"grammar": "root ::= \"a\" x"}))).await;
    let message = answer["error"]["message"].as_str().unwrap();
    assert_eq!((status.as_u16(), &answer["error"]["param"]), (400, &json!("grammar")));
    assert!(message.contains("line 1, column 14: the rule `x` is not defined"), "{message}");
}

#[tokio::test]
async fn an_answer_has_the_fields_that_were_asked_for() {
    let server = Server::saying("ab");
    let fields = json!({"response_fields": ["content", "generation_settings/n_predict", "timings/none"], "n_predict": 7});
    let (_, answer) = server.post("/completion", with(story(), fields.clone())).await;
    assert_eq!(answer, json!({"content": "ab", "generation_settings/n_predict": 7}));
    let frames = server.stream("/completion", with(with(story(), fields), json!({"stream": true}))).await;
    let last: Value = serde_json::from_str(frames.last().unwrap()).unwrap();
    assert_eq!(last, json!({"content": "", "generation_settings/n_predict": 7}));
}

#[tokio::test]
async fn end_tokens_that_are_ignored_are_forbidden() {
    let server = Server::saying("ab");
    let body = with(story(), json!({"ignore_eos": true, "logit_bias": [[3, 1.5]]}));
    let (_, answer) = server.post("/completion", body.clone()).await;
    let ends = server.app.serving.texts.tokenizer.eog().iter();
    let expect = [(3, 1.5)].into_iter().chain(ends.map(|&end| (end, f32::NEG_INFINITY)));
    let expect: Vec<_> = expect.collect();
    assert!(expect.len() > 1 && server.asked().ignore_eos);
    assert_eq!(server.asked().sampling.logit_bias, expect);
    let told = |(token, bias): &(u32, f32)| json!({"token": token, "bias": bias.is_finite().then_some(bias)});
    let told: Vec<Value> = expect.iter().map(told).collect();
    assert_eq!(answer["generation_settings"]["logit_bias"], json!(told));
    // In vLLM an answer goes on behind an end token.
    server.post("/v1/completions", body).await;
    assert_eq!(server.asked().sampling.logit_bias, [(3, 1.5)]);
}

/// The events of answers that a stop string cuts after "Hi!": of 5 tokens the first, of 6 the second, and so on.
fn stopped(request: &Request) -> Vec<Event> {
    let mut events = say(request, "Hi!", FinishReason::StopString(0));
    let of_choice = |i| ChoiceTokens { generated: 5 + i, ..ChoiceTokens::default() };
    let choices: Vec<ChoiceTokens> = (0..request.choices as usize).map(of_choice).collect();
    let generated_tokens = choices.iter().map(|choice| choice.generated).sum();
    events.pop();
    events.push(Event::Done(Report { generated_tokens, choices, ..report(request, 0) }));
    events
}

#[tokio::test]
async fn each_answer_to_a_prompt_has_its_own_counts_and_together_they_are_the_requests() {
    let prices = Some(toml::from_str("input = 1\ncached = 0.5\noutput = 2").unwrap());
    let script = |request: &Request| Ok(stopped(request));
    let server = Server::build(script, Keys::new([]), AppConfig { prices, ..config() });
    let body = |n: usize| with(story(), json!({"n": n, "stop": ["x"]}));
    let (_, all) = server.post("/v1/completions", body(3)).await;
    let (_, whole) = server.post("/completion", body(3)).await;
    let frames = server.stream("/completion", with(body(3), json!({"stream": true}))).await;
    let frames = frames.iter().map(|frame| serde_json::from_str::<Value>(frame).unwrap());
    let ends: Vec<Value> = frames.filter(|frame| frame["stop"] == true).collect();
    for results in [whole.as_array().unwrap(), &ends] {
        let numbers = |path: &str| -> Vec<f64> {
            results.iter().map(|result| result.pointer(path).and_then(Value::as_f64).unwrap()).collect()
        };
        for path in ["/tokens_predicted", "/timings/predicted_n", "/usage/completion_tokens"] {
            assert_eq!(numbers(path), [5.0, 6.0, 7.0], "{path}");
        }
        for path in ["/usage/completion_tokens", "/usage/cost", "/timings/prompt_n", "/timings/prompt_ms"] {
            let total = all.pointer(path).and_then(Value::as_f64);
            assert_eq!(Some(numbers(path).iter().sum::<f64>()), total, "{path}");
        }
    }
    let (_, one) = server.post("/completion", body(1)).await;
    for path in ["/content", "/tokens_predicted", "/usage"] {
        assert_eq!(one.pointer(path), whole[0].pointer(path), "{path}");
    }
}

#[tokio::test]
async fn penalties_that_look_back_on_all_say_so() {
    let server = Server::saying("ab");
    for (body, told) in [
        (json!({"repeat_last_n": -1, "repeat_penalty": 1.5}), -1),
        (json!({"repeat_last_n": -1, "presence_penalty": 0.5}), -1),
        (json!({"repeat_last_n": 9, "frequency_penalty": 0.5}), 9),
        (json!({"repeat_last_n": 0, "repeat_penalty": 1.5}), 0),
    ] {
        let (_, answer) = server.post("/completion", with(story(), body.clone())).await;
        assert_eq!(answer["generation_settings"]["repeat_last_n"], told, "{body}");
    }
}

/// The body that llama.vim and llama.vscode send while someone types.
fn typing() -> Value {
    json!({
        "id_slot": 0,
        "input_prefix": "fn ab() {\n",
        "input_suffix": "\n}\n",
        "input_extra": [{"text": "let b = a;", "filename": "src/ab.rs"}],
        "prompt": "    a",
        "n_predict": 64,
        "stop": [],
        "n_indent": 4,
        "top_k": 40,
        "top_p": 0.99,
        "stream": false,
        "samplers": ["top_k", "top_p", "infill"],
        "cache_prompt": true,
        "t_max_prompt_ms": 500,
        "t_max_predict_ms": 1500,
        "response_fields": ["content", "timings/prompt_n", "truncated"],
    })
}

#[tokio::test]
async fn code_is_completed_for_editors() {
    let server = fill::server();
    let (status, answer) = server.post("/infill", typing()).await;
    assert_eq!((status.as_u16(), &answer["content"]), (200, &json!("x")), "{answer}");
    assert!(answer["timings/prompt_n"].is_u64() && answer["truncated"] == false, "{answer}");
    let Request { sampling, line_limits, max_tokens, .. } = server.asked();
    let Sampling { temperature, top_k, top_p, min_p, .. } = sampling;
    assert_eq!((temperature, top_k, top_p, min_p, max_tokens), (1.0, 40, 0.99, 0.0, 64));
    assert_eq!(line_limits, LineLimits { indent_min: 4, time_max: Some(Duration::from_millis(1500)) });
    let (_, answer) = server.post("/infill", with(typing(), json!({"response_fields": null}))).await;
    let notes = answer["kvik"]["notes"].as_array().unwrap();
    assert!(notes.len() == 1 && notes[0].as_str().unwrap().contains("`infill`"), "{notes:?}");
}

#[tokio::test]
async fn a_prompt_is_computed_ahead_for_editors() {
    let server = fill::server();
    let ahead = json!({
        "input_prefix": "",
        "input_suffix": "",
        "prompt": "",
        "n_predict": 0,
        "temperature": 0.0,
        "samplers": [],
        "t_max_prompt_ms": 1,
        "t_max_predict_ms": 1,
        "response_fields": [""],
    });
    let (status, answer) = server.post("/infill", with(typing(), ahead)).await;
    assert_eq!((status.as_u16(), answer), (200, json!({})));
    assert_eq!(server.asked().max_tokens, 0);
}

/// llama.vim also sends chats with a list of samplers.
#[tokio::test]
async fn a_list_of_samplers_holds_in_chats() {
    let server = Server::saying("a");
    let fields =
        json!({"id_slot": 3, "min_p": 0.1, "temperature": 0.1, "samplers": ["min_p", "temperature"]});
    let (status, answer) = server.post("/v1/chat/completions", with(hello(), fields)).await;
    assert_eq!(status, 200, "{answer}");
    let Sampling { temperature, top_k, top_p, min_p, .. } = server.asked().sampling;
    assert_eq!((temperature, top_k, top_p, min_p), (0.1, 0, 1.0, 0.1));
}

#[tokio::test]
async fn a_stream_says_how_far_the_prompt_is_where_it_was_asked() {
    let server = Server::saying("ab");
    let chat = json!({"messages": [{"role": "user", "content": "a long story"}]});
    let asked = [(json!({}), 0), (json!({"return_progress": true}), 1)];
    let routes = [("/completion", story()), ("/v1/chat/completions", chat)];
    for ((route, body), (asked, expect)) in
        routes.iter().flat_map(|route| asked.iter().map(move |asked| (route, asked)))
    {
        let frames =
            server.stream(route, with(with(body.clone(), asked.clone()), json!({"stream": true}))).await;
        let frames = frames.iter().filter(|frame| *frame != "[DONE]");
        let frames = frames.map(|frame| serde_json::from_str::<Value>(frame).unwrap());
        let progress: Vec<Value> = frames.filter(|frame| frame.get("prompt_progress").is_some()).collect();
        assert_eq!(progress.len(), *expect);
        let total = server.asked().prompt.len();
        for frame in progress {
            let Value::Object(progress) = &frame["prompt_progress"] else { panic!("{frame}") };
            assert_eq!(progress["total"], json!(total));
            assert_eq!((&progress["cache"], &progress["processed"]), (&json!(total.min(3)), &json!(total)));
            assert!(progress["time_ms"].is_u64());
            let is_empty = frame["stop"] == false && frame["content"] == "" || frame["choices"] == json!([]);
            assert!(is_empty, "{frame}");
        }
    }
}

#[tokio::test]
async fn the_tokens_of_a_chat_are_counted_without_an_answer() {
    let server = Server::saying("a");
    let chat = json!({"messages": [{"role": "user", "content": "a long story"}]});
    let (_, count) = server.post("/chat/completions/input_tokens", chat.clone()).await;
    assert!(server.engine.asked.lock().unwrap().is_empty(), "nothing was computed");
    server.post("/v1/chat/completions", chat).await;
    assert_eq!(count["input_tokens"], server.asked().prompt.len());
}

#[tokio::test]
async fn as_many_log_probabilities_as_the_vocabulary_has() {
    let server = Server::saying("a");
    let vocabulary = server.app.serving.texts.tokenizer.vocab_len();
    for (path, field) in [("/completion", "n_probs"), ("/v1/completions", "logprobs")] {
        let asked = |count: usize, tokens: usize| with(story(), json!({field: count, "max_tokens": tokens}));
        assert_eq!(server.post(path, asked(1 << 40, 1)).await.0, 200);
        assert_eq!(server.asked().logprobs, Some(vocabulary), "{path}");
        assert_eq!(server.post(path, asked(256, 2048)).await.0, 200);
        let (status, answer) = server.post(path, asked(257, 2048)).await;
        assert_eq!((status.as_u16(), &answer["error"]["param"]), (400, &json!(field)), "{answer}");
    }
}

#[tokio::test]
async fn slots_are_as_many_as_run_at_once_and_are_names_for_what_they_computed() {
    let server = Server::saying("a");
    let (_, slots) = server.get("/slots").await;
    let busy: Vec<bool> =
        slots.as_array().unwrap().iter().map(|slot| slot["is_processing"] == true).collect();
    assert_eq!(busy, [true, false, false, false]);
    assert_eq!(server.get("/slots?fail_on_no_slot=1").await.0, 200);
    for (slot, expect) in [(-1, 200), (3, 200), (4, 400)] {
        let (status, answer) = server.post("/completion", with(story(), json!({"id_slot": slot}))).await;
        assert_eq!(status, expect, "{answer}");
        assert!(status != 200 || answer["id_slot"] == slot);
    }
    let change = async |path: &str, filename: &str| {
        let (status, answer) = server.post(path, json!({"filename": filename})).await;
        (status.as_u16(), answer)
    };
    for (path, filename, field) in [
        ("/slots/9?action=save", "x", "id_slot"),
        ("/slots/1?action=save", "x", "id_slot"),
        ("/slots/3?action=save", "../x", "filename"),
        ("/slots/3?action=restore", "x", "filename"),
    ] {
        let (status, answer) = change(path, filename).await;
        assert_eq!((status, &answer["error"]["param"]), (400, &json!(field)), "{answer}");
    }
    assert_eq!(server.post("/props", json!({})).await.0, 501);
}

#[tokio::test]
async fn the_server_says_what_a_request_does_not() {
    let sampling = SamplingArgs {
        temp: Some(0.25),
        seed: Some(7),
        n_predict: Some(5),
        top_k: Some(3),
        top_p: Some(0.5),
        min_p: Some(0.25),
        repeat_penalty: Some(1.5),
        repeat_last_n: Some(9),
        presence_penalty: Some(0.5),
        frequency_penalty: Some(-0.5),
    };
    let script = |request: &Request| Ok(say(request, "a", FinishReason::Eos));
    let server = Server::build(script, Keys::new([]), AppConfig { sampling, ..config() });
    for path in ["/completion", "/v1/completions"] {
        let asked = async |body: Value| {
            assert_eq!(server.post(path, with(story(), body)).await.0, 200);
            let Request { sampling, max_tokens, .. } = server.asked();
            (sampling.temperature, sampling.seed, max_tokens)
        };
        assert_eq!(asked(json!({})).await, (0.25, 7, 5), "{path}");
        assert_eq!(asked(json!({"temperature": 1, "seed": 9, "max_tokens": 3})).await, (1.0, 9, 3));
        assert_eq!(asked(json!({"n_predict": -1})).await.2, 5);
        assert_eq!(asked(json!({"max_tokens": 100})).await.2, 100);
        asked(json!({})).await;
        let Sampling { top_k, top_p, min_p, repetition_penalty, .. } = server.asked().sampling;
        assert_eq!((top_k, top_p, min_p, repetition_penalty), (3, 0.5, 0.25, 1.5), "{path}");
        let Sampling { penalty_last_n, presence_penalty, frequency_penalty, .. } = server.asked().sampling;
        assert_eq!((penalty_last_n, presence_penalty, frequency_penalty), (9, 0.5, -0.5), "{path}");
        asked(json!({"top_k": 0, "repetition_penalty": 1, "presence_penalty": 0})).await;
        let Sampling { top_k, repetition_penalty, presence_penalty, .. } = server.asked().sampling;
        assert_eq!((top_k, repetition_penalty, presence_penalty), (0, 1.0, 0.0), "{path}");
    }
}

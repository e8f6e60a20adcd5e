//! Formatting of engine events as answers.

use super::*;

/// An answer of which two characters are surplus.
const LOOP: FinishReason = FinishReason::Loop(Repetition { period: 19, start: 7, surplus_bytes: 2 });

#[tokio::test]
async fn a_chat_is_answered_in_openais_shape() {
    let server = Server::saying("Hi!");
    let (status, answer) = server.post("/v1/chat/completions", hello()).await;
    assert_eq!(status, 200);
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["model"], "tiny");
    assert!(answer["id"].as_str().unwrap().starts_with("chatcmpl-"));
    let choice = json!({
        "index": 0,
        "message": {"role": "assistant", "content": "Hi!", "refusal": null},
        "logprobs": null,
        "finish_reason": "stop",
    });
    assert_eq!(answer["choices"], json!([choice]));
    let prompt = server.asked().prompt.len();
    assert_eq!(answer["usage"]["prompt_tokens"], prompt);
    assert_eq!(answer["usage"]["completion_tokens"], 3);
    assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 3);
    assert_eq!(answer["timings"]["cache_n"], 3);
    assert_eq!(answer["timings"]["prompt_n"], prompt - 3);
}

#[tokio::test]
async fn the_prompt_is_the_template_applied() {
    let server = Server::saying("Hi!");
    server.post("/v1/chat/completions", hello()).await;
    let text = server.app.serving.texts.tokenizer.decode(&server.asked().prompt);
    assert_eq!(text, "<|im_start|>user\nHello there, my friend.<|im_end|>\n<|im_start|>assistant\n");
    let (_, rendered) = server.post("/apply-template", hello()).await;
    assert_eq!(rendered["prompt"], text);
}

#[tokio::test]
async fn a_router_is_told_the_tokens_that_are_computed() {
    let server = Server::saying("Hi!");
    server.post("/v1/chat/completions", hello()).await;
    let asked = json!(server.asked().prompt);
    let (_, chat) = server.post("/v1/chat/completions/render", hello()).await;
    assert_eq!(chat, json!({"token_ids": asked}));
    let (_, texts) = server.post("/v1/completions/render", json!({"prompt": ["Once", "Now and then"]})).await;
    for (text, rendered) in ["Once", "Now and then"].iter().zip(texts.as_array().unwrap()) {
        let (_, tokens) = server.post("/tokenize", json!({"content": text})).await;
        assert_eq!(rendered["token_ids"], tokens["tokens"]);
    }
    let (status, error) = server.post("/v1/chat/completions/render", json!({"messages": 3})).await;
    assert_eq!((status.as_u16(), &error["error"]["param"]), (400, &json!("messages")));
}

/// Joins the deltas of choice `index` at `field`.
fn joined(chunks: &[Value], index: usize, field: &str) -> String {
    let deltas = chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap());
    deltas
        .filter(|choice| choice["index"] == index)
        .filter_map(|choice| choice["delta"][field].as_str())
        .collect()
}

fn chunks(events: &[String]) -> Vec<Value> {
    let (done, chunks) = events.split_last().unwrap();
    assert_eq!(done, "[DONE]");
    chunks.iter().map(|chunk| serde_json::from_str(chunk).unwrap()).collect()
}

#[tokio::test]
async fn a_chat_streams_deltas_that_join_to_the_answer() {
    let server = Server::saying("Grüße!");
    let events = server
        .stream("/v1/chat/completions", with(hello(), json!({"stream": true, "n": 2, "logprobs": true})))
        .await;
    let chunks = chunks(&events);
    for choice in 0..2 {
        assert_eq!(joined(&chunks, choice, "content"), "Grüße!");
        let of_choice: Vec<&Value> =
            chunks.iter().map(|chunk| &chunk["choices"][0]).filter(|c| c["index"] == choice).collect();
        assert_eq!(of_choice[0]["delta"], json!({"role": "assistant", "content": null}));
        let ends: Vec<&&Value> = of_choice.iter().filter(|c| !c["finish_reason"].is_null()).collect();
        assert_eq!(ends.len(), 1, "a choice ends once");
        let logprobs: usize =
            of_choice.iter().filter_map(|c| c["logprobs"]["content"].as_array()).map(Vec::len).sum();
        assert_eq!(logprobs, 6, "one entry per token");
    }
    assert!(chunks.iter().all(|chunk| chunk.get("usage").is_none()));
    assert_eq!(chunks.last().unwrap()["timings"]["cache_n"], 3);
}

#[tokio::test]
async fn usage_is_streamed_when_asked_for() {
    let server = Server::saying("Hi!");
    for path in ["/v1/chat/completions", "/v1/completions"] {
        let body = json!({"prompt": "abc", "stream": true, "stream_options": {"include_usage": true}});
        let chunks = chunks(&server.stream(path, with(hello(), body)).await);
        let (last, others) = chunks.split_last().unwrap();
        assert!(others.iter().all(|chunk| chunk["usage"].is_null() && !chunk["choices"][0].is_null()));
        assert_eq!(last["choices"], json!([]));
        assert_eq!(last["usage"]["completion_tokens"], 3);
        assert_eq!(last["timings"]["predicted_n"], 3);
    }
}

#[tokio::test]
async fn finish_reasons() {
    let reasons = [
        (FinishReason::Eos, "stop", "eos"),
        (FinishReason::StopString(1), "stop", "word"),
        (FinishReason::ConstraintDone, "stop", "eos"),
        (FinishReason::Length, "length", "limit"),
        (LOOP, "stop", "eos"),
    ];
    for (reason, openai, llama) in reasons {
        let server = Server::new(move |request| Ok(say(request, "Hi!", reason)));
        let body = || with(hello(), json!({"prompt": "abc", "stop": ["x", "END"]}));
        let (_, chat) = server.post("/v1/chat/completions", body()).await;
        assert_eq!(chat["choices"][0]["finish_reason"], openai);
        let (_, text) = server.post("/v1/completions", body()).await;
        assert_eq!(text["choices"][0]["finish_reason"], openai);
        let (_, native) = server.post("/completion", body()).await;
        assert_eq!(native["stop_type"], llama);
        assert_eq!(native["stopping_word"], if llama == "word" { "END" } else { "" });
    }
}

#[tokio::test]
async fn a_loop_is_ended_where_it_is_asked_for_and_reported() {
    let server = Server::new(|request| {
        Ok(say(request, "Hi!", if request.stop_loops { LOOP } else { FinishReason::Length }))
    });
    let check = async |path: &str, end: &str, (stopped, full): (&str, &str), text: &str, said: &str| {
        let fields = match path {
            "/v1/responses" => json!({"input": "abc"}),
            _ => with(hello(), json!({"prompt": "abc", "max_tokens": 100, "stream": false})),
        };
        let (_, answer) = server.post(path, fields.clone()).await;
        assert_eq!(answer.pointer(end), Some(&json!(full)), "{path}: {answer}");
        assert_eq!(
            (answer.pointer(text), answer.pointer("/kvik/loop")),
            (Some(&json!("Hi!")), None),
            "{path}"
        );
        let stops = with(fields, json!({"kvik": {"stop_loops": true}}));
        let (_, answer) = server.post(path, stops).await;
        let found = json!({"choice": 0, "period_tokens": 19, "start_token": 7});
        assert_eq!(answer.pointer(end), Some(&json!(stopped)), "{path}: {answer}");
        assert_eq!((answer.pointer(text), &answer["kvik"]["loop"]), (Some(&json!(said)), &found), "{path}");
    };
    let openai = ("stop", "length");
    check("/v1/chat/completions", "/choices/0/finish_reason", openai, "/choices/0/message/content", "H")
        .await;
    check("/v1/completions", "/choices/0/finish_reason", openai, "/choices/0/text", "H").await;
    check("/v1/messages", "/stop_reason", ("end_turn", "max_tokens"), "/content/0/text", "H").await;
    check("/api/chat", "/done_reason", openai, "/message/content", "H").await;
    check("/api/generate", "/done_reason", openai, "/response", "H").await;
    check("/completion", "/stop_type", ("eos", "limit"), "/content", "H").await;
    check("/v1/responses", "/status", ("completed", "incomplete"), "/output/0/content/0/text", "H").await;
}

#[tokio::test]
async fn what_is_stored_of_a_streamed_response_keeps_two_copies_of_a_loop() {
    let check = async |said: &'static str| {
        let server = Server::new(move |request| Ok(say(request, said, LOOP)));
        let body = json!({
            "input": "abc",
            "include": ["reasoning.encrypted_content"],
            "kvik": {"stop_loops": true},
            "stream": true,
        });
        let events = server.stream("/v1/responses", body).await;
        let events: Vec<Value> = events.iter().map(|event| serde_json::from_str(event).unwrap()).collect();
        let deltas = events.iter().filter_map(|event| event["delta"].as_str());
        assert_eq!(deltas.collect::<String>(), "Hi!", "what is streamed cannot be taken back");
        let last = &events.last().unwrap()["response"];
        assert_eq!(last["output"][0]["content"][0]["text"], "Hi!");
        let (_, stored) = server.get(&format!("/v1/responses/{}", last["id"].as_str().unwrap())).await;
        assert_eq!(stored["output"][0]["content"][0]["text"], "H", "{stored}");
        stored
    };
    check("Hi!").await;
    let thoughts = check("<think>\nHi!").await;
    assert_eq!(thoughts["output"][0]["encrypted_content"], "SA==", "they are sealed as they are kept");
}

#[tokio::test]
async fn each_loop_of_several_answers_is_reported() {
    let server = Server::new(|request| Ok(say(request, "Hi!", LOOP)));
    let (_, answer) = server.post("/v1/completions", json!({"prompt": ["abc", "def"], "n": 2})).await;
    let choices = answer["kvik"]["loop"].as_array().unwrap().iter().map(|found| found["choice"].clone());
    assert_eq!(choices.collect::<Vec<_>>(), [0, 1, 0, 1]);
}

#[tokio::test]
async fn a_conversation_keeps_two_copies_of_a_loop() {
    let server = Server::build(|request| Ok(say(request, "Hi!", LOOP)), Keys::new([]), config());
    let body = with(hello(), json!({"kvik": {"conversation": "songs", "stop_loops": true}, "stream": true}));
    let shown = server.stream("/v1/chat/completions", body).await.concat();
    assert!(shown.contains("\"!\""), "what is streamed cannot be taken back: {shown}");
    let (_, kept) = server.get("/v1/conversations/songs").await;
    assert_eq!(kept["messages"][1]["content"], "H", "{kept}");
}

#[tokio::test]
async fn reasoning_and_calls_are_told_apart_from_content() {
    let said = "<think>\nHm.\n</think>\n\nI look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>";
    let server = Server::saying(said);
    let tools =
        json!([{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]);
    let (_, answer) = server.post("/v1/chat/completions", with(hello(), json!({"tools": tools}))).await;
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(choice["message"]["reasoning_content"].as_str().unwrap().trim(), "Hm.");
    assert_eq!(choice["message"]["content"].as_str().unwrap().trim(), "I look.");
    let call = &choice["message"]["tool_calls"][0];
    assert_eq!(call["type"], "function");
    assert_eq!(call["function"]["name"], "weather");
    let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(arguments, json!({"city": "Oslo"}));

    let body = with(hello(), json!({"tools": tools, "stream": true}));
    let chunks = chunks(&server.stream("/v1/chat/completions", body).await);
    assert_eq!(
        joined(&chunks, 0, "reasoning_content"),
        choice["message"]["reasoning_content"].as_str().unwrap()
    );
    assert_eq!(joined(&chunks, 0, "content"), choice["message"]["content"].as_str().unwrap());
    let calls: Vec<&Value> = chunks
        .iter()
        .map(|chunk| &chunk["choices"][0]["delta"]["tool_calls"][0])
        .filter(|c| !c.is_null())
        .collect();
    assert_eq!(calls[0]["index"], 0);
    assert_eq!(calls[0]["function"]["name"], "weather");
}

#[tokio::test]
async fn a_required_call_is_a_constraint() {
    use kvik_engine::api::{CallStart, Constraint};
    let server = Server::saying(
        "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>",
    );
    let tools =
        json!([{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]);
    let body = with(hello(), json!({"tools": tools, "tool_choice": "required"}));
    let (_, answer) = server.post("/v1/chat/completions", body.clone()).await;
    let Some(Constraint::Calls(calls)) = server.asked().constraint else { panic!("calls are forced") };
    assert_eq!((calls.start, calls.calls_max), (CallStart::Forced { after: None, instead: None }, 1));
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(choice["message"]["content"], Value::Null);
    assert_eq!(choice["message"]["tool_calls"][0]["function"]["arguments"], "{\"city\": \"Oslo\"}");
    let chunks = chunks(&server.stream("/v1/chat/completions", with(body, json!({"stream": true}))).await);
    assert_eq!(joined(&chunks, 0, "content"), "");
}

#[tokio::test]
async fn tools_stay_callable_where_the_text_has_a_form() {
    use kvik_engine::api::{CallStart, Constraint};
    let tools =
        json!([{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]);
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    let format = json!({"type": "json_schema", "json_schema": {"name": "final", "schema": schema}});
    let body = with(hello(), json!({"tools": tools, "response_format": format}));
    let call = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {}}\n</tool_call>";
    for (said, content, calls) in
        [(call, Value::Null, 1), ("{\"city\": \"Oslo\"}", json!("{\"city\": \"Oslo\"}"), 0)]
    {
        let server = Server::saying(said);
        let (_, answer) = server.post("/v1/chat/completions", body.clone()).await;
        let Some(Constraint::Calls(held)) = server.asked().constraint else { panic!("calls have a form") };
        assert!(matches!(held.start, CallStart::Forced { instead: Some(_), .. }), "{:?}", held.start);
        let message = &answer["choices"][0]["message"];
        assert_eq!(message["content"], content);
        assert_eq!(message["tool_calls"].as_array().map_or(0, Vec::len), calls);
        assert_eq!(answer["kvik"]["notes"], Value::Null, "{answer}");
    }
    let grammar = with(hello(), json!({"tools": body["tools"], "guided_regex": "yes|no"}));
    let (_, answer) = Server::saying("yes").post("/v1/chat/completions", grammar).await;
    assert!(answer["kvik"]["notes"].to_string().contains("`tools` are not called"), "{answer}");
}

#[tokio::test]
async fn a_picture_that_words_replace_is_noted_in_every_dialect() {
    let turns = |picture: Value| {
        let (answer, question) =
            (json!({"role": "assistant", "content": "I do."}), json!({"role": "user", "content": "And?"}));
        json!([with(json!({"role": "user"}), picture), answer, question])
    };
    let part = |part: Value| turns(json!({"content": [part]}));
    let seen = part(json!({"type": "image_url", "image_url": {"url": "data:,x"}}));
    let images = turns(json!({"content": "Look.", "images": ["eA=="]}));
    let block = part(json!({"type": "image", "source": {"type": "base64", "data": "eA=="}}));
    let input = part(json!({"type": "input_image", "image_url": "data:,x"}));
    for (path, body, at) in [
        ("/v1/chat/completions", json!({"messages": seen}), "`messages[0].content[0]`"),
        ("/api/chat", json!({"messages": images, "stream": false}), "`messages[0].images[0]`"),
        ("/v1/messages", json!({"messages": block, "max_tokens": 9}), "`messages[0].content[0]`"),
        ("/v1/responses", json!({"input": input}), "`input[0].content[0]`"),
    ] {
        let (status, answer) = Server::saying("Hi.").post(path, body).await;
        let notes = answer["kvik"]["notes"].to_string();
        assert!(status == 200 && notes.contains(at), "{path}: {answer}");
    }
}

#[tokio::test]
async fn an_answer_says_what_of_its_schema_was_not_enforced() {
    let server = Server::saying("{\"tags\": []}");
    let schema = json!({"type": "object", "properties": {"tags": {"type": "array", "uniqueItems": true}}});
    let format =
        json!({"type": "json_schema", "json_schema": {"name": "x", "strict": true, "schema": schema}});
    let body = with(hello(), json!({"response_format": format}));
    let (_, answer) = server.post("/v1/chat/completions", body.clone()).await;
    let notes = json!(["$.properties.tags.uniqueItems: not enforced: it can only be checked at the end"]);
    assert_eq!(answer["kvik"]["schema_notes"], notes, "{answer}");
    let chunks = chunks(&server.stream("/v1/chat/completions", with(body, json!({"stream": true}))).await);
    assert!(chunks.iter().any(|chunk| chunk["kvik"]["schema_notes"] == notes), "{chunks:?}");
    let (_, answer) = server.post("/completion", json!({"prompt": "a", "json_schema": schema})).await;
    assert_eq!(answer["kvik"]["schema_notes"], notes, "{answer}");
    let (_, answer) = server.post("/v1/chat/completions", hello()).await;
    assert_eq!(answer["kvik"]["schema_notes"], Value::Null);
}

#[tokio::test]
async fn completions_of_several_prompts_keep_their_order() {
    let server = Server::new(|request| {
        let text = format!("<{}>", request.prompt.len());
        Ok(say(request, &text, FinishReason::Length))
    });
    let body = json!({"prompt": [[1, 2, 3, 4], [1, 2, 3, 4, 5]], "n": 2, "echo": false, "seed": 1});
    let (status, answer) = server.post("/v1/completions", body.clone()).await;
    assert_eq!(status, 200, "{answer}");
    let texts: Vec<(u64, &str)> = answer["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|choice| (choice["index"].as_u64().unwrap(), choice["text"].as_str().unwrap()))
        .collect();
    assert_eq!(texts, [(0, "<4>"), (1, "<4>"), (2, "<5>"), (3, "<5>")]);
    assert_eq!(answer["usage"]["prompt_tokens"], 9);
    let chunks = chunks(&server.stream("/v1/completions", with(body, json!({"stream": true}))).await);
    for (index, text) in texts {
        let of_choice = chunks.iter().map(|chunk| &chunk["choices"][0]).filter(|c| c["index"] == index);
        assert_eq!(of_choice.filter_map(|c| c["text"].as_str()).collect::<String>(), text);
    }
}

#[tokio::test]
async fn completions_echo_and_column_logprobs() {
    let server = Server::saying("né");
    let (_, answer) = server.post("/v1/completions", json!({"prompt": "Once ", "echo": true})).await;
    assert_eq!(answer["choices"][0]["text"], "Once né");
    let (_, answer) = server.post("/v1/completions", json!({"prompt": "Once ", "logprobs": 1})).await;
    let expect = json!({
        "tokens": ["n", "é"],
        "token_logprobs": [-0.5, -0.5],
        "top_logprobs": [{"n": -0.5}, {"é": -0.5}],
        "text_offset": [0, 1],
    });
    assert_eq!(answer["choices"][0]["logprobs"], expect);
    assert_eq!(server.asked().logprobs, Some(1));
}

#[tokio::test]
async fn completion_answers_in_llama_servers_words() {
    let server = Server::saying("Hi!");
    let body =
        json!({"prompt": "Once upon", "n_predict": 5, "return_tokens": true, "n_probs": 1, "temperature": 0});
    let (status, answer) = server.post("/completion", body.clone()).await;
    assert_eq!(status, 200);
    assert_eq!(answer["content"], "Hi!");
    assert_eq!(answer["tokens"], json!([100, 101, 102]));
    assert_eq!(answer["stop"], true);
    assert_eq!(answer["tokens_predicted"], 3);
    assert_eq!(answer["tokens_evaluated"], server.asked().prompt.len());
    assert_eq!(answer["tokens_cached"], 3);
    assert_eq!(answer["generation_settings"]["n_predict"], 5);
    assert_eq!(answer["generation_settings"]["top_k"], 40);
    assert_eq!(answer["prompt"], "Once upon");
    assert_eq!(answer["completion_probabilities"][0]["top_logprobs"][0]["token"], "H");
    assert_eq!(server.asked().max_tokens, 5);

    let events = server.stream("/completion", with(body, json!({"stream": true}))).await;
    let frames: Vec<Value> = events.iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    let text: String = frames.iter().map(|frame| frame["content"].as_str().unwrap()).collect();
    assert_eq!(text, "Hi!");
    let stops: Vec<bool> = frames.iter().map(|frame| frame["stop"].as_bool().unwrap()).collect();
    assert_eq!(stops, [false, false, false, true]);
    assert_eq!(frames[3]["timings"]["predicted_n"], 3);
}

#[tokio::test]
async fn tokens_and_back() {
    let server = Server::saying("");
    let text = "Grüße, 日本 🎉<|im_end|>";
    let (_, tokens) = server.post("/tokenize", json!({"content": text})).await;
    let (_, back) = server.post("/detokenize", tokens.clone()).await;
    assert_eq!(back["content"], text);
    let (_, pieces) = server.post("/tokenize", json!({"content": text, "with_pieces": true})).await;
    let ids: Vec<Value> =
        pieces["tokens"].as_array().unwrap().iter().map(|piece| piece["id"].clone()).collect();
    assert_eq!(json!(ids), tokens["tokens"]);
    let (_, plain) = server.post("/tokenize", json!({"content": text, "parse_special": false})).await;
    assert!(plain["tokens"].as_array().unwrap().len() > ids.len());
}

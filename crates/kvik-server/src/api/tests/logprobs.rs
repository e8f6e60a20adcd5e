//! Log-probabilities of the tokens of an answer: which tokens have them, and what they add to its text.

use super::*;

/// The tokens of these log-probabilities, joined.
fn joined(logprobs: &Value) -> String {
    let entries = logprobs.as_array().into_iter().flatten();
    entries.filter_map(|entry| entry["token"].as_str()).collect()
}

#[tokio::test]
async fn every_token_of_a_text_behind_thoughts_has_its_probability() {
    let tool = json!({"type": "function", "name": "look", "parameters": {"type": "object"}});
    let tools = json!({"tools": [tool]});
    let call = "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"at\": 1}}\n</tool_call>";
    for (said, more, expect) in [
        ("<think>\nSo.\n</think>\n\nIt is.".to_owned(), json!({}), "It is."),
        ("<think>\nSo.\n</think>\n\n<b>It</b> is.".to_owned(), json!({}), "<b>It</b> is."),
        ("<think>\nSo.\n</think>\n\n<<b".to_owned(), json!({}), "<<b"),
        ("<think>\nSo.\n</think>\n\n```json\n[1]\n```".to_owned(), tools.clone(), "```json\n[1]\n```"),
        (format!("{call}\nDone."), tools.clone(), "Done."),
        (format!("<think>\nSo.\n</think>\n\n{call}\n<i>Done.</i>"), tools, "<i>Done.</i>"),
    ] {
        let said: &'static str = said.leak();
        let server = Server::saying(said);
        let asked = json!({"input": "Why?", "include": ["message.output_text.logprobs"]});
        let body = with(asked, more);
        let (_, told) = server.post("/v1/responses", body.clone()).await;
        let items = told["output"].as_array().unwrap();
        let part = &items.iter().find(|item| item["type"] == "message").unwrap()["content"][0];
        assert_eq!(part["text"], expect);
        assert_eq!(joined(&part["logprobs"]), expect, "{said}");
        let events = server.stream("/v1/responses", with(body, json!({"stream": true}))).await;
        let events: Vec<Value> = events.iter().map(|event| serde_json::from_str(event).unwrap()).collect();
        let deltas = events.iter().filter(|event| event["type"] == "response.output_text.delta");
        let tokens: String = deltas.map(|event| joined(&event["logprobs"])).collect();
        assert_eq!(tokens, expect, "{said}");
    }
}

#[tokio::test]
async fn a_control_token_adds_no_bytes_to_the_text() {
    let server = Server::new(|request| {
        let text = |text: &str, token| Event::Text { choice: 0, text: text.to_owned(), tokens: vec![token] };
        let said = [text("", hidden(5, "<|x|>")), text("é", token(6, "é", true))];
        let end = [Event::Finished { choice: 0, reason: FinishReason::Eos }, Event::Done(report(request, 2))];
        Ok(said.into_iter().chain(end).collect())
    });
    for (path, entries) in [
        ("/v1/chat/completions", "/choices/0/logprobs/content"),
        ("/api/chat", "/logprobs"),
        ("/completion", "/completion_probabilities"),
        ("/v1/responses", "/output/0/content/0/logprobs"),
    ] {
        let body = match path {
            "/v1/responses" => json!({"input": "abc", "include": ["message.output_text.logprobs"]}),
            _ => with(hello(), json!({"prompt": "abc", "logprobs": true, "n_probs": 1, "stream": false})),
        };
        let (_, answer) = server.post(path, body).await;
        let entries = answer.pointer(entries).and_then(Value::as_array).unwrap_or_else(|| panic!("{answer}"));
        let bytes: Vec<&Value> = entries.iter().map(|entry| &entry["bytes"]).collect();
        assert_eq!(bytes, [&json!([]), &json!("é".as_bytes())], "{path}");
        assert_eq!(entries[0]["token"], "<|x|>", "{path}");
    }
    let (_, answer) = server.post("/v1/completions", json!({"prompt": "abc", "logprobs": 0})).await;
    let columns = &answer["choices"][0]["logprobs"];
    assert_eq!((&columns["text_offset"], &columns["tokens"]), (&json!([0, 0]), &json!(["<|x|>", "é"])));
}

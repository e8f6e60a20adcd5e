//! Long conversations in little room, over a scripted engine: beside tools, and in a loop of calls behind one question.

use std::time::Duration;

use kvik_engine::api::{FinishReason, Request};
use kvik_memory::memory::{MemoryConfig, make_summaries};
use serde_json::{Value, json};

use super::{
    Server, config,
    memory_bounds::{answer, at_rest},
    say,
};
use crate::app::{AppConfig, keys::Keys};

const CHAT: &str = "/v1/chat/completions";
/// Context of the scripted model.
const CONTEXT: usize = 2048;
/// Tokens of an answer at most.
const MAX_TOKENS: usize = 24;
/// A template that writes tools and calls.
const TEMPLATE: &str = "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}\
    {% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}\
    {% for call in m.tool_calls or [] %}\n<tool_call>\n{{ call.function | tojson }}\n</tool_call>{% endfor %}<|im_end|>\n\
    {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// A server that remembers, with the bounds of its context, and quotes nothing.
fn server() -> Server {
    quoting(0)
}

fn quoting(quotes_max: usize) -> Server {
    let memory = MemoryConfig { on: true, quotes_max: Some(quotes_max), ..MemoryConfig::default() };
    let script = |request: &Request| Ok(say(request, answer(request), FinishReason::Eos));
    let config = AppConfig { memory, ..config() };
    let server = Server::build_with(script, Keys::new([]), config, Some(TEMPLATE));
    tokio::spawn(make_summaries(server.app.clone()));
    server
}

async fn ask(server: &Server, body: Value) -> Value {
    let (status, answer) = server.post(CHAT, body).await;
    assert_eq!(status, 200, "{answer}");
    answer
}

fn read(answer: &Value, part: &str) -> u64 {
    answer["kvik"]["memory"]["messages"][part].as_u64().unwrap()
}

/// The text of the last prompt that was answered, or of the last one that was only computed.
fn prompt(server: &Server, is_answered: bool) -> String {
    let asked = server.engine.asked.lock().unwrap();
    let last = asked.iter().rfind(|request| match is_answered {
        true => request.background.is_none(),
        false => request.background.is_some() && request.max_tokens == 0,
    });
    server.app.serving.texts.tokenizer.decode(&last.unwrap().prompt)
}

fn tool(description: &str) -> Value {
    let parameters = json!({"type": "object", "properties": {"line": {"type": "integer"}}});
    let function = json!({"name": "look", "description": description, "parameters": parameters});
    json!({"type": "function", "function": function})
}

/// A call, and its result.
fn called(number: usize) -> [Value; 2] {
    let id = format!("call_{number}");
    let function = json!({"name": "look", "arguments": json!({"line": number}).to_string()});
    let call = json!({"id": id, "type": "function", "function": function});
    let result = format!("The bus number {number} is late again.");
    [
        json!({"role": "assistant", "content": "", "tool_calls": [call]}),
        json!({"role": "tool", "tool_call_id": id, "content": result}),
    ]
}

/// Tools of half the context.
#[tokio::test]
async fn beside_tools_a_summary_is_made_before_messages_are_dropped() {
    const SENTENCE: &str = "Looks up when the next bus comes to this stop. ";
    let server = server();
    let tokens = server.app.serving.texts.tokenizer.encode(SENTENCE, false, false).len();
    let tools = json!([tool(&SENTENCE.repeat(CONTEXT / 2 / tokens))]);
    let mut is_summarised = false;
    for number in 0..60 {
        let text = format!("The bus number {number} was late again. I had noodles for lunch.");
        let body = json!({
            "messages": [{"role": "user", "content": text}], "tools": tools, "max_tokens": MAX_TOKENS,
            "kvik": {"conversation": "trip"},
        });
        let answer = ask(&server, body).await;
        assert_eq!(read(&answer, "let_go"), 0, "turn {number}: {answer}");
        let prompt = answer["usage"]["prompt_tokens"].as_u64().unwrap();
        assert!(prompt + MAX_TOKENS as u64 <= CONTEXT as u64, "turn {number}: {answer}");
        is_summarised |= read(&answer, "summarised") > 0;
        at_rest(&server).await;
    }
    assert!(is_summarised);
}

/// Words of about so many tokens that no other message has.
fn filler(server: &Server, tokens: usize) -> String {
    const WORDS: &str = "zeppelins over harbours, ";
    let many = server.app.serving.texts.tokenizer.encode(&WORDS.repeat(100), false, false).len();
    WORDS.repeat(100 * tokens / many)
}

/// A question, and an answer to what was said before.
fn exchange(text: &str) -> [Value; 2] {
    [json!({"role": "user", "content": text}), json!({"role": "assistant", "content": "Hi!"})]
}

/// Six exchanges fit the question, each of a fifth of the context.
#[tokio::test]
async fn quotes_that_may_have_more_than_the_context_have_a_part_of_it() {
    let server = quoting(2 * CONTEXT);
    let names = ["Anton", "Berta", "Cesar", "Dora", "Emil", "Fritz"];
    let long = filler(&server, CONTEXT / 5);
    let said = |name: &str| exchange(&format!("{name} looks at {long}"));
    let mut messages = names.map(said).concat();
    messages.extend((0..6).flat_map(|_| said("Nobody")));
    messages.push(json!({"role": "user", "content": names.join(", ")}));
    let answer = ask(&server, json!({"messages": messages, "max_tokens": MAX_TOKENS})).await;
    assert_eq!(answer["kvik"]["memory"]["quotes"].as_array().unwrap().len(), 1, "{answer}");
    assert!(answer["usage"]["prompt_tokens"].as_u64().unwrap() + MAX_TOKENS as u64 <= CONTEXT as u64);
}

#[tokio::test]
async fn quotes_without_room_are_dropped_before_recent_messages() {
    let server = quoting(CONTEXT);
    let mut messages = exchange(&format!("My dog Bolt barks at {}", filler(&server, 400))).to_vec();
    let asked = async |messages: &[Value], text: &str| {
        let messages = [messages, &[json!({"role": "user", "content": text})]].concat();
        let answer = ask(&server, json!({"messages": messages, "max_tokens": MAX_TOKENS})).await;
        at_rest(&server).await;
        (answer["kvik"]["memory"].clone(), answer["usage"]["prompt_tokens"].as_u64().unwrap() as usize)
    };
    let mut summarised = 0;
    for number in 0..60 {
        let text = format!("The bus number {number} was late again. I had noodles for lunch.");
        summarised = asked(&messages, &text).await.0["messages"]["summarised"].as_u64().unwrap();
        messages.extend(exchange(&text));
        if summarised > 0 {
            break;
        }
    }
    assert!(summarised > 0);
    let question = "What is my dog Bolt barking at?";
    let (memory, prompt) = asked(&messages, question).await;
    assert_eq!(memory["quotes"], json!([[0, 2]]), "{memory}");
    // A longer question leaves room for half of the quote.
    let long = filler(&server, CONTEXT - MAX_TOKENS + 250 - prompt);
    let (memory, _) = asked(&messages, &format!("{question} {long}")).await;
    assert_eq!((&memory["quotes"], &memory["messages"]["let_go"]), (&json!([]), &json!(0)), "{memory}");
}

#[tokio::test]
async fn a_loop_of_calls_behind_one_question_goes_on_beyond_the_context() {
    const QUESTION: &str = "Which of the buses is late?";
    let (server, question) = (server(), format!("user\n{QUESTION}"));
    let tools = json!([tool("Looks up a bus.")]);
    let mut messages = vec![json!({"role": "user", "content": QUESTION})];
    messages.extend((0..100).flat_map(called));
    let body = |messages: &[Value]| json!({"messages": messages, "tools": tools, "max_tokens": MAX_TOKENS});
    let first = ask(&server, body(&messages)).await;
    assert!(read(&first, "let_go") > 0, "{first}");
    let text = prompt(&server, true);
    let has = |number: usize| text.contains(&format!("number {number} is late"));
    assert!(text.contains(&question) && has(99) && !has(0), "{text}");

    // The summary ends within the exchange, and what follows it is computed as the next turn reads it.
    at_rest(&server).await;
    messages.push(json!({"role": "assistant", "content": "Hi!"}));
    messages.push(json!({"role": "user", "content": "And now?"}));
    let next = ask(&server, body(&messages)).await;
    assert!(read(&next, "summarised") > 1 && read(&next, "let_go") == 0, "{next}");
    let (ahead, text) = (prompt(&server, false), prompt(&server, true));
    assert!(text.starts_with(&ahead) && ahead.contains(&question), "{ahead}\n{text}");
}

#[tokio::test]
async fn work_after_an_answer_is_cached_for_as_long_as_its_turn_asks() {
    let server = server();
    let mut is_due = false;
    for number in 0..60 {
        let text = format!("The bus number {number} was late again. I had noodles for lunch.");
        let body = json!({
            "messages": [{"role": "user", "content": text}], "max_tokens": MAX_TOKENS,
            "kvik": {"conversation": "trip", "ttl_s": 60, "pin": true},
        });
        is_due |= ask(&server, body).await["kvik"]["memory"]["rebuilding"] == true;
        if is_due {
            break;
        }
    }
    assert!(is_due);
    at_rest(&server).await;
    let asked = server.engine.asked.lock().unwrap();
    let behind: Vec<&Request> = asked.iter().filter(|request| request.background.is_some()).collect();
    assert_eq!(behind.len(), 2, "the summary, and the conversation behind it");
    for request in behind {
        assert_eq!(request.lifetime.ttl, Some(Duration::from_secs(60)));
        assert!(!request.lifetime.pin, "the prompt of the turn is pinned, and no other");
    }
}

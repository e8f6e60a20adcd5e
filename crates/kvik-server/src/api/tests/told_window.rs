//! Token counts under a name whose clients assume another window than the context.

use super::*;
use kvik_serving::settings::told_window::ToldWindow;

/// The name, and its window; another name is told real counts.
const NAME: &str = "claude-sonnet-4";
const WINDOW: usize = 200_000;
/// The context of the model of the tests, and the tokens that its answers have.
const CONTEXT: usize = 2_048;
const ANSWER: usize = 3;

fn server_of(
    script: impl Fn(&Request) -> Result<Vec<Event>, RequestError> + Send + Sync + 'static,
) -> Server {
    let told_windows = vec![ToldWindow { name: NAME.to_owned(), tokens: WINDOW }];
    Server::build(script, Keys::new([]), AppConfig { told_windows, strict_model: true, ..config() })
}

fn server() -> Server {
    server_of(|request| Ok(say(request, "Hi.", FinishReason::Eos)))
}

/// The first tokens of a request, as its client is told them.
fn told(tokens: usize) -> usize {
    (tokens * WINDOW).div_ceil(CONTEXT)
}

fn named(body: Value, name: &str) -> Value {
    with(body, json!({"model": name}))
}

/// The routes that generate, with a body, and the paths of the counts of cached, prompt, answer and all tokens.
fn routes() -> Vec<(&'static str, Value, [&'static str; 4])> {
    let openai = [
        "/usage/prompt_tokens_details/cached_tokens",
        "/usage/prompt_tokens",
        "/usage/completion_tokens",
        "/usage/total_tokens",
    ];
    let responses = [
        "/usage/input_tokens_details/cached_tokens",
        "/usage/input_tokens",
        "/usage/output_tokens",
        "/usage/total_tokens",
    ];
    vec![
        ("/v1/chat/completions", hello(), openai),
        ("/v1/completions", json!({"prompt": "Once upon a time"}), openai),
        ("/v1/responses", json!({"input": "Hello there, my friend."}), responses),
    ]
}

fn count(answer: &Value, path: &str) -> usize {
    answer.pointer(path).and_then(Value::as_u64).unwrap_or_else(|| panic!("{path} of {answer}")) as usize
}

#[tokio::test]
async fn openais_dialects_tell_all_counts_in_the_scale_and_kvik_tells_the_real_ones() {
    let server = server();
    for (path, body, counts) in routes() {
        let (status, answer) = server.post(path, named(body.clone(), NAME)).await;
        assert_eq!(status, 200, "{answer}");
        let prompt = server.asked().prompt.len();
        let all = told(prompt + ANSWER);
        let expect = [told(3), told(prompt), all - told(prompt), all];
        assert_eq!(counts.map(|path| count(&answer, path)), expect, "{path}");
        assert_eq!(answer["kvik"]["told_window"], WINDOW, "{path}");
        assert_eq!(answer["kvik"]["cache"]["prompt_tokens"], prompt, "{path}");
        let (_, answer) = server.post(path, named(body, "kvik")).await;
        let expect = [3, prompt, ANSWER, prompt + ANSWER];
        assert_eq!(counts.map(|path| count(&answer, path)), expect, "{path} under another name");
        assert_eq!(answer["kvik"].get("told_window"), None, "{path}");
    }
}

#[tokio::test]
async fn a_stream_tells_what_the_whole_answer_tells() {
    let server = server();
    for (path, body, _) in routes() {
        let body = named(body, NAME);
        let (_, whole) = server.post(path, body.clone()).await;
        let more = json!({"stream": true, "stream_options": {"include_usage": true}});
        let frames = server.stream(path, with(body, more)).await;
        let frames = frames.iter().filter_map(|frame| serde_json::from_str::<Value>(frame).ok());
        let usage = |frame: Value| ["/usage", "/response/usage"].map(|path| frame.pointer(path).cloned());
        let told: Vec<Value> = frames.flat_map(usage).flatten().filter(|usage| !usage.is_null()).collect();
        assert_eq!(told, [whole["usage"].clone()], "{path}");
    }
}

#[tokio::test]
async fn the_parts_of_anthropics_usage_add_up_to_the_scale_from_the_first_event_on() {
    let server = server();
    let body = with(named(hello(), NAME), json!({"max_tokens": 50}));
    for private in [false, true] {
        let body =
            if private { with(body.clone(), json!({"kvik": {"cache": "private"}})) } else { body.clone() };
        let (status, whole) = server.post("/v1/messages", body.clone()).await;
        assert_eq!(status, 200, "{whole}");
        let prompt = server.asked().prompt.len();
        let input = |usage: &Value| {
            let names = ["/input_tokens", "/cache_creation_input_tokens", "/cache_read_input_tokens"];
            names.map(|name| count(usage, name)).iter().sum::<usize>()
        };
        let usage = &whole["usage"];
        assert_eq!(input(usage), told(prompt));
        assert_eq!(input(usage) + count(usage, "/output_tokens"), told(prompt + ANSWER));
        assert_eq!(
            (&whole["kvik"]["told_window"], &whole["stop_reason"]),
            (&json!(WINDOW), &json!("end_turn"))
        );
        let frames = server.stream("/v1/messages", with(body, json!({"stream": true}))).await;
        let frames: Vec<Value> = frames.iter().map(|frame| serde_json::from_str(frame).unwrap()).collect();
        let start = &frames[0]["message"]["usage"];
        assert_eq!((input(start), count(start, "/output_tokens")), (told(prompt), 0));
        let end = frames.iter().find(|frame| frame["type"] == "message_delta").unwrap();
        assert_eq!(&end["usage"], usage);
    }
}

#[tokio::test]
async fn ollamas_counts_are_in_the_scale() {
    let server = server();
    let (_, answer) = server.post("/api/chat", with(named(hello(), NAME), json!({"stream": false}))).await;
    let prompt = server.asked().prompt.len();
    let counts = ["/prompt_eval_count", "/eval_count"].map(|path| count(&answer, path));
    assert_eq!(counts, [told(prompt), told(prompt + ANSWER) - told(prompt)]);
}

#[tokio::test]
async fn a_prompt_is_counted_in_the_scale_before_it_is_sent() {
    let server = server();
    for (path, body) in [
        ("/v1/chat/completions/input_tokens", hello()),
        ("/v1/responses/input_tokens", json!({"input": "Hello there, my friend."})),
        ("/v1/messages/count_tokens", hello()),
    ] {
        let (_, real) = server.post(path, named(body.clone(), "kvik")).await;
        let (_, scaled) = server.post(path, named(body, NAME)).await;
        assert_eq!(count(&scaled, "/input_tokens"), told(count(&real, "/input_tokens")), "{path}");
    }
}

#[tokio::test]
async fn a_prompt_that_is_too_long_is_refused_in_the_scale_of_its_client() {
    let refused = async |server: &Server, path: &str| {
        let long =
            json!({"messages": [{"role": "user", "content": "word ".repeat(100_000)}], "max_tokens": 5});
        let (status, answer) = server.post(path, named(long, NAME)).await;
        assert_eq!(status, 400, "{answer}");
        answer["error"].clone()
    };
    let found_late = server_of(|_| {
        let too_long = RequestError::PromptTooLong { prompt_tokens: 5_000, context_tokens: CONTEXT };
        Ok(vec![Event::Failed(too_long)])
    });
    let error = refused(&server(), "/v1/chat/completions").await;
    assert_eq!(error["n_ctx"], WINDOW);
    assert!(count(&error, "/n_prompt_tokens") > WINDOW, "{error}");
    let error = refused(&server(), "/v1/messages").await;
    let message = error["message"].as_str().unwrap();
    let (tokens, maximum) =
        message.strip_prefix("prompt is too long: ").and_then(|rest| rest.split_once(" tokens > ")).unwrap();
    assert!(maximum.starts_with(&format!("{WINDOW} maximum; ")), "{message}");
    assert!(tokens.parse::<usize>().unwrap() > WINDOW, "{message}");
    let (_, answer) =
        found_late.post("/v1/messages", with(named(hello(), NAME), json!({"max_tokens": 5}))).await;
    let begins = format!("prompt is too long: {} tokens > {WINDOW} maximum; ", told(5_000));
    assert!(answer["error"]["message"].as_str().unwrap().starts_with(&begins), "{answer}");
}

#[tokio::test]
async fn the_lists_of_models_tell_the_window_under_its_name() {
    let server = server();
    let (_, listed) = server.get("/v1/models").await;
    let listed: Vec<(&str, usize)> = listed["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| (model["id"].as_str().unwrap(), count(model, "/meta/n_ctx")))
        .collect();
    assert_eq!(listed, [("tiny", CONTEXT), (NAME, WINDOW)]);
    for (name, window) in [("tiny", CONTEXT), (NAME, WINDOW)] {
        let (_, model) = server.get(&format!("/v1/models/{name}")).await;
        assert_eq!((&model["id"], count(&model, "/meta/n_ctx")), (&json!(name), window));
        let (_, props) = server.get(&format!("/props?model={name}")).await;
        assert_eq!(count(&props, "/default_generation_settings/n_ctx"), window);
        let (_, shown) = server.post("/api/show", json!({"model": name})).await;
        assert_eq!(count(&shown, "/model_info/llama.context_length"), window);
    }
    let (_, props) = server.get("/props").await;
    assert_eq!(count(&props, "/default_generation_settings/n_ctx"), CONTEXT);
}

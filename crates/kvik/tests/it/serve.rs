//! Runs the real server with the embedded model: `kvik serve` on a free port, over plain HTTP.

#![cfg(feature = "embedded-model")]

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

/// A running server, killed when dropped.
struct Server {
    child: Child,
    address: String,
    /// Its output up to the banner's end.
    banner: String,
    /// Its state directory, removed when dropped.
    state: tempfile::TempDir,
}

impl Server {
    fn start(flags: &[&str]) -> Server {
        Server::start_with(flags, &[])
    }

    fn start_with(flags: &[&str], env: &[(&str, &str)]) -> Server {
        let nowhere = std::env::temp_dir().join("kvik-test-without-config");
        let state = tempfile::tempdir().unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_kvik"))
            .args(["serve", "--port", "0", "--cache-ram", "64MiB", "--threads", "2"])
            .args(flags)
            .env("XDG_CONFIG_HOME", nowhere)
            .env("KVIK_CACHE_DISK", "off")
            .env("KVIK_STATE_DIR", state.path())
            // No model of this machine's user is the default one.
            .env("KVIK_MODELS_DIR", state.path().join("models"))
            // Its record is in its state directory.
            .env_remove("XDG_RUNTIME_DIR")
            .envs(env.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut banner = String::new();
        // The last line of the banner.
        while !banner.contains("`cached_tokens`") {
            assert!(out.read_line(&mut banner).unwrap() > 0, "the server ended at its start:\n{banner}");
        }
        let address = banner.split("listening on http://").nth(1).unwrap().lines().next().unwrap().to_owned();
        Server { child, address, banner, state }
    }

    fn open(&self, method: &str, path: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        stream
    }

    /// Status, headers, and body without its framing.
    fn send(&self, method: &str, path: &str, body: &Value) -> (u16, String, String) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let mut text = String::new();
        self.open(method, path, &body).read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let body = if head.contains("chunked") { dechunk(body) } else { body.to_owned() };
        (status, head.to_ascii_lowercase(), body)
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        let (status, _, text) = self.send("POST", path, body);
        assert_eq!(status, 200, "{text}");
        serde_json::from_str(&text).unwrap()
    }

    fn chat(&self, body: Value) -> Value {
        self.post("/v1/chat/completions", &body)
    }

    /// The frames of a streamed chat, without `[DONE]`.
    fn stream(&self, body: &Value) -> Vec<Value> {
        let (status, _, text) = self.send("POST", "/v1/chat/completions", body);
        assert_eq!(status, 200, "{text}");
        frames(&text)
    }

    fn metric(&self, name: &str) -> f64 {
        let (_, _, text) = self.send("GET", "/metrics", &Value::Null);
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} is in\n{text}")).parse().unwrap()
    }

    fn signal(&self, name: &str) {
        let killed = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status();
        assert!(killed.unwrap().success());
    }

    fn wait(&mut self) -> i32 {
        self.child.wait().unwrap().code().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn dechunk(mut body: &str) -> String {
    let mut text = String::new();
    while let Some((length, rest)) = body.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).unwrap();
        text.push_str(&rest[..length]);
        body = rest[length..].trim_start_matches("\r\n");
    }
    text
}

fn frames(text: &str) -> Vec<Value> {
    let mut data: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    assert_eq!(data.pop(), Some("[DONE]"), "a stream ends with [DONE]");
    data.into_iter().map(|frame| serde_json::from_str(frame).unwrap()).collect()
}

fn text_of(frames: &[Value], choice: u64) -> String {
    let choices = frames.iter().flat_map(|frame| frame["choices"].as_array().unwrap());
    choices.filter(|c| c["index"] == choice).filter_map(|c| c["delta"]["content"].as_str()).collect()
}

fn say(text: &str) -> Value {
    json!({"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 48})
}

/// `base` with the fields of `extra`.
fn with(mut base: Value, extra: Value) -> Value {
    base.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    base
}

fn content(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().unwrap()
}

/// The body in the curl command of the banner.
fn pasted(banner: &str) -> Value {
    let body = banner.split_once("-d '").unwrap().1.split_once("}'").unwrap().0;
    serde_json::from_str(&format!("{body}}}")).unwrap()
}

#[test]
fn the_example_is_answered_correctly_and_the_next_request_reuses_its_prompt() {
    let server = Server::start(&[]);
    let first = pasted(&server.banner);
    let answer = server.chat(first.clone());
    assert_eq!(
        serde_json::from_str::<Value>(content(&answer)).unwrap(),
        json!({"folder": "Health", "priority": 1})
    );
    assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0);

    let suggestion = server.banner.lines().find(|line| line.starts_with("  App: ")).unwrap();
    let mut second = first;
    second["messages"][1]["content"] = json!(suggestion.trim().replace("\\n", "\n"));
    let answer = server.chat(second);
    assert_eq!(
        serde_json::from_str::<Value>(content(&answer)).unwrap(),
        json!({"folder": "Deliveries", "priority": 3})
    );
    let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert!(cached > 100, "{answer}");
    assert_eq!(answer["timings"]["cache_n"], cached);
    let computed = answer["timings"]["prompt_n"].as_u64().unwrap();
    assert_eq!(answer["usage"]["prompt_tokens"], cached + computed);
}

#[test]
fn an_answer_is_the_same_whole_streamed_and_beside_others() {
    let server = Server::start(&[]);
    let body = say("Tell me a story.");
    let whole = server.chat(body.clone());
    assert_eq!(text_of(&server.stream(&with(body.clone(), json!({"stream": true}))), 0), content(&whole));

    let several = server.chat(with(body.clone(), json!({"n": 3})));
    for choice in several["choices"].as_array().unwrap() {
        assert_eq!(choice["message"]["content"], content(&whole));
    }
    let frames = server.stream(&with(body.clone(), json!({"n": 2, "stream": true})));
    assert_eq!((text_of(&frames, 0), text_of(&frames, 1)), (content(&whole).into(), content(&whole).into()));

    let stop = &content(&whole)[10..16];
    let stopped = server.chat(with(body.clone(), json!({"stop": [stop]})));
    assert_eq!(content(&stopped), &content(&whole)[..content(&whole).find(stop).unwrap()]);
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");

    let logprobs = server.chat(with(body, json!({"logprobs": true, "top_logprobs": 3})));
    let tokens = logprobs["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(tokens.len() as u64, logprobs["usage"]["completion_tokens"].as_u64().unwrap());
    for token in tokens {
        assert_eq!(token["top_logprobs"].as_array().unwrap().len(), 3);
        assert_eq!(token["logprob"], token["top_logprobs"][0]["logprob"], "greedy takes the likeliest");
    }
}

#[test]
fn a_schema_shapes_the_answer_and_a_required_call_is_one() {
    let server = Server::start(&[]);
    let schema = json!({
        "type": "object",
        "properties": {"folder": {"enum": ["Work", "Home"]}, "priority": {"type": "integer", "minimum": 1, "maximum": 5}},
        "required": ["folder", "priority"],
        "additionalProperties": false,
    });
    let format = json!({"type": "json_schema", "json_schema": {"name": "triage", "schema": schema}});
    let answer = server.chat(with(
        say("Tell me a story."),
        json!({"response_format": format, "temperature": 1.5, "seed": 4}),
    ));
    let triage: Value = serde_json::from_str(content(&answer)).unwrap();
    assert!(["Work", "Home"].contains(&triage["folder"].as_str().unwrap()), "{triage}");
    assert!((1..=5).contains(&triage["priority"].as_i64().unwrap()), "{triage}");

    let tools = json!([{"type": "function", "function": {"name": "move_it", "parameters": schema}}]);
    let answer = server
        .chat(with(say("Move it."), json!({"tools": tools, "tool_choice": "required", "max_tokens": 200})));
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
    let call = &choice["message"]["tool_calls"][0]["function"];
    assert_eq!(call["name"], "move_it");
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert!(arguments["priority"].is_i64(), "{arguments}");

    let referring = json!({
        "type": "object",
        "properties": {"place": {"$ref": "#/$defs/place"}},
        "required": ["place"],
        "$defs": {"place": {"enum": ["Oslo", "Cork"]}},
    });
    let tools = json!([
        {"type": "function", "function": {"name": "go", "parameters": referring}},
        {"type": "function", "function": {"name": "fly", "parameters": referring}},
    ]);
    let answer =
        server.chat(with(say("Go."), json!({"tools": tools, "tool_choice": "required", "max_tokens": 200})));
    let call = &answer["choices"][0]["message"]["tool_calls"][0]["function"];
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert!(["Oslo", "Cork"].contains(&arguments["place"].as_str().unwrap()), "{answer}");

    let unusable = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": []}}});
    let (status, _, text) =
        server.send("POST", "/v1/chat/completions", &with(say("Hi."), json!({"response_format": unusable})));
    assert_eq!(status, 400, "{text}");
}

#[test]
fn a_closed_connection_ends_its_work() {
    let server = Server::start(&[]);
    let endless = json!({"prompt": "Once upon a time", "n_predict": -1, "ignore_eos": true, "stream": true});
    let mut stream = server.open("POST", "/completion", &endless.to_string());
    stream.read_exact(&mut [0; 64]).unwrap();
    drop(stream);
    let deadline = Instant::now() + Duration::from_secs(20);
    // The gauge of running requests is not enough: the response headers precede the computation.
    while server.metric("kvik_requests_ended_total{outcome=\"cancelled\"}") < 1.0 {
        assert!(Instant::now() < deadline, "the request of a closed connection still runs");
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(server.metric("kvik_blocks_owned"), 0.0, "its blocks are free or in the tree");
}

#[test]
fn a_full_queue_answers_with_retry_after() {
    let server = Server::start(&["--parallel", "1", "--queue", "1"]);
    let long = json!({"prompt": "Once upon a time", "n_predict": -1, "ignore_eos": true, "stream": true})
        .to_string();
    // One runs, one waits, as long as their connections stay open.
    let mut busy = Vec::new();
    let (status, head, text) = loop {
        busy.extend([(); 2].map(|()| server.open("POST", "/completion", &long)));
        let answer = server.send("POST", "/completion", &json!({"prompt": "Hi", "n_predict": 1}));
        if answer.0 != 200 || busy.len() > 40 {
            break answer;
        }
    };
    assert_eq!(status, 429, "{text}");
    assert!(head.to_ascii_lowercase().contains("retry-after: "), "{head}");
    let error: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(error["error"]["code"], "queue_full");
}

#[test]
fn sigterm_lets_a_stream_finish() {
    let mut server = Server::start(&[]);
    let body = with(say("Tell me a story."), json!({"max_tokens": 400, "ignore_eos": true}));
    let whole = server.chat(body.clone());
    let mut stream =
        server.open("POST", "/v1/chat/completions", &with(body, json!({"stream": true})).to_string());
    let mut text = vec![0; 700];
    stream.read_exact(&mut text).unwrap();
    server.signal("TERM");
    stream.read_to_end(&mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    let frames = frames(&dechunk(text.split_once("\r\n\r\n").unwrap().1));
    assert_eq!(text_of(&frames, 0), content(&whole));
    assert_eq!(server.wait(), 0);
}

#[test]
fn the_environment_is_between_the_flags_and_the_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "alias = \"of-the-file\"\napi-key = \"sesame\"\n").unwrap();
    let config = file.path().to_str().unwrap();
    let alias = |server: &Server| {
        server.banner.split("model    ").nth(1).unwrap().split(' ').next().unwrap().to_owned()
    };
    let of_file = Server::start_with(&[], &[("KVIK_CONFIG", config)]);
    assert_eq!(alias(&of_file), "of-the-file");
    assert_eq!(of_file.send("GET", "/v1/models", &Value::Null).0, 401, "the server requires the file's key");
    let of_environment = [("KVIK_CONFIG", config), ("KVIK_ALIAS", "of-the-environment")];
    assert_eq!(alias(&Server::start_with(&[], &of_environment)), "of-the-environment");
    assert_eq!(alias(&Server::start_with(&["--alias", "of-the-flag"], &of_environment)), "of-the-flag");
}

/// clap counts the value of a variable like that of a flag, and refused it beside `--shape`.
#[test]
fn a_shape_replaces_the_model_of_a_variable() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("shape.gguf");
    let output = Command::new(env!("CARGO_BIN_EXE_kvik"))
        .args(["bench", "--shape", "qwen3-tiny", "-p", "0", "-n", "0", "--write"])
        .arg(&file)
        .env("KVIK_MODEL", "nothere.gguf")
        .env("XDG_CONFIG_HOME", dir.path())
        .output()
        .unwrap();
    assert!(output.status.success() && file.is_file(), "{output:?}");
}

/// A second server is told the first thing that is wrong, and waits for no lock of the first one to find it out.
#[test]
fn a_second_server_is_told_at_once_what_is_wrong() {
    let first = Server::start(&[]);
    let port = first.address.rsplit(':').next().unwrap();
    let taken = format!("cannot listen on 127.0.0.1, port {port}: process {} is a kvik", first.child.id());
    let stop = format!("`kvik stop --port {port}` ends");
    assert!(first.banner.contains(&format!("state    {}", first.state.path().display())), "{}", first.banner);
    for (flags, says) in [
        (&["--port", port][..], taken.as_str()),
        (&["--port", port], stop.as_str()),
        (&["--port", port, "--body-limit", "2"], "2GiB"),
        (&["--port", port, "--kv", "q8", "--kv-map", "x"], "--kv and --kv-map"),
        (&["--port", port, "--tenants", "/nowhere.toml"], "/nowhere.toml"),
        (&["--port", "0", "--host", "0.0.0.0"], "no key is asked for"),
        (&["--port", "0", "--cache-ram", "900TiB"], "--cache-ram is 900 TiB"),
        (&["--port", "0", "-m", "nothere"], "there is no model at nothere"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_kvik"))
            .arg("serve")
            .args(flags)
            .env("KVIK_CACHE_DISK", "off")
            .env("KVIK_STATE_DIR", first.state.path())
            .env_remove("XDG_RUNTIME_DIR")
            .output()
            .unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && error.contains(says), "{flags:?}: {error}");
        assert!(!error.contains("in use by another"), "{flags:?}: {error}");
    }
}

#[test]
fn a_server_without_a_state_directory_says_what_it_loses() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let below = file.path().join("state");
    let server = Server::start(&["--state-dir", below.to_str().unwrap()]);
    assert!(server.banner.contains("END WITH THIS PROCESS"), "{}", server.banner);
}

#[test]
fn run_reads_its_words_and_what_is_piped_in() {
    let run = |words: &[&str], piped: Option<&str>| {
        let mut child = Command::new(env!("CARGO_BIN_EXE_kvik"))
            .args(["run", "--cache-ram", "16MiB", "--max-tokens", "8"])
            .args(words)
            .env("KVIK_MODEL", "embedded")
            .env("KVIK_CACHE_DISK", "off")
            .stdin(if piped.is_some() { Stdio::piped() } else { Stdio::null() })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        if let (Some(text), Some(mut stdin)) = (piped, child.stdin.take()) {
            stdin.write_all(text.as_bytes()).unwrap();
        }
        let output = child.wait_with_output().unwrap();
        let said = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        (output.status.success(), said(&output.stdout), said(&output.stderr))
    };
    let (_, alone, _) = run(&["Say this:\n\nSun"], None);
    assert_eq!(run(&["Say this:"], Some("Sun")).1, alone, "what is piped in stands behind the prompt");
    let (succeeded, _, error) = run(&[""], None);
    assert!(!succeeded && error.contains("the prompt is empty"), "{error}");
    assert!(run(&["-"], Some("Who are you?")).0);
}

#[test]
fn run_prints_one_answer() {
    let output = Command::new(env!("CARGO_BIN_EXE_kvik"))
        .args(["run", "--cache-ram", "16MiB", "--max-tokens", "24", "Who are you?"])
        .env("KVIK_MODEL", "embedded")
        .env("KVIK_CACHE_DISK", "off")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(
        String::from_utf8(output.stdout).unwrap().trim(),
        "I am kvik-tiny, a very small demonstration model."
    );
    let stats = String::from_utf8(output.stderr).unwrap();
    assert!(stats.contains("prompt tokens") && stats.contains("first token after"), "{stats}");
}

#[test]
fn unknown_instructions_are_refused_by_name() {
    for command in [&["run", "hello"][..], &["serve", "--port", "0"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_kvik"))
            .args(command)
            .env("KVIK_ISA", "avx3")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(
            !output.status.success() && error.contains("\"avx3\"") && error.contains("scalar"),
            "{error}"
        );
    }
}

/// Also what is said before the log starts, and the error at the end.
#[test]
fn every_line_of_a_json_log_is_an_object() {
    let home = tempfile::tempdir().unwrap();
    let ended = Command::new(env!("CARGO_BIN_EXE_kvik"))
        .args(["serve", "--port", "0", "--log", "json", "--sleep-idle-seconds", "5"])
        .args(["-m", "/there/is/no/model.gguf"])
        .env("XDG_CONFIG_HOME", home.path())
        .env("XDG_RUNTIME_DIR", home.path())
        .env("KVIK_STATE_DIR", home.path())
        .env("KVIK_MODELS_DIR", home.path())
        .env("KVIK_LOG", "loud")
        .output()
        .unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    let lines = said.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}")));
    let lines: Vec<Value> = lines.collect();
    for (level, message) in [
        ("INFO", "--sleep-idle-seconds"),
        ("INFO", "`loud` is no level"),
        ("ERROR", "/there/is/no/model.gguf"),
    ] {
        let says = |line: &Value| {
            line["level"] == level && line["message"].as_str().is_some_and(|text| text.contains(message))
        };
        assert!(lines.iter().any(says), "{level} {message}: {said}");
    }
    assert_eq!(ended.status.code(), Some(1));
}

#[test]
fn a_command_that_answers_by_its_status_ends_otherwise_where_it_cannot() {
    let home = tempfile::tempdir().unwrap();
    let config = home.path().join("kvik.toml");
    std::fs::write(&config, "no-such-key = 1").unwrap();
    let ended = |words: &[&str]| {
        let command = Command::new(env!("CARGO_BIN_EXE_kvik"))
            .args(words)
            .env("XDG_CONFIG_HOME", home.path())
            .env("XDG_RUNTIME_DIR", home.path())
            .env("KVIK_STATE_DIR", home.path())
            .env("KVIK_MODELS_DIR", home.path())
            .output();
        command.unwrap().status.code()
    };
    let config = config.to_str().unwrap();
    for words in [
        &["lint", "/there/is/no/request.json"][..],
        &["--config", config, "lint", "/there/is/no/request.json"],
        &["--config", config, "doctor"],
        &["prompt", "check", "agent"],
        &["devices", "--check", "cpu"],
    ] {
        assert_eq!(ended(words), Some(2), "{words:?}");
    }
    assert_eq!(ended(&["explain", "/there/is/no/request.json"]), Some(1), "its status is no answer");
}

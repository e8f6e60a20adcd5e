//! Runs the real server: settings it refuses, warnings it prints, and a limit on files that it survives.

#![cfg(all(unix, feature = "embedded-model"))]

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

/// `kvik serve` on a free port with the embedded model and the state directory `state`.
fn serve(state: &Path, limit: &str, flags: &[&str], env: &[(&str, &str)]) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", &format!("{limit} exec \"$0\" serve --port 0 --cache-ram 16MiB --threads 2 \"$@\"")])
        .arg(env!("CARGO_BIN_EXE_kvik"))
        .args(flags)
        .env("XDG_CONFIG_HOME", state.join("nowhere"))
        .env("KVIK_CACHE_DISK", "off")
        .env("KVIK_STATE_DIR", state)
        .env("KVIK_MODELS_DIR", state.join("models"))
        .envs(env.iter().copied())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// A running server and its log.
struct Running {
    child: Child,
    address: String,
    /// Its standard error until it was ready.
    warnings: String,
    _state: tempfile::TempDir,
}

impl Running {
    fn start(limit: &str, flags: &[&str], env: &[(&str, &str)]) -> Running {
        let state = tempfile::tempdir().unwrap();
        let mut child = serve(state.path(), limit, flags, env).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut banner = String::new();
        while !banner.contains("`cached_tokens`") {
            assert!(out.read_line(&mut banner).unwrap() > 0, "the server ended at its start:\n{banner}");
        }
        let address = banner.split("listening on http://").nth(1).unwrap().lines().next().unwrap().to_owned();
        let mut running = Running { child, address, warnings: String::new(), _state: state };
        let mut log = BufReader::new(running.child.stderr.take().unwrap());
        while !running.warnings.contains("until the model is loaded") {
            log.read_line(&mut running.warnings).unwrap();
        }
        // Drains the rest, so that the pipe never fills.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        running
    }

    /// The raw response to a request that closes its half of the connection.
    fn send(&self, method: &str, path: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let head =
            format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n");
        write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn settings_that_would_open_the_server_by_mistake_are_refused() {
    let check = |flags: &[&str], env: &[(&str, &str)], words: &[&str]| {
        let state = tempfile::tempdir().unwrap();
        let output = serve(state.path(), "", flags, env).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success(), "{flags:?} {env:?}");
        for word in words {
            assert!(said.contains(word), "{flags:?} {env:?}: {said} says {word}");
        }
    };
    check(&["--api-key", ""], &[], &["--api-key", "the key is empty"]);
    check(&[], &[("KVIK_API_KEY", "")], &["KVIK_API_KEY", "the key is empty"]);
    check(&["--admin-key", " "], &[], &["--admin-key", "the key is empty"]);
    check(&["--host", "0.0.0.0"], &[], &["--api-key", "--allow-no-key"]);
    check(&["--host", "0.0.0.0", "--admin-key", "root"], &[], &["--allow-no-key"]);
    check(&["--cors", "page.example"], &[], &["https://example.org"]);
    check(&[], &[("LLAMA_API_KEY", "sesame")], &["LLAMA_API_KEY", "set KVIK_API_KEY"]);
    check(&["--admin-key", "root"], &[("LLAMA_API_KEY", "sesame")], &["set KVIK_API_KEY"]);
}

#[test]
fn an_open_server_warns() {
    let open = Running::start("", &["--host", "0.0.0.0"], &[("KVIK_ALLOW_NO_KEY", "1")]);
    assert!(open.warnings.contains("WARN") && open.warnings.contains("NO KEY"), "{}", open.warnings);
    let first = open.warnings.lines().next().unwrap();
    assert!(first.contains(concat!("kvik ", env!("CARGO_PKG_VERSION"))), "after an upgrade: {first}");
    let admin_only = Running::start("", &["--admin-key", "root"], &[]);
    assert!(admin_only.warnings.contains("--admin-key protects"), "{}", admin_only.warnings);
    let others = [("LLAMA_API_KEY", "swordfish"), ("LLAMA_ARG_CTX_SIZE", "64"), ("OLLAMA_NUM_PARALLEL", "")];
    let closed = Running::start("", &["--api-key", "sesame", "--admin-key", "root"], &others);
    assert!(!closed.warnings.contains("WARN"), "{}", closed.warnings);
    for (name, like) in [("LLAMA_API_KEY", "KVIK_API_KEY"), ("LLAMA_ARG_CTX_SIZE", "KVIK_CONTEXT")] {
        let note = format!("note: {name} is not read: {like} does the same");
        assert!(closed.warnings.contains(&note), "{}", closed.warnings);
    }
    assert!(
        !closed.warnings.contains("swordfish") && !closed.warnings.contains("OLLAMA"),
        "{}",
        closed.warnings
    );
}

#[test]
fn a_limit_on_the_size_of_files_disables_disk_and_accounts_and_fails_no_answer() {
    let disk = tempfile::tempdir().unwrap();
    let place = [("KVIK_CACHE_DISK", disk.path().to_str().unwrap())];
    // 64 blocks of 512 or 1024 bytes, as the shell counts.
    let server = Running::start("ulimit -f 64;", &[], &place);
    let prompt = "All work and no play makes Jack a dull boy. ".repeat(40);
    for i in 0..8 {
        let body = format!("{{\"prompt\": \"{i} {prompt}\", \"n_predict\": 4}}");
        let answer = server.send("POST", "/completion", &body);
        assert!(answer.contains("200 OK") && answer.contains("\"tokens_predicted\""), "{answer}");
        // The disk is written in the background.
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(server.send("GET", "/health", "").contains("\"ok\""));
}

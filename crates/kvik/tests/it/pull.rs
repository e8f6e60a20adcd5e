//! `kvik pull` and its fellows as processes: killed, beside each other, without room, behind a proxy.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Output, Stdio},
    sync::Arc,
    thread,
    time::Duration,
};

use kvik_testing::{Web, WebAnswer, WebRepository, mix, tiny_model};
use serde_json::Value;
use sha2::{Digest, Sha256};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// `kvik` with a shelf in `dir` and the hub at `url`, and nothing else of the environment's.
fn kvik(dir: &Path, url: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvik"));
    let proxies = ["ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"];
    let others = ["HF_TOKEN", "HF_TOKEN_PATH", "KVIK_MODELS_DIR", "KVIK_MODEL"];
    for name in proxies.into_iter().chain(others) {
        command.env_remove(name).env_remove(name.to_lowercase());
    }
    command.args(args).args(["--models-dir"]).arg(dir.join("models"));
    command.env("HF_ENDPOINT", url).env("KVIK_CACHE_DIR", dir).env("XDG_CONFIG_HOME", dir);
    // No token of this machine's user is read.
    command.env("HF_HOME", dir);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(dir: &Path, url: &str, args: &[&str]) -> Output {
    kvik(dir, url, args).output().unwrap()
}

/// What a command that succeeds prints.
fn printed(dir: &Path, url: &str, args: &[&str]) -> String {
    let Output { status, stdout, stderr } = run(dir, url, args);
    assert!(status.success(), "{args:?}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

/// What a command that fails says.
fn refused(output: &Output) -> String {
    assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn names(dir: &Path) -> Vec<Value> {
    let text = printed(dir, "http://127.0.0.1:1", &["list", "--json"]);
    serde_json::from_str::<Value>(&text).unwrap()["models"].as_array().unwrap().clone()
}

fn content(len: usize) -> Arc<[u8]> {
    let noise = (0..len as u64 / 8).flat_map(|word| mix(word).to_le_bytes());
    b"GGUF".iter().copied().chain(noise).take(len).collect()
}

fn repository(files: &[(&'static str, Arc<[u8]>)]) -> WebRepository {
    let sha256 = |content: &[u8]| Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect();
    let files = files.iter().map(|(name, content)| (*name, content.clone(), Some(sha256(content))));
    WebRepository { name: "o/r", commit: COMMIT, files: files.collect() }
}

/// A hub whose files come slowly.
fn slow_hub(repository: WebRepository, pause: Duration) -> Web {
    Web::serve(move |request| {
        let mut answer = repository.answer(request);
        answer.pause = pause;
        answer
    })
}

#[test]
fn a_model_is_pulled_listed_run_copied_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let model: Arc<[u8]> = fs::read(tiny_model()).unwrap().into();
    let web = slow_hub(repository(&[("tiny-Q8_0.gguf", model)]), Duration::ZERO);
    let out = printed(dir, &web.url, &["pull", "hf:o/r:Q8_0", "--name", "tiny:q8"]);
    assert!(out.starts_with("tiny:q8  ") && out.contains("tiny-Q8_0.gguf"), "{out}");
    let nowhere = "http://127.0.0.1:1";
    let answer = |model: &str| {
        printed(
            dir,
            nowhere,
            &[
                "run",
                "-m",
                model,
                "--cache-disk",
                "off",
                "--context",
                "128",
                "--max-tokens",
                "8",
                "--temperature",
                "0",
                "Hello",
            ],
        )
    };
    assert_eq!(answer("tiny:q8"), answer(tiny_model().to_str().unwrap()));
    assert_eq!(answer("hf:o/r:Q8_0"), answer("tiny:q8"), "the same source, without network");
    let list = printed(dir, nowhere, &["list"]);
    assert!(list.contains("tiny:q8") && list.contains("hf:o/r:Q8_0") && list.contains("just now"), "{list}");
    let show = printed(dir, nowhere, &["show", "tiny:q8"]);
    assert!(show.contains(COMMIT) && show.contains("sha256"), "{show}");
    printed(dir, nowhere, &["cp", "tiny:q8", "tiny"]);
    let shown: Value = serde_json::from_str(&printed(dir, nowhere, &["show", "tiny", "--json"])).unwrap();
    assert!(Path::new(shown["path"].as_str().unwrap()).is_file(), "{shown}");
    let error = refused(&run(dir, nowhere, &["run", "-m", "tinny", "Hello"]));
    assert!(error.contains("did you mean") && error.contains("tiny, tiny:q8"), "{error}");
    let error = refused(&run(dir, nowhere, &["run", "tiny"]));
    assert!(error.contains("`tiny` is the name of a model"), "{error}");
    let flags = ["--cache-disk", "off", "--context", "128", "--max-tokens", "8", "--temperature", "0"];
    let asked = printed(dir, nowhere, &[&["run", "tiny", "Hello"], &flags[..]].concat());
    assert_eq!(asked, answer("tiny:q8"), "a name before the prompt is the model's");
    let error = refused(&run(dir, nowhere, &["pull", "tiny:q4"]));
    assert!(error.contains("hf:owner/repo") && error.contains("`tiny:q8`"), "{error}");
    assert!(!error.contains("os error"), "{error}");
    let default = printed(dir, nowhere, &[&["run", "Hello"], &flags[..]].concat());
    assert_eq!(default, asked, "what was pulled answers where no model is named");
    let removed = printed(dir, nowhere, &["rm", "tiny", "tiny:q8"]);
    assert!(removed.contains("tiny:q8: removed with its file"), "{removed}");
    assert!(names(dir).is_empty());
    assert!(!Path::new(shown["path"].as_str().unwrap()).exists());
}

/// A model that is found by name is whole, whenever a pull is killed; and what was fetched stays.
#[test]
fn killed_pulls_leave_nothing_half() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let parts = ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"].map(|name| (name, content(1_500_000)));
    let web = slow_hub(repository(&parts), Duration::from_millis(2));
    let (mut kills, mut ended, mut case) = (0, 0, 0);
    while kills < 20 {
        let mut pull: Child = kvik(dir, &web.url, &["pull", "hf:o/r", "--name", "m"]).spawn().unwrap();
        case += 1;
        thread::sleep(Duration::from_millis(20 + mix(case) % 500));
        let was_running = pull.try_wait().unwrap().is_none();
        pull.kill().unwrap();
        pull.wait().unwrap();
        kills += u32::from(was_running);
        let found = names(dir);
        for model in &found {
            assert_eq!(model["problem"], Value::Null, "kill {kills}: {model}");
            for (file, (_, content)) in model["files"].as_array().unwrap().iter().zip(&parts) {
                let path = dir.join("models").join(file["path"].as_str().unwrap());
                assert!(fs::read(path).unwrap() == content[..], "kill {kills}");
            }
            ended += 1;
            printed(dir, &web.url, &["rm", "m"]);
        }
        assert!(case < 200, "of {case} pulls {kills} were still running when they were killed");
    }
    printed(dir, &web.url, &["pull", "hf:o/r", "--name", "m"]);
    assert_eq!(names(dir)[0]["problem"], Value::Null, "behind {kills} kills, {ended} of them too late");
    printed(dir, &web.url, &["rm", "m", "--leftovers"]);
    let left = fs::read_dir(dir.join("models/hub")).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(left.collect::<Vec<_>>(), [".lock"]);
}

#[test]
fn two_processes_fetch_each_byte_once() {
    let dir = tempfile::tempdir().unwrap();
    let content = content(3_000_000);
    let web = slow_hub(repository(&[("m.gguf", content.clone())]), Duration::from_millis(3));
    let pulls = [(); 2].map(|()| kvik(dir.path(), &web.url, &["pull", "hf:o/r"]).spawn().unwrap());
    let said: Vec<String> = pulls
        .map(|pull| {
            let Output { status, stderr, .. } = pull.wait_with_output().unwrap();
            let said = String::from_utf8(stderr).unwrap();
            assert!(status.success(), "{said}");
            said
        })
        .into();
    assert_eq!(said.iter().filter(|said| said.contains("waiting for process")).count(), 1, "{said:?}");
    let files = web.seen().into_iter().filter(|request| request.path.contains("/resolve/"));
    assert_eq!(files.count(), 1);
    assert_eq!(names(dir.path())[0]["problem"], Value::Null);
}

/// The shell's limit on the size of files stands for a disk that is full: the system refuses the same calls.
#[cfg(unix)]
#[test]
fn a_file_that_has_no_room_is_named_with_what_it_needs() {
    let dir = tempfile::tempdir().unwrap();
    let web = slow_hub(repository(&[("m.gguf", content(3_000_000))]), Duration::ZERO);
    let pull = kvik(dir.path(), &web.url, &["pull", "hf:o/r"]);
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -f 2048; exec \"$@\"", "sh"]).arg(pull.get_program()).args(pull.get_args());
    for (name, value) in pull.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    let error = refused(&limited.output().unwrap());
    assert!(
        error.contains("no room for") && error.contains("m.gguf") && error.contains("3000000 bytes"),
        "{error}"
    );
    assert!(names(dir.path()).is_empty());
    printed(dir.path(), &web.url, &["pull", "hf:o/r"]);
    assert_eq!(names(dir.path()).len(), 1, "with room it is there");
}

#[test]
fn a_proxy_is_asked_unless_it_is_said_not_to() {
    let dir = tempfile::tempdir().unwrap();
    let web = slow_hub(repository(&[("m.gguf", content(1_000))]), Duration::ZERO);
    let proxy = Web::serve(|_| WebAnswer::new("403 Forbidden", b""));
    let pull = |no_proxy: &str| {
        let mut pull = kvik(dir.path(), &web.url, &["pull", "hf:o/r"]);
        pull.env("HTTPS_PROXY", &proxy.url).env("NO_PROXY", no_proxy);
        pull.output().unwrap()
    };
    refused(&pull("elsewhere.example"));
    assert_eq!(proxy.seen().len(), 1);
    assert!(web.seen().is_empty(), "nobody goes around the proxy");
    assert!(pull("127.0.0.1").status.success());
    assert_eq!(proxy.seen().len(), 1);
}

/// A SOCKS proxy was passed by, and stood before a proxy of HTTP that works.
#[test]
fn nobody_goes_around_a_proxy_that_cannot_be_used() {
    let dir = tempfile::tempdir().unwrap();
    let web = slow_hub(repository(&[("m.gguf", content(1_000))]), Duration::ZERO);
    let proxy = Web::serve(|_| WebAnswer::new("403 Forbidden", b""));
    let pull = |env: &[(&str, &str)]| {
        kvik(dir.path(), &web.url, &["pull", "hf:o/r"]).envs(env.iter().copied()).output().unwrap()
    };
    for (variable, value, says) in [
        ("ALL_PROXY", "socks5://127.0.0.1:1", "ALL_PROXY names a SOCKS proxy"),
        ("HTTPS_PROXY", "socks5h://127.0.0.1:1", "HTTPS_PROXY names a SOCKS proxy"),
        ("HTTP_PROXY", "ftp://127.0.0.1:1", "HTTP_PROXY is not the address of a proxy"),
    ] {
        let error = refused(&pull(&[(variable, value)]));
        assert!(error.contains(says), "{error}");
    }
    let socks = ("ALL_PROXY", "socks5://127.0.0.1:1");
    refused(&pull(&[socks, ("HTTPS_PROXY", proxy.url.as_str())]));
    assert_eq!(proxy.seen().len(), 1, "a proxy of HTTP comes before the general one");
    assert!(web.seen().is_empty(), "nobody goes around the proxy");
    assert!(pull(&[socks, ("NO_PROXY", "127.0.0.1")]).status.success());
}

#[test]
fn the_token_that_the_hubs_own_tools_have_stored_is_sent_to_the_hub() {
    let dir = tempfile::tempdir().unwrap();
    let web = slow_hub(repository(&[("m.gguf", content(1_000))]), Duration::ZERO);
    let sent = |env: &[(&str, &str)]| {
        let before = web.seen().len();
        let output =
            kvik(dir.path(), &web.url, &["pull", "hf:o/r"]).envs(env.iter().copied()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        web.seen()[before].header("authorization").map(str::to_owned)
    };
    assert_eq!(sent(&[]), None);
    fs::write(dir.path().join("token"), "stored\n").unwrap();
    assert_eq!(sent(&[]).as_deref(), Some("Bearer stored"));
    assert_eq!(sent(&[("HF_TOKEN", "given")]).as_deref(), Some("Bearer given"));
    assert_eq!(sent(&[("HF_TOKEN_PATH", "/nowhere/token")]), None);
}

#[test]
fn help_teaches_by_examples() {
    for command in ["search", "pull", "default", "list", "show", "cp", "rm"] {
        let help = Command::new(env!("CARGO_BIN_EXE_kvik")).args([command, "--help"]).output().unwrap();
        let help = String::from_utf8(help.stdout).unwrap();
        assert!(
            help.contains("Example") && help.contains(&format!("  kvik {command} ")),
            "{command}: {help}"
        );
    }
}

//! Commands that ask a server, as processes: each finds it by a flag, by a variable and by config.toml.

use std::{
    fs::File,
    io::{Read, Write},
    net::TcpListener,
    path::Path,
    process::{Command, Output, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

/// Something that listens like a server, answers everything with an empty object, and counts.
struct Listening {
    port: u16,
    asked: Arc<AtomicUsize>,
}

impl Listening {
    fn start() -> Listening {
        Listening::after(0)
    }

    /// One that refuses so many requests first, as a server does while it loads its model.
    fn after(refused: usize) -> Listening {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, asked) = (listener.local_addr().unwrap().port(), Arc::new(AtomicUsize::new(0)));
        let count = asked.clone();
        // It ends with the test's process.
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut head = [0; 16 << 10];
                let _ = stream.read(&mut head).unwrap();
                let status = match count.fetch_add(1, Ordering::SeqCst) < refused {
                    true => "503 Service Unavailable",
                    false => "200 OK",
                };
                let _ =
                    write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{{}}");
            }
        });
        Listening { port, asked }
    }
}

/// Every command that has --url, but for `usage`, which reads records where it can; `FILE` stands for a request's body.
const COMMANDS: [&[&str]; 16] = [
    &["explain", "FILE"],
    &["cache", "ls"],
    &["cache", "list"],
    &["cache", "show"],
    &["cache", "pins"],
    &["cache", "pin", "FILE"],
    &["cache", "unpin", "--all"],
    &["cache", "evict", "FILE"],
    &["cache", "clear"],
    &["prompt", "ls"],
    &["prompt", "list"],
    &["prompt", "add", "p", "--system", "x"],
    &["prompt", "rm", "p"],
    &["ps"],
    &["ps", "--load", "m"],
    &["health"],
];

/// Runs a command with words behind it, a variable, and the text of config.toml.
fn run(dir: &Path, command: &[&str], words: &[&str], env: &[(&str, String)], config: &str) -> Output {
    let (config_file, body) = (dir.join("config.toml"), dir.join("body.json"));
    std::fs::write(&config_file, config).unwrap();
    std::fs::write(&body, r#"{"prompt": "x"}"#).unwrap();
    let command = command.iter().map(|word| if *word == "FILE" { body.to_str().unwrap() } else { word });
    Command::new(env!("CARGO_BIN_EXE_kvik"))
        .args(command)
        .args(words)
        .env_remove("KVIK_PORT")
        .env_remove("KVIK_HOST")
        .env_remove("KVIK_CACHE_DISK")
        .env_remove("KVIK_URL")
        .env_remove("NO_PROXY")
        .env_remove("no_proxy")
        .env("KVIK_CONFIG", &config_file)
        .envs(env.iter().map(|(name, value)| (*name, value.as_str())))
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[test]
fn every_command_finds_the_server_by_flag_variable_and_file() {
    let dir = tempfile::tempdir().unwrap();
    let server = Listening::start();
    let port = server.port.to_string();
    let url = format!("http://127.0.0.1:{port}");
    let nowhere = [("KVIK_PORT", "1".to_owned())];
    for command in COMMANDS {
        let check = |words: &[&str], env: &[(&str, String)], config: &str| {
            let before = server.asked.load(Ordering::SeqCst);
            let output = run(dir.path(), command, words, env, config);
            let asked = server.asked.load(Ordering::SeqCst) - before;
            // What can do without a server first asks whether there is one.
            let asks = if command == ["cache", "clear"] { 2 } else { 1 };
            assert_eq!(asked, asks, "{command:?} {words:?} {env:?} {config}: {output:?}");
        };
        check(&["--port", &port], &[], "");
        check(&[], &[("KVIK_PORT", port.clone())], "");
        check(&[], &[], &format!("port = {port}"));
        check(&[], &[("KVIK_HOST", "0.0.0.0".to_owned())], &format!("port = {port}"));
        check(&["--port", &port], &nowhere, "port = 2");
        check(&[], &[("KVIK_PORT", port.clone())], "port = 2");
        check(&["--url", &url], &nowhere, "port = 2");
    }
}

/// Servers that have written themselves down, as long as their files are locked.
fn written_down(runtime: &Path, servers: &[&Listening]) -> Vec<File> {
    let folder = runtime.join("kvik");
    std::fs::create_dir_all(&folder).unwrap();
    let hold = |server: &&Listening| {
        let mut file = File::create(folder.join(format!("serve-{}.pid", server.port))).unwrap();
        file.lock().unwrap();
        write!(file, "{}\nhttp://127.0.0.1:{}\n", std::process::id(), server.port).unwrap();
        file
    };
    servers.iter().map(hold).collect()
}

/// On a machine of several people anybody could listen at the usual port, and would read the key.
#[test]
fn only_a_server_that_is_named_or_alone_is_asked() {
    let dir = tempfile::tempdir().unwrap();
    let (one, other) = (Listening::start(), Listening::start());
    let asked = || one.asked.load(Ordering::SeqCst) + other.asked.load(Ordering::SeqCst);
    let env = ["XDG_RUNTIME_DIR", "KVIK_STATE_DIR"].map(|name| (name, dir.path().display().to_string()));
    let refused = |command: &[&str]| {
        let before = asked();
        let output = run(dir.path(), command, &[], &env, "");
        assert!(!output.status.success() && asked() == before, "{command:?}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let can_do_without = ["cache", "clear"];
    for command in COMMANDS.iter().filter(|command| **command != can_do_without) {
        let error = refused(command);
        assert!(error.contains("no kvik of this user runs on this machine"), "{command:?}: {error}");
    }
    let alone = written_down(dir.path(), &[&one]);
    for command in COMMANDS {
        let before = one.asked.load(Ordering::SeqCst);
        let output = run(dir.path(), command, &[], &env, "");
        assert!(one.asked.load(Ordering::SeqCst) > before, "{command:?}: {output:?}");
    }
    drop(alone);
    let _both = written_down(dir.path(), &[&one, &other]);
    for command in COMMANDS {
        let error = refused(command);
        for server in [&one, &other] {
            let url = format!("http://127.0.0.1:{}", server.port);
            assert!(
                error.contains(&url) && error.contains("--port or --url names one"),
                "{command:?}: {error}"
            );
        }
    }
}

/// A proxy would look for the server on its own machine, and would read the key.
#[test]
fn the_server_of_this_machine_is_asked_without_a_proxy() {
    let dir = tempfile::tempdir().unwrap();
    let (server, proxy) = (Listening::start(), Listening::start());
    let port = server.port.to_string();
    for address in ["http://127.0.0.1:1".to_owned(), format!("http://127.0.0.1:{}", proxy.port)] {
        let env = ["ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY"].map(|name| (name, address.clone()));
        for command in COMMANDS {
            let before = server.asked.load(Ordering::SeqCst);
            let output = run(dir.path(), command, &["--port", &port], &env, "");
            assert!(server.asked.load(Ordering::SeqCst) > before, "{command:?} {address}: {output:?}");
        }
    }
    assert_eq!(proxy.asked.load(Ordering::SeqCst), 0);
}

#[test]
fn an_address_is_read_as_people_write_it() {
    let dir = tempfile::tempdir().unwrap();
    let server = Listening::start();
    for url in ["127.0.0.1:PORT", "localhost:PORT/", "http://127.0.0.1:PORT/v1/"] {
        let url = url.replace("PORT", &server.port.to_string());
        let before = server.asked.load(Ordering::SeqCst);
        let output = run(dir.path(), &["health"], &["--url", &url], &[], "");
        assert!(output.status.success(), "{url}: {output:?}");
        assert_eq!(server.asked.load(Ordering::SeqCst), before + 1, "{url}");
    }
    let output = run(dir.path(), &["cache", "clear", "--cache-disk", "off"], &["--url", "ftp://a"], &[], "");
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("ftp://a is no address of a server"), "{error}");
}

/// The documents waited in a loop of the shell, which did not end where the server did not start.
#[test]
fn a_server_that_starts_is_waited_for_and_one_that_does_not_start_ends_the_wait() {
    let dir = tempfile::tempdir().unwrap();
    let health = |url: &str, words: &[&str]| {
        let output = run(dir.path(), &["health"], &[&["--url", url], words].concat(), &[], "");
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    let server = Listening::after(2);
    let url = format!("http://127.0.0.1:{}", server.port);
    let (is_ok, error) = health(&url, &[]);
    assert!(!is_ok && error.contains("answers 503") && error.contains("not as kvik does"), "{error}");
    assert!(health(&url, &["--wait", "600"]).0);
    assert_eq!(server.asked.load(Ordering::SeqCst), 3);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    for url in [format!("http://{}", silent.local_addr().unwrap()), "http://127.0.0.1:1".to_owned()] {
        let (is_ok, error) = health(&url, &["--wait", "1"]);
        assert!(!is_ok && error.contains("does not answer"), "{error}");
    }
    let (is_ok, error) = health("ftp://a", &["--wait", "600"]);
    assert!(!is_ok && error.contains("ftp://a is no address of a server"), "{error}");
}

/// The directory is that of the server's settings, wherever they stand.
#[test]
fn without_a_server_its_disk_cache_is_cleared() {
    let dir = tempfile::tempdir().unwrap();
    let proxy = Listening::start();
    let place = dir.path().join("kv").display().to_string();
    let run = |words: &[&str], variable: Option<&str>, config: &str| {
        // A proxy that answers is no server.
        let mut env = vec![("KVIK_PORT", "1".to_owned())];
        env.push(("ALL_PROXY", format!("http://127.0.0.1:{}", proxy.port)));
        env.extend(variable.map(|place| ("KVIK_CACHE_DISK", place.to_owned())));
        let output = run(dir.path(), &["cache", "clear"], words, &env, config);
        [output.stdout, output.stderr].map(|said| String::from_utf8(said).unwrap()).concat()
    };
    let file = |place: &str| format!("cache-disk = {place:?}");
    for said in [
        run(&[], Some(&place), &file("/nowhere")),
        run(&[], None, &file(&place)),
        run(&["--cache-disk", &place], Some("/nowhere"), ""),
    ] {
        assert!(said.contains(&format!("evicted 0 blocks in {place},")), "{said}");
    }
    for said in [run(&[], Some("off"), ""), run(&[], None, &file("off"))] {
        assert!(said.contains("there is no disk cache"), "{said}");
    }
}

#[test]
fn a_value_is_told_where_it_stands() {
    let dir = tempfile::tempdir().unwrap();
    let said = |words: &[&str], env: &[(&str, String)], config: &str| {
        let output = run(dir.path(), &["ps"], words, env, config);
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let variable = [("KVIK_PORT", "x".to_owned())];
    for (text, expect) in [
        (said(&["--port", "x"], &[], ""), "'x' for '--port <PORT>'"),
        (said(&[], &variable, ""), "'x' for 'KVIK_PORT'"),
        (said(&[], &variable, "port = 1"), "'x' for 'KVIK_PORT'"),
        (said(&[], &[], "port = \"x\""), "'x' for 'port in "),
    ] {
        assert!(text.contains(expect), "{text} says {expect}");
    }
}

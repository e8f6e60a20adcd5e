//! Tests against a local hub: a listener with scripted answers.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

use tempfile::TempDir;

use super::*;

/// An answer: status line, headers, body, and the number of bytes of the body that are sent.
struct Answer {
    status: &'static str,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    sent: usize,
}

fn answer(status: &'static str, headers: &[(&str, String)], body: &[u8]) -> Answer {
    let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    Answer { status, headers, body: body.to_vec(), sent: body.len() }
}

/// A request as it arrived: path, and headers in lower case.
#[derive(Debug, Clone)]
struct Seen {
    path: String,
    head: String,
}

impl Seen {
    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

/// A web server on this machine.
struct Web {
    url: String,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Web {
    /// Serves as long as the test runs.
    fn serve(script: impl Fn(&Seen) -> Answer + Send + 'static) -> Web {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = seen.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { break };
                let Some(request) = read_head(&mut stream) else { continue };
                log.lock().unwrap().push(request.clone());
                respond(&mut stream, &script(&request));
            }
        });
        Web { url, seen }
    }

    fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }
}

fn read_head(stream: &mut TcpStream) -> Option<Seen> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let path = head.split(' ').nth(1)?.to_owned();
    // Header names are case-insensitive; values are kept.
    let lower = |line: &str| match line.split_once(": ") {
        Some((name, value)) => format!("{}: {value}", name.to_ascii_lowercase()),
        None => line.to_owned(),
    };
    Some(Seen { path, head: head.lines().map(lower).collect::<Vec<_>>().join("\n") })
}

fn respond(stream: &mut TcpStream, answer: &Answer) {
    let mut head = format!(
        "HTTP/1.1 {}\r\ncontent-length: {}\r\nconnection: close\r\n",
        answer.status,
        answer.body.len()
    );
    for (name, value) in &answer.headers {
        head += &format!("{name}: {value}\r\n");
    }
    let _ = stream.write_all(head.as_bytes());
    let _ = stream.write_all(b"\r\n");
    let _ = stream.write_all(&answer.body[..answer.sent]);
}

const CONTENT: &[u8] = b"GGUF and the weights of a model";
const SHA256: &str = "f8a9dcfcd1d7ce2dcac9c0abb7c3f45f0d5bbac1fb18d1a91bb93a41a2d3e5d5";

fn sha256() -> String {
    use sha2::{Digest, Sha256};
    crate::hex::written(Sha256::digest(CONTENT))
}

fn listing(checksum: &str) -> Answer {
    let json = format!(
        r#"{{"siblings": [{{"rfilename": "README.md", "size": 4}},
            {{"rfilename": "m-Q8_0.gguf", "size": {0}, "lfs": {{"sha256": "{checksum}", "size": {0}}}}}]}}"#,
        CONTENT.len()
    );
    answer("200 OK", &[], json.as_bytes())
}

/// The rest of the content from where the request asks.
fn content(request: &Seen) -> Answer {
    let from = request
        .header("range")
        .and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
    match from {
        None => answer("200 OK", &[], CONTENT),
        Some(from) => {
            let range = format!("bytes {from}-{}/{}", CONTENT.len() - 1, CONTENT.len());
            answer("206 Partial Content", &[("content-range", range)], &CONTENT[from..])
        }
    }
}

fn hub(endpoint: &str) -> (Hub, TempDir) {
    let cache = tempfile::tempdir().unwrap();
    (Hub::new(endpoint, Some("secret-token".into()), cache.path().join("hub")), cache)
}

fn spec() -> HubSpec {
    "owner/repo".parse().unwrap()
}

fn parts(cache: &TempDir) -> usize {
    let directory = cache.path().join("hub/owner/repo");
    fs::read_dir(directory).map_or(0, |entries| {
        entries
            .filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|e| e == "part"))
            .count()
    })
}

#[test]
fn specs() {
    let check = |text: &str, file: Option<&str>| {
        let spec: HubSpec = text.parse().unwrap();
        assert_eq!((spec.to_string(), spec.file.as_deref()), ("owner/re.po-1".into(), file));
    };
    check("owner/re.po-1", None);
    check("owner/re.po-1:m.gguf", Some("m.gguf"));
    check("owner/re.po-1:sub/m.gguf", Some("sub/m.gguf"));
    for bad in [
        "", "owner", "owner/", "/repo", "a/b/c", "../x", "a/..", "a b/c", "o/r:", "o/r:../x", "o/r:/x",
        "o/r:a//b", "o/r:a?b",
    ] {
        assert!(bad.parse::<HubSpec>().is_err(), "{bad}");
    }
}

#[test]
fn a_model_is_downloaded_once_and_then_needs_no_network() {
    let web = Web::serve(|request| match request.path.as_str() {
        "/api/models/owner/repo?blobs=true" => listing(&sha256()),
        "/owner/repo/resolve/main/m-Q8_0.gguf" => content(request),
        _ => answer("404 Not Found", &[], b""),
    });
    let (hub, cache) = hub(&web.url);
    let path = hub.fetch(&spec()).unwrap();
    assert_eq!(fs::read(&path).unwrap(), CONTENT);
    assert!(path.ends_with("hub/owner/repo/m-Q8_0.gguf"));
    let asked = web.seen().len();
    assert_eq!(hub.fetch(&spec()).unwrap(), path);
    assert_eq!(web.seen().len(), asked, "the second start sends no request");
    assert_eq!(parts(&cache), 0);
    assert_eq!(web.seen()[0].header("authorization"), Some("Bearer secret-token"));
}

#[test]
fn a_broken_download_resumes_where_it_stopped() {
    let web = Web::serve(|request| match request.path.as_str() {
        "/api/models/owner/repo?blobs=true" => listing(&sha256()),
        _ => {
            let mut answer = content(request);
            // Every connection breaks after ten bytes.
            answer.sent = answer.sent.min(10);
            answer
        }
    });
    let (hub, _cache) = hub(&web.url);
    let path = hub.fetch(&spec()).unwrap();
    assert_eq!(fs::read(path).unwrap(), CONTENT);
    let seen = web.seen();
    let ranges: Vec<Option<&str>> = seen[1..].iter().map(|request| request.header("range")).collect();
    assert_eq!(ranges, [None, Some("bytes=10-"), Some("bytes=20-"), Some("bytes=30-")]);
}

#[test]
fn a_later_run_resumes_from_the_part() {
    let web = Web::serve(|request| match request.path.as_str() {
        "/api/models/owner/repo?blobs=true" => listing(&sha256()),
        _ => content(request),
    });
    let (hub, cache) = hub(&web.url);
    let directory = cache.path().join("hub/owner/repo");
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join("m-Q8_0.gguf.part"), &CONTENT[..12]).unwrap();
    assert_eq!(fs::read(hub.fetch(&spec()).unwrap()).unwrap(), CONTENT);
    assert_eq!(web.seen()[1].header("range"), Some("bytes=12-"));
}

#[test]
fn a_server_without_ranges_starts_over() {
    let web = Web::serve(|request| match request.path.as_str() {
        "/api/models/owner/repo?blobs=true" => listing(&sha256()),
        _ => answer("200 OK", &[], CONTENT),
    });
    let (hub, cache) = hub(&web.url);
    let directory = cache.path().join("hub/owner/repo");
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join("m-Q8_0.gguf.part"), b"something else").unwrap();
    assert_eq!(fs::read(hub.fetch(&spec()).unwrap()).unwrap(), CONTENT);
}

#[test]
fn a_part_that_is_too_long_starts_over() {
    let web = Web::serve(|request| match (request.path.as_str(), request.header("range")) {
        ("/api/models/owner/repo?blobs=true", _) => listing(&sha256()),
        (_, Some(_)) => answer("416 Range Not Satisfiable", &[], b""),
        _ => answer("200 OK", &[], CONTENT),
    });
    let (hub, cache) = hub(&web.url);
    let directory = cache.path().join("hub/owner/repo");
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join("m-Q8_0.gguf.part"), vec![0; 500]).unwrap();
    assert_eq!(fs::read(hub.fetch(&spec()).unwrap()).unwrap(), CONTENT);
}

#[test]
fn a_wrong_checksum_leaves_nothing_behind() {
    let web = Web::serve(|request| match request.path.as_str() {
        "/api/models/owner/repo?blobs=true" => listing(SHA256),
        _ => content(request),
    });
    let (hub, cache) = hub(&web.url);
    let error = hub.fetch(&spec()).unwrap_err();
    assert!(matches!(&error, HubError::Checksum { expected, .. } if expected == SHA256), "{error}");
    assert_eq!(parts(&cache), 0);
    assert!(!cache.path().join("hub/owner/repo/m-Q8_0.gguf").exists());
}

#[test]
fn a_connection_that_brings_nothing_is_an_error_that_keeps_the_part() {
    let web = Web::serve(|request| match request.path.as_str() {
        "/api/models/owner/repo?blobs=true" => listing(&sha256()),
        _ => {
            let mut answer = content(request);
            answer.sent = if request.header("range").is_some() { 0 } else { 10 };
            answer
        }
    });
    let (hub, cache) = hub(&web.url);
    let error = hub.fetch(&spec()).unwrap_err();
    assert!(matches!(error, HubError::BrokeOff { have: 10, .. }), "{error}");
    assert_eq!(parts(&cache), 1);
}

#[test]
fn errors_name_what_is_missing() {
    let web = Web::serve(|request| match request.path.as_str() {
        "/api/models/owner/gated?blobs=true" => answer("401 Unauthorized", &[], b""),
        "/api/models/owner/repo?blobs=true" => listing(&sha256()),
        _ => answer("404 Not Found", &[], b""),
    });
    let (hub, _cache) = hub(&web.url);
    let check = |spec: &str, words: &[&str]| {
        let error = hub.fetch(&spec.parse().unwrap()).unwrap_err().to_string();
        for word in words {
            assert!(error.contains(word), "{error} says {word}");
        }
    };
    check("owner/none", &["hf:owner/none", "not on the hub", "HF_TOKEN"]);
    check("owner/gated", &["401", "HF_TOKEN"]);
    check("owner/repo:other.gguf", &["`other.gguf`", "m-Q8_0.gguf"]);
    check("owner/repo", &["m-Q8_0.gguf", "not on the hub"]);
}

#[test]
fn a_redirect_to_another_host_does_not_get_the_token() {
    let store = Web::serve(content);
    let elsewhere = format!("{}/blob", store.url);
    let web = Web::serve(move |request| match request.path.as_str() {
        // The listing has no checksum: it comes with the redirect.
        "/api/models/owner/repo?blobs=true" => {
            answer("200 OK", &[], br#"{"siblings": [{"rfilename": "m.gguf"}]}"#)
        }
        "/owner/repo/resolve/main/m.gguf" => {
            answer("307 Temporary Redirect", &[("location", "/moved".into())], b"")
        }
        _ => answer(
            "302 Found",
            &[("location", elsewhere.clone()), ("x-linked-etag", format!("\"{}\"", sha256()))],
            b"",
        ),
    });
    let (hub, _cache) = hub(&web.url);
    assert_eq!(fs::read(hub.fetch(&spec()).unwrap()).unwrap(), CONTENT);
    assert!(
        web.seen().iter().all(|request| request.header("authorization").is_some()),
        "the hub gets the token"
    );
    assert!(
        store.seen().iter().all(|request| request.header("authorization").is_none()),
        "the storage host does not"
    );
    assert_eq!(store.seen().len(), 1);
}

#[test]
fn redirects_end_and_never_leave_http() {
    let check = |location: &'static str| {
        let web = Web::serve(move |_| answer("302 Found", &[("location", location.into())], b""));
        let error = hub(&web.url).0.fetch(&spec()).unwrap_err();
        assert!(matches!(error, HubError::BadRedirect { .. }), "{error}");
    };
    check("/again");
    check("file:///etc/passwd");
    check("//elsewhere/x");
    check("");
}

#[test]
fn unsafe_paths_in_a_listing_are_rejected() {
    for name in ["../../evil.gguf", "/etc/evil.gguf", "a/../../b.gguf", "a\\\\b.gguf", ".hidden.gguf"] {
        let json = format!(r#"{{"siblings": [{{"rfilename": "{name}"}}]}}"#);
        let web = Web::serve(move |_| answer("200 OK", &[], json.as_bytes()));
        let error = hub(&web.url).0.fetch(&spec()).unwrap_err();
        assert!(matches!(error, HubError::NothingToRun { .. }), "{name}: {error}");
    }
}

#[test]
fn a_file_of_another_length_than_announced_is_rejected() {
    let web = Web::serve(|request| match request.path.as_str() {
        "/api/models/owner/repo?blobs=true" => listing(&sha256()),
        _ => answer("200 OK", &[], &[b'x'; 4096]),
    });
    let error = hub(&web.url).0.fetch(&spec()).unwrap_err();
    assert!(matches!(error, HubError::BrokeOff { have: 0, .. }), "{error}");
}

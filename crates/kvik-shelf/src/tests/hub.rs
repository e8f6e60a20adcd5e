//! Responses of the hub: tokens, redirects, statuses, hostile listings.

use std::{collections::HashMap, sync::Mutex};

use kvik_testing::{WebAnswer, WebRequest};

use super::*;

const LISTING: &str = "/api/models/o/r?blobs=true";

/// A shelf whose hub serves one file, unless `script` provides another response.
fn scripted(
    content: &Arc<[u8]>,
    script: impl Fn(&WebRequest) -> Option<WebAnswer> + Send + Sync + 'static,
) -> (Web, Shelf, TempDir) {
    let repository = one_file(content);
    let web = Web::serve(move |request| script(request).unwrap_or_else(|| repository.answer(request)));
    let (shelf, dir) = shelf_of(&web.url);
    (web, shelf, dir)
}

#[test]
fn a_model_is_fetched_once_and_then_needs_no_network() {
    let content = content(1, 50_000);
    let (web, shelf, _dir) = scripted(&content, |_| None);
    let manifest = pull(&shelf, "hf:o/r").unwrap();
    assert_eq!(bytes_of(&shelf, &manifest), content[..]);
    assert_eq!(manifest.revision.as_deref(), Some(COMMIT));
    assert_eq!(manifest.files[0].sha256, sha256(&content));
    assert_eq!(web.seen()[0].header("authorization"), Some("Bearer secret-token"));
    let asked = web.seen().len();
    let ModelSource::Hub(spec) = &manifest.source else { panic!("it is of the hub") };
    assert_eq!(shelf.find_source(spec).unwrap().as_ref(), Some(&manifest));
    assert_eq!(shelf.find("o/r").unwrap(), manifest);
    assert_eq!(web.seen().len(), asked, "names need no network");
    pull(&shelf, "hf:o/r").unwrap();
    assert_eq!(web.seen().len(), asked + 1, "a second pull asks what is newest");
}

#[test]
fn large_files_come_in_pieces_over_several_connections() {
    let content = content(2, 150_000);
    let (web, shelf, _dir) = scripted(&content, |_| None);
    let manifest = pull(&shelf, "hf:o/r:Q8_0@main").unwrap();
    assert_eq!(bytes_of(&shelf, &manifest), content[..]);
    let seen = web.seen();
    assert_eq!(seen[0].path, "/api/models/o/r/revision/main?blobs=true");
    let pieces: Vec<_> = seen[1..].iter().map(|request| request.range(content.len()).unwrap()).collect();
    assert_eq!(pieces.len(), 16);
    assert_eq!(pieces.iter().map(|(from, to)| to - from).sum::<usize>(), content.len(), "each byte once");
}

#[test]
fn a_redirect_to_another_host_does_not_get_the_token() {
    let content = content(3, 100_000);
    let bytes = content.clone();
    let store = Web::serve(move |request| WebAnswer::of(request, &bytes));
    // Another host name of the same machine.
    let elsewhere = format!("{}/blob", store.url.replace("127.0.0.1", "localhost"));
    let checksum = format!("\"{}\"", sha256(&content).unwrap());
    let (web, shelf, _dir) = scripted(&content, move |request| match request.path.as_str() {
        // The listing has no checksum: it comes with the redirect.
        LISTING => Some(WebAnswer::new("200 OK", br#"{"siblings": [{"rfilename": "m.gguf"}]}"#)),
        "/o/r/resolve/main/m.gguf" => {
            Some(WebAnswer::new("307 Temporary Redirect", b"").with("location", "/moved"))
        }
        _ => Some(
            WebAnswer::new("302 Found", b"")
                .with("location", elsewhere.clone())
                .with("x-linked-etag", checksum.clone()),
        ),
    });
    let manifest = pull(&shelf, "hf:o/r").unwrap();
    assert_eq!(bytes_of(&shelf, &manifest), content[..]);
    assert_eq!(manifest.files[0].sha256, sha256(&content));
    assert!(web.seen().iter().all(|request| request.header("authorization").is_some()));
    assert_eq!(store.seen().len(), 1);
    assert!(store.seen().iter().all(|request| request.header("authorization").is_none()));
}

#[test]
fn a_token_that_has_expired_does_not_keep_what_everyone_may_read() {
    let content = content(7, 30_000);
    let (web, shelf, _dir) = scripted(&content, |request| {
        let stale = request.header("authorization").is_some() || request.path.contains("private");
        stale.then(|| WebAnswer::new("401 Unauthorized", b"{\"error\":\"Invalid credentials\"}"))
    });
    let manifest = pull(&shelf, "hf:o/r").unwrap();
    assert_eq!(bytes_of(&shelf, &manifest), content[..]);
    let with_token = |web: &Web| web.seen().iter().filter(|it| it.header("authorization").is_some()).count();
    assert_eq!(with_token(&web), 1, "and is not sent again");
    says(&pull(&shelf, "hf:o/private").unwrap_err(), &["401", "HF_TOKEN"]);
}

#[test]
fn redirects_end_and_lead_to_http_alone() {
    for location in ["/again", "file:///etc/passwd", "//elsewhere/x", ""] {
        let (_web, shelf, _dir) = scripted(&content(4, 10), move |_| {
            Some(WebAnswer::new("302 Found", b"").with("location", location))
        });
        let error = pull(&shelf, "hf:o/r").unwrap_err();
        assert!(matches!(error, ShelfError::BadRedirect { .. }), "{error}");
    }
}

#[test]
fn errors_name_what_is_missing_and_the_remedy() {
    let (web, shelf, dir) = scripted(&content(5, 10), |request| match request.path.as_str() {
        "/api/models/o/gated?blobs=true" => Some(WebAnswer::new("403 Forbidden", b"")),
        "/api/models/o/private?blobs=true" => Some(WebAnswer::new("401 Unauthorized", b"")),
        "/api/models/o/none?blobs=true" => {
            Some(WebAnswer::new("401 Unauthorized", b"").with("x-error-code", "RepoNotFound"))
        }
        path if path.contains("/resolve/") => Some(WebAnswer::new("404 Not Found", b"")),
        _ => None,
    });
    let check = |source: &str, words: &[&str]| says(&pull(&shelf, source).unwrap_err(), words);
    check("hf:o/gated", &["403", "HF_TOKEN", "licence", &format!("{}/o/gated", web.url)]);
    check("hf:o/private", &["401", "HF_TOKEN", "licence"]);
    check("hf:o/none", &["hf:o/none", "not on the hub", "HF_TOKEN"]);
    check("hf:o/r@v9", &["hf:o/r at revision v9", "not on the hub"]);
    check("hf:o/r:other.gguf", &["hf:o/r", "`other.gguf`", "m-Q8_0.gguf"]);
    check("hf:o/r:Q2_K", &["`Q2_K`", "m-Q8_0.gguf"]);
    check("hf:o/r", &["hf:o/r/m-Q8_0.gguf", "not on the hub", "lists m-Q8_0.gguf"]);
    assert_eq!(shelf.list().unwrap().manifests, []);
    assert_eq!(files_in(&dir.path().join("models/names")), [""; 0].map(PathBuf::from));
}

#[test]
fn a_hub_that_is_not_there_is_named() {
    let (shelf, _dir) = shelf_of("http://127.0.0.1:1");
    says(&pull(&shelf, "hf:o/r").unwrap_err(), &["127.0.0.1:1", "cannot be reached", "proxy"]);
}

#[test]
fn busy_hubs_are_asked_again() {
    let content = content(6, 30_000);
    let tries: Mutex<HashMap<String, u32>> = Mutex::default();
    let (web, shelf, _dir) = scripted(&content, move |request| {
        let asked = format!("{} {:?}", request.path, request.header("range"));
        let mut tries = tries.lock().unwrap();
        let tries = tries.entry(asked).or_default();
        *tries += 1;
        match tries {
            1 => Some(WebAnswer::new("429 Too Many Requests", b"").with("retry-after", "0")),
            2 => Some(WebAnswer::new("503 Service Unavailable", b"")),
            _ => None,
        }
    });
    let manifest = pull(&shelf, "hf:o/r").unwrap();
    assert_eq!(bytes_of(&shelf, &manifest), content[..]);
    assert_eq!(web.seen().len(), 3 * 9, "listing and pieces, each at the third try");
}

#[test]
fn a_hub_that_asks_for_hours_is_not_waited_for() {
    let (web, shelf, _dir) = scripted(&content(7, 10), |_| {
        Some(WebAnswer::new("429 Too Many Requests", b"").with("retry-after", "7200"))
    });
    says(&pull(&shelf, "hf:o/r").unwrap_err(), &["429", "7200 s"]);
    assert_eq!(web.seen().len(), 1);
}

#[test]
fn unsafe_paths_in_a_listing_are_no_files() {
    for name in [
        "../../evil.gguf",
        "/etc/evil.gguf",
        "a/../../b.gguf",
        "-rf.gguf",
        "a/-rf.gguf",
        "a\\\\b.gguf",
        ".hidden.gguf",
        "a\\u001bb.gguf",
    ] {
        let json = format!(r#"{{"sha": "../../x", "siblings": [{{"rfilename": "{name}"}}]}}"#);
        let (_web, shelf, _dir) =
            scripted(&content(8, 10), move |_| Some(WebAnswer::new("200 OK", json.as_bytes())));
        let error = pull(&shelf, "hf:o/r").unwrap_err();
        assert!(matches!(error, ShelfError::NothingToRun { .. }), "{name}: {error}");
    }
}

#[test]
fn listings_that_are_none_are_errors() {
    for body in ["", "[]", "<html>", "{\"siblings\": 7}"] {
        let (_web, shelf, _dir) =
            scripted(&content(9, 10), move |_| Some(WebAnswer::new("200 OK", body.as_bytes())));
        let error = pull(&shelf, "hf:o/r").unwrap_err();
        assert!(matches!(error, ShelfError::BadListing { .. }), "{body}: {error}");
    }
}

#[test]
fn a_search_shows_repositories_that_a_pull_would_take() {
    let answer = r#"[
        {"id": "Qwen/Qwen3-0.6B-GGUF", "downloads": 90000, "gated": false, "likes": 3},
        {"id": "o/gated", "gated": "manual"},
        {"id": "../x"}, {"id": "o/r@main"}, {"id": "o/r\u001b[2J"}, {"id": "alone"}
    ]"#;
    let web = Web::serve(move |_| WebAnswer::new("200 OK", answer.as_bytes()));
    let found = hub_at(&web.url).search("qwen 3&x=", 20, &Quiet).unwrap();
    let found: Vec<_> =
        found.iter().map(|one| (one.source.to_string(), one.downloads, one.is_gated)).collect();
    assert_eq!(found, [("Qwen/Qwen3-0.6B-GGUF".to_owned(), 90_000, false), ("o/gated".to_owned(), 0, true)]);
    let asked = &web.seen()[0].path;
    assert!(asked.starts_with("/api/models?search=qwen%203%26x%3D&filter=gguf&"), "{asked}");
    assert_eq!(hub_at(&web.url).search("qwen", 1, &Quiet).unwrap().len(), 1, "no more than were asked for");
}

#[test]
fn searches_that_have_no_answer_are_errors() {
    for body in ["", "{}", "<html>", "[{}]"] {
        let web = Web::serve(move |_| WebAnswer::new("200 OK", body.as_bytes()));
        let error = hub_at(&web.url).search("qwen", 20, &Quiet).unwrap_err();
        assert!(matches!(error, ShelfError::BadListing { .. }), "{body}: {error}");
    }
    says(&hub_at("http://127.0.0.1:1").search("qwen", 20, &Quiet).unwrap_err(), &["cannot be reached"]);
    let web = Web::serve(|_| WebAnswer::new("404 Not Found", b""));
    says(&hub_at(&web.url).search("qwen", 20, &Quiet).unwrap_err(), &["the search", "hf:owner/repo"]);
}

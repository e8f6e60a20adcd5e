//! Downloads that end early, in every way, and the state they leave.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};

use kvik_testing::{WebAnswer, WebRequest};

use super::*;

/// Cancels when this many bytes of a file are present.
struct Until(u64, AtomicU64);

impl Until {
    fn bytes(bytes: u64) -> Until {
        Until(bytes, AtomicU64::new(0))
    }
}

impl Progress for Until {
    fn bytes(&self, _: usize, done: u64, _: Option<u64>) {
        self.1.fetch_max(done, SeqCst);
    }

    fn cancelled(&self) -> bool {
        self.1.load(SeqCst) >= self.0
    }
}

/// Number of bytes of a file that requests ask for.
fn asked_for(requests: &[WebRequest], len: usize) -> usize {
    requests.iter().filter_map(|request| request.range(len)).map(|(from, to)| to - from).sum()
}

#[test]
fn a_download_cut_at_fifty_places_has_the_right_bytes_each_time() {
    let content = content(20, 400_000);
    for case in 0..50 {
        let repository = one_file(&content);
        let sent = AtomicUsize::new(0);
        let web = Web::serve(move |request| {
            let mut answer = repository.answer(request);
            // Every other connection breaks somewhere, possibly before its first byte.
            let number = sent.fetch_add(1, SeqCst) as u64;
            if number % 2 == 1 {
                answer.sent = mix(case << 32 | number) as usize % answer.sent.max(1);
            }
            answer
        });
        let (shelf, _dir) = shelf_of(&web.url);
        let place = 1 + mix(case) % (content.len() as u64 - 1);
        let error = pull_with(&shelf, "hf:o/r", &Until::bytes(place)).unwrap_err();
        assert!(matches!(error, ShelfError::Cancelled), "{case}: {error}");
        assert!(shelf.find("o/r").is_err(), "nothing half is found by name");
        let manifest = pull(&shelf, "hf:o/r").unwrap();
        assert!(bytes_of(&shelf, &manifest) == content[..], "cut at {place}");
        assert_eq!(parts(&shelf), [""; 0].map(PathBuf::from));
    }
}

/// Part files and their states.
fn parts(shelf: &Shelf) -> Vec<PathBuf> {
    files_in(shelf.dir()).into_iter().filter(|path| path.to_str().unwrap().contains(".part")).collect()
}

#[test]
fn what_is_there_is_not_fetched_again() {
    let content = content(21, 400_000);
    let web = serve(one_file(&content));
    let (shelf, _dir) = shelf_of(&web.url);
    pull_with(&shelf, "hf:o/r", &Until::bytes(200_000)).unwrap_err();
    assert_eq!(parts(&shelf).len(), 2, "the part and its state");
    let asked = web.seen().len();
    let first = AtomicU64::new(0);
    struct First<'a>(&'a AtomicU64);
    impl Progress for First<'_> {
        fn bytes(&self, _: usize, done: u64, _: Option<u64>) {
            let _ = self.0.compare_exchange(0, done, SeqCst, SeqCst);
        }
    }
    pull_with(&shelf, "hf:o/r", &First(&first)).unwrap();
    let first = first.into_inner();
    assert!(first >= 200_000, "it goes on at {first}");
    let again = asked_for(&web.seen()[asked..], content.len());
    assert_eq!(again as u64 + first, content.len() as u64);
}

#[test]
fn a_server_without_ranges_sends_the_file_at_once() {
    let content = content(22, 100_000);
    let repository = one_file(&content);
    let bytes = content.clone();
    let web = Web::serve(move |request| match request.path.contains("/resolve/") {
        true => WebAnswer::new("200 OK", &bytes),
        false => repository.answer(request),
    });
    let (shelf, _dir) = shelf_of(&web.url);
    let manifest = pull(&shelf, "hf:o/r").unwrap();
    assert_eq!(bytes_of(&shelf, &manifest), content[..]);
}

#[test]
fn ranges_that_are_refused_or_of_another_file_are_not_used() {
    let content = content(23, 100_000);
    for status in ["416 Range Not Satisfiable", "206 Partial Content"] {
        let (repository, bytes) = (one_file(&content), content.clone());
        let web =
            Web::serve(move |request| match (request.path.contains("/resolve/"), request.header("range")) {
                (true, Some(_)) => WebAnswer::new(status, b"zzz").with("content-range", "bytes 0-2/77"),
                (true, None) => WebAnswer::new("200 OK", &bytes),
                _ => repository.answer(request),
            });
        let (shelf, _dir) = shelf_of(&web.url);
        let manifest = pull(&shelf, "hf:o/r").unwrap();
        assert_eq!(bytes_of(&shelf, &manifest), content[..]);
    }
}

/// As a proxy answers that wants its users to log in.
#[test]
fn a_page_in_place_of_a_range_costs_nothing_that_is_there() {
    let content = content(30, 400_000);
    for has_length in [true, false] {
        let (repository, pages) = (one_file(&content), Arc::new(AtomicBool::new(false)));
        let sends_pages = pages.clone();
        let web = Web::serve(move |request| {
            let page = WebAnswer::new("200 OK", b"<html>log in</html>");
            match request.header("range").is_some() && sends_pages.load(SeqCst) {
                true if has_length => page,
                true => page.without_length(),
                false => repository.answer(request),
            }
        });
        let (shelf, _dir) = shelf_of(&web.url);
        pull_with(&shelf, "hf:o/r", &Until::bytes(200_000)).unwrap_err();
        pages.store(true, SeqCst);
        let error = pull(&shelf, "hf:o/r").unwrap_err();
        let ShelfError::BrokeOff { have, .. } = error else { panic!("{error}") };
        assert!(have >= 200_000, "{have}");
        pages.store(false, SeqCst);
        let asked = web.seen().len();
        let manifest = pull(&shelf, "hf:o/r").unwrap();
        assert_eq!(bytes_of(&shelf, &manifest), content[..]);
        assert!(asked_for(&web.seen()[asked..], content.len()) <= 200_000);
    }
}

#[test]
fn a_wrong_checksum_leaves_nothing_behind() {
    let content = content(24, 100_000);
    let mut repository = one_file(&content);
    let wrong = "f".repeat(64);
    repository.files[0].2 = Some(wrong.clone());
    let web = serve(repository);
    let (shelf, dir) = shelf_of(&web.url);
    says(&pull(&shelf, "hf:o/r").unwrap_err(), &["checksum", &wrong, "m-Q8_0.gguf", "deleted"]);
    assert_eq!(files_in(dir.path()), [""; 0].map(PathBuf::from));
}

#[test]
fn connections_that_bring_nothing_end_in_an_error_that_keeps_the_part() {
    let content = content(25, 3_000);
    let (repository, count) = (one_file(&content), AtomicUsize::new(0));
    let web = Web::serve(move |request| {
        let mut answer = repository.answer(request);
        if request.path.contains("/resolve/") {
            answer.sent = if count.fetch_add(1, SeqCst) == 0 { 1_000 } else { 0 };
        }
        answer
    });
    let (shelf, _dir) = shelf_of(&web.url);
    let error = pull(&shelf, "hf:o/r").unwrap_err();
    assert!(matches!(error, ShelfError::BrokeOff { have: 1_000, size: 3_000, .. }), "{error}");
    assert_eq!(parts(&shelf).len(), 2);
}

#[test]
fn a_file_of_another_length_than_announced_is_refused() {
    let content = content(26, 3_000);
    let repository = one_file(&content);
    let web = Web::serve(move |request| match request.path.contains("/resolve/") {
        true => WebAnswer::new("200 OK", &[b'x'; 4096]),
        false => repository.answer(request),
    });
    let (shelf, _dir) = shelf_of(&web.url);
    let error = pull(&shelf, "hf:o/r").unwrap_err();
    assert!(matches!(error, ShelfError::BrokeOff { have: 0, size: 3_000, .. }), "{error}");
}

#[test]
fn a_disk_without_room_is_said_before_the_first_byte() {
    let content = content(27, 100_000);
    let web = serve(one_file(&content));
    let (mut shelf, dir) = shelf_of(&web.url);
    let mut hub = hub_at(&web.url);
    hub.tuning.free_bytes = Some(99_999);
    shelf = shelf.with_hub(hub.clone());
    let error = pull(&shelf, "hf:o/r").unwrap_err();
    assert!(matches!(error, ShelfError::NoRoom { needed: 100_000, free: Some(99_999), .. }), "{error}");
    says(&error, &["m-Q8_0.gguf", "100000 bytes", "99999 are free"]);
    assert_eq!(web.seen().len(), 1, "the listing alone");
    assert_eq!(files_in(&dir.path().join("models/names")), [""; 0].map(PathBuf::from));
    hub.tuning.free_bytes = Some(100_000);
    pull(&shelf.with_hub(hub), "hf:o/r").unwrap();
}

#[test]
fn a_file_of_a_size_that_nobody_says_leaves_room_on_the_disk() {
    let content = content(29, 100_000);
    let listing = format!(r#"{{"sha": "{COMMIT}", "siblings": [{{"rfilename": "m-Q8_0.gguf"}}]}}"#);
    let web = Web::serve(move |request| match request.path.contains("/resolve/") {
        true => WebAnswer::new("200 OK", &content).without_length(),
        false => WebAnswer::new("200 OK", listing.as_bytes()),
    });
    let (shelf, _dir) = shelf_of(&web.url);
    let mut hub = hub_at(&web.url);
    hub.tuning.free_bytes = Some(199_999);
    let error = pull(&shelf.clone().with_hub(hub.clone()), "hf:o/r").unwrap_err();
    assert!(matches!(error, ShelfError::TooLong { bytes_max: 99_999, .. }), "{error}");
    let parts = parts(&shelf).into_iter().map(|part| fs::metadata(shelf.dir().join(part)).unwrap().len());
    assert_eq!(parts.sum::<u64>(), 0, "the disk has its room back");
    hub.tuning.free_bytes = Some(200_000);
    pull(&shelf.with_hub(hub), "hf:o/r").unwrap();
}

#[test]
fn files_without_a_checksum_are_fetched_from_their_first_byte_unless_a_commit_says_what_they_are() {
    let content = content(28, 400_000);
    for commit in [COMMIT, ""] {
        let mut repository = one_file(&content);
        repository.files[0].2 = None;
        repository.commit = commit;
        let web = serve(repository);
        let (shelf, _dir) = shelf_of(&web.url);
        pull_with(&shelf, "hf:o/r", &Until::bytes(300_000)).unwrap_err();
        let asked = web.seen().len();
        let manifest = pull(&shelf, "hf:o/r").unwrap();
        assert_eq!(bytes_of(&shelf, &manifest), content[..]);
        let again = asked_for(&web.seen()[asked..], content.len());
        match commit {
            "" => assert_eq!(again, content.len()),
            _ => assert!(again <= 100_000, "{again}"),
        }
    }
}

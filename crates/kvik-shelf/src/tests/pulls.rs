//! Concurrent pulls, pulls of several files, and resumed pulls.

use std::{
    sync::Mutex,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use kvik_testing::WebRequest;

use super::*;

/// Number of bytes of files that were requested.
fn asked(web: &Web) -> usize {
    let of_file = |request: &WebRequest| request.path.contains("/resolve/");
    web.seen()
        .iter()
        .filter(|request| of_file(request))
        .map(|request| request.range(usize::MAX).map_or(0, |(from, to)| to - from))
        .sum()
}

#[derive(Default)]
struct Notes(Mutex<Vec<String>>);

impl Progress for Notes {
    fn begin(&self, files: &[(String, Option<u64>)]) {
        self.0.lock().unwrap().push(format!("begin {files:?}"));
    }

    fn waiting(&self, file: usize, holder: &str) {
        self.0.lock().unwrap().push(format!("waiting {file} {holder}"));
    }

    fn note(&self, text: &str) {
        self.0.lock().unwrap().push(text.to_owned());
    }
}

#[test]
fn two_pulls_at_once_fetch_each_byte_once() {
    let content = content(40, 200_000);
    let repository = one_file(&content);
    let web = Web::serve(move |request| {
        let mut answer = repository.answer(request);
        answer.pause = Duration::from_millis(if request.path.contains("/resolve/") { 30 } else { 0 });
        answer
    });
    let (shelf, _dir) = shelf_of(&web.url);
    let notes = Notes::default();
    thread::scope(|scope| {
        let pulls: Vec<_> = (0..3).map(|_| scope.spawn(|| pull_with(&shelf, "hf:o/r", &notes))).collect();
        for pull in pulls {
            assert_eq!(bytes_of(&shelf, &pull.join().unwrap().unwrap()), content[..]);
        }
    });
    assert_eq!(asked(&web), content.len());
    let notes = notes.0.into_inner().unwrap();
    let process = format!("process {}", std::process::id());
    assert!(notes.iter().any(|note| note.starts_with("waiting 0") && note.contains(&process)), "{notes:?}");
}

#[test]
fn all_parts_of_a_split_model_become_one_name() {
    let parts = ["m-Q8_0-00001-of-00003.gguf", "m-Q8_0-00002-of-00003.gguf", "m-Q8_0-00003-of-00003.gguf"];
    let files = (0u64..).zip(parts).map(|(seed, part)| {
        let content = content(41 + seed, 20_000);
        (part, content.clone(), sha256(&content))
    });
    let web = serve(WebRepository { name: "o/r", commit: COMMIT, files: files.collect() });
    let (shelf, _dir) = shelf_of(&web.url);
    let manifest = pull(&shelf, "hf:o/r:Q8_0").unwrap();
    assert_eq!((manifest.files.len(), manifest.bytes()), (3, 60_000));
    assert!(shelf.path(&manifest).unwrap().ends_with(parts[0]));
}

#[test]
fn a_directory_is_a_model_and_an_adapter_is_none() {
    let weights = content(45, 30_000);
    let small: Arc<[u8]> = b"{}".as_slice().into();
    let repository = |config| WebRepository {
        name: "o/r",
        commit: COMMIT,
        files: vec![
            ("model.safetensors", weights.clone(), sha256(&weights)),
            (config, small.clone(), None),
            ("1_Pooling/config.json", small.clone(), None),
            ("README.md", small.clone(), None),
        ],
    };
    for (config, kind) in [("config.json", "model"), ("adapter_config.json", "adapter")] {
        let web = serve(repository(config));
        let (shelf, _dir) = shelf_of(&web.url);
        let manifest = pull(&shelf, "hf:o/r").unwrap();
        let path = shelf.path(&manifest).unwrap();
        assert!(path.is_dir() && path.join(config).is_file() && !path.join("README.md").exists());
        assert!(path.join("1_Pooling/config.json").is_file());
        assert_eq!(manifest.kind.name(), kind);
    }
}

#[test]
fn a_newer_commit_replaces_the_files_and_keeps_those_that_stayed() {
    let (old, new, same) = (content(46, 30_000), content(47, 30_000), content(48, 40_000));
    let files = |one: &Arc<[u8]>| {
        vec![
            ("m-00001-of-00002.gguf", one.clone(), sha256(one)),
            ("m-00002-of-00002.gguf", same.clone(), sha256(&same)),
        ]
    };
    let first = serve(WebRepository { name: "o/r", commit: "aaaa", files: files(&old) });
    let (shelf, dir) = shelf_of(&first.url);
    let before = pull(&shelf, "hf:o/r").unwrap();
    let second = serve(WebRepository { name: "o/r", commit: "bbbb", files: files(&new) });
    let shelf = shelf.with_hub(hub_at(&second.url));
    let copied = shelf.copy("o/r", &"kept".parse().unwrap()).unwrap();
    let after = pull(&shelf, "hf:o/r").unwrap();
    assert_eq!(bytes_of(&shelf, &after), new[..]);
    assert_eq!(asked(&second), new.len(), "the part that stayed is linked");
    assert_eq!(bytes_of(&shelf, &copied), old[..], "another name keeps what it stands for");
    assert_eq!(before.revision.as_deref(), Some("aaaa"));
    shelf.remove("kept").unwrap();
    let files = files_in(&dir.path().join("models/hub"));
    assert!(files.len() == 2 && files.iter().all(|file| file.starts_with("o/r/bbbb")), "{files:?}");
    assert_eq!(bytes_of(&shelf, &after), new[..]);
}

/// The second pull took what fitted the memory that was free then, and removed the better file that was there.
#[test]
fn a_model_that_is_pulled_again_keeps_its_file() {
    let (large, small) = (content(57, 30_000), content(58, 10_000));
    let files = vec![
        ("a/m-Q8_0.gguf", large.clone(), sha256(&large)),
        ("m-Q2_K.gguf", small.clone(), sha256(&small)),
    ];
    let web = serve(WebRepository { name: "o/r", commit: COMMIT, files: files.clone() });
    let (shelf, _dir) = shelf_of(&web.url);
    let pulled = |shelf: &Shelf, memory_bytes| {
        pull(&shelf.clone().with_memory(Some(memory_bytes)), "hf:o/r").unwrap().model
    };
    let first = pulled(&shelf, 60_000);
    assert!(first.ends_with("a/m-Q8_0.gguf"), "{first:?}");
    assert_eq!((pulled(&shelf, 20_000), asked(&web)), (first, large.len()));
    let without = serve(WebRepository { name: "o/r", commit: "bbbb", files: files[1..].to_vec() });
    let shelf = shelf.with_hub(hub_at(&without.url));
    assert!(pulled(&shelf, 20_000).ends_with("m-Q2_K.gguf"), "the repository has no other any more");
}

#[test]
fn several_models_are_told_before_one_is_taken() {
    let (one, two) = (content(49, 1_000), content(50, 1_000));
    let files = vec![("m-Q8_0.gguf", one.clone(), sha256(&one)), ("m-Q2_K.gguf", two.clone(), sha256(&two))];
    let web = serve(WebRepository { name: "o/r", commit: COMMIT, files });
    let (shelf, _dir) = shelf_of(&web.url);
    let notes = Notes::default();
    pull_with(&shelf, "hf:o/r", &notes).unwrap();
    let notes = notes.0.into_inner().unwrap();
    assert!(notes[0].contains("taking m-Q8_0.gguf") && notes[0].contains("m-Q2_K.gguf"), "{notes:?}");
    assert_eq!(notes[1], "begin [(\"m-Q8_0.gguf\", Some(1000))]");
}

#[test]
fn downloads_of_earlier_versions_stay_usable() {
    let (model, half) = (content(51, 30_000), content(52, 30_000));
    let dir = tempfile::tempdir().unwrap();
    let earlier = dir.path().join("hub");
    let repository = earlier.join("o/r");
    fs::create_dir_all(&repository).unwrap();
    fs::write(repository.join("m-Q8_0.gguf"), &model).unwrap();
    fs::write(repository.join("other.gguf.part"), &half[..100]).unwrap();
    fs::write(repository.join(".chosen"), "m-Q8_0.gguf").unwrap();
    let shelf = Shelf::open(&dir.path().join("models")).with_hub(hub_at("http://127.0.0.1:1"));
    shelf.take_over(&earlier).unwrap();
    // A process that was killed between moving the files and naming them is followed by one that names them.
    fs::remove_file(dir.path().join("models/names/o%2Fr.json")).unwrap();
    fs::write(dir.path().join("models/names/.taking-over"), "").unwrap();
    shelf.take_over(&earlier).unwrap();
    assert!(!dir.path().join("models/names/.taking-over").exists());
    for name in ["o/r", "o/r:m-Q8_0.gguf"] {
        let manifest = shelf.find(name).unwrap();
        assert_eq!(bytes_of(&shelf, &manifest), model[..]);
        let ModelSource::Hub(spec) = &manifest.source else { panic!("it is of the hub") };
        assert_eq!(shelf.find_source(spec).unwrap().as_ref(), Some(&manifest), "without network");
    }
    // A pull links an identical file instead of fetching it.
    let web = serve(one_file(&model));
    let shelf = shelf.with_hub(hub_at(&web.url));
    let manifest = pull(&shelf, "hf:o/r").unwrap();
    assert_eq!((bytes_of(&shelf, &manifest), asked(&web)), (model.to_vec(), 0));
}

#[test]
fn leftovers_are_removed_unless_they_may_be_in_use() {
    let content = content(53, 30_000);
    let web = serve(one_file(&content));
    let (shelf, dir) = shelf_of(&web.url);
    let manifest = pull(&shelf, "hf:o/r").unwrap();
    let commit = dir.path().join("models/hub/o/other/aaaa");
    fs::create_dir_all(&commit).unwrap();
    for name in ["whole.gguf", "half.gguf.part", "half.gguf.part.json"] {
        fs::write(commit.join(name), "1234").unwrap();
    }
    let lock = fs::File::open(dir.path().join("models/hub/.lock")).unwrap();
    lock.lock_shared().unwrap();
    says(&shelf.remove_leftovers().unwrap_err(), &["download", "running"]);
    drop(lock);
    let removed = shelf.remove_leftovers().unwrap();
    assert_eq!((removed.files.len(), removed.bytes), (3, 12));
    assert!(!commit.exists() && !dir.path().join("models/hub/o/other").exists());
    assert_eq!(bytes_of(&shelf, &manifest), content[..]);
    assert_eq!(shelf.remove_leftovers().unwrap(), crate::Removed::default());
}

/// Clears the shelf during a pull.
struct Clearing<'a>(&'a Shelf, Mutex<Vec<String>>);

impl Progress for Clearing<'_> {
    fn bytes(&self, _: usize, _: u64, _: Option<u64>) {
        let cleared = self.0.remove_leftovers().map_err(|error| error.to_string());
        self.1.lock().unwrap().push(cleared.expect_err("a pull is running"));
    }
}

#[test]
fn nobody_clears_away_what_a_pull_is_going_to_name() {
    let content = content(54, 30_000);
    let web = serve(one_file(&content));
    let (shelf, _dir) = shelf_of(&web.url);
    let clearing = Clearing(&shelf, Mutex::default());
    let manifest = pull_with(&shelf, "hf:o/r", &clearing).unwrap();
    assert_eq!(bytes_of(&shelf, &manifest), content[..]);
    let refused = clearing.1.into_inner().unwrap();
    assert!(!refused.is_empty() && refused.iter().all(|error| error.contains("running")), "{refused:?}");
}

/// Removes a name when the first file is found to be present.
struct Removing<'a>(&'a Shelf, std::sync::Once);

impl Progress for Removing<'_> {
    fn bytes(&self, _: usize, _: u64, _: Option<u64>) {
        self.1.call_once(|| assert_eq!(self.0.remove("first").unwrap().files.len(), 2));
    }
}

#[test]
fn files_that_are_removed_under_a_pull_are_fetched_again() {
    let parts = [(55, "m-00001-of-00002.gguf"), (56, "m-00002-of-00002.gguf")];
    let files = parts.map(|(seed, part)| {
        let content = content(seed, 10_000);
        (part, content.clone(), sha256(&content))
    });
    let first = files[0].1.clone();
    let web = serve(WebRepository { name: "o/r", commit: COMMIT, files: files.to_vec() });
    let (shelf, _dir) = shelf_of(&web.url);
    let source: ModelSource = "hf:o/r".parse().unwrap();
    shelf.pull(&source, &"first".parse().unwrap(), &Quiet).unwrap();
    let manifest = pull_with(&shelf, "hf:o/r", &Removing(&shelf, std::sync::Once::new())).unwrap();
    assert_eq!(bytes_of(&shelf, &manifest), first[..]);
    assert_eq!(asked(&web), 4 * 10_000, "both files twice");
}

/// A process that removes the last file of a directory removes the directory as well, while another begins to fetch
/// into it.
#[test]
fn a_model_is_pulled_while_another_process_removes_it() {
    let content = content(3, 100);
    let web = serve(one_file(&content));
    let (shelf, _dir) = shelf_of(&web.url);
    let pulled = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !pulled.load(Ordering::Relaxed) {
                match shelf.remove("o/r") {
                    Ok(_) | Err(ShelfError::UnknownName { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        });
        let failed = (0..50).find_map(|_| pull(&shelf, "hf:o/r").err());
        pulled.store(true, Ordering::Relaxed);
        assert!(failed.is_none(), "{failed:?}");
    });
    let manifest = pull(&shelf, "hf:o/r").unwrap();
    assert_eq!(bytes_of(&shelf, &manifest), *content);
}

//! Names: added, copied, removed, and hostile content of the directory.

use super::*;

/// A shelf with two names of one downloaded model.
fn two_names() -> (Shelf, TempDir, Arc<[u8]>) {
    let content = content(60, 5_000);
    let web = serve(one_file(&content));
    let (shelf, dir) = shelf_of(&web.url);
    pull(&shelf, "hf:o/r").unwrap();
    shelf.copy("o/r", &"short".parse().unwrap()).unwrap();
    (shelf, dir, content)
}

fn names(shelf: &Shelf) -> Vec<String> {
    shelf.list().unwrap().manifests.iter().map(|manifest| manifest.name.to_string()).collect()
}

#[test]
fn files_go_with_their_last_name() {
    let (shelf, dir, content) = two_names();
    assert_eq!(names(&shelf), ["o/r", "short"]);
    assert_eq!(shelf.remove("o/r").unwrap(), crate::Removed::default());
    assert_eq!(bytes_of(&shelf, &shelf.find("short").unwrap()), content[..]);
    let removed = shelf.remove("short").unwrap();
    assert_eq!((removed.files.len(), removed.bytes, removed.is_partial), (1, 5_000, false));
    assert_eq!(files_in(dir.path()), [""; 0].map(PathBuf::from));
    says(&shelf.remove("short").unwrap_err(), &["no model named `short`", "kvik pull"]);
}

#[test]
fn an_unknown_name_says_which_there_are() {
    let (shelf, _dir, _) = two_names();
    says(&shelf.find("long").unwrap_err(), &["`long`", "o/r", "short"]);
    says(&shelf.copy("long", &"x".parse().unwrap()).unwrap_err(), &["`long`", "short"]);
    says(&shelf.find("../x").unwrap_err(), &["../x", "cannot be the name"]);
}

#[test]
fn names_like_the_one_that_was_meant_come_first() {
    let (shelf, _dir, _) = two_names();
    shelf.copy("short", &"smollm2:135m".parse().unwrap()).unwrap();
    says(&shelf.find("smollm2").unwrap_err(), &["`smollm2`", "did you mean `smollm2:135m`?", "o/r"]);
    says(&shelf.remove("shrot").unwrap_err(), &["`shrot`", "there are o/r"]);
    says(&shelf.copy("Short", &"x".parse().unwrap()).unwrap_err(), &["did you mean `short`?"]);
}

#[test]
fn a_source_that_is_not_there_is_told_how_sources_are_written() {
    let (shelf, _dir, _) = two_names();
    let refused = |source: &str| {
        let error = pull(&shelf, source).unwrap_err();
        assert!(std::error::Error::source(&error).is_none(), "{source}: the system's words are said once");
        error
    };
    says(&refused("qwen3"), &["neither a file nor a directory qwen3", "hf:owner/repo"]);
    says(&refused("Qwen/Qwen3-0.6B-GGUF"), &["is written hf:Qwen/Qwen3-0.6B-GGUF"]);
    says(&refused("models/mine.gguf"), &["models/mine.gguf", "hf:owner/repo"]);
    says(&refused("shor"), &["did you mean `short`?"]);
    says(&refused("qwen3:0.7b"), &["did you mean one of `qwen3:0.6b`", "short name of the hub"]);
}

#[test]
fn a_name_is_not_taken_from_another_model() {
    let (shelf, dir, _) = two_names();
    let path = dir.path().join("mine.gguf");
    fs::write(&path, b"GGUF").unwrap();
    says(&shelf.add(&path, &"short".parse().unwrap()).unwrap_err(), &["`short`", "hf:o/r", "kvik rm short"]);
    shelf.add(&path, &"mine".parse().unwrap()).unwrap();
    says(&shelf.copy("mine", &"short".parse().unwrap()).unwrap_err(), &["`short`", "hf:o/r"]);
    let source: ModelSource = "hf:o/r".parse().unwrap();
    says(&shelf.pull(&source, &"mine".parse().unwrap(), &Quiet).unwrap_err(), &["`mine`", "mine.gguf"]);
}

/// Models were given names under which others answered; those that have one stay where they can be removed.
#[test]
fn a_name_that_means_something_else_is_given_to_no_new_model() {
    let (shelf, dir, _) = two_names();
    let path = dir.path().join("mine.gguf");
    fs::write(&path, b"GGUF").unwrap();
    let source: ModelSource = "hf:o/r".parse().unwrap();
    for name in ["embedded", "kvik", "hf.co/o/r", "huggingface.co/o/r"] {
        let name: crate::ModelName = name.parse().unwrap();
        says(&shelf.add(&path, &name).unwrap_err(), &[name.as_str(), "cannot be the name"]);
        says(&shelf.copy("short", &name).unwrap_err(), &[name.as_str(), "cannot be the name"]);
        says(&shelf.pull(&source, &name, &Quiet).unwrap_err(), &[name.as_str(), "cannot be the name"]);
    }
    let manifest = Manifest { name: "kvik".parse().unwrap(), ..shelf.find("short").unwrap() };
    fs::write(dir.path().join("models/names/kvik.json"), manifest.to_json().unwrap()).unwrap();
    assert_eq!(names(&shelf), ["kvik", "o/r", "short"]);
    shelf.copy("o/r", &manifest.name).unwrap();
    shelf.remove("kvik").unwrap();
    assert_eq!(names(&shelf), ["o/r", "short"]);
}

/// On a file system that takes upper and lower case for one, which a second link shows here.
#[test]
fn a_name_in_another_case_is_no_damage_of_the_file_that_both_have() {
    let (shelf, dir, _) = two_names();
    let [own, other] = ["short", "SHORT"].map(|name| dir.path().join(format!("models/names/{name}.json")));
    if let Err(error) = fs::hard_link(&own, &other) {
        assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists, "this file system is such a one");
    }
    says(&shelf.find("SHORT").unwrap_err(), &["no model named `SHORT`", "did you mean `short`?"]);
    says(&shelf.remove("SHORT").unwrap_err(), &["no model named `SHORT`", "did you mean `short`?"]);
    says(&shelf.copy("o/r", &"SHORT".parse().unwrap()).unwrap_err(), &["`short` belongs to hf:o/r"]);
    assert!(own.exists() && other.exists());
    shelf.find("short").unwrap();
}

#[test]
fn files_that_were_added_stay_their_owners() {
    let (shelf, dir, _) = two_names();
    let [one, two] = ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"].map(|name| dir.path().join(name));
    fs::write(&one, b"GGUF").unwrap();
    let name = "mine".parse().unwrap();
    assert!(shelf.add(&one, &name).is_err(), "the second part is missing");
    fs::write(&two, b"GGUF and more").unwrap();
    let manifest = shelf.add(&two, &name).unwrap();
    assert_eq!(shelf.path(&manifest).unwrap(), fs::canonicalize(&one).unwrap());
    assert_eq!(manifest.bytes(), 17);
    assert_eq!(shelf.remove("mine").unwrap(), crate::Removed::default());
    assert!(one.exists() && two.exists());
    let text = dir.path().join("text.gguf");
    fs::write(&text, "hello").unwrap();
    says(&shelf.add(&text, &name).unwrap_err(), &["text.gguf", "neither"]);
    says(&shelf.add(dir.path(), &name).unwrap_err(), &["config.json"]);
    let own = shelf.path(&shelf.find("short").unwrap()).unwrap();
    says(&shelf.add(&own, &name).unwrap_err(), &["kvik cp"]);
}

/// In the cache of Hugging Face's own tools a model is links to files that are named by their content. One part was taken
/// for the whole.
#[cfg(unix)]
#[test]
fn parts_that_are_links_are_found_by_their_own_names() {
    let (shelf, dir, _) = two_names();
    let snapshot = dir.path().join("snapshot");
    fs::create_dir(&snapshot).unwrap();
    let parts = ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"].map(|name| snapshot.join(name));
    for (part, blob) in parts.iter().zip(["5f1c", "0a2b"]) {
        let blob = dir.path().join(blob);
        fs::write(&blob, b"GGUF and more").unwrap();
        std::os::unix::fs::symlink(blob, part).unwrap();
    }
    let manifest = shelf.add(&parts[1], &"mine".parse().unwrap()).unwrap();
    assert_eq!((manifest.files.len(), manifest.bytes()), (2, 26));
    assert!(shelf.path(&manifest).unwrap().ends_with("snapshot/m-00001-of-00002.gguf"));
    // A link to one part alone leads to the others.
    let whole = ["w-00001-of-00002.gguf", "w-00002-of-00002.gguf"].map(|name| dir.path().join(name));
    whole.iter().for_each(|part| fs::write(part, b"GGUF").unwrap());
    let link = snapshot.join("w-00001-of-00002.gguf");
    std::os::unix::fs::symlink(&whole[0], &link).unwrap();
    assert_eq!(shelf.add(&link, &"whole".parse().unwrap()).unwrap().files.len(), 2);
}

#[test]
fn a_file_that_is_gone_is_named_with_its_remedy() {
    let (shelf, dir, content) = two_names();
    let manifest = shelf.find("short").unwrap();
    let path = shelf.path(&manifest).unwrap();
    fs::write(&path, &content[..100]).unwrap();
    says(&shelf.path(&manifest).unwrap_err(), &["m-Q8_0.gguf", "kvik pull hf:o/r --name short"]);
    let mine = dir.path().join("mine.gguf");
    fs::write(&mine, b"GGUF").unwrap();
    let manifest = shelf.add(&mine, &"mine".parse().unwrap()).unwrap();
    fs::remove_file(&mine).unwrap();
    says(&shelf.path(&manifest).unwrap_err(), &["mine.gguf", "kvik rm mine"]);
}

#[test]
fn a_manifest_that_cannot_be_read_hides_itself_alone_and_keeps_all_files() {
    let (shelf, dir, content) = two_names();
    let bad = dir.path().join("models/names/bad.json");
    fs::write(&bad, "{").unwrap();
    fs::write(dir.path().join("models/names/.new"), "half of a mani").unwrap();
    let listing = shelf.list().unwrap();
    assert_eq!((listing.manifests.len(), listing.unreadable.len()), (2, 1));
    says(&listing.unreadable[0], &["bad.json"]);
    says(&shelf.find("bad").unwrap_err(), &["bad.json"]);
    assert!(shelf.remove("o/r").unwrap().files.is_empty());
    let removed = shelf.remove("short").unwrap();
    assert!(removed.is_partial && removed.files.is_empty(), "the other one may use them");
    assert!(shelf.remove_leftovers().unwrap().is_partial);
    shelf.remove("bad").unwrap();
    assert_eq!(shelf.remove_leftovers().unwrap().bytes, content.len() as u64);
}

/// Another user of a shared shelf places a link in it, and a manifest that names a file behind the link.
#[cfg(unix)]
#[test]
fn nothing_behind_a_link_is_removed() {
    let (shelf, dir, _) = two_names();
    let precious = dir.path().join("precious");
    fs::create_dir(&precious).unwrap();
    fs::write(precious.join("m.gguf"), b"GGUF").unwrap();
    std::os::unix::fs::symlink(&precious, dir.path().join("models/hub/o/link")).unwrap();
    let manifest = fs::read_to_string(dir.path().join("models/names/short.json")).unwrap();
    let hostile = manifest
        .replace("\"short\"", "\"evil\"")
        .replace(&format!("hub/o/r/{COMMIT}/m-Q8_0.gguf"), "hub/o/link/m.gguf");
    fs::write(dir.path().join("models/names/evil.json"), hostile).unwrap();
    assert!(shelf.remove("evil").unwrap().files.is_empty());
    shelf.remove_leftovers().unwrap();
    assert!(precious.join("m.gguf").exists());
}

/// Where the file system takes upper and lower case for one, two repositories have one folder; a link stands for that.
#[cfg(target_os = "linux")]
#[test]
fn a_file_that_another_name_has_in_other_letters_stays() {
    let (shelf, dir, content) = two_names();
    let manifest = fs::read_to_string(dir.path().join("models/names/short.json")).unwrap();
    let other = manifest.replace("\"short\"", "\"other\"").replace("hub/o/r/", "hub/O/r/");
    assert!(other.contains("hub/O/r/"), "{other}");
    fs::write(dir.path().join("models/names/other.json"), other).unwrap();
    let same = dir.path().join("models/hub/O");
    std::os::unix::fs::symlink("o", &same).unwrap();
    for name in ["o/r", "short"] {
        assert_eq!(shelf.remove(name).unwrap(), crate::Removed::default());
    }
    assert_eq!(bytes_of(&shelf, &shelf.find("other").unwrap()), content[..]);
    fs::remove_file(same).unwrap();
    assert_eq!(shelf.remove_leftovers().unwrap().files.len(), 1, "where letters tell folders apart");
}

/// A shelf of another user can be read.
#[cfg(unix)]
#[test]
fn a_directory_that_cannot_be_written_is_read() {
    use std::os::unix::fs::PermissionsExt;
    let (shelf, dir, content) = two_names();
    let names = dir.path().join("models/names");
    fs::set_permissions(&names, fs::Permissions::from_mode(0o555)).unwrap();
    assert_eq!(bytes_of(&shelf, &shelf.find("short").unwrap()), content[..]);
    fs::set_permissions(&names, fs::Permissions::from_mode(0o755)).unwrap();
    let nowhere = Shelf::open(&dir.path().join("nowhere"));
    assert_eq!(nowhere.list().unwrap().manifests, []);
    assert!(!dir.path().join("nowhere").exists(), "looking makes no directory");
}

#[test]
fn the_default_is_the_chosen_model_or_the_last_one() {
    let (shelf, dir, _) = two_names();
    let default = |shelf: &Shelf| {
        let found = shelf.default_model().unwrap();
        found.map(|found| (found.manifest.name.to_string(), found.is_chosen))
    };
    let age = |name: &str, added_s: u64| {
        let path = dir.path().join("models/names").join(name);
        let mut manifest: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        manifest["added"] = added_s.into();
        fs::write(path, manifest.to_string()).unwrap();
    };
    assert_eq!(default(&Shelf::open(&dir.path().join("none"))), None);
    age("short.json", 10);
    assert_eq!(default(&shelf), Some(("o/r".to_owned(), false)));
    age("short.json", 1 << 40);
    assert_eq!(default(&shelf), Some(("short".to_owned(), false)));
    shelf.set_default(Some(&"o/r".parse().unwrap())).unwrap();
    assert_eq!(default(&shelf), Some(("o/r".to_owned(), true)));
    says(&shelf.set_default(Some(&"long".parse().unwrap())).unwrap_err(), &["`long`", "short"]);
    let chosen = dir.path().join("models/names/.default");
    for hostile in ["", "../x", "\0", &"x".repeat(5_000)] {
        fs::write(&chosen, hostile).unwrap();
        assert_eq!(default(&shelf), Some(("short".to_owned(), false)), "{hostile}");
    }
    shelf.set_default(Some(&"o/r".parse().unwrap())).unwrap();
    shelf.remove("o/r").unwrap();
    assert_eq!(default(&shelf), Some(("short".to_owned(), false)), "a name that is gone is none");
    shelf.set_default(None).unwrap();
    assert!(!chosen.exists());
    shelf.remove("short").unwrap();
    assert_eq!(default(&shelf), None);
}

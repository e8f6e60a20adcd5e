//! Stores of several models in one directory.

use std::time::{Duration, SystemTime};

use kvik_cache::tier::Relation;

use super::*;
use crate::store::bytes_allowed;

/// A store of another model in the scene's directory, with `blocks` blocks.
fn fill(scene: &Scene, model: u8, blocks: u64) -> StoreConfig {
    let config = StoreConfig { model: [model; 32], ..scene.config.clone() };
    let mut store = open(&config).unwrap().store;
    for number in 0..blocks {
        store.put(number as u32, &record(number)).unwrap();
    }
    config
}

/// Sets the last use of a store to `seconds` ago.
fn age(config: &StoreConfig, seconds: u64) {
    let [headers, _] = files(config);
    let lock = headers.parent().unwrap().with_extension("lock");
    let file = std::fs::File::options().write(true).open(lock).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
}

fn exists(config: &StoreConfig) -> bool {
    files(config).iter().all(|path| path.exists())
}

#[test]
fn content_keys_of_related_stores_are_reported() {
    let scene = Scene::filled(3);
    let other_format = StoreConfig { kv_format: "f16/f16".to_owned(), ..scene.config.clone() };
    let other_model = StoreConfig { model: [2; 32], ..scene.config.clone() };
    let related = |config: &StoreConfig| {
        let mut related = open(config).unwrap().related;
        related.sort_unstable();
        related
    };
    let mut keys = [0, 1, 2].map(|number| record(number).content_key);
    keys.sort_unstable();
    assert_eq!(related(&other_format), keys.map(|key| (Relation::OtherKvFormat, key)));
    assert_eq!(related(&other_model), keys.map(|key| (Relation::OtherModel, key)));
    assert_eq!(related(&scene.config), []);
}

#[test]
fn neighbours_are_removed_when_space_is_short_least_recently_used_first() {
    let scene = Scene::new(10);
    let [old, newer] = [fill(&scene, 2, 3), fill(&scene, 3, 3)];
    age(&old, 1000);
    age(&newer, 500);
    let mut own = scene.open().store;
    own.put(0, &record(0)).unwrap();
    assert!(exists(&old) && exists(&newer), "there is room for all");
    for number in 1..5 {
        own.put(number as u32, &record(number)).unwrap();
    }
    assert!(!exists(&old) && exists(&newer));
    for number in 5..10 {
        own.put(number as u32, &record(number)).unwrap();
    }
    assert!(!exists(&newer));
    drop(own);
    assert_eq!(scene.survivors().len(), 10);
}

/// The removal failed, and the room that it had made was not used.
#[test]
fn a_stray_file_beside_a_neighbours_files_stays_and_their_room_is_used() {
    let scene = Scene::new(10);
    let neighbour = fill(&scene, 2, 8);
    let stray = files(&neighbour)[0].with_file_name(".DS_Store");
    std::fs::write(&stray, "").unwrap();
    let mut own = scene.open().store;
    (0..10).for_each(|number| own.put(number as u32, &record(number)).unwrap());
    assert!(!exists(&neighbour) && stray.exists());
}

#[test]
fn a_neighbour_in_use_stays_and_writing_pauses() {
    let scene = Scene::new(10);
    let neighbour = fill(&scene, 2, 8);
    let in_use = open(&neighbour).unwrap();
    let mut own = scene.open().store;
    let written = (0..10).take_while(|&number| own.put(number as u32, &record(number)).is_ok()).count();
    assert!((1..=2).contains(&written), "{written}");
    assert_eq!(own.put(0, &record(20)), Err(IoFault::Resting));
    own.get(0, record(0).identity).unwrap();
    assert!(exists(&neighbour));
    drop(in_use);
}

#[test]
fn nothing_else_in_the_directory_is_touched() {
    let scene = Scene::new(2);
    let bystanders = ["notes.txt", "0123", "0123456789abcdef0123456789ABCDEF", "x".repeat(32).as_str()]
        .map(|name| scene.config.dir.join(name).join("headers"));
    for path in &bystanders {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, vec![1; 1 << 20]).unwrap();
    }
    let mut own = scene.open().store;
    assert!((0..2).all(|number| own.put(number as u32, &record(number)).is_ok()));
    assert!(bystanders.iter().all(|path| path.metadata().unwrap().len() == 1 << 20));
}

#[test]
fn the_free_space_is_that_of_the_nearest_existing_directory() {
    let scene = Scene::new(2);
    let missing = scene.config.dir.join("not").join("there");
    // A relative path had no free space, so that the first start took all that its limit allows.
    for missing in [missing.as_path(), Path::new("not/there")] {
        assert!(bytes_allowed(missing).unwrap() > 0, "{missing:?}");
        assert!(!missing.exists());
    }
}

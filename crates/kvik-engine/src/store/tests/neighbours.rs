//! Stores of several models in one directory.

use std::time::{Duration, SystemTime};

use kvik_cache::tier::Relation;

use super::*;
use crate::store::bytes_allowed;

/// The scene's store for another model, filled with one block for each of its slots.
fn fill(scene: &Scene, model: u8, blocks: u64) -> StoreConfig {
    let config = StoreConfig { model: [model; 32], ..scene.config.clone() };
    let mut store = open(&config).unwrap().store;
    for number in 0..blocks {
        store.put(number as u32, &record(number)).unwrap();
    }
    config
}

/// Says that a store was used so long ago.
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
fn lineages_of_relatives_are_told() {
    let scene = Scene::filled(3);
    let other_format = StoreConfig { kv_format: "f16/f16".to_owned(), ..scene.config.clone() };
    let other_model = StoreConfig { model: [2; 32], ..scene.config.clone() };
    let told = |config: &StoreConfig| {
        let mut other = open(config).unwrap().other;
        other.sort_unstable();
        other
    };
    let mut lineages = [0, 1, 2].map(|number| record(number).content_key);
    lineages.sort_unstable();
    assert_eq!(told(&other_format), lineages.map(|lineage| (Relation::OtherKvFormat, lineage)));
    assert_eq!(told(&other_model), lineages.map(|lineage| (Relation::OtherModel, lineage)));
    assert_eq!(told(&scene.config), []);
}

#[test]
fn neighbours_go_when_space_is_short_the_oldest_first() {
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

#[test]
fn a_neighbour_in_use_stays_and_writing_rests() {
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
fn the_share_of_the_free_space_is_asked_of_the_nearest_directory_that_exists() {
    let scene = Scene::new(2);
    let missing = scene.config.dir.join("not").join("there");
    assert!(bytes_allowed(&missing).unwrap() > 0);
    assert!(!missing.exists());
}

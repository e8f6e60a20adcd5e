//! Erased blocks leave nothing in the files and take no disk space.

use std::fs;
use std::os::unix::fs::symlink;

use super::*;
use crate::store::directory::Directory;
use crate::store::recover::open_files;
use crate::store::slab::Slab;
use crate::store::{AtRest, Picked, erase_at_rest};

fn until_erased(store: &Store) {
    let started = Instant::now();
    while store.erasing() > 0 {
        assert!(started.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether a file of the store contains the first bytes of a block or its tokens.
fn is_left(scene: &Scene, number: u64) -> bool {
    let mut payload = vec![0; PAYLOAD_BYTES];
    content(record(number).identity, &mut payload);
    let [headers, payloads] = scene.files().map(|path| fs::read(path).unwrap_or_default());
    let has = |file: &[u8], bytes: &[u8]| file.windows(bytes.len()).any(|window| window == bytes);
    has(&payloads, &payload[..64]) || has(&headers, &record(number).identity.0)
}

fn allocated(scene: &Scene) -> u64 {
    use std::os::unix::fs::MetadataExt;
    scene.files().iter().filter_map(|path| path.metadata().ok()).map(|file| file.blocks() * 512).sum()
}

#[test]
fn erased_blocks_leave_nothing_and_give_their_disk_back() {
    let scene = Scene::filled(20);
    let before = allocated(&scene);
    let mut opened = scene.open();
    (0..20).filter(|slot| slot % 4 != 0).for_each(|slot| opened.store.erase(SlotId(slot)));
    until_erased(&opened.store);
    for number in 0..20 {
        assert_eq!(is_left(&scene, number), number.is_multiple_of(4), "{number}");
    }
    let after = allocated(&scene);
    assert!(after < before / 2, "{before} bytes before and {after} after");
    // The freed space is used again.
    for number in [1, 2, 3] {
        opened.store.put(number as u32, &record(number)).unwrap();
    }
    drop(opened);
    let slots: Vec<u32> = scene.survivors().into_iter().map(|(slot, _)| slot).collect();
    assert_eq!(slots, [0, 1, 2, 3, 4, 8, 12, 16]);
}

/// As on macOS, Windows, NFS and exFAT.
#[test]
fn erased_blocks_leave_nothing_where_files_have_no_holes() {
    let scene = Scene::filled(4);
    let [directory] = <[Directory; 1]>::try_from(Directory::every(&scene.config.dir).unwrap()).unwrap();
    let (files, found) = open_files(&directory).unwrap();
    let slab = Slab::new(files, found.creation, found.payload_bytes);
    let length = scene.files()[1].metadata().unwrap().len();
    for slot in [1, 3] {
        assert!(!slab.erase_with(SlotId(slot), |_, _, _| Ok(false)).unwrap());
    }
    assert_eq!([0, 1, 2, 3].map(|number| is_left(&scene, number)), [true, false, true, false]);
    assert!(
        fs::read(&scene.files()[1]).unwrap()[PAYLOAD_BYTES.next_multiple_of(4096)..][..PAYLOAD_BYTES]
            .iter()
            .all(|&byte| byte == 0)
    );
    assert_eq!(scene.files()[1].metadata().unwrap().len(), length);
    let slots: Vec<u32> = scene.survivors().into_iter().map(|(slot, _)| slot).collect();
    assert_eq!(slots, [0, 2]);
}

#[test]
fn stores_that_are_not_open_are_emptied_and_those_that_are_stay() {
    let scene = Scene::filled(6);
    let opened = scene.open();
    let nothing = |_: Vec<(SlotId, Record)>| Picked::All;
    let in_use = AtRest { in_use: 1, ..AtRest::default() };
    assert_eq!(erase_at_rest(&scene.config.dir, nothing).unwrap(), in_use);
    drop(opened);
    let unpinned = |records: Vec<(SlotId, Record)>| {
        let free = records.into_iter().filter(|(_, record)| !record.pinned);
        Picked::Slots(free.map(|(slot, _)| slot).collect())
    };
    let erased = erase_at_rest(&scene.config.dir, unpinned).unwrap();
    assert_eq!((erased.stores, erased.blocks), (1, 3));
    assert!(erased.bytes > 0 && !is_left(&scene, 1) && is_left(&scene, 2));
    assert_eq!(scene.survivors().len(), 3);
    let rest = erase_at_rest(&scene.config.dir, nothing).unwrap();
    assert_eq!((rest.blocks, allocated(&scene)), (3, 0));
    assert!(erase_at_rest(&scene.dir.path().join("nowhere"), nothing).unwrap() == AtRest::default());
    let file = scene.dir.path().join("file");
    fs::write(&file, "mine").unwrap();
    assert!(matches!(erase_at_rest(&file, nothing), Err(StoreError::Io { .. })), "no directory");
}

#[test]
fn a_store_that_cannot_be_erased_keeps_no_other_from_it() {
    let scene = Scene::new(20);
    let other = StoreConfig { model: [2; 32], ..scene.config.clone() };
    for config in [&scene.config, &other] {
        open(config).unwrap().store.put(0, &record(0)).unwrap();
    }
    let lock = files(&other)[0].parent().unwrap().with_extension("lock");
    fs::remove_file(&lock).unwrap();
    symlink("/dev/null", &lock).unwrap();
    let error = erase_at_rest(&scene.config.dir, |_| Picked::All).unwrap_err();
    assert!(matches!(&error, StoreError::Io { path, .. } if *path == lock), "{error}");
    assert_eq!(allocated(&scene), 0);
    assert!(files(&other)[0].exists());
}

#[test]
fn damaged_files_of_a_store_at_rest_are_left_alone() {
    for damage in [0, 7, 20, 40, 4300] {
        let scene = Scene::filled(3);
        let [headers, _] = scene.files();
        let mut bytes = fs::read(&headers).unwrap();
        bytes[damage] ^= 0xff;
        fs::write(&headers, bytes).unwrap();
        let all = |records: Vec<(SlotId, Record)>| {
            Picked::Slots(records.into_iter().map(|(slot, _)| slot).collect())
        };
        let erased = erase_at_rest(&scene.config.dir, all).unwrap();
        assert!(erased.blocks <= 3, "{erased:?}");
    }
}

//! Erased blocks leave nothing in the files and take no disk space.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::store::directory::{Directory, replacement};
use crate::store::recover::open_files;
use crate::store::slab::{Slab, slot_bytes};
use crate::store::{AtRest, Picked, erase_answers_at_rest, erase_at_rest};

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

/// The only store of the scene.
fn directory(scene: &Scene) -> Directory {
    let [directory] = <[Directory; 1]>::try_from(Directory::every(&scene.config.dir).unwrap()).unwrap();
    directory
}

/// Its files, opened beside it.
fn slab(scene: &Scene) -> Slab {
    let (files, found) = open_files(&directory(scene)).unwrap();
    Slab::new(files, found.creation, found.payload_bytes)
}

/// The files of a store where files have no holes, as on macOS, Windows, NFS and exFAT.
fn without_holes(scene: &Scene) -> Slab {
    Slab { punch: |_, _, _| Ok(false), ..slab(scene) }
}

/// Nobody finds an evicted block when its prompt is deleted later.
#[test]
fn removed_blocks_leave_nothing_where_files_have_no_holes() {
    let scene = Scene::filled(4);
    let length = scene.files()[1].metadata().unwrap().len();
    let mut store = scene.open().store;
    store.shared.set_slab(Some(Arc::new(without_holes(&scene))));
    let before = store.wear().bytes;
    store.erase(SlotId(1));
    store.evict(SlotId(3));
    poll(|| (store.erasing() + store.evicting() == 0).then_some(()));
    let written = 2 * slot_bytes(PAYLOAD_BYTES as u64);
    assert_eq!(store.wear().bytes - before, written, "overwriting wears the disk");
    drop(store);
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
fn evicted_blocks_give_their_disk_back_and_no_deletion_waits_for_them() {
    let scene = Scene::filled(20);
    let before = allocated(&scene);
    let woken = Arc::new(AtomicUsize::new(0));
    let wakes = woken.clone();
    let wake = move || {
        wakes.fetch_add(1, Ordering::Relaxed);
    };
    let mut store = Store::open(&scene.config, wake).unwrap().store;
    let shared = store.shared.clone();
    let hangs = shared.slab.write().unwrap();
    (0..20).filter(|slot| slot % 4 != 0).for_each(|slot| store.evict(SlotId(slot)));
    assert_eq!((store.evicting(), store.erasing(), woken.load(Ordering::Relaxed)), (15, 0, 0));
    drop(hangs);
    poll(|| (woken.load(Ordering::Relaxed) > 0).then_some(()));
    assert_eq!((store.evicting(), woken.load(Ordering::Relaxed)), (0, 1), "woken for more");
    for number in 0..20 {
        assert_eq!(is_left(&scene, number), number.is_multiple_of(4), "{number}");
    }
    let after = allocated(&scene);
    assert!(after < before / 2, "{before} bytes before and {after} after");
}

/// The uses of a busy server come more often than a failed erasure is tried again.
#[test]
fn a_failed_erasure_is_tried_again_while_blocks_are_used() {
    let scene = Scene::filled(4);
    let mut store = scene.open().store;
    let whole = store.shared.slab().unwrap();
    let [headers, payloads] = scene.files().map(|path| fs::File::open(path).unwrap());
    let failing = Slab::new((headers, payloads), whole.creation, whole.payload_bytes);
    store.shared.set_slab(Some(Arc::new(failing)));
    store.erase(SlotId(1));
    // The queue keeps its order: when this is done, the erasure has failed.
    store.touch(SlotId(2), record(2).use_);
    poll(|| (store.shared.touches.load(Ordering::Relaxed) == 0).then_some(()));
    assert_eq!(store.erasing(), 1);
    store.shared.set_slab(Some(whole));
    poll(|| {
        store.touch(SlotId(2), record(2).use_);
        (store.erasing() == 0).then_some(())
    });
    assert!(!is_left(&scene, 1));
}

/// No deletion finds a block without a header.
#[test]
fn what_a_killed_process_was_writing_leaves_nothing() {
    for at_rest in [false, true] {
        let scene = Scene::filled(4);
        slab(&scene).begin(SlotId(1)).unwrap();
        assert!(is_left(&scene, 1));
        match at_rest {
            true => {
                let none = erase_at_rest(&scene.config.dir, |_| Picked::Slots(Vec::new())).unwrap();
                assert_eq!((none.stores, none.blocks), (1, 0));
            }
            false => until_erased(&scene.open().store),
        }
        assert_eq!([0, 1, 2, 3].map(|number| is_left(&scene, number)), [true, false, true, true]);
        scene.open().store.put(1, &record(1)).unwrap();
        assert_eq!(scene.survivors().len(), 4);
    }
}

/// A deletion finds the first one only.
#[test]
fn the_second_copy_of_a_block_is_removed_when_its_store_is_opened() {
    let scene = Scene::filled(4);
    scene.open().store.put(2, &record(0)).unwrap();
    let mut opened = scene.open();
    assert_eq!(opened.records.len(), 3);
    until_erased(&opened.store);
    opened.store.erase(SlotId(0));
    until_erased(&opened.store);
    assert_eq!([0, 1, 3].map(|number| is_left(&scene, number)), [false, true, true]);
}

#[test]
fn what_a_failed_write_has_left_is_removed() {
    let scene = Scene::filled(4);
    let mut store = scene.open().store;
    let whole = store.shared.slab().unwrap();
    let [headers, payloads] = scene.files();
    let headers = fs::File::options().read(true).write(true).open(headers).unwrap();
    let files = (headers, fs::File::open(payloads).unwrap());
    store.shared.set_slab(Some(Arc::new(Slab::new(files, whole.creation, whole.payload_bytes))));
    store.put(1, &record(9)).unwrap_err();
    assert!(is_left(&scene, 1) && store.erasing() == 1, "of the block before it, whose header is gone");
    store.shared.set_slab(Some(whole));
    until_erased(&store);
    assert_eq!([0, 1, 2, 3].map(|number| is_left(&scene, number)), [true, false, true, true]);
}

/// A process was killed while it wrote a log anew, or somebody removed the folder of a store.
#[test]
fn answers_are_erased_with_their_store_and_without_it() {
    let scene = Scene::filled(1);
    let answers = directory(&scene).answers();
    let left = replacement(&answers);
    fs::write(&left, vec![1; 1 << 16]).unwrap();
    assert!(directory(&scene).bytes() > allocated(&scene), "it takes room");
    drop(scene.open());
    assert!(!left.exists(), "there is no log that would replace it");
    fs::write(&left, "answers").unwrap();
    assert!(directory(&scene).remove().unwrap() && !left.exists());
    for path in [&answers, &left] {
        fs::write(path, "answers").unwrap();
    }
    erase_answers_at_rest(&scene.config.dir, Some([1; 16])).unwrap();
    assert!(!answers.exists() && !left.exists());
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

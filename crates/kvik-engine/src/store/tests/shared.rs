//! Several stores on one directory: one writes, the others read, and take over.
//!
//! Random histories of writes, erasures, pins, restarts and kills run beside a twin, which is a list of the blocks by
//! slot. At any time a reader believes what the files held once, reads a block whole or not at all, and never one that
//! was erased; when the writer rests, it believes what the twin says.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use super::*;
use crate::stats::DiskRole;
use crate::store::{ChangedSlot, Picked, erase_at_rest};

const SLOTS: u64 = 24;
/// Variable of the child process: the directory of its store.
const CHILD_DIR: &str = "KVIK_SHARED_CHILD";

/// A store and what it has said of its slots.
struct Handle {
    store: Store,
    believed: BTreeMap<u32, Record>,
    /// Blocks that were reported as erased.
    erased: Vec<Identity>,
    took_over: bool,
}

impl Handle {
    fn open(config: &StoreConfig) -> Handle {
        let Opened { store, records, .. } = open(config).unwrap();
        let believed = records.into_iter().map(|(slot, record)| (slot.0, record)).collect();
        Handle { store, believed, erased: Vec::new(), took_over: false }
    }

    fn is_writer(&self) -> bool {
        self.store.role() == DiskRole::Writer
    }

    /// The next completed operation of the store's own; what others did is noted.
    fn next(&mut self) -> Option<Completed> {
        match self.store.completed()? {
            Completed::Seen(seen) => {
                seen.into_iter().for_each(|seen| self.see(seen));
                None
            }
            Completed::TookOver => {
                assert!(!self.took_over && self.is_writer());
                self.took_over = true;
                None
            }
            own => Some(own),
        }
    }

    fn see(&mut self, ChangedSlot { observed, is_erased }: ChangedSlot) {
        let before = match observed.record {
            Some(record) => self.believed.insert(observed.slot.0, record),
            None => self.believed.remove(&observed.slot.0),
        };
        if is_erased {
            self.erased.extend(before.map(|record| record.identity));
        }
    }

    fn put(&mut self, slot: u32, record: &Record) {
        let mut buffer = poll(|| self.store.buffer());
        content(record.identity, &mut buffer);
        self.store.write(SlotId(slot), record, buffer);
        let written = poll(|| self.next());
        assert!(matches!(written, Completed::Written { result: Ok(_), .. }), "{written:?}");
        self.believed.insert(slot, *record);
    }

    /// Whether a block can be read; its bytes are those of the block.
    fn reads(&mut self, slot: u32, identity: Identity) -> bool {
        let buffer = poll(|| self.store.buffer());
        self.store.read(1, SlotId(slot), identity, buffer);
        let Completed::Read { result, .. } = poll(|| self.next()) else { panic!("a read") };
        result.is_ok_and(|(buffer, _)| {
            let mut expected = vec![0; buffer.len()];
            content(identity, &mut expected);
            assert!(*buffer == *expected, "slot {slot}: these are not the block's bytes");
            true
        })
    }

    /// Waits until it believes what the twin says.
    fn until(&mut self, twin: &BTreeMap<u32, Record>) {
        poll(|| {
            while self.next().is_some() {}
            let same = self.believed.len() == twin.len()
                && self.believed.iter().all(|(slot, record)| {
                    let expected = twin.get(slot);
                    expected.is_some_and(|it| (it.identity, it.pinned) == (record.identity, record.pinned))
                });
            same.then_some(())
        });
    }

    fn until_writer(&mut self) {
        poll(|| {
            while self.next().is_some() {}
            self.is_writer().then_some(())
        });
    }

    fn until_erased(&mut self) {
        poll(|| (self.store.erasing() == 0).then_some(()));
    }
}

fn twin_of(numbers: impl IntoIterator<Item = u64>) -> BTreeMap<u32, Record> {
    numbers.into_iter().map(|number| (number as u32, record(number))).collect()
}

#[test]
fn a_reader_opens_at_once_and_sees_what_is_written_replaced_pinned_erased_and_evicted() {
    let scene = Scene::filled(SLOTS);
    let mut writer = Handle::open(&scene.config);
    let started = Instant::now();
    let mut reader = Handle::open(&scene.config);
    assert!(started.elapsed() < NO_WAIT && !reader.is_writer());
    let mut twin = twin_of(0..SLOTS);
    reader.until(&twin);
    (0..SLOTS).for_each(|number| assert!(reader.reads(number as u32, record(number).identity)));
    writer.put(3, &record(103));
    twin.insert(3, record(103));
    writer.store.erase(SlotId(5));
    twin.remove(&5);
    writer.store.evict(SlotId(9));
    twin.remove(&9);
    writer.store.pin(SlotId(7), true);
    twin.insert(7, Record { pinned: true, ..record(7) });
    reader.until(&twin);
    assert_eq!(reader.erased, [record(5).identity], "the others only made room");
    assert!(reader.reads(3, record(103).identity) && !reader.reads(3, record(3).identity));
    assert!([5, 9].iter().all(|&number| !reader.reads(number as u32, record(number).identity)));
}

#[test]
fn a_reader_changes_nothing() {
    let scene = Scene::filled(4);
    let mut writer = Handle::open(&scene.config);
    let mut reader = Handle::open(&scene.config);
    let before = scene.files().map(|path| fs::read(path).unwrap());
    let mut buffer = poll(|| reader.store.buffer());
    content(record(9).identity, &mut buffer);
    reader.store.write(SlotId(1), &record(9), buffer);
    let refused = poll(|| reader.next());
    assert!(matches!(refused, Completed::Written { result: Err(_), .. }), "{refused:?}");
    reader.store.erase(SlotId(2));
    reader.store.evict(SlotId(1));
    reader.store.touch(SlotId(3), Use { stamp: 5, ..Use::default() });
    reader.store.pin(SlotId(3), true);
    reader.until_erased();
    drop(reader);
    assert_eq!(scene.files().map(|path| fs::read(path).unwrap()), before);
    (0..4).for_each(|number| assert!(writer.reads(number as u32, record(number).identity)));
}

#[test]
fn a_reader_that_was_away_for_long_looks_at_all_slots() {
    let scene = Scene::filled(SLOTS);
    let mut writer = Handle::open(&scene.config);
    let mut reader = Handle::open(&scene.config);
    let mut twin = twin_of(0..SLOTS);
    writer.store.erase(SlotId(2));
    twin.remove(&2);
    // More changes than the log holds, while the reader's threads are held up.
    let shared = reader.store.shared.clone();
    let held = shared.slab.write().unwrap();
    for round in 1..30 {
        for slot in (0..SLOTS).filter(|&slot| slot != 2) {
            let block = record(slot + 1000 * round);
            writer.put(slot as u32, &block);
            twin.insert(slot as u32, block);
        }
    }
    drop(held);
    reader.until(&twin);
    assert!(reader.erased.contains(&record(2).identity), "it may have been erased, and was");
}

#[test]
fn a_reader_follows_files_that_are_replaced_and_reads_nothing_of_removed_ones() {
    let scene = Scene::new(SLOTS);
    let mut writer = Handle::open(&scene.config);
    let mut reader = Handle::open(&scene.config);
    writer.put(1, &record(1));
    reader.until(&twin_of([1]));
    // Nothing of them is read from then on, and the writer begins again.
    fs::remove_dir_all(scene.files()[0].parent().unwrap()).unwrap();
    assert!(!reader.reads(1, record(1).identity), "the files are not at their paths");
    reader.until(&BTreeMap::new());
    assert_eq!(reader.erased, [record(1).identity]);
    poll(|| {
        writer.put(2, &record(2));
        scene.files()[0].exists().then_some(())
    });
    reader.until(&twin_of([2]));
    assert!(reader.reads(2, record(2).identity));
}

#[test]
fn exactly_one_of_the_readers_takes_over_and_writes_what_is_found_later() {
    let scene = Scene::filled(SLOTS);
    let writer = Handle::open(&scene.config);
    let mut readers = [(); 3].map(|()| Handle::open(&scene.config));
    drop(writer);
    poll(|| {
        readers.iter_mut().for_each(|reader| while reader.next().is_some() {});
        readers.iter().any(Handle::is_writer).then_some(())
    });
    let next = readers.iter().position(Handle::is_writer).unwrap();
    let mut rest: Vec<Handle> = readers.into_iter().collect();
    let mut next = rest.remove(next);
    let mut twin = twin_of(0..SLOTS);
    next.until(&twin);
    for number in [4, 9] {
        next.put(number, &record(200 + u64::from(number)));
        twin.insert(number, record(200 + u64::from(number)));
    }
    next.store.erase(SlotId(6));
    twin.remove(&6);
    rest.iter_mut().for_each(|reader| reader.until(&twin));
    assert!(rest.iter().all(|reader| !reader.is_writer()), "two never both");
    drop((next, rest));
    let found: BTreeMap<u32, Record> = scene.survivors().into_iter().collect();
    assert_eq!(found.keys().collect::<Vec<_>>(), twin.keys().collect::<Vec<_>>());
}

#[test]
fn a_store_that_nobody_writes_for_a_moment_may_be_erased_and_its_readers_learn_of_it() {
    let scene = Scene::filled(6);
    let writer = Handle::open(&scene.config);
    let mut reader = Handle::open(&scene.config);
    // The reader is held up, so that it does not take over.
    let shared = reader.store.shared.clone();
    let held = shared.slab.write().unwrap();
    drop(writer);
    let some = |_: Vec<(SlotId, Record)>| Picked::Slots(vec![SlotId(1), SlotId(4)]);
    let erased = poll(|| {
        let erased = erase_at_rest(&scene.config.dir, some).unwrap();
        (erased.in_use == 0).then_some(erased.blocks)
    });
    drop(held);
    assert_eq!(erased, 2);
    reader.until(&twin_of([0, 2, 3, 5]));
    assert_eq!(reader.erased, [record(1).identity, record(4).identity]);
}

/// Random histories of two to four handles, beside the twin.
#[test]
fn whatever_the_handles_do_a_reader_is_never_wrong() {
    let rounds = kvik_testing::effort(6, 60);
    for seed in 0..rounds {
        let (scene, mut random) = (Scene::new(SLOTS), Random(seed));
        let mut twin = BTreeMap::new();
        let mut handles = vec![Handle::open(&scene.config)];
        for step in 0..120 {
            let writer = handles.iter().position(Handle::is_writer);
            match (random.below(12), writer) {
                (0, _) if handles.len() < 4 => handles.push(Handle::open(&scene.config)),
                (1, _) if handles.len() > 1 => {
                    handles.remove(random.below(handles.len() as u64) as usize);
                }
                (2..4, Some(writer)) => {
                    let slot = random.below(SLOTS) as u32;
                    handles[writer].store.erase(SlotId(slot));
                    handles[writer].until_erased();
                    handles[writer].believed.remove(&slot);
                    twin.remove(&slot);
                }
                (4..8, Some(writer)) => {
                    let (slot, block) = (random.below(SLOTS) as u32, record(random.next() >> 20));
                    handles[writer].put(slot, &block);
                    twin.insert(slot, block);
                }
                (8..11, _) => {
                    let handle = random.below(handles.len() as u64) as usize;
                    let Some((&slot, believed)) =
                        handles[handle].believed.iter().nth(random.below(5) as usize)
                    else {
                        continue;
                    };
                    let identity = believed.identity;
                    let is_there = twin.get(&slot).is_some_and(|block: &Record| block.identity == identity);
                    assert_eq!(handles[handle].reads(slot, identity), is_there, "seed {seed}, step {step}");
                }
                _ => {
                    // Somebody writes after a moment, and all agree.
                    poll(|| {
                        handles.iter_mut().for_each(|handle| while handle.next().is_some() {});
                        handles.iter().any(Handle::is_writer).then_some(())
                    });
                    assert_eq!(handles.iter().filter(|handle| handle.is_writer()).count(), 1);
                    handles.iter_mut().for_each(|handle| handle.until(&twin));
                }
            }
        }
    }
}

/// Noise in the ring and in the headers, while a reader follows and when it takes over.
#[test]
fn whatever_is_in_the_files_a_reader_follows_and_takes_over() {
    for seed in 0..8 {
        let (scene, mut random) = (Scene::filled(SLOTS), Random(seed));
        let mut writer = Handle::open(&scene.config);
        let mut reader = Handle::open(&scene.config);
        let mut headers = fs::read(&scene.files()[0]).unwrap();
        for _ in 0..random.below(40) {
            let at = 128 + random.below(headers.len() as u64 - 128) as usize;
            headers[at..].iter_mut().take(9).for_each(|byte| *byte = random.next() as u8);
        }
        fs::write(&scene.files()[0], &headers).unwrap();
        writer.put(1, &record(77));
        poll(|| {
            while reader.next().is_some() {}
            reader.believed.get(&1).filter(|record| record.identity == self::record(77).identity).map(drop)
        });
        drop(writer);
        reader.until_writer();
        let believed: Vec<(u32, Identity)> =
            reader.believed.iter().map(|(&slot, record)| (slot, record.identity)).collect();
        let read = believed.iter().filter(|&&(slot, identity)| reader.reads(slot, identity)).count();
        assert!(read > 0 && reader.reads(1, record(77).identity));
        reader.put(2, &record(78));
    }
}

/// The child that is killed: writes for ever, and prints what it has written.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(CHILD_DIR) else { return };
    let mut store = open(&config(Path::new(&dir), SLOTS)).unwrap().store;
    assert_eq!(store.role(), DiskRole::Writer);
    for number in 0.. {
        store.put((number % SLOTS) as u32, &record(number)).unwrap();
        println!("done {number}");
    }
}

fn spawn(dir: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "store::tests::shared::child", "--nocapture"]).env(CHILD_DIR, dir);
    command.stdout(Stdio::piped()).spawn().unwrap()
}

#[test]
fn a_killed_writer_is_followed_by_a_reader_that_has_all_it_wrote() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), SLOTS);
    for _ in 0..3 {
        let mut child = spawn(dir.path());
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let done = |line: &String| line.rsplit("done ").next().and_then(|number| number.parse::<u64>().ok());
        lines.find_map(|line| done(&line)).unwrap();
        let mut reader = Handle::open(&config);
        assert_eq!(reader.store.role(), DiskRole::Reader { of: Some(child.id()) });
        lines.by_ref().filter_map(|line| done(&line)).find(|&number| number > 3 * SLOTS).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let last = lines.filter_map(|line| done(&line)).last().unwrap_or(3 * SLOTS + 1);
        reader.until_writer();
        assert!(reader.took_over && reader.believed.len() as u64 >= SLOTS - 1);
        // All but the slot of the block that was being written.
        for number in last + 2 - SLOTS..=last {
            assert!(reader.reads((number % SLOTS) as u32, record(number).identity), "{number} of {last}");
        }
        reader.put(0, &record(7));
    }
}

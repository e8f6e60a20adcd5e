//! A disk that does not answer: no call waits for it, and the queues stay bounded.

use std::sync::PoisonError;
use std::time::Instant;

use super::*;

#[test]
fn no_call_waits_for_a_disk_that_hangs_and_it_does_what_was_wanted_last() {
    let scene = Scene::filled(4);
    let mut opened = scene.open();
    let store = &mut opened.store;
    // Every thread of the store locks the slab before it uses the files.
    let shared = store.shared.clone();
    let hangs = shared.slab.write().unwrap_or_else(PoisonError::into_inner);
    let started = Instant::now();
    let (mut writes, mut reads) = (0, 0);
    while let Some(mut buffer) = store.buffer() {
        let block = record(100 + writes);
        content(block.identity, &mut buffer);
        match writes < 2 {
            true => store.write(SlotId(2), &block, buffer),
            false => {
                store.read(reads, SlotId(0), record(0).identity, buffer);
                reads += 1;
            }
        }
        writes += 1;
    }
    assert!(writes >= 3 && store.completed().is_none(), "the buffers are the bound");
    let used = Use { stamp: 9, heat: 1.0, at_s: 1_800_000_000, expires_s: 0 };
    for i in 0..100_001 {
        store.touch(SlotId(0), used);
        store.pin(SlotId(0), i % 2 == 1);
        store.pin(SlotId(1), i % 2 == 0);
    }
    store.erase(SlotId(3));
    assert!(started.elapsed() < NO_WAIT, "{:?}", started.elapsed());
    drop(hangs);
    for _ in 0..writes {
        let completed = poll(|| store.completed());
        let is_done = match &completed {
            Completed::Written { result, .. } => result.is_ok(),
            Completed::Read { result, .. } => result.is_ok(),
            Completed::Seen(_) | Completed::TookOver => false,
        };
        assert!(is_done, "{completed:?}");
    }
    drop(opened);
    let pinned: Vec<(u32, bool)> =
        scene.survivors().iter().map(|(slot, record)| (*slot, record.pinned)).collect();
    assert_eq!(pinned[..2], [(0, false), (1, true)]);
    assert_eq!(pinned.len(), 3, "one was erased");
}

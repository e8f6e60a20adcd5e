//! Damaged files: whatever happens to them, blocks are lost but never wrong.
//!
//! [`Scene::survivors`] compares every block that it reads with the bytes of its identity.

use std::fs;

use kvik_testing::effort;
use proptest::prelude::*;

use super::*;
use crate::store::format::{HEADER_BYTES, SUPERBLOCK_BYTES, USE_OFFSET};

const SLOTS: u64 = 4;
/// Distance from one payload to the next.
const STRIDE: usize = 3 * 4096;

/// A filled store and the bytes of its files, from which it can be restored.
struct Intact {
    scene: Scene,
    bytes: [Vec<u8>; 2],
}

const HEADERS: usize = 0;
const PAYLOADS: usize = 1;
const NONE: [u32; 0] = [];

impl Intact {
    fn new() -> Intact {
        Intact::of(Scene::filled(SLOTS))
    }

    fn of(scene: Scene) -> Intact {
        let bytes = scene.files().map(|path| fs::read(path).unwrap());
        Intact { scene, bytes }
    }

    /// The records that can be read when the files hold `bytes`.
    fn survivors_of(&self, bytes: &[Vec<u8>; 2]) -> Vec<(u32, Record)> {
        for (path, bytes) in self.scene.files().iter().zip(bytes) {
            fs::write(path, bytes).unwrap();
        }
        self.scene.survivors()
    }

    /// The slots that can be read after `damage`.
    fn slots_after(&self, damage: impl FnOnce(&mut [Vec<u8>; 2])) -> Vec<u32> {
        let mut bytes = self.bytes.clone();
        damage(&mut bytes);
        self.survivors_of(&bytes).into_iter().map(|(slot, _)| slot).collect()
    }
}

fn header(slot: usize) -> usize {
    SUPERBLOCK_BYTES + slot * HEADER_BYTES
}

#[test]
fn a_flip_of_any_bit_of_the_superblock_is_detected() {
    let intact = Intact::new();
    for bit in (0..104 * 8).step_by(effort(5, 1)) {
        let slots = intact.slots_after(|bytes| bytes[HEADERS][bit / 8] ^= 1 << (bit % 8));
        assert_eq!(slots, NONE, "bit {bit}");
    }
    let slots = intact.slots_after(|bytes| bytes[HEADERS][104..SUPERBLOCK_BYTES].fill(0xFF));
    assert_eq!(slots, [0, 1, 2, 3], "padding is not checked");
}

#[test]
fn a_flip_of_any_bit_of_a_header_loses_that_slot_only() {
    let intact = Intact::new();
    for bit in (0..184 * 8 + 64).step_by(effort(5, 1)) {
        let slots = intact.slots_after(|bytes| bytes[HEADERS][header(2) + bit / 8] ^= 1 << (bit % 8));
        assert_eq!(slots, [0, 1, 3], "bit {bit}");
    }
}

#[test]
fn a_torn_use_is_reset_and_the_block_stays() {
    let intact = Intact::new();
    let reset = Record { use_: Use { at_s: 2, expires_s: 2, ..Use::default() }, ..record(2) };
    for bit in (0..(HEADER_BYTES - USE_OFFSET) * 8).step_by(effort(5, 1)) {
        let mut bytes = intact.bytes.clone();
        bytes[HEADERS][header(2) + USE_OFFSET + bit / 8] ^= 1 << (bit % 8);
        assert_eq!(intact.survivors_of(&bytes)[2], (2, reset), "bit {bit}");
    }
}

#[test]
fn a_flip_in_any_byte_of_a_payload_is_detected() {
    let intact = Intact::new();
    let mut random = Random(1);
    let edges = [0, 1, 4095, 4096, 4097, 8191, 8192, PAYLOAD_BYTES - 1];
    let anywhere: Vec<usize> = (0..100).map(|_| random.below(PAYLOAD_BYTES as u64) as usize).collect();
    for byte in edges.into_iter().chain(anywhere) {
        let bit = 1 << random.below(8);
        let slots = intact.slots_after(|bytes| bytes[PAYLOADS][STRIDE + byte] ^= bit);
        assert_eq!(slots, [0, 2, 3], "byte {byte}");
    }
    let slots = intact.slots_after(|bytes| bytes[PAYLOADS][STRIDE + PAYLOAD_BYTES..2 * STRIDE].fill(9));
    assert_eq!(slots, [0, 1, 2, 3], "padding is not checked");
}

#[test]
fn a_truncated_file_keeps_the_blocks_before_its_end() {
    let intact = Intact::new();
    let all = [0, 1, 2, 3];
    for length in [0, 1, 103, 104, SUPERBLOCK_BYTES - 1] {
        assert_eq!(intact.slots_after(|bytes| bytes[HEADERS].truncate(length)), NONE);
    }
    for slots in 0..4 {
        for more in [0, 1, 184, USE_OFFSET, HEADER_BYTES - 1] {
            let kept = intact.slots_after(|bytes| bytes[HEADERS].truncate(header(slots) + more));
            assert_eq!(kept, all[..slots], "{more} bytes of the header of slot {slots}");
        }
        for more in [0, 1, 4096, PAYLOAD_BYTES - 1] {
            let kept = intact.slots_after(|bytes| bytes[PAYLOADS].truncate(slots * STRIDE + more));
            assert_eq!(kept, all[..slots], "{more} bytes of the payload of slot {slots}");
        }
    }
    assert_eq!(intact.slots_after(|bytes| bytes[HEADERS].extend([0xFF; 999])), all);
    assert_eq!(intact.slots_after(|bytes| bytes[PAYLOADS].extend([0xFF; 999])), all);
}

fn swap(bytes: &mut [u8], at: usize, other: usize, length: usize) {
    let (low, high) = bytes.split_at_mut(other);
    low[at..at + length].swap_with_slice(&mut high[..length]);
}

#[test]
fn swapped_slots_are_detected() {
    let intact = Intact::new();
    let headers = |bytes: &mut [Vec<u8>; 2]| swap(&mut bytes[HEADERS], header(1), header(2), HEADER_BYTES);
    let payloads = |bytes: &mut [Vec<u8>; 2]| swap(&mut bytes[PAYLOADS], STRIDE, 2 * STRIDE, STRIDE);
    assert_eq!(intact.slots_after(headers), [0, 3]);
    assert_eq!(intact.slots_after(payloads), [0, 3]);
    let both = |bytes: &mut [Vec<u8>; 2]| {
        headers(bytes);
        payloads(bytes);
    };
    assert_eq!(intact.slots_after(both), [0, 3]);
}

#[test]
fn files_of_another_model_are_rejected() {
    let intact = Intact::new();
    // The limit has room for both, so neither removes the other.
    let other = StoreConfig { model: [2; 32], ..config(&intact.scene.config.dir, 4 * SLOTS) };
    let mut store = open(&other).unwrap().store;
    for number in 0..SLOTS {
        store.put(number as u32, &record(10 + number)).unwrap();
    }
    drop(store);
    let theirs = files(&other).map(|path| fs::read(path).unwrap());
    let [our_headers, our_payloads] = &intact.bytes;
    let [their_headers, their_payloads] = &theirs;
    let survivors =
        |headers: &[u8], payloads: &[u8]| intact.survivors_of(&[headers.to_vec(), payloads.to_vec()]).len();
    assert_eq!(survivors(their_headers, their_payloads), 0);
    assert_eq!(survivors(their_headers, our_payloads), 0);
    assert_eq!(survivors(our_headers, their_payloads), 0);
    let slots = [our_headers[..header(0)].to_vec(), their_headers[header(0)..].to_vec()].concat();
    assert_eq!(survivors(&slots, their_payloads), 0, "their headers after our superblock");
    assert_eq!(survivors(our_headers, our_payloads), 4);
}

#[test]
fn a_header_of_an_earlier_file_at_the_same_path_is_rejected() {
    let intact = Intact::new();
    for path in intact.scene.files() {
        fs::remove_file(path).unwrap();
    }
    drop(intact.scene.open());
    let superblock = fs::read(&intact.scene.files()[HEADERS]).unwrap();
    let slots = intact.slots_after(|bytes| bytes[HEADERS][..SUPERBLOCK_BYTES].copy_from_slice(&superblock));
    assert_eq!(slots, NONE);
}

/// On a power loss, sectors of 512 bytes may have reached the disk in any order, or not at all.
#[test]
fn a_mix_of_old_and_new_sectors_yields_no_wrong_block() {
    let before = Intact::new();
    let mut store = before.scene.open().store;
    for (slot, number) in [(0, 10), (1, 11), (2, 2)] {
        store.put(slot, &record(number)).unwrap();
    }
    store.erase(SlotId(3));
    store.touch(SlotId(1), Use { stamp: 1000, heat: 9.0, at_s: 1000, expires_s: 0 });
    drop(store);
    let after = before.scene.files().map(|path| fs::read(path).unwrap());
    let mut random = Random(2);
    let mut outcomes = std::collections::HashSet::new();
    for _ in 0..300 {
        // From a power loss right after the first write phase to one just before the last.
        let new_in_8 = random.below(9);
        let mut mixed = before.bytes.clone();
        for (mixed, after) in mixed.iter_mut().zip(&after) {
            for (mixed, after) in mixed.chunks_mut(512).zip(after.chunks(512)) {
                if random.below(8) < new_in_8 {
                    mixed.copy_from_slice(after);
                }
            }
        }
        let known = [0, 1, 2, 3, 10, 11].map(|number| record(number).identity);
        let survivors = before.survivors_of(&mixed);
        assert!(survivors.iter().all(|(_, record)| known.contains(&record.identity)));
        outcomes.insert(survivors.len());
    }
    assert!(outcomes.len() > 2, "{outcomes:?}");
}

/// A kind of damage to a file; positions are fractions of its length.
#[derive(Debug, Clone)]
enum Damage {
    Flip { at: f64, bit: u8 },
    Fill { at: f64, length: usize, byte: u8 },
    Noise { at: f64, bytes: Vec<u8> },
    Copy { from: f64, to: f64, length: usize },
    Truncate { at: f64 },
    Extend { length: usize, byte: u8 },
}

fn damage() -> impl Strategy<Value = Damage> {
    // Half of all positions are near the front of the file, which has most of its structure.
    let at = || prop_oneof![0.0..1.0f64, 0.0..0.01f64];
    let length = || prop_oneof![1..40usize, Just(HEADER_BYTES), Just(4096), Just(STRIDE)];
    prop_oneof![
        (at(), 0..8u8).prop_map(|(at, bit)| Damage::Flip { at, bit }),
        (at(), length(), prop_oneof![Just(0), Just(0xFF), any::<u8>()])
            .prop_map(|(at, length, byte)| Damage::Fill { at, length, byte }),
        (at(), prop::collection::vec(any::<u8>(), 1..300))
            .prop_map(|(at, bytes)| Damage::Noise { at, bytes }),
        (at(), at(), length()).prop_map(|(from, to, length)| Damage::Copy { from, to, length }),
        at().prop_map(|at| Damage::Truncate { at }),
        (length(), any::<u8>()).prop_map(|(length, byte)| Damage::Extend { length, byte }),
    ]
}

impl Damage {
    fn apply(&self, bytes: &mut Vec<u8>) {
        let position = |at: f64| (bytes.len() as f64 * at) as usize;
        let range = |at: f64, length: usize| position(at)..(position(at) + length).min(bytes.len());
        match self {
            Damage::Flip { at, bit } => {
                let at = position(*at);
                bytes.get_mut(at).into_iter().for_each(|byte| *byte ^= 1 << bit);
            }
            Damage::Fill { at, length, byte } => {
                let range = range(*at, *length);
                bytes[range].fill(*byte);
            }
            Damage::Noise { at, bytes: noise } => {
                let range = range(*at, noise.len());
                let length = range.len();
                bytes[range].copy_from_slice(&noise[..length]);
            }
            Damage::Copy { from, to, length } => {
                let (from, to) = (range(*from, *length), range(*to, *length));
                let length = from.len().min(to.len());
                bytes.copy_within(from.start..from.start + length, to.start);
            }
            Damage::Truncate { at } => {
                let length = position(*at);
                bytes.truncate(length);
            }
            Damage::Extend { length, byte } => bytes.extend(std::iter::repeat_n(*byte, *length)),
        }
    }
}

#[test]
fn any_damage_leaves_misses_and_a_working_store() {
    let intact = Intact::new();
    let known = [0, 1, 2, 3].map(|number| record(number).identity);
    let mut runner = proptest::test_runner::TestRunner::default();
    let damages = prop::collection::vec((any::<bool>(), damage()), 1..6);
    runner
        .run(&damages, |damages| {
            let mut bytes = intact.bytes.clone();
            for (headers, damage) in &damages {
                damage.apply(&mut bytes[if *headers { HEADERS } else { PAYLOADS }]);
            }
            let survivors = intact.survivors_of(&bytes);
            prop_assert!(survivors.iter().all(|(_, record)| known.contains(&record.identity)));
            let mut store = intact.scene.open().store;
            prop_assert_eq!(store.put(3, &record(30)), Ok(()));
            prop_assert_eq!(store.get(3, record(30).identity), Ok(()));
            Ok(())
        })
        .unwrap();
}

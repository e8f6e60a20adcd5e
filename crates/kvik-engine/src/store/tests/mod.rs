//! Test stores, filled with blocks whose bytes are derived from their identities.

mod damage;
mod erase;
mod faults;
mod hang;
mod kill;
mod life;
mod neighbours;
mod shared;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kvik_cache::tier::{BlockTokens, IoFault, Record, SlotId, Use};
use kvik_cache::{Identity, Token};
use tempfile::TempDir;

use super::{BlockStore, Buffer, Completed, Opened, Store, StoreConfig, StoreError};

/// Maximum time of calls that wait for nobody, on a machine that has more to do.
const NO_WAIT: Duration = Duration::from_secs(5);
/// Not a multiple of a page or of a vector.
pub(super) const PAYLOAD_BYTES: usize = 10_007;

/// Configuration of a store of `slots` slots.
pub(super) fn config(dir: &Path, slots: u64) -> StoreConfig {
    StoreConfig {
        dir: dir.to_owned(),
        bytes_max: 4096 + slots * super::slot_bytes(PAYLOAD_BYTES as u64),
        model: [1; 32],
        kv_format: "q8/q8".to_owned(),
        payload_bytes: PAYLOAD_BYTES,
        buffers: 4,
    }
}

/// The record of the `number`th block, different for every number.
pub(super) fn record(number: u64) -> Record {
    let parent = Identity(*blake3::hash(&number.to_le_bytes()).as_bytes());
    let tokens: Vec<Token> = (0..1 + number % 16).map(|token| (number + token) as Token).collect();
    Record {
        identity: parent.child(&tokens),
        parent,
        owner: number % 3,
        content_key: number.wrapping_mul(0x9E37_79B9_7F4A_7C15),
        tokens: BlockTokens::new(&tokens).unwrap(),
        pinned: number.is_multiple_of(2),
        lacks_part: number % 4 > 1,
        use_: Use { stamp: number, heat: number as f32 / 4.0, at_s: number + 1, expires_s: number % 5 },
    }
}

/// The bytes of the block with an identity, different for every identity.
pub(super) fn content(identity: Identity, bytes: &mut [u8]) {
    blake3::Hasher::new().update(&identity.0).finalize_xof().fill(bytes);
}

/// A small deterministic generator of random numbers.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// A temporary directory and the configuration of a store in it.
pub(super) struct Scene {
    pub(super) dir: TempDir,
    pub(super) config: StoreConfig,
}

impl Scene {
    pub(super) fn new(slots: u64) -> Scene {
        let dir = tempfile::tempdir().unwrap();
        let config = config(&dir.path().join("cache"), slots);
        Scene { dir, config }
    }

    /// A scene with block `n` in slot `n`.
    pub(super) fn filled(slots: u64) -> Scene {
        let scene = Scene::new(slots);
        let mut opened = scene.open();
        for number in 0..slots {
            opened.store.put(number as u32, &record(number)).unwrap();
        }
        scene
    }

    pub(super) fn open(&self) -> Opened {
        open(&self.config).unwrap()
    }

    /// The files of the store: headers, payloads.
    pub(super) fn files(&self) -> [PathBuf; 2] {
        files(&self.config)
    }

    /// Slots and records of the blocks that a reopened store finds and can read.
    pub(super) fn survivors(&self) -> Vec<(u32, Record)> {
        let mut opened = self.open();
        let records = std::mem::take(&mut opened.records);
        let read = |(slot, record): (SlotId, Record)| {
            opened.store.get(slot.0, record.identity).is_ok().then_some((slot.0, record))
        };
        records.into_iter().filter_map(read).collect()
    }
}

pub(super) fn open(config: &StoreConfig) -> Result<Opened, StoreError> {
    Store::open(config, || {})
}

pub(super) fn files(config: &StoreConfig) -> [PathBuf; 2] {
    let fingerprint = super::format::fingerprint(&config.model, &config.kv_format);
    let directory = super::Directory::new(&config.dir, &fingerprint);
    [directory.headers(), directory.payloads()]
}

impl Store {
    /// Writes a block with its bytes and waits.
    pub(super) fn put(&mut self, slot: u32, record: &Record) -> Result<(), IoFault> {
        let mut buffer = self.wait_for_buffer();
        content(record.identity, &mut buffer);
        self.write(SlotId(slot), record, buffer);
        match self.wait() {
            Completed::Written { slot: written, result } => {
                assert_eq!(written, SlotId(slot));
                result.map(|_| ())
            }
            other => panic!("{other:?}"),
        }
    }

    /// Reads a block and waits. Asserts that a successful read returns the block's bytes.
    pub(super) fn get(&mut self, slot: u32, identity: Identity) -> Result<(), IoFault> {
        let buffer = self.wait_for_buffer();
        self.read(7, SlotId(slot), identity, buffer);
        match self.wait() {
            Completed::Read { ticket, slot: read, result } => {
                assert_eq!((ticket, read), (7, SlotId(slot)));
                let (buffer, _) = result?;
                let mut expected = vec![0; buffer.len()];
                content(identity, &mut expected);
                assert!(*buffer == *expected, "slot {slot}: these are not the block's bytes");
                Ok(())
            }
            other => panic!("{other:?}"),
        }
    }

    fn wait(&mut self) -> Completed {
        poll(|| self.completed())
    }

    fn wait_for_buffer(&mut self) -> Buffer {
        poll(|| self.buffer())
    }
}

/// Calls `ready` until it returns a value.
pub(super) fn poll<T>(mut ready: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(value) = ready() {
            return value;
        }
        assert!(started.elapsed() < Duration::from_secs(30), "the store does not answer");
        std::thread::sleep(Duration::from_micros(50));
    }
}

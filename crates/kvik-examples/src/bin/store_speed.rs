//! Times the disk tier: `cargo run --release -p kvik-examples --bin store_speed -- DIR`.
//!
//! DIR should be on the disk to measure and have 9 GiB free; the files created in it are removed.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kvik_cache::Identity;
use kvik_cache::tier::{BlockTokens, Record, SlotId, Use};
use kvik_engine::store::{BlockStore, Buffer, Completed, Opened, Store, StoreConfig, StoreError};

type Error = Box<dyn std::error::Error>;

/// A block of the Qwen3-0.6B shape in f16: 28 layers, 8 heads of 128, keys and values, 16 positions.
const BLOCK_BYTES: usize = 28 * 8 * 128 * 2 * 2 * 16;
/// A block of a tiny model.
const TINY_BYTES: usize = 27 << 10;
/// Blocks that are written and read: 1.8 GiB.
const BLOCKS: u32 = 1024;
/// Slots of 8 GiB.
const LARGE_SLOTS: u32 = ((8 << 30) / BLOCK_BYTES) as u32;
const TINY_SLOTS: u32 = 300_000;

fn main() -> Result<(), Error> {
    let root = std::env::args_os().nth(1).ok_or("say where: store_speed DIR")?;
    let dir = PathBuf::from(root).join(format!("store_speed.{}", std::process::id()));
    let outcome = measure(&dir);
    fs::remove_dir_all(&dir)?;
    outcome
}

fn measure(dir: &Path) -> Result<(), Error> {
    println!("blocks of {BLOCK_BYTES} bytes, {BLOCKS} of them");
    move_blocks(&config(&dir.join("moved"), BLOCK_BYTES, BLOCKS))?;
    fs::remove_dir_all(dir.join("moved"))?;
    for (name, payload_bytes, slots) in
        [("large", BLOCK_BYTES, LARGE_SLOTS), ("tiny", TINY_BYTES, TINY_SLOTS)]
    {
        recover(&config(&dir.join(name), payload_bytes, slots))?;
        fs::remove_dir_all(dir.join(name))?;
    }
    Ok(())
}

fn config(dir: &Path, payload_bytes: usize, slots: u32) -> StoreConfig {
    let slot_bytes = 256 + payload_bytes.next_multiple_of(4096) as u64;
    StoreConfig {
        dir: dir.to_owned(),
        bytes_max: 4096 + u64::from(slots) * slot_bytes,
        model: [7; 32],
        kv_format: "f16/f16".to_owned(),
        payload_bytes,
        buffers: 8,
    }
}

fn record(number: u32) -> Record {
    let parent = Identity(*blake3::hash(&number.to_le_bytes()).as_bytes());
    let tokens = [number; 16];
    Record {
        identity: parent.child(&tokens),
        parent,
        owner: 0,
        content_key: u64::from(number),
        tokens: BlockTokens::new(&tokens).expect("a block holds 16"),
        pinned: false,
        lacks_part: false,
        use_: Use::default(),
    }
}

/// Writes every block, reads every block, and prints how fast.
fn move_blocks(config: &StoreConfig) -> Result<(), Error> {
    let Opened { mut store, slots, .. } = open(config)?;
    let rewrite = |store: &mut Store| {
        run(store, slots, |store, number, buffer| store.write(SlotId(number), &record(number), buffer))
    };
    print("write, new slots", config, rewrite(&mut store)?, slots);
    print("write, old slots", config, rewrite(&mut store)?, slots);
    let read = |store: &mut Store| {
        run(store, slots, |store, number, buffer| {
            store.read(u64::from(number), SlotId(number), record(number).identity, buffer);
        })
    };
    print("read, page cache", config, read(&mut store)?, slots);
    Ok(())
}

fn print(what: &str, config: &StoreConfig, (wall, alone): (Duration, Duration), blocks: u32) {
    let gigabytes = config.payload_bytes as f64 * f64::from(blocks) / 1e9;
    println!(
        "{what:17} {:6.2} GB/s in all, {:6.2} GB/s and {:6.0} us for one block",
        gigabytes / wall.as_secs_f64(),
        gigabytes / alone.as_secs_f64(),
        alone.as_secs_f64() / f64::from(blocks) * 1e6,
    );
}

/// Submits one operation per block and collects the completions; returns the total time, and the sum of
/// the operations' own times.
fn run(
    store: &mut Store,
    blocks: u32,
    mut submit: impl FnMut(&mut Store, u32, Buffer),
) -> Result<(Duration, Duration), Error> {
    let started = Instant::now();
    let (mut submitted, mut completed, mut alone) = (0, 0, Duration::ZERO);
    while completed < blocks {
        while submitted < blocks
            && let Some(buffer) = store.buffer()
        {
            submit(store, submitted, buffer);
            submitted += 1;
        }
        match store.completed() {
            Some(Completed::Written { result, .. }) => {
                alone += result.map_err(|fault| format!("{fault:?}"))?;
                completed += 1;
            }
            Some(Completed::Read { result, .. }) => {
                alone += result.map_err(|fault| format!("{fault:?}"))?.1;
                completed += 1;
            }
            _ => std::thread::sleep(Duration::from_micros(20)),
        }
    }
    Ok((started.elapsed(), alone))
}

/// Fills a store and prints how long opening it takes, with its headers in the page cache and without.
fn recover(config: &StoreConfig) -> Result<(), Error> {
    let Opened { mut store, slots, .. } = open(config)?;
    run(&mut store, slots, |store, number, buffer| store.write(SlotId(number), &record(number), buffer))?;
    drop(store);
    println!("recovery of {slots} slots of {} bytes", config.payload_bytes);
    time_recovery(config, "headers in memory")?;
    drop_page_cache(&config.dir)?;
    time_recovery(config, "headers on disk")
}

fn time_recovery(config: &StoreConfig, what: &str) -> Result<(), Error> {
    let started = Instant::now();
    let opened = open(config)?;
    let took = started.elapsed();
    println!("{what:17} {:7} found in {took:.1?}", opened.records.len());
    Ok(())
}

/// Flushes the files of headers and drops them from the page cache.
fn drop_page_cache(dir: &Path) -> Result<(), Error> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path().join("headers");
        if let Ok(file) = File::open(path) {
            file.sync_all()?;
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        }
    }
    Ok(())
}

fn open(config: &StoreConfig) -> Result<Opened, StoreError> {
    Store::open(config, || {})
}

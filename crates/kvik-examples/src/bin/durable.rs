//! How long it takes until all is on disk, when nothing is: what `on_background` of the library waits for at the worst.
//!
//! ```text
//! cargo run --release -p kvik-examples --bin durable -- DIR [BLOCKS] [MODEL.gguf]
//! ```
//!
//! The disk is held up while prompts of random tokens fill `BLOCKS` (2,000) blocks, which it otherwise writes while the
//! model computes the next ones. Then it is let go, and the engine waits for it. AuxiliaryState it: as many bytes written to one
//! file, which is what the system takes for that alone. Nothing is flushed in either, since a kill loses nothing that the
//! system has.

use std::collections::VecDeque;
use std::error::Error;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kvik_cache::tier::{Record, SlotId, Use};
use kvik_cache::{AuxiliaryState, BLOCK_POSITIONS, CacheConfig, Identity, Policy};
use kvik_engine::api::{PinnedPrompt, Request};
use kvik_engine::config::usual::STEP_ROWS;
use kvik_engine::engine::{Attached, Engine, EngineConfig};
use kvik_engine::schedule::disk::{DiskSetup, store_config};
use kvik_engine::store::{BlockStore, Buffer, Completed};
use kvik_kernels::{KvFormat, Pool, performance_cores};
use kvik_model::load::LoadedModel;
use kvik_model::{Model, ModelRunner};
use kvik_testing::mix;

/// Rounds, of which the first finds a new directory.
const ROUNDS: u64 = 4;
/// Tokens of a prompt.
const PROMPT: usize = 1920;
/// Longer than any disk takes.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let root = args.next().ok_or("say where: durable DIR")?;
    let blocks: usize = args.next().map_or(Ok(2000), |count| count.parse())?;
    let tiny = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny/kvik-tiny-q8_0.gguf");
    let path = args.next().unwrap_or_else(|| tiny.to_owned());
    let dir = PathBuf::from(root).join(format!("durable.{}", std::process::id()));
    let outcome = (0..ROUNDS).try_for_each(|round| measure(&dir, blocks, Path::new(&path), round));
    let _ = fs::remove_dir_all(&dir);
    outcome
}

/// One process's life: fills the cache, and waits for the disk.
fn measure(dir: &Path, blocks: usize, model: &Path, round: u64) -> Result<(), Box<dyn Error>> {
    let held = Arc::new(AtomicBool::new(true));
    let (engine, block_bytes) = start(dir, blocks, model, held.clone())?;
    let prompts = (blocks * BLOCK_POSITIONS).div_ceil(PROMPT);
    for index in 0..prompts {
        let tokens = PROMPT.min(blocks * BLOCK_POSITIONS - index * PROMPT);
        engine.generate(request(tokens, round * 1000 + index as u64))?;
    }
    let dirty = engine.flush(Duration::ZERO)?.unwritten_blocks;
    held.store(false, Ordering::Relaxed);
    let started = Instant::now();
    let durable = engine.settle(PATIENCE)?;
    let took = started.elapsed();
    if !durable.is_complete() {
        return Err(format!("{durable:?} after {took:?}").into());
    }
    let bytes = dirty * block_bytes;
    let plain = write_plainly(&dir.join("plain"), bytes)?;
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    println!(
        "{dirty} blocks, {:.1} MiB: {:.1} ms; one file: {:.1} ms",
        bytes as f64 / f64::from(1 << 20),
        ms(took),
        ms(plain)
    );
    engine.shutdown(Duration::ZERO);
    Ok(())
}

fn start(
    dir: &Path,
    blocks: usize,
    path: &Path,
    held: Arc<AtomicBool>,
) -> Result<(Engine, usize), Box<dyn Error>> {
    let pool = Arc::new(Pool::new(performance_cores()));
    let LoadedModel { config, tensors, tokenizer, .. } = LoadedModel::open(path)?;
    let model = Arc::new(Model::load(config, tensors, None, &pool, &|_, _| {})?);
    let layout = ModelRunner::uniform_layout(model.config(), KvFormat::F16);
    let (context_tokens, digest, block_bytes) = (PROMPT + 16, model.digest(), layout.block_bytes());
    let config = EngineConfig {
        draft_rows_max: 0,
        auxiliary: AuxiliaryState {
            block_bytes,
            ..ModelRunner::auxiliary(model.config(), &layout, STEP_ROWS)
        },
        ..EngineConfig::new(&layout, digest, context_tokens)
    };
    let disk = store_config((dir, 4 << 30), digest, ("f16", "any"), block_bytes);
    let mut disk = DiskSetup::open(&disk, 0, 0)?.setup;
    disk.store = Box::new(Held { below: disk.store, held, waiting: VecDeque::new() });
    let room = blocks + context_tokens;
    let runner = ModelRunner::new(model, pool, layout, room, context_tokens)?;
    let cache = CacheConfig { blocks: room, policy: Policy::Lru, ghosts: 0, pinned_max: 0 };
    let attached = Attached { disk: Some(disk), ..Attached::default() };
    Ok((Engine::start_with(Box::new(runner), &tokenizer, cache, config, attached)?, block_bytes))
}

/// A prompt that nobody else has.
fn request(tokens: usize, salt: u64) -> Request {
    let prompt = PinnedPrompt {
        tokens: (0..tokens as u64).map(|at| (mix(salt << 32 | at) % 1000) as u32).collect(),
        adapters: None,
        salt: [0; 16],
        tenant: Default::default(),
        retention: None,
    };
    Request { max_tokens: 1, lifetime: Default::default(), ..prompt.request() }
}

/// The time it takes to write so many bytes to one new file.
fn write_plainly(path: &Path, bytes: usize) -> Result<Duration, Box<dyn Error>> {
    let piece = vec![7; 1 << 20];
    let started = Instant::now();
    let mut file = File::create(path)?;
    for at in (0..bytes).step_by(piece.len()) {
        file.write_all(&piece[..piece.len().min(bytes - at)])?;
    }
    let took = started.elapsed();
    fs::remove_file(path)?;
    Ok(took)
}

/// A disk that writes nothing while it is held.
struct Held {
    below: Box<dyn BlockStore>,
    held: Arc<AtomicBool>,
    waiting: VecDeque<(SlotId, Record, Buffer)>,
}

impl BlockStore for Held {
    fn payload_bytes(&self) -> usize {
        self.below.payload_bytes()
    }

    fn buffer(&mut self) -> Option<Buffer> {
        self.below.buffer()
    }

    fn write(&mut self, slot: SlotId, record: &Record, payload: Buffer) {
        match self.held.load(Ordering::Relaxed) {
            true => self.waiting.push_back((slot, *record, payload)),
            false => self.below.write(slot, record, payload),
        }
    }

    fn read(&mut self, ticket: u64, slot: SlotId, identity: Identity, into: Buffer) {
        self.below.read(ticket, slot, identity, into);
    }

    fn touch(&mut self, slot: SlotId, use_: Use) {
        self.below.touch(slot, use_);
    }

    fn pin(&mut self, slot: SlotId, pinned: bool) {
        self.below.pin(slot, pinned);
    }

    fn erase(&mut self, slot: SlotId) {
        self.below.erase(slot);
    }

    fn evict(&mut self, slot: SlotId) {
        self.below.evict(slot);
    }

    fn trim(&mut self) {
        self.below.trim();
    }

    fn completed(&mut self) -> Option<Completed> {
        if !self.held.load(Ordering::Relaxed) {
            for (slot, record, payload) in self.waiting.drain(..) {
                self.below.write(slot, &record, payload);
            }
        }
        self.below.completed()
    }
}

//! Promise 2: reuse never changes an answer, to the byte.
//!
//! Real models and the real cache are driven through random histories: prompts that share prefixes arrive,
//! are cut into random chunks, batched with others in random order, cancelled, evicted and reused, on
//! different numbers of threads. Every row of logits must be byte-identical to the one of the same prompt
//! computed alone, cold, in one piece, on one thread.

#![allow(clippy::unwrap_used)] // a test may fail where it stands

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kvik_cache::{
    Admission, BlockId, Cache, CacheConfig, Lifetime, NamespaceId, Namespaces, Policy, SeqId, Token,
};
use kvik_engine::load::LoadedModel;
use kvik_engine::model::batch::{Batch, Row, Runner, SequenceKv};
use kvik_engine::model::{KvMap, Model, ModelRunner};
use kvik_kernels::{KvFormat, KvFormats, Pool};

/// The size of a history.
#[derive(Debug, Clone, Copy)]
struct Scale {
    /// Tokens of the longest prompt.
    prompt_max: usize,
    /// Blocks of the pool: room for about five prompts, so that most histories evict.
    blocks: usize,
    steps: usize,
}

const SHORT: Scale = Scale { prompt_max: 90, blocks: 32, steps: 120 };
/// Prompts that span several of the fixed splits of attention.
const LONG: Scale = Scale { prompt_max: 900, blocks: 260, steps: 60 };

/// SplitMix64 (Steele, Lea, Flood 2014), so that histories are the same on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

fn load(path: &Path, pool: &Pool) -> Arc<Model> {
    let LoadedModel { config, tensors, .. } = LoadedModel::open(path).unwrap();
    Arc::new(Model::load(config, tensors, None, pool, &|_, _| {}).unwrap())
}

fn runner(model: &Arc<Model>, map: &KvMap, threads: usize, scale: Scale) -> ModelRunner {
    let layout = ModelRunner::layout(model.config(), map).unwrap();
    ModelRunner::new(model.clone(), Pool::new(threads), layout, scale.blocks, scale.prompt_max).unwrap()
}

/// Logits of every position of prompts, each computed alone, cold, in one piece, on one thread.
struct Solo {
    runner: ModelRunner,
    known: HashMap<Vec<Token>, Vec<u32>>,
}

impl Solo {
    /// The bits of the logits at `position` of `prompt`.
    fn logits(&mut self, prompt: &[Token], position: usize) -> &[u32] {
        let vocab = self.runner.vocab_len();
        let all = self.known.entry(prompt.to_vec()).or_insert_with(|| {
            let rows: Vec<Row> = (0..prompt.len()).map(|position| row(0, prompt, position, true)).collect();
            let table: Vec<BlockId> = (0..prompt.len().div_ceil(16) as u32).map(BlockId).collect();
            let logits = self
                .runner
                .forward(&Batch { rows: &rows, sequences: &[SequenceKv::in_blocks(&table)] }, &mut []);
            logits.iter().map(|logit| logit.to_bits()).collect()
        });
        &all[position * vocab..(position + 1) * vocab]
    }
}

fn row(sequence: usize, prompt: &[Token], position: usize, logits: bool) -> Row {
    let token = prompt[position];
    let position = position as u32;
    Row { sequence: sequence as u32, token, position, cache_position: position, logits }
}

/// A prompt being computed.
struct Running {
    seq: SeqId,
    prompt: Vec<Token>,
    /// Positions stored.
    done: usize,
}

/// Counts of events; a history proves something only if all of them occur.
#[derive(Debug, Default)]
struct Seen {
    compared: usize,
    reused_tokens: usize,
    copies: usize,
    cancelled: usize,
    evicted: u64,
    batched: usize,
}

struct World {
    scale: Scale,
    random: Random,
    cache: Cache,
    namespace: NamespaceId,
    runner: ModelRunner,
    solo: Solo,
    /// Texts that prompts are cut from.
    stems: Vec<Vec<Token>>,
    running: Vec<Running>,
    next: u64,
    seen: Seen,
}

impl World {
    fn new(model: &Arc<Model>, map: &KvMap, scale: Scale, seed: u64) -> World {
        let mut random = Random(seed);
        let vocab = model.config().vocab;
        let mut stem = || (0..scale.prompt_max).map(|_| random.below(vocab) as Token).collect();
        let stems = (0..4).map(|_| stem()).collect();
        let config = CacheConfig { blocks: scale.blocks, policy: Policy::Lru, ghosts: 64, pinned_max: 0 };
        let mut cache = Cache::new(config).unwrap();
        let namespaces = Namespaces { model: model.digest(), kv_format: &map.to_string(), adapter: None };
        World {
            scale,
            namespace: cache.namespace(&namespaces.shared([0; 16])),
            cache,
            runner: runner(model, map, [1, 2, 3, 5, 8][random.below(5)], scale),
            solo: Solo { runner: runner(model, map, 1, scale), known: HashMap::new() },
            random,
            stems,
            running: Vec::new(),
            next: 0,
            seen: Seen::default(),
        }
    }

    fn live(mut self) -> Seen {
        for _ in 0..self.scale.steps {
            if self.running.len() < 5 && self.random.one_in(2) {
                self.arrive();
            }
            if self.random.one_in(12) {
                self.cancel();
            }
            self.step();
            self.leave();
            self.cache.check().unwrap();
        }
        self.seen.evicted = self.cache.stats().totals.evicted;
        self.seen
    }

    /// The beginning of one stem, sometimes followed by a piece of another.
    fn prompt(&mut self) -> Vec<Token> {
        let stem = self.random.below(self.stems.len());
        let cut = 1 + self.random.below(self.scale.prompt_max);
        let mut prompt = self.stems[stem][..cut].to_vec();
        if self.random.one_in(2) {
            let other = self.random.below(self.stems.len());
            let len = self.random.below(self.scale.prompt_max - cut + 1);
            prompt.extend(&self.stems[other][..len]);
        }
        prompt
    }

    fn arrive(&mut self) {
        let prompt = self.prompt();
        let seq = SeqId(self.next);
        let admission = Admission {
            seq,
            namespace: self.namespace,
            prompt: &prompt,
            reuse_max: prompt.len() - 1,
            positions: prompt.len(),
            lifetime: Lifetime::default(),
        };
        let Ok(admitted) = self.cache.admit(admission) else { return };
        if let Some(copy) = admitted.copy {
            self.runner.copy_partial(copy.from, copy.to, copy.positions);
            self.seen.copies += 1;
        }
        self.next += 1;
        self.seen.reused_tokens += admitted.reused;
        self.running.push(Running { seq, prompt, done: admitted.reused });
    }

    fn cancel(&mut self) {
        if self.running.is_empty() {
            return;
        }
        let cancelled = self.running.swap_remove(self.random.below(self.running.len()));
        match self.random.one_in(2) {
            true => self.cache.abandon(cancelled.seq),
            false => self.cache.finish(cancelled.seq, &cancelled.prompt[..cancelled.done]),
        }
        self.seen.cancelled += 1;
    }

    /// Computes a chunk of some running prompts, in random order, and compares the logits.
    fn step(&mut self) {
        for i in (1..self.running.len()).rev() {
            let j = self.random.below(i + 1);
            self.running.swap(i, j);
        }
        let taking = if self.running.is_empty() { 0 } else { 1 + self.random.below(self.running.len()) };
        let mut rows = Vec::new();
        for (index, running) in self.running[..taking].iter_mut().enumerate() {
            let left = running.prompt.len() - running.done;
            let chunk = 1 + self.random.below(left);
            let end = running.done + chunk;
            for position in running.done..end {
                rows.push(row(
                    index,
                    &running.prompt,
                    position,
                    position + 1 == end || self.random.one_in(4),
                ));
            }
            running.done = end;
        }
        let stored = self.running[..taking].iter().map(|running| self.cache.table(running.seq));
        let sequences: Vec<SequenceKv<'_>> = stored.map(SequenceKv::in_blocks).collect();
        let logits = self.runner.forward(&Batch { rows: &rows, sequences: &sequences }, &mut []);
        let wanted = rows.iter().filter(|row| row.logits);
        for (row, logits) in wanted.zip(logits.chunks_exact(self.solo.runner.vocab_len())) {
            let prompt = &self.running[row.sequence as usize].prompt;
            let alone = self.solo.logits(prompt, row.position as usize);
            let same = logits.iter().map(|logit| logit.to_bits()).eq(alone.iter().copied());
            assert!(same, "position {} of {} differs", row.position, prompt.len());
            self.seen.compared += 1;
        }
        self.seen.batched += usize::from(taking > 1);
        for running in &self.running[..taking] {
            self.cache.publish(running.seq, &running.prompt[..running.done]);
        }
    }

    /// Finishes complete prompts, whose blocks stay in the cache.
    fn leave(&mut self) {
        for running in self.running.extract_if(.., |running| running.done == running.prompt.len()) {
            self.cache.finish(running.seq, &running.prompt);
        }
    }
}

/// Runs `histories` of one model and checks that every kind of event occurred.
fn check(path: &Path, format: KvFormat, scale: Scale, histories: u64) {
    check_model(&load(path, &Pool::new(1)), &format.into(), scale, histories);
}

fn check_model(model: &Arc<Model>, map: &KvMap, scale: Scale, histories: u64) {
    let mut total = Seen::default();
    let first_seed = u64::from_le_bytes(model.digest()[..8].try_into().unwrap());
    for history in 0..histories {
        let seen = World::new(model, map, scale, first_seed.wrapping_add(history)).live();
        total.compared += seen.compared;
        total.reused_tokens += seen.reused_tokens;
        total.copies += seen.copies;
        total.cancelled += seen.cancelled;
        total.evicted += seen.evicted;
        total.batched += seen.batched;
    }
    println!("{} {map}: {total:?}", model.config().name);
    let Seen { compared, reused_tokens, copies, cancelled, evicted, batched } = total;
    assert!(
        compared > 100 && reused_tokens > 100 && copies > 0 && cancelled > 0 && evicted > 0 && batched > 0
    );
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

#[test]
fn the_embedded_model_is_exact() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny/kvik-tiny-q8_0.gguf");
    check(&path, KvFormat::F16, SHORT, 2);
}

#[test]
fn every_architecture_is_exact() {
    for name in
        ["arch-llama-gqa", "arch-llama-mha", "arch-llama-mqa", "arch-qwen2", "arch-qwen3", "arch-qwen3-tied"]
    {
        check(&golden(&format!("{name}.gguf")), KvFormat::F16, SHORT, 2);
    }
}

#[test]
fn every_weight_type_is_exact() {
    for name in [
        "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "f16",
        "bf16",
    ] {
        check(&golden(&format!("type-{name}.gguf")), KvFormat::F16, SHORT, 1);
    }
}

#[test]
fn every_kv_format_is_exact() {
    for format in KvFormat::ALL {
        check(&golden("arch-qwen3.gguf"), format, SHORT, 2);
        check(&golden("arch-llama-gqa.gguf"), format, LONG, 1);
    }
}

/// Every layer stores its keys and its values in formats of their own.
#[test]
fn a_mixed_map_is_exact() {
    let formats = |layer: usize| {
        let format = |i: usize| KvFormat::ALL[i % KvFormat::ALL.len()];
        KvFormats { k: format(3 * layer + 1), v: format(2 * layer + 3) }
    };
    for (name, scale, histories) in [
        ("../../../../models/tiny/kvik-tiny-q8_0.gguf", SHORT, 2),
        ("arch-qwen3.gguf", SHORT, 2),
        ("arch-llama-gqa.gguf", LONG, 1),
    ] {
        let model = load(&golden(name), &Pool::new(1));
        let map = KvMap::by_layer((0..model.config().layers).map(formats).collect());
        check_model(&model, &map, scale, histories);
    }
}

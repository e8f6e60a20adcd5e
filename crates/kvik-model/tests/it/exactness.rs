//! Promise 2: reuse never changes an answer, to the byte.
//!
//! Real models and the real cache are driven through random histories: prompts that share prefixes arrive,
//! are cut into random chunks, batched with others in random order, cancelled, evicted and reused, on
//! different numbers of threads. Every row of logits must be byte-identical to the one of the same prompt
//! computed alone, cold, in one piece, on one thread. Prompts of several adapters and of none share batches; those of
//! none are compared with a model that has no adapters. Models with recurrent layers go on from copies of states that were
//! written inside of chunks, and take in rows that were only tried.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use kvik_model::batch::{Batch, Output, Row, Runner, SequenceKv, SequenceState};
use kvik_model::load::{LoadedAdapter, LoadedModel};
use kvik_model::{Adapter, Adapters, KvMap, Model, ModelRunner};
use kvik_model::{AdapterId, AdapterMix, AdapterUse};

use crate::peer::architectures;
use crate::random_adapter::RandomAdapter;
use crate::states::States;
use kvik_cache::{
    Admission, BlockId, Cache, CacheConfig, Lifetime, NamespaceId, Namespaces, Policy, SeqId, StateId, Token,
};
use kvik_kernels::{KvFormat, KvFormats, Pool};
use kvik_testing::{golden, tiny_model};

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
    let pool = Pool::new(threads);
    let runner = ModelRunner::new(model.clone(), pool, layout, scale.blocks, scale.prompt_max).unwrap();
    runner.with_states(States::SLOTS).unwrap()
}

/// A live state without copies.
fn live(slot: StateId) -> SequenceState<'static> {
    SequenceState { live: slot, saves: &[], tentative: None }
}

/// An adapter's digest and scale, where there is one, and a prompt.
type Known = (Option<[u8; 32]>, Vec<Token>);

/// Logits of every position of prompts, each computed alone, cold, in one piece, on one thread.
struct Solo {
    /// Without adapters, and with them.
    plain: ModelRunner,
    adapted: ModelRunner,
    known: HashMap<Known, Vec<u32>>,
}

impl Solo {
    /// The bits of the logits at `position` of `prompt` under a mix of adapters.
    fn logits(&mut self, mix: Option<&AdapterMix>, prompt: &[Token], position: usize) -> &[u32] {
        let vocab = self.plain.vocab_len();
        let runner = if mix.is_some() { &mut self.adapted } else { &mut self.plain };
        let all = self.known.entry((mix.map(AdapterMix::digest), prompt.to_vec())).or_insert_with(|| {
            let rows: Vec<Row> = (0..prompt.len()).map(|position| row(0, prompt, position, true)).collect();
            let table: Vec<BlockId> = (0..prompt.len().div_ceil(16) as u32).map(BlockId).collect();
            runner.set_state(StateId(0), None);
            let state = Some(live(StateId(0)));
            let sequence = SequenceKv { adapters: mix, state, ..SequenceKv::in_blocks(&table) };
            let logits = runner.forward(&Batch { rows: &rows, sequences: &[sequence] }, &mut []);
            logits.iter().map(|logit| logit.to_bits()).collect()
        });
        &all[position * vocab..(position + 1) * vocab]
    }
}

fn row(sequence: usize, prompt: &[Token], position: usize, logits: bool) -> Row {
    let token = prompt[position];
    let position = position as u32;
    Row {
        sequence: sequence as u32,
        token,
        position,
        cache_position: position,
        output: Output::logits_if(logits),
    }
}

/// A prompt being computed.
struct Running {
    seq: SeqId,
    prompt: Vec<Token>,
    /// Its adapters, as an index into those of the world.
    mix: usize,
    /// Positions stored.
    done: usize,
    state: StateId,
}

/// A chunk of a prompt as it is computed.
struct Chunk {
    end: usize,
    /// Copies of its state on the way.
    saves: Vec<(u32, StateId)>,
    /// The first position that is only tried, and how many positions then turn out to be right.
    tentative: Option<(u32, usize)>,
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
    /// Batches with rows of different adapters.
    mixed: usize,
    /// Sequences that went on from the copy of a state, and those whose rows were only tried.
    resumed: usize,
    settled: usize,
}

struct World {
    scale: Scale,
    random: Random,
    cache: Cache,
    /// What prompts are computed with, each in its namespace: first the model alone.
    mixes: Vec<(Option<AdapterMix>, NamespaceId)>,
    runner: ModelRunner,
    states: States,
    solo: Solo,
    /// Texts that prompts are cut from.
    stems: Vec<Vec<Token>>,
    running: Vec<Running>,
    next: u64,
    seen: Seen,
}

impl World {
    fn new(subject: &Subject, map: &KvMap, scale: Scale, seed: u64) -> World {
        let Subject { model, adapters, mixes } = subject;
        let mut random = Random(seed);
        let vocab = model.config().vocab;
        let mut stem = || (0..scale.prompt_max).map(|_| random.below(vocab) as Token).collect();
        let stems = (0..4).map(|_| stem()).collect();
        let config = CacheConfig { blocks: scale.blocks, policy: Policy::Lru, ghosts: 64, pinned_max: 0 };
        let mut cache = Cache::new(config).unwrap();
        let mut namespace = |mix: &Option<AdapterMix>| {
            let adapter = mix.as_ref().map(AdapterMix::digest);
            let namespaces = Namespaces { model: model.digest(), kv_format: &map.to_string(), adapter };
            (mix.clone(), cache.namespace(&namespaces.shared([0; 16])))
        };
        let mixes = mixes.iter().map(&mut namespace).collect();
        let adapted = |threads| runner(model, map, threads, scale).with_adapters(adapters.clone());
        World {
            scale,
            mixes,
            cache,
            runner: adapted([1, 2, 3, 5, 8][random.below(5)]),
            solo: Solo { plain: runner(model, map, 1, scale), adapted: adapted(1), known: HashMap::new() },
            states: States::new(),
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
        let mix = self.random.below(self.mixes.len());
        let seq = SeqId(self.next);
        let Some(reused) = self.admit(seq, mix, &prompt) else { return };
        self.next += 1;
        self.seen.reused_tokens += reused;
        let from_bytes = self.random.one_in(2);
        let state = self.states.start(&mut self.runner, mix, &prompt[..reused], from_bytes);
        self.seen.resumed += usize::from(reused > 0 && self.runner.state_bytes() > 0);
        self.running.push(Running { seq, prompt, mix, done: reused, state });
    }

    /// Admits a prompt; a model with states goes on where there is a copy of one.
    fn admit(&mut self, seq: SeqId, mix: usize, prompt: &[Token]) -> Option<usize> {
        let mut reuse_max = prompt.len() - 1;
        loop {
            if self.runner.state_bytes() > 0 {
                reuse_max = self.states.longest(mix, prompt, reuse_max);
            }
            let admission = Admission {
                seq,
                namespace: self.mixes[mix].1,
                prompt,
                reuse_max,
                positions: prompt.len(),
                lifetime: Lifetime::default(),
            };
            let admitted = self.cache.admit(admission).ok()?;
            if self.runner.state_bytes() > 0 && admitted.reused < reuse_max {
                // Blocks behind were evicted.
                self.cache.abandon(seq);
                reuse_max = admitted.reused;
                continue;
            }
            if let Some(copy) = admitted.copy {
                self.runner.copy_partial(copy.from, copy.to, copy.positions);
                self.seen.copies += 1;
            }
            return Some(admitted.reused);
        }
    }

    fn cancel(&mut self) {
        if self.running.is_empty() {
            return;
        }
        let cancelled = self.running.swap_remove(self.random.below(self.running.len()));
        self.states.end(&mut self.runner, cancelled.state);
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
        let chunks: Vec<Chunk> = (0..taking).map(|index| self.chunk(index)).collect();
        let mut rows = Vec::new();
        for (index, (running, chunk)) in self.running.iter().zip(&chunks).enumerate() {
            for position in running.done..chunk.end {
                let logits = position + 1 == chunk.end || self.random.one_in(4);
                rows.push(row(index, &running.prompt, position, logits));
            }
        }
        let mut sequences = Vec::new();
        for (running, Chunk { saves, tentative, .. }) in self.running.iter().zip(&chunks) {
            let tentative = tentative.map(|(first, _)| first);
            sequences.push(SequenceKv {
                adapters: self.mixes[running.mix].0.as_ref(),
                state: Some(SequenceState { live: running.state, saves, tentative }),
                ..SequenceKv::in_blocks(self.cache.table(running.seq))
            });
        }
        let logits = self.runner.forward(&Batch { rows: &rows, sequences: &sequences }, &mut []);
        let wanted = rows.iter().filter(|row| row.output == Output::Logits);
        for (row, logits) in wanted.zip(logits.chunks_exact(self.solo.plain.vocab_len())) {
            let Running { prompt, mix, .. } = &self.running[row.sequence as usize];
            let alone = self.solo.logits(self.mixes[*mix].0.as_ref(), prompt, row.position as usize);
            let same = logits.iter().map(|logit| logit.to_bits()).eq(alone.iter().copied());
            assert!(same, "position {} of {} with mix {mix} differs", row.position, prompt.len());
            self.seen.compared += 1;
        }
        self.seen.batched += usize::from(taking > 1);
        let mixes = self.running[..taking].iter().map(|running| running.mix);
        self.seen.mixed += usize::from(mixes.clone().min() != mixes.max());
        for (running, chunk) in self.running.iter_mut().zip(chunks) {
            running.done = chunk.end;
            for (positions, slot) in chunk.saves {
                let tokens = &running.prompt[..positions as usize];
                self.states.keep(&self.runner, running.mix, tokens, slot);
            }
            if let Some((_, right)) = chunk.tentative {
                self.runner.settle_state(running.state, right as u32);
                running.done = right;
                self.seen.settled += 1;
            }
            self.cache.publish(running.seq, &running.prompt[..running.done]);
        }
    }

    /// How far a prompt goes on; of a model with states also where it is copied and which rows are only tried.
    fn chunk(&mut self, index: usize) -> Chunk {
        let Running { done, ref prompt, .. } = self.running[index];
        let (left, end) = (prompt.len() - done, done + 1);
        let end = end + self.random.below(left);
        let mut chunk = Chunk { end, saves: Vec::new(), tentative: None };
        if self.runner.state_bytes() == 0 {
            return chunk;
        }
        let mut certain = end;
        if self.random.one_in(3) {
            // At least one row is certain in the end, so that every step goes on.
            certain = done + self.random.below(end - done + 1);
            let right = (certain + self.random.below(end - certain + 1)).max(done + 1);
            chunk.tentative = (certain < end).then_some((certain as u32, right));
        }
        for position in done + 1..=certain {
            let wanted = self.random.one_in(8) || position == certain && self.random.one_in(2);
            // Each copy of a batch gets another slot.
            if wanted && chunk.saves.len() < 4 {
                chunk.saves.push((position as u32, self.states.room()));
            }
        }
        chunk
    }

    /// Finishes complete prompts, whose blocks stay in the cache.
    fn leave(&mut self) {
        for running in self.running.extract_if(.., |running| running.done == running.prompt.len()) {
            self.cache.finish(running.seq, &running.prompt);
            self.states.end(&mut self.runner, running.state);
        }
    }
}

/// Runs `histories` of one model and checks that every kind of event occurred.
fn check(path: &Path, format: KvFormat, scale: Scale, histories: u64) {
    check_model(load(path, &Pool::new(1)), &format.into(), scale, histories);
}

/// What histories are about.
struct Subject {
    model: Arc<Model>,
    adapters: Adapters,
    /// What prompts are computed with.
    mixes: Vec<Option<AdapterMix>>,
}

fn check_model(model: Arc<Model>, map: &KvMap, scale: Scale, histories: u64) {
    let seen = check_subject(&alone(model), map, scale, histories);
    assert_eq!(seen.mixed, 0);
}

/// A model without adapters.
fn alone(model: Arc<Model>) -> Subject {
    Subject { model, adapters: Adapters::default(), mixes: vec![None] }
}

fn check_subject(subject: &Subject, map: &KvMap, scale: Scale, histories: u64) -> Seen {
    let model = &subject.model;
    let mut total = Seen::default();
    let first_seed = u64::from_le_bytes(model.digest()[..8].try_into().unwrap());
    for history in 0..histories {
        let seen = World::new(subject, map, scale, first_seed.wrapping_add(history)).live();
        total.compared += seen.compared;
        total.reused_tokens += seen.reused_tokens;
        total.copies += seen.copies;
        total.cancelled += seen.cancelled;
        total.evicted += seen.evicted;
        total.batched += seen.batched;
        total.mixed += seen.mixed;
        total.resumed += seen.resumed;
        total.settled += seen.settled;
    }
    println!("{} {map}: {total:?}", model.config().name);
    let Seen { compared, reused_tokens, copies, cancelled, evicted, batched, .. } = total;
    assert!(
        compared > 100 && reused_tokens > 100 && copies > 0 && cancelled > 0 && evicted > 0 && batched > 0
    );
    total
}

#[test]
fn the_embedded_model_is_exact() {
    let path = tiny_model();
    check(&path, KvFormat::F16, SHORT, 2);
}

/// Models of all families whose layers are attention alone.
const ATTENTION: [&str; 29] = [
    "arch-llama-gqa",
    "arch-llama-mha",
    "arch-llama-mqa",
    "arch-qwen2",
    "arch-qwen3",
    "arch-qwen3-tied",
    // Queries that grow, layers without rotation, norms behind layers, multipliers, fused tensors.
    "arch-mistral3",
    "arch-smollm3",
    "arch-olmo2",
    "arch-granite",
    "arch-glm4",
    "arch-phi3-long",
    // Windows with full layers between, caps, sinks.
    "arch-gemma2",
    "arch-gemma3",
    "arch-gpt-oss",
    // Several streams, embeddings of every layer, shared keys and values, heads of two widths, experts beside.
    "arch-gemma3n",
    "arch-gemma4",
    "arch-gemma4-shared",
    "arch-gemma4-experts",
    // Experts: chosen by a softmax, by a sigmoid with a bias, weighed before; shared ones.
    "arch-qwen2moe",
    "arch-qwen3moe",
    "arch-glm4moe",
    "arch-granitemoe",
    "arch-olmoe",
    "arch-deepseek",
    "arch-llama4",
    // Latent attention: of one tensor and of two, with queries of the stream and of a short vector.
    "arch-deepseek2-lite",
    "arch-deepseek2",
    "arch-deepseek2-dense",
];

/// Models of all families with short convolutions, the gated delta rule or Mamba 2.
const RECURRENT: [&str; 11] = [
    "arch-lfm2",
    "arch-lfm2-window",
    "arch-lfm2moe",
    "arch-qwen35",
    "arch-qwen35-short",
    "arch-qwen35moe",
    "arch-qwen3next",
    "arch-granitehybrid",
    "arch-granitehybrid-experts",
    "arch-nemotron_h",
    "arch-nemotron_h_moe",
];

/// A family that stands in no list would be exact by luck.
#[test]
fn every_family_has_a_history() {
    let family = |name: &str| LoadedModel::open(&golden(&format!("{name}.gguf"))).unwrap().config.arch.name();
    let tried: BTreeSet<&str> = ATTENTION.iter().chain(&RECURRENT).map(|name| family(name)).collect();
    let all: BTreeSet<&str> = architectures().iter().map(|name| family(name)).collect();
    assert_eq!(tried, all);
}

#[test]
fn every_architecture_is_exact() {
    for name in ATTENTION {
        check(&golden(&format!("{name}.gguf")), KvFormat::F16, SHORT, 2);
    }
}

/// Also from copies of states, and with rows that are only tried.
#[test]
fn every_recurrence_is_exact() {
    for name in RECURRENT {
        let subject = alone(load(&golden(&format!("{name}.gguf")), &Pool::new(1)));
        let seen = check_subject(&subject, &KvFormat::F16.into(), SHORT, 3);
        assert!(seen.resumed > 10 && seen.settled > 20, "{name}: {seen:?}");
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
        check(&golden("arch-deepseek2.gguf"), format, LONG, 1);
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
        check_model(model, &map, scale, histories);
    }
}

/// Two adapters, each alone and both together, and none, in one batch: each row as if it were alone.
#[test]
fn adapters_in_one_batch_are_exact() {
    for (name, format, scale) in [
        ("../../../../models/tiny/kvik-tiny-q8_0.gguf", KvFormat::F16, SHORT),
        ("arch-qwen3.gguf", KvFormat::ALL[2], SHORT),
        ("arch-llama-gqa.gguf", KvFormat::F32, LONG),
        ("arch-deepseek2-dense.gguf", KvFormat::F16, SHORT),
        ("arch-glm4.gguf", KvFormat::F16, SHORT),
    ] {
        let subject = with_adapters(load(&golden(name), &Pool::new(1)));
        let seen = check_subject(&subject, &format.into(), scale, 2);
        assert!(seen.mixed > 20, "{seen:?}");
    }
}

/// A model with two adapters, and what prompts may be computed with.
fn with_adapters(model: Arc<Model>) -> Subject {
    let load = |adapter: RandomAdapter| {
        let file = LoadedAdapter::from_bytes(adapter.file(model.config())).unwrap();
        Adapter::load(&file, &model, &Pool::new(1)).unwrap()
    };
    let adapters =
        Adapters::new([(1, 4), (2, 19)].map(|(seed, rank)| load(RandomAdapter::new(seed, rank))).into());
    let mix = |uses: &[(u32, f32)]| {
        adapters.mix(uses.iter().map(|&(id, scale)| AdapterUse { adapter: AdapterId(id), scale }))
    };
    let mixes = vec![None, mix(&[(0, 0.5)]), mix(&[(0, 0.25)]), mix(&[(1, 0.5)]), mix(&[(0, 0.5), (1, 0.5)])];
    Subject { model, adapters, mixes }
}

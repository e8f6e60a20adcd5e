//! Speed and size of a big prefix tree: 100,000 sequences, then prompts of 32k tokens.
//!
//! `cargo run --release -p kvik-examples --bin big_tree`
//!
//! The tree: 300 system prompts of 200 to 4,000 tokens, shared by 100,000 conversations that go on
//! with 50 to 3,000 tokens of their own, every hundredth with a whole 32k-token document.
//! Then each kind of 32k-token prompt is looked up and inserted, 1,000 times:
//! - *known*: a document that is in the tree, all but its last token reused;
//! - *half*: shares 16k tokens with one in the tree, diverging inside a block;
//! - *turn*: a follow-up turn, 500 new tokens after a conversation of 32k;
//! - *new*: shares a system prompt, the rest is new;
//! - *foreign*: shares nothing.
//!
//! An insertion is admission, publication of every block at once, and the end of the sequence: the
//! pool is full, so it also evicts as many blocks as it adds. In real use, publication is spread
//! over the prefill.
//!
//! Where the system tells (Linux), samples during which another process had the core are left out
//! and counted: this measures the cache and not what else the machine does.

use std::time::{Duration, Instant};

use kvik_cache::replay::Latency;
use kvik_cache::{Admission, Cache, CacheConfig, Lifetime, NamespaceId, Namespaces, Policy, SeqId, Token};

const SEQUENCES: usize = 100_000;
const SYSTEM_PROMPTS: usize = 300;
const LONG: usize = 32_768;
const SAMPLES: usize = 1_000;

fn main() {
    let mut bench = Bench::new();
    println!("{SEQUENCES} sequences, prompts of {LONG} tokens, {SAMPLES} samples of each kind\n");
    bench.fill();
    bench.print_size();
    println!("{:>38} {:>23} | {:^23}", "", "lookup, us", "insert, us");
    println!(
        "{:>8} {:>9} {:>9} {:>9} {:>7} {:>7} {:>7} | {:>7} {:>7} {:>7}",
        "prompt", "reused", "evicted", "left out", "p50", "p99", "max", "p50", "p99", "max"
    );
    for kind in [Kind::Known, Kind::Half, Kind::Turn, Kind::New, Kind::Foreign] {
        bench.measure(kind);
    }
    bench.cache.check().expect("every invariant holds");
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Known,
    Half,
    Turn,
    New,
    Foreign,
}

struct Bench {
    cache: Cache,
    namespace: NamespaceId,
    random: Random,
    system_prompts: Vec<Vec<Token>>,
    documents: Vec<Vec<Token>>,
}

impl Bench {
    fn new() -> Bench {
        let mut random = Random(1);
        let system_prompts = (0..SYSTEM_PROMPTS).map(|_| {
            let length = 200 + random.below(3_800);
            random.tokens(length)
        });
        let system_prompts = system_prompts.collect();
        // A little less than the sequences need, so that the pool is full at the end.
        let config = CacheConfig { blocks: 11_400_000, policy: Policy::Lru, ghosts: 100_000, pinned_max: 0 };
        let mut cache = Cache::new(config).expect("the configuration is valid");
        let namespaces = Namespaces { model: [0; 32], kv_format: "f16/f16", adapter: None };
        let namespace = cache.namespace(&namespaces.shared([0; 16]));
        Bench { cache, namespace, random, system_prompts, documents: Vec::new() }
    }

    fn fill(&mut self) {
        let started = Instant::now();
        for index in 0..SEQUENCES {
            let mut prompt = self.system_prompts[self.random.below(SYSTEM_PROMPTS)].clone();
            if index % 100 == 0 {
                prompt.extend(self.random.tokens(LONG - prompt.len()));
                self.documents.push(prompt.clone());
            } else {
                let length = 50 + self.random.below(2_950);
                prompt.extend(self.random.tokens(length));
            }
            self.insert(&prompt);
        }
        println!("filled in {:.1} s", started.elapsed().as_secs_f64());
    }

    fn print_size(&self) {
        let stats = self.cache.stats();
        println!(
            "{} tokens in {} blocks and {} nodes; {} blocks free, {} evicted so far",
            stats.tokens, stats.shared, stats.nodes, stats.free, stats.totals.evicted
        );
        if let Some(bytes) = resident_bytes() {
            let held =
                self.documents.iter().chain(&self.system_prompts).map(|prompt| size_of_val(&prompt[..]));
            let metadata = bytes.saturating_sub(held.sum()) as f64 / stats.tokens as f64;
            println!("{metadata:.2} bytes of metadata a cached token, the allocator's share included");
        }
        println!();
    }

    fn insert(&mut self, prompt: &[Token]) {
        let (seq, reuse_max) = (SeqId(0), prompt.len() - 1);
        let (namespace, positions, lifetime) = (self.namespace, prompt.len(), Lifetime::default());
        let admission = Admission { seq, namespace, prompt, reuse_max, positions, lifetime };
        self.cache.admit(admission).expect("no other sequence runs");
        self.cache.finish(seq, prompt);
    }

    fn measure(&mut self, kind: Kind) {
        let (mut lookups, mut inserts) = (Samples::default(), Samples::default());
        let before = self.cache.stats().totals;
        for _ in 0..SAMPLES {
            let prompt = self.prompt(kind);
            lookups.time(|| {
                std::hint::black_box(self.cache.lookup(self.namespace, &prompt));
            });
            inserts.time(|| self.insert(&prompt));
        }
        let after = self.cache.stats().totals;
        let reused = (after.reused_tokens - before.reused_tokens) / SAMPLES as u64;
        let evicted = (after.evicted - before.evicted) / SAMPLES as u64;
        let left_out = lookups.left_out + inserts.left_out;
        let kind = format!("{kind:?}").to_lowercase();
        println!(
            "{kind:>8} {reused:>9} {evicted:>9} {left_out:>9} {} | {}",
            lookups.columns(),
            inserts.columns()
        );
    }

    fn prompt(&mut self, kind: Kind) -> Vec<Token> {
        let index = self.random.below(self.documents.len());
        let mut prompt = match kind {
            Kind::Known => self.documents[index].clone(),
            Kind::Half => self.documents[index][..LONG / 2 + 5].to_vec(),
            Kind::Turn => {
                let turn = self.random.tokens(500);
                self.documents[index].extend(turn);
                return self.documents[index].clone();
            }
            Kind::New => self.system_prompts[self.random.below(SYSTEM_PROMPTS)].clone(),
            Kind::Foreign => Vec::new(),
        };
        prompt.extend(self.random.tokens(LONG - prompt.len().min(LONG)));
        prompt
    }
}

/// Times of one operation.
#[derive(Default)]
struct Samples {
    times: Vec<Duration>,
    left_out: usize,
}

impl Samples {
    fn time(&mut self, operation: impl FnOnce()) {
        let turns = turns_on_a_core();
        let started = Instant::now();
        operation();
        let elapsed = started.elapsed();
        if turns == turns_on_a_core() {
            self.times.push(elapsed);
        } else {
            self.left_out += 1;
        }
    }

    fn columns(self) -> String {
        let Latency { p50, p99, max } = Latency::of(self.times);
        let [p50, p99, max] = [p50, p99, max].map(|time| time.as_nanos() as f64 / 1000.0);
        format!("{p50:>7.1} {p99:>7.1} {max:>7.1}")
    }
}

/// How often this thread was given a core; none where the system does not say.
fn turns_on_a_core() -> Option<u64> {
    let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    schedstat.split_whitespace().nth(2)?.parse().ok()
}

/// Resident memory of this process; none where the system does not say.
fn resident_bytes() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    let kibibytes: usize = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kibibytes * 1024)
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) % end as u64) as usize
    }

    /// Tokens of a vocabulary of 150,000.
    fn tokens(&mut self, count: usize) -> Vec<Token> {
        (0..count).map(|_| self.below(150_000) as Token).collect()
    }
}

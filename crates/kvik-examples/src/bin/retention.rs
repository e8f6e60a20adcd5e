//! What it costs to observe attention and to forget positions:
//! `cargo run --release -p kvik-examples --bin retention [threads] [format] [part]`, the part being
//! `watching`, `compaction`, `facts` or `queries`; all of them unless one is named.
//!
//! The shape is that of Qwen3-0.6B: 28 layers, 16 heads, 8 KV heads of 128; the sequence has 16,384 positions.
//! Figures are those of the fastest of some calls: whatever else runs on the machine only adds time.

use std::hint::black_box;
use std::time::Instant;

use kvik_kernels::{
    Attention, AttnScratch, AttnWeights, BLOCK_POSITIONS, KvArena, KvFormat, KvLayer, KvLayout, Pool,
    QueryMoments, RopeStyle, RopeTable, Rows, SeqKv, SeqRow, WeightReduce, expected_attention, likeness,
    row_norms,
};

const LAYERS: usize = 28;
const HEADS: usize = 16;
const KV_HEADS: usize = 8;
const HEAD_DIM: usize = 128;
const DEPTH: usize = 16_384;
const KEPT: usize = DEPTH / 4;
const PREFILL: usize = 512;
/// Calls of which the fastest counts.
const CALLS: usize = 7;

fn main() {
    let mut args = std::env::args().skip(1);
    let threads = args.next().and_then(|arg| arg.parse().ok()).unwrap_or(2);
    let format = args.next().and_then(|arg| arg.parse().ok()).unwrap_or(KvFormat::F16);
    let pool = Pool::new(threads);
    println!("{threads} threads, {format}, {LAYERS} layers, {DEPTH} positions");
    let mut store = Store::new(&pool, format);
    let part = args.next();
    let wanted = |name| part.as_deref().is_none_or(|part| part == name);
    if wanted("watching") {
        watching(&pool, &store);
    }
    if wanted("compaction") {
        compaction(&pool, &mut store);
    }
    if wanted("facts") {
        facts(&pool, &store);
    }
    if wanted("queries") {
        queries(&pool, &store);
    }
}

/// A sequence in blocks, and as many free blocks as what is kept of it takes.
struct Store {
    arena: KvArena,
    blocks: Vec<u32>,
    random: Random,
}

impl Store {
    fn new(pool: &Pool, format: KvFormat) -> Store {
        let layout = KvLayout::uniform(LAYERS, KvLayer::full(KV_HEADS, HEAD_DIM, format, format));
        let own = DEPTH / BLOCK_POSITIONS;
        let arena = KvArena::new(layout, own + KEPT / BLOCK_POSITIONS).expect("memory for the arena");
        let blocks: Vec<u32> = (0..own as u32).collect();
        let mut store = Store { arena, blocks, random: Random(1) };
        let rows: Vec<SeqRow> = (1..=BLOCK_POSITIONS as u32).map(|len| SeqRow { seq: 0, len }).collect();
        for layer in 0..LAYERS {
            let numbers = store.random.numbers(BLOCK_POSITIONS * KV_HEADS * HEAD_DIM);
            let seqs = [SeqKv { blocks: &[0], tails: &[] }];
            store.arena.write(pool, layer, &rows, &seqs, [&numbers, &numbers]);
        }
        let first = store.arena.block(0).to_vec();
        (1..store.arena.blocks())
            .for_each(|block| store.arena.block_mut(block as u32).copy_from_slice(&first));
        store
    }

    fn seq(&self) -> SeqKv<'_> {
        SeqKv { blocks: &self.blocks, tails: &[] }
    }
}

/// The last row, and a prefill that ends with it, in all layers: as they are, and with rows watched and added to
/// what earlier rows attended to.
fn watching(pool: &Pool, store: &Store) {
    let mut bench = Watching::new(pool, store);
    let decode = bench.seconds(1, 0);
    println!("decode attention    {:8.2} ms", decode * 1e3);
    bench.report("watched", decode, 1, 1);
    let prefill = bench.seconds(PREFILL, 0);
    println!("{PREFILL} rows of attention {:6.0} ms", prefill * 1e3);
    bench.report("64 watched", prefill, PREFILL, 64);
    bench.report("all watched", prefill, PREFILL, PREFILL);
}

struct Watching<'a> {
    pool: &'a Pool,
    store: &'a Store,
    q: Vec<f32>,
    out: Vec<f32>,
    scratch: AttnScratch,
    weights: AttnWeights,
    /// `[layers][kv_heads][positions]`
    mass: Vec<Vec<Vec<f32>>>,
}

impl<'a> Watching<'a> {
    fn new(pool: &'a Pool, store: &'a Store) -> Watching<'a> {
        let q = Random(2).numbers(PREFILL * HEADS * HEAD_DIM);
        let (out, scratch, weights) = (vec![0.0; q.len()], AttnScratch::new(), AttnWeights::new());
        let mass = vec![vec![vec![0.0; DEPTH]; KV_HEADS]; LAYERS];
        Watching { pool, store, q, out, scratch, weights, mass }
    }

    fn report(&mut self, name: &str, plain: f64, rows: usize, watched: usize) {
        let seconds = self.seconds(rows, watched);
        println!("  {name:17} {:8.2} ms  {:+.1}%", seconds * 1e3, (seconds / plain - 1.0) * 100.0);
    }

    /// Seconds of all layers for the last `rows` rows, the last of which are watched and reduced.
    fn seconds(&mut self, rows: usize, watched: usize) -> f64 {
        let Watching { pool, store, q, out, scratch, weights, mass } = self;
        let (q, out) = (&q[..rows * HEADS * HEAD_DIM], &mut out[..rows * HEADS * HEAD_DIM]);
        let first = DEPTH - rows + 1;
        let seq_rows: Vec<SeqRow> = (first..=DEPTH).map(|len| SeqRow { seq: 0, len: len as u32 }).collect();
        let (arena, scale) = (&store.arena, 1.0 / (HEAD_DIM as f32).sqrt());
        let watched = rows - watched..rows;
        fastest(|| {
            for (layer, mass) in mass.iter_mut().enumerate() {
                let seqs = [store.seq()];
                let attention = Attention {
                    arena,
                    layer,
                    q,
                    heads: HEADS,
                    rows: &seq_rows,
                    seqs: &seqs,
                    scale,
                    softcap: None,
                    sinks: None,
                };
                if watched.is_empty() {
                    attention.run(pool, scratch, black_box(out));
                } else {
                    attention.run_watched(pool, scratch, black_box(out), watched.clone(), weights);
                    weights.reduce(pool, watched.clone(), WeightReduce::Sum, &[], mass);
                }
            }
        })
    }
}

/// Each head keeps a quarter of the positions, chosen at random.
fn compaction(pool: &Pool, store: &mut Store) {
    let kept: Vec<Vec<u32>> = (0..LAYERS * KV_HEADS).map(|_| store.random.choose()).collect();
    let first = store.blocks.len() as u32;
    let tiles = |store: &Store, layer| -> Vec<Vec<u32>> {
        let layout = store.arena.layout();
        let blocks = first..store.arena.blocks() as u32;
        let of_head = |head| blocks.clone().map(|block| layout.tile(block, layer, head)).collect();
        (0..KV_HEADS).map(of_head).collect()
    };
    let to: Vec<Vec<Vec<u32>>> = (0..LAYERS).map(|layer| tiles(store, layer)).collect();
    let best = fastest(|| {
        let seq = SeqKv { blocks: &store.blocks, tails: &[] };
        for (layer, to) in to.iter().enumerate() {
            let kept: Vec<&[u32]> = kept[layer * KV_HEADS..][..KV_HEADS].iter().map(Vec::as_slice).collect();
            let to: Vec<&[u32]> = to.iter().map(Vec::as_slice).collect();
            store.arena.move_positions(pool, layer, &seq, &kept, &to);
        }
    });
    println!("compaction to {KEPT}  {:8.2} ms", best * 1e3);
}

/// What is to be known of the stored keys, for all heads of all layers.
fn facts(pool: &Pool, store: &Store) {
    let heads = || (0..LAYERS).flat_map(|layer| (0..KV_HEADS).map(move |head| (layer, head)));
    let (seq, mut out) = (store.seq(), vec![0.0; DEPTH]);
    let mut report = |name: &str, fact: fn(&Pool, &dyn Rows, &mut [f32])| {
        let best = fastest(|| {
            heads().for_each(|(layer, head)| {
                fact(pool, &store.arena.keys(layer, head, &seq), black_box(&mut out));
            });
        });
        println!("{name:19} {:8.2} ms", best * 1e3);
    };
    report("norms", row_norms);
    report("likeness", likeness);
}

/// Moments of the queries of a prefill, and what they expect of the keys.
fn queries(pool: &Pool, store: &Store) {
    let q = Random(3).numbers(PREFILL * HEADS * HEAD_DIM);
    let mut moments: Vec<QueryMoments> = (0..LAYERS).map(|_| QueryMoments::new(HEADS, HEAD_DIM)).collect();
    let best = fastest(|| moments.iter_mut().for_each(|moments| moments.add(pool, &q)));
    println!("moments of {PREFILL} rows {:8.2} ms", best * 1e3);
    let one = fastest(|| moments.iter_mut().for_each(|moments| moments.add(pool, &q[..HEADS * HEAD_DIM])));
    println!("moments of one row  {:8.2} ms", one * 1e3);

    let seq = store.seq();
    let keys = store.arena.keys(0, 0, &seq);
    let frequencies: Vec<f32> = (0..HEAD_DIM / 2).map(|i| 1e6_f32.powf(-(i as f32) / 64.0)).collect();
    let rotation = RopeTable::new(&frequencies, 1, 1.0).mean_rotation(DEPTH as u32..DEPTH as u32 + 512);
    let mut out = vec![0.0; DEPTH];
    let (group, style) = (HEADS / KV_HEADS, RopeStyle::HalfSplit);
    let best = fastest(|| {
        for (moments, head) in
            moments.iter().flat_map(|moments| (0..KV_HEADS).map(move |head| (moments, head)))
        {
            let heads = head * group..(head + 1) * group;
            expected_attention(pool, moments, &rotation, style, &keys, heads, black_box(&mut out));
        }
    });
    println!("expected attention  {:8.2} ms", best * 1e3);
}

fn seconds(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

fn fastest(mut work: impl FnMut()) -> f64 {
    (0..CALLS).map(|_| seconds(&mut work)).fold(f64::INFINITY, f64::min)
}

/// A small generator: figures need reproducible numbers, not good ones.
struct Random(u32);

impl Random {
    fn number(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 8) as f32 / (1 << 23) as f32 - 1.0
    }

    fn numbers(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.number()).collect()
    }

    /// [`KEPT`] ascending positions of [`DEPTH`], each as likely as any other.
    fn choose(&mut self) -> Vec<u32> {
        let mut chosen = Vec::with_capacity(KEPT);
        for position in 0..DEPTH {
            let (wanted, left) = (KEPT - chosen.len(), DEPTH - position);
            if (self.number() + 1.0) / 2.0 * (left as f32) < wanted as f32 {
                chosen.push(position as u32);
            }
        }
        chosen
    }
}

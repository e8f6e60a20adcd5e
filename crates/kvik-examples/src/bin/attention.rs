//! Speed of attention beside what the machine reads and multiplies at most:
//! `cargo run --release -p kvik-examples --bin attention [threads ...] [formats ...]`
//!
//! The shape is that of Qwen3-0.6B: 16 heads, 8 KV heads of 128. With `latent` it is that of DeepSeek V2-Lite and V3
//! instead: 16 and 128 heads over one vector, with values in keys and beside them. Figures are those of the fastest
//! tenth of the calls: whatever else runs on the machine only adds time.

use std::hint::black_box;
use std::time::Instant;

use kvik_kernels::{
    Attention, AttnScratch, BLOCK_POSITIONS, KvArena, KvFormat, KvLayer, KvLayout, KvValues, Pool, SeqKv,
    SeqRow,
};

/// Four layers of the model's 28: more than the caches hold.
const LAYERS: usize = 4;
const HEADS: usize = 16;
const KV_HEADS: usize = 8;
const HEAD_DIM: usize = 128;
const DEPTH: usize = 4096;
const PROMPT: usize = 512;
/// Depth and window of layers that see only the last positions.
const WINDOW_DEPTH: usize = 16384;
const WINDOW: usize = 1024;
/// The lengths of what latent attention stores, and of its values; query heads.
const LATENT: [usize; 2] = [576, 512];
const LATENT_HEADS: [usize; 2] = [16, 128];
/// Calls of each kind, or as many as take so many seconds.
const CALLS: usize = 40;
const SECONDS: f64 = 1.0;

fn main() {
    let threads: Vec<usize> = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    let wanted: Vec<KvFormat> = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    let threads = if threads.is_empty() { vec![1, 2] } else { threads };
    let latent = std::env::args().any(|arg| arg == "latent");
    for threads in threads {
        let pool = Pool::new(threads);
        println!("{threads} threads: reads {:.1} GB/s, FMA {:.0} GFLOPS", read_gbs(&pool), fma_gflops(&pool));
        println!("  format   decode 1@4096          prefill 512@0   prefill 512@4096   16 sharing 4096");
        for format in KvFormat::ALL.into_iter().filter(|format| wanted.is_empty() || wanted.contains(format))
        {
            if latent {
                LATENT_HEADS.iter().for_each(|&heads| report_latent(&pool, format, heads));
            } else {
                report(&pool, format, KvLayer::full(KV_HEADS, HEAD_DIM, format, format), HEADS, "");
                report_window(&pool, format);
            }
        }
    }
}

/// Values in keys, and beside them.
fn report_latent(pool: &Pool, format: KvFormat, heads: usize) {
    let latent = KvLayer::latent(LATENT[0], LATENT[1], format);
    report(pool, format, latent, heads, &format!("{heads} heads, values in keys"));
    let beside = KvLayer { values: KvValues::Stored, ..latent };
    report(pool, format, beside, heads, &format!("{heads} heads, values beside keys"));
}

fn report(pool: &Pool, format: KvFormat, layer: KvLayer, heads: usize, about: &str) {
    let layout = KvLayout::uniform(LAYERS, layer);
    let tables = Tables::new(16, DEPTH);
    let bytes = layout.token_bytes() * DEPTH / LAYERS;
    let mut arena = KvArena::new(layout, tables.blocks).expect("memory for the arena");
    fill(pool, &mut arena, &tables);

    let decode = [SeqRow { seq: 0, len: DEPTH as u32 }];
    let decode_s = time(pool, &arena, &tables, &decode, heads);
    let prefill = |depth: usize| {
        let rows: Vec<_> = (1..=PROMPT).map(|i| SeqRow { seq: 0, len: (depth + i) as u32 }).collect();
        let pairs: usize = rows.iter().map(|row| row.len as usize).sum();
        let flops = pairs * heads * (layer.key_dim + layer.value_dim) * 2;
        flops as f64 / time(pool, &arena, &tables, &rows, heads) / 1e9
    };
    let shared: Vec<_> = (0..16).map(|seq| SeqRow { seq, len: (DEPTH + 64) as u32 }).collect();
    let shared_s = time(pool, &arena, &tables, &shared, heads);
    println!(
        "  {format:6} {:6.2} ms {:6.1} GB/s {:10.0} GFLOPS {:10.0} GFLOPS {:12.2} ms {about}",
        decode_s * 1e3,
        bytes as f64 / decode_s / 1e9,
        prefill(0),
        prefill(DEPTH),
        shared_s * 1e3
    );
}

/// What a window costs beside a sequence of its length, and behind a long one.
fn report_window(pool: &Pool, format: KvFormat) {
    let layer = KvLayer::windowed(KV_HEADS, HEAD_DIM, format, format, WINDOW as u32);
    let tables = Tables::new(1, WINDOW_DEPTH);
    let mut arena =
        KvArena::new(KvLayout::uniform(LAYERS, layer), tables.blocks).expect("memory for the arena");
    fill(pool, &mut arena, &tables);
    let decode_ms =
        |depth: usize| 1e3 * time(pool, &arena, &tables, &[SeqRow { seq: 0, len: depth as u32 }], HEADS);
    let prompt: Vec<_> = (1..=PROMPT).map(|i| SeqRow { seq: 0, len: (WINDOW_DEPTH + i) as u32 }).collect();
    let flops = PROMPT * WINDOW * HEADS * HEAD_DIM * 4;
    println!(
        "  {format:6} window {WINDOW}: decode 1@{WINDOW} {:.2} ms, 1@{WINDOW_DEPTH} {:.2} ms, \
         1@{} {:.2} ms; prefill {PROMPT}@{WINDOW_DEPTH} {:.0} GFLOPS",
        decode_ms(WINDOW),
        decode_ms(WINDOW_DEPTH),
        WINDOW_DEPTH + 100,
        decode_ms(WINDOW_DEPTH + 100),
        flops as f64 / time(pool, &arena, &tables, &prompt, HEADS) / 1e9
    );
}

/// Block tables of sequences that share all but their last blocks.
struct Tables {
    tables: Vec<Vec<u32>>,
    blocks: usize,
}

impl Tables {
    fn new(sequences: u32, depth: usize) -> Tables {
        let shared = (depth / BLOCK_POSITIONS) as u32;
        let own = (PROMPT / BLOCK_POSITIONS) as u32;
        let table = |seq: u32| (0..shared).chain(shared + seq * own..shared + (seq + 1) * own).collect();
        let blocks = (shared + sequences * own) as usize;
        Tables { tables: (0..sequences).map(table).collect(), blocks }
    }
}

fn fill(pool: &Pool, arena: &mut KvArena, tables: &Tables) {
    let layer = arena.layout().layers()[0];
    let [row, value_row] = [layer.key_dim, layer.stored_value_dim()].map(|dim| dim * layer.kv_heads);
    let mut state = 1_u32;
    let mut random = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    let numbers: Vec<f32> = (0..row * PROMPT).map(|_| random()).collect();
    for blocks in tables.tables.iter().flat_map(|table| table.chunks(PROMPT / BLOCK_POSITIONS)) {
        let len = blocks.len() * BLOCK_POSITIONS;
        let rows: Vec<SeqRow> = (1..=len as u32).map(|len| SeqRow { seq: 0, len }).collect();
        let seqs = [SeqKv { blocks, tails: &[] }];
        for layer in 0..LAYERS {
            arena.write(pool, layer, &rows, &seqs, [&numbers[..len * row], &numbers[..len * value_row]]);
        }
    }
}

/// Seconds of one call for one layer; calls go round the layers, so that caches hold nothing of the next.
fn time(pool: &Pool, arena: &KvArena, tables: &Tables, rows: &[SeqRow], heads: usize) -> f64 {
    let KvLayer { key_dim, value_dim, .. } = arena.layout().layers()[0];
    let seqs: Vec<SeqKv<'_>> = tables.tables.iter().map(|blocks| SeqKv { blocks, tails: &[] }).collect();
    let q: Vec<f32> = (0..rows.len() * heads * key_dim).map(|i| (i % 17) as f32 / 17.0 - 0.5).collect();
    let mut out = vec![0.0; rows.len() * heads * value_dim];
    let mut scratch = AttnScratch::new();
    let scale = 1.0 / (key_dim as f32).sqrt();
    fastest(|i| {
        let attention = Attention {
            arena,
            layer: i % LAYERS,
            q: &q,
            heads,
            rows,
            seqs: &seqs,
            scale,
            softcap: None,
            sinks: None,
        };
        attention.run(pool, &mut scratch, black_box(&mut out));
    })
}

fn fastest(mut work: impl FnMut(usize)) -> f64 {
    work(0);
    let (mut seconds, begin) = (Vec::new(), Instant::now());
    while seconds.len() < CALLS && (seconds.is_empty() || begin.elapsed().as_secs_f64() < SECONDS) {
        let start = Instant::now();
        work(seconds.len());
        seconds.push(start.elapsed().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 10]
}

/// Sums memory far larger than the caches.
fn read_gbs(pool: &Pool) -> f64 {
    let layout = KvLayout::uniform(1, KvLayer::full(1, 256, KvFormat::F32, KvFormat::F32));
    let block_bytes = layout.block_bytes();
    let blocks = (32 << 20) / block_bytes;
    let mut arena = KvArena::new(layout, blocks).expect("memory for the arena");
    (0..blocks as u32).for_each(|block| arena.block_mut(block).fill(1));
    let seconds = fastest(|_| {
        pool.run(blocks, &|block| {
            let bytes = arena.block(block as u32);
            let (numbers, _) = bytes.as_chunks::<8>();
            black_box(numbers.iter().fold(0_u64, |sum, n| sum.wrapping_add(u64::from_le_bytes(*n))));
        });
    });
    (blocks * block_bytes) as f64 / seconds / 1e9
}

/// Independent FMAs on registers, as wide as the compiler of this example may make them.
fn fma_gflops(pool: &Pool) -> f64 {
    const TIMES: usize = 1 << 14;
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx512f") {
        // SAFETY: the machine has AVX-512.
        let work = |_| unsafe { fma_avx512(TIMES) };
        let seconds = fastest(|_| pool.run(pool.threads(), &work));
        return (pool.threads() * TIMES * 12 * 16 * 2) as f64 / seconds / 1e9;
    }
    let _ = (pool, TIMES);
    f64::NAN
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn fma_avx512(times: usize) {
    use std::arch::x86_64::{_mm512_fmadd_ps, _mm512_set1_ps};
    let factor = _mm512_set1_ps(black_box(0.5));
    let mut sums = [factor; 12];
    for _ in 0..times {
        for sum in &mut sums {
            *sum = _mm512_fmadd_ps(*sum, factor, factor);
        }
    }
    black_box(sums);
}

//! What whole steps cost when sequences forget: decode with everything and with a quarter kept, watching in prefill
//! and in decode, and compaction beside the steps that it must not hold up.
//!
//! ```text
//! cargo run --release -p kvik-examples --bin retained_steps MODEL.gguf [DEPTH] [PROMPT]
//! ```
//!
//! The keys and values of `DEPTH` positions (16,384) are those of 16 computed ones, over and over: what a step costs does
//! not depend on them, but on that they lie in memory. A prompt of `PROMPT` tokens (2,048) is computed to see what watching costs. What is
//! compared is measured in turns.

use std::error::Error;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvik_cache::retain::{Decision, LayerFacts, PolicyState, Retention, decide};
use kvik_cache::{BLOCK_POSITIONS, BlockId, blocks_for};
use kvik_engine::retain::{Held, Ragged};
use kvik_kernels::{KvFormat, KvLayout, Pool, performance_cores};
use kvik_model::batch::{Batch, Output, Row, Runner, SequenceKv};
use kvik_model::load::LoadedModel;
use kvik_model::observation::{Observation, Watched};
use kvik_model::{Model, ModelRunner};

/// Rows of a step in prefill.
const ROWS: usize = 512;
/// Steps of each kind, in turns.
const ROUNDS: usize = 9;
/// Tokens that may follow a sequence.
const MORE: usize = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let path = PathBuf::from(args.next().ok_or("which model? MODEL.gguf [DEPTH] [PROMPT]")?);
    let depth: usize = args.next().map_or(Ok(16_384), |text| text.parse())?;
    let prompt: usize = args.next().map_or(Ok(2048), |text| text.parse())?;
    let mut steps = Steps::new(&path, depth)?;
    steps.decode_kept();
    steps.decode_watched();
    steps.prefill_watched(prompt);
    Ok(())
}

/// A model with one long sequence in its blocks, and spare ones.
struct Steps {
    runner: ModelRunner,
    layout: KvLayout,
    exact: Vec<BlockId>,
    spare: Vec<BlockId>,
    depth: usize,
}

impl Steps {
    fn new(path: &std::path::Path, depth: usize) -> Result<Steps, Box<dyn Error>> {
        let pool = Pool::new(performance_cores());
        let LoadedModel { config, tensors, .. } = LoadedModel::open(path)?;
        let model = Arc::new(Model::load(config, tensors, None, &pool, &|_, _| {})?);
        let layout = ModelRunner::uniform_layout(model.config(), KvFormat::F16);
        let (exact, all) = (blocks_for(depth + MORE), 2 * blocks_for(depth + MORE) + 2);
        println!(
            "{}: {} layers, {depth} positions in f16, {} threads",
            model.config().name,
            layout.layers().len(),
            pool.threads()
        );
        let runner = ModelRunner::new(model, pool, layout.clone(), all, depth + MORE)?;
        let blocks = |range: Range<usize>| range.map(|block| BlockId(block as u32)).collect();
        let mut steps = Steps { runner, layout, exact: blocks(0..exact), spare: blocks(exact..all), depth };
        steps.fill();
        Ok(steps)
    }

    /// Writes every block.
    fn fill(&mut self) {
        self.step(0..BLOCK_POSITIONS, None, None);
        let retainer = self.runner.retainer().expect("a model retains");
        let bytes = retainer.bytes(self.exact[0]);
        for &block in self.exact.iter().chain(&self.spare) {
            retainer.replace_bytes(block, &bytes);
        }
    }

    /// Decode with everything and with a quarter, and what making it a quarter takes.
    fn decode_kept(&mut self) {
        let retention: Retention = "knorm:0.25,order=large".parse().expect("a retention");
        let (decision, facts) = self.decide(&retention);
        let (quarter, moved) = self.compact(&decision);
        let mut times = [Vec::new(), Vec::new()];
        for round in 0..ROUNDS + 1 {
            let full = self.step(self.depth..self.depth + 1, None, None);
            let kept = self.step(self.depth..self.depth + 1, Some(&quarter), None);
            if round > 0 {
                times[0].push(full);
                times[1].push(kept);
            }
        }
        let [full, kept] = times.map(median);
        println!("\ndecode at depth {}", self.depth);
        println!("  everything kept        {:8.1} ms a step", ms(full));
        println!(
            "  a quarter kept         {:8.1} ms a step, {:.2} times as fast",
            ms(kept),
            ms(full) / ms(kept)
        );
        let (all, longest) = (facts.all + moved.all, facts.longest.max(moved.longest));
        println!(
            "compaction to a quarter  {:8.1} ms: facts {:.1}, decision {:.1}, moving {:.1}",
            ms(all),
            ms(facts.of_layers),
            ms(facts.all - facts.of_layers),
            ms(moved.all)
        );
        println!(
            "  of a step              {:8.2} steps; its longest piece {:.1} ms",
            ms(all) / ms(full),
            ms(longest)
        );
    }

    fn decide(&mut self, retention: &Retention) -> (Decision, Times) {
        let held = Held { blocks: &self.exact, storage: None, tokens: self.depth };
        let (mut facts, mut times): (Vec<LayerFacts>, Times) = (Vec::new(), Times::default());
        let start = Instant::now();
        for layer in 0..self.layout.layers().len() {
            let piece = Instant::now();
            facts.push(held.facts(&mut self.runner, layer, retention, &Observation::default(), None));
            times.longest = times.longest.max(piece.elapsed());
        }
        times.of_layers = start.elapsed();
        let piece = Instant::now();
        let decision = decide(retention, self.depth, &facts, None, &mut PolicyState::default());
        times.longest = times.longest.max(piece.elapsed());
        times.all = start.elapsed();
        (decision, times)
    }

    /// Moves what is kept, a layer at a time.
    fn compact(&mut self, decision: &Decision) -> (Ragged, Times) {
        let needed = Ragged::blocks_needed(&self.layout, &Ragged::counts(decision, 0));
        let (blocks, more) = self.spare.split_at(needed);
        let mut ragged = Ragged::new(&self.layout, 0, self.depth, decision.kept.clone(), blocks);
        let missing = ragged.blocks_missing(&self.layout, self.depth + MORE);
        more[..missing].iter().for_each(|&block| ragged.add_block(&self.layout, block));
        ragged.reserve(&self.layout, self.depth + MORE);
        let held = Held { blocks: &self.exact, storage: None, tokens: self.depth };
        let (start, mut times) = (Instant::now(), Times::default());
        for layer in 0..decision.kept.len() {
            let piece = Instant::now();
            held.move_layer(&mut self.runner, layer, (decision, &ragged), None);
            times.longest = times.longest.max(piece.elapsed());
        }
        times.all = start.elapsed();
        (ragged, times)
    }

    /// Decode while a row is watched for every token, as h2o has it.
    fn decode_watched(&mut self) {
        let h2o: Retention = "h2o:0.25".parse().expect("a retention");
        let (mut plain, mut watched, mut seen) = (Vec::new(), Vec::new(), Observation::default());
        for round in 0..ROUNDS + 1 {
            let unseen = self.step(self.depth..self.depth + 1, None, None);
            let observed = self.step(self.depth..self.depth + 1, None, Some((&h2o, 0..1, &mut seen)));
            if round > 0 {
                plain.push(unseen);
                watched.push(observed);
            }
        }
        let (plain, watched) = (median(plain), median(watched));
        println!(
            "\nwatching in decode, h2o  {:8.1} ms a step, {:+.1}%",
            ms(watched),
            percent(watched, plain)
        );
    }

    /// A prompt in steps of `ROWS` rows, unwatched and as each policy watches it.
    fn prefill_watched(&mut self, prompt: usize) {
        println!("\nprefill of {prompt} tokens");
        let texts = ["snapkv:0.25", "expected:0.25", "h2o:0.25"];
        let retentions = texts.map(|text| text.parse::<Retention>().expect("a retention"));
        let mut times = vec![Vec::new(); retentions.len() + 1];
        for _ in 0..3 {
            times[0].push(self.prefill(prompt, None));
            for (times, retention) in times[1..].iter_mut().zip(&retentions) {
                times.push(self.prefill(prompt, Some(retention)));
            }
        }
        let medians: Vec<Duration> = times.into_iter().map(median).collect();
        println!("  unwatched              {:8.0} ms", ms(medians[0]));
        for (text, &watched) in texts.iter().zip(&medians[1..]) {
            println!("  {text:<22} {:8.0} ms, {:+.1}%", ms(watched), percent(watched, medians[0]));
        }
    }

    fn prefill(&mut self, prompt: usize, retention: Option<&Retention>) -> Duration {
        let (mut seen, mut all) = (Observation::default(), Duration::ZERO);
        for start in (0..prompt).step_by(ROWS) {
            let range = start..prompt.min(start + ROWS);
            let rows = retention.map_or(0..0, |retention| {
                let points = retention.points(prompt, prompt + MORE);
                let watched = retention.watched(&points, 0, range.clone());
                watched.start - start..watched.end - start
            });
            let watched =
                retention.filter(|_| !rows.is_empty()).map(|retention| (retention, rows, &mut seen));
            all += self.step(range, None, watched);
        }
        all
    }

    /// One step of these positions, of which some rows may be watched.
    fn step(
        &mut self,
        positions: Range<usize>,
        kept: Option<&Ragged>,
        watched: Option<(&Retention, Range<usize>, &mut Observation)>,
    ) -> Duration {
        let row = |position: usize| Row {
            sequence: 0,
            token: (position * 7919 % 1000) as u32,
            position: position as u32,
            cache_position: position as u32,
            output: Output::logits_if(position + 1 == positions.end),
        };
        let rows: Vec<Row> = positions.clone().map(row).collect();
        let watched = watched.map(|(retention, rows, observation)| Watched {
            rows,
            watch: retention.watch(),
            among: Vec::new(),
            repeated: None,
            observation,
        });
        let mut watched: Vec<Watched<'_>> = watched.into_iter().collect();
        let blocks = if kept.is_some() { &[][..] } else { &self.exact };
        let runner = &mut self.runner;
        let start = Instant::now();
        Held { blocks, storage: kept, tokens: positions.start }.with_kv(|kv: &SequenceKv<'_>| {
            runner.forward(&Batch { rows: &rows, sequences: &[*kv] }, &mut watched);
        });
        start.elapsed()
    }
}

/// How long something in pieces took.
#[derive(Default)]
struct Times {
    all: Duration,
    of_layers: Duration,
    longest: Duration,
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn percent(time: Duration, of: Duration) -> f64 {
    (time.as_secs_f64() / of.as_secs_f64() - 1.0) * 100.0
}

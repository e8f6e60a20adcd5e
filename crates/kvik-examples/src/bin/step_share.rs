//! What share of the steps that decode goes outside the model: planning, sampling, text, events, the cache, drafts.
//!
//! ```text
//! cargo run --release -p kvik-examples --bin step_share [MODEL.gguf] [SEQUENCES,...] [TOKENS] [CASE] [THREADS]
//! ```
//!
//! An engine as the server has it answers so many requests at the same time (16 and 64), each with a prompt of its
//! own and `TOKENS` (64) tokens of answer. A step is counted when every sequence decodes in it and in the step before;
//! outside the model is the time from the end of one forward pass to the beginning of the next. A model of random numbers
//! is unsure of everything, which gives top-p most to do: `sure` is the same with some hundred tokens that stand out, as
//! they do in a trained model.

use std::error::Error;
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kvik_cache::{BlockId, CacheConfig, Policy, blocks_for};
use kvik_engine::api::{Constraint, Event, EventSink, PinnedPrompt, Request, Sampling};
use kvik_engine::engine::{Engine, EngineConfig};
use kvik_kernels::{KvFormat, Pool, performance_cores};
use kvik_model::batch::{Batch, Output, Retainer, Runner};
use kvik_model::load::LoadedModel;
use kvik_model::observation::Watched;
use kvik_model::{Model, ModelRunner};
use kvik_text::tokenizer::Tokenizer;

/// Tokens of a prompt.
const PROMPT: usize = 48;
/// Rows that drafts may add, as the server has it.
const DRAFT_ROWS: usize = 16;
/// One of so many tokens stands out in logits that are made sure, and by how much.
const STANDS_OUT: usize = 503;
const LIFT: f32 = 12.0;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let tiny = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny/kvik-tiny-q8_0.gguf");
    let path = args.next().unwrap_or_else(|| tiny.to_owned());
    let counts = args.next().unwrap_or_else(|| "16,64".to_owned());
    let counts = counts.split(',').map(str::parse).collect::<Result<Vec<usize>, _>>()?;
    let tokens: usize = args.next().map_or(Ok(64), |text| text.parse())?;
    let only = args.next().unwrap_or_default();
    let threads: usize = args.next().map_or(Ok(performance_cores()), |text| text.parse())?;
    let bench = Bench::open(&PathBuf::from(path), tokens, threads)?;
    for sequences in counts {
        println!("\n{sequences} sequences                 model       outside   longest   share");
        for case in cases().iter().filter(|case| case.name.contains(&only)) {
            bench.measure(sequences, case)?.print(case.name);
        }
    }
    Ok(())
}

/// What is asked for.
struct Case {
    name: &'static str,
    sampling: Sampling,
    constraint: Option<Constraint>,
    drafts: bool,
    /// Whether some tokens are made to stand out, as in a trained model.
    sure: bool,
}

fn cases() -> Vec<Case> {
    let greedy = Sampling::GREEDY;
    let warm = Sampling { temperature: 0.8, ..greedy.clone() };
    let top_p = Sampling { top_p: 0.95, ..warm.clone() };
    let top_k = Sampling { top_k: 40, ..top_p.clone() };
    let case = |name, sampling: &Sampling| Case {
        name,
        sampling: sampling.clone(),
        constraint: None,
        drafts: false,
        sure: false,
    };
    let letters = Constraint::Regex("[a-z ]{400}".to_owned());
    let object = serde_json::json!({"type": "object", "properties": {"text": {"type": "string", "minLength": 400}}, "required": ["text"]});
    let constrained = |name, sampling, constraint: &Constraint| Case {
        constraint: Some(constraint.clone()),
        ..case(name, sampling)
    };
    let object = Constraint::JsonSchema(object);
    vec![
        case("greedy", &greedy),
        Case { drafts: true, ..case("greedy, drafts", &greedy) },
        case("temperature 0.8", &warm),
        case("top-p 0.95", &top_p),
        Case { sure: true, ..case("top-p 0.95, sure", &top_p) },
        case("top-k 40, top-p 0.95", &top_k),
        constrained("greedy, constraint", &greedy, &letters),
        Case { drafts: true, ..constrained("greedy, constraint, drafts", &greedy, &letters) },
        constrained("warm, constraint", &warm, &letters),
        constrained("top-p 0.95, constraint", &top_p, &letters),
        constrained("greedy, schema", &greedy, &object),
        Case { drafts: true, ..constrained("greedy, schema, drafts", &greedy, &object) },
    ]
}

/// A model, and how long answers are.
struct Bench {
    model: Arc<Model>,
    pool: Arc<Pool>,
    tokenizer: Tokenizer,
    tokens: usize,
}

impl Bench {
    fn open(path: &std::path::Path, tokens: usize, threads: usize) -> Result<Bench, Box<dyn Error>> {
        let pool = Arc::new(Pool::new(threads));
        let LoadedModel { config, tensors, tokenizer, .. } = LoadedModel::open(path)?;
        let model = Arc::new(Model::load(config, tensors, None, &pool, &|_, _| {})?);
        println!("{}: {} threads, {tokens} tokens an answer", model.config().name, pool.threads());
        Ok(Bench { model, pool, tokenizer, tokens })
    }

    /// Answers `sequences` requests together.
    fn measure(&self, sequences: usize, case: &Case) -> Result<Share, Box<dyn Error>> {
        let passes: Passes = Arc::default();
        let engine = self.engine(sequences, case, passes.clone())?;
        let (sender, ends) = channel();
        for index in 0..sequences {
            engine.submit(self.request(index, case), Box::new(Listener(sender.clone())))?;
        }
        drop(sender);
        for _ in 0..sequences {
            ends.recv()??;
        }
        drop(engine);
        let passes = passes.lock().map_err(|_| "the engine panicked")?;
        Ok(Share::of(&passes, sequences))
    }

    fn engine(&self, sequences: usize, case: &Case, passes: Passes) -> Result<Engine, Box<dyn Error>> {
        let context = PROMPT + self.tokens;
        let blocks = sequences * blocks_for(context);
        let layout = ModelRunner::uniform_layout(self.model.config(), KvFormat::F16);
        let config = EngineConfig {
            parallel_max: sequences,
            waiting_max: sequences,
            prefill_rows_mixed_max: 512,
            draft_rows_max: if case.drafts { DRAFT_ROWS } else { 0 },
            ..EngineConfig::new(&layout, self.model.digest(), context)
        };
        let runner = ModelRunner::new(self.model.clone(), self.pool.clone(), layout, blocks, context)?;
        let cache = CacheConfig { blocks, policy: Policy::Lru, ghosts: blocks, pinned_max: 0 };
        let timed = Timed { runner, passes, sure: case.sure.then(Vec::new) };
        Ok(Engine::start(timed, &self.tokenizer, cache, config)?)
    }

    /// The request of one sequence: its prompt is nobody else's.
    fn request(&self, index: usize, case: &Case) -> Request {
        let vocab = self.tokenizer.vocab_len().min(1000) as u32;
        let prompt = PinnedPrompt {
            tokens: (0..PROMPT as u32).map(|at| (at * 31 + index as u32 * 7919) % vocab).collect(),
            adapters: None,
            salt: [0; 16],
            tenant: Default::default(),
            retention: None,
        };
        Request {
            max_tokens: self.tokens,
            lifetime: Default::default(),
            sampling: Sampling { seed: index as u64, ..case.sampling.clone() },
            constraint: case.constraint.clone(),
            ..prompt.request()
        }
    }
}

/// Hears only how its request ends.
struct Listener(Sender<Result<(), kvik_engine::api::RequestError>>);

impl EventSink for Listener {
    fn send(&mut self, event: Event) -> bool {
        match event {
            Event::Done(_) => self.0.send(Ok(())).is_ok(),
            Event::Failed(error) => self.0.send(Err(error)).is_ok(),
            _ => true,
        }
    }

    fn is_closed(&self) -> bool {
        false
    }
}

/// A forward pass: when it began and ended, and for how many sequences it decoded if it read no prompt.
struct Pass {
    began: Instant,
    ended: Instant,
    decoding: Option<usize>,
}

type Passes = Arc<Mutex<Vec<Pass>>>;

/// A model that notes when it computes.
struct Timed {
    runner: ModelRunner,
    passes: Passes,
    /// The logits where some tokens are made to stand out. That counts as the model's time.
    sure: Option<Vec<f32>>,
}

impl Runner for Timed {
    fn vocab_len(&self) -> usize {
        self.runner.vocab_len()
    }

    fn threads(&self) -> Option<Arc<Pool>> {
        self.runner.threads()
    }

    fn copy_partial(&mut self, from: BlockId, to: BlockId, positions: usize) {
        self.runner.copy_partial(from, to, positions);
    }

    fn read_block(&self, block: BlockId, bytes: &mut [u8]) {
        self.runner.read_block(block, bytes);
    }

    fn write_block(&mut self, block: BlockId, bytes: &[u8]) {
        self.runner.write_block(block, bytes);
    }

    fn forward(&mut self, batch: &Batch<'_>, watched: &mut [Watched<'_>]) -> &[f32] {
        let began = Instant::now();
        let mut outputs = self.runner.forward(batch, watched);
        if let Some(sure) = &mut self.sure {
            sure.clear();
            sure.extend_from_slice(outputs);
            sure.iter_mut().step_by(STANDS_OUT).for_each(|logit| *logit += LIFT);
            outputs = sure;
        }
        let decodes = batch.rows.iter().all(|row| row.output == Output::Logits);
        let pass = Pass { began, ended: Instant::now(), decoding: decodes.then_some(batch.sequences.len()) };
        if let Ok(mut passes) = self.passes.lock() {
            passes.push(pass);
        }
        outputs
    }

    fn retainer(&mut self) -> Option<&mut dyn Retainer> {
        self.runner.retainer()
    }
}

/// Where the time of steps went.
struct Share {
    steps: usize,
    model: Duration,
    outside: Duration,
    longest: Duration,
}

impl Share {
    fn of(passes: &[Pass], sequences: usize) -> Share {
        let mut share =
            Share { steps: 0, model: Duration::ZERO, outside: Duration::ZERO, longest: Duration::ZERO };
        for pair in passes.windows(2) {
            let [before, pass] = pair else { continue };
            if pair.iter().all(|pass| pass.decoding == Some(sequences)) {
                let outside = pass.began - before.ended;
                share.steps += 1;
                share.model += pass.ended - pass.began;
                share.outside += outside;
                share.longest = share.longest.max(outside);
            }
        }
        share
    }

    fn print(&self, name: &str) {
        let steps = self.steps.max(1) as f64;
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let share = 100.0 * ms(self.outside) / (ms(self.outside) + ms(self.model)).max(f64::MIN_POSITIVE);
        println!(
            "  {name:<26} {:8.2} ms {:8.3} ms {:6.2} ms {share:6.2}%   of {} steps",
            ms(self.model) / steps,
            ms(self.outside) / steps,
            ms(self.longest),
            self.steps
        );
    }
}

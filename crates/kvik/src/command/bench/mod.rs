//! `kvik bench`: tokens per second of prefill and decode, with the flags and fields of llama-bench.
//!
//! The command runs the model directly, without scheduler or server, so that it measures the kernels; with `--server` it
//! asks a running server.

mod copied;
mod local;
mod prefix;
mod server;
mod shape;
mod work;

use std::path::PathBuf;
use std::sync::Arc;

use clap::{ArgAction, ArgMatches, Args, builder::TypedValueParser};
use kvik_engine::stats::DraftSources;
use kvik_kernels::KvLayout;
use kvik_model::Adapters;
use kvik_model::batch::{Runner, StepSize};
use kvik_session::RunnerRoom;
use serde::Serialize;

use self::local::{Bench, Measured, blocks_needed};
use self::shape::ShapeArg;
use self::work::{KernelRow, StepWork};
use super::backend::BackendArgs;
use kvik_serving::{
    budget::no_memory,
    device, kv,
    settings::{
        capacity::Speculate,
        device::{DeviceChoice, GpuLayers},
        model::{ModelArgs, WeightsArg, is_named_by_flag},
        size::ByteSize,
    },
};

/// Rows of one prefill batch, llama-bench's `-b`.
const BATCH_ROWS: usize = 512;

/// Measures prefill (-p) and decode (-n) speed, with the flags of llama-bench.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kvik bench                                   the model of `kvik default`, 512 tokens of prefill and 128 of decode
  kvik bench -m model.gguf -p 512,2048 -n 64   several sizes
  kvik bench -m model.gguf -d 0,4096 -r 3      at depth 4096 too, three repetitions
  kvik bench --kv q8 --json                    8-bit KV, one JSON array on standard output
  kvik bench --device gpu --kv-resident off    on a GPU, with keys and values that do not stay there
  kvik bench --shape qwen3-4b --weights q4_k_m   a model in a published shape, made here with random weights
  kvik bench --server                          the server that runs, one request at a time, with nothing cached

The gain of sharing a prompt of 4096 tokens between 16 sequences that decode together:
  kvik bench -p 0 -d 4096 --sequences 16                 they read the same keys and values
  kvik bench -p 0 -d 4096 --sequences 16 --own-prompts   each has its own prompt, and the cache holds 16")]
pub(crate) struct BenchArgs {
    /// Tokens of prefill to measure; 0 for none
    #[arg(short = 'p', long = "n-prompt", value_delimiter = ',', default_value = "512")]
    prompt: Vec<usize>,
    /// Tokens of decode to measure; 0 for none
    #[arg(short = 'n', long = "n-gen", value_delimiter = ',', default_value = "128")]
    generate: Vec<usize>,
    /// Tokens already in the cache before measuring
    #[arg(short = 'd', long = "n-depth", value_delimiter = ',', default_value = "0")]
    depth: Vec<usize>,
    /// Compute the first 512 tokens of a depth alone and store them again and again: speed does not depend on what is stored,
    /// and a long depth takes long to compute
    #[arg(long)]
    repeat_depth: bool,
    /// Repetitions of each measurement
    #[arg(short = 'r', long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    repetitions: u64,
    /// Sequences decoded together, sharing the depth as their prefix
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=256))]
    sequences: u64,
    /// Give each of the --sequences a depth of its own, so that they share nothing
    #[arg(long)]
    own_prompts: bool,
    /// Where to compute, as for `kvik serve` [default: cpu; auto with a number of --gpu-layers]
    // Under the heading of flags that load a model, which `--server` refuses where the command line has them.
    #[arg(long, value_name = "DEVICE", help_heading = "Model")]
    device: Option<DeviceChoice>,
    /// Layers that the GPU computes, as for `kvik serve`
    #[arg(long, value_name = "N", default_value = "all", help_heading = "Model")]
    gpu_layers: GpuLayers,
    /// Whether keys and values stay on the GPU; off copies them there and back at every step, for comparison
    #[arg(long, action = ArgAction::Set, value_name = "ON|OFF", default_value = "on", value_parser = resident)]
    kv_resident: bool,
    /// Print one JSON array, with llama-bench's field names
    #[arg(long)]
    json: bool,
    /// Print one JSON object a line, each as soon as it is measured
    #[arg(long, conflicts_with = "json")]
    jsonl: bool,
    /// Measure a model in a published shape with random weights, in the format of --weights: q4_k_m (the default), q8_0 or f16
    #[arg(long, value_name = "SHAPE", conflicts_with = "server")]
    shape: Option<ShapeArg>,
    /// Keep that model in a file, for other programs; with -p 0 -n 0 only write it
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Time each kernel of the GPU by itself, in a repetition that is not counted
    #[arg(long, conflicts_with = "server")]
    kernels: bool,
    /// Ask the server that has the model, with its settings and beside its other requests; decode is as fast as its drafts
    /// make it
    #[arg(long, conflicts_with_all = ["local", "depth", "repeat_depth", "sequences", "own_prompts", "kv_resident"])]
    pub(super) server: bool,
    /// Instead, the time to the first token of prefixes of N tokens: new ones, asked again, and asked after another one
    #[arg(long, value_name = "N", requires = "server", conflicts_with_all = ["prompt", "generate"],
        value_parser = clap::value_parser!(u32).range(16..).map(|n| n as usize))]
    prefix: Option<usize>,
    // Behind the command's own flags, which would stand under the heading of these.
    #[command(flatten)]
    pub(super) model: ModelArgs,
    #[command(flatten)]
    backend: BackendArgs,
}

fn resident(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("{text:?} is neither on nor off")),
    }
}

/// A measurement: `n_prompt` or `n_gen` tokens at `n_depth`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Test {
    prompt: usize,
    generate: usize,
    depth: usize,
    sequences: usize,
    /// Whether each sequence has its own blocks for the depth.
    own_prompts: bool,
}

/// A row of the report; field names are llama-bench's.
#[derive(Debug, Serialize)]
struct BenchRow {
    build: &'static str,
    model_filename: String,
    model_type: String,
    model_size: u64,
    n_threads: usize,
    type_k: String,
    type_v: String,
    /// The formats as `--kv` takes them.
    kv: String,
    n_prompt: usize,
    n_gen: usize,
    n_depth: usize,
    n_sequences: usize,
    own_prompts: bool,
    repeated_depth: bool,
    /// Name of the GPU, or of the processor's instruction set.
    device: String,
    /// Bytes of keys and values that one repetition copied to the device and back: measured, and by the formula.
    kv_bytes_moved: u64,
    kv_bytes_formula: u64,
    /// Time of a repetition in which the GPU waited for its steps to be prepared.
    preparing_ns: u64,
    /// The mean step, on a GPU.
    #[serde(flatten)]
    work: Option<StepWork>,
    /// The kernels of a repetition, if they are timed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kernels: Vec<KernelRow>,
    #[serde(flatten)]
    samples: Samples,
}

/// Times and speeds of a test's repetitions; field names are llama-bench's.
#[derive(Debug, Serialize)]
struct Samples {
    avg_ns: f64,
    stddev_ns: f64,
    avg_ts: f64,
    stddev_ts: f64,
    samples_ns: Vec<u64>,
    samples_ts: Vec<f64>,
}

/// The model and settings of a run, the same in every row.
#[derive(Debug, Clone)]
struct BenchSetup {
    filename: String,
    name: String,
    weight_bytes: u64,
    threads: usize,
    kv: KvLayout,
    /// Bytes of a block that are copied if keys and values do not stay on the GPU.
    moved_bytes: usize,
    device: String,
    kv_resident: bool,
    repeat_depth: bool,
}

/// The form of the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Table,
    /// One array at the end.
    Json,
    /// An object a line, each as soon as it is measured.
    JsonLines,
}

/// A model that was made for this run.
struct MadeModel {
    args: ModelArgs,
    /// The file, if it is deleted at the end.
    temporary: Option<PathBuf>,
}

impl Drop for MadeModel {
    fn drop(&mut self) {
        // A file that cannot be deleted is left to the system, as are all in its directory of temporary files.
        self.temporary.iter().for_each(|path| drop(std::fs::remove_file(path)));
    }
}

/// Runs the command; `loading` is a flag of loading that the command line has.
pub(crate) fn run(args: &BenchArgs, (matches, loading): (&ArgMatches, Option<&str>)) -> anyhow::Result<()> {
    args.check(matches)?;
    let tests = args.tests();
    if args.server {
        return server::run(args, &tests, loading);
    }
    let made = args.shape.map(|shape| args.make(shape)).transpose()?;
    if tests.is_empty() {
        return Ok(());
    }
    let (mut runner, setup) = args.open(made.as_ref().map_or(&args.model, |made| &made.args), &tests)?;
    let mut bench = Bench::new(runner.as_mut());
    bench.repeat_depth = args.repeat_depth;
    let measure = |test| {
        let measured = bench.measure(test, args.repetitions);
        let kernels = if args.kernels { bench.kernels(test) } else { Vec::new() };
        Ok(BenchRow { kernels, ..BenchRow::new(&setup, test, measured) })
    };
    report(&tests, args.form(), measure, BenchRow::lines)
}

/// Measures each test and prints the lines of its row, or all rows as one JSON array at the end.
fn report<R: Serialize>(
    tests: &[Test],
    form: Form,
    mut measure: impl FnMut(Test) -> anyhow::Result<R>,
    lines: impl Fn(&R, &str) -> Vec<String>,
) -> anyhow::Result<()> {
    if form == Form::Table {
        println!("{HEADER}");
    }
    let mut rows = Vec::new();
    for &test in tests {
        let row = measure(test)?;
        match form {
            Form::Table => lines(&row, &test.name()).iter().for_each(|line| println!("{line}")),
            Form::JsonLines => println!("{}", serde_json::to_string(&row)?),
            Form::Json => rows.push(row),
        }
    }
    if form == Form::Json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
    }
    Ok(())
}

/// The largest step of these tests.
fn step_size(tests: &[Test]) -> StepSize {
    let prefilled = tests.iter().map(|test| test.prompt.max(test.depth).min(BATCH_ROWS)).max().unwrap_or(1);
    let outputs = tests.iter().map(|test| test.sequences).max().unwrap_or(1);
    StepSize { rows: prefilled.max(outputs), outputs }
}

const HEADER: &str = "\
| model                          |       size | threads |   kv    |                  test |              t/s |
| ------------------------------ | ---------: | ------: | ------- | --------------------: | ---------------: |";

impl BenchArgs {
    /// Refuses flags that contradict each other or measure nothing. A shape replaces the model of a variable or a file.
    fn check(&self, matches: &ArgMatches) -> anyhow::Result<()> {
        anyhow::ensure!(
            self.shape.is_none() || !is_named_by_flag(matches),
            "--shape makes a model, and -m names another; leave one out"
        );
        anyhow::ensure!(
            self.write.is_none() || self.shape.is_some(),
            "--write writes the model that --shape names; give one"
        );
        anyhow::ensure!(
            self.write.is_some() || !self.tests().is_empty(),
            "nothing to measure: give -p or -n a number above 0"
        );
        Ok(())
    }

    fn form(&self) -> Form {
        match (self.json, self.jsonl) {
            (true, _) => Form::Json,
            (_, true) => Form::JsonLines,
            _ => Form::Table,
        }
    }

    /// Writes the model of a shape.
    fn make(&self, shape: ShapeArg) -> anyhow::Result<MadeModel> {
        let temporary = || std::env::temp_dir().join(format!("kvik-shape-{}.gguf", std::process::id()));
        let path = self.write.clone().unwrap_or_else(temporary);
        let mut args = self.model.clone();
        (args.model, args.is_of_shelf) = (Some(path.display().to_string()), false);
        // The file is written in that format.
        args.weights = args.weights.filter(|&format| format != WeightsArg::Q4KM);
        let made = MadeModel { args, temporary: self.write.is_none().then(|| path.clone()) };
        shape::write(shape, self.model.weights, &path)?;
        Ok(made)
    }

    /// Loads the model with as many KV blocks as the largest test needs.
    fn open(&self, args: &ModelArgs, tests: &[Test]) -> anyhow::Result<(Box<dyn Runner + Send>, BenchSetup)> {
        let pool = args.pool()?;
        let threads = pool.threads();
        let device = self.device.unwrap_or(self.gpu_layers.usual_device()).with(self.gpu_layers)?;
        let no_drafts = Speculate(DraftSources::NONE);
        let model = device::open(args, (device, self.gpu_layers), no_drafts, &pool)?.model;
        let layout = kv::layout_of(&args.kv, model.config(), || model.digest())?;
        let blocks = tests.iter().map(blocks_needed).max().unwrap_or(1);
        let positions = tests.iter().map(Test::positions).max().unwrap_or(1);
        // One state for each sequence, and one for the end of the depth.
        let states = 1 + tests.iter().map(|test| test.sequences).max().unwrap_or(1);
        let setup = BenchSetup {
            filename: args.source().to_owned(),
            name: model.config().name.clone(),
            weight_bytes: model.weight_bytes() as u64,
            threads,
            kv: layout.clone(),
            moved_bytes: model.moved_bytes(&layout),
            device: model.place(),
            kv_resident: self.kv_resident,
            repeat_depth: self.repeat_depth,
        };
        anyhow::ensure!(
            self.kv_resident || model.device().is_some(),
            "--kv-resident off compares keys and values on a GPU with such that do not stay there; name one with --device"
        );
        let (pool, adapters, resident) = (Arc::new(pool), Adapters::default(), self.kv_resident);
        let step = step_size(tests);
        let room = RunnerRoom { pool, layout, blocks, context: positions, adapters, states, step, resident };
        Ok((model.runner(room).map_err(no_memory)?, setup))
    }

    /// Every size at every depth, prefill first, as llama-bench orders them.
    fn tests(&self) -> Vec<Test> {
        let one = Test { prompt: 0, generate: 0, depth: 0, sequences: 1, own_prompts: false };
        let many = Test { sequences: self.sequences as usize, own_prompts: self.own_prompts, ..one };
        let at_depth = |&depth: &usize| {
            let prefill = self.prompt.iter().map(move |&prompt| Test { prompt, depth, ..one });
            let decode = self.generate.iter().map(move |&generate| Test { generate, depth, ..many });
            prefill.chain(decode).filter(|test| test.prompt + test.generate > 0)
        };
        self.depth.iter().flat_map(at_depth).collect()
    }
}

impl Test {
    /// Positions that the longest sequence reaches.
    fn positions(&self) -> usize {
        self.depth + self.prompt.max(self.generate)
    }

    /// Steps of one repetition.
    fn steps(&self) -> usize {
        self.prompt.div_ceil(BATCH_ROWS) + self.generate
    }

    /// Tokens that one repetition computes.
    fn tokens(&self) -> usize {
        self.prompt + self.generate * self.sequences
    }

    /// The name of the test in llama-bench.
    fn name(&self) -> String {
        let what =
            if self.prompt > 0 { format!("pp{}", self.prompt) } else { format!("tg{}", self.generate) };
        let own = if self.own_prompts { " own" } else { "" };
        let many = if self.sequences > 1 { format!(" x{}{own}", self.sequences) } else { String::new() };
        let depth = if self.depth > 0 { format!(" @ d{}", self.depth) } else { String::new() };
        what + &many + &depth
    }
}

impl BenchRow {
    fn new(setup: &BenchSetup, test: Test, measured: Measured) -> BenchRow {
        let Measured { samples_ns, bytes_moved, preparing_ns, work: (work, steps) } = measured;
        let [type_k, type_v] = setup.kv.part_names();
        let formula = || copied::bytes(&test, setup.moved_bytes);
        BenchRow {
            build: env!("CARGO_PKG_VERSION"),
            model_filename: setup.filename.clone(),
            model_type: setup.name.clone(),
            model_size: setup.weight_bytes,
            n_threads: setup.threads,
            type_k,
            type_v,
            kv: setup.kv.format_name(),
            n_prompt: test.prompt,
            n_gen: test.generate,
            n_depth: test.depth,
            n_sequences: test.sequences,
            own_prompts: test.own_prompts,
            repeated_depth: setup.repeat_depth,
            device: setup.device.clone(),
            kv_bytes_moved: bytes_moved,
            preparing_ns,
            work: StepWork::of(&work, steps),
            kernels: Vec::new(),
            kv_bytes_formula: if setup.kv_resident { 0 } else { formula() },
            samples: Samples::new(test, samples_ns),
        }
    }

    /// The row of the table, and notes to it.
    fn lines(&self, test: &str) -> Vec<String> {
        let threads = self.n_threads.to_string();
        let model = (&self.model_type[..], self.model_size);
        let row = line(model, [&threads, &self.kv], test, &self.samples);
        let work = self.work.as_ref().map(StepWork::line);
        let notes = [Some(row), self.copies(), self.prepared(), work].into_iter().flatten();
        notes.chain(work::kernel_lines(&self.kernels)).collect()
    }

    /// The bytes copied and those predicted by the formula, if keys and values do not stay on the device.
    fn copies(&self) -> Option<String> {
        let BenchRow { kv_bytes_moved: moved, kv_bytes_formula: formula, .. } = self;
        (*formula > 0).then(|| format!("  copied {moved} bytes of keys and values, by the formula {formula}"))
    }

    /// The share of time that the GPU waited for its steps to be prepared.
    fn prepared(&self) -> Option<String> {
        let share = self.preparing_ns as f64 / self.samples.avg_ns;
        (self.preparing_ns > 0)
            .then(|| format!("  steps were prepared in {:.1} % of the time", 100.0 * share))
    }
}

impl Samples {
    /// Statistics of the repetitions of a test, which took so many nanoseconds each.
    fn new(test: Test, samples_ns: Vec<u64>) -> Samples {
        let speed = |&ns: &u64| test.tokens() as f64 * 1e9 / ns as f64;
        let samples_ts: Vec<f64> = samples_ns.iter().map(speed).collect();
        let (avg_ns, stddev_ns) = spread(&samples_ns.iter().map(|&ns| ns as f64).collect::<Vec<_>>());
        let (avg_ts, stddev_ts) = spread(&samples_ts);
        Samples { avg_ns, stddev_ns, avg_ts, stddev_ts, samples_ns, samples_ts }
    }
}

/// A line of the table: a model and its size, threads and KV format, and the mean and deviation of a test's speeds.
fn line((name, size): (&str, u64), [threads, kv]: [&str; 2], test: &str, samples: &Samples) -> String {
    let Samples { avg_ts, stddev_ts, .. } = samples;
    let (size, speed) = (ByteSize(size).to_string(), format!("{avg_ts:.2} ± {stddev_ts:.2}"));
    format!("| {name:<30} | {size:>10} | {threads:>7} | {kv:<7} | {test:>21} | {speed:>16} |")
}

/// Mean and sample standard deviation.
fn spread(samples: &[f64]) -> (f64, f64) {
    let count = samples.len() as f64;
    let mean = samples.iter().sum::<f64>() / count;
    let squares: f64 = samples.iter().map(|sample| (sample - mean).powi(2)).sum();
    (mean, if samples.len() > 1 { (squares / (count - 1.0)).sqrt() } else { 0.0 })
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, FromArgMatches, Parser};

    use super::*;

    #[derive(Debug, Parser)]
    struct Flags {
        #[command(flatten)]
        bench: BenchArgs,
    }

    const SHARED: Test = Test { prompt: 0, generate: 0, depth: 0, sequences: 1, own_prompts: false };
    const OWN: Test = Test { own_prompts: true, ..SHARED };

    #[test]
    fn names_are_those_of_llama_bench() {
        assert_eq!(Test { prompt: 512, ..SHARED }.name(), "pp512");
        assert_eq!(Test { generate: 128, depth: 4096, ..SHARED }.name(), "tg128 @ d4096");
        assert_eq!(Test { generate: 32, depth: 512, sequences: 16, ..SHARED }.name(), "tg32 x16 @ d512");
        assert_eq!(Test { generate: 32, depth: 512, sequences: 16, ..OWN }.name(), "tg32 x16 own @ d512");
    }

    #[test]
    fn a_shape_or_a_flag_names_the_model() {
        let check = |flags: &[&str], expect: Option<&str>| {
            let matches = Flags::command().get_matches_from([&["kvik"], flags].concat());
            let checked = Flags::from_arg_matches(&matches).unwrap().bench.check(&matches);
            let error = checked.err().map(|error| error.to_string());
            assert_eq!(error.is_some(), expect.is_some(), "{flags:?}: {error:?}");
            assert!(error.unwrap_or_default().contains(expect.unwrap_or_default()), "{flags:?}");
        };
        check(&["-m", "m.gguf"], None);
        check(&["--shape", "qwen3-tiny"], None);
        check(&["--shape", "qwen3-tiny", "-m", "m.gguf"], Some("--shape makes a model"));
        check(&["--shape", "qwen3-tiny", "--write", "s.gguf", "-p", "0", "-n", "0"], None);
        check(&["--write", "s.gguf"], Some("--shape"));
        check(&["-p", "0", "-n", "0"], Some("nothing to measure"));
    }

    #[test]
    fn spread_is_mean_and_sample_deviation() {
        assert_eq!(spread(&[1.0, 2.0, 3.0]), (2.0, 1.0));
        assert_eq!(spread(&[5.0]), (5.0, 0.0));
    }
}

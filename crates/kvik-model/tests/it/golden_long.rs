//! Prompts of thousands of tokens beside llama.cpp, far beyond windows: `golden/*.long.json`.
//!
//! llama.cpp's choice is known at every position, its whole row of logits at some. Prints a row for each model.

use std::fmt;
use std::fs;
use std::sync::Mutex;
use std::thread;

use kvik_model::load::LoadedModel;

use crate::peer::{Sequence, architectures, argmax, golden_model, log_sum};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use kvik_cache::Token;
use kvik_kernels::KvFormat;
use kvik_testing::{golden, mix};
use serde_json::Value;

/// Rows computed at a time, as many as a step of the scheduler has.
const CHUNK: usize = 512;
/// The largest differences from the peer at one position.
struct Bounds {
    /// Of a logit, relative to the largest logit of its row.
    error: f64,
    /// Kullback-Leibler divergence.
    divergence: f64,
}

const BOUNDS: Bounds = Bounds { error: 2e-4, divergence: 2e-8 };
/// llama.cpp looks GELU up in a table of half floats.
const BOUNDS_WITH_GELU: Bounds = Bounds { error: 2e-3, divergence: 1e-5 };

#[test]
fn every_architecture_agrees_over_thousands_of_tokens() {
    let names = Mutex::new(architectures().into_iter());
    let next = || names.lock().unwrap().next();
    let work = || std::iter::from_fn(next).map(|name| Comparison::of(&name)).collect::<Vec<_>>();
    let threads = thread::available_parallelism().map_or(1, usize::from).min(4);
    let mut all: Vec<Comparison> = thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        running.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    all.sort_by(|a, b| a.name.cmp(&b.name));
    println!("{}", Comparison::HEADER);
    all.iter().for_each(|comparison| println!("{comparison}"));
    let complaints: Vec<&str> = all.iter().flat_map(|one| &one.complaints).map(String::as_str).collect();
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

/// The peer's answers to a prompt that is made from a seed.
struct Golden {
    prompt: Vec<Token>,
    /// The likeliest token behind each position.
    choices: Vec<u8>,
    /// Positions whose two best are near each other, with their difference as a part of the largest logit.
    near: Vec<(usize, f64)>,
    /// Positions with all logits, `[vocab]`.
    rows: Vec<(usize, Vec<f32>)>,
}

impl Golden {
    fn read(name: &str, vocab: usize) -> Golden {
        let text = fs::read_to_string(golden(&format!("{name}.long.json"))).unwrap();
        let file: Value = serde_json::from_str(&text).unwrap();
        let bytes = |field: &str| BASE64_STANDARD.decode(file[field].as_str().unwrap()).unwrap();
        let list = |field: &str| file[field].as_array().unwrap();
        let (choices, seed, ids) =
            (bytes("choices"), file["seed"].as_u64().unwrap(), file["ids"].as_u64().unwrap());
        let floats: Vec<f32> =
            bytes("rows").chunks_exact(4).map(|x| f32::from_le_bytes(x.try_into().unwrap())).collect();
        let positions = list("positions").iter().map(|position| position.as_u64().unwrap() as usize);
        let near = |pair: &Value| (pair[0].as_u64().unwrap() as usize, pair[1].as_f64().unwrap());
        assert_eq!(floats.len(), vocab * list("positions").len(), "{name} has whole rows");
        Golden {
            prompt: (0..choices.len() as u64).map(|i| (mix(seed << 32 | i) % ids) as Token).collect(),
            near: list("near").iter().map(near).collect(),
            rows: positions.zip(floats.chunks_exact(vocab).map(<[f32]>::to_vec)).collect(),
            choices,
        }
    }

    /// How far apart the two best are at a position, where that is little.
    fn margin(&self, position: usize) -> Option<f64> {
        self.near.iter().find(|(other, _)| *other == position).map(|&(_, margin)| margin)
    }
}

/// How near kvik is to the peer over one prompt.
struct Comparison {
    name: String,
    bounds: Bounds,
    positions: usize,
    /// Positions at which both choose the same.
    same: usize,
    /// Relative error and divergence of the probed rows, `[rows]`, and where the greatest error is.
    errors: Vec<f64>,
    worst: usize,
    divergences: Vec<f64>,
    complaints: Vec<String>,
}

impl Comparison {
    const HEADER: &'static str =
        "| model | tokens | largest error | at | mean KL | largest KL | same choice | others |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |";

    fn of(name: &str) -> Comparison {
        let loaded = LoadedModel::open(&golden_model(name)).unwrap();
        let has_gelu = loaded.config.arch.name().starts_with("gemma");
        let golden = Golden::read(name, loaded.config.vocab);
        let mut sequence = Sequence::of(loaded, KvFormat::F32, golden.prompt.len());
        let mut all = Comparison {
            name: name.to_owned(),
            bounds: if has_gelu { BOUNDS_WITH_GELU } else { BOUNDS },
            positions: 0,
            same: 0,
            errors: Vec::new(),
            worst: 0,
            divergences: Vec::new(),
            complaints: Vec::new(),
        };
        for chunk in golden.prompt.chunks(CHUNK) {
            let vocab = sequence.vocab_len();
            for logits in sequence.feed_all(chunk).chunks_exact(vocab) {
                all.judge(&golden, logits);
            }
        }
        assert!(all.positions >= 3000 && all.errors.len() >= 17, "{name} is a whole golden file");
        all.complaints.truncate(4);
        all
    }

    /// Compares the logits behind the next position.
    fn judge(&mut self, golden: &Golden, logits: &[f32]) {
        let position = self.positions;
        self.positions += 1;
        let (choice, expected) = (argmax(logits), Token::from(golden.choices[position]));
        if choice == expected {
            self.same += 1;
        } else if golden.margin(position).is_none_or(|margin| margin > 2.0 * self.bounds.error) {
            self.complain(position, format!("chose {choice}, the peer {expected}"));
        }
        let Some((_, row)) = golden.rows.iter().find(|(other, _)| *other == position) else { return };
        let (error, divergence) = (relative_error(row, logits), divergence(row, logits));
        if error.is_nan() || error > self.bounds.error {
            self.complain(position, format!("logits are {error:.1e} off"));
        }
        if divergence.is_nan() || divergence > self.bounds.divergence {
            self.complain(position, format!("KL divergence {divergence:.1e}"));
        }
        if self.errors.iter().all(|&other| error > other) {
            self.worst = position;
        }
        self.errors.push(error);
        self.divergences.push(divergence);
    }

    fn complain(&mut self, position: usize, what: String) {
        self.complaints.push(format!("{}, position {position}: {what}", self.name));
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let most = |values: &[f64]| kvik_testing::largest(values.iter().copied());
        let mean = self.divergences.iter().sum::<f64>() / self.divergences.len() as f64;
        let (same, other) = (self.same as f64 / self.positions as f64, self.positions - self.same);
        let (error, divergence) = (most(&self.errors), most(&self.divergences));
        let (name, positions, worst) = (&self.name, self.positions, self.worst);
        write!(
            f,
            "| {name} | {positions} | {error:.1e} | {worst} | {mean:.1e} | {divergence:.1e} | {same:.4} | {other} |"
        )
    }
}

/// Largest difference, over the largest logit.
fn relative_error(expected: &[f32], logits: &[f32]) -> f64 {
    let largest = expected.iter().fold(0.0, |max: f64, x| max.max(f64::from(x.abs())));
    let errors = expected.iter().zip(logits).map(|(x, y)| f64::from((x - y).abs()));
    kvik_testing::largest(errors) / largest
}

/// Divergence of `logits` from the peer, `sum p ln(p / q)`.
fn divergence(expected: &[f32], logits: &[f32]) -> f64 {
    let (p_sum, q_sum) = (log_sum(expected), log_sum(logits));
    let term = |(&x, &y): (&f32, &f32)| {
        let (ln_p, ln_q) = (f64::from(x) - p_sum, f64::from(y) - q_sum);
        ln_p.exp() * (ln_p - ln_q)
    };
    expected.iter().zip(logits).map(term).sum()
}

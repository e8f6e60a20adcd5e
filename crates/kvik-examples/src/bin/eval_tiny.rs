//! Scores kvik-tiny on its held-out files and prints the result next to the figures of its card.
//!
//! ```text
//! cargo run --release -p kvik-examples --bin eval_tiny [MODEL.gguf]
//! ```
//!
//! The measures are those of `models/tiny/train/evaluate.py`, which produced the card.
//! Ends with an error if a measure is more than two cases away from the card's.

use std::collections::HashMap;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use kvik_cache::{BLOCK_POSITIONS, CacheConfig, Policy};
use kvik_engine::api::Request;
use kvik_engine::engine::{Engine, EngineConfig};
use kvik_kernels::{KvFormat, Pool, performance_cores};
use kvik_model::load::LoadedModel;
use kvik_model::{Model, ModelRunner};
use kvik_text::stream::Vocabulary;
use kvik_text::tokenizer::Tokenizer;
use serde_json::Value;

/// Requests in flight: the engine batches them.
const CLIENTS: usize = 16;
const CONTEXT: usize = 2048;
/// KV blocks: fit the longest cases of all clients, and most of their shared prefixes.
const BLOCKS: usize = 2 * CLIENTS * CONTEXT / BLOCK_POSITIONS;
/// Maximum cases by which a measure may differ from the card: engines round 8-bit activations
/// differently, which can decide a greedy choice between nearly equal logits.
const CASES_MAX: f64 = 2.0;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).map_or_else(|| tiny().join("kvik-tiny-q8_0.gguf"), PathBuf::from);
    let started = Instant::now();
    let model = Tiny::start(&path)?;
    let mut scores = Scores::default();
    for (file, tokens_max, score) in MEASURES {
        let cases = cases(file)?;
        let answers = model.answers(&cases, tokens_max);
        for (case, answer) in cases.iter().zip(&answers) {
            score(&mut scores, case, answer);
        }
    }
    println!(
        "{} in {:.1} s, KV in f16, {} clients",
        path.display(),
        started.elapsed().as_secs_f64(),
        CLIENTS
    );
    let far = report(&scores, &card()?);
    if far > 0 {
        Err(format!("{far} measures are more than {CASES_MAX} cases off the card").into())
    } else {
        Ok(())
    }
}

/// Adds one answer to the scores.
type Score = fn(&mut Scores, &Value, &str);

/// Each held-out file, the maximum tokens of its answers, and its score function.
const MEASURES: [(&str, usize, Score); 4] =
    [("notify", 120, notify), ("recall", 120, recall), ("passkey", 120, passkey), ("summary", 250, summary)];

fn notify(scores: &mut Scores, case: &Value, answer: &str) {
    let parsed: Value = serde_json::from_str(answer).unwrap_or_default();
    let expected = &case["expected"];
    let keys = parsed.as_object().map(|object| {
        let mut keys: Vec<&str> = object.keys().map(String::as_str).collect();
        keys.sort_unstable();
        keys
    });
    scores.add("notify: valid JSON", keys.as_deref() == Some(&["folder", "priority"]));
    let format = format!("notify, {}", case["format"].as_str().unwrap_or_default());
    for group in ["notify", &format] {
        for field in ["folder", "priority"] {
            scores.add(&format!("{group}: {field}"), parsed[field] == expected[field]);
        }
        scores.add(&format!("{group}: both"), parsed == *expected);
    }
}

fn recall(scores: &mut Scores, case: &Value, answer: &str) {
    let expected = case["expected"].as_str().unwrap_or_default().to_lowercase();
    let right = answer.to_lowercase().contains(&expected);
    let updated = if case["updated"] == true { "updated" } else { "stated once" };
    scores.add("recall: all", right);
    scores.add(&format!("recall: {} tokens", case["bucket"].as_str().unwrap_or_default()), right);
    scores.add(&format!("recall: {updated}"), right);
}

fn passkey(scores: &mut Scores, case: &Value, answer: &str) {
    let right = answer.contains(case["expected"].as_str().unwrap_or_default());
    scores.add("passkey: all", right);
    scores.add(&format!("passkey: {} tokens", case["size"]), right);
    scores.add(&format!("passkey: depth {}", case["depth"]), right);
}

fn summary(scores: &mut Scores, case: &Value, answer: &str) {
    let exact = Some(answer.trim()) == case["line"].as_str();
    let found = facts(answer);
    let expected: HashMap<&str, &str> = case["expected"]
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(k, v)| Some((k.as_str(), v.as_str()?)))
        .collect();
    scores.add("summary: exact line", exact);
    for (key, value) in &expected {
        scores.add("summary: fact recall", found.get(key) == Some(value));
    }
    for (key, value) in &found {
        scores.add("summary: fact precision", expected.get(key) == Some(value));
    }
    let kind = if case["merge"] == true { "merge" } else { "fresh" };
    scores.add(&format!("summary: {kind}, exact"), exact);
}

/// The pairs of a line `Facts: dog = Bolt; home = Oslo`.
fn facts(line: &str) -> HashMap<&str, &str> {
    line.strip_prefix("Facts: ")
        .unwrap_or(line)
        .split("; ")
        .filter_map(|pair| pair.split_once(" = "))
        .collect()
}

/// Right answers and cases of each measure, in the order of their first case.
#[derive(Default)]
struct Scores(Vec<(String, usize, usize)>);

impl Scores {
    fn add(&mut self, name: &str, right: bool) {
        let index = self.0.iter().position(|(known, ..)| known == name).unwrap_or_else(|| {
            self.0.push((name.to_owned(), 0, 0));
            self.0.len() - 1
        });
        self.0[index].1 += usize::from(right);
        self.0[index].2 += 1;
    }
}

/// Prints the table; returns how many measures are too far from the card.
fn report(scores: &Scores, card: &HashMap<String, f64>) -> usize {
    println!("| measure | cases | kvik | card |\n| --- | ---: | ---: | ---: |");
    let mut far = 0;
    for (name, right, cases) in &scores.0 {
        let percent = 100.0 * *right as f64 / *cases as f64;
        let Some(expected) = card.get(name) else {
            println!("| {name} | {cases} | {percent:.1}% | not in the card |");
            far += 1;
            continue;
        };
        println!("| {name} | {cases} | {percent:.1}% | {expected:.1}% |");
        // The card gives tenths of a percent.
        far += usize::from((percent - expected).abs() / 100.0 * *cases as f64 > CASES_MAX + 0.5);
    }
    far
}

/// The card's column for Q8_0 weights, in percent, by measure.
fn card() -> Result<HashMap<String, f64>, Box<dyn Error>> {
    let text = fs::read_to_string(tiny().join("MODEL.md"))?;
    let row = |line: &str| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let percent = cells.get(4)?.strip_suffix('%')?.parse().ok()?;
        Some((cells[1].to_owned(), percent))
    };
    Ok(text.lines().filter_map(row).collect())
}

fn cases(name: &str) -> Result<Vec<Value>, Box<dyn Error>> {
    let text = fs::read_to_string(tiny().join(format!("eval-{name}.jsonl")))?;
    Ok(text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?)
}

/// Renders the prompt with the chat template of the model's card.
fn prompt(case: &Value) -> String {
    let turn = |message: &Value| {
        let text = |field: &str| message[field].as_str().unwrap_or_default().to_owned();
        format!("<|im_start|>{}\n{}<|im_end|>\n", text("role"), text("content"))
    };
    let turns: String = case["messages"].as_array().into_iter().flatten().map(turn).collect();
    turns + "<|im_start|>assistant\n"
}

/// A running engine with the model.
struct Tiny {
    engine: Engine,
    tokenizer: Tokenizer,
}

impl Tiny {
    fn start(path: &Path) -> Result<Tiny, Box<dyn Error>> {
        let LoadedModel { config, tensors, tokenizer, .. } = LoadedModel::open(path)?;
        let pool = Pool::new(performance_cores());
        let layout = ModelRunner::uniform_layout(&config, KvFormat::F16);
        let model = Arc::new(Model::load(config, tensors, None, &pool, &|_, _| {})?);
        let settings = EngineConfig {
            parallel_max: CLIENTS,
            waiting_max: CLIENTS,
            ..EngineConfig::new(&layout, model.digest(), CONTEXT)
        };
        let runner = ModelRunner::new(model, pool, layout, BLOCKS, CONTEXT)?;
        let cache = CacheConfig { blocks: BLOCKS, policy: Policy::Lru, ghosts: 0, pinned_max: 0 };
        let engine = Engine::start(runner, Vocabulary::from(&tokenizer), cache, settings)?;
        Ok(Tiny { engine, tokenizer })
    }

    /// Greedy answers to all cases, in their order.
    fn answers(&self, cases: &[Value], tokens_max: usize) -> Vec<String> {
        let next = AtomicUsize::new(0);
        let client = || {
            let mut answers = Vec::new();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(case) = cases.get(index) else { return answers };
                answers.push((index, self.answer(&prompt(case), tokens_max)));
            }
        };
        let mut answers: Vec<(usize, String)> = thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
            clients.into_iter().flat_map(|client| client.join().expect("a client does not panic")).collect()
        });
        answers.sort_unstable();
        answers.into_iter().map(|(_, answer)| answer).collect()
    }

    fn answer(&self, prompt: &str, tokens_max: usize) -> String {
        let request = Request::new(self.tokenizer.encode(prompt, false, true), tokens_max);
        self.engine.generate(request).expect("a held-out case is answered").choices.remove(0).text
    }
}

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny")
}

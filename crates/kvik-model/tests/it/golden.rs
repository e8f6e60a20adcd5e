//! Compares kvik with llama.cpp: the files in `golden/`, which `tools/golden/make.py` writes.
//!
//! Every continuation is fed the peer's tokens, so one wrong choice is reported once and not two hundred
//! times.

use std::fs;
use std::path::Path;

use crate::peer::{Sequence, architectures, argmax, golden_model, log_sum};
use kvik_cache::Token;
use kvik_kernels::KvFormat;
use kvik_testing::{golden, outside_data, tiny_file, tiny_model};
use serde_json::Value;

/// Largest difference of a logit in an F32 model, relative to the largest logit of its row.
const LOGIT_ERROR_MAX: f64 = 1e-3;
/// Largest Kullback-Leibler divergence from the peer in a quantised model.
const DIVERGENCE_MAX: f64 = 1e-3;

const TYPES: [&str; 13] = [
    "type-f16",
    "type-bf16",
    "type-q8_0",
    "type-q4_0",
    "type-q4_1",
    "type-q5_0",
    "type-q5_1",
    "type-iq4_nl",
    "type-q2_k",
    "type-q3_k",
    "type-q4_k",
    "type-q5_k",
    "type-q6_k",
];

#[test]
fn every_architecture_agrees_in_f32() {
    let complaints: Vec<String> =
        architectures().iter().flat_map(|name| equal_continuation(name, &golden_model(name))).collect();
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

#[test]
fn a_trained_model_agrees_in_f32() {
    let Some(data) = outside_data() else { return };
    let complaints = equal_continuation("stories260K", &data.join("stories260K.gguf"));
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

#[test]
fn every_tensor_type_agrees() {
    let complaints: Vec<String> =
        TYPES.iter().flat_map(|name| near_continuation(name, &golden_model(name))).collect();
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

#[test]
fn the_embedded_model_agrees() {
    let complaints = near_continuation("kvik-tiny", &tiny_model());
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

/// 64 held-out cases, answered greedily with KV in F16, as llama-server does.
#[test]
fn the_embedded_model_gives_the_same_answers() {
    let mut sequence = Sequence::open(&tiny_model(), KvFormat::F16);
    let answers = fs::read_to_string(golden("kvik-tiny-answers.jsonl")).unwrap();
    let mut different = Vec::new();
    for line in answers.lines() {
        let expect: Value = serde_json::from_str(line).unwrap();
        let prompt = sequence.tokenizer.encode(&held_out_prompt(&expect), false, true);
        assert_eq!(prompt.len() as u64, expect["prompt_tokens"].as_u64().unwrap(), "{line}");
        // An answer as long as the peer's, plus the end.
        let tokens = answer(&mut sequence, &prompt, expect["tokens"].as_array().unwrap().len() + 1);
        let text = sequence.tokenizer.decode(&tokens);
        if text != expect["text"] {
            different
                .push(format!("{} {}: {text:?}, not {}", expect["eval"], expect["line"], expect["text"]));
        }
    }
    assert_eq!(answers.lines().count(), 64);
    assert!(different.is_empty(), "\n{}", different.join("\n"));
}

/// Complaints about an F32 model: logits beyond the bound, or another greedy choice.
fn equal_continuation(name: &str, model: &Path) -> Vec<String> {
    compare(name, model, |golden, step, logits| {
        let mut complaints = Vec::new();
        let choice = argmax(logits);
        if choice != golden.greedy[step] {
            complaints.push(format!("{name}, step {step}: chose {choice}, the peer {}", golden.greedy[step]));
        }
        if let Some(probe) = golden.probe(step) {
            let error = probe.relative_error(logits);
            if error.is_nan() || error > LOGIT_ERROR_MAX {
                complaints.push(format!("{name}, step {step}: logits are {error:.1e} off"));
            }
        }
        complaints
    })
}

/// Complaints about a quantised model: probabilities that diverge.
fn near_continuation(name: &str, model: &Path) -> Vec<String> {
    compare(name, model, |golden, step, logits| {
        let divergence = golden.probe(step).map_or(0.0, |probe| probe.divergence(logits));
        if divergence.is_nan() || divergence > DIVERGENCE_MAX {
            return vec![format!("{name}, step {step}: KL divergence {divergence:.1e}")];
        }
        Vec::new()
    })
}

/// Feeds the peer's continuation and calls `judge` with the logits before each of its tokens.
fn compare(name: &str, model: &Path, judge: impl Fn(&Golden, usize, &[f32]) -> Vec<String>) -> Vec<String> {
    let golden = Golden::read(name);
    let mut sequence = Sequence::open(model, KvFormat::F32);
    let mut complaints = Vec::new();
    let mut fed: &[Token] = &golden.prompt;
    for step in 0..golden.greedy.len() {
        complaints.extend(judge(&golden, step, sequence.feed(fed)));
        fed = &golden.greedy[step..=step];
    }
    assert_eq!((golden.greedy.len(), golden.probes.len()), (200, 8), "{name} is a whole golden file");
    // The first few show the error; the rest follow from them.
    complaints.truncate(4);
    complaints
}

/// The peer's results for one prompt.
struct Golden {
    prompt: Vec<Token>,
    greedy: Vec<Token>,
    probes: Vec<Probe>,
}

/// The peer's likeliest tokens at one step.
struct Probe {
    step: usize,
    /// Logarithm of the sum of the exponentials of all logits.
    log_sum: f64,
    tokens: Vec<Token>,
    logits: Vec<f64>,
}

impl Golden {
    fn read(name: &str) -> Golden {
        let text = fs::read_to_string(golden(&format!("{name}.json"))).unwrap();
        let file: Value = serde_json::from_str(&text).unwrap();
        let probe = |probe: &Value| Probe {
            step: probe["step"].as_u64().unwrap() as usize,
            log_sum: probe["log_sum"].as_f64().unwrap(),
            tokens: tokens(&probe["tokens"]),
            logits: probe["logits"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect(),
        };
        Golden {
            prompt: tokens(&file["prompt"]),
            greedy: tokens(&file["greedy"]),
            probes: file["probes"].as_array().unwrap().iter().map(probe).collect(),
        }
    }

    fn probe(&self, step: usize) -> Option<&Probe> {
        self.probes.iter().find(|probe| probe.step == step)
    }
}

impl Probe {
    /// Largest difference, over the largest logit.
    fn relative_error(&self, logits: &[f32]) -> f64 {
        let error = |(&token, &expect): (&Token, &f64)| (f64::from(logits[token as usize]) - expect).abs();
        let largest = self.logits.iter().fold(0.0, |max: f64, x| max.max(x.abs()));
        kvik_testing::largest(self.tokens.iter().zip(&self.logits).map(error)) / largest
    }

    /// Divergence of `logits` from the peer, `sum p ln(p / q)`; tokens not listed count as one.
    fn divergence(&self, logits: &[f32]) -> f64 {
        let log_sum = log_sum(logits);
        let (mut divergence, mut p_rest, mut q_rest) = (0.0, 1.0, 1.0);
        for (&token, &logit) in self.tokens.iter().zip(&self.logits) {
            let (ln_p, ln_q) = (logit - self.log_sum, f64::from(logits[token as usize]) - log_sum);
            divergence += ln_p.exp() * (ln_p - ln_q);
            p_rest -= ln_p.exp();
            q_rest -= ln_q.exp();
        }
        // Below this the rest is rounding.
        if p_rest > 1e-6 { divergence + p_rest * (p_rest / f64::max(q_rest, 1e-12)).ln() } else { divergence }
    }
}

/// The greedy answer to a prompt, at most `tokens_max` long, without the token that ends it.
fn answer(sequence: &mut Sequence, prompt: &[Token], tokens_max: usize) -> Vec<Token> {
    sequence.restart();
    let mut answer = Vec::new();
    let mut next = argmax(sequence.feed(prompt));
    while answer.len() < tokens_max && !sequence.tokenizer.is_eog(next) {
        answer.push(next);
        next = argmax(sequence.feed(&[next]));
    }
    answer
}

/// The prompt of a held-out case, in the model's chat template.
fn held_out_prompt(answer: &Value) -> String {
    let file = tiny_file(&format!("eval-{}.jsonl", answer["eval"].as_str().unwrap()));
    let line = answer["line"].as_u64().unwrap() as usize;
    let case: Value =
        serde_json::from_str(fs::read_to_string(file).unwrap().lines().nth(line).unwrap()).unwrap();
    let turn = |message: &Value| {
        let (role, content) = (message["role"].as_str().unwrap(), message["content"].as_str().unwrap());
        format!("<|im_start|>{role}\n{content}<|im_end|>\n")
    };
    let turns: String = case["messages"].as_array().unwrap().iter().map(turn).collect();
    turns + "<|im_start|>assistant\n"
}

fn tokens(list: &Value) -> Vec<Token> {
    list.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as Token).collect()
}

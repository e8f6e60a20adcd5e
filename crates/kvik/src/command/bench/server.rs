//! `kvik bench --server`: the speed of a running server, as its answers report it.

use anyhow::{Context, bail};
use kvik_cache::Token;
use serde::Serialize;
use serde_json::{Value, json};
use ureq::http::Method;

use super::local::TokenStream;
use super::{BenchArgs, Samples, Test, line, prefix, report};
use crate::command::{
    backend::Backend,
    client::{Answered, INTERRUPTED},
    remote::escaped,
};

/// A row of the report; field names are llama-bench's.
#[derive(Debug, Serialize)]
struct ServedRow {
    build: &'static str,
    model_type: String,
    model_size: u64,
    n_prompt: usize,
    n_gen: usize,
    #[serde(flatten)]
    samples: Samples,
}

/// Measures one request at a time, beside those of others.
pub(super) fn run(args: &BenchArgs, tests: &[Test], loading: Option<&str>) -> anyhow::Result<()> {
    if let Some(flag) = loading {
        bail!(
            "--{flag} is for a model that is loaded here, and a server has loaded its own; leave out this or --server"
        );
    }
    let Some(backend) = args.backend.server(&args.model, None)? else {
        bail!(
            "no kvik that runs has this model; `kvik serve` starts one, --url names one, and without --server the model is \
             measured here"
        );
    };
    let name = &backend.model.name;
    let card = backend.client.call(Method::GET, &format!("/v1/models/{}", escaped(name)), None)?;
    let vocab = card["meta"]["n_vocab"].as_u64().filter(|&vocab| vocab > 0);
    let vocab = vocab.with_context(|| format!("the server does not say how many tokens {name} has"))?;
    if let Some(tokens) = args.prefix {
        return prefix::run(args, tokens, &backend, vocab);
    }
    let mut tokens = TokenStream { state: 1, vocab };
    report(
        tests,
        args.form(),
        |test| {
            let samples_ns = samples(&backend, test, args.repetitions, &mut tokens)?;
            Ok(ServedRow::new(&backend, &card, test, samples_ns))
        },
        ServedRow::lines,
    )
}

/// Nanoseconds of each repetition, after an uncounted one.
fn samples(
    backend: &Backend,
    test: Test,
    repetitions: u64,
    tokens: &mut TokenStream,
) -> anyhow::Result<Vec<u64>> {
    once(backend, test, tokens)?;
    (0..repetitions).map(|_| once(backend, test, tokens)).collect()
}

/// Nanoseconds of one request, of which nothing is looked up in the cache.
fn once(backend: &Backend, test: Test, tokens: &mut TokenStream) -> anyhow::Result<u64> {
    let mut body = backend.fields();
    let prompt: Vec<Token> = (0..test.prompt.max(1)).map(|_| tokens.token()).collect();
    body["prompt"] = json!(prompt);
    // The first token is sampled from the prompt: the time of decode begins with it, and has a step for each other one.
    body["max_tokens"] = json!(test.generate + usize::from(test.generate > 0));
    body["ignore_eos"] = json!(true);
    body["cache_prompt"] = json!(false);
    let answer = match backend.client.answer("/v1/completions", body, &mut |_| {})? {
        Answered::Whole(answer) => answer,
        Answered::Stopped => std::process::exit(INTERRUPTED),
    };
    let timings = &answer.report["timings"];
    let ms = if test.prompt > 0 { &timings["prompt_ms"] } else { &timings["predicted_ms"] };
    let ms = ms.as_f64().filter(|ms| *ms > 0.0);
    Ok((ms.context("the server does not say how long it took")? * 1e6) as u64)
}

impl ServedRow {
    fn new(backend: &Backend, card: &Value, test: Test, samples_ns: Vec<u64>) -> ServedRow {
        ServedRow {
            build: env!("CARGO_PKG_VERSION"),
            model_type: backend.model.name.clone(),
            model_size: card["meta"]["size"].as_u64().unwrap_or(0),
            n_prompt: test.prompt,
            n_gen: test.generate,
            samples: Samples::new(test, samples_ns),
        }
    }

    fn lines(&self, test: &str) -> Vec<String> {
        vec![line((&self.model_type[..], self.model_size), ["-", "-"], test, &self.samples)]
    }
}

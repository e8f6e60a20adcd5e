//! Answers each request of a file, all of them five times, and says what the last time took: what a face in another language
//! adds is the difference to the same requests through it. `examples/notifications` writes such files and does the same.
//!
//! `cargo run --release -p kvik-examples --bin ask -- MODEL REQUESTS.jsonl`

use std::error::Error;
use std::time::{Duration, Instant};

use kvik_library::{AnswerOptions, Message, Model, Options, Report};

/// A line of the file.
#[derive(serde::Deserialize)]
struct Request {
    messages: Vec<Message>,
}

/// An answer's times as its reader sees them, and its report.
struct Timed {
    first: Duration,
    total: Duration,
    report: Report,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(path), Some(file)) = (args.next(), args.next()) else {
        return Err("ask MODEL REQUESTS.jsonl".into());
    };
    let text = std::fs::read_to_string(file)?;
    let requests = text.lines().map(serde_json::from_str).collect::<Result<Vec<Request>, _>>()?;
    let options = Options { kv_bytes: Some(64 << 20), parallel: 1, ..Options::new(path.as_str()) };
    let model = Model::open(options)?;
    let ask =
        || requests.iter().map(|request| timed(&model, &request.messages)).collect::<Result<Vec<_>, _>>();
    for _ in 0..4 {
        ask()?;
    }
    say(&ask()?);
    Ok(())
}

fn timed(model: &Model, messages: &[Message]) -> Result<Timed, kvik_library::Error> {
    let options = AnswerOptions { reasoning: Some(false), ..AnswerOptions::GREEDY.at_most(48) };
    let from = Instant::now();
    let mut answer = model.chat(messages, &options)?;
    let mut first = None;
    for piece in &mut answer {
        piece?;
        first.get_or_insert_with(|| from.elapsed());
    }
    let total = from.elapsed();
    let report = answer.report().cloned().expect("an answer that has not failed ends with its report");
    Ok(Timed { first: first.unwrap_or(total), total, report })
}

fn say(answers: &[Timed]) {
    let tokens: usize = answers.iter().map(|answer| answer.report.generated_tokens).sum();
    let total: Duration = answers.iter().map(|answer| answer.total).sum();
    let engine = |report: &Report| report.queued + report.prefill + report.decode;
    let engine: Duration = answers.iter().map(|answer| engine(&answer.report)).sum();
    let mut first: Vec<Duration> = answers.iter().map(|answer| answer.first).collect();
    first.sort();
    let us_a_token = |time: Duration| time.as_secs_f64() * 1e6 / tokens as f64;
    println!(
        "tokens {tokens} first_ms {:.3} total_ms {:.1} us_a_token {:.2} beside_the_engine_us_a_token {:.2}",
        first[first.len() / 2].as_secs_f64() * 1e3,
        total.as_secs_f64() * 1e3,
        us_a_token(total),
        us_a_token(total.saturating_sub(engine)),
    );
}

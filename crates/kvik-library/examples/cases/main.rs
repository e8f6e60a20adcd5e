//! Does what `tests/library/cases.txt` says, and writes what came of it: cases LIST MODEL EMPTY_DIRECTORY
//!
//! The runners of other languages write the same, to the byte.

mod list;

use std::fs::File;
use std::path::PathBuf;

use kvik_library::{
    AnswerOptions, Error, Finish, KeptState, MemoryPressure, Message, Model, Options, Piece, Prompt,
    Sampling, Source,
};
use list::{Line, quote};

/// What cases may need that this library has.
const HAS: [&str; 0] = [];
const OPEN: [&str; 7] = ["as", "file", "disk", "kv_bytes", "context_tokens", "threads", "parallel"];
const ANSWER: [&str; 9] =
    ["max_tokens", "min_tokens", "temperature", "top_p", "top_k", "seed", "stop", "counts", "cancel_after"];
const MESSAGES: [&str; 3] = ["system", "user", "assistant"];

struct Runner {
    file: PathBuf,
    directory: PathBuf,
    model: Option<Model>,
}

/// Why there is no result.
enum Failure {
    Closed,
    Kvik(Error),
}

type Result<T = String> = std::result::Result<T, Failure>;

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Kvik(error)
    }
}

fn main() {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [list, file, directory] = arguments.as_slice() else { panic!("cases LIST MODEL EMPTY_DIRECTORY") };
    let list = std::fs::read_to_string(list).expect("the list is a text");
    let mut runner = Runner { file: file.clone(), directory: directory.clone(), model: None };
    let mut skips = false;
    for line in list::read(&list) {
        if line.operation == "case" {
            line.only(&["name", "needs"]);
            skips = line.find("needs").is_some_and(|needs| !HAS.contains(&needs));
            println!("case name={}{}", quote(line.get("name")), if skips { " skipped=yes" } else { "" });
        } else if !skips {
            let result = runner.run(&line).unwrap_or_else(|failure| format!("error={}", failure.kind()));
            println!("{} {result}", line.operation);
        }
    }
}

impl Runner {
    fn run(&mut self, line: &Line) -> Result {
        match line.operation.as_str() {
            "open" => self.open(line),
            "close" => self.close(),
            "generate" => answer(self.model()?, line, line.prompt().into()),
            "chat" => answer(self.model()?, line, messages(line).into()),
            "count_tokens" => Ok(format!("tokens={}", self.model()?.count_tokens(line.prompt())?)),
            "explain" => explain(self.model()?, line),
            "embed" => embed(self.model()?, line.get("input")),
            "keep" => Ok(kept(self.model()?.keep_prompt(line.get("id"), messages(line))?)),
            "is_kept" => Ok(kept(self.model()?.is_kept(line.get("id"), messages(line))?)),
            "keep_copies" => keep_copies(self.model()?, line),
            "forget" => Ok(format!("known={}", yes(self.model()?.forget_prompt(line.get("id"))?))),
            "memory_pressure" => {
                self.model()?.on_memory_pressure(level(line.get("level"))).map(done).map_err(Failure::from)
            }
            "background" => self.model()?.on_background().map(done).map_err(Failure::from),
            "stats" => stats(self.model()?),
            _ => panic!("an operation that this runner does not know: {line:?}"),
        }
    }

    fn model(&self) -> Result<&Model> {
        self.model.as_ref().ok_or(Failure::Closed)
    }

    fn open(&mut self, line: &Line) -> Result {
        line.only(&OPEN);
        let usual = Options::new(self.source(line));
        let usual = match line.find("disk") {
            Some(name) => usual.with_disk(self.directory.join(name)),
            None => usual,
        };
        let options = Options {
            kv_bytes: line.number("kv_bytes"),
            context_tokens: line.number("context_tokens"),
            threads: line.number("threads"),
            parallel: line.number("parallel").unwrap_or(usual.parallel),
            ..usual
        };
        self.model = Some(Model::open(options)?);
        Ok(done(()))
    }

    fn source(&self, line: &Line) -> Source {
        let path = line.find("file").map_or(self.file.clone(), PathBuf::from);
        match line.get("as") {
            "path" => Source::Path(path),
            "bytes" => Source::Bytes(std::fs::read(path).expect("the file can be read")),
            "part" => {
                let file = File::open(path).expect("the file can be opened");
                Source::Descriptor { file, offset: 0, bytes: None }
            }
            _ => panic!("a source that this runner does not know: {line:?}"),
        }
    }

    fn close(&mut self) -> Result {
        self.model.take().map_or(Ok(()), |model| model.close().map(drop))?;
        Ok(done(()))
    }
}

fn messages(line: &Line) -> Vec<Message> {
    let message = |(name, value): &(String, String)| match name.as_str() {
        "system" => Some(Message::system(value)),
        "user" => Some(Message::user(value)),
        "assistant" => Some(Message::assistant(value)),
        _ => None,
    };
    line.arguments.iter().filter_map(message).collect()
}

fn answer(model: &Model, line: &Line, prompt: Prompt) -> Result {
    line.only(&[&["prompt", "times"], &MESSAGES[..], &ANSWER[..]].concat());
    let mut answer = model.generate(prompt, &answer_options(line))?;
    let cancel_after = line.number("cancel_after").unwrap_or(usize::MAX);
    let (mut text, mut reasoning) = (String::new(), String::new());
    let mut pieces = 0;
    while let Some(piece) = answer.next() {
        match piece? {
            Piece::Reasoning(more) => reasoning += &more,
            piece => text += piece.text(),
        }
        pieces += 1;
        if pieces == cancel_after {
            answer.cancel();
        }
    }
    let report = answer.report().expect("an answer that has not failed ends with its report");
    let finish = format!("finish={} prompt={}", finish(report.finish), report.prompt_tokens);
    if cancel_after < usize::MAX {
        return Ok(finish);
    }
    let reasoning =
        if reasoning.is_empty() { String::new() } else { format!(" reasoning={}", quote(&reasoning)) };
    let said = format!("text={}{reasoning} {finish}", quote(&text));
    if line.find("counts") == Some("no") {
        return Ok(format!("{said} generated={}", report.generated_tokens));
    }
    let reason = report.reason.map_or("", |reason| reason.name());
    Ok(format!(
        "{said} cached={} computed={} generated={} reason={reason}",
        report.cached_tokens, report.computed_tokens, report.generated_tokens
    ))
}

fn answer_options(line: &Line) -> AnswerOptions {
    let greedy = Sampling::GREEDY;
    let sampling = Sampling {
        temperature: line.number("temperature").unwrap_or(greedy.temperature),
        top_p: line.number("top_p").unwrap_or(greedy.top_p),
        top_k: line.number("top_k").unwrap_or(greedy.top_k),
        seed: line.number("seed").unwrap_or(greedy.seed),
        min_tokens: line.number("min_tokens").unwrap_or(greedy.min_tokens),
        ..greedy
    };
    let stop = line.all("stop").map(str::to_owned).collect();
    AnswerOptions { max_tokens: line.number("max_tokens"), stop, sampling, ..AnswerOptions::GREEDY }
}

fn explain(model: &Model, line: &Line) -> Result {
    let explained = model.explain(line.prompt())?;
    let reason = explained.reason.name();
    Ok(format!("prompt={} known={} reason={reason}", explained.prompt_tokens, explained.known_tokens))
}

fn embed(model: &Model, input: &str) -> Result {
    let vector = model.embed(input)?.vector;
    let bits: String = vector.iter().map(|number| format!("{:08x}", number.to_bits())).collect();
    Ok(format!("dimensions={} bits={bits}", vector.len()))
}

fn kept(state: KeptState) -> String {
    match state {
        KeptState::Unknown => "state=unknown".to_owned(),
        KeptState::Changed => "state=changed".to_owned(),
        KeptState::Kept { tokens, .. } => {
            format!("state=kept warm={} tokens={tokens}", yes(state.is_warm()))
        }
        _ => panic!("a state that this runner does not know: {state:?}"),
    }
}

fn keep_copies(model: &Model, line: &Line) -> Result {
    let copies = line.number("copies").expect("it says how many");
    let keep = |i: &usize| model.keep_prompt(&format!("{}{i}", line.get("id")), messages(line));
    let refused = (0..copies).map(|i| (i, keep(&i))).find_map(|(i, kept)| kept.err().map(|error| (i, error)));
    Ok(match refused {
        Some((kept, error)) => format!("kept={kept} error={}", Failure::from(error).kind()),
        None => format!("kept={copies}"),
    })
}

fn stats(model: &Model) -> Result {
    let stats = model.stats();
    let (running, waiting) = (stats.running, stats.waiting);
    let [prompt, cached, generated] = [stats.prompt_tokens, stats.cached_tokens, stats.generated_tokens];
    Ok(format!("running={running} waiting={waiting} prompt={prompt} cached={cached} generated={generated}"))
}

fn level(word: &str) -> MemoryPressure {
    match word {
        "moderate" => MemoryPressure::Moderate,
        "high" => MemoryPressure::High,
        "critical" => MemoryPressure::Critical,
        _ => panic!("a level that this runner does not know: {word}"),
    }
}

fn finish(finish: Finish) -> &'static str {
    match finish {
        Finish::End => "end",
        Finish::Stop => "stop",
        Finish::Length => "length",
        Finish::Cancelled => "cancelled",
        _ => panic!("an end that this runner does not know: {finish:?}"),
    }
}

fn yes(is: bool) -> &'static str {
    if is { "yes" } else { "no" }
}

fn done<T>(_: T) -> String {
    "ok=yes".to_owned()
}

impl Failure {
    /// The kind of it, as C's status says it.
    fn kind(&self) -> &'static str {
        let Failure::Kvik(error) = self else { return "closed" };
        match error {
            Error::Source(_)
            | Error::Load(_)
            | Error::Weights(_)
            | Error::Template(_)
            | Error::NoTemplate
            | Error::Isa(_) => "model",
            Error::BudgetTooSmall { .. } | Error::ContextTooLarge { .. } | Error::NoMemory { .. } => "memory",
            Error::Disk(_) | Error::KeptPrompts { .. } => "disk",
            Error::Request(_)
            | Error::PromptTooLong { .. }
            | Error::OverBudget { .. }
            | Error::NoRoomToKeep { .. }
            | Error::TooManyKept { .. } => "request",
            _ => "internal",
        }
    }
}

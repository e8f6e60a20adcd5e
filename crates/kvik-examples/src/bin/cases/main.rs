//! Does what `tests/library/cases.txt` says, and writes what came of it: cases LIST MODEL EMPTY_DIRECTORY
//!
//! The runners of other languages write the same, to the byte.

mod answers;
mod conversations;
mod list;

use std::fs::File;
use std::path::PathBuf;

use answers::{answer, messages};
use kvik_library::{
    Error, KeptState, MemoryPressure, Model, Options, RequestError, SamplingDefaults, Source, Sourced,
    StartError,
};
use list::{Line, quote};

/// What cases may need that this library has.
const HAS: [&str; 2] = ["forms", "conversations"];
const OPEN: [&str; 8] =
    ["as", "file", "disk", "conversations", "kv_bytes", "context_tokens", "threads", "parallel"];

struct Runner {
    file: PathBuf,
    directory: PathBuf,
    model: Option<Model>,
}

/// Why there is no result.
enum Failure {
    Closed,
    /// An argument that is a text in other languages, and here has a type of its own.
    Argument,
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
            println!("{}", format!("{} {result}", line.operation).trim_end());
        }
    }
}

impl Runner {
    fn run(&mut self, line: &Line) -> Result {
        match line.operation.as_str() {
            "open" => self.open(line),
            "close" => self.close(),
            "generate" => {
                answer(line, |options| self.model()?.generate(line.prompt(), options).map_err(Failure::from))
            }
            "chat" => {
                answer(line, |options| self.model()?.chat(&messages(line), options).map_err(Failure::from))
            }
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
            "sampling" => Ok(sampling(&self.model()?.sampling(None))),
            "conversations" => Ok(conversations::all(self.model()?)),
            "say" | "messages" | "remembered" | "correct" | "take_back" | "rename" | "delete" => {
                conversations::run(self.model()?.conversation(line.get("conversation")), line)
            }
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
        let conversations = line.find("conversations").map(|name| self.directory.join(name));
        let options = Options {
            kv_bytes: line.number("kv_bytes"),
            context_tokens: line.number("context_tokens"),
            threads: line.number("threads"),
            parallel: line.number("parallel").unwrap_or(usual.parallel),
            conversations,
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

/// Each setting with two decimals or none, and its source.
fn sampling(in_force: &SamplingDefaults) -> String {
    fn setting(name: &str, value: String, source: impl ToString) -> String {
        format!("{name}={value} from={}", quote(&source.to_string()))
    }
    let real = |name, Sourced { value, source }: Sourced<f32>| setting(name, format!("{value:.2}"), source);
    let (top_k, last_n) = (in_force.top_k, in_force.penalty_last_n);
    let settings = [
        real("temperature", in_force.temperature),
        setting("top_k", top_k.value.to_string(), top_k.source),
        real("top_p", in_force.top_p),
        real("min_p", in_force.min_p),
        real("repetition_penalty", in_force.repetition_penalty),
        real("presence_penalty", in_force.presence_penalty),
        real("frequency_penalty", in_force.frequency_penalty),
        setting("penalty_last_n", last_n.value.to_string(), last_n.source),
    ];
    settings.join(" ")
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

fn yes(is: bool) -> &'static str {
    if is { "yes" } else { "no" }
}

fn done<T>(_: T) -> String {
    "ok=yes".to_owned()
}

impl Failure {
    /// The kind of it, as C's status says it.
    fn kind(&self) -> &'static str {
        let error = match self {
            Failure::Closed => return "closed",
            Failure::Argument => return "argument",
            Failure::Kvik(error) => error,
        };
        match error {
            Error::Source(_)
            | Error::Load(_)
            | Error::Weights(_)
            | Error::Template(_)
            | Error::NoTemplate
            | Error::Isa(_) => "model",
            Error::BudgetTooSmall { .. }
            | Error::BudgetTooLarge { .. }
            | Error::ContextTooLarge { .. }
            | Error::NoMemory { .. } => "memory",
            Error::Start(StartError::Thread(_)) => "internal",
            Error::Start(_) | Error::Threads(_) => "argument",
            Error::Disk(_) | Error::KeptPrompts { .. } | Error::Records(_) | Error::NotForgotten(_) => "disk",
            Error::Request(RequestError::Internal(_)) => "internal",
            Error::Request(_)
            | Error::PromptTooLong { .. }
            | Error::OverBudget { .. }
            | Error::NoRoomToKeep { .. }
            | Error::TooManyKept { .. }
            | Error::KeptTooLong { .. }
            | Error::BadTools(_)
            | Error::Tools(_)
            | Error::TwoForms
            | Error::Conversation(_)
            | Error::Memory(_)
            | Error::Correction(_) => "request",
            _ => "internal",
        }
    }
}

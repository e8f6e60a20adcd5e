//! The tasks by name, and their cases in the tokens of one model.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use super::encode::{Encoder, SplitPrompt};
use super::score::Expected;
use super::windows::{self, Window};
use super::written::WrittenCase;
use super::{data, generate, held_out};

/// Prefix of the tasks of the embedded model's own files.
const OWN: &str = "tiny.";

/// Cases of a task where nothing is said.
pub(crate) const CASES: usize = 40;

/// The task that predicts the stories in this program.
pub(crate) const STORIES_TASK: &str = "stories";

/// A task with its cases.
#[derive(Debug, Clone)]
pub(crate) struct EvalTask {
    pub(crate) name: String,
    pub(crate) work: Work,
}

/// The kind of a task, with its cases.
#[derive(Debug, Clone)]
pub(crate) enum Work {
    /// Answer questions.
    Answer(Vec<EvalCase>),
    /// Predict text.
    Predict(Vec<Window>),
}

/// A case in tokens.
#[derive(Debug, Clone)]
pub(crate) struct EvalCase {
    pub(crate) prompt: SplitPrompt,
    pub(crate) expected: Expected,
    /// Maximum tokens of an answer.
    pub(crate) limit: usize,
    pub(crate) group: String,
}

/// The sources of cases, and their number.
#[derive(Debug, Clone)]
pub(crate) struct Sources {
    /// The embedded model's held-out files.
    pub(crate) held_out: PathBuf,
    /// A user's cases.
    pub(crate) data: Option<PathBuf>,
    /// A user's text.
    pub(crate) text: Option<PathBuf>,
    /// Seed of generated cases.
    pub(crate) seed: u64,
    /// Tokens of generated cases, and of windows of a user's text; the cases of a task cycle through them.
    pub(crate) lengths: Vec<usize>,
    /// Number of cases of a task that says none; without it [`CASES`], and all of a user's.
    pub(crate) cases: Option<usize>,
}

/// Every task, and its subject.
pub(crate) fn catalogue() -> Vec<(String, &'static str)> {
    let generated = generate::TASKS.iter().map(|task| (task.name.to_owned(), task.about));
    let own = held_out::FILES.iter().map(|file| (file.name, file.about)).chain(windows::KINDS);
    let own = own.map(|(name, about)| (format!("{OWN}{name}"), about));
    let given = [
        (STORIES_TASK, "perplexity of stories, for any model"),
        ("data", "your own cases, of --data"),
        ("text", "perplexity of your own text, of --text"),
    ];
    generated.chain(own).chain(given.map(|(name, about)| (name.to_owned(), about))).collect()
}

/// The tasks that `texts` name: a task, or all of a kind with `generated` or `tiny`, each optionally with `:CASES`.
///
/// # Errors
/// If there is no such task, or it has no cases.
pub(crate) fn named(
    texts: &[String],
    sources: &Sources,
    encoder: &Encoder<'_>,
) -> anyhow::Result<Vec<EvalTask>> {
    let mut tasks: Vec<EvalTask> = Vec::new();
    for text in texts {
        let (name, cases) = counted(text, sources.cases)?;
        for name in members(name)? {
            let task = sources.task(&name, cases, encoder).with_context(|| format!("--task {name}"))?;
            if !tasks.iter().any(|known| known.name == task.name) {
                tasks.push(task);
            }
        }
    }
    Ok(tasks)
}

/// A task's name, and its number of cases, if one is said.
fn counted(text: &str, default: Option<usize>) -> anyhow::Result<(&str, Option<usize>)> {
    let Some((name, cases)) = text.split_once(':') else { return Ok((text, default)) };
    match cases.parse() {
        Ok(cases) if cases > 0 => Ok((name, Some(cases))),
        _ => bail!("--task {text}: `{cases}` is no number of cases; write NAME or NAME:CASES"),
    }
}

/// The tasks that a name denotes.
fn members(name: &str) -> anyhow::Result<Vec<String>> {
    let all: Vec<String> = catalogue().into_iter().map(|(name, _)| name).collect();
    match name {
        "tiny" => Ok(all.into_iter().filter(|name| name.starts_with(OWN)).collect()),
        "generated" => Ok(generate::TASKS.iter().map(|task| task.name.to_owned()).collect()),
        _ if all.iter().any(|known| known == name) => Ok(vec![name.to_owned()]),
        _ => bail!("--task {name}: there is no such task; there are tiny, generated, {}", all.join(", ")),
    }
}

impl Sources {
    fn task(&self, name: &str, said: Option<usize>, encoder: &Encoder<'_>) -> anyhow::Result<EvalTask> {
        let cases = said.unwrap_or(CASES);
        let work = match name.strip_prefix(OWN) {
            Some(own) => self.own(own, cases, encoder)?,
            None if name == "data" => {
                let path =
                    self.data.as_deref().context("its cases come from --data FILE, which is missing")?;
                let mut given = data::cases(path)?;
                given.truncate(said.unwrap_or(usize::MAX));
                Work::Answer(encoded(&given, encoder)?)
            }
            None if name == "text" => {
                let path =
                    self.text.as_deref().context("its text comes from --text FILE, which is missing")?;
                Work::Predict(windows::of_file(path, self.lengths[0], cases, encoder.tokenizer)?)
            }
            None if name == STORIES_TASK => {
                Work::Predict(windows::of_stories(self.lengths[0], cases, encoder.tokenizer)?)
            }
            None => Work::Answer(encoded(&self.generated(name, cases, encoder)?, encoder)?),
        };
        Ok(EvalTask { name: name.to_owned(), work })
    }

    fn own(&self, name: &str, cases: usize, encoder: &Encoder<'_>) -> anyhow::Result<Work> {
        let directory: &Path = &self.held_out;
        match held_out::FILES.iter().find(|file| file.name == name) {
            Some(file) => Ok(Work::Answer(encoded(&file.cases(directory, cases)?, encoder)?)),
            None => Ok(Work::Predict(windows::own(directory, name, cases, encoder.tokenizer)?)),
        }
    }

    fn generated(&self, name: &str, cases: usize, encoder: &Encoder<'_>) -> anyhow::Result<Vec<WrittenCase>> {
        let task = generate::TASKS.iter().find(|task| task.name == name).context("there is no such task")?;
        let lengths = self.lengths.iter().cycle();
        Ok((0..cases)
            .zip(lengths)
            .map(|(case, &length)| task.case(encoder, self.seed, case, length))
            .collect())
    }
}

/// Cases in tokens.
fn encoded(cases: &[WrittenCase], encoder: &Encoder<'_>) -> anyhow::Result<Vec<EvalCase>> {
    let encode = |(case, number): (&WrittenCase, usize)| {
        let prompt = encoder.encode(case).with_context(|| format!("case {number}"))?;
        Ok(EvalCase { prompt, expected: case.expected.clone(), limit: case.limit, group: case.group.clone() })
    };
    cases.iter().zip(1..).map(encode).collect()
}

impl EvalTask {
    /// Number of cases or windows.
    pub(crate) fn len(&self) -> usize {
        match &self.work {
            Work::Answer(cases) => cases.len(),
            Work::Predict(windows) => windows.len(),
        }
    }

    /// Its cases; none for a task that predicts text.
    pub(crate) fn cases(&self) -> &[EvalCase] {
        match &self.work {
            Work::Answer(cases) => cases,
            Work::Predict(_) => &[],
        }
    }

    /// Tokens of its shortest and longest prompt.
    pub(crate) fn tokens(&self) -> (usize, usize) {
        let lengths: Vec<usize> = match &self.work {
            Work::Answer(cases) => cases.iter().map(|case| case.prompt.len()).collect(),
            Work::Predict(windows) => windows.iter().map(|window| window.tokens.len()).collect(),
        };
        (lengths.iter().copied().min().unwrap_or(0), lengths.iter().copied().max().unwrap_or(0))
    }

    /// Removes the cases that exceed `context` tokens with their answers, and returns their number.
    pub(crate) fn limit(&mut self, context: usize) -> usize {
        let before = self.len();
        match &mut self.work {
            Work::Answer(cases) => cases.retain(|case| case.prompt.len() + case.limit <= context),
            Work::Predict(windows) => windows.retain(|window| window.tokens.len() <= context),
        }
        before - self.len()
    }
}

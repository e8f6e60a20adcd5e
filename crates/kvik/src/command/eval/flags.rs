//! The flags of `kvik eval`, and the settings derived from them.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use kvik_cache::retain::{Gated, Policy};
use kvik_model::KvMap;

use super::sensitivity::SensitivityArgs;
use crate::eval::setting::{self, Setting, Sight};
use crate::eval::tasks::{self, Sources};
use crate::eval::windows;
use kvik_serving::settings::{model::ModelArgs, size::ByteSize};

/// Path of the embedded model's held-out files in a checkout.
const HELD_OUT: &str = "models/tiny";

/// Measures what a retention policy or a KV format costs on this model
#[derive(Debug, Args)]
#[command(
    after_help = "A retention policy keeps a part of the keys and values of a prompt and drops the rest. What that costs
differs from model to model, so measure it before you use it. Every prompt is read once, exactly; then each
policy keeps its part of it and goes on from there. Right answers are given in percent of those that the same
model finds with everything kept in 32-bit floats.

A policy is written NAME[:KEEP][,option=value]: snapkv, keydiff:0.3, h2o:512,budget=all. One without a KEEP is
measured at every share of --keep. With the question unseen, only what stands before the question is
compressed: so it is when many questions follow one prompt. With the question seen, all is compressed at once.

Cases are generated from a seed, in plain words, for any model; kvik-tiny has held-out files of its own; or
bring your own, a JSON object a line:
  {\"messages\": [{\"role\": \"user\", \"content\": \"...\"}], \"contains\": \"Oslo\"}
and, if you like, \"question\" (the text from which the question begins), \"max_tokens\" and \"group\".

Beside each figure stands the number of its cases and the interval of 95%: of a model that finds fewer than 20
answers with everything kept, nothing follows about a policy. A policy is judged by the worse of right answers
and perplexity, since one can be whole where the other is ruined.

Results are kept for each model; `kvik serve` warns when a setting was not measured or loses much.

Examples:
  kvik eval --retain keydiff --retain snapkv             two policies at 75, 50, 30 and 20% kept
  kvik eval --retain all --task recall,passkey:100       every policy, two tasks, 100 pass keys
  kvik eval --kv q4 --kv-also q8 -m model.gguf           what 4 and 8 bits cost, everything kept
  kvik eval --retain keydiff:0.3 --data cases.jsonl      your own cases
  kvik eval --retain kvzip --html report.html            curves of quality, memory and speed, for a browser
  kvik eval --calibrate                                  gates, for --retain gated, and which heads retrieve, for
                                                         --retain keydiff,budget=calibrated
  kvik eval --sensitivity                                how much each layer minds each format, for --kv auto:5.0
  kvik eval --sensitivity --curve                        loss against bits: chosen, uniform, at random
  kvik eval --list                                       tasks and policies"
)]
pub(crate) struct EvalArgs {
    /// A policy to measure, as keydiff or snapkv:0.5,budget=all; several times; all for every policy that
    /// needs no training
    #[arg(long, value_name = "POLICY")]
    retain: Vec<String>,
    /// What policies keep that do not say so: shares, tokens or bytes
    #[arg(long, value_name = "KEEP", value_delimiter = ',', default_values = ["0.75", "0.5", "0.3", "0.2"],
        requires = "retain")]
    keep: Vec<String>,
    /// Whether policies see the question before they decide
    #[arg(long, value_enum, default_value = "unseen", requires = "retain")]
    question: SightArg,
    /// A further KV format or map to measure; several times
    #[arg(long, value_name = "FORMAT")]
    pub(super) kv_also: Vec<KvMap>,
    /// Tasks, each as NAME or NAME:CASES; tiny and generated stand for all of a kind [default: those of --data and --text,
    /// else tiny for the embedded model where its files are, else generated,stories]
    #[arg(long, value_name = "TASK", value_delimiter = ',')]
    task: Vec<String>,
    /// Cases of a task that says no number [default: 40, and all of --data]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    cases: Option<u32>,
    /// Tokens of generated prompts; with several, cases take turns [default: 512,1024,1536, or what the model takes]
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(128..=1 << 24))]
    length: Vec<u32>,
    /// Seed of generated cases
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) seed: u64,
    /// Your own cases, one JSON object a line
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// Your own text, for perplexity and --sensitivity
    #[arg(long, value_name = "FILE")]
    pub(super) text: Option<PathBuf>,
    /// Directory with kvik-tiny's held-out files
    #[arg(long, value_name = "DIR", default_value = HELD_OUT)]
    held_out: PathBuf,
    /// Memory for the variants of a prompt that are computed together
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    pub(super) memory: ByteSize,
    /// Train the gates of --retain gated; and find which KV heads retrieve and which only stream, and keep that for
    /// budget=calibrated, which takes a task with 20 cases that the model answers rightly
    #[arg(long, conflicts_with_all = ["retain", "keep", "question", "kv_also", "speed"])]
    pub(super) calibrate: bool,
    /// Take times of one long prompt alone under every setting
    #[arg(long)]
    pub(super) speed: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(super) json: bool,
    /// Write a page with curves
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
    /// List the tasks and the policies
    #[arg(long)]
    pub(super) list: bool,
    #[command(flatten)]
    pub(super) sensitivity: SensitivityArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

/// The policies that need no training.
fn untrained() -> impl Iterator<Item = &'static str> {
    Policy::names().into_iter().filter(|&name| name != Policy::Gated(Gated::DEFAULT).name())
}

/// Whether the question is seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SightArg {
    /// Only what stands before the question is compressed
    Unseen,
    /// Prompt and question are compressed together
    Seen,
    /// Both, one after the other
    Both,
}

impl SightArg {
    fn sights(self) -> &'static [Sight] {
        match self {
            SightArg::Unseen => &[Sight::Unseen],
            SightArg::Seen => &[Sight::Seen],
            SightArg::Both => &[Sight::Unseen, Sight::Seen],
        }
    }
}

impl EvalArgs {
    /// Full KV first, then every policy with every requested share.
    pub(super) fn settings(&self) -> anyhow::Result<Vec<Setting>> {
        let all = self.retain.iter().flat_map(|text| match &text[..] {
            "all" => untrained().map(str::to_owned).collect(),
            _ => vec![text.clone()],
        });
        let retentions = setting::retentions(&all.collect::<Vec<_>>(), &self.keep)?;
        let settings = setting::settings(&retentions, self.question.sights());
        Ok([vec![Setting::EVERYTHING], settings].concat())
    }

    /// The requested tasks, and those of files that are given and named by none.
    pub(super) fn tasks(&self) -> Vec<String> {
        let own = self.model.is_embedded() && Path::new(&self.held_out).join("eval-order.json").exists();
        let is_named = |name: &str| self.task.iter().any(|task| task.split(':').next() == Some(name));
        let given = [("data", self.data.is_some()), ("text", self.text.is_some())];
        let given = given.into_iter().filter(|&(name, is_given)| is_given && !is_named(name));
        let given: Vec<String> = given.map(|(name, _)| name.to_owned()).collect();
        let tasks = match &self.task[..] {
            [] if !given.is_empty() => Vec::new(),
            [] if own && !self.calibrate => vec!["tiny".to_owned()],
            [] if windows::STORIES.is_none() => vec!["generated".to_owned()],
            // A policy is judged by right answers and by perplexity, so both are measured; gates learn from both.
            [] => vec!["generated".to_owned(), tasks::STORIES_TASK.to_owned()],
            tasks => tasks.to_vec(),
        };
        [tasks, given].concat()
    }

    /// The sources of cases, for a model that takes `context` tokens.
    pub(super) fn sources(&self, context: usize) -> Sources {
        let lengths = match &self.length[..] {
            [] => [512, 1024, 1536].into_iter().filter(|length| length + length / 4 <= context).collect(),
            lengths => lengths.iter().map(|&length| length as usize).collect::<Vec<_>>(),
        };
        let lengths = if lengths.is_empty() { vec![context / 2] } else { lengths };
        Sources {
            held_out: self.held_out.clone(),
            data: self.data.clone(),
            text: self.text.clone(),
            seed: self.seed,
            lengths,
            cases: self.cases.map(|cases| cases as usize),
        }
    }
}

/// The tasks and the policies, for `--list`.
pub(super) fn catalogue() -> String {
    let tasks = tasks::catalogue().into_iter().map(|(name, about)| format!("  {name:<14} {about}\n"));
    let policies = Policy::names().join(", ");
    format!("tasks\n{}\npolicies\n  {policies}\n", tasks.collect::<String>())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        eval: EvalArgs,
    }

    fn parsed(words: &str) -> Result<EvalArgs, clap::Error> {
        Line::try_parse_from(["eval"].into_iter().chain(words.split_whitespace())).map(|line| line.eval)
    }

    #[test]
    fn files_that_are_given_are_measured() {
        let tasks = |words: &str| parsed(words).unwrap().tasks();
        assert_eq!(tasks("--data a --text b"), ["data", "text"]);
        assert_eq!(tasks("--text b"), ["text"]);
        assert_eq!(tasks("--task recall:3 --text b"), ["recall:3", "text"]);
        assert_eq!(tasks("--task text:20,recall --text b --data a"), ["text:20", "recall", "data"]);
        assert_eq!(tasks("--task recall"), ["recall"]);
        assert!(!tasks("").is_empty());
    }

    #[test]
    fn what_a_measurement_would_not_read_is_refused() {
        for words in [
            "--sensitivity --retain keydiff",
            "--sensitivity --calibrate",
            "--sensitivity --html a.html",
            "--sensitivity --task recall",
            "--sensitivity --data a",
            "--sensitivity --cases 3",
            "--sensitivity --speed",
            "--calibrate --retain keydiff",
            "--calibrate --kv-also q8",
            "--calibrate --speed",
            "--keep 0.5",
            "--question both",
        ] {
            let error = parsed(words).unwrap_err().to_string();
            assert!(error.contains("cannot be used with") || error.contains("required"), "{words}: {error}");
        }
        for words in [
            "--sensitivity --text a --json --curve --windows 2",
            "--calibrate --task recall:30 --cases 50 --html a.html",
            "--retain keydiff --keep 0.5 --question both --kv-also q8 --speed",
        ] {
            assert!(parsed(words).is_ok(), "{words}");
        }
    }
}

//! `kvik perplexity`: measures how well a model predicts a text, with the flags and the rules of llama-perplexity.
//!
//! The command drives the model directly, without scheduler or cache: every window is computed cold, or the whole text
//! is read as one stream by a model that drops positions.

mod stream;

use std::{
    num::NonZeroUsize,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use kvik_cache::retain::Retention;
use kvik_engine::engine::perplexity::{Perplexity, WINDOW_TOKENS, WINDOW_TOKENS_MIN, Windows};
use kvik_kernels::KvLayout;
use kvik_model::ModelRunner;
use serde_json::json;

use kvik_serving::{kv, open, settings::model::ModelArgs};

/// Measures how well a model predicts a text, with the flags and the rules of llama-perplexity
#[derive(Debug, Args)]
#[command(
    after_help = "Perplexity is e to the mean negative log-likelihood of a token: a model of perplexity 6 is on
average as unsure of the next token as of the throw of a die. Lower is better, and only figures of
the same tokenizer, text and window compare. Run it once with each format of weights, or of keys and
values, to see what the format costs. The text is cut into windows of N tokens; each is computed
from nothing, and its second half is scored.

Examples:
  kvik perplexity -m model.gguf -f wiki.test.raw             the whole text in windows of 512 tokens
  kvik perplexity -m model.gguf -f wiki.test.raw --chunks 40 its first 40 windows
  kvik perplexity -m model.gguf -f wiki.test.raw --kv q8     what 8-bit keys and values cost
  kvik perplexity -f letter.txt -c 256 --json                the model of `kvik default`, one JSON object
  kvik perplexity -f letter.txt --retain sinks:1024          the text as one stream of which 1024 tokens are kept
  kvik perplexity -f letter.txt --retain sinks:1024 --tokens 200000    over and over, to see that it stays flat"
)]
pub(crate) struct PerplexityArgs {
    /// The text, in UTF-8
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Tokens of a window, --ctx-size of llama-perplexity
    #[arg(short = 'c', long = "window", visible_alias = "ctx-size", value_name = "N", default_value_t = WINDOW_TOKENS as u32,
        value_parser = clap::value_parser!(u32).range(WINDOW_TOKENS_MIN as i64..=1 << 24))]
    window: u32,
    /// Windows to score at most [default: all]
    #[arg(long, value_name = "N")]
    chunks: Option<NonZeroUsize>,
    /// Read the text as one stream and keep what this policy keeps of it, as sinks:1024; no windows
    #[arg(long, value_name = "POLICY", conflicts_with_all = ["window", "chunks"])]
    retain: Option<Retention>,
    /// Tokens of the stream to read; a shorter text is read over and over [default: the text once]
    #[arg(long, value_name = "N", requires = "retain")]
    tokens: Option<NonZeroUsize>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(super) model: ModelArgs,
}

/// Runs the command.
pub(crate) fn run(args: &PerplexityArgs) -> anyhow::Result<()> {
    let text = read(&args.file)?;
    if let Some(retention) = args.retain {
        return stream::run(args, &text, retention);
    }
    let Opened { mut runner, windows, kv } = args.open(&text)?;
    let bar = progress(windows.count());
    let start = Instant::now();
    let perplexity = windows.score(&mut runner, &mut |so_far| {
        bar.set_message(format!("{:.4}", so_far.value()));
        bar.set_position(so_far.windows as u64);
    });
    bar.finish_and_clear();
    let elapsed = start.elapsed();
    match args.json {
        true => println!("{}", serde_json::to_string_pretty(&args.summary(&perplexity, &kv, elapsed))?),
        false => println!("{}", args.line(&perplexity, &kv.format_name(), elapsed)),
    }
    Ok(())
}

fn read(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path)
        .with_context(|| format!("the text {} cannot be read; it must be UTF-8", path.display()))
}

/// The model and the windows of text to score.
struct Opened {
    runner: ModelRunner,
    windows: Windows,
    kv: KvLayout,
}

impl PerplexityArgs {
    /// Loads the model with the KV blocks of one window, and cuts the text.
    fn open(&self, text: &str) -> anyhow::Result<Opened> {
        let pool = self.model.pool()?;
        let loaded = open::model(&self.model, &pool)?;
        let (model, window) = (loaded.model, self.window as usize);
        if window > model.config().context {
            tracing::warn!(
                "the model was made for {} tokens and a window is {window}",
                model.config().context
            );
        }
        let windows_max = self.chunks.map_or(usize::MAX, NonZeroUsize::get);
        let windows = Windows::new(&loaded.tokenizer, text, window, windows_max)
            .with_context(|| format!("the text {} cannot be scored", self.file.display()))?;
        let kv = kv::layout(&self.model.kv, &model)?;
        let runner = ModelRunner::new(Arc::new(model), pool, kv.clone(), windows.blocks(), window)
            .and_then(|runner| runner.with_states(1))
            .with_context(|| format!("no memory for windows of {window} tokens"))?;
        Ok(Opened { runner, windows, kv })
    }

    fn line(&self, perplexity: &Perplexity, kv: &str, elapsed: Duration) -> String {
        format!(
            "perplexity {:.4} +/- {:.4}   ({} tokens scored in {} windows of {}, kv {kv}, {:.1} s)",
            perplexity.value(),
            perplexity.error(),
            perplexity.tokens,
            perplexity.windows,
            self.window,
            elapsed.as_secs_f64()
        )
    }

    fn summary(&self, perplexity: &Perplexity, kv: &KvLayout, elapsed: Duration) -> serde_json::Value {
        let [k, v] = kv.part_names();
        json!({
            "model": self.model.source(),
            "file": self.file.display().to_string(),
            "type_k": k,
            "type_v": v,
            "n_ctx": self.window,
            "n_chunks": perplexity.windows,
            "n_scored": perplexity.tokens,
            "perplexity": perplexity.value(),
            "error": perplexity.error(),
            "mean_nll": perplexity.mean(),
            "seconds": elapsed.as_secs_f64(),
        })
    }
}

/// A progress bar; indicatif hides it where standard error is not a terminal.
fn progress(windows: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} windows, {eta} left, perplexity {msg}");
    let bar = ProgressBar::new(windows as u64).with_message("?");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

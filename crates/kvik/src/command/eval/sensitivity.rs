//! `kvik eval --sensitivity`: the sensitivity of a model to the format of each layer's keys and values.

use std::{num::NonZeroUsize, path::Path, sync::Arc};

use anyhow::{Context, ensure};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use kvik_engine::engine::perplexity::{WINDOW_TOKENS, WINDOW_TOKENS_MIN, Windows};
use kvik_engine::eval::{FORMATS, sensitivity::Sensitivity};
use kvik_kernels::KvFormat;
use kvik_model::{ModelConfig, ModelRunner};
use kvik_text::tokenizer::Tokenizer;
use serde_json::{Value, json};

use super::curve::Curve;
use crate::eval::windows::STORIES;
use kvik_serving::{
    measured::{Measured, MeasuredSensitivity},
    open,
    settings::model::ModelArgs,
};

/// What to measure of KV formats, and on how much text.
#[derive(Debug, Args)]
#[command(next_help_heading = "KV formats")]
pub(crate) struct SensitivityArgs {
    /// Measure how far predictions diverge with one layer's keys or values in a format; kept for --kv auto:BITS
    #[arg(long, conflicts_with_all = ["retain", "keep", "question", "kv_also", "task", "cases", "length", "seed", "data",
        "held_out", "memory", "calibrate", "speed", "html"])]
    sensitivity: bool,
    /// Measure it on every other window and keep nothing; then on the others the maps that auto chooses by it, uniform
    /// formats, and formats with layers at random in f16
    #[arg(long, requires = "sensitivity")]
    curve: bool,
    /// Tokens of a window of text [default: 512, or the model's context]
    #[arg(long, value_name = "N", requires = "sensitivity",
        value_parser = clap::value_parser!(u32).range(WINDOW_TOKENS_MIN as i64..=1 << 20))]
    window: Option<u32>,
    /// Windows to compute at most
    #[arg(long, value_name = "N", default_value = "16", requires = "sensitivity")]
    windows: NonZeroUsize,
}

/// The model and the windows of text to measure it on.
struct Subject {
    runner: ModelRunner,
    windows: Windows,
    window_tokens: usize,
}

impl SensitivityArgs {
    /// Whether the flags request this measurement.
    pub(super) fn is_asked_for(&self) -> bool {
        self.sensitivity
    }

    /// Measures, stores the measurement, and prints it.
    pub(super) fn run(&self, model: &ModelArgs, text: Option<&Path>, json: bool) -> anyhow::Result<()> {
        let Subject { mut runner, windows, window_tokens } = self.open(model, text)?;
        let (windows, others) = self.divided(windows, window_tokens)?;
        let bar = progress(windows.count() * Sensitivity::computations(runner.model().config()));
        let sensitivity = Sensitivity::measure(&mut runner, &windows, &mut || bar.inc(1))?;
        bar.finish_and_clear();
        let measured = MeasuredSensitivity::new(&sensitivity, window_tokens);
        let kept = match others {
            Some(_) => {
                "of every other window, and not kept; without --curve it is, for --kv auto:BITS".to_owned()
            }
            None => keep(&runner.model().digest(), &measured)?,
        };

        let config = runner.model().config().clone();
        let mut summary = summary(model.source(), &config, &sensitivity, &measured)?;
        if !json {
            print!("{}", table(&config, &sensitivity, windows.count(), window_tokens));
            println!("\n{kept}");
        }
        if let Some(others) = others {
            let curve = Curve::plan(&config, &sensitivity)?;
            let bar = progress(others.count() * curve.computations());
            let curve = curve.measure(&mut runner, &others, &mut || bar.inc(1))?;
            bar.finish_and_clear();
            summary["curve"] = curve.summary();
            if !json {
                print!("\n{}", curve.table());
            }
        }
        if json {
            println!("{}", serde_json::to_string_pretty(&summary)?);
        }
        Ok(())
    }

    /// The windows to measure, and others on which to validate what is chosen by them: a measurement that is kept is of
    /// all windows.
    fn divided(&self, windows: Windows, window_tokens: usize) -> anyhow::Result<(Windows, Option<Windows>)> {
        if !self.curve {
            MeasuredSensitivity::check_positions(windows.count() * window_tokens)?;
            return Ok((windows, None));
        }
        ensure!(
            windows.count() > 1,
            "--curve needs two windows of text; take a longer text or smaller windows"
        );
        let [chosen_on, others] = windows.in_turns();
        Ok((chosen_on, Some(others)))
    }

    /// Loads the model with the KV blocks of one window, and cuts the text.
    fn open(&self, args: &ModelArgs, text: Option<&Path>) -> anyhow::Result<Subject> {
        let text = match (text, STORIES) {
            (Some(path), _) => std::fs::read_to_string(path)
                .with_context(|| format!("--text: {} cannot be read; it must be UTF-8", path.display()))?,
            (None, Some(own)) => own.to_owned(),
            (None, None) => anyhow::bail!("--sensitivity needs a text to predict; give one with --text FILE"),
        };
        let pool = args.pool()?;
        let loaded = open::model_without_states(args, &pool)?;
        let model = Arc::new(loaded.model);
        let window_tokens = match self.window {
            Some(window) => window as usize,
            None => WINDOW_TOKENS.min(model.config().context),
        };
        let windows = self.cut(&loaded.tokenizer, &text, window_tokens)?;
        let layout = ModelRunner::uniform_layout(model.config(), KvFormat::F32);
        let runner = ModelRunner::new(model, pool, layout, windows.blocks(), window_tokens)
            .with_context(|| format!("no memory for windows of {window_tokens} tokens"))?;
        Ok(Subject { runner, windows, window_tokens })
    }

    fn cut(&self, tokenizer: &Tokenizer, text: &str, window_tokens: usize) -> anyhow::Result<Windows> {
        Windows::new(tokenizer, text, window_tokens, self.windows.get()).context("--text")
    }
}

/// Stores a measurement in place of an earlier one, and returns what is to be said of it.
fn keep(model: &[u8; 32], measured: &MeasuredSensitivity) -> anyhow::Result<String> {
    let store = Measured::open()?;
    let earlier: Option<MeasuredSensitivity> = store.load(model);
    let path = store.save(model, measured)?;
    let kept = format!("kept in {} for --kv auto:BITS", path.display());
    let positions = measured.positions();
    Ok(match earlier.map(|earlier| earlier.positions()).filter(|&earlier| earlier > positions) {
        Some(earlier) => {
            format!("{kept}, in place of a measurement at {earlier} positions: this one has {positions}")
        }
        None => kept,
    })
}

/// Bits a number of each format in a model.
fn bits(config: &ModelConfig) -> [f64; FORMATS.len()] {
    FORMATS.map(|format| ModelRunner::uniform_layout(config, format).bits_per_number())
}

fn table(config: &ModelConfig, sensitivity: &Sensitivity, windows: usize, window_tokens: usize) -> String {
    let mut text = format!(
        "{}: divergence from f32 keys and values with one layer's keys or values in a format\n\
         (mean KL divergence in nats, {} positions in {windows} windows of {window_tokens} tokens)\n\n\
         {:>5}  {:<6}",
        config.name, sensitivity.positions, "layer", "part"
    );
    FORMATS.iter().for_each(|format| text += &format!("  {format:>9}"));
    text += &format!("\n{:>5}  {:<6}", "", "bits");
    bits(config).iter().for_each(|bits| text += &format!("  {bits:>9.2}"));
    let rows = sensitivity.keys.iter().zip(&sensitivity.values).enumerate();
    for (layer, (keys, values)) in rows {
        for (part, losses) in [("keys", keys), ("values", values)] {
            text += &format!("\n{layer:>5}  {part:<6}");
            losses.iter().for_each(|loss| text += &format!("  {loss:>9.2e}"));
        }
    }
    text + "\n"
}

fn summary(
    source: &str,
    config: &ModelConfig,
    sensitivity: &Sensitivity,
    kept: &MeasuredSensitivity,
) -> anyhow::Result<Value> {
    Ok(json!({
        "model": source,
        "name": config.name,
        "positions": sensitivity.positions,
        "bits": FORMATS.iter().map(ToString::to_string).zip(bits(config)).collect::<Vec<_>>(),
        "sensitivity": serde_json::to_value(kept)?,
    }))
}

/// A progress bar; indicatif hides it where standard error is not a terminal.
fn progress(steps: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} windows, {eta} left");
    let bar = ProgressBar::new(steps as u64);
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

//! `kvik eval`: what a retention policy or a KV format costs on the model at hand.

mod curve;
mod flags;
mod sensitivity;

use std::{fs, sync::Arc};

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use kvik_engine::model::ModelRunner;
use kvik_kernels::{KvFormat, KvLayout};

pub(crate) use flags::EvalArgs;

use crate::{
    clock::unix_seconds,
    eval::{
        encode::Encoder,
        html,
        report::{EvalReport, RowReport, TaskReport},
        run::EvalRun,
        table,
        tasks::{self, EvalTask},
    },
    serving::{kv, load, load::Opened, repeat::repeat_prompt},
};

/// Runs the command.
pub(crate) fn run(args: &EvalArgs) -> anyhow::Result<()> {
    if args.list {
        print!("{}", flags::catalogue());
        return Ok(());
    }
    if args.sensitivity.is_asked_for() {
        return args.sensitivity.run(&args.model, args.text.as_deref(), args.json);
    }
    let settings = args.settings()?;
    let opened = load::model(&args.model, &args.model.pool())?;
    let layouts = layouts(args, &opened)?;
    let tasks = tasks(args, &opened)?;
    let Opened { model, tokenizer, template } = opened;
    let digest = model.digest();
    let run = EvalRun {
        model: Arc::new(model),
        tokenizer: &tokenizer,
        repeat: repeat_prompt(&tokenizer, template.as_ref()),
        tasks: &tasks,
        layouts,
        settings,
        importance: None,
        bytes: usize::try_from(args.memory.0).unwrap_or(usize::MAX),
        speed: args.speed,
        pool: &|| args.model.pool(),
    };
    let report = measure(args, &run, digest)?;
    print(args, &report)
}

/// Measures, and says how far it is.
fn measure(args: &EvalArgs, run: &EvalRun<'_>, digest: [u8; 32]) -> anyhow::Result<EvalReport> {
    let bar = progress(run.steps());
    let mut heads = None;
    let rows = if args.calibrate {
        heads = Some(run.calibrate(&mut || bar.inc(1))?.importance());
        Vec::new()
    } else {
        run.measure(&mut || bar.inc(1))?
    };
    bar.finish_and_clear();
    let report = EvalReport {
        kvik: env!("CARGO_PKG_VERSION").to_owned(),
        model: args.model.source().to_owned(),
        digest: digest.iter().map(|byte| format!("{byte:02x}")).collect(),
        command: std::env::args().collect::<Vec<_>>().join(" "),
        date: unix_seconds(),
        seed: args.seed,
        tasks: run.tasks.iter().map(TaskReport::new).collect(),
        rows: rows.into_iter().map(RowReport::new).collect(),
        heads: None,
    };
    Ok(report.with_heads(heads.as_ref()))
}

fn print(args: &EvalArgs, report: &EvalReport) -> anyhow::Result<()> {
    if let Some(path) = &args.html {
        fs::write(path, html::page(report))
            .with_context(|| format!("--html: {} cannot be written", path.display()))?;
    }
    match args.json {
        true => println!("{}", serde_json::to_string_pretty(report)?),
        false => print!("{}", table::text(report)),
    }
    Ok(())
}

/// The exact layout, then those that were asked for.
fn layouts(args: &EvalArgs, opened: &Opened) -> anyhow::Result<Vec<KvLayout>> {
    let config = opened.model.config();
    let exact = ModelRunner::layout(config, &KvFormat::F32.into())?;
    let mut layouts = vec![exact];
    let others = args.kv_also.iter().map(|map| ModelRunner::layout(config, map).context("--kv-also"));
    for layout in [kv::layout(&args.model.kv, &opened.model)].into_iter().chain(others) {
        let layout = layout?;
        if !layouts.contains(&layout) {
            layouts.push(layout);
        }
    }
    Ok(layouts)
}

/// The tasks in tokens, without cases that are too long for the model.
fn tasks(args: &EvalArgs, opened: &Opened) -> anyhow::Result<Vec<EvalTask>> {
    let context = opened.model.config().context;
    let encoder = Encoder { tokenizer: &opened.tokenizer, template: opened.template.as_ref() };
    let mut tasks = tasks::named(&args.tasks(), &args.sources(context), &encoder)?;
    for task in &mut tasks {
        let too_long = task.limit(context);
        anyhow::ensure!(
            task.len() > 0,
            "--task {}: every case is longer than the model's {context} tokens",
            task.name
        );
        if too_long > 0 {
            tracing::warn!("{}: {too_long} cases are longer than the model's {context} tokens", task.name);
        }
    }
    Ok(tasks)
}

/// A progress bar; indicatif hides it where standard error is not a terminal.
fn progress(steps: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} prompts, {eta} left");
    let bar = ProgressBar::new(steps as u64);
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

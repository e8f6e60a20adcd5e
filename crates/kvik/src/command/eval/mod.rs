//! `kvik eval`: measures the loss of a retention policy or a KV format on a model.

mod curve;
mod flags;
mod keep;
mod sensitivity;

use std::{fs, sync::Arc};

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use kvik_cache::retain::{HeadImportance, RetentionError};
use kvik_engine::retain::repeat::RepeatPrompt;
use kvik_kernels::{KvFormat, KvLayout};
use kvik_memory::hex;
use kvik_model::{Model, ModelRunner};
use kvik_session::OpenedModel;

pub(crate) use flags::EvalArgs;

use crate::eval::{
    calibrate,
    encode::Encoder,
    html,
    report::{EvalReport, RowReport, TaskReport},
    results::ResultRow,
    run::EvalRun,
    setting::Setting,
    table,
    tasks::{self, EvalTask},
};
use kvik_server::clock::unix_seconds;
use kvik_serving::{kv, measured::RIGHT_CASES_MIN, open};

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
    let opened = open::model_without_states(&args.model, &args.model.pool())?;
    let layouts = layouts(args, &opened.model)?;
    let exact = ModelRunner::layout(opened.model.config(), &KvFormat::F32.into())?;
    let shape: Vec<usize> = exact.layers().iter().map(|layer| layer.kv_heads).collect();
    let digest = opened.model.digest();
    let importance = keep::importance(&digest, &shape);
    let latent = opened.model.config().extras.latent.is_some();
    let gates = keep::gates(&digest, &exact);
    check(&settings, &shape, (importance.as_ref(), gates.is_some()), latent)?;
    let tasks = tasks(args, &opened)?;
    let OpenedModel { model, tokenizer, template, .. } = opened;
    let run = EvalRun {
        model: Arc::new(model),
        tokenizer: &tokenizer,
        repeat: RepeatPrompt::new(&tokenizer, template.as_ref()),
        tasks: &tasks,
        exact,
        layouts,
        settings,
        importance,
        gates: gates.map(Arc::new),
        bytes: usize::try_from(args.memory.0).unwrap_or(usize::MAX),
        speed: args.speed,
        pool: &|| args.model.pool(),
    };
    let (report, kept) = measure(args, &run, digest)?;
    print(args, &report, &kept)
}

/// Runs the measurement with a progress bar, and stores its results.
fn measure(args: &EvalArgs, run: &EvalRun<'_>, digest: [u8; 32]) -> anyhow::Result<(EvalReport, String)> {
    let bar = progress(if args.calibrate { run.calibration_steps() } else { run.steps() });
    let (report, kept) = if args.calibrate {
        let gates = gates(run, &digest)?;
        if run.calibration_steps() == 0 {
            return Ok((report(args, run, &digest, Vec::new()), format!("\n{gates}")));
        }
        let losses = run.calibrate(&mut || bar.inc(1))?;
        let (right, all) = (losses.iter().map(|task| task.cases).sum(), run.calibration_steps());
        check_calibration(right, all)?;
        let importance = calibrate::importance(&losses);
        let report = report(args, run, &digest, Vec::new()).with_heads(&importance);
        let path = keep::heads(&digest, &importance, right, &report)?;
        let path = path.display();
        (report, format!("\n{right} of {all} cases were answered rightly and count; kept in {path}\n{gates}"))
    } else {
        let report = report(args, run, &digest, run.measure(&mut || bar.inc(1))?).with_recall();
        let kept = keep::losses(&digest, &report)?;
        (report, kept.unwrap_or_default())
    };
    bar.finish_and_clear();
    Ok((report, kept))
}

/// Trains and stores the gates. Returns what is to be said of them: where there are cases to calibrate heads with, too
/// few positions for gates are no error.
fn gates(run: &EvalRun<'_>, digest: &[u8; 32]) -> anyhow::Result<String> {
    match run.train_gates() {
        Ok((gates, positions)) => {
            let path = keep::trained(digest, &gates, positions)?;
            Ok(format!("gates were trained from {positions} positions; kept in {}\n", path.display()))
        }
        Err(error) if run.calibration_steps() > 0 => {
            tracing::warn!("{error:#}");
            Ok(String::new())
        }
        Err(error) => Err(error),
    }
}

/// Refuses a calibration on few right answers: only those say which heads matter, and of a few any head may seem to.
fn check_calibration(right: usize, all: usize) -> anyhow::Result<()> {
    anyhow::ensure!(
        right >= RIGHT_CASES_MIN,
        "--calibrate: the model answered {right} of {all} cases rightly with everything kept, and nothing follows from \
         fewer than {RIGHT_CASES_MIN}, so no importance of heads is kept; take more --cases, other tasks or shorter \
         prompts (--length), or a bigger model"
    );
    Ok(())
}

fn report(args: &EvalArgs, run: &EvalRun<'_>, digest: &[u8; 32], rows: Vec<ResultRow>) -> EvalReport {
    EvalReport {
        kvik: env!("CARGO_PKG_VERSION").to_owned(),
        model: args.model.source().to_owned(),
        digest: hex::written(digest),
        command: std::env::args().collect::<Vec<_>>().join(" "),
        date: unix_seconds(),
        seed: args.seed,
        tasks: run.tasks.iter().map(TaskReport::new).collect(),
        rows: rows.into_iter().map(RowReport::new).collect(),
        heads: None,
    }
}

/// Prints a report, and which of its results were stored.
fn print(args: &EvalArgs, report: &EvalReport, kept: &str) -> anyhow::Result<()> {
    if let Some(path) = &args.html {
        fs::write(path, html::page(report))
            .with_context(|| format!("--html: {} cannot be written", path.display()))?;
    }
    match args.json {
        true => println!("{}", serde_json::to_string_pretty(report)?),
        false => print!("{}{kept}", table::text(report)),
    }
    Ok(())
}

/// The requested layouts.
fn layouts(args: &EvalArgs, model: &Model) -> anyhow::Result<Vec<KvLayout>> {
    let mut layouts = vec![kv::layout(&args.model.kv, model)?];
    for map in &args.kv_also {
        let layout = ModelRunner::layout(model.config(), map).with_context(|| format!("--kv-also {map}"))?;
        if !layouts.contains(&layout) {
            layouts.push(layout);
        }
    }
    Ok(layouts)
}

/// Checks that every setting is supported by a model of these KV heads.
fn check(
    settings: &[Setting],
    shape: &[usize],
    (importance, has_gates): (Option<&HeadImportance>, bool),
    latent: bool,
) -> anyhow::Result<()> {
    for setting in settings {
        if let Some(retention) = &setting.retention {
            let known = if latent { Err(RetentionError::Latent) } else { Ok(()) };
            let usable = known
                .and_then(|()| retention.check(shape))
                .and_then(|()| retention.check_heads(shape, importance))
                .and_then(|()| retention.check_gates(has_gates));
            usable.with_context(|| format!("--retain {retention}"))?;
        }
    }
    Ok(())
}

/// The tasks in tokens, without cases that are too long for the model.
fn tasks(args: &EvalArgs, opened: &OpenedModel<Model>) -> anyhow::Result<Vec<EvalTask>> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_calibration_needs_twenty_right_answers() {
        assert!(check_calibration(RIGHT_CASES_MIN, 400).is_ok());
        for right in [0, 5, RIGHT_CASES_MIN - 1] {
            let error = check_calibration(right, 30).unwrap_err().to_string();
            for said in
                [&format!("{right} of 30 cases")[..], "fewer than 20", "more --cases", "a bigger model"]
            {
                assert!(error.contains(said), "{error}");
            }
        }
    }
}

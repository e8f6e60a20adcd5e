//! `kvik eval`: measures the loss of a retention policy or a KV format on a model.

mod curve;
mod flags;
mod keep;
mod sensitivity;

use std::{fs, sync::Arc};

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use kvik_cache::retain::ModelShape;
use kvik_engine::retain::{kv_heads, model_shape, repeat::RepeatPrompt};
use kvik_kernels::{KvFormat, KvLayout};
use kvik_memory::hex;
use kvik_model::{Model, ModelRunner};
use kvik_session::OpenedModel;

pub(crate) use flags::EvalArgs;

use crate::eval::{
    calibrate::{self, HeadLosses},
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
    let opened = open::model_without_states(&args.model, &args.model.pool()?)?;
    let layouts = layouts(args, &opened.model)?;
    let exact = ModelRunner::layout(opened.model.config(), &KvFormat::F32.into())?;
    let (kv_heads, digest) = (kv_heads(&exact), opened.model.digest());
    let importance = keep::importance(&digest, &kv_heads);
    let gates = keep::gates(&digest, &exact);
    let shape = model_shape(opened.model.config(), &exact, &kv_heads);
    check(args, &settings, &ModelShape { heads: importance.as_ref(), gated: gates.is_some(), ..shape })?;
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
        calibration(args, run, &digest, &bar)?
    } else {
        let report = report(args, run, &digest, run.measure(&mut || bar.inc(1))?).with_recall();
        let kept = keep::losses(&digest, &report)?;
        (report, kept.unwrap_or_default())
    };
    bar.finish_and_clear();
    Ok((report, kept))
}

/// Trains the gates, and measures and stores the importance of heads where there are cases.
fn calibration(
    args: &EvalArgs,
    run: &EvalRun<'_>,
    digest: &[u8; 32],
    bar: &ProgressBar,
) -> anyhow::Result<(EvalReport, String)> {
    let gates = gates(run, digest)?;
    let report = report(args, run, digest, Vec::new());
    let all = run.calibration_steps();
    if all == 0 {
        return Ok((report, format!("\n{gates}")));
    }
    let losses = counted(run.tasks, run.calibrate(&mut || bar.inc(1))?)?;
    let importance = calibrate::importance(&losses);
    let report = report.with_heads(&importance);
    let right = losses.iter().map(|task| task.cases).sum();
    let path = keep::heads(digest, &importance, right, &report)?;
    let path = path.display();
    Ok((report, format!("\n{right} of {all} cases were answered rightly and count; kept in {path}\n{gates}")))
}

/// The losses of the tasks from which something follows; names the others.
fn counted(tasks: &[EvalTask], losses: Vec<HeadLosses>) -> anyhow::Result<Vec<HeadLosses>> {
    check_calibration(losses.iter().map(|task| task.cases).max().unwrap_or(0))?;
    for (task, losses) in tasks.iter().zip(&losses) {
        if !task.cases().is_empty() && !losses.suffices() {
            tracing::warn!(
                "{}: {} cases were answered rightly, fewer than {RIGHT_CASES_MIN}, so they do not count",
                task.name,
                losses.cases
            );
        }
    }
    Ok(losses.into_iter().filter(HeadLosses::suffices).collect())
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

/// Refuses a calibration on few right answers of each task: only those say which heads matter, and of a few any head may
/// seem to. `right_most` are those of the task with the most.
fn check_calibration(right_most: usize) -> anyhow::Result<()> {
    anyhow::ensure!(
        right_most >= RIGHT_CASES_MIN,
        "--calibrate: the model answered at most {right_most} cases of a task rightly with everything kept, and nothing \
         follows from fewer than {RIGHT_CASES_MIN}, so no importance of heads is kept; take more --cases, other tasks or \
         shorter prompts (--length), or a bigger model"
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

/// Checks that the model supports every setting, and what `--calibrate` measures for.
fn check(args: &EvalArgs, settings: &[Setting], shape: &ModelShape<'_>) -> anyhow::Result<()> {
    if args.calibrate {
        shape.check_layers().context("--calibrate")?;
    }
    for retention in settings.iter().filter_map(|setting| setting.retention) {
        retention.check_model(shape).with_context(|| format!("--retain {retention}"))?;
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
    use crate::eval::tasks::Work;

    #[test]
    fn a_calibration_needs_twenty_right_answers() {
        assert!(check_calibration(RIGHT_CASES_MIN).is_ok());
        for right in [0, 5, RIGHT_CASES_MIN - 1] {
            let error = check_calibration(right).unwrap_err().to_string();
            for said in
                [&format!("at most {right} cases")[..], "fewer than 20", "more --cases", "a bigger model"]
            {
                assert!(error.contains(said), "{error}");
            }
        }
    }

    #[test]
    fn a_task_with_few_right_answers_says_nothing_of_heads() {
        let tasks = ["recall", "triage", "stories"]
            .map(|name| EvalTask { name: name.to_owned(), work: Work::Answer(Vec::new()) });
        let losses = |rights: [usize; 3]| {
            let of = |cases| {
                let mut losses = HeadLosses::new(&[2, 2]);
                losses.cases = cases;
                losses
            };
            counted(&tasks, rights.map(of).into())
        };
        let cases = losses([30, 5, 0]).unwrap().iter().map(|task| task.cases).collect::<Vec<_>>();
        assert_eq!(cases, [30], "only tasks with enough right answers");
        assert!(losses([19, 19, 0]).is_err(), "38 of all tasks are of none");
    }
}

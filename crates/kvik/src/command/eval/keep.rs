//! What was measured, kept for later runs: `serve` warns by it, and the calibrated budget needs it.

use std::path::PathBuf;

use kvik_cache::retain::HeadImportance;

use crate::eval::report::{EvalReport, RowReport, TaskReport};
use crate::measured::{Measured, MeasuredHeads, MeasuredLosses, SettingLosses, TaskLoss};

/// Losses in percent for which the retention that keeps least is named.
const LOSSES: [f64; 4] = [1.0, 3.0, 10.0, 30.0];
/// How a report says that the question was seen.
const SEEN: &str = "seen";

/// Which heads of a model matter, if that was measured.
pub(super) fn importance(model: &[u8; 32], shape: &[usize]) -> Option<HeadImportance> {
    // Without a home directory nothing was ever kept.
    let kept: MeasuredHeads = Measured::open().ok()?.load(model)?;
    kept.importance(shape)
}

/// Keeps which heads matter, as measured on so many cases.
pub(super) fn heads(
    model: &[u8; 32],
    importance: &HeadImportance,
    cases: usize,
    report: &EvalReport,
) -> anyhow::Result<PathBuf> {
    let kept = MeasuredHeads::new(importance, cases, report.date, report.command.clone());
    Measured::open()?.save(model, &kept)
}

/// Adds what every retention lost to what is known of the model. `None` if there were none; otherwise which of all
/// that are known keep least.
pub(super) fn losses(model: &[u8; 32], report: &EvalReport) -> anyhow::Result<Option<String>> {
    let rows: Vec<&RowReport> = report.rows.iter().filter(|row| !row.keeps_everything()).collect();
    if rows.is_empty() {
        return Ok(None);
    }
    let measured = Measured::open()?;
    let mut losses: MeasuredLosses = measured.load(model).unwrap_or_default();
    rows.iter().for_each(|row| losses.record(setting(report, row)));
    let path = measured.save(model, &losses)?;
    let mut scopes: Vec<(&str, &str)> = rows.iter().map(|row| (&row.kv[..], &row.question[..])).collect();
    scopes.dedup();
    let best = scopes.into_iter().map(|(kv, question)| best(&losses, kv, question));
    Ok(Some(format!("\n{}\nkept in {}\n", best.collect::<String>(), path.display())))
}

/// What to use to lose little, of all that was ever measured of the model.
fn best(losses: &MeasuredLosses, kv: &str, question: &str) -> String {
    let seen = question == SEEN;
    let line = |percent: f64| {
        let best = losses.best(kv, seen, percent)?;
        let loss = losses.loss(kv, &best, seen)?;
        let (worst, task) = (loss.worst.max(0.0), &loss.worst_task);
        Some(format!("  at most {percent:>2}%  {best} (mean {:.1}%, {task} {worst:.1}%)\n", loss.mean))
    };
    let lines: String = LOSSES.into_iter().filter_map(line).collect();
    if lines.is_empty() {
        return String::new();
    }
    format!("keeps least of all that was measured with {kv}, question {question}, and loses\n{lines}")
}

/// What a row of a report lost.
fn setting(report: &EvalReport, row: &RowReport) -> SettingLosses {
    let loss = |task: &TaskReport| {
        let (percent, cases) = report.loss(row, &task.name)?;
        Some((task.name.clone(), TaskLoss { percent, cases, predicts: task.predicts }))
    };
    SettingLosses {
        kv: row.kv.clone(),
        retain: row.retain.clone(),
        question_seen: row.question == SEEN,
        kept: row.kept.mean,
        tasks: report.tasks.iter().filter_map(loss).collect(),
        date: report.date,
        command: report.command.clone(),
    }
}

//! Storage of measurements for later runs: `serve` bases its warnings on them, and the calibrated budget needs them.

use std::{collections::BTreeSet, path::PathBuf};

use kvik_cache::retain::{Budget, HeadImportance, Retention};
use kvik_kernels::KvLayout;
use kvik_model::gates::Gates;
use kvik_server::clock::unix_seconds;

use crate::eval::report::{EvalReport, RowReport, TaskReport};
use kvik_serving::measured::{
    Measured, MeasuredGates, MeasuredHeads, MeasuredLosses, RIGHT_CASES_MIN, SettingLosses, TaskLoss,
};

/// Losses of recall and of perplexity in percent for which the retention that keeps the fewest positions is reported.
const LOSSES: [f64; 4] = [1.0, 3.0, 10.0, 30.0];
/// The value in a report for a question that was seen.
const SEEN: &str = "seen";

/// The measured importance of a model's heads, if there is one.
pub(super) fn importance(model: &[u8; 32], shape: &[usize]) -> Option<HeadImportance> {
    // Without a home directory there are no stored measurements.
    let kept: MeasuredHeads = Measured::open().ok()?.load(model)?;
    kept.importance(shape)
}

/// Stores the importance of heads, as measured on `cases` cases, and drops losses that were measured with another one.
pub(super) fn heads(
    model: &[u8; 32],
    importance: &HeadImportance,
    cases: usize,
    report: &EvalReport,
) -> anyhow::Result<PathBuf> {
    let (measured, date) = (Measured::open()?, report.date);
    outdate(&measured, model, |retention| retention.budget == Budget::Calibrated)?;
    measured.save(model, &MeasuredHeads::new(importance, cases, date, report.command.clone()))
}

/// Drops the losses of retentions for which `goes_by` holds.
fn outdate(
    measured: &Measured,
    model: &[u8; 32],
    goes_by: impl Fn(&Retention) -> bool,
) -> anyhow::Result<()> {
    let Some(mut losses) = measured.load::<MeasuredLosses>(model) else { return Ok(()) };
    if losses.outdate(goes_by) {
        measured.save(model, &losses)?;
    }
    Ok(())
}

/// The trained gates of a model, if there are any.
pub(super) fn gates(model: &[u8; 32], layout: &KvLayout) -> Option<Gates> {
    let kept: MeasuredGates = Measured::open().ok()?.load(model)?;
    kept.gates(layout)
}

/// Stores gates, as trained from `positions` positions, and drops losses that were measured with others.
pub(super) fn trained(model: &[u8; 32], gates: &Gates, positions: usize) -> anyhow::Result<PathBuf> {
    let command = std::env::args().collect::<Vec<_>>().join(" ");
    let measured = Measured::open()?;
    outdate(&measured, model, |retention| retention.needs().gated)?;
    measured.save(model, &MeasuredGates::new(gates, positions, unix_seconds(), command))
}

/// Adds the losses of every retention to the model's measurements. Returns the best of all known retentions as text, or
/// `None` if the report has none.
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
    let (best, doubts) = (best.collect::<String>(), doubts(&losses, &rows));
    Ok(Some(format!("\n{best}{doubts}\nkept in {}\n", path.display())))
}

/// The best retentions for several maximum losses, of all that were ever measured for the model.
fn best(losses: &MeasuredLosses, kv: &str, question: &str) -> String {
    let seen = question == SEEN;
    let line = |percent: f64| {
        let best = losses.best(kv, seen, percent)?;
        let loss = losses.loss(kv, &best, seen)?;
        Some(format!("  at most {percent:>2}%  {best}: {loss}\n"))
    };
    let lines: String = LOSSES.into_iter().filter_map(line).collect();
    let scope = format!("with {kv}, question {question}");
    if lines.is_empty() {
        return format!(
            "nothing that was measured {scope} is known to lose at most {most}% of recall and of perplexity, with \
             {RIGHT_CASES_MIN} right cases or more\n",
            most = LOSSES[LOSSES.len() - 1]
        );
    }
    format!("keeps least of all that was measured {scope}, and loses\n{lines}")
}

/// Why the guard of `kvik serve --retain-max-loss` and `auto` refuse settings of a report whatever loss is allowed, a line
/// for each reason.
fn doubts(losses: &MeasuredLosses, rows: &[&RowReport]) -> String {
    let doubt = |row: &&RowReport| {
        let loss = losses.loss(&row.kv, &row.retain.parse().ok()?, row.question == SEEN)?;
        Some(format!("not to be chosen yet: {}\n", loss.doubt()?))
    };
    let doubts: BTreeSet<String> = rows.iter().filter_map(doubt).collect();
    doubts.into_iter().collect()
}

/// The losses in a row of a report.
fn setting(report: &EvalReport, row: &RowReport) -> SettingLosses {
    let loss = |task: &TaskReport| {
        let (percent, cases) = report.loss(row, &task.name)?;
        let right = if task.predicts { 0 } else { report.right(&task.name) };
        Some((task.name.clone(), TaskLoss { percent, cases, right, predicts: task.predicts }))
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

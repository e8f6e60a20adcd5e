//! The report of an exam: plain data, the source of its JSON, tables and charts.

use std::collections::BTreeMap;

use kvik_cache::retain::HeadImportance;
use kvik_serving::measured::RIGHT_CASES_MIN;
use serde::{Deserialize, Serialize};

use super::results::{AnswerCell, Kept, RecallReport, ResultRow, SpeedReport, TextCell};
use super::tasks::{EvalTask, Work};

/// Cells with fewer cases are marked: one more right answer moves them by more than three points.
pub(crate) const CASES_FEW: usize = 30;

/// The measurements of one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct EvalReport {
    /// Version of kvik.
    pub(crate) kvik: String,
    /// Origin of the model.
    pub(crate) model: String,
    /// Digest of its weights and configuration, hexadecimal.
    pub(crate) digest: String,
    /// The command line.
    pub(crate) command: String,
    /// Unix time, seconds.
    pub(crate) date: u64,
    pub(crate) seed: u64,
    pub(crate) tasks: Vec<TaskReport>,
    /// Results; the first row is the exact one, with everything kept in 32-bit floats.
    pub(crate) rows: Vec<RowReport>,
    /// The importance of each KV head, `[layers][kv_heads]`, if it was measured: what right answers lose without it, as a
    /// share of what they lose without the worst one of the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) heads: Option<Vec<Vec<f32>>>,
}

/// A task of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TaskReport {
    pub(crate) name: String,
    /// Cases, or windows.
    pub(crate) cases: usize,
    /// Tokens of the shortest and the longest prompt.
    pub(crate) tokens: (usize, usize),
    /// Whether text is predicted rather than questions answered.
    pub(crate) predicts: bool,
}

/// The results of one setting with one KV format.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct RowReport {
    /// KV format.
    pub(crate) kv: String,
    /// The retention, or `everything`.
    pub(crate) retain: String,
    /// The retention without the amount that it keeps.
    pub(crate) policy: String,
    /// `seen` or `unseen`.
    pub(crate) question: String,
    /// Answers by task.
    pub(crate) answers: BTreeMap<String, AnswerCell>,
    /// Right answers by task in percent of those with everything kept: [`EvalReport::with_recall`].
    #[serde(default)]
    pub(crate) recall: BTreeMap<String, RecallReport>,
    /// Predicted text by task.
    pub(crate) texts: BTreeMap<String, TextCell>,
    /// The average share of a prompt that is kept.
    pub(crate) kept: Kept,
    /// Milliseconds of a decision.
    pub(crate) decide_ms: f64,
    /// Milliseconds of moving the retained positions.
    pub(crate) move_ms: f64,
    /// Times of one long prompt alone, if they were measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) speed: Option<SpeedReport>,
}

impl TaskReport {
    /// The report of a task.
    pub(crate) fn new(task: &EvalTask) -> TaskReport {
        let predicts = matches!(task.work, Work::Predict(_));
        TaskReport { name: task.name.clone(), cases: task.len(), tokens: task.tokens(), predicts }
    }
}

impl RowReport {
    /// The report of a row.
    pub(crate) fn new(row: ResultRow) -> RowReport {
        let retain = row.setting.text();
        RowReport {
            kv: row.kv,
            policy: without_keep(&retain),
            retain,
            question: row.setting.sight.to_string(),
            answers: row.answers,
            recall: BTreeMap::new(),
            texts: row.texts,
            kept: row.cost.kept(),
            decide_ms: row.cost.decide_ms(),
            move_ms: row.cost.move_ms(),
            speed: row.speed,
        }
    }

    /// Whether the row keeps everything.
    pub(crate) fn keeps_everything(&self) -> bool {
        self.retain == self.policy
    }
}

/// The policy without its share: `snapkv,budget=all` for `snapkv:0.5,budget=all`.
fn without_keep(retain: &str) -> String {
    let (policy, options) =
        retain.split_once(',').map_or((retain, None), |(policy, rest)| (policy, Some(rest)));
    let policy = policy.split(':').next().unwrap_or_default();
    options.map_or_else(|| policy.to_owned(), |options| format!("{policy},{options}"))
}

impl EvalReport {
    /// The exact row.
    pub(crate) fn exact(&self) -> Option<&RowReport> {
        self.rows.first()
    }

    /// Adds the right answers of each row in percent of the exact ones.
    pub(crate) fn with_recall(mut self) -> EvalReport {
        let exact = self.exact().map(|row| row.answers.clone()).unwrap_or_default();
        for row in &mut self.rows {
            let of_task =
                |(task, cell): (&String, &AnswerCell)| Some((task.clone(), cell.recall(exact.get(task)?)?));
            row.recall = row.answers.iter().filter_map(of_task).collect();
        }
        self
    }

    /// Cases of a task that are right with everything kept.
    pub(crate) fn right(&self, task: &str) -> usize {
        let exact = self.exact().and_then(|row| row.answers.get(task));
        exact.map_or(0, |cell| cell.right_cases().floor() as usize)
    }

    /// Whether a task that asks questions is answered too rarely, with everything kept, for anything to follow from it.
    pub(crate) fn says_nothing(&self, task: &TaskReport) -> bool {
        !task.predicts && !self.rows.is_empty() && self.right(&task.name) < RIGHT_CASES_MIN
    }

    /// The increase of a row's perplexity over the exact one, in percent: over all tokens, and over answers.
    pub(crate) fn increase(&self, row: &RowReport, task: &str) -> Option<(f64, Option<f64>)> {
        let (cell, exact) = (row.texts.get(task)?, self.exact()?.texts.get(task)?);
        Some((cell.all.increase(&exact.all)?, cell.answers.increase(&exact.answers)))
    }

    /// The loss of a row in a task, in percent, and its number of cases: of right answers, or else of the perplexity of
    /// a text, of all of it or of the answers in it, whichever is worse.
    pub(crate) fn loss(&self, row: &RowReport, task: &str) -> Option<(f64, usize)> {
        if let Some(recall) = row.recall.get(task) {
            return Some((100.0 - recall.percent, recall.cases));
        }
        let (all, answers) = self.increase(row, task)?;
        Some((answers.unwrap_or(all).max(all), row.texts.get(task)?.windows))
    }

    /// Right answers of a row over all tasks, in percent of the exact ones: the mean of the tasks.
    pub(crate) fn mean_percent(&self, row: &RowReport) -> Option<f64> {
        let percents: Vec<f64> = row.recall.values().map(|recall| recall.percent).collect();
        (!percents.is_empty()).then(|| percents.iter().sum::<f64>() / percents.len() as f64)
    }

    /// Adds the importance of heads.
    pub(crate) fn with_heads(self, importance: &HeadImportance) -> EvalReport {
        EvalReport { heads: Some(importance.layers.clone()), ..self }
    }
}

#[cfg(test)]
pub(super) fn example() -> EvalReport {
    let cell = |right| AnswerCell { cases: 10, weight: 10.0, right, groups: BTreeMap::new() };
    let row = |retain: &str, right: f64, kept: f64| RowReport {
        kv: "f32".to_owned(),
        retain: retain.to_owned(),
        policy: without_keep(retain),
        question: "unseen".to_owned(),
        answers: [("recall".to_owned(), cell(right))].into(),
        recall: BTreeMap::new(),
        texts: BTreeMap::new(),
        kept: Kept { mean: kept, smallest: kept, largest: kept, token_bytes: 6144.0 * kept },
        decide_ms: 0.5,
        move_ms: 0.25,
        speed: None,
    };
    let text = |nll| {
        let mut cell = TextCell { windows: 2, ..TextCell::default() };
        (0..10).for_each(|token| cell.predicted(token, token == 3, nll, nll - 1.0));
        [("tiny.chat".to_owned(), cell)].into()
    };
    let mut rows = vec![
        row("everything", 8.0, 1.0),
        row("keydiff:0.5", 7.0, 0.5),
        row("keydiff:0.25,budget=all", 2.0, 0.25),
    ];
    rows.iter_mut().zip([1.0, 1.25, 1.5]).for_each(|(row, nll)| row.texts = text(nll));
    let report = EvalReport {
        kvik: "0.1.0".to_owned(),
        model: "<model> & \"co\"".to_owned(),
        digest: "ab".repeat(32),
        command: "kvik eval".to_owned(),
        date: 1_780_000_000,
        seed: 1,
        tasks: [("recall", false), ("tiny.chat", true)]
            .map(|(name, predicts)| TaskReport {
                name: name.to_owned(),
                cases: 10,
                tokens: (100, 900),
                predicts,
            })
            .into(),
        rows,
        heads: Some(vec![vec![0.0, 2.5], vec![0.25, 0.0]]),
    };
    report.with_recall()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_follow_from_the_exact_row() {
        let report = example();
        let recall = report.rows[1].recall["recall"];
        assert_eq!((recall.percent, recall.cases, recall.right_with_everything), (87.5, 10, 8));
        assert_eq!(recall.to_string(), "88 [50-112]", "7 of 10 are 40 to 89%, and 8 of 10 are all");
        assert_eq!(report.right("recall"), 8);
        let says_nothing: Vec<bool> = report.tasks.iter().map(|task| report.says_nothing(task)).collect();
        assert_eq!(says_nothing, [true, false]);
        assert_eq!(report.loss(&report.rows[1], "recall"), Some((12.5, 10)));
        let (all, answers) = report.increase(&report.rows[1], "tiny.chat").unwrap();
        assert!((all - 100.0 * (0.25f64.exp() - 1.0)).abs() < 1e-9);
        assert!((answers.unwrap() - all).abs() < 1e-9);
        assert_eq!(report.loss(&report.rows[1], "unknown"), None);
        assert_eq!(report.mean_percent(&report.rows[2]), Some(25.0));
    }

    #[test]
    fn a_policy_is_a_retention_without_what_it_keeps() {
        assert_eq!(without_keep("snapkv:0.5,budget=layer:0.2"), "snapkv,budget=layer:0.2");
        assert_eq!(without_keep("keydiff:64MiB"), "keydiff");
        let report = example();
        assert_eq!(report.rows[2].policy, "keydiff,budget=all");
        assert!(report.rows[0].keeps_everything() && !report.rows[1].keeps_everything());
    }

    #[test]
    fn json_reads_what_it_wrote() {
        let report = example();
        let text = serde_json::to_string(&report).unwrap();
        assert!(
            text.contains(
                r#""recall":{"recall":{"cases":10,"right_with_everything":8,"percent":87.5,"low":49.6,"high":111.53}"#
            ),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<EvalReport>(&text).unwrap(), report);
    }
}

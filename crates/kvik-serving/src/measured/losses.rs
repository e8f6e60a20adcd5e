//! The losses of retention policies on a model, used for the warnings of `serve` and the choice of `auto`.

use std::collections::BTreeMap;

use kvik_cache::retain::{Policy, Retention};
use serde::{Deserialize, Serialize};

use super::Measurement;

/// Minimum cases of a measurement that `auto` may choose by.
const CASES_MIN: usize = 30;

/// The measurements of all settings.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MeasuredLosses {
    settings: Vec<SettingLosses>,
}

/// The losses of one retention with one KV format.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SettingLosses {
    /// KV format or map, as a layout writes it.
    pub kv: String,
    /// The retention as text.
    pub retain: String,
    /// Whether the policy saw the question before it decided.
    pub question_seen: bool,
    /// Share of positions that it kept.
    pub kept: f64,
    /// Losses by task.
    pub tasks: BTreeMap<String, TaskLoss>,
    /// Unix time, seconds.
    pub date: u64,
    /// The command that measured.
    pub command: String,
}

/// The loss in one task.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TaskLoss {
    /// For predicted text the increase of perplexity, otherwise the loss of right answers. In percent of the result
    /// with everything kept in 32-bit floats.
    pub percent: f64,
    /// Cases, or windows of text.
    pub cases: usize,
    /// Whether text is predicted.
    pub predicts: bool,
}

/// The total loss of a setting.
#[derive(Debug, Clone, PartialEq)]
pub struct Loss {
    /// Mean over the tasks, percent.
    pub mean: f64,
    /// Loss of the worst task, percent.
    pub worst: f64,
    /// The worst task.
    pub worst_task: String,
    /// Cases of all tasks.
    pub cases: usize,
}

impl Measurement for MeasuredLosses {
    const KIND: &'static str = "retention";
    const VERSION: u32 = 1;
}

impl MeasuredLosses {
    /// Stores the measurement of a setting. Tasks that were only measured earlier are preserved.
    pub fn record(&mut self, mut setting: SettingLosses) {
        let same = |known: &SettingLosses| {
            (&known.kv, &known.retain, known.question_seen)
                == (&setting.kv, &setting.retain, setting.question_seen)
        };
        if let Some(index) = self.settings.iter().position(same) {
            let known = self.settings.swap_remove(index);
            known.tasks.into_iter().for_each(|(task, loss)| {
                setting.tasks.entry(task).or_insert(loss);
            });
        }
        self.settings.push(setting);
    }

    /// The loss of a retention with a KV format; `None` if it was not measured.
    pub fn loss(&self, kv: &str, retention: &Retention, question_seen: bool) -> Option<Loss> {
        let wanted = canonical(retention);
        let of_setting = |known: &&SettingLosses| {
            let text = known.retain.parse().map(|retention| canonical(&retention));
            known.kv == kv && known.question_seen == question_seen && text.as_ref() == Ok(&wanted)
        };
        self.settings.iter().find(of_setting)?.loss()
    }

    /// All measurements with their total losses, ascending by the share kept.
    pub fn all(&self) -> Vec<(&SettingLosses, Loss)> {
        let mut all: Vec<_> = self.settings.iter().filter_map(|known| Some((known, known.loss()?))).collect();
        all.sort_by(|(a, _), (b, _)| a.kept.total_cmp(&b.kept).then_with(|| a.retain.cmp(&b.retain)));
        all
    }

    /// The retention that keeps the fewest positions among those that lose at most `percent` in every task and were
    /// measured on enough cases.
    pub fn best(&self, kv: &str, question_seen: bool, percent: f64) -> Option<Retention> {
        let allowed = self.settings.iter().filter(|known| {
            let fits = known.kv == kv && known.question_seen == question_seen;
            fits && known.loss().is_some_and(|loss| loss.worst <= percent && loss.cases >= CASES_MIN)
        });
        let mut allowed: Vec<&SettingLosses> = allowed.collect();
        allowed.sort_by(|a, b| a.kept.total_cmp(&b.kept).then_with(|| a.retain.cmp(&b.retain)));
        allowed.into_iter().find_map(|known| known.retain.parse().ok())
    }
}

impl SettingLosses {
    /// The total over the tasks that ask questions, or over text if there are none.
    fn loss(&self) -> Option<Loss> {
        let asks = self.tasks.values().any(|loss| !loss.predicts);
        let tasks = || self.tasks.iter().filter(|(_, loss)| !(asks && loss.predicts));
        let (worst_task, worst) = tasks().max_by(|a, b| a.1.percent.total_cmp(&b.1.percent))?;
        Some(Loss {
            mean: tasks().map(|(_, loss)| loss.percent).sum::<f64>() / tasks().count() as f64,
            worst: worst.percent,
            worst_task: worst_task.clone(),
            cases: tasks().map(|(_, loss)| loss.cases).sum(),
        })
    }
}

/// A retention as text, without the seed of random positions: all seeds count as the same policy.
fn canonical(retention: &Retention) -> String {
    let mut retention = *retention;
    if let Policy::Random(_) = retention.policy {
        retention.policy =
            Policy::ALL.into_iter().find(|policy| policy.name() == "random").unwrap_or(retention.policy);
    }
    retention.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(retain: &str, kept: f64, tasks: &[(&str, f64, bool)]) -> SettingLosses {
        let loss = |percent, predicts| TaskLoss { percent, cases: 50, predicts };
        SettingLosses {
            kv: "f16".to_owned(),
            retain: retain.to_owned(),
            question_seen: true,
            kept,
            tasks: tasks
                .iter()
                .map(|&(task, percent, predicts)| (task.to_owned(), loss(percent, predicts)))
                .collect(),
            date: 1,
            command: "kvik eval".to_owned(),
        }
    }

    fn measured() -> MeasuredLosses {
        let mut losses = MeasuredLosses::default();
        losses.record(setting(
            "keydiff:0.5",
            0.5,
            &[("recall", 5.0, false), ("passkey", 1.0, false), ("text", 90.0, true)],
        ));
        losses.record(setting("keydiff:0.2", 0.2, &[("recall", 32.0, false)]));
        losses.record(setting("snapkv:0.3", 0.3, &[("recall", 4.0, false)]));
        losses
    }

    #[test]
    fn a_loss_is_found_by_what_a_retention_means() {
        let losses = measured();
        let found = |kv: &str, text: &str, seen| losses.loss(kv, &text.parse().unwrap(), seen);
        let loss = found("f16", "keydiff:0.50", true).unwrap();
        assert_eq!((loss.mean, loss.worst, &loss.worst_task[..], loss.cases), (3.0, 5.0, "recall", 100));
        assert_eq!(found("f16", "keydiff:0.5", false), None);
        assert_eq!(found("q8", "keydiff:0.5", true), None);
        assert_eq!(found("f16", "keydiff:0.5,budget=all", true), None);
    }

    #[test]
    fn the_best_keeps_least_of_those_that_lose_little() {
        let best = |percent| measured().best("f16", true, percent).map(|retention| retention.to_string());
        assert_eq!(best(4.5).as_deref(), Some("snapkv:0.3"));
        assert_eq!(best(50.0).as_deref(), Some("keydiff:0.2"));
        assert_eq!(best(1.0), None);
        assert_eq!(measured().best("q8", true, 50.0), None);
        let mut few = measured();
        few.settings
            .iter_mut()
            .flat_map(|setting| setting.tasks.values_mut())
            .for_each(|loss| loss.cases = 9);
        assert_eq!(few.best("f16", true, 50.0), None);
        assert_eq!(few.loss("f16", &"snapkv:0.3".parse().unwrap(), true).map(|loss| loss.cases), Some(9));
    }

    #[test]
    fn measuring_again_replaces_the_task_and_keeps_the_others() {
        let mut losses = measured();
        losses.record(setting("keydiff:0.5", 0.5, &[("passkey", 9.0, false)]));
        let loss = losses.loss("f16", &"keydiff:0.5".parse().unwrap(), true).unwrap();
        assert_eq!((loss.worst, loss.mean), (9.0, 7.0));
        assert_eq!(losses.settings.len(), 3);
    }
}

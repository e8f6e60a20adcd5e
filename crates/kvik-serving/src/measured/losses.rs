//! The losses of retention policies on a model, used for the warnings of `serve` and the choice of `auto`.
//!
//! A policy can keep right answers and ruin the text around them, or the other way round. So a loss has two measures,
//! recall and perplexity, and a policy is judged by the worse of them.

use std::{collections::BTreeMap, fmt};

use kvik_cache::retain::{Policy, Retention};
use serde::{Deserialize, Serialize};

use super::{Measurement, RIGHT_CASES_MIN};

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
    /// Cases answered rightly with everything kept; 0 for predicted text.
    pub right: usize,
    /// Whether text is predicted.
    pub predicts: bool,
}

/// What is measured of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LossMeasure {
    /// Right answers.
    Recall,
    /// Perplexity of text.
    Perplexity,
}

/// The total loss of a setting.
#[derive(Debug, Clone, PartialEq)]
pub struct Loss {
    /// Mean over the tasks that ask questions, or over text if there are none, percent. Of tasks that ask questions those
    /// with few right answers count only where all are such.
    pub mean: f64,
    /// Loss of the worst task, by either measure, percent. A task with few right answers is it only where nothing else was
    /// measured.
    pub worst: f64,
    /// The worst task.
    pub worst_task: String,
    /// The measure by which the worst task loses.
    pub measure: LossMeasure,
    /// Loss of the worst task by the other measure, percent, if it was measured.
    pub other: Option<f64>,
    /// Cases of the tasks that the mean is over.
    pub cases: usize,
    /// Cases of these tasks that are answered rightly with everything kept.
    pub right: usize,
    /// Right cases of the task with the most of them.
    pub right_most: usize,
}

/// Why nothing follows from a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LossDoubt {
    /// The model answers too few cases of every task with everything kept.
    #[error(
        "at most {0} cases of a task are answered rightly with everything kept, and nothing follows from fewer than \
         {min}; measure more (--cases)",
        min = RIGHT_CASES_MIN
    )]
    FewRight(usize),
    /// Only perplexity is known.
    #[error(
        "recall was not measured, or no case is answered rightly with everything kept, and a policy may keep perplexity \
         and forget facts; `kvik eval` without --task measures both"
    )]
    NoRecall,
    /// Only recall is known.
    #[error(
        "perplexity was not measured, and a policy may answer questions and ruin other text; `kvik eval` without --task \
         measures both"
    )]
    NoPerplexity,
}

impl Measurement for MeasuredLosses {
    const KIND: &'static str = "retention";
    const VERSION: u32 = 3;
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

    /// Drops the measurements of retentions for which `goes_by` holds, since what they go by was measured anew; returns
    /// whether there were any.
    pub fn outdate(&mut self, goes_by: impl Fn(&Retention) -> bool) -> bool {
        let known = self.settings.len();
        self.settings.retain(|setting| !setting.retain.parse().is_ok_and(|retention| goes_by(&retention)));
        self.settings.len() < known
    }

    /// The loss of a retention with a KV format; `None` if it was not measured.
    pub fn loss(&self, kv: &str, retention: &Retention, question_seen: bool) -> Option<Loss> {
        let wanted = canonical(retention);
        let of_setting = |known: &&SettingLosses| {
            let text = known.retain.parse().map(|retention| canonical(&retention));
            known.kv == kv && known.question_seen == question_seen && text.as_ref() == Ok(&wanted)
        };
        self.total(self.settings.iter().find(of_setting)?)
    }

    /// All measurements with their total losses, ascending by the share kept.
    pub fn all(&self) -> Vec<(&SettingLosses, Loss)> {
        let with_loss = |known| Some((known, self.total(known)?));
        let mut all: Vec<_> = self.settings.iter().filter_map(with_loss).collect();
        all.sort_by(|(a, _), (b, _)| a.kept.total_cmp(&b.kept).then_with(|| a.retain.cmp(&b.retain)));
        all
    }

    /// The retention that keeps the fewest positions among those that lose at most `percent` of right answers and of
    /// perplexity in every task, as far as something follows from the measurement.
    pub fn best(&self, kv: &str, question_seen: bool, percent: f64) -> Option<Retention> {
        let allowed = |known: &SettingLosses, loss: &Loss| {
            let fits = known.kv == kv && known.question_seen == question_seen;
            fits && loss.worst <= percent && loss.doubt().is_none()
        };
        let all = self.all().into_iter().filter(|(known, loss)| allowed(known, loss));
        all.into_iter().find_map(|(known, _)| known.retain.parse().ok())
    }

    /// The total over the tasks of a setting. Text has no question: what was measured of it with the question unseen
    /// holds for the question seen.
    fn total(&self, setting: &SettingLosses) -> Option<Loss> {
        let twin = |other: &&SettingLosses| {
            (&other.kv, &other.retain) == (&setting.kv, &setting.retain)
                && other.question_seen != setting.question_seen
        };
        let texts = self.settings.iter().filter(twin).flat_map(|twin| &twin.tasks);
        let mut tasks: BTreeMap<&str, TaskLoss> =
            texts.filter(|(_, loss)| loss.predicts).map(|(task, loss)| (&task[..], *loss)).collect();
        tasks.extend(setting.tasks.iter().map(|(task, loss)| (&task[..], *loss)));
        Loss::of(&tasks)
    }
}

impl Loss {
    fn of(tasks: &BTreeMap<&str, TaskLoss>) -> Option<Loss> {
        let right_most = tasks.values().map(|loss| loss.right).max().unwrap_or(0);
        // Of a few right answers any share may be lost by chance.
        let is_few = right_most < RIGHT_CASES_MIN;
        let of_measure = |measure: LossMeasure| {
            let counts = move |loss: &TaskLoss| loss.predicts || is_few || loss.right >= RIGHT_CASES_MIN;
            tasks.iter().filter(move |(_, loss)| loss.measure() == measure && counts(loss))
        };
        let by = |measure| of_measure(measure).max_by(|a, b| a.1.percent.total_cmp(&b.1.percent));
        let (recall, perplexity) = (by(LossMeasure::Recall), by(LossMeasure::Perplexity));
        let percent = |task: Option<(&&str, &TaskLoss)>| task.map(|(_, loss)| loss.percent);
        let (worst, other) = match perplexity {
            Some(_) if is_few || percent(perplexity) > percent(recall) => (perplexity, recall),
            _ => (recall, perplexity),
        };
        let (task, loss) = worst?;
        let meant = if recall.is_some() { LossMeasure::Recall } else { LossMeasure::Perplexity };
        let counted = || of_measure(meant).map(|(_, loss)| loss);
        Some(Loss {
            mean: counted().map(|loss| loss.percent).sum::<f64>() / counted().count() as f64,
            worst: loss.percent,
            worst_task: (*task).to_owned(),
            measure: loss.measure(),
            other: percent(other),
            cases: counted().map(|loss| loss.cases).sum(),
            right: counted().map(|loss| loss.right).sum(),
            right_most,
        })
    }

    /// Why nothing follows from the measurement; `None` if something does.
    pub fn doubt(&self) -> Option<LossDoubt> {
        match (self.other, self.measure) {
            (None, LossMeasure::Recall) => Some(LossDoubt::NoPerplexity),
            (None, LossMeasure::Perplexity) => Some(LossDoubt::NoRecall),
            (Some(_), _) if self.right_most < RIGHT_CASES_MIN => Some(LossDoubt::FewRight(self.right_most)),
            (Some(_), _) => None,
        }
    }
}

impl fmt::Display for Loss {
    /// Such as `11.1% of perplexity in text (of recall -11.8%, with 36 right cases)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Loss { worst, worst_task, measure, right, .. } = self;
        write!(f, "{worst:.1}% of {measure} in {worst_task} (")?;
        if let Some(other) = self.other {
            write!(f, "of {} {other:.1}%, ", measure.other())?;
        }
        write!(f, "with {right} right cases)")
    }
}

impl TaskLoss {
    fn measure(&self) -> LossMeasure {
        if self.predicts { LossMeasure::Perplexity } else { LossMeasure::Recall }
    }
}

impl LossMeasure {
    fn other(self) -> LossMeasure {
        match self {
            LossMeasure::Recall => LossMeasure::Perplexity,
            LossMeasure::Perplexity => LossMeasure::Recall,
        }
    }
}

impl fmt::Display for LossMeasure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LossMeasure::Recall => "recall",
            LossMeasure::Perplexity => "perplexity",
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
    use kvik_cache::retain::Budget;

    use super::*;

    fn setting(retain: &str, kept: f64, tasks: &[(&str, f64, bool)]) -> SettingLosses {
        let loss = |percent, predicts: bool| TaskLoss {
            percent,
            cases: 50,
            right: if predicts { 0 } else { 30 },
            predicts,
        };
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
            &[("recall", 5.0, false), ("passkey", 1.0, false), ("text", 2.0, true)],
        ));
        losses.record(setting("keydiff:0.2", 0.2, &[("recall", 32.0, false), ("text", 8.0, true)]));
        losses.record(setting("snapkv:0.3", 0.3, &[("recall", 4.0, false), ("text", 1.0, true)]));
        losses
    }

    fn found(losses: &MeasuredLosses, text: &str, seen: bool) -> Option<Loss> {
        losses.loss("f16", &text.parse().unwrap(), seen)
    }

    fn best(losses: &MeasuredLosses, percent: f64) -> Option<String> {
        losses.best("f16", true, percent).map(|retention| retention.to_string())
    }

    #[test]
    fn a_loss_is_found_by_what_a_retention_means() {
        let losses = measured();
        let loss = found(&losses, "keydiff:0.50", true).unwrap();
        assert_eq!((loss.mean, loss.worst, &loss.worst_task[..], loss.cases), (3.0, 5.0, "recall", 100));
        assert_eq!(found(&losses, "keydiff:0.5,sinks=4", true), Some(loss), "the default, said aloud");
        assert_eq!(found(&losses, "keydiff:0.5", false), None);
        assert_eq!(losses.loss("q8", &"keydiff:0.5".parse().unwrap(), true), None);
        assert_eq!(found(&losses, "keydiff:0.5,budget=all", true), None);
    }

    /// Losses once outlived the importance of heads that they were measured with.
    #[test]
    fn what_goes_by_another_measurement_is_dropped_with_it() {
        let mut losses = measured();
        let tasks = [("recall", 1.0, false), ("text", 1.0, true)];
        losses.record(setting("keydiff:0.1,budget=calibrated", 0.1, &tasks));
        losses.record(setting("gated:0.1", 0.1, &tasks));
        assert!(best(&losses, 2.0).is_some());
        assert!(losses.outdate(|retention| retention.budget == Budget::Calibrated));
        assert_eq!(best(&losses, 2.0).as_deref(), Some("gated:0.1"));
        assert!(losses.outdate(|retention| retention.needs().gated));
        assert_eq!(losses, measured(), "nothing else");
        assert!(!losses.outdate(|retention| retention.needs().gated));
    }

    #[test]
    fn the_best_keeps_least_of_those_that_lose_little() {
        let losses = measured();
        assert_eq!(best(&losses, 4.5).as_deref(), Some("snapkv:0.3"));
        assert_eq!(best(&losses, 50.0).as_deref(), Some("keydiff:0.2"));
        assert_eq!(best(&losses, 1.0), None);
        assert_eq!(losses.best("q8", true, 50.0), None);
    }

    /// The worse of recall and perplexity decides, whichever it is.
    #[test]
    fn a_policy_is_judged_by_its_worse_side() {
        let mut losses = MeasuredLosses::default();
        losses.record(setting("vnorm:0.5", 0.5, &[("recall", -11.8, false), ("text", 11.1, true)]));
        losses.record(setting("sinks:0.5", 0.5, &[("recall", 53.0, false), ("text", 2.5, true)]));
        let check = |text: &str, measure, worst, other, said: &str| {
            let loss = found(&losses, text, true).unwrap();
            assert_eq!((loss.measure, loss.worst, loss.other), (measure, worst, Some(other)), "{text}");
            assert_eq!(loss.to_string(), said);
            assert_eq!(loss.doubt(), None);
        };
        check(
            "vnorm:0.5",
            LossMeasure::Perplexity,
            11.1,
            -11.8,
            "11.1% of perplexity in text (of recall -11.8%, with 30 right cases)",
        );
        check(
            "sinks:0.5",
            LossMeasure::Recall,
            53.0,
            2.5,
            "53.0% of recall in recall (of perplexity 2.5%, with 30 right cases)",
        );
        assert_eq!(best(&losses, 5.0), None, "neither passes");
        assert_eq!(best(&losses, 12.0).as_deref(), Some("vnorm:0.5"));
    }

    #[test]
    fn nothing_follows_from_half_a_measurement_or_from_few_right_answers() {
        let mut losses = MeasuredLosses::default();
        losses.record(setting("keydiff:0.5", 0.5, &[("recall", 0.0, false)]));
        losses.record(setting("h2o:0.5", 0.5, &[("text", 0.0, true)]));
        let mut few = setting("kvzip:0.5", 0.5, &[("recall", 0.0, false), ("text", 0.0, true)]);
        few.tasks.values_mut().for_each(|loss| loss.right = loss.right.min(RIGHT_CASES_MIN - 1));
        losses.record(few);
        let doubt = |text: &str| found(&losses, text, true).unwrap().doubt();
        assert_eq!(doubt("keydiff:0.5"), Some(LossDoubt::NoPerplexity));
        assert_eq!(doubt("h2o:0.5"), Some(LossDoubt::NoRecall));
        assert_eq!(doubt("kvzip:0.5"), Some(LossDoubt::FewRight(19)));
        assert_eq!(best(&losses, 100.0), None);
    }

    #[test]
    fn a_task_with_few_right_answers_is_not_the_worst_and_lends_none_to_others() {
        let mut losses = MeasuredLosses::default();
        let mut record = |retain: &str, rights: &[(&str, f64, usize)]| {
            let tasks: Vec<_> = rights.iter().map(|&(task, percent, _)| (task, percent, false)).collect();
            let mut setting = setting(retain, 0.5, &[&tasks[..], &[("text", 2.0, true)]].concat());
            for &(task, _, right) in rights {
                setting.tasks.get_mut(task).unwrap().right = right;
            }
            losses.record(setting);
        };
        record("keydiff:0.5", &[("recall", 3.0, 30), ("triage", 100.0, 5)]);
        record("h2o:0.5", &[("recall", 3.0, 19), ("triage", 100.0, 19)]);
        let keydiff = found(&losses, "keydiff:0.5", true).unwrap();
        assert_eq!((keydiff.doubt(), keydiff.worst, &keydiff.worst_task[..]), (None, 3.0, "recall"));
        assert_eq!((keydiff.mean, keydiff.cases, keydiff.right), (3.0, 50, 30), "of recall alone");
        let h2o = found(&losses, "h2o:0.5", true).unwrap();
        assert_eq!(h2o.doubt(), Some(LossDoubt::FewRight(19)), "38 of both are of none");
        assert_eq!((h2o.measure, h2o.worst), (LossMeasure::Perplexity, 2.0));
        assert_eq!(best(&losses, 5.0).as_deref(), Some("keydiff:0.5"));
    }

    #[test]
    fn text_has_no_question_that_could_be_seen() {
        let mut losses = MeasuredLosses::default();
        losses.record(setting("keydiff:0.5", 0.5, &[("recall", 1.0, false)]));
        let unseen = setting("keydiff:0.5", 0.5, &[("recall", 9.0, false), ("text", 3.0, true)]);
        losses.record(SettingLosses { question_seen: false, ..unseen });
        let loss = found(&losses, "keydiff:0.5", true).unwrap();
        assert_eq!((loss.measure, loss.worst, loss.other), (LossMeasure::Perplexity, 3.0, Some(1.0)));
        assert_eq!(found(&losses, "keydiff:0.5", false).unwrap().worst, 9.0);
    }

    #[test]
    fn measuring_again_replaces_the_task_and_keeps_the_others() {
        let mut losses = measured();
        losses.record(setting("keydiff:0.5", 0.5, &[("passkey", 9.0, false)]));
        let loss = found(&losses, "keydiff:0.5", true).unwrap();
        assert_eq!((loss.worst, loss.mean), (9.0, 7.0));
        assert_eq!(losses.settings.len(), 3);
    }
}

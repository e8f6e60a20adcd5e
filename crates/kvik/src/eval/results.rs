//! Measurements: sums over cases, and the figures derived from them.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::interval::wilson;
use super::setting::Setting;
use super::tasks::EvalCase;

/// Upper bounds of the distances after the cut by which predicted tokens are counted separately.
pub(crate) const DISTANCES: [usize; 4] = [64, 256, 1024, usize::MAX];

/// The sums of one setting with one KV format.
#[derive(Debug, Clone)]
pub(crate) struct ResultRow {
    pub(crate) setting: Setting,
    pub(crate) kv: String,
    /// Answers by task.
    pub(crate) answers: BTreeMap<String, AnswerCell>,
    /// Predicted text by task.
    pub(crate) texts: BTreeMap<String, TextCell>,
    pub(crate) cost: CostSums,
    /// Times of one prompt alone, if they were measured.
    pub(crate) speed: Option<SpeedReport>,
}

/// The answers in one task.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct AnswerCell {
    pub(crate) cases: usize,
    /// Maximum score: 1 per case, or 1 per fact.
    pub(crate) weight: f64,
    /// Score reached.
    pub(crate) right: f64,
    /// Score reached and maximum score, by group.
    pub(crate) groups: BTreeMap<String, (f64, f64)>,
}

/// The right answers in one task, in percent of those with everything kept.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct RecallReport {
    pub(crate) cases: usize,
    /// Cases that are right with everything kept.
    pub(crate) right_with_everything: usize,
    pub(crate) percent: f64,
    /// The lower end of the interval of 95%.
    pub(crate) low: f64,
    /// Its upper end.
    pub(crate) high: f64,
}

/// Predicted text of one task.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct TextCell {
    pub(crate) windows: usize,
    /// All tokens.
    pub(crate) all: TokenSums,
    /// Tokens of answers about earlier text.
    pub(crate) answers: TokenSums,
    /// Sums by distance after the cut, as [`DISTANCES`].
    pub(crate) distances: [TokenSums; DISTANCES.len()],
}

/// Sums over predicted tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct TokenSums {
    pub(crate) tokens: usize,
    /// Negative log-likelihood, nats.
    pub(crate) nll: f64,
    /// Kullback-Leibler divergence from the exact variant, nats.
    pub(crate) kl: f64,
}

/// Costs, summed over prompts.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct CostSums {
    prompts: usize,
    kept: Kept,
    decided: Duration,
    decisions: usize,
    moved: Duration,
}

/// The stored share of a prompt's tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Kept {
    /// Mean of all heads.
    pub(crate) mean: f64,
    /// Share of the head that keeps the fewest.
    pub(crate) smallest: f64,
    /// Share of the head that keeps the most.
    pub(crate) largest: f64,
    /// Bytes of keys and values for each token of the prompt.
    pub(crate) token_bytes: f64,
}

/// Times of one prompt alone.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct SpeedReport {
    /// Tokens of the prompt.
    pub(crate) tokens: usize,
    /// Milliseconds of reading it and observing the statistics that the policy needs.
    pub(crate) read_ms: f64,
    /// Milliseconds of one decode step after it.
    pub(crate) decode_ms: f64,
}

impl ResultRow {
    /// A row without results.
    pub(crate) fn new(setting: Setting, kv: String) -> ResultRow {
        let (answers, texts) = (BTreeMap::new(), BTreeMap::new());
        ResultRow { setting, kv, answers, texts, cost: CostSums::default(), speed: None }
    }

    /// Counts an answer.
    pub(super) fn answered(&mut self, task: &str, case: &EvalCase, answer: &str) {
        let (weight, score) = (case.expected.weight(), case.expected.score(answer));
        let cell = self.answers.entry(task.to_owned()).or_default();
        cell.cases += 1;
        cell.weight += weight;
        cell.right += weight * score;
        if !case.group.is_empty() {
            let group = cell.groups.entry(case.group.clone()).or_default();
            *group = (group.0 + weight * score, group.1 + weight);
        }
    }

    /// Counts a decision.
    pub(super) fn decided(&mut self, took: Duration) {
        self.cost.decided += took;
        self.cost.decisions += 1;
    }

    /// Counts the storage of a decision.
    pub(super) fn kept(&mut self, kept: &Kept, took: Duration) {
        let Kept { mean, smallest, largest, token_bytes } = &mut self.cost.kept;
        *mean += kept.mean;
        *smallest += kept.smallest;
        *largest += kept.largest;
        *token_bytes += kept.token_bytes;
        self.cost.moved += took;
        self.cost.prompts += 1;
    }
}

impl TextCell {
    /// Counts the windows of another cell.
    pub(super) fn add(&mut self, other: &TextCell) {
        self.windows += other.windows;
        self.all.add(&other.all);
        self.answers.add(&other.answers);
        self.distances.iter_mut().zip(&other.distances).for_each(|(sums, other)| sums.add(other));
    }

    /// Counts a token at `distance` after the cut.
    pub(super) fn predicted(&mut self, distance: usize, is_answer: bool, nll: f64, kl: f64) {
        let bucket = DISTANCES.iter().position(|&end| distance < end).unwrap_or(DISTANCES.len() - 1);
        self.all.count(nll, kl);
        self.distances[bucket].count(nll, kl);
        if is_answer {
            self.answers.count(nll, kl);
        }
    }
}

impl TokenSums {
    fn count(&mut self, nll: f64, kl: f64) {
        self.add(&TokenSums { tokens: 1, nll, kl });
    }

    fn add(&mut self, other: &TokenSums) {
        self.tokens += other.tokens;
        self.nll += other.nll;
        self.kl += other.kl;
    }

    /// e to the mean negative log-likelihood; `None` without tokens.
    pub(crate) fn perplexity(&self) -> Option<f64> {
        (self.tokens > 0).then(|| (self.nll / self.tokens as f64).exp())
    }

    /// Mean divergence, nats a token; `None` without tokens.
    pub(crate) fn divergence(&self) -> Option<f64> {
        (self.tokens > 0).then(|| self.kl / self.tokens as f64)
    }

    /// The increase of the perplexity over that of `exact`, in percent.
    pub(crate) fn increase(&self, exact: &TokenSums) -> Option<f64> {
        Some(100.0 * (self.perplexity()? / exact.perplexity()? - 1.0))
    }
}

impl AnswerCell {
    /// The share of right answers, in percent.
    pub(crate) fn percent(&self) -> f64 {
        100.0 * self.right / self.weight
    }

    /// Number of cases that are right; of a case that is partly right, the part.
    pub(crate) fn right_cases(&self) -> f64 {
        self.cases as f64 * self.right / self.weight
    }

    /// The interval of 95% of [`AnswerCell::percent`].
    pub(crate) fn interval(&self) -> (f64, f64) {
        let (low, high) = wilson(self.right_cases(), self.cases);
        (100.0 * low, 100.0 * high)
    }

    /// Right answers in percent of those of `exact`; `None` when it had none. The interval is that of these answers:
    /// those of `exact` are the measure, not a sample.
    pub(crate) fn recall(&self, exact: &AnswerCell) -> Option<RecallReport> {
        if exact.right <= 0.0 {
            return None;
        }
        let of_exact = |percent: f64| 100.0 * percent / exact.percent();
        // Hundredths of a percent: further digits of an interval say nothing.
        let end = |percent: f64| (100.0 * of_exact(percent)).round() / 100.0;
        let (low, high) = self.interval();
        Some(RecallReport {
            cases: self.cases,
            right_with_everything: exact.right_cases().floor() as usize,
            percent: of_exact(self.percent()),
            low: end(low),
            high: end(high),
        })
    }
}

impl fmt::Display for RecallReport {
    /// Such as `88 [56-106]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0} [{:.0}-{:.0}]", self.percent, self.low, self.high)
    }
}

impl CostSums {
    /// The average storage of a prompt.
    pub(crate) fn kept(&self) -> Kept {
        let mean = |sum: f64| sum / self.prompts.max(1) as f64;
        let Kept { mean: all, smallest, largest, token_bytes } = self.kept;
        Kept {
            mean: mean(all),
            smallest: mean(smallest),
            largest: mean(largest),
            token_bytes: mean(token_bytes),
        }
    }

    /// Average milliseconds of a decision.
    pub(crate) fn decide_ms(&self) -> f64 {
        self.decided.as_secs_f64() * 1e3 / self.decisions.max(1) as f64
    }

    /// Average milliseconds of moving the retained positions.
    pub(crate) fn move_ms(&self) -> f64 {
        self.moved.as_secs_f64() * 1e3 / self.prompts.max(1) as f64
    }
}

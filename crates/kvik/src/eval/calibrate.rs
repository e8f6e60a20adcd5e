//! Finds the KV heads that retrieve and those that only stream, without training.
//!
//! The ablation lets a single head keep only its first and last positions, and all others everything. The drop in the
//! log-probability of the right answer is the head's importance (the question of DuoAttention, arXiv 2410.10819,
//! answered by ablation instead of training). Likelihood is finer than the share of right answers: it also shows heads
//! without which the model is only less certain.

use kvik_cache::Token;
use kvik_cache::retain::{Decision, HeadImportance};
use kvik_serving::measured::RIGHT_CASES_MIN;

use super::exam::{Exam, Grader};
use super::predict::{log_softmax, piece_tokens};
use super::tasks::EvalCase;

/// First positions (attention sinks) that an ablated head keeps.
const SINKS: usize = 4;
/// Last positions that it keeps.
const RECENT: usize = 16;

/// The losses in the cases of one task so far.
#[derive(Debug, Clone)]
pub(crate) struct HeadLosses {
    /// Lost log-probability of right answers, nats, `[layers][kv_heads]`.
    sums: Vec<Vec<f64>>,
    /// Cases that the full model answered correctly: only those count.
    pub(crate) cases: usize,
}

/// The importance of each head: the maximum over tasks of its loss relative to the most important head of that task. A
/// head that only one task needs must not be averaged away by the number of other tasks or the length of their answers. So
/// a task counts whole however few its answers are: [`HeadLosses::suffices`] says whether anything follows from it.
pub(crate) fn importance(tasks: &[HeadLosses]) -> HeadImportance {
    let mut layers = tasks.first().map(|task| task.shares()).unwrap_or_default();
    for task in tasks {
        for (most, share) in layers.iter_mut().flatten().zip(task.shares().into_iter().flatten()) {
            *most = most.max(share);
        }
    }
    HeadImportance { layers }
}

impl HeadLosses {
    /// No losses yet, for a model with these numbers of KV heads by layer.
    pub(crate) fn new(shape: &[usize]) -> HeadLosses {
        HeadLosses { sums: shape.iter().map(|&heads| vec![0.0; heads]).collect(), cases: 0 }
    }

    /// Whether the model answered enough cases rightly: of a few, any head may seem to matter.
    pub(crate) fn suffices(&self) -> bool {
        self.cases >= RIGHT_CASES_MIN
    }

    /// The loss without each head as a share of the largest, at least 0.
    fn shares(&self) -> Vec<Vec<f32>> {
        let most = self.sums.iter().flatten().copied().fold(f64::MIN_POSITIVE, f64::max);
        let share = |sum: &f64| (sum / most).max(0.0) as f32;
        self.sums.iter().map(|heads| heads.iter().map(share).collect()).collect()
    }
}

impl Exam {
    /// Answers a case with full KV, and, if the answer is right, measures its likelihood without each head.
    pub(crate) fn lose_heads(&mut self, case: &EvalCase, losses: &mut HeadLosses, grader: &Grader<'_>) {
        let Some(answer) = self.right_answer(case, grader) else { return };
        let shape = self.shape();
        let heads: Vec<(usize, usize)> = shape
            .iter()
            .enumerate()
            .flat_map(|(layer, &heads)| (0..heads).map(move |head| (layer, head)))
            .collect();
        let tokens = [&case.prompt.question[..], &answer].concat();
        let everything = self.decision(None);
        let exact = self.likelihoods(std::slice::from_ref(&everything), &tokens, answer.len())[0];
        for heads in heads.chunks(self.room(&everything, tokens.len())) {
            let without: Vec<Decision> = heads.iter().map(|&head| without(&everything, head)).collect();
            let likelihoods = self.likelihoods(&without, &tokens, answer.len());
            for (&(layer, head), likelihood) in heads.iter().zip(likelihoods) {
                losses.sums[layer][head] += exact - likelihood;
            }
        }
        losses.cases += 1;
    }

    /// The answer of the full model with the token that ends it, if it is right.
    fn right_answer(&mut self, case: &EvalCase, grader: &Grader<'_>) -> Option<Vec<Token>> {
        self.read(&case.prompt.context, []);
        let everything = self.decision(None);
        let mut variants = [self.lab().keep(&everything, None)];
        let mut answers = self.lab().answer(&mut variants, &case.prompt.question, case.limit, grader.stop);
        variants.into_iter().for_each(|variant| self.lab().drop(variant));
        let answer = answers.swap_remove(0);
        let right = case.expected.score(&grader.tokenizer.decode(&answer)) == 1.0;
        (right && !answer.is_empty()).then_some(answer)
    }

    /// The log-probability of the last `answer` of `tokens` under each decision, nats.
    fn likelihoods(&mut self, decisions: &[Decision], tokens: &[Token], answer: usize) -> Vec<f64> {
        let mut variants: Vec<_> = decisions.iter().map(|decision| self.lab().keep(decision, None)).collect();
        let mut sums = vec![0.0; variants.len()];
        let piece = piece_tokens(variants.len(), self.vocab());
        for start in (0..tokens.len() - 1).step_by(piece) {
            let end = (start + piece).min(tokens.len() - 1);
            let logits = self.lab().score(&mut variants, &tokens[start..=end]);
            for (sum, logits) in sums.iter_mut().zip(logits) {
                for (logits, index) in logits.iter().zip(start + 1..) {
                    if index >= tokens.len() - answer {
                        *sum += f64::from(log_softmax(logits)[tokens[index] as usize]);
                    }
                }
            }
        }
        variants.into_iter().for_each(|variant| self.lab().drop(variant));
        sums
    }
}

/// The decision that keeps everything except the middle of one head.
fn without(everything: &Decision, (layer, head): (usize, usize)) -> Decision {
    let mut decision = everything.clone();
    let kept = &mut decision.kept[layer][head];
    let end = kept.len() as u32;
    kept.retain(|&index| index < SINKS as u32 || index + RECENT as u32 >= end);
    decision
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_that_streams_keeps_its_ends() {
        let everything = Decision { kept: vec![vec![(0..100).collect(); 2]; 3] };
        let decision = without(&everything, (1, 0));
        assert_eq!(decision.kept[1][0], (0..4).chain(84..100).collect::<Vec<u32>>());
        assert_eq!(decision.kept.iter().flatten().filter(|kept| kept.len() == 100).count(), 5);
        let short = Decision { kept: vec![vec![(0..10).collect()]] };
        assert_eq!(without(&short, (0, 0)), short);
    }

    #[test]
    fn a_head_matters_as_much_as_to_the_task_that_needs_it_most() {
        let task = |sums: &[&[f64]]| {
            let sums: Vec<Vec<f64>> = sums.iter().map(|heads| heads.to_vec()).collect();
            HeadLosses { sums, cases: 1 }
        };
        let tasks = [task(&[&[8.0, -1.0], &[2.0]]), task(&[&[0.5, 0.25], &[0.0]]), HeadLosses::new(&[2, 1])];
        assert_eq!(importance(&tasks).layers, [vec![1.0, 0.5], vec![0.25]]);
        assert_eq!(importance(&tasks[2..]).layers, [vec![0.0, 0.0], vec![0.0]], "nothing was answered");
    }

    #[test]
    fn twenty_right_answers_of_a_task_suffice() {
        let suffices = |cases| HeadLosses { sums: vec![vec![1.0]], cases }.suffices();
        assert_eq!([0, 1, RIGHT_CASES_MIN - 1, RIGHT_CASES_MIN].map(suffices), [false, false, false, true]);
    }
}

//! Chooses the experts of a row, and their weights.
//!
//! Experts of a row are in descending order of their scores, equal ones by ascending index. Everything depends only on
//! the row's own scores.

use kvik_kernels::{Pool, sigmoid, softmax};

use super::shape::{ExpertGroups, ExpertsShape, Gating};

/// Minimum divisor when weights are normalised to a sum of one, as in llama.cpp: the smallest normal half float.
const SUM_MIN: f32 = 6.103_515_6e-5;

/// The choices of a batch.
#[derive(Default)]
pub(super) struct Choices {
    /// `[n, used]`
    pub(super) experts: Vec<u32>,
    /// `[n, used]`
    pub(super) weights: Vec<f32>,
    /// The scores by which the experts of one row are chosen, `[count]`.
    scores: Vec<f32>,
    /// The experts chosen so far for one row.
    best: Vec<u32>,
    /// The scores of groups for one row.
    group_scores: Vec<f32>,
}

impl Choices {
    /// Chooses by the router's `scores`, `[n, count]`, which become probabilities; `bias`, `[count]`, is added for the
    /// choice but not for the weights.
    pub(super) fn choose(
        &mut self,
        pool: &Pool,
        shape: &ExpertsShape,
        scores: &mut [f32],
        bias: Option<&[f32]>,
    ) {
        match shape.gating {
            Gating::Softmax => softmax(pool, scores, shape.count),
            Gating::Sigmoid => sigmoid(pool, scores),
            Gating::SoftmaxOfChosen | Gating::SigmoidOfChosen => {}
        }
        self.experts.clear();
        self.weights.clear();
        for probabilities in scores.chunks_exact(shape.count) {
            self.choose_row(shape, probabilities, bias);
        }
        match shape.gating {
            Gating::SoftmaxOfChosen => softmax(pool, &mut self.weights, shape.used),
            Gating::SigmoidOfChosen => sigmoid(pool, &mut self.weights),
            Gating::Softmax | Gating::Sigmoid => {}
        }
        self.weights.chunks_exact_mut(shape.used).for_each(|weights| scale(shape, weights));
    }

    fn choose_row(&mut self, shape: &ExpertsShape, probabilities: &[f32], bias: Option<&[f32]>) {
        let Choices { experts, weights, scores, best, group_scores } = self;
        scores.clear();
        scores.extend_from_slice(probabilities);
        if let Some(bias) = bias {
            scores.iter_mut().zip(bias).for_each(|(score, bias)| *score += bias);
        }
        if let Some(groups) = shape.groups {
            leave_groups_out(scores, groups, group_scores, best);
        }
        greatest(scores, shape.used, best);
        experts.extend_from_slice(best);
        weights.extend(best.iter().map(|&expert| probabilities[expert as usize]));
    }
}

/// Normalises and scales the weights of a row; the sum adds them in their order.
fn scale(shape: &ExpertsShape, weights: &mut [f32]) {
    if shape.normalised {
        let sum = weights.iter().sum::<f32>().max(SUM_MIN);
        weights.iter_mut().for_each(|weight| *weight /= sum);
    }
    if shape.scale != 1.0 {
        weights.iter_mut().for_each(|weight| *weight *= shape.scale);
    }
}

/// Sets the scores of all but the best groups to negative infinity.
fn leave_groups_out(
    scores: &mut [f32],
    groups: ExpertGroups,
    group_scores: &mut Vec<f32>,
    best: &mut Vec<u32>,
) {
    let members = scores.len() / groups.count;
    group_scores.clear();
    group_scores.extend(scores.chunks_exact(members).map(|members| {
        greatest(members, groups.best, best);
        best.iter().map(|&member| members[member as usize]).sum::<f32>()
    }));
    greatest(group_scores, groups.used, best);
    for (group, members) in scores.chunks_exact_mut(members).enumerate() {
        if !best.contains(&(group as u32)) {
            members.fill(f32::NEG_INFINITY);
        }
    }
}

/// The indices of the `count` greatest scores in descending order, equal ones by ascending index.
fn greatest(scores: &[f32], count: usize, best: &mut Vec<u32>) {
    best.clear();
    for (index, &score) in scores.iter().enumerate() {
        let is_less = |at: usize| score <= scores[best[at] as usize];
        if best.len() == count && is_less(count - 1) {
            continue;
        }
        let at = best.partition_point(|&other| scores[other as usize] >= score);
        best.truncate(count - 1);
        best.insert(at.min(best.len()), index as u32);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::feed_forward::tests::shape;

    fn choose(shape: &ExpertsShape, scores: &[f32], bias: Option<&[f32]>) -> (Vec<u32>, Vec<f32>) {
        let mut choices = Choices::default();
        choices.choose(&Pool::new(2), shape, &mut scores.to_vec(), bias);
        (choices.experts, choices.weights)
    }

    #[test]
    fn ties_go_to_the_lower_index() {
        let shape = ExpertsShape { count: 6, used: 3, ..shape() };
        assert_eq!(choose(&shape, &[0.0; 6], None).0, [0, 1, 2]);
        assert_eq!(choose(&shape, &[1.0, 2.0, 1.0, 2.0, 1.0, 2.0], None).0, [1, 3, 5]);
        assert_eq!(choose(&shape, &[1.0, 0.0, 1.0, 2.0, 1.0, -1.0], None).0, [3, 0, 2]);
        assert_eq!(choose(&shape, &[f32::NAN; 6], None).0.len(), 3);
    }

    #[test]
    fn gatings_weigh_as_they_say() {
        let check = |gating, normalised, expect: [f64; 2]| {
            let shape = ExpertsShape { count: 4, used: 2, gating, normalised, scale: 3.0, ..shape() };
            let (experts, weights) = choose(&shape, &[0.5, -1.0, 2.0, 1.0], None);
            assert_eq!(experts, [2, 3]);
            for (weight, expect) in weights.iter().zip(expect) {
                assert!((f64::from(*weight) - 3.0 * expect).abs() < 1e-6, "{gating:?}: {weights:?}");
            }
        };
        let powers = [0.5f64, -1.0, 2.0, 1.0].map(f64::exp);
        let (all, chosen) = (powers.iter().sum::<f64>(), powers[2] + powers[3]);
        check(Gating::Softmax, false, [powers[2] / all, powers[3] / all]);
        check(Gating::Softmax, true, [powers[2] / chosen, powers[3] / chosen]);
        check(Gating::SoftmaxOfChosen, false, [powers[2] / chosen, powers[3] / chosen]);
        let each = [2.0f64, 1.0].map(|x| 1.0 / (1.0 + (-x).exp()));
        check(Gating::Sigmoid, false, each);
        check(Gating::SigmoidOfChosen, false, each);
        check(Gating::Sigmoid, true, each.map(|x| x / (each[0] + each[1])));
    }

    #[test]
    fn a_sum_of_nothing_divides_by_the_least() {
        let shape = ExpertsShape { count: 2, used: 1, gating: Gating::Sigmoid, normalised: true, ..shape() };
        let weights = choose(&shape, &[-80.0, -90.0], None).1;
        assert!((f64::from(weights[0]) - (-80.0f64).exp() / 6.103515625e-5).abs() < 1e-35, "{weights:?}");
    }

    #[test]
    fn a_bias_chooses_and_does_not_weigh() {
        let shape = ExpertsShape { count: 3, used: 1, gating: Gating::Sigmoid, ..shape() };
        let (experts, weights) = choose(&shape, &[2.0, 0.0, 1.0], Some(&[0.0, 5.0, 0.0]));
        assert_eq!((experts, weights), (vec![1], vec![0.5]));
    }

    #[test]
    fn groups_are_chosen_by_their_two_best_or_by_their_best() {
        let groups = |used, best| Some(ExpertGroups { count: 3, used, best });
        let gating = Gating::SigmoidOfChosen;
        let shape = ExpertsShape { count: 9, used: 2, groups: groups(1, 2), gating, ..shape() };
        let scores = [3.0, 0.0, 0.0, 2.0, 1.5, -9.0, 1.0, 1.0, 1.0];
        assert_eq!(choose(&shape, &scores, None).0, [3, 4], "the best alone is in another group");
        let two = ExpertsShape { groups: groups(2, 2), used: 3, ..shape };
        assert_eq!(choose(&two, &scores, None).0, [0, 3, 4]);
        assert_eq!(choose(&two, &[1.0; 9], None).0, [0, 1, 2]);
        // DeepSeek V2.
        let by_best = ExpertsShape { groups: groups(1, 1), ..shape };
        assert_eq!(choose(&by_best, &scores, None).0, [0, 1], "the two best together are in another group");
    }

    proptest! {
        #[test]
        fn the_greatest_are_those_of_a_stable_sort(
            scores in prop::collection::vec((-4..4i32).prop_map(|x| x as f32 / 2.0), 1..40),
            count in 1..10usize,
        ) {
            let count = count.min(scores.len());
            let mut sorted: Vec<u32> = (0..scores.len() as u32).collect();
            sorted.sort_by(|a, b| scores[*b as usize].total_cmp(&scores[*a as usize]));
            let mut best = Vec::new();
            greatest(&scores, count, &mut best);
            prop_assert_eq!(&best, &sorted[..count]);
        }
    }
}

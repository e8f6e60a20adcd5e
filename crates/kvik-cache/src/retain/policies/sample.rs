//! By position: a first and a last quarter of the quota, and an even sample of the positions between them.

use super::rules::{Rules, Scene, options};
use crate::retain::facts::LayerFacts;
use crate::retain::state::LayerState;

options! {
    /// Retains a first and a last quarter, and an even sample of the middle.
    Sample {}
}

impl Rules for Sample {
    fn scores(&self, scene: Scene, layer: &LayerFacts, _: &mut LayerState) -> Vec<Vec<f32>> {
        let heads = layer.heads.iter().zip(scene.rooms);
        heads.map(|(head, room)| scores(&head.positions, room.quota)).collect()
    }
}

/// 1 for each of the `quota` chosen positions; the others score below 1, later ones higher.
fn scores(positions: &[u32], quota: usize) -> Vec<f32> {
    let mut scores: Vec<f32> =
        (0..positions.len()).map(|index| index as f32 / positions.len() as f32).collect();
    let end = quota.min(positions.len()) / 4;
    let middle = end..positions.len() - end;
    scores[..end].fill(1.0);
    scores[middle.end..].fill(1.0);
    let wanted = quota.min(positions.len()) - 2 * end;
    let (Some(&first), Some(&last)) = (positions[middle.clone()].first(), positions[middle.clone()].last())
    else {
        return scores;
    };
    // Evenly by position, not by index: a range that was thinned before must not be thinned twice as much.
    let mut index = middle.start;
    for taken in 0..wanted {
        let target = first as usize + taken * (last - first) as usize / wanted.max(1);
        while index + 1 < middle.end && (positions[index] as usize) < target {
            index += 1;
        }
        if index < middle.end {
            scores[index] = 1.0;
        }
        index += 1;
    }
    scores
}

//! The optimum of any cache: Belady's choice, with the future known.
//!
//! Evicts the kept block whose next use is farthest away. A prefix is used whenever anything after it is, so of the
//! blocks of one request the later ones have the farther next use, and the kept set is always closed under
//! prefixes: no tree is needed.

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;

use super::trace::{Capacity, TraceRequest};

/// Hits of the optimal choice of victims, with `capacity` blocks kept between requests.
pub fn optimum(requests: &[TraceRequest], capacity: Capacity) -> usize {
    let next_uses = next_uses(requests);
    let mut kept = Kept::default();
    let mut hits = 0;
    for (request, next_uses) in requests.iter().zip(&next_uses) {
        hits += request.iter().take_while(|id| kept.places.contains_key(id)).count();
        for (depth, (&id, &next)) in request.iter().zip(next_uses).enumerate() {
            kept.insert(id, (next, depth));
        }
        if let Capacity::Blocks(blocks) = capacity {
            kept.shrink(blocks);
        }
    }
    hits
}

/// For every block of every request the index of the next request that contains it; `usize::MAX` when none does.
fn next_uses(requests: &[TraceRequest]) -> Vec<Vec<usize>> {
    let mut last: FxHashMap<u64, usize> = FxHashMap::default();
    let backwards = requests.iter().enumerate().rev();
    let mut next_uses: Vec<Vec<usize>> = backwards
        .map(|(index, request)| {
            let next = request.iter().map(|&id| last.insert(id, index).unwrap_or(usize::MAX));
            next.collect()
        })
        .collect();
    next_uses.reverse();
    next_uses
}

/// When a block is used next, and its depth.
type Place = (usize, usize);

#[derive(Default)]
struct Kept {
    places: FxHashMap<u64, Place>,
    order: BTreeSet<(Place, u64)>,
}

impl Kept {
    fn insert(&mut self, id: u64, place: Place) {
        if let Some(before) = self.places.insert(id, place) {
            self.order.remove(&(before, id));
        }
        self.order.insert((place, id));
    }

    fn shrink(&mut self, blocks: usize) {
        while self.order.len() > blocks {
            let (_, id) = self.order.pop_last().expect("it is longer than a number");
            self.places.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The most hits over all choices of kept prefixes, by brute force.
    fn best(requests: &[TraceRequest], kept: &[u64], capacity: usize) -> usize {
        let Some((request, rest)) = requests.split_first() else { return 0 };
        let hits = request.iter().take_while(|id| kept.contains(id)).count();
        let mut all: Vec<u64> = kept.iter().chain(request).copied().collect();
        all.sort_unstable();
        all.dedup();
        let choices = (0..1_u32 << all.len()).filter(|choice| choice.count_ones() as usize <= capacity);
        let later = choices.map(|choice| {
            let chosen = all.iter().enumerate().filter(|(bit, _)| choice >> bit & 1 == 1);
            best(rest, &chosen.map(|(_, &id)| id).collect::<Vec<_>>(), capacity)
        });
        hits + later.max().unwrap_or(0)
    }

    #[test]
    fn no_choice_is_better() {
        // Ids identify prefixes: 10 and 11 follow 1, 100 follows 10, and so on.
        let requests: [&[u64]; 6] = [&[1, 10], &[2, 20], &[1, 11], &[2, 20], &[3], &[1, 10]];
        let requests = requests.map(<[u64]>::to_vec);
        let found: Vec<usize> = (0..5).map(|blocks| optimum(&requests, Capacity::Blocks(blocks))).collect();
        let expected: Vec<usize> = (0..5).map(|blocks| best(&requests, &[], blocks)).collect();
        assert_eq!(found, expected);
        assert_eq!(optimum(&requests, Capacity::Unlimited), 5);
    }
}

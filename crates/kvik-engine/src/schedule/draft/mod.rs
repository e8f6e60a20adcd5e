//! Drafts: tokens with which a sequence may go on, computed beside its next one.
//!
//! ```text
//!   rows of a step     last token │ draft[0]  draft[1]  draft[2]      each with logits
//!   drawn from them       t0          t1        t2
//!                                  t0 = draft[0], t1 = draft[1], t2 ≠ draft[2]: three tokens from one step
//! ```
//!
//! Logits do not depend on the batch, and tokens are drawn one after the other as without drafts. So a token that was
//! drafted and is drawn is *the* token, whatever it was drawn by; those after the first that was not drawn are forgotten,
//! and what they stored is overwritten.
//!
//! | module   | cares about                                     |
//! |----------|-------------------------------------------------|
//! | `lookup` | what followed the last tokens before            |
//! | `cost`   | what more rows cost                             |
//!
//! What is drafted is a matter of time alone: as many tokens as make most of a step, by what was drawn of earlier drafts
//! and by what steps have taken.

mod cost;
mod lookup;

use std::time::Duration;

use kvik_cache::Token;

use self::cost::Cost;
use self::lookup::{Found, Lookup};
use crate::config::ROWS_AT_A_TIME;

/// Tokens that are drafted for one sequence at most.
pub(super) const DRAFT_MAX: usize = 15;
/// Drafts must make a step so much better to be worth it: what they cost is a guess at first.
const GAIN_MIN: f64 = 1.05;
/// How likely a drafted token is taken to be drawn at first, by how many tokens before it were the same: 3 or 4, up to 8,
/// more. Rather too low: what is found is compared with what is drawn also where it is not computed, so it rises for
/// nothing, and beside many others a row costs as much as it is worth.
const LIKELY: [f64; 3] = [0.25, 0.5, 0.8];
/// The share of a new outcome in that.
const NEW: f64 = 0.1;

/// What is known about drafting in all sequences.
#[derive(Debug, Default)]
pub(super) struct Drafting {
    cost: Cost,
}

/// What is known of the drafts of one sequence.
#[derive(Debug)]
pub(super) struct Drafter {
    lookup: Lookup,
    likely: [f64; 3],
    /// What was found last, whether it was computed or not, and the tokens of the sequence then.
    last: Option<(Found, usize)>,
}

impl Default for Drafter {
    fn default() -> Drafter {
        Drafter { lookup: Lookup::default(), likely: LIKELY, last: None }
    }
}

impl Drafter {
    /// What may follow `tokens`, and how likely each of them is drawn if the one before it was.
    pub(super) fn find(&mut self, tokens: &[Token], most: usize) -> Option<(&[Token], f64)> {
        self.learn(tokens);
        let found = self.lookup.find(tokens, most)?;
        let likely = self.likely[class(found.same)];
        let (found, _) = self.last.insert((found, tokens.len()));
        Some((&found.tokens, likely))
    }

    /// Compares what was found last with what was drawn.
    fn learn(&mut self, tokens: &[Token]) {
        let Some((found, len)) = self.last.take() else { return };
        let likely = &mut self.likely[class(found.same)];
        for (found, drawn) in found.tokens.iter().zip(&tokens[len..]) {
            *likely += NEW * (f64::from(u8::from(found == drawn)) - *likely);
            if found != drawn {
                break;
            }
        }
    }
}

/// How well a place fits.
fn class(same: usize) -> usize {
    match same {
        ..=4 => 0,
        5..=8 => 1,
        _ => 2,
    }
}

impl Drafting {
    /// A step that decoded took so long.
    pub(super) fn note(&mut self, rows: usize, elapsed: Duration) {
        self.cost.note(rows, elapsed);
    }

    /// How many tokens of each draft to compute beside `rows` others, `drafts_max` in all: of each its tokens and how
    /// likely they are.
    pub(super) fn lengths(&self, rows: usize, drafts: &[(usize, f64)], drafts_max: usize) -> Vec<usize> {
        let mut tokens: Vec<(f64, usize)> = Vec::new();
        for (index, &(len, likely)) in drafts.iter().enumerate() {
            tokens.extend((1..=len).map(|position| (likely.powi(position as i32), index)));
        }
        // A token is never likelier than the one before it, and stands behind it where they are the same.
        tokens.sort_by(|a, b| b.0.total_cmp(&a.0));
        tokens.truncate(drafts_max);
        let plain = rows as f64 / self.cost.of(rows);
        let (mut best, mut best_len, mut expected) = (plain * GAIN_MIN, 0, rows as f64);
        for (count, (likely, _)) in (1..).zip(&tokens) {
            expected += likely;
            let fills = (rows + count).is_multiple_of(ROWS_AT_A_TIME) || count == tokens.len();
            let rate = expected / self.cost.of(rows + count);
            if fills && rate > best {
                (best, best_len) = (rate, count);
            }
        }
        let mut lengths = vec![0; drafts.len()];
        tokens[..best_len].iter().for_each(|&(_, index)| lengths[index] += 1);
        lengths
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drafts_fill_groups_of_rows_where_they_are_worth_it() {
        let drafting = Drafting::default();
        assert_eq!(drafting.lengths(1, &[(15, 0.95)], 32), [15]);
        assert_eq!(drafting.lengths(1, &[(15, 0.3)], 32), [3]);
        assert_eq!(drafting.lengths(1, &[(15, 0.1)], 32), [0]);
        assert_eq!(drafting.lengths(1, &[(2, 0.9)], 32), [2]);
        assert_eq!(drafting.lengths(1, &[(15, 0.95)], 5), [5]);
        assert_eq!(drafting.lengths(4, &[(0, 0.0), (15, 0.9), (15, 0.2), (0, 0.0)], 4), [0, 4, 0, 0]);
        assert!(drafting.lengths(16, &[(15, 0.2); 16], 32).iter().all(|&len| len == 0));
        let mut slow = Drafting::default();
        slow.note(1, Duration::from_millis(10));
        slow.note(4, Duration::from_millis(40));
        slow.note(16, Duration::from_millis(160));
        assert_eq!(slow.lengths(1, &[(15, 0.9)], 32), [0], "rows that cost as much as steps");
    }

    #[test]
    fn what_is_not_drawn_becomes_less_likely_also_where_it_is_not_computed() {
        let mut drafter = Drafter::default();
        let mut tokens: Vec<Token> = (0..20).chain(0..3).collect();
        let (found, likely) = drafter.find(&tokens, 4).unwrap();
        assert_eq!((found, likely), (&[3, 4, 5, 6][..], LIKELY[0]));
        tokens.extend([3, 99]);
        assert!(drafter.find(&tokens, 4).is_none());
        let expect = LIKELY[0] + NEW * (1.0 - LIKELY[0]);
        assert_eq!(drafter.likely, [expect + NEW * (0.0 - expect), LIKELY[1], LIKELY[2]]);
    }
}

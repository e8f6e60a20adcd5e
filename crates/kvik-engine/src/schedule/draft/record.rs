//! Acceptance statistics of the draft sources, per sequence.

use kvik_cache::{Followers, Token};

use crate::stats::DraftSource;

/// Number of classes of match length.
const CLASSES: usize = 3;
/// Assumed acceptance probability of a draft model's token before anything is measured.
pub(super) const MODEL_LIKELY: f64 = 0.5;
/// The same of a prediction head's token.
pub(super) const HEAD_LIKELY: f64 = 0.5;
/// Weight of a new outcome in the acceptance probability.
const NEW: f64 = 0.1;

/// The last offer of a source, and the acceptance of its earlier ones.
#[derive(Debug, Default)]
pub(super) struct Record {
    /// Acceptance probability by class; `None` before anything was compared.
    likely: [Option<f64>; CLASSES],
    /// The last offer, whether it is computed or not, and the length of the sequence at that time.
    last: Option<(Followers, usize)>,
}

impl Record {
    /// Sets the acceptance probability of the classes for which nothing was compared in this sequence.
    pub(super) fn expect(&mut self, likely: f64) {
        self.likely.iter_mut().for_each(|class| *class = Some(class.unwrap_or(likely)));
    }

    /// Acceptance probability of a token after a match of `same` tokens.
    pub(super) fn likely(&self, source: DraftSource, same: usize) -> f64 {
        self.likely[class(same)].unwrap_or(at_first(source)[class(same)])
    }

    /// Records the offer for a sequence of `len` tokens.
    pub(super) fn note(&mut self, found: Option<Followers>, len: usize) {
        self.last = found.filter(|found| !found.tokens.is_empty()).map(|found| (found, len));
    }

    /// The last offer, and the probability that each of its tokens is accepted if the previous one was.
    pub(super) fn last(&self, source: DraftSource) -> Option<(&[Token], f64)> {
        let (found, _) = self.last.as_ref()?;
        Some((&found.tokens, self.likely(source, found.same)))
    }

    /// Compares the last offer with the tokens that were sampled.
    pub(super) fn learn(&mut self, source: DraftSource, tokens: &[Token]) {
        let Some((found, len)) = self.last.take() else { return };
        let class = class(found.same);
        let likely = self.likely[class].get_or_insert(at_first(source)[class]);
        for (found, drawn) in found.tokens.iter().zip(&tokens[len..]) {
            *likely += NEW * (f64::from(u8::from(found == drawn)) - *likely);
            if found != drawn {
                break;
            }
        }
    }
}

/// Initial acceptance probability, by class. Rather too low: offers are compared with the sampled tokens even if they
/// are not computed, so the estimate rises at no cost, and in a step with many other rows a row costs as much as it
/// gains.
fn at_first(source: DraftSource) -> [f64; CLASSES] {
    match source {
        DraftSource::Lookup => [0.25, 0.5, 0.8],
        DraftSource::Tree => [0.2, 0.4, 0.8],
        // The grammar forces the text, but not its division into tokens.
        DraftSource::Grammar => [0.8; CLASSES],
        DraftSource::Model => [MODEL_LIKELY; CLASSES],
        DraftSource::Head => [HEAD_LIKELY; CLASSES],
    }
}

/// The class of a match, by its length in tokens: at most 4, 5 to 8, more.
fn class(same: usize) -> usize {
    match same {
        ..=4 => 0,
        5..=8 => 1,
        _ => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_drawn_becomes_less_likely_also_where_it_is_not_computed() {
        let (mut record, source) = (Record::default(), DraftSource::Lookup);
        let [first, ..] = at_first(source);
        record.note(Some(Followers { tokens: vec![3, 4, 5, 6], same: 3 }), 3);
        assert_eq!(record.last(source), Some((&[3, 4, 5, 6][..], first)));
        record.learn(source, &[0, 1, 2, 3, 99]);
        assert_eq!(record.last(source), None);
        record.note(Some(Followers { tokens: vec![7], same: 4 }), 5);
        let once = first + NEW * (1.0 - first);
        assert_eq!(record.last(source), Some((&[7][..], once + NEW * (0.0 - once))));
        record.note(Some(Followers { tokens: vec![7], same: 20 }), 5);
        assert_eq!(record.last(source), Some((&[7][..], at_first(source)[2])));
    }
}

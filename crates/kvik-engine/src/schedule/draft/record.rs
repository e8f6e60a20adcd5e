//! How often what a source finds for a sequence is drawn.

use kvik_cache::{Followers, Token};

use crate::stats::DraftSource;

/// Classes of how well a place fits.
const CLASSES: usize = 3;
/// How likely a token of a draft model is taken to be drawn before anything is known of it.
pub(super) const MODEL_LIKELY: f64 = 0.5;
/// The share of a new outcome in how likely a token is.
const NEW: f64 = 0.1;

/// What a source found last, and what became of what it found before.
#[derive(Debug, Default)]
pub(super) struct Record {
    /// How likely a token is drawn, by class; none before anything was compared.
    likely: [Option<f64>; CLASSES],
    /// What was found last, whether it is computed or not, and the tokens of the sequence then.
    last: Option<(Followers, usize)>,
}

impl Record {
    /// How likely tokens are as long as nothing of this source was compared in this sequence.
    pub(super) fn expect(&mut self, likely: f64) {
        self.likely.iter_mut().for_each(|class| *class = Some(class.unwrap_or(likely)));
    }

    /// How likely a token is drawn that fits so well.
    pub(super) fn likely(&self, source: DraftSource, same: usize) -> f64 {
        self.likely[class(same)].unwrap_or(at_first(source)[class(same)])
    }

    /// What was found for a sequence of `len` tokens.
    pub(super) fn note(&mut self, found: Option<Followers>, len: usize) {
        self.last = found.filter(|found| !found.tokens.is_empty()).map(|found| (found, len));
    }

    /// What was found last, and how likely each token of it is drawn if the one before it was.
    pub(super) fn last(&self, source: DraftSource) -> Option<(&[Token], f64)> {
        let (found, _) = self.last.as_ref()?;
        Some((&found.tokens, self.likely(source, found.same)))
    }

    /// Compares what was found last with what was drawn.
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

/// How likely a drafted token is taken to be drawn at first, by class. Rather too low: what is found is compared with what
/// is drawn also where it is not computed, so it rises for nothing, and beside many others a row costs as much as it is
/// worth.
fn at_first(source: DraftSource) -> [f64; CLASSES] {
    match source {
        DraftSource::Lookup => [0.25, 0.5, 0.8],
        DraftSource::Tree => [0.2, 0.4, 0.8],
        // How the text is divided into tokens is left to the model.
        DraftSource::Grammar => [0.8; CLASSES],
        DraftSource::Model => [MODEL_LIKELY; CLASSES],
    }
}

/// How well a place fits, by the tokens before it that are the same: 3 or 4, up to 8, more.
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

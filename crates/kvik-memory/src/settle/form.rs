//! The form of a text: the sentences that all texts of one kind share, and the places between them that change.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use crate::alignment;

/// A settled text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settled {
    /// The text, with references in the places that change.
    pub text: String,
    /// The replaced pieces.
    pub notes: Vec<Note>,
}

/// A piece of a text that stands elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// The number of its place, by which the text refers to it.
    pub place: u32,
    /// The piece, without blanks around it.
    pub text: String,
}

/// One in so many bytes of a text at least stands in sentences that never change: the rest may be read elsewhere.
const WHOLE_SHARE: usize = 4;

/// Sentences that texts share, and the places between them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct TextForm {
    sentences: Vec<String>,
    /// The place before each sentence, and behind the last one, if texts differ there.
    places: Vec<Option<u32>>,
}

/// The difference between a form and another text.
struct Unlike {
    /// Whether the text has others before each sentence of the form, and behind the last one.
    is_added: Vec<bool>,
    /// Whether the text lacks each sentence of the form.
    is_lost: Vec<bool>,
}

/// The sentences of a text; `None` if they are too many to be compared.
pub(super) fn sentences(text: &str) -> Option<Vec<&str>> {
    let sentences = alignment::sentences(text);
    (sentences.len() <= super::SENTENCES_MAX).then_some(sentences)
}

impl TextForm {
    /// The form of a text that was compared with none.
    pub(super) fn of(sentences: &[&str]) -> TextForm {
        let places = vec![None; sentences.len() + 1];
        TextForm { sentences: sentences.iter().map(|&sentence| sentence.to_owned()).collect(), places }
    }

    #[cfg(test)]
    pub(super) fn with(sentences: Vec<String>, places: Vec<Option<u32>>) -> TextForm {
        TextForm { sentences, places }
    }

    /// Whether a form that was read from a file could have been learned, with as many numbered places.
    pub(super) fn is_sound(&self, places: u32) -> bool {
        let mut seen = HashSet::new();
        let is_new = |place: &u32| (1..=places).contains(place) && seen.insert(*place);
        self.places.len() == self.sentences.len() + 1
            && self.sentences.len() <= super::SENTENCES_MAX
            && self.bytes() <= super::TEXT_BYTES_MAX
            && self.places.iter().flatten().all(is_new)
    }

    /// Whether something is known to change.
    pub(super) fn has_places(&self) -> bool {
        self.places.iter().any(Option::is_some)
    }

    /// The form that these sentences have too; `None` if too little is common. Places that become one
    /// keep the lowest number, and `number` gives one to each new place.
    pub(super) fn and_of(&self, other: &[&str], number: &mut dyn FnMut() -> u32) -> Option<TextForm> {
        let unlike = self.unlike(other)?;
        let kept = self.sentences.iter().zip(&unlike.is_lost).filter(|(_, lost)| !**lost);
        let sentences = kept.map(|(sentence, _)| sentence.clone()).collect();
        Some(TextForm { sentences, places: self.places_with(&unlike, number) })
    }

    /// The difference to these sentences; `None` if less than half of either text is common, or less than a quarter of
    /// the longer one in whole sentences. Of a piece that is written otherwise its beginning and its end may be common,
    /// and a piece in a place that is known to change counts for neither text: the description of a tool may be one
    /// sentence about a long path, and little else.
    fn unlike(&self, other: &[&str]) -> Option<Unlike> {
        let (own_bytes, other_bytes) = (self.bytes(), bytes_of(other));
        let longest = own_bytes.max(other_bytes);
        // As there may be many forms, those that cannot be alike are not compared.
        if own_bytes.min(other_bytes) * WHOLE_SHARE < longest {
            return None;
        }
        let mut unlike =
            Unlike { is_added: vec![false; self.places.len()], is_lost: vec![false; self.sentences.len()] };
        let own: Vec<&str> = self.sentences.iter().map(String::as_str).collect();
        let (mut lost_bytes, mut unlike_bytes) = (0, [0, 0]);
        for [lost, added] in alignment::unlike(&[own.clone(), other.to_vec()]) {
            let is_known = self.places[lost.start..=lost.end].iter().any(Option::is_some);
            let pieces = [&own[lost.clone()], &other[added.clone()]];
            let (bytes, ends) = (pieces.map(bytes_of), common_ends(pieces));
            lost_bytes += bytes[0];
            unlike_bytes[0] += bytes[0] - ends;
            unlike_bytes[1] += if is_known { 0 } else { bytes[1] - ends };
            unlike.is_added[lost.start] |= !added.is_empty();
            unlike.is_lost[lost].fill(true);
        }
        let common = own_bytes - unlike_bytes[0];
        let is_alike = common * 2 >= own_bytes.max(common + unlike_bytes[1])
            && (own_bytes - lost_bytes) * WHOLE_SHARE >= longest;
        is_alike.then_some(unlike)
    }

    /// The places between the sentences that stay.
    fn places_with(&self, unlike: &Unlike, number: &mut dyn FnMut() -> u32) -> Vec<Option<u32>> {
        let (mut places, mut place, mut is_new) = (Vec::new(), None, false);
        for (index, known) in self.places.iter().enumerate() {
            place = [place, *known].into_iter().flatten().min();
            is_new |= unlike.is_added[index];
            match unlike.is_lost.get(index) {
                Some(true) => is_new = true,
                _ => {
                    places.push(place.take().or_else(|| is_new.then(&mut *number)));
                    is_new = false;
                }
            }
        }
        places
    }

    /// A text in this form; `None` if it is of another. The piece behind the last sentence stays where `is_last` says that
    /// nothing follows it.
    pub(super) fn settled(&self, text: &str, is_last: bool) -> Option<Settled> {
        let (mut settled, mut rest) =
            (Settled { text: String::with_capacity(text.len()), notes: Vec::new() }, text);
        let runs = self.runs();
        for (index, (place, run)) in runs.iter().enumerate() {
            let is_end = index + 1 == runs.len();
            let piece = match place {
                None => rest.starts_with(run).then_some(0),
                Some(_) if is_end => rest.ends_with(run).then(|| rest.len() - run.len()),
                Some(_) => rest.find(run),
            }?;
            settled.push(&rest[..piece], place.filter(|_| !(is_last && is_end && run.is_empty())));
            settled.text += run;
            rest = &rest[piece + run.len()..];
        }
        (rest.is_empty() && !settled.notes.is_empty()).then_some(settled)
    }

    /// The constant text between the places, with the place before each part of it.
    fn runs(&self) -> Vec<(Option<u32>, String)> {
        let mut runs: Vec<(Option<u32>, String)> = Vec::new();
        for (index, place) in self.places.iter().enumerate() {
            if place.is_some() || runs.is_empty() {
                runs.push((*place, String::new()));
            }
            if let (Some((_, run)), Some(sentence)) = (runs.last_mut(), self.sentences.get(index)) {
                *run += sentence;
            }
        }
        runs
    }

    /// Bytes of what is constant in it.
    pub(super) fn bytes(&self) -> usize {
        self.sentences.iter().map(String::len).sum()
    }
}

fn bytes_of(sentences: &[&str]) -> usize {
    sentences.iter().map(|sentence| sentence.len()).sum()
}

/// Bytes with which both pieces begin, and others with which both end.
fn common_ends(pieces: [&[&str]; 2]) -> usize {
    let [left, right] = pieces.map(|sentences| sentences.concat().into_bytes());
    let before = left.iter().zip(&right).take_while(|(a, b)| a == b).count();
    let behind = left[before..].iter().rev().zip(right[before..].iter().rev());
    before + behind.take_while(|(a, b)| a == b).count()
}

impl Settled {
    /// Appends a piece: as a reference to a note, if it stands in a place that changes.
    fn push(&mut self, piece: &str, place: Option<u32>) {
        match place {
            Some(place) => {
                self.text += &format!("[see note {place}]\n");
                self.notes.push(Note { place, text: piece.trim().to_owned() });
            }
            None => self.text += piece,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn learned(texts: &[&str]) -> TextForm {
        let mut number = 0;
        let (first, others) = texts.split_first().unwrap();
        let first = TextForm::of(&sentences(first).unwrap());
        others.iter().fold(first, |form, text| {
            form.and_of(&sentences(text).unwrap(), &mut || {
                number += 1;
                number
            })
            .unwrap()
        })
    }

    #[test]
    fn references_stand_where_texts_differ() {
        let check = |texts: &[&str], expect: &str, notes: &[(u32, &str)]| {
            let settled = learned(texts).settled(texts.last().unwrap(), false).unwrap();
            let found: Vec<_> = settled.notes.iter().map(|note| (note.place, note.text.as_str())).collect();
            assert_eq!((settled.text.as_str(), found.as_slice()), (expect, notes), "{texts:?}");
        };
        check(&["Aaaa. In a. Bbbb.", "Aaaa. In b. Bbbb."], "Aaaa. [see note 1]\nBbbb.", &[(1, "In b.")]);
        check(&["Aaaa. Bbbb. C.", "Aaaa. Bbbb. D."], "Aaaa. Bbbb. [see note 1]\n", &[(1, "D.")]);
        // A piece that one of them lacks.
        check(&["Aaaa. X. Bbbb.", "Aaaa. Bbbb."], "Aaaa. [see note 1]\nBbbb.", &[(1, "")]);
        check(&["Aaaa. Bbbb.", "Aaaa. X. Bbbb."], "Aaaa. [see note 1]\nBbbb.", &[(1, "X.")]);
        // A second place, and one that grows to the first.
        check(
            &["Aaaa. x. Bbbb. y. Cccc.", "Aaaa. z. Bbbb. y. Cccc.", "Aaaa. z. Bbbb. w. Cccc."],
            "Aaaa. [see note 1]\nBbbb. [see note 2]\nCccc.",
            &[(1, "z."), (2, "w.")],
        );
        check(
            &["Aaaa. x. b. y. Cccc.", "Aaaa. z. b. w. Cccc.", "Aaaa. z. d. w. Cccc."],
            "Aaaa. [see note 1]\nCccc.",
            &[(1, "z. d. w.")],
        );
    }

    #[test]
    fn the_end_of_the_last_text_stays_where_it_is() {
        let texts = ["Aaaa. In a. Bbbb. C.", "Aaaa. In b. Bbbb. D."];
        let settled = learned(&texts).settled(texts[1], true).unwrap();
        assert_eq!(settled.text, "Aaaa. [see note 1]\nBbbb. D.");
        let only_end = ["Aaaa. Bbbb. C.", "Aaaa. Bbbb. D."];
        assert_eq!(learned(&only_end).settled(only_end[1], true), None);
    }

    #[test]
    fn texts_with_less_than_half_in_common_have_no_form() {
        let form = TextForm::of(&sentences("Aaaa. Bbbb. Cccc.").unwrap());
        assert!(form.and_of(&sentences("Aaaa. Xxxx. Yyyy.").unwrap(), &mut || 1).is_none());
        let long = "Aaaa. Bbbb. Cccc. And a list of very many files follows here.";
        assert!(form.and_of(&sentences(long).unwrap(), &mut || 1).is_none());
    }

    #[test]
    fn a_short_text_may_be_mostly_one_sentence_of_which_little_changes() {
        let text = |directory: &str| {
            format!(
                "Runs a command. It runs in the working directory (/home/somebody/projects/{directory}), so there is no \
                 need to change to it. Edit files with other tools."
            )
        };
        let texts = ["shop", "bank", "a-directory-with-a-longer-name"].map(text);
        let form = learned(&texts.each_ref().map(String::as_str));
        let settled = texts.each_ref().map(|text| form.settled(text, false).unwrap());
        assert_eq!(settled[0].text, "Runs a command. [see note 1]\nEdit files with other tools.");
        assert!(settled.iter().all(|other| other.text == settled[0].text));
        assert!(settled[1].notes[0].text.contains("projects/bank)"), "{settled:?}");
        let whole = ["All of it is about the directory /a.", "All of it is about the directory /b."];
        let form = TextForm::of(&sentences(whole[0]).unwrap());
        assert_eq!(form.and_of(&sentences(whole[1]).unwrap(), &mut || 1), None, "nothing would stay");
    }

    proptest! {
        /// Texts of one form differ only in their notes, and lose nothing.
        #[test]
        fn texts_settle_to_one_text_and_lose_nothing(
            texts in prop::collection::vec(prop::collection::vec(0_u8..5, 0..8), 2..6),
        ) {
            // Half of every text is common.
            let text = |middle: &Vec<u8>| {
                let middle: String = middle.iter().map(|word| format!("w{word}. ")).collect();
                format!("{0} {middle}{0}", "This sentence stands in every text, and is long enough.")
            };
            let texts: Vec<String> = texts.iter().map(text).collect();
            let form = learned(&texts.iter().map(String::as_str).collect::<Vec<_>>());
            let settled: Vec<_> = texts.iter().map(|text| form.settled(text, false)).collect();
            for (text, settled) in texts.iter().zip(&settled) {
                let Some(settled) = settled else {
                    prop_assert!(!form.has_places() && texts.iter().all(|other| other == text));
                    continue;
                };
                let first = form.settled(&texts[0], false).unwrap();
                prop_assert_eq!(&settled.text, &first.text);
                let mut whole = settled.text.clone();
                for note in &settled.notes {
                    whole = whole.replacen(&format!("[see note {}]\n", note.place), &format!("{} ", note.text), 1);
                }
                let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
                prop_assert_eq!(words(&whole), words(text));
            }
        }

        #[test]
        fn any_text_has_a_form(text in "\\PC{0,60}", other in "\\PC{0,60}") {
            let form = TextForm::of(&sentences(&text).unwrap());
            prop_assert_eq!(form.settled(&text, false), None);
            if let Some(form) = form.and_of(&sentences(&other).unwrap(), &mut || 1) {
                for text in [&text, &other] {
                    prop_assert_eq!(form.settled(text, false).is_some(), form.has_places());
                }
            }
        }
    }
}

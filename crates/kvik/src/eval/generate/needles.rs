//! Tasks of numbers hidden in a text: a pass key, and several codes of which one is asked.

use super::words::NAMES;
use super::{Filler, scatter};
use crate::eval::draws::Draws;
use crate::eval::score::Expected;
use crate::eval::written::WrittenCase;

const HEAD: &str = "There is important information hidden in this text. Find and remember it.";
/// Number of depths in the text at which the key is inserted.
const DEPTHS: usize = 5;
/// Codes in one text.
const NEEDLES: usize = 6;

/// A pass key, deeper in the text with each case.
pub(super) fn passkey(draws: &mut Draws, filler: &mut Filler<'_, '_>, number: usize) -> WrittenCase {
    let key = draws.number(5).to_string();
    let mut sentences = filler.sentences(draws);
    let depth = number % DEPTHS;
    let place = sentences.len() * depth / (DEPTHS - 1);
    sentences.insert(place, format!("The pass key is {key}. Remember it."));
    let question = "\nWhat is the pass key?";
    let text = format!("{HEAD}\n{}{question}", sentences.join(" "));
    WrittenCase::single(text, question, Expected::Contains(vec![key]), 24)
        .lead("The pass key is".to_owned())
        .group(format!("depth {}%", depth * 100 / (DEPTHS - 1)))
}

/// Codes of several people.
pub(super) fn needles(draws: &mut Draws, filler: &mut Filler<'_, '_>, _: usize) -> WrittenCase {
    let sentences = filler.sentences(draws);
    let (codes, owners) = (draws.numbers(5, NEEDLES), draws.sample(&NAMES, NEEDLES));
    let asked = draws.below(NEEDLES);
    let needles =
        owners.iter().zip(&codes).map(|(owner, code)| format!("The access code of {owner} is {code}."));
    let needles = needles.collect();
    let (owner, code) = (owners[asked], codes[asked].clone());
    let question = format!("\nWhat is the access code of {owner}?");
    let text = format!("{HEAD}\n{}{question}", scatter(draws, sentences, needles).join(" "));
    WrittenCase::single(text, &question, Expected::Contains(vec![code]), 24)
        .lead(format!("The access code of {owner} is"))
}

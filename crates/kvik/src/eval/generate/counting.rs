//! Tasks: counting events in a text, and copying a list that occurs in it.

use super::words::{ANIMALS, NAMES, NUMBERS, OBJECTS, PLACES};
use super::{Filler, scatter};
use crate::eval::draws::Draws;
use crate::eval::score::Expected;
use crate::eval::written::WrittenCase;

/// Maximum count.
const COUNT_MAX: usize = 9;
/// Words of a list.
const LIST: usize = 10;

/// Asks how many medals a person won, among others who won some.
pub(super) fn counting(draws: &mut Draws, filler: &mut Filler<'_, '_>, _: usize) -> WrittenCase {
    let sentences = filler.sentences(draws);
    let people = draws.sample(&NAMES, 3);
    let count = 1 + draws.below(COUNT_MAX);
    let found = |draws: &mut Draws, who: &str| format!("{who} won a medal at the {}.", draws.pick(&PLACES));
    let mut events: Vec<String> = (0..count).map(|_| found(draws, people[0])).collect();
    events.extend((0..1 + draws.below(4)).map(|other| found(draws, people[1 + other % 2])));
    draws.shuffle(&mut events);
    let question = format!("\nHow many medals did {} win? Answer with a number.", people[0]);
    let text = format!("Read this text.\n{}{question}", scatter(draws, sentences, events).join(" "));
    let expected = Expected::OneOf(vec![count.to_string(), NUMBERS[count].to_owned()]);
    WrittenCase::single(text, &question, expected, 24).lead("The number of medals is".to_owned())
}

/// A list of words, followed by a text.
pub(super) fn copying(draws: &mut Draws, filler: &mut Filler<'_, '_>, _: usize) -> WrittenCase {
    let sentences = filler.sentences(draws);
    let pool: Vec<&str> = OBJECTS.iter().chain(&ANIMALS).copied().collect();
    let words: Vec<&str> = draws.sample(&pool, LIST).into_iter().copied().collect();
    let list = words.join(", ");
    let question = "\nRepeat the list of this text.";
    let text = format!("The list: {list}.\n{}{question}", sentences.join(" "));
    // The expected answer is the whole list in order, since its words may also occur in the text.
    WrittenCase::single(text, question, Expected::Contains(vec![list]), 80).lead("The list:".to_owned())
}

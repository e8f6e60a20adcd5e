//! Sentences of what a summary stands for, where the model gives none that can be used.
//!
//! ```text
//! earlier summary | first quarter | even parts of the middle | last quarter      sentences
//!   at most 1/2   |      1/4      |    1/8 each, four        |     1/4           tokens, of what is left
//! ```
//!
//! Within its part, a sentence is preferred by the weights that quotes have: of rare words, twice for facts and for words
//! of the latest question.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;

use serde_json::Value;

use super::facts::Facts;
use super::sentences::{key, sentences};
use super::{Replaced, is_spoken};
use crate::context::chain::text_of;
use crate::context::quotes::weight;

/// Parts of the middle, of an eighth of the tokens each.
const MIDDLE_PARTS: usize = 4;
/// Factor of a word that is a fact, and of one that was asked for.
const FACT: f32 = 2.0;
const ASKED: f32 = 2.0;

/// Parameters of [`extract`] and [`complete`](super::complete()) besides the text.
#[derive(Clone, Copy)]
pub struct Extraction<'a> {
    /// The latest question, which is not in the extracted messages.
    pub question: &'a str,
    /// Tokens that the sentences may have together.
    pub tokens_max: usize,
    /// Tokens of a text.
    pub measure: &'a dyn Fn(&str) -> usize,
    /// Prefix of a message, which names its speaker.
    pub speaker: &'a dyn Fn(&Value) -> String,
}

/// The sentences that stand for messages and their earlier summary, in order, each on a line behind its speaker; empty
/// if nothing was said or fits.
pub fn extract(replaced: &Replaced<'_>, how: &Extraction<'_>) -> String {
    let (mut lines, earlier) = lines(replaced, how);
    score(&mut lines, how.question);
    let mut chosen = BTreeSet::new();
    let earlier_max = if earlier > 0 { how.tokens_max / 2 } else { 0 };
    let room = how.tokens_max - choose(&lines, 0..earlier, earlier_max, &mut chosen);
    let parts = parts(earlier..lines.len());
    let spent: usize =
        parts.into_iter().map(|(part, eighths)| choose(&lines, part, room * eighths / 8, &mut chosen)).sum();
    choose(&lines, 0..lines.len(), room - spent, &mut chosen);
    fitting(&lines, chosen, how)
}

/// A sentence behind its speaker.
pub(super) struct Line {
    text: String,
    /// Bytes of the speaker.
    speaker: usize,
    pub(super) tokens: usize,
    pub(super) score: f32,
}

impl Line {
    pub(super) fn new(text: String, speaker: usize, how: &Extraction<'_>) -> Line {
        // The line break is a token at most.
        let tokens = (how.measure)(&text) + 1;
        Line { text, speaker, tokens, score: 0.0 }
    }

    fn sentence(&self) -> &str {
        &self.text[self.speaker..]
    }
}

/// The sentences, each where it is said last, and how many of them are the earlier summary's.
fn lines(replaced: &Replaced<'_>, how: &Extraction<'_>) -> (Vec<Line>, usize) {
    let mut said: Vec<(String, String, usize)> = Vec::new();
    let mut add = |text: &str, speaker: &str| {
        let line = |sentence| (key(sentence), format!("{speaker}{sentence}"), speaker.len());
        said.extend(sentences(text).map(line));
        said.len()
    };
    let of_summary = add(replaced.summary, "");
    for message in replaced.messages.iter().filter(|message| is_spoken(message)) {
        add(&text_of(message), &(how.speaker)(message));
    }
    let last: HashMap<String, usize> = said.iter().map(|(key, ..)| key.clone()).zip(0..).collect();
    let (mut lines, mut earlier) = (Vec::new(), 0);
    for (at, (key, text, speaker)) in said.into_iter().enumerate() {
        if last[&key] == at {
            earlier += usize::from(at < of_summary);
            lines.push(Line::new(text, speaker, how));
        }
    }
    (lines, earlier)
}

/// Scores each sentence by its words: those that few sentences have, facts, and those of the question. A sentence
/// without such words has 0.
pub(super) fn score(lines: &mut [Line], question: &str) {
    let asked = Facts::of(question).words;
    let said: Vec<Facts> = lines.iter().map(|line| Facts::of(line.sentence())).collect();
    let facts: HashSet<&String> = said.iter().flat_map(|line| &line.facts).collect();
    let mut lines_with: HashMap<&String, usize> = HashMap::new();
    said.iter().flat_map(|line| &line.words).for_each(|word| *lines_with.entry(word).or_default() += 1);
    let value = |word: &String| {
        let fact = if facts.contains(word) { FACT } else { 1.0 };
        let asked = if asked.contains(word) { ASKED } else { 1.0 };
        weight(lines_with[word], said.len()) * fact * asked
    };
    for (line, Facts { words, .. }) in lines.iter_mut().zip(&said) {
        // A long sentence is not better for its length.
        line.score = words.iter().map(value).sum::<f32>() / (words.len().max(1) as f32).sqrt();
    }
}

/// The first quarter of sentences, even parts of the middle, and the last quarter, each with its share of the tokens in
/// eighths.
fn parts(all: Range<usize>) -> Vec<(Range<usize>, usize)> {
    let quarter = all.len() / 4;
    let middle = all.start + quarter..all.end - quarter;
    let bound = |part: usize| middle.start + middle.len() * part / MIDDLE_PARTS;
    let middles = (0..MIDDLE_PARTS).map(|part| (bound(part)..bound(part + 1), 1));
    let head = (all.start..middle.start, 2);
    [head].into_iter().chain(middles).chain([(middle.end..all.end, 2)]).collect()
}

/// Chooses the best sentences of a part that fit so many tokens, and returns the tokens that they have.
fn choose(lines: &[Line], part: Range<usize>, tokens_max: usize, chosen: &mut BTreeSet<usize>) -> usize {
    let open = part.filter(|at| lines[*at].score > 0.0 && !chosen.contains(at)).collect();
    let best = best(lines, open, tokens_max, |_| true);
    let spent = best.iter().map(|&at| lines[at].tokens).sum();
    chosen.extend(best);
    spent
}

/// The best of the lines with these indices that fit so many tokens, in the order of their scores. `is_of_use` is asked
/// of each that fits beside those before it.
pub(super) fn best(
    lines: &[Line],
    mut indices: Vec<usize>,
    mut tokens_max: usize,
    mut is_of_use: impl FnMut(usize) -> bool,
) -> Vec<usize> {
    indices.sort_by(|&left, &right| lines[right].score.total_cmp(&lines[left].score));
    indices.retain(|&at| {
        let is_chosen = lines[at].tokens <= tokens_max && is_of_use(at);
        tokens_max -= if is_chosen { lines[at].tokens } else { 0 };
        is_chosen
    });
    indices
}

/// The chosen lines as one text, without the worst of them if they are longer together than one by one.
pub(super) fn fitting(lines: &[Line], mut chosen: BTreeSet<usize>, how: &Extraction<'_>) -> String {
    loop {
        let texts: Vec<&str> = chosen.iter().map(|&at| &lines[at].text[..]).collect();
        let text = texts.join("\n");
        let worst = chosen.iter().min_by(|&&left, &&right| lines[left].score.total_cmp(&lines[right].score));
        match worst {
            Some(&worst) if (how.measure)(&text) > how.tokens_max => chosen.remove(&worst),
            _ => return text,
        };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn words(text: &str) -> usize {
        text.split_whitespace().count()
    }

    fn extracted(summary: &str, said: &[(&str, String)], question: &str, tokens_max: usize) -> String {
        let messages: Vec<Value> =
            said.iter().map(|(role, text)| json!({"role": role, "content": text})).collect();
        let speaker = |message: &Value| (if message["role"] == "user" { "U: " } else { "A: " }).to_owned();
        let how = Extraction { question, tokens_max, measure: &words, speaker: &speaker };
        extract(&Replaced { summary, messages: &messages }, &how)
    }

    /// Small talk with facts in it.
    fn talk(facts: &[(usize, &str)]) -> Vec<(&'static str, String)> {
        let said = |turn: usize| {
            let fact = facts.iter().find(|(at, _)| *at == turn);
            let text = fact
                .map_or_else(|| format!("The bus number {turn} was late again."), |fact| fact.1.to_owned());
            [("user", text), ("assistant", "I see.".to_owned())]
        };
        (0..40).flat_map(said).collect()
    }

    #[test]
    fn facts_are_preferred_wherever_they_stand() {
        let facts = [
            (1, "My dog is called Bolt."),
            (14, "I live in Oslo."),
            (22, "The password is \"swordfish\"."),
            (38, "我的柜子号码是4711。"),
        ];
        let text = extracted("", &talk(&facts), "", 64);
        for (_, fact) in facts {
            assert!(text.contains(&format!("U: {fact}")), "{fact} in {text}");
        }
        assert!(!text.contains("I see"), "{text}");
    }

    #[test]
    fn the_earlier_summary_has_its_half_and_what_is_asked_for_its_weight() {
        let earlier = "Facts: cat = Luna; home = Oslo; car = blue Volvo; bike = old; boat = Seagull";
        let facts = [(20, "My dog eats cheese."), (21, "My aunt likes operas.")];
        let text = extracted(earlier, &talk(&facts), "What does my aunt like?", 24);
        assert!(text.starts_with("Facts: cat = Luna;"), "{text}");
        assert!(text.contains("operas") && !text.contains("cheese"), "{text}");
    }

    #[test]
    fn a_sentence_that_is_said_again_takes_its_later_place() {
        let names = ["Bolt", "Rex", "Bolt"].map(|name| ("user", format!("My dog is called {name}.")));
        assert_eq!(extracted("", &names, "", 64), "U: My dog is called Rex.\nU: My dog is called Bolt.");
    }

    #[test]
    fn of_nothing_nothing_is_extracted() {
        let said = |text: &str| [("user", text.to_owned()), ("tool", "The code is 4711.".to_owned())];
        for text in ["", "Hi!", "I see."] {
            assert_eq!(extracted("", &said(text), "", 64), "");
        }
        assert_eq!(extracted("", &said("My dog is called Bolt."), "", 3), "", "nothing fits");
    }

    #[test]
    fn parts_hold_each_sentence_once() {
        for count in 0..40 {
            let parts = parts(3..3 + count);
            assert_eq!(parts.iter().map(|(_, eighths)| eighths).sum::<usize>(), 8);
            let all: Vec<usize> = parts.into_iter().flat_map(|(part, _)| part).collect();
            assert_eq!(all, (3..3 + count).collect::<Vec<_>>());
        }
    }

    proptest! {
        #[test]
        fn what_is_extracted_stands_there_in_this_order_and_fits(
            summary in "(\\PC|[A-Za-z0-9 .;\"\n]){0,40}",
            said in prop::collection::vec("(\\PC|[A-Za-z0-9 .;\"\n]){0,60}", 0..6),
            question in "[a-z ]{0,12}",
            tokens_max in 0usize..40,
        ) {
            let said: Vec<(&str, String)> = said.into_iter().map(|text| ("user", text)).collect();
            let text = extracted(&summary, &said, &question, tokens_max);
            prop_assert!(words(&text) <= tokens_max);
            let all: Vec<&str> = [&summary[..]].into_iter().chain(said.iter().map(|(_, text)| &text[..])).collect();
            let mut rest = &all.join("\n")[..];
            for line in text.lines() {
                let sentence = line.strip_prefix("U: ").filter(|_| !rest.contains(line)).unwrap_or(line);
                let at = rest.find(sentence);
                prop_assert!(at.is_some(), "{line:?} of {all:?}");
                rest = &rest[at.unwrap_or(0) + sentence.len()..];
            }
        }
    }
}

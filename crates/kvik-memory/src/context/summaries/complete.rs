//! What the user told and a summary of the model lacks, in the user's words.
//!
//! Small models summarise what was talked about, and drop names and numbers. These cost a line each, and nothing else in
//! a conversation has them.

use std::collections::BTreeSet;

use serde_json::Value;

use super::Replaced;
use super::extract::{Extraction, Line, best, fitting, score};
use super::facts::Facts;
use super::sentences::{is_question, key, once, sentences, whole};
use crate::context::chain::text_of;

/// Bytes of a message that somebody says; longer ones are mostly pasted.
const SAID_BYTES_MAX: usize = 600;
/// Lines that are compared with each other at most: the last ones, of which far fewer have room.
const LINES_MAX: usize = 512;
/// Words with which somebody speaks of themselves.
const OWN_WORDS: &str = "i i'm i've my mine we we're our ich mein meine meinen meinem meiner wir unser unsere je j'ai mon ma \
    mes nous yo mi mis tengo soy eu meu minha tenho io mio mia sono ho ik mijn";
/// The same in scripts without spaces.
const OWN_SIGNS: [&str; 3] = ["我", "私", "僕"];

/// The text of a summary, each of its sentences once, with a line for each thing that it lacks of what the user told and
/// the earlier summary had: at most three quarters of `tokens_max`. The text is cut at the end of a sentence where there is
/// no room for both.
pub fn complete(text: &str, replaced: &Replaced<'_>, how: &Extraction<'_>) -> String {
    let text = &once(text)[..];
    let told = told(&Facts::of(text), replaced, how);
    let tokens_max = how.tokens_max * 3 / 4;
    let added = {
        let (lines, lacking) = told.into_iter().unzip::<_, _, Vec<_>, Vec<_>>();
        let chosen = chosen(&lines, &lacking, tokens_max);
        fitting(&lines, chosen, &Extraction { tokens_max, ..*how })
    };
    if added.is_empty() {
        return text.to_owned();
    }
    // The line break is a token at most.
    let room = how.tokens_max.saturating_sub((how.measure)(&added) + 1);
    let completed = [beginning(text, room, how.measure), &added].join("\n").trim_start().to_owned();
    if (how.measure)(&completed) > how.tokens_max { text.to_owned() } else { completed }
}

/// A sentence that tells something of which a summary has nothing.
struct Told {
    line: Line,
    /// Its words, by which it is recognised when it is said again.
    key: String,
    facts: Facts,
    /// What the summary lacks of it.
    lacking: BTreeSet<String>,
}

/// The lines that tell something of which these words have nothing, in order, with what that is. A line is left out if a
/// later one says the same, or the same otherwise.
fn told(own: &Facts, replaced: &Replaced<'_>, how: &Extraction<'_>) -> Vec<(Line, BTreeSet<String>)> {
    let mut found: Vec<Told> = Vec::new();
    let mut add = |text: &str, speaker: &str| {
        for sentence in sentences(text) {
            let (key, facts) = (key(sentence), Facts::of(sentence));
            let lacking = lacking(sentence, &facts, own);
            found.retain(|earlier| earlier.key != key && !is_told_anew(earlier, sentence, &facts));
            if lacking.is_empty() {
                continue;
            }
            if found.len() == LINES_MAX {
                found.remove(0);
            }
            let line = Line::new(format!("{speaker}{sentence}"), speaker.len(), how);
            found.push(Told { line, key, facts, lacking });
        }
    };
    add(replaced.summary, "");
    let said = |message: &&Value| message["role"] == "user";
    for message in replaced.messages.iter().filter(said) {
        let text = text_of(message);
        if text.len() <= SAID_BYTES_MAX {
            add(&text, &(how.speaker)(message));
        }
    }
    let (mut lines, lacking): (Vec<Line>, Vec<_>) =
        found.into_iter().map(|told| (told.line, told.lacking)).unzip();
    score(&mut lines, how.question);
    lines.into_iter().zip(lacking).collect()
}

/// What a sentence tells and these words lack: its facts; if it has none and somebody speaks of themselves, half of its
/// words or more. Nothing of a question.
fn lacking(sentence: &str, said: &Facts, own: &Facts) -> BTreeSet<String> {
    if is_question(sentence) {
        return BTreeSet::new();
    }
    if said.told().next().is_some() {
        return said.told().filter(|fact| !own.has(fact)).cloned().collect();
    }
    let lacking: BTreeSet<String> = said.words.iter().filter(|word| !own.has(word)).cloned().collect();
    let is_told = lacking.len() * 2 < said.words.len();
    if is_told || !is_own(sentence) { BTreeSet::new() } else { lacking }
}

fn is_own(sentence: &str) -> bool {
    let is_word = |word: &str| OWN_WORDS.split_whitespace().any(|own| own == word);
    OWN_SIGNS.iter().any(|sign| sentence.contains(sign))
        || sentence
            .to_lowercase()
            .replace('’', "'")
            .split(|c: char| !c.is_alphabetic() && c != '\'')
            .any(is_word)
}

/// True if a sentence says with other facts what an earlier one said. A question does not, and neither does a sentence
/// without a fact that the earlier one lacks: both speak of what was told.
fn is_told_anew(earlier: &Told, sentence: &str, said: &Facts) -> bool {
    let tells = !is_question(sentence) && said.told().any(|fact| !earlier.facts.has(fact));
    let mut about = earlier.facts.words.difference(&earlier.lacking).peekable();
    tells
        && about.peek().is_some()
        && about.all(|word| said.has(word))
        && !earlier.lacking.iter().any(|word| said.has(word))
}

/// The best lines that fit so many tokens, each with something that no better one has.
fn chosen(lines: &[Line], lacking: &[BTreeSet<String>], tokens_max: usize) -> BTreeSet<usize> {
    let mut told = BTreeSet::new();
    let tells_more = |at: usize| {
        let before = told.len();
        told.extend(&lacking[at]);
        told.len() > before
    };
    best(lines, (0..lines.len()).collect(), tokens_max, tells_more).into_iter().collect()
}

/// The whole sentences at the beginning of a text that have so many tokens.
fn beginning<'a>(text: &'a str, tokens_max: usize, measure: &dyn Fn(&str) -> usize) -> &'a str {
    let mut kept = text.trim();
    while measure(kept) > tokens_max {
        let mut shorter = kept.chars();
        shorter.next_back();
        kept = whole(shorter.as_str());
    }
    kept
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn words(text: &str) -> usize {
        text.split_whitespace().count()
    }

    fn completed(text: &str, summary: &str, said: &[&str], tokens_max: usize) -> String {
        let messages: Vec<Value> = said
            .iter()
            .flat_map(|said| {
                [json!({"role": "user", "content": said}), json!({"role": "assistant", "content": "Paris!"})]
            })
            .collect();
        let speaker = |message: &Value| (if message["role"] == "user" { "U: " } else { "A: " }).to_owned();
        let how = Extraction { question: "", tokens_max, measure: &words, speaker: &speaker };
        complete(text, &Replaced { summary, messages: &messages }, &how)
    }

    #[test]
    fn what_the_user_told_and_the_summary_lacks_is_added() {
        let check = |text: &str, said: &[&str], expect: &str| {
            assert_eq!(completed(text, "", said, 40), expect, "{said:?}");
        };
        check("A dog, Bolt.", &["My dog is called Bolt."], "A dog, Bolt.");
        check(
            "They spoke of dogs.",
            &["My dog is called Bolt."],
            "They spoke of dogs.\nU: My dog is called Bolt.",
        );
        check("A lock.", &["The code is 4711. Thanks."], "A lock.\nU: The code is 4711.");
        check("Work.", &["I work as a carpenter.", "Bread rises."], "Work.\nU: I work as a carpenter.");
        check("闲聊。", &["我的狗叫闪电。"], "闲聊。\nU: 我的狗叫闪电。");
        check("用户的狗叫豆豆。", &["我的狗叫可可。"], "用户的狗叫豆豆。\nU: 我的狗叫可可。");
        check("雑談。", &["私の犬はさくらといいます。"], "雑談。\nU: 私の犬はさくらといいます。");
        check("雑談。", &["犬の名前は「さくら」です。"], "雑談。\nU: 犬の名前は「さくら」です。");
        check("犬の名前はさくら。", &["犬の名前は「さくら」です。"], "犬の名前はさくら。");
        check("Late buses.", &["The bus number 17 was late."], "Late buses.");
        // A question tells nothing, and neither does what is pasted or what the model says.
        check("Travel.", &["Where is Oslo?", &"The log says ERROR 17. ".repeat(40)], "Travel.");
    }

    #[test]
    fn what_is_told_anew_replaces_what_was_told() {
        let said = ["My dog is called Bolt.", "My dog is called Rex now."];
        assert_eq!(completed("Dogs.", "", &said, 40), "Dogs.\nU: My dog is called Rex now.");
        assert_eq!(completed("A dog, Rex.", "U: My dog is called Bolt.", &said[1..], 40), "A dog, Rex.");
    }

    #[test]
    fn what_is_asked_or_spoken_of_again_stays() {
        let check = |summary: &str, said: &[&str], lines: &[&str]| {
            let expect = [&["Talk."][..], lines].concat().join("\n");
            assert_eq!(completed("Talk.", summary, said, 40), expect, "{summary}: {said:?}");
        };
        let bolt = "U: My dog is called Bolt.";
        let asked = ["My dog is called Bolt.", "What is my dog called?"];
        check("", &asked, &[bolt]);
        check(bolt, &asked[1..], &[bolt]);
        let forgot = ["My locker code is 4711.", "I forgot my locker code again."];
        let lines = ["U: My locker code is 4711.", "U: I forgot my locker code again."];
        check("", &forgot, &lines);
        check(lines[0], &forgot[1..], &lines);
    }

    #[test]
    fn a_sentence_that_is_said_again_takes_its_later_place() {
        let said = ["My dog is called Bolt.", "My dog is called Rex.", "My dog is called Bolt."];
        assert_eq!(completed("Talk.", "", &said, 40), "Talk.\nU: My dog is called Bolt.");
        let after = completed("Talk.", "U: My dog is called Bolt.", &said[1..], 40);
        assert_eq!(after, "Talk.\nU: My dog is called Bolt.");
        let said = ["My cat is Luna.", "I live in Oslo.", "My cat is Luna."];
        assert_eq!(completed("Talk.", "", &said, 40), "Talk.\nU: I live in Oslo.\nU: My cat is Luna.");
    }

    #[test]
    fn a_question_of_any_script_tells_nothing() {
        for said in ["متى وصل القطار رقم ٤٧١١؟", "Πού είναι το 4711\u{37E}", "የት ነው 4711፧"]
        {
            assert_eq!(completed("Talk.", "", &[said], 40), "Talk.", "{said}");
        }
        assert_eq!(completed("Talk.", "", &["رقمي ٤٧١١."], 40), "Talk.\nU: رقمي ٤٧١١.");
        assert_eq!(completed("Talk.", "", &["عمري ١٧."], 40), "Talk.", "a short number");
    }

    #[test]
    fn the_earlier_summary_stays_in_the_next_one() {
        let next =
            completed("The bus was late.", "They spoke.\nU: I live in Oslo.", &["The bus is late."], 40);
        assert_eq!(next, "The bus was late.\nU: I live in Oslo.");
    }

    #[test]
    fn facts_have_room_before_prose() {
        let text = "One sentence of five words. Another one that is longer than that.";
        let said = ["My code is 4711.", "My cat is Luna."];
        assert_eq!(
            completed(text, "", &said, 20),
            "One sentence of five words.\nU: My code is 4711.\nU: My cat is Luna."
        );
        assert_eq!(completed(text, "", &said, 8), "U: My code is 4711.");
    }

    proptest! {
        #[test]
        fn a_completed_summary_fits(
            text in "([A-Za-z]{1,6}[ .]){0,12}",
            summary in "([A-Za-z0-9]{1,6}[ .]){0,12}",
            said in prop::collection::vec("(I|my|The|[A-Z][a-z]{1,5}|[0-9]{1,4}|[ .?\n]){0,12}", 0..6),
            tokens_max in 1_usize..40,
        ) {
            prop_assume!(words(&text) <= tokens_max);
            let said: Vec<&str> = said.iter().map(String::as_str).collect();
            prop_assert!(words(&completed(&text, &summary, &said, tokens_max)) <= tokens_max);
        }
    }
}

//! Sentences of a text.

use std::collections::HashSet;

use unicode_segmentation::UnicodeSegmentation;

use crate::context::quotes::words::words;
use crate::marks::{QUESTION_MARKS, ends_sentence};

/// Marks of the items of a list.
const BULLETS: [char; 5] = ['-', '*', '•', '·', '–'];
/// Digits of a number that is no mark of an item.
pub(super) const NUMBER_DIGITS: usize = 3;
/// Marks between clauses: the semicolon of Latin, of Chinese and of Arabic.
const CLAUSE_MARKS: [char; 3] = [';', '；', '؛'];
/// The Armenian mark, which stands in the word that is asked.
const ARMENIAN_QUESTION: char = '՞';

/// The sentences of a text, in order: parts of its lines, up to the end of a sentence (UAX 29) or of a clause, without
/// the marks of lists. A part without letters is none, unless it is a longer number.
pub(super) fn sentences(text: &str) -> impl Iterator<Item = &str> {
    // The question mark of Greek is no end of a sentence in UAX 29.
    let ends_clause = |c: char| CLAUSE_MARKS.contains(&c) || c == '\u{37E}';
    let clauses = text.lines().flat_map(move |line| line.split_inclusive(ends_clause));
    let sentences = clauses.flat_map(|clause| clause.split_sentence_bounds());
    sentences.map(without_mark).filter(|sentence| {
        let digits = sentence.chars().filter(|c| c.is_numeric()).count();
        digits >= NUMBER_DIGITS || sentence.contains(char::is_alphabetic)
    })
}

/// A sentence without the mark of the list that it is an item of.
fn without_mark(sentence: &str) -> &str {
    let sentence = sentence.trim().trim_start_matches(BULLETS).trim_start();
    let rest = sentence.trim_start_matches(char::is_numeric);
    match rest.strip_prefix(['.', ')']) {
        Some(item) if rest.len() < sentence.len() && item.starts_with(char::is_whitespace) => {
            item.trim_start()
        }
        _ => sentence,
    }
}

/// True if a sentence is a question, as far as marks tell.
pub(super) fn is_question(sentence: &str) -> bool {
    sentence.trim_end().ends_with(QUESTION_MARKS) || sentence.contains(ARMENIAN_QUESTION)
}

/// The words of a sentence: equal for sentences that differ in case and punctuation.
pub(super) fn key(sentence: &str) -> String {
    let mut key = String::new();
    words(sentence, &mut |word| {
        key.push_str(if key.is_empty() { "" } else { " " });
        key.push_str(word);
    });
    key
}

/// A text with each of its sentences once, where it stands first.
pub(super) fn once(text: &str) -> String {
    let mut seen = HashSet::new();
    let mut is_new = |sentence: &&str| {
        let key = key(sentence);
        key.is_empty() || seen.insert(key)
    };
    let mut kept: Vec<String> = Vec::new();
    for line in text.lines() {
        let new: String = line.split_sentence_bounds().filter(&mut is_new).collect();
        // Of a line that was repeated as a whole, its mark is left at most.
        if new.contains(char::is_alphanumeric) || !line.contains(char::is_alphanumeric) {
            kept.push(new.trim_end().to_owned());
        }
    }
    kept.join("\n")
}

/// The beginning of a text that was cut off, up to the end of its last whole sentence, clause or line; empty if there
/// is none.
pub(super) fn whole(text: &str) -> &str {
    let ends_at = |&(at, c): &(usize, char)| match c {
        // A point may be in a number or a name.
        '.' | '!' | '?' => !text[at + 1..].starts_with(|next: char| !next.is_whitespace()),
        '\n' => true,
        _ => CLAUSE_MARKS.contains(&c) || ends_sentence(c),
    };
    let end = text.char_indices().rev().find(ends_at);
    end.map_or("", |(at, c)| text[..at + c.len_utf8()].trim_end_matches(CLAUSE_MARKS).trim())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sentences_have_no_marks_of_lists() {
        let found = |text: &str| sentences(text).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(
            found("My dog is Bolt. He is 3.5 years old!"),
            ["My dog is Bolt.", "He is 3.5 years old!"]
        );
        assert_eq!(found("1. Bolt\n2) Anna's code: 4711\n- Köln"), ["Bolt", "Anna's code: 4711", "Köln"]);
        assert_eq!(found("Facts: dog = Bolt; home = Oslo"), ["Facts: dog = Bolt;", "home = Oslo"]);
        assert_eq!(found("我的狗叫闪电。我住在北京。"), ["我的狗叫闪电。", "我住在北京。"]);
        assert_eq!((found("\n - \n1. \n?!"), found("4711")), (vec![], vec!["4711".to_owned()]));
        assert_eq!(found("١. ٤٧١١\n١٧"), ["٤٧١١"]);
        assert_eq!(found("أين بولت؟ هو هنا."), ["أين بولت؟", "هو هنا."]);
        assert_eq!(found("Πού είναι\u{37E} Εδώ."), ["Πού είναι\u{37E}", "Εδώ."]);
        assert_eq!(found("मेरा कुत्ता बोल्ट है। वह यहाँ है।"), ["मेरा कुत्ता बोल्ट है।", "वह यहाँ है।"]);
    }

    #[test]
    fn questions_are_known_by_the_marks_of_many_scripts() {
        for text in ["Where? ", "在哪里？", "أين بولت؟", "Πού είναι\u{37E}", "የት ነው፧", "Որտե՞ղ է"]
        {
            assert!(is_question(text), "{text}");
        }
        for text in ["Here.", "The page a?b=c is new.", "هو هنا.", "Εδώ;"] {
            assert!(!is_question(text), "{text}");
        }
    }

    #[test]
    fn a_sentence_that_is_repeated_stands_once() {
        let text =
            "My dog is Bolt. I like tea. My dog is Bolt!\n- My dog is BOLT.\n\n- Tea: 4711\n- Tea: 4711";
        assert_eq!(once(text), "My dog is Bolt. I like tea.\n\n- Tea: 4711");
        assert_eq!(once("Yes. Yes."), "Yes.");
        assert_eq!(once("  a\nb "), "  a\nb");
    }

    #[test]
    fn what_was_cut_off_ends_with_its_last_whole_sentence() {
        for (text, expect) in [
            ("The dog is Bolt. The home is Os", "The dog is Bolt."),
            ("Facts: dog = Bolt; home = Os", "Facts: dog = Bolt"),
            ("- Bolt, the dog\n- Osl", "- Bolt, the dog"),
            ("狗叫闪电。住在北", "狗叫闪电。"),
            ("कुत्ता बोल्ट है। घर ओस", "कुत्ता बोल्ट है।"),
            ("کتا بولٹ ہے۔ گھر اوس", "کتا بولٹ ہے۔"),
            ("كلب؛ بيت أو", "كلب"),
            ("The price is 3.14", ""),
            ("All of it.", "All of it."),
        ] {
            assert_eq!(whole(text), expect);
        }
    }

    proptest! {
        #[test]
        fn sentences_are_parts_of_their_text_in_order(text in "(\\PC|[a-z0-9.;\n -]){0,60}") {
            let mut rest = &text[..];
            for sentence in sentences(&text) {
                let at = rest.find(sentence);
                prop_assert!(at.is_some(), "{sentence:?} of {text:?}");
                rest = &rest[at.unwrap_or(0) + sentence.len()..];
            }
            prop_assert!(text.contains(whole(&text)));
        }
    }
}

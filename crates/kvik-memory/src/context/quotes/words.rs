//! Splits text into search terms.
//!
//! Terms are the words of Unicode (UAX 29), lower-case, singular, and normalised to one form (NFKC) for what looks the
//! same: full and half width, composed and decomposed. Scripts without spaces between words are indexed by pairs of
//! adjacent characters instead, which needs no dictionary.

use std::borrow::Cow;

use unicode_normalization_alignments::UnicodeNormalization;
use unicode_segmentation::UnicodeSegmentation;

/// Calls `each` with every term of a text, in order.
pub(in crate::context) fn words(text: &str, each: &mut impl FnMut(&str)) {
    if text.is_ascii() {
        text.to_ascii_lowercase().unicode_words().for_each(|word| each(&singular(word)));
    } else {
        // Lower case after normalisation: some characters have a lower case only in their composed form.
        any_words(&text.nfkc().map(|(c, _)| c).collect::<String>().to_lowercase(), each);
    }
}

/// Terms of a text that may contain scripts without spaces.
fn any_words(text: &str, each: &mut impl FnMut(&str)) {
    let mut run = String::new();
    for segment in text.split_word_bounds() {
        if segment.starts_with(is_unspaced) {
            run.push_str(segment);
            continue;
        }
        pairs(&run, each);
        run.clear();
        if segment.contains(char::is_alphanumeric) {
            each(&singular(segment));
        }
    }
    pairs(&run, each);
}

/// True for scripts without spaces, and for Hangul, whose particles are attached to their words.
pub(in crate::context) fn is_unspaced(c: char) -> bool {
    matches!(c,
        '\u{0E00}'..='\u{0EFF}'       // Thai, Lao
        | '\u{1000}'..='\u{109F}'     // Myanmar
        | '\u{1780}'..='\u{17FF}'     // Khmer
        | '\u{3005}'..='\u{3007}'     // iteration mark, zero
        | '\u{3040}'..='\u{30FA}'     // Hiragana, Katakana
        | '\u{30FC}'..='\u{30FF}'     // the mark of long vowels
        | '\u{3400}'..='\u{4DBF}'     // Han, extension A
        | '\u{4E00}'..='\u{9FFF}'     // Han
        | '\u{AC00}'..='\u{D7A3}'     // Hangul
        | '\u{F900}'..='\u{FAFF}'     // Han, compatibility
        | '\u{20000}'..='\u{3FFFF}') // Han, further extensions
}

/// Overlapping pairs of characters; a single character is a term of its own.
fn pairs(run: &str, each: &mut impl FnMut(&str)) {
    let ends: Vec<usize> = run.char_indices().map(|(byte, c)| byte + c.len_utf8()).collect();
    match ends.len() {
        0 => {}
        1 => each(run),
        _ => (1..ends.len()).for_each(|i| each(&run[if i < 2 { 0 } else { ends[i - 2] }..ends[i]])),
    }
}

/// Removes possessive or plural by the three rules of Harman's S stemmer (1991): wrong for some words, but consistent
/// between question and answer.
fn singular(word: &str) -> Cow<'_, str> {
    let word = word.strip_suffix("'s").or_else(|| word.strip_suffix("’s")).unwrap_or(word);
    let ends = |endings: &[&str]| endings.iter().any(|ending| word.ends_with(ending));
    if word.len() <= 3 || !word.ends_with('s') {
        return Cow::Borrowed(word);
    }
    if ends(&["ies"]) && !ends(&["aies", "eies"]) {
        return Cow::Owned(format!("{}y", &word[..word.len() - 3]));
    }
    if ends(&["us", "ss", "aes", "ees", "oes"]) {
        return Cow::Borrowed(word);
    }
    Cow::Borrowed(&word[..word.len() - 1])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(text: &str, expect: &str) {
        let mut found = Vec::new();
        words(text, &mut |word| found.push(word.to_owned()));
        assert_eq!(found.join(" "), expect, "{text:?}");
    }

    #[test]
    fn words_have_one_case_one_form_and_no_plural() {
        check("My PARROTS' cage, Anna's!", "my parrot cage anna");
        check("parties cities ties glass bus his is", "party city ty glass bus his is");
        check("ＡＢＣ１２ Cafe\u{301} ÅSE", "abc12 café åse");
        check("don't 3.14 foo_bar.rs -- ?", "don't 3.14 foo_bar.r");
        check("", "");
    }

    #[test]
    fn scripts_without_spaces_become_pairs() {
        check("东京塔 高", "东京 京塔 高");
        check("私のparrotはｶﾗｽ", "私の parrot はカ カラ ラス");
        check("앵무새의 이름", "앵무 무새 새의 이름");
    }

    proptest! {
        #[test]
        fn plain_text_has_the_words_of_any_text(text in "[ -~]{0,60}") {
            let (mut plain, mut any) = (Vec::new(), Vec::new());
            words(&text, &mut |word| plain.push(word.to_owned()));
            any_words(&text.to_lowercase(), &mut |word| any.push(word.to_owned()));
            prop_assert_eq!(plain, any);
        }

        #[test]
        fn a_text_and_its_words_have_the_same_words(text in "\\PC{0,60}") {
            let mut found = Vec::new();
            words(&text, &mut |word| found.push(word.to_owned()));
            prop_assert!(found.iter().all(|word| !word.is_empty()));
            let mut upper = Vec::new();
            words(&text.to_ascii_uppercase(), &mut |word| upper.push(word.to_owned()));
            prop_assert_eq!(found, upper);
        }
    }
}

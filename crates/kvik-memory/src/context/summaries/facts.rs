//! Facts of texts, and the other words that say something.

use std::collections::{BTreeSet, HashSet};
use std::sync::LazyLock;

use unicode_segmentation::UnicodeSegmentation;

use super::language::FUNCTION_WORDS;
use super::sentences::{NUMBER_DIGITS, sentences};
use crate::context::quotes::words::words;

/// Further words that say nothing of a conversation: of grammar, of politeness, and those with which any summary can
/// be begun.
const EMPTY_WORDS: &str = "a an i i'm i'll i've me my mine we us our your yours he him she they their them its it's \
    these those there here who whom whose what which when where why how is am be been were do does did had having \
    will would can could shall should may might must or but if then so because as in into on onto out over off up \
    for about no yes than too very just also some any all more most please thank welcome sorry okay ok sure good \
    great nice fine glad happy hear hope day today now let hi hello well see get got go said say tell told talk \
    talked know remember noted understood help want like user assistant conversation summary memory fact list \
    du er es wir ihr mein meine dein deine sein seine ihre sind war waren haben habe bin bist oder aber wenn weil dass \
    die des einem einer zum zur an in am um so ja nein bitte danke gut schön gern heute benutzer nutzer assistent \
    gespräch zusammenfassung notiert verstanden alles \
    le la un de du que il ne mon ma mes merci oui en à o a do da um lo un una e i no sí gracias mi de je ik en \
    用户 助手 对话 总结 要点 谢谢你 我明白了 我知道了 今天 听到 很高兴 好的 你好 您好 \
    はい ありがとうございます わかりました です";
/// Han characters of grammar: two of them are no word, where a text has others.
const HAN_GRAMMAR: &str =
    "的了是我你您他她它们在有和这那不也很就都说吗呢吧啊把被会要去个为与对从而又还没可以能什么怎哪谁";
/// Characters within which a quote ends, and the marks of quotes.
const QUOTE_CHARS: usize = 80;
const QUOTE_MARKS: [(char, char); 7] =
    [('"', '"'), ('“', '”'), ('„', '“'), ('«', '»'), ('「', '」'), ('『', '』'), ('`', '`')];

/// The words that say nothing, as [`words`] writes them.
static EMPTY: LazyLock<HashSet<String>> = LazyLock::new(|| {
    let mut empty = HashSet::new();
    for text in FUNCTION_WORDS.iter().flat_map(|words| words.split(' ')).chain(EMPTY_WORDS.split_whitespace())
    {
        words(text, &mut |word| {
            empty.insert(word.to_owned());
        });
    }
    empty
});

/// Words of texts that say something, in the form of [`words`]; pairs of characters in scripts without spaces. In order, so
/// that sums over them do not depend on the process.
#[derive(Debug, Default)]
pub(super) struct Facts {
    /// Names, numbers and quoted words: what has a capital letter within a sentence, a digit, or marks of quotes around
    /// it.
    pub(super) facts: BTreeSet<String>,
    /// These, and all other words that say something.
    pub(super) words: BTreeSet<String>,
    /// Pairs of characters of grammar. They may be a name that another text has in quotes.
    grammar: BTreeSet<String>,
}

impl Facts {
    /// The facts of a text.
    pub(super) fn of(text: &str) -> Facts {
        let mut facts = Facts::default();
        facts.add(text);
        facts
    }

    /// Adds those of a text.
    pub(super) fn add(&mut self, text: &str) {
        for sentence in sentences(text) {
            let words = self.content_words(sentence);
            self.facts.extend(words.iter().filter(|word| word.contains(char::is_numeric)).cloned());
            self.words.extend(words);
            let is_name = |word: &&str| word.starts_with(char::is_uppercase);
            sentence.unicode_words().skip(1).filter(is_name).for_each(|name| self.add_facts(name));
        }
        quoted(text).for_each(|quote| self.add_facts(quote));
    }

    /// The facts that somebody tells to have them known: no short numbers, which are of days, buses and ages.
    pub(super) fn told(&self) -> impl Iterator<Item = &String> {
        let is_short =
            |fact: &str| fact.chars().all(char::is_numeric) && fact.chars().count() < NUMBER_DIGITS;
        self.facts.iter().filter(move |fact| !is_short(fact))
    }

    /// True if the texts have a word, be it one of grammar for them.
    pub(super) fn has(&self, word: &str) -> bool {
        self.words.contains(word) || self.grammar.contains(word)
    }

    fn add_facts(&mut self, text: &str) {
        let words = self.content_words(text);
        self.facts.extend(words.iter().cloned());
        self.words.extend(words);
    }

    /// The words of a text that say something: those of grammar, if it has no others, because names are written with
    /// the same characters.
    fn content_words(&mut self, text: &str) -> Vec<String> {
        let (mut content, mut grammar) = (Vec::new(), Vec::new());
        words(text, &mut |word| {
            if says_something(word) {
                let kind = if is_of_grammar(word) { &mut grammar } else { &mut content };
                kind.push(word.to_owned());
            }
        });
        self.grammar.extend(grammar.iter().cloned());
        if content.is_empty() { grammar } else { content }
    }
}

fn says_something(word: &str) -> bool {
    let is_letter = word.chars().nth(1).is_none();
    word.contains(char::is_numeric) || !(is_letter || EMPTY.contains(word))
}

/// True for two characters of grammar. The same one twice is a name.
fn is_of_grammar(word: &str) -> bool {
    let is_grammar = |c: char| ('\u{3041}'..='\u{309F}').contains(&c) || HAN_GRAMMAR.contains(c);
    word.chars().all(is_grammar) && word.chars().next() != word.chars().nth(1)
}

/// The quotes of a text.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        while let Some((at, open, close)) = rest.char_indices().find_map(|(at, c)| Some((at, c, closing(c)?)))
        {
            rest = &rest[at + open.len_utf8()..];
            if let Some((end, _)) = rest.char_indices().take(QUOTE_CHARS).find(|(_, c)| *c == close) {
                let quote = &rest[..end];
                rest = &rest[end + close.len_utf8()..];
                return Some(quote);
            }
        }
        None
    })
}

/// The mark that ends a quote.
fn closing(open: char) -> Option<char> {
    QUOTE_MARKS.iter().find(|(mark, _)| *mark == open).map(|(_, close)| *close)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, facts: &str, words: &str) {
        let found = Facts::of(text);
        let set = |words: &str| words.split_whitespace().map(str::to_owned).collect::<BTreeSet<_>>();
        assert_eq!(found.facts, set(facts), "{text}");
        assert_eq!(found.words, &set(facts) | &set(words), "{text}");
    }

    #[test]
    fn facts_are_names_numbers_and_quoted_words() {
        check("My dog is called Bolt. I live in Oslo.", "bolt oslo", "dog called live");
        check("Anna's code is 4711, her bike's 3b.", "4711 3b", "anna code bike");
        check("1. the word \"swordfish\"\n2. «vert» and „blau“", "swordfish vert blau", "word");
        check("Mein Hund frisst gern Nudeln.", "hund nudeln", "frisst");
        check("我的狗叫闪电。", "", "的狗 狗叫 叫闪 闪电");
        check("我的狗叫可可。", "", "的狗 狗叫 叫可 可可");
        check("我叫王和平。", "", "我叫 叫王 王和 和平");
        check("他说「雷文」", "雷文", "");
        check("名前は「さくら」", "さく くら", "名前 前は");
        check("さくらとねこ。", "", "さく くら らと とね ねこ");
    }

    #[test]
    fn politeness_says_nothing() {
        for text in [
            "I'm glad to hear that.",
            "I see.",
            "You are welcome!",
            "好的，我明白了。",
            "你好！很高兴。",
            "はい、わかりました。",
            "Gern, danke.",
            "\"",
            "",
        ] {
            check(text, "", "");
        }
    }
}

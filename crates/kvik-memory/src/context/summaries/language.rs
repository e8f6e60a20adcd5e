//! Scripts and languages of texts, as far as letters and function words tell them.
//!
//! A text is said to be in a language only where that is plain: most short notes are in none.

use std::collections::HashMap;
use std::sync::LazyLock;

use unicode_segmentation::UnicodeSegmentation;

/// Function words of languages, none of which is in two of these lists. Only languages that share a script need one.
pub(super) const FUNCTION_WORDS: [&str; 7] = [
    "the and with that they have has you of are this from it his her not was to at by",
    "der das und ist nicht mit ein eine einen den dem ich wird hat auf für von zu auch sich sie im",
    "les des et est une dans pour qui pas avec sur elle vous je ce au sont",
    "el los las por del y está pero usted muy su se tiene como",
    "gli che di della per sono non nel è ha anche il suo",
    "os uma não com em você é meu seu ao",
    "het een van niet met voor zijn dat op ook wordt heeft",
];

/// The list of each function word.
static LISTS: LazyLock<HashMap<&'static str, usize>> = LazyLock::new(|| {
    let words = FUNCTION_WORDS.iter().enumerate();
    words.flat_map(|(list, words)| words.split(' ').map(move |word| (word, list))).collect()
});

/// Letters below which a text is in no script.
const LETTERS_MIN: usize = 8;
/// Function words below which a text is in no language.
const FUNCTION_WORDS_MIN: usize = 3;
/// One word in so many at least is a function word in a text of a language.
const WORDS_PER_FUNCTION_WORD: usize = 8;
/// Of the letters of a text, one in so many makes it one of a script, and one in so many of another text is enough for
/// both to share it: names and quotes are written in other scripts.
const SCRIPT_SHARE: usize = 5;
const SCRIPT_KNOWN: usize = 50;
/// Of the words of a text, one in so many is enough for it to be in a language too.
const LANGUAGE_KNOWN: usize = 25;

#[derive(Clone, Copy)]
enum Script {
    Latin,
    Greek,
    Cyrillic,
    Hebrew,
    Arabic,
    Devanagari,
    Thai,
    Hangul,
    Kana,
    Han,
    Other,
}

const SCRIPTS: usize = Script::Other as usize + 1;

impl Script {
    /// The script of a letter; `None` for other characters.
    fn of(c: char) -> Option<Script> {
        let script = match c {
            '\u{0}'..='\u{24F}' | '\u{1E00}'..='\u{1EFF}' => Script::Latin,
            '\u{370}'..='\u{3FF}' | '\u{1F00}'..='\u{1FFF}' => Script::Greek,
            '\u{400}'..='\u{52F}' => Script::Cyrillic,
            '\u{590}'..='\u{5FF}' => Script::Hebrew,
            '\u{600}'..='\u{77F}' => Script::Arabic,
            '\u{900}'..='\u{97F}' => Script::Devanagari,
            '\u{E00}'..='\u{E7F}' => Script::Thai,
            '\u{1100}'..='\u{11FF}' | '\u{AC00}'..='\u{D7A3}' => Script::Hangul,
            '\u{3040}'..='\u{30FF}' => Script::Kana,
            '\u{3400}'..='\u{9FFF}' | '\u{F900}'..='\u{FAFF}' | '\u{20000}'..='\u{3FFFF}' => Script::Han,
            _ => Script::Other,
        };
        c.is_alphabetic().then_some(script)
    }
}

/// Letters by script, and function words by language, of texts.
#[derive(Debug, Default)]
pub(super) struct Languages {
    letters: [usize; SCRIPTS],
    function_words: [usize; FUNCTION_WORDS.len()],
    words: usize,
}

impl Languages {
    /// Counts a text.
    pub(super) fn add(&mut self, text: &str) {
        for script in text.chars().filter_map(Script::of) {
            self.letters[script as usize] += 1;
        }
        for word in text.to_lowercase().unicode_words() {
            self.words += 1;
            if let Some(&list) = LISTS.get(word) {
                self.function_words[list] += 1;
            }
        }
    }

    /// True if this text is plainly in a script or language of which `others` have next to nothing.
    pub(super) fn is_foreign_to(&self, others: &Languages) -> bool {
        self.is_in_other_script(others) || self.is_in_other_language(others)
    }

    fn is_in_other_script(&self, others: &Languages) -> bool {
        let [own, theirs] = [self, others].map(|texts| texts.letters.iter().sum::<usize>());
        if own < LETTERS_MIN || theirs == 0 {
            return false;
        }
        let is_foreign = |script: usize| {
            self.letters[script] * SCRIPT_SHARE >= own && others.letters[script] * SCRIPT_KNOWN < theirs
        };
        (0..SCRIPTS).any(is_foreign) || (others.is_japanese() && self.is_han_alone(own))
    }

    /// True if the text is in Japanese, which is written in Han too.
    fn is_japanese(&self) -> bool {
        let [kana, han] = [Script::Kana, Script::Han].map(|script| self.letters[script as usize]);
        kana * 10 > han && (kana + han) * 2 >= self.letters.iter().sum()
    }

    fn is_han_alone(&self, letters: usize) -> bool {
        self.letters[Script::Kana as usize] == 0 && self.letters[Script::Han as usize] * 2 >= letters
    }

    fn is_in_other_language(&self, others: &Languages) -> bool {
        let (Some(own), Some(theirs)) = (self.language(), others.language()) else { return false };
        own != theirs && others.function_words[own] * LANGUAGE_KNOWN < others.words
    }

    /// The language of the texts, as an index of [`FUNCTION_WORDS`], where it is plain.
    fn language(&self) -> Option<usize> {
        let (language, &most) = self.function_words.iter().enumerate().max_by_key(|(_, count)| **count)?;
        let others = self.function_words.iter().enumerate().filter(|(other, _)| *other != language);
        let next = others.map(|(_, &count)| count).max().unwrap_or(0);
        let is_plain =
            most >= FUNCTION_WORDS_MIN && most * WORDS_PER_FUNCTION_WORD >= self.words && most >= 2 * next;
        is_plain.then_some(language)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const ENGLISH: &str =
        "My dog is called Bolt and he has a blue collar. I live with him at the edge of the town.";
    const GERMAN: &str =
        "Mein Hund heißt Bolt und hat ein blaues Halsband. Ich wohne mit ihm auf einem Hof bei der Stadt.";
    const CHINESE: &str = "我的狗叫闪电，它戴着蓝色的项圈。我和它住在城市的边上。";
    const JAPANESE: &str = "私の犬はボルトといいます。青い首輪をしています。町のはずれに住んでいます。";
    const RUSSIAN: &str = "Мою собаку зовут Болт, у неё синий ошейник. Мы живём на краю города.";

    fn of(text: &str) -> Languages {
        let mut languages = Languages::default();
        languages.add(text);
        languages
    }

    #[test]
    fn a_text_is_foreign_to_all_but_its_language() {
        let texts = [ENGLISH, GERMAN, CHINESE, JAPANESE, RUSSIAN];
        for own in texts {
            for others in texts {
                assert_eq!(of(own).is_foreign_to(&of(others)), own != others, "{own} in {others}");
            }
        }
    }

    #[test]
    fn a_summary_without_kana_is_foreign_to_japanese_however_many_kanji_it_has() {
        let kanji = "私の犬の名前は稲妻です。東京都港区六本木在住、会社勤務。明日午前東京駅集合予定。";
        assert!(of(CHINESE).is_foreign_to(&of(kanji)));
        assert!(!of(kanji).is_foreign_to(&of(kanji)));
        let quoting = format!("{CHINESE}我在便利店买一碗「うどん」，然后坐地铁去公司。");
        assert!(!of(CHINESE).is_foreign_to(&of(&quoting)), "a Chinese text that quotes a word");
    }

    #[test]
    fn notes_names_and_mixed_conversations_are_not_foreign() {
        let with_names = format!("{CHINESE} 它的英文名是 Bolt，项圈是 blue。");
        let both = format!("{GERMAN} {ENGLISH}");
        for (text, said) in [
            ("Facts: dog = Bolt; home = Oslo", GERMAN),
            ("狗叫 Bolt，项圈 blue", &with_names[..]),
            (ENGLISH, &both[..]),
            ("4711", CHINESE),
            (ENGLISH, ""),
        ] {
            assert!(!of(text).is_foreign_to(&of(said)), "{text} in {said}");
        }
    }

    #[test]
    fn a_function_word_tells_one_language() {
        let words: Vec<&str> = FUNCTION_WORDS.iter().flat_map(|words| words.split(' ')).collect();
        assert_eq!(words.iter().collect::<HashSet<_>>().len(), words.len());
    }
}

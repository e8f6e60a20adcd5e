//! Answers under a constraint, and which tokens it allows, found naively: by looking whether any text of its language
//! begins so.
//!
//! The twin knows a language as a list of parts and nothing of grammars, automata or lexers; the engine knows the
//! regular expression or the grammar that is made of the same parts.

use std::sync::{Arc, LazyLock};

use kvik_cache::Token;
use kvik_engine::api::{Constraint, FinishReason, Request};
use kvik_text::constraint::{Compiler, Guide};
use kvik_text::stream::{TokenKind, Vocabulary};

use crate::fake::{EOS, VOCAB, vocabulary};
use crate::time::Dice;

/// A part of the texts of a language.
enum Part {
    Text(&'static str),
    OneOf(&'static [&'static str]),
    /// Letters of a class, at least and at most so many.
    Letters(&'static str, usize, usize),
}

use Part::{Letters, OneOf, Text};

const ANY: &str = "a-z";
/// More letters than an answer has.
const MANY: usize = 200;

/// Languages that leave long texts as the only way to go on, that leave none, that a token divides in several ways,
/// that end by themselves, by the end token or never.
const LANGUAGES: [(bool, &[Part]); 7] = [
    (false, &[Text("abcdwxyzabcd"), OneOf(&["yes", "no"]), Text("zyxwabcd")]),
    (false, &[Text("elfmgnhoipjqkrlsmtnu"), Letters(ANY, 0, 3)]),
    (false, &[OneOf(&["select", "selfish", "sun"]), Text("æther"), Letters(ANY, 2, 8), Text("end")]),
    (false, &[Letters("abc", 0, MANY), Text("delfmgn"), Letters("xy", 1, 3)]),
    (false, &[Letters(ANY, 0, MANY)]),
    (true, &[Text("name"), OneOf(&["true", "false"]), Text("othername"), OneOf(&["true", "false"])]),
    (true, &[OneOf(&["æææ", "ab"]), Text("abcdefgh")]),
];

/// Whether a text is one of a language, and whether a longer one begins with it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Reach {
    is_whole: bool,
    goes_on: bool,
}

impl Reach {
    fn or(self, other: Reach) -> Reach {
        Reach { is_whole: self.is_whole || other.is_whole, goes_on: self.goes_on || other.goes_on }
    }
}

/// How far `text` is one of `parts`.
fn reach(parts: &[Part], text: &[u8]) -> Reach {
    let Some((part, rest)) = parts.split_first() else {
        return Reach { is_whole: text.is_empty(), goes_on: false };
    };
    let word = |word: &&str| match text.strip_prefix(word.as_bytes()) {
        Some(text) => reach(rest, text),
        None => Reach { is_whole: false, goes_on: word.as_bytes().starts_with(text) },
    };
    match part {
        Text(text) => word(text),
        OneOf(words) => words.iter().map(word).fold(Reach::default(), Reach::or),
        Letters(class, min, max) => {
            let has = |byte: &u8| match *class {
                ANY => byte.is_ascii_lowercase(),
                _ => class.as_bytes().contains(byte),
            };
            let len = text.iter().take(*max).take_while(|byte| has(byte)).count();
            let more = Reach { is_whole: false, goes_on: len == text.len() && len < *max };
            (*min..=len).map(|len| reach(rest, &text[len..])).fold(more, Reach::or)
        }
    }
}

/// What the engine is told of a language.
fn constraint(is_lark: bool, parts: &[Part]) -> Constraint {
    let part = |part: &Part| match part {
        Text(text) if is_lark => format!("{text:?}"),
        OneOf(words) if is_lark => {
            format!("({})", words.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>().join(" | "))
        }
        Text(text) => (*text).to_owned(),
        OneOf(words) => format!("({})", words.join("|")),
        Letters(class, min, max) => format!("[{class}]{{{min},{max}}}"),
    };
    let parts: Vec<String> = parts.iter().map(part).collect();
    match is_lark {
        true => Constraint::Lark(format!("start: {}", parts.join(" "))),
        false => Constraint::Regex(parts.concat()),
    }
}

/// The constraint of each language.
static CONSTRAINTS: LazyLock<Vec<Constraint>> =
    LazyLock::new(|| LANGUAGES.iter().map(|&(is_lark, parts)| constraint(is_lark, parts)).collect());

/// The bytes of each token; none of those that are no text.
static WORDS: LazyLock<Vec<Option<Vec<u8>>>> = LazyLock::new(|| {
    let vocabulary = vocabulary();
    let is_text = |token: Token| vocabulary.kind(token) == TokenKind::Text;
    (0..VOCAB as Token).map(|token| is_text(token).then(|| vocabulary.bytes(token).to_vec())).collect()
});

thread_local! {
    static GUIDES: Vec<Guide> = {
        let vocabulary: Arc<Vocabulary> = Arc::new(vocabulary());
        let compiler = Compiler::new(vocabulary, VOCAB);
        CONSTRAINTS.iter().map(|constraint| compiler.compile(constraint).unwrap()).collect()
    };
}

/// A constraint for a request.
pub(crate) fn pick(dice: &mut Dice) -> Constraint {
    CONSTRAINTS[dice.roll(CONSTRAINTS.len() as u64) as usize].clone()
}

/// The number of a request's language.
fn language(request: &Request) -> Option<usize> {
    let constraint = request.constraint.as_ref()?;
    Some(CONSTRAINTS.iter().position(|other| other == constraint).unwrap())
}

/// What the engine gets with a request.
pub(crate) fn guide(request: &Request) -> Option<Guide> {
    language(request).map(|index| GUIDES.with(|guides| guides[index].fork()))
}

/// The language of a request, and what was said of a text of it.
pub(crate) struct Said {
    parts: &'static [Part],
    text: Vec<u8>,
}

impl Said {
    pub(crate) fn nothing(request: &Request) -> Option<Said> {
        language(request).map(|index| Said { parts: LANGUAGES[index].1, text: Vec::new() })
    }

    /// The tokens that do not lead out of the language, in words of 32 bits.
    pub(crate) fn allowed(&self) -> Vec<u32> {
        let mut allowed = vec![0; WORDS.len().div_ceil(32)];
        for (token, word) in (0..).zip(WORDS.iter()) {
            let is_allowed = match word {
                Some(word) => reach(self.parts, &[&self.text, word.as_slice()].concat()) != Reach::default(),
                None => token == EOS && reach(self.parts, &self.text).is_whole,
            };
            if is_allowed {
                allowed[token as usize / 32] |= 1 << (token % 32);
            }
        }
        allowed
    }

    /// Says a token; why the answer ends with it, if it does.
    pub(crate) fn say(&mut self, token: Token) -> Option<FinishReason> {
        let Some(word) = &WORDS[token as usize] else { return Some(FinishReason::ConstraintDone) };
        self.text.extend(word);
        let is_done = reach(self.parts, &self.text) == Reach { is_whole: true, goes_on: false };
        is_done.then_some(FinishReason::ConstraintDone)
    }
}

#[test]
fn the_naive_language_knows_what_begins_so() {
    let (whole, begins, both) = (
        Reach { is_whole: true, goes_on: false },
        Reach { is_whole: false, goes_on: true },
        Reach { is_whole: true, goes_on: true },
    );
    let cases = [
        (0, "", begins),
        (0, "abcdwxyzabcdyeszyxwabc", begins),
        (0, "abcdwxyzabcdnozyxwabcd", whole),
        (0, "abcdwxyzabcdnozyxwabcda", Reach::default()),
        (1, "elfmgnhoipjqkrlsmtnu", both),
        (1, "elfmgnhoipjqkrlsmtnuabc", whole),
        (2, "selfishætherenen", begins),
        (2, "selfishætherenend", whole.or(begins)),
        (3, "delfmgnxyy", whole),
        (3, "abdelfmgnz", Reach::default()),
        (4, "", both),
    ];
    for (language, text, expect) in cases {
        assert_eq!(reach(LANGUAGES[language].1, text.as_bytes()), expect, "{text:?} in {language}");
    }
}

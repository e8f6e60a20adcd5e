//! Pre-tokenizers: split a text into words before merging. Byte-level vocabularies only.
//!
//! The published patterns end in `\s+(?!\S)|\s+`. The look-ahead needs a backtracking engine, which
//! fails on long runs, so it is done by hand: a run of white space that is followed by other text
//! leaves its last char to that text. Everything else is a plain regular expression and matches
//! in linear time.

use std::ops::Range;

use regex_automata::meta::Regex;

use super::TokenizerError;

/// Splits text into words, in stages: each stage splits the words of the previous one.
#[derive(Debug)]
pub(super) struct Splitter {
    stages: Vec<Stage>,
}

/// One pattern. Its matches become words, and so do the texts between them.
#[derive(Debug)]
struct Stage {
    regex: Regex,
    /// Whether the last pattern of `regex` is the `\s+` that replaces `\s+(?!\S)|\s+`.
    look_ahead: bool,
}

/// Maximum stages; the published pre-tokenizers have up to six.
const STAGES_MAX: usize = 32;

pub(super) const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK_V3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
/// Letters of the scripts with upper and lower case, as code points because some have look-alikes.
const DEEPSEEK_LLM_LETTERS: &str = concat!(
    r"\s?[",
    r"A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}",
    r"\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}",
    r"\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}",
    r"\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}",
    r"\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}",
    r"\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}",
    r"\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}",
    r"\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}",
    r"\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}",
    r"\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}",
    r"\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}",
    r"\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}",
    r"\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}",
    r"\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}",
    r"]+"
);

/// Names for `tokenizer.ggml.pre`, and their stages.
const KNOWN: [(&str, &[&str]); 11] = [
    ("qwen2", &[QWEN2]),
    ("deepseek-r1-qwen", &[QWEN2]),
    ("llama-bpe", &[LLAMA3]),
    ("llama3", &[LLAMA3]),
    ("llama-v3", &[LLAMA3]),
    ("gpt-2", &[GPT2]),
    ("smollm", &[r"\p{N}", GPT2]),
    ("default", &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"]),
    (
        "deepseek-llm",
        &[
            r"[\r\n]",
            DEEPSEEK_LLM_LETTERS,
            r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
            r"\s+$",
            r"[一-龥ࠀ-一가-퟿]+",
            r"\p{N}+",
        ],
    ),
    ("deepseek-coder", &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}"]),
    ("deepseek-v3", &[r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK_V3]),
];

impl Splitter {
    /// The pre-tokenizer with the name in a GGUF file.
    pub(super) fn named(name: &str) -> Result<Splitter, TokenizerError> {
        match KNOWN.iter().find(|(known, _)| *known == name) {
            Some((_, patterns)) => Splitter::from_patterns(patterns),
            None => Err(TokenizerError::UnknownPreTokenizer {
                found: name.into(),
                known: KNOWN.map(|(known, _)| known).join(", "),
            }),
        }
    }

    /// A pre-tokenizer from its stages' patterns.
    pub(super) fn from_patterns(patterns: &[&str]) -> Result<Splitter, TokenizerError> {
        if patterns.len() > STAGES_MAX {
            let step = format!("{} patterns to cut text by, above the limit of {STAGES_MAX}", patterns.len());
            return Err(TokenizerError::UnknownStep { step });
        }
        Ok(Splitter { stages: patterns.iter().map(|pattern| Stage::new(pattern)).collect::<Result<_, _>>()? })
    }

    /// Calls `word` with every word of `text`, in order; concatenated they are the text.
    pub(super) fn split<'t>(&self, text: &'t str, word: &mut dyn FnMut(&'t str)) {
        split_stages(&self.stages, text, word);
    }
}

fn split_stages<'t>(stages: &[Stage], text: &'t str, word: &mut dyn FnMut(&'t str)) {
    match stages.split_first() {
        None => word(text),
        Some((first, rest)) => first.split(text, &mut |piece| split_stages(rest, piece, word)),
    }
}

impl Stage {
    fn new(pattern: &str) -> Result<Stage, TokenizerError> {
        let plain = pattern.strip_suffix(r"|\s+(?!\S)|\s+").or(pattern.strip_suffix(r"|\s+(?!\S)"));
        let regex = match plain {
            Some(plain) => Regex::new_many(&[plain, r"\s+"]),
            None => Regex::new(pattern),
        };
        let regex = regex.map_err(|error| TokenizerError::BadPattern {
            pattern: pattern.into(),
            reason: error.syntax_error().map_or_else(|| error.to_string(), ToString::to_string),
        })?;
        Ok(Stage { regex, look_ahead: plain.is_some() })
    }

    fn split<'t>(&self, text: &'t str, word: &mut dyn FnMut(&'t str)) {
        let mut at = 0;
        while let Some(found) = self.find(text, at) {
            if found.start > at {
                word(&text[at..found.start]);
            }
            at = found.end;
            word(&text[found]);
        }
        if at < text.len() {
            word(&text[at..]);
        }
    }

    /// The next non-empty match at or after `at`.
    fn find(&self, text: &str, at: usize) -> Option<Range<usize>> {
        let input = regex_automata::Input::new(text).range(at..);
        let found = self.regex.search(&input)?;
        let mut range = found.range();
        if range.is_empty() {
            return None;
        }
        if self.look_ahead && found.pattern().as_usize() == 1 && range.end < text.len() {
            let last = text[range.clone()].chars().next_back().map_or(0, char::len_utf8);
            if range.len() > last {
                range.end -= last;
            }
        }
        Some(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, text: &str, expect: &[&str]) {
        let mut words = Vec::new();
        Splitter::named(name).unwrap().split(text, &mut |word| words.push(word));
        assert_eq!(words, expect, "{name}: {text:?}");
    }

    #[test]
    fn words_are_split_as_published() {
        check("gpt-2", "Hello  world\n\n x", &["Hello", " ", " world", "\n\n", " x"]);
        check("gpt-2", "a\nb  ", &["a", "\n", "b", "  "]);
        check(
            "qwen2",
            "I'LL pay 123 €\n\n\tok  ",
            &["I", "'LL", " pay", " ", "1", "2", "3", " €\n\n", "\tok", "  "],
        );
        check("llama-bpe", "x 12345\r\n  y", &["x", " ", "123", "45", "\r\n", " ", " y"]);
        check("smollm", "a12 b", &["a", "1", "2", " b"]);
        check("default", "a, 1234", &["a", ",", " ", "123", "4"]);
        check("deepseek-coder", "x 1\n你好", &["x", " ", "1", "\n", "你好"]);
        check("deepseek-v3", "(abc 12345 日本", &["(abc", " ", "123", "45", " ", "日本"]);
    }

    #[test]
    fn the_error_for_an_unknown_name_lists_the_known_ones() {
        let error = Splitter::named("nope").unwrap_err().to_string();
        assert!(error.contains("nope") && error.contains("qwen2") && error.contains("smollm"), "{error}");
    }

    #[test]
    fn every_known_pattern_compiles() {
        for (name, _) in KNOWN {
            Splitter::named(name).unwrap();
        }
    }
}

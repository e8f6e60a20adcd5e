//! The pre-tokenizers of GGUF files: the meaning of each name in `tokenizer.ggml.pre`.
//!
//! The rules are those of llama.cpp, which introduced these names, even where they differ from the patterns of
//! the published models. The rules of `gpt-4o` and `tekken` treat every letter outside ASCII as both upper case
//! and lower case, and marks as neither.

use super::TokenizerError;
use super::split::Splitter;

/// A pre-tokenizer, and the other properties of a vocabulary that its name implies.
#[derive(Debug)]
pub(super) struct PreTokenizer {
    names: &'static [&'static str],
    /// The patterns of the stages.
    stages: &'static [&'static str],
    /// Whether a word that is a token stays whole, regardless of merges.
    pub(super) ignore_merges: bool,
    /// Whether texts begin with the begin-of-text token unless the file sets it.
    pub(super) add_bos: bool,
}

pub(super) const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const MINICPM5: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const BAILING: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
const SEED_CODER: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
const UFAKZEKA: &str = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{L}&&[^a-z]]*[\p{L}&&[^A-Z]]+|[^\r\n\p{L}\p{N}]?[\p{L}&&[^a-z]]+[\p{L}&&[^A-Z]]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{L}&&[^a-z]]*[\p{L}&&[^A-Z]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{L}&&[^a-z]]+[\p{L}&&[^A-Z]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
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

/// In llama.cpp white space belongs to none of the ranges, even if its code point is in one.
const ASIAN: &str = r"[[一-龥ࠀ-一가-퟿]--\s]+";

/// Names that only define where words end.
const fn plain(names: &'static [&'static str], stages: &'static [&'static str]) -> PreTokenizer {
    PreTokenizer { names, stages, ignore_merges: false, add_bos: false }
}

/// Names of vocabularies that keep words whole.
const fn whole_words(names: &'static [&'static str], stages: &'static [&'static str]) -> PreTokenizer {
    PreTokenizer { names, stages, ignore_merges: true, add_bos: false }
}

/// The known pre-tokenizers.
static KNOWN: [PreTokenizer; 19] = [
    PreTokenizer {
        add_bos: true,
        ..whole_words(
            &[
                "llama-bpe",
                "llama3",
                "llama-v3",
                "falcon3",
                "falcon-h1",
                "pixtral",
                "midm-2.0",
                "lfm2",
                "jina-v5-nano",
            ],
            &[LLAMA3],
        )
    },
    PreTokenizer { add_bos: true, ..whole_words(&["tekken"], &[TEKKEN]) },
    whole_words(&["glm4", "glm5"], &[LLAMA3]),
    whole_words(&["minicpm5"], &[r"\p{N}{1,3}", MINICPM5]),
    plain(&["dbrx", "smaug-bpe", "chatglm-bpe"], &[LLAMA3]),
    plain(&["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"], &[GPT4O]),
    plain(
        &[
            "qwen2",
            "deepseek-r1-qwen",
            "kormo",
            "f2llmv2",
            "megrez",
            "stablelm2",
            "hunyuan",
            "solar-open",
            "grok-2",
        ],
        &[QWEN2],
    ),
    plain(&["qwen35"], &[QWEN35]),
    plain(&["laguna"], &[r"[^\n]+|[\n]+", QWEN2]),
    plain(&["bailingmoe", "bailingmoe2", "llada-moe"], &[BAILING]),
    plain(&["seed-coder"], &[SEED_CODER]),
    plain(&["ufakzeka"], &[UFAKZEKA]),
    plain(
        &[
            "gpt-2",
            "phi-2",
            "jina-es",
            "jina-de",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "exaone4",
        ],
        &[GPT2],
    ),
    plain(
        &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"],
        &[r"\p{N}", GPT2],
    ),
    plain(&["default"], &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"]),
    plain(&["falcon"], &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]"]),
    plain(
        &["deepseek-llm"],
        &[
            r"[\r\n]",
            DEEPSEEK_LLM_LETTERS,
            r"\s?[[!-/:-~！-／：-～‘-‟　-。]--\s]+",
            r"\s+$",
            ASIAN,
            r"\p{N}+",
        ],
    ),
    plain(&["deepseek-coder"], &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", ASIAN, r"\p{N}"]),
    plain(
        &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        &[r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK_V3],
    ),
];

impl PreTokenizer {
    /// The pre-tokenizer with the name in a GGUF file.
    pub(super) fn named(name: &str) -> Result<&'static PreTokenizer, TokenizerError> {
        KNOWN.iter().find(|known| known.names.contains(&name)).ok_or_else(|| {
            let known = KNOWN.iter().flat_map(|known| known.names).copied().collect::<Vec<_>>().join(", ");
            TokenizerError::UnknownPreTokenizer { found: name.into(), known }
        })
    }

    pub(super) fn splitter(&self) -> Result<Splitter, TokenizerError> {
        Splitter::from_patterns(self.stages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, text: &str, expect: &[&str]) {
        let mut words = Vec::new();
        PreTokenizer::named(name).unwrap().splitter().unwrap().split(text, &mut |word| words.push(word));
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

    /// The words are those of llama.cpp with a vocabulary in which every word is one token.
    #[test]
    fn words_are_split_as_llama_cpp_does() {
        check(
            "tekken",
            "HTTPServer's 12 a//b\n/",
            &["HTTPServer", "'s", " ", "1", "2", " a", "//", "b", "\n", "/"],
        );
        check("tekken", "getX ПРИВет e\u{301}t", &["get", "X", " ПРИВет", " e", "\u{301}t"]);
        check(
            "gpt-4o",
            "HTTPServer's We'LL 1234 a//b\n/",
            &["HTTPServer's", " We'LL", " ", "123", "4", " a", "//", "b", "\n", "/"],
        );
        check("gpt-4o", "aB1 'tis ßA", &["a", "B", "1", " '", "tis", " ß", "A"]);
        check("llama4", "fooBar", &["foo", "Bar"]);
        check("qwen35", "a\u{301}b e\u{301} नमस्ते 12", &["a\u{301}b", " e\u{301}", " नमस्ते", " ", "1", "2"]);
        check("qwen2", "a\u{301}b", &["a", "\u{301}b"]);
        check("refact", "a12 b's", &["a", "1", "2", " b", "'s"]);
        check("command-r", "x 12", &["x", " ", "1", "2"]);
        check("falcon", "a`b, 1234 12", &["a", "`", "b", ",", " ", "123", "4", " 12"]);
        check("olmo", "a12's  b", &["a", "12", "'s", " ", " b"]);
        check("glm4", "I'LL 12345\n\n x", &["I", "'LL", " ", "123", "45", "\n\n", " x"]);
        check("dbrx", "12345", &["123", "45"]);
        check("minicpm5", "a 1234567 b", &["a", " ", "123", "456", "7", " b"]);
        check("hunyuan-dense", "(abc 12345", &["(abc", " ", "123", "45"]);
        check("deepseek-coder", "你\u{3000} 1", &["你", "\u{3000} ", "1"]);
        check("deepseek-llm", "你\u{3000} 1", &["你", "\u{3000} ", "1"]);
        check("deepseek-llm", "a\u{3000}。b", &["a", "\u{3000}", "。", "b"]);
        check("deepseek-llm", "Hi 你好 12", &["Hi", " ", "你好", " ", "12"]);
    }

    /// Pre-tokenizers that differ from `qwen2` in one respect.
    #[test]
    fn relatives_of_qwen2_differ_where_llama_cpp_does() {
        check("qwen2", "a!!\n\nb", &["a", "!!\n\n", "b"]);
        check("seed-coder", "a!!\n\nb", &["a", "!!", "\n\n", "b"]);
        check("qwen2", "Ankara'da", &["Ankara", "'d", "a"]);
        check("ufakzeka", "Ankara'da I'll", &["Ankara", "'da", " I", "'ll"]);
        check("qwen2", "a \n\n b!\n", &["a", " \n\n", " b", "!\n"]);
        check("laguna", "a \n\n b!\n", &["a", " ", "\n\n", " b", "!", "\n"]);
        check("qwen2", "a\n\n\nb", &["a", "\n\n\n", "b"]);
    }

    #[test]
    fn names_say_whether_words_are_kept_and_texts_begin_with_a_token() {
        let said = |name| PreTokenizer::named(name).map(|pre| (pre.ignore_merges, pre.add_bos)).unwrap();
        assert_eq!(["llama-bpe", "tekken", "lfm2"].map(said), [(true, true); 3]);
        assert_eq!(["glm4", "minicpm5"].map(said), [(true, false); 2]);
        assert_eq!(["dbrx", "chatglm-bpe", "gpt-4o", "qwen35", "refact"].map(said), [(false, false); 5]);
    }

    #[test]
    fn the_error_for_an_unknown_name_lists_the_known_ones() {
        let error = PreTokenizer::named("nope").unwrap_err().to_string();
        assert!(error.contains("nope") && error.contains("qwen2") && error.contains("smollm"), "{error}");
    }

    #[test]
    fn every_known_pattern_compiles() {
        let mut names = std::collections::HashSet::new();
        for known in &KNOWN {
            known.splitter().unwrap();
            assert!(known.names.iter().all(|name| names.insert(name)), "{:?}", known.names);
        }
    }
}

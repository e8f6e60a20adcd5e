//! Short names of models on the hub, such as `qwen3:0.6b`: a table that comes with the program.

mod table;

use crate::{HubSpec, ModelName};
use table::TABLE;

/// Bits that a weight takes in `Q8_0`, with its scale, for the size of a file that was not looked up.
const Q8_BITS_TENTHS: u64 = 85;
/// The same in `Q4_K_M`, which mixes formats: the mean over files of the table's models.
const Q4_BITS_TENTHS: u64 = 49;

/// A row of the table.
#[derive(Debug, PartialEq, Eq)]
pub struct ShortName {
    /// Family and size, as `qwen3:0.6b`.
    pub name: &'static str,
    /// `owner/repo` on the hub.
    pub repository: &'static str,
    /// Millions of parameters.
    pub parameters_m: u32,
    /// The model's licence.
    pub licence: &'static str,
}

/// The model that a text means by a short name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Short {
    /// The name that it gets on a shelf.
    pub name: ModelName,
    /// Its repository, with the quantisation if the text says one.
    pub source: HubSpec,
}

impl ShortName {
    /// All short names, by family.
    pub fn all() -> &'static [ShortName] {
        TABLE
    }

    /// The short names that contain a word, in their name or their repository.
    pub fn matching(word: &str) -> impl Iterator<Item = &'static ShortName> {
        let word = word.to_ascii_lowercase();
        let has = move |text: &str| text.to_ascii_lowercase().contains(&word);
        TABLE.iter().filter(move |row| has(row.name) || has(row.repository))
    }

    /// The model's size in `Q8_0`, by its parameters.
    pub fn bytes_in_q8(&self) -> u64 {
        self.bytes_in(Q8_BITS_TENTHS)
    }

    /// The quantisation that a pull with so much memory for the file is expected to choose, and its size by the
    /// parameters.
    pub fn expected(&self, memory_bytes: Option<u64>) -> (&'static str, u64) {
        let in_q8 = self.bytes_in_q8();
        match memory_bytes.is_none_or(|memory| in_q8 <= memory) {
            true => ("Q8_0", in_q8),
            false => ("Q4_K_M", self.bytes_in(Q4_BITS_TENTHS)),
        }
    }

    fn bytes_in(&self, bits_tenths: u64) -> u64 {
        u64::from(self.parameters_m) * 1_000_000 * bits_tenths / 80
    }

    fn family(&self) -> &'static str {
        self.name.split(':').next().unwrap_or(self.name)
    }
}

impl Short {
    /// The model that a text means: a short name in any case, a family alone (`qwen3`, `qwen3:latest`), or a short name
    /// with a quantisation (`qwen3:0.6b-q4_k_m`).
    pub fn of(text: &str) -> Option<Short> {
        let text = text.to_ascii_lowercase();
        let text = text.strip_suffix(":latest").unwrap_or(&text);
        let exact = || TABLE.iter().find(|row| row.name == text || row.family() == text);
        if let Some(row) = exact() {
            return Short::new(row, row.name, None);
        }
        let quantised = |row: &'static ShortName| {
            let quantisation = text.strip_prefix(row.name)?.strip_prefix('-')?;
            is_quantisation(quantisation).then_some((row, quantisation))
        };
        let (row, quantisation) = TABLE.iter().find_map(quantised)?;
        Short::new(row, text, Some(quantisation))
    }

    fn new(row: &ShortName, name: &str, quantisation: Option<&str>) -> Option<Short> {
        let wanted =
            quantisation.map_or(String::new(), |quantisation| format!(":{}", quantisation.to_uppercase()));
        Some(Short { name: name.parse().ok()?, source: format!("{}{wanted}", row.repository).parse().ok()? })
    }
}

/// Whether a lower-case word is a quantisation of GGUF files, as `q4_k_m`, `iq4_xs` or `bf16`.
fn is_quantisation(word: &str) -> bool {
    let digits = |rest: &str| {
        let mut parts = rest.split('_');
        let bits =
            parts.next().is_some_and(|bits| bits.len() == 1 && bits.bytes().all(|b| b.is_ascii_digit()));
        bits && parts.all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric()))
    };
    let word = word.strip_prefix("ud-").unwrap_or(word);
    let rest = word.strip_prefix("iq").or_else(|| word.strip_prefix('q'));
    matches!(word, "f16" | "bf16" | "f32" | "mxfp4") || rest.is_some_and(digits)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test may fail where it stands
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn source(text: &str) -> Option<(String, String)> {
        Short::of(text).map(|short| (short.name.to_string(), short.source.to_string()))
    }

    #[test]
    fn a_short_name_is_a_repository() {
        let check = |text: &str, name: &str, expect: &str| {
            assert_eq!(source(text), Some((name.to_owned(), expect.to_owned())), "{text}");
        };
        check("qwen3:0.6b", "qwen3:0.6b", "unsloth/Qwen3-0.6B-GGUF");
        check("Qwen3:0.6B", "qwen3:0.6b", "unsloth/Qwen3-0.6B-GGUF");
        check("qwen3", "qwen3:4b", "unsloth/Qwen3-4B-GGUF");
        check("phi4-mini:latest", "phi4-mini:3.8b", "bartowski/microsoft_Phi-4-mini-instruct-GGUF");
        check("smollm2:135m-q4_k_m", "smollm2:135m-q4_k_m", "bartowski/SmolLM2-135M-Instruct-GGUF:Q4_K_M");
        check("qwen3:0.6b-UD-Q4_K_XL", "qwen3:0.6b-ud-q4_k_xl", "unsloth/Qwen3-0.6B-GGUF:UD-Q4_K_XL");
        for none in
            ["", ":", "qwen3:", "qwen3:9b", "qwen", "Hello", "qwen3:0.6b-", "qwen3:0.6b-instruct", "hf:o/r"]
        {
            assert_eq!(source(none), None, "{none}");
        }
    }

    #[test]
    fn quantisations_are_told_from_other_words() {
        for word in ["q8_0", "q4_k_m", "iq4_xs", "iq1_s", "f16", "bf16", "mxfp4", "ud-q2_k_xl", "q4_0_4_4"] {
            assert!(is_quantisation(word), "{word}");
        }
        for word in ["", "q", "qwen", "instruct", "q44_k", "q4_", "q4__m", "f8", "4_0", "ud-"] {
            assert!(!is_quantisation(word), "{word}");
        }
    }

    /// Every row has a name of its own that a shelf takes, a family whose rows stand together, and a repository.
    #[test]
    fn the_table_is_in_order() {
        let names: HashSet<&str> = TABLE.iter().map(|row| row.name).collect();
        let repositories: HashSet<&str> = TABLE.iter().map(|row| row.repository).collect();
        assert_eq!((names.len(), repositories.len()), (TABLE.len(), TABLE.len()));
        assert!(TABLE.len() > 40);
        let mut families: Vec<&str> = TABLE.iter().map(ShortName::family).collect();
        families.dedup();
        assert_eq!(families.iter().collect::<HashSet<_>>().len(), families.len(), "{families:?}");
        for row in TABLE {
            let short = Short::of(row.name).unwrap();
            assert_eq!((short.name.as_str(), short.source.to_string().as_str()), (row.name, row.repository));
            assert_eq!(row.name, row.name.to_ascii_lowercase());
            assert!(row.parameters_m > 100 && !row.licence.is_empty(), "{row:?}");
        }
    }

    #[test]
    fn sizes_are_those_of_files() {
        let gib = |name: &str| {
            let row = TABLE.iter().find(|row| row.name == name).unwrap();
            row.bytes_in_q8() as f64 / 1e9
        };
        // The files of these two have 0.64 and 8.71 GB.
        assert!((0.60..0.68).contains(&gib("qwen3:0.6b")) && (8.5..8.9).contains(&gib("qwen3:8b")));
        let row = TABLE.iter().find(|row| row.name == "qwen3:8b").unwrap();
        assert_eq!(row.expected(None), ("Q8_0", row.bytes_in_q8()));
        // Its file in Q4_K_M has 5.03 GB.
        let (quantisation, bytes) = row.expected(Some(8_000_000_000));
        assert!(quantisation == "Q4_K_M" && (4_900_000_000..5_100_000_000).contains(&bytes), "{bytes}");
    }

    #[test]
    fn a_word_finds_names_and_repositories() {
        let names = |word: &str| ShortName::matching(word).map(|row| row.name).collect::<Vec<_>>();
        assert_eq!(names("SMOLLM2"), ["smollm2:360m", "smollm2:135m", "smollm2:1.7b"]);
        assert_eq!(names("meta-llama"), ["llama3.1:8b"]);
        assert_eq!(names("no such model"), [""; 0]);
    }
}

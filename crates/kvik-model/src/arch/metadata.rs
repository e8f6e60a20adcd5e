//! How architectures read settings, independent of the kind of file.

use crate::ConfigError;

/// A setting by its name in GGUF, without the prefix of the architecture, and its names in `config.json`, of which the
/// first that is present counts. A key without a name for a kind of file is never found there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Key {
    pub(crate) gguf: Option<&'static str>,
    pub(crate) hf: &'static [&'static str],
}

impl Key {
    /// A setting of both kinds of file.
    pub(crate) const fn new(gguf: &'static str, hf: &'static [&'static str]) -> Key {
        Key { gguf: Some(gguf), hf }
    }

    /// A setting of GGUF only.
    pub(crate) const fn gguf(gguf: &'static str) -> Key {
        Key { gguf: Some(gguf), hf: &[] }
    }

    /// A setting of `config.json` only.
    pub(crate) const fn hf(hf: &'static [&'static str]) -> Key {
        Key { gguf: None, hf }
    }
}

/// The RoPE base of windowed layers, and the fraction of each head that rotates in them. Newer files have both among
/// their RoPE parameters: the last name is the one under which those are passed on.
pub(crate) const WINDOWED_THETA: Key =
    Key::new("rope.freq_base_swa", &["rope_local_base_freq", "rope_theta of sliding_attention"]);
pub(crate) const WINDOWED_PART: Key = Key::hf(&["partial_rotary_factor of sliding_attention"]);

/// The classes of a model, of which the first counts.
const CLASSES: Key = Key::hf(&["architectures"]);

/// Whether a file is a checkpoint of this class of transformers: the defaults of settings differ between classes.
pub(super) fn is_of_class(metadata: &dyn Metadata, class: &str) -> Result<bool, ConfigError> {
    let classes = metadata.texts(CLASSES)?;
    Ok(classes.is_some_and(|classes| classes.first().is_some_and(|first| first == class)))
}

/// The settings of a model. An absent setting is `None`; one of another type is an error that names it.
pub(crate) trait Metadata {
    /// Whether they come from `config.json`.
    fn is_hf(&self) -> bool;

    /// A non-negative integer.
    fn count(&self, key: Key) -> Result<Option<usize>, ConfigError>;

    /// A number.
    fn number(&self, key: Key) -> Result<Option<f32>, ConfigError>;

    /// A boolean.
    fn flag(&self, key: Key) -> Result<Option<bool>, ConfigError>;

    /// An array of booleans, or of numbers of which 0 is false; `None` for a single value.
    fn flags(&self, key: Key) -> Result<Option<Vec<bool>>, ConfigError>;

    /// An array of non-negative integers; `None` for a single value.
    fn counts(&self, key: Key) -> Result<Option<Vec<usize>>, ConfigError>;

    /// An array of numbers.
    fn numbers(&self, key: Key) -> Result<Option<Vec<f32>>, ConfigError>;

    /// A string, or an array of strings.
    fn texts(&self, key: Key) -> Result<Option<Vec<String>>, ConfigError>;

    /// Whether the file names this setting without a value. In this way a checkpoint says that it lacks a part that its
    /// class has by default.
    fn is_null(&self, key: Key) -> bool;

    /// The name of `key` in the file, for an error.
    fn name(&self, key: Key) -> String;

    /// A required count.
    fn needed_count(&self, key: Key) -> Result<usize, ConfigError> {
        self.count(key)?.ok_or_else(|| ConfigError::new(&self.name(key), "missing", "a count"))
    }

    /// A required number.
    fn needed_number(&self, key: Key) -> Result<f32, ConfigError> {
        self.number(key)?.ok_or_else(|| ConfigError::new(&self.name(key), "missing", "a number"))
    }
}

//! How the files of architectures ask for settings, whatever kind of file these stand in.

use crate::model::ConfigError;

/// A setting by its name in GGUF, without the prefix of the architecture, and its names in `config.json`, of which the
/// first that is there counts. One without a name in one of the two is never found there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Key {
    pub(crate) gguf: Option<&'static str>,
    pub(crate) hf: &'static [&'static str],
}

impl Key {
    /// A setting of both.
    pub(crate) const fn new(gguf: &'static str, hf: &'static [&'static str]) -> Key {
        Key { gguf: Some(gguf), hf }
    }

    /// A setting of GGUF alone.
    pub(crate) const fn gguf(gguf: &'static str) -> Key {
        Key { gguf: Some(gguf), hf: &[] }
    }

    /// A setting of `config.json` alone.
    pub(crate) const fn hf(hf: &'static [&'static str]) -> Key {
        Key { gguf: None, hf }
    }
}

/// The base of the rotation of layers with a window, and the part of each head that rotates in them. Newer files have
/// both among the parameters of their rotation: the last name is the one under which that is handed on.
pub(crate) const WINDOWED_THETA: Key =
    Key::new("rope.freq_base_swa", &["rope_local_base_freq", "rope_theta of sliding_attention"]);
pub(crate) const WINDOWED_PART: Key = Key::hf(&["partial_rotary_factor of sliding_attention"]);

/// The settings of a model. What is absent is `None`; what is there and of another kind is an error that names it.
pub(crate) trait Metadata {
    /// Whether they are those of `config.json`.
    fn is_hf(&self) -> bool;

    /// A non-negative integer.
    fn count(&self, key: Key) -> Result<Option<usize>, ConfigError>;

    /// A number.
    fn number(&self, key: Key) -> Result<Option<f32>, ConfigError>;

    /// A truth value.
    fn flag(&self, key: Key) -> Result<Option<bool>, ConfigError>;

    /// An array of truth values, or of numbers of which 0 is false; a single value is none.
    fn flags(&self, key: Key) -> Result<Option<Vec<bool>>, ConfigError>;

    /// An array of non-negative integers; a single value is none.
    fn counts(&self, key: Key) -> Result<Option<Vec<usize>>, ConfigError>;

    /// An array of numbers.
    fn numbers(&self, key: Key) -> Result<Option<Vec<f32>>, ConfigError>;

    /// A text, or an array of texts.
    fn texts(&self, key: Key) -> Result<Option<Vec<String>>, ConfigError>;

    /// Names `key` in an error as the file names it.
    fn name(&self, key: Key) -> String;

    /// A count that must be there.
    fn needed_count(&self, key: Key) -> Result<usize, ConfigError> {
        self.count(key)?.ok_or_else(|| ConfigError::new(&self.name(key), "missing", "a count"))
    }

    /// A number that must be there.
    fn needed_number(&self, key: Key) -> Result<f32, ConfigError> {
        self.number(key)?.ok_or_else(|| ConfigError::new(&self.name(key), "missing", "a number"))
    }
}

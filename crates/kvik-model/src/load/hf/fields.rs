//! The settings of an architecture in `config.json`.

use serde_json::{Map, Value};

use crate::ConfigError;
use crate::metadata::{Key, Metadata};

/// The settings of an architecture, by their names in `config.json` or among its RoPE parameters.
pub(super) struct Fields<'a> {
    /// All of `config.json`.
    pub(super) settings: &'a Map<String, Value>,
    /// RoPE parameters that not all architectures have.
    pub(super) rope: &'a Map<String, Value>,
    /// RoPE parameters of windowed layers.
    pub(super) windowed: &'a Map<String, Value>,
}

impl Fields<'_> {
    pub(super) fn value(&self, name: &str) -> Option<&Value> {
        [self.settings, self.rope, self.windowed].into_iter().find_map(|place| place.get(name))
    }

    fn get<T>(
        &self,
        key: Key,
        expected: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        let mut found = key.hf.iter().filter_map(|name| Some((name, self.value(name)?)));
        let found = found.find(|(_, value)| !value.is_null());
        let bad = |(name, value): (&&str, &Value)| ConfigError::new(name, value, expected);
        found.map(|found| read(found.1).ok_or_else(|| bad(found))).transpose()
    }
}

impl Metadata for Fields<'_> {
    fn is_hf(&self) -> bool {
        true
    }

    fn count(&self, key: Key) -> Result<Option<usize>, ConfigError> {
        // Some files write counts as floats.
        let whole = |number: &f64| *number >= 0.0 && *number <= f64::from(u32::MAX) && number.fract() == 0.0;
        let count =
            |value: &Value| value.as_u64().or(value.as_f64().filter(whole).map(|number| number as u64));
        self.get(key, "a count", |value| usize::try_from(count(value)?).ok())
    }

    fn number(&self, key: Key) -> Result<Option<f32>, ConfigError> {
        self.get(key, "a number", |value| Some(value.as_f64()? as f32))
    }

    fn flag(&self, key: Key) -> Result<Option<bool>, ConfigError> {
        self.get(key, "true or false", truth)
    }

    fn flags(&self, key: Key) -> Result<Option<Vec<bool>>, ConfigError> {
        let flags = |value: &Value| match value {
            Value::Array(values) => Some(Some(values.iter().map(truth).collect::<Option<_>>()?)),
            Value::Number(_) => Some(None),
            _ => None,
        };
        Ok(self.get(key, "a value for each layer", flags)?.flatten())
    }

    fn counts(&self, key: Key) -> Result<Option<Vec<usize>>, ConfigError> {
        let count = |value: &Value| usize::try_from(value.as_u64()?).ok();
        self.get(key, "an array of counts", |value| value.as_array()?.iter().map(count).collect())
    }

    fn numbers(&self, key: Key) -> Result<Option<Vec<f32>>, ConfigError> {
        self.get(key, "an array of numbers", |value| {
            value.as_array()?.iter().map(|value| Some(value.as_f64()? as f32)).collect()
        })
    }

    fn texts(&self, key: Key) -> Result<Option<Vec<String>>, ConfigError> {
        self.get(key, "text", |value| match value {
            Value::String(text) => Some(vec![text.clone()]),
            Value::Array(values) => values.iter().map(|value| Some(value.as_str()?.to_owned())).collect(),
            _ => None,
        })
    }

    fn is_null(&self, key: Key) -> bool {
        let values: Vec<&Value> = key.hf.iter().filter_map(|name| self.value(name)).collect();
        !values.is_empty() && values.into_iter().all(Value::is_null)
    }

    fn name(&self, key: Key) -> String {
        let said = key.hf.iter().find(|name| self.value(name).is_some());
        match said {
            Some(name) => (*name).to_owned(),
            // Any of the names is valid.
            None if !key.hf.is_empty() => key.hf.join(" or "),
            None => key.gguf.unwrap_or_default().to_owned(),
        }
    }
}

/// A boolean, or a number of which 0 is false.
fn truth(value: &Value) -> Option<bool> {
    value.as_bool().or(value.as_u64().map(|number| number != 0))
}

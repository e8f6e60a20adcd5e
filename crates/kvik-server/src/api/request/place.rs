//! A value in a body with its path, for formats that are parsed by hand: errors name the path.

use serde_json::Value;

use super::number::whole_number;
use crate::http::{
    error::ApiError,
    json::{unknown, wrong},
};

type Result<T> = std::result::Result<T, ApiError>;

/// A value and its path, such as `messages[2].content`.
#[derive(Debug, Clone)]
pub(crate) struct Place<'a> {
    pub(crate) value: &'a Value,
    pub(crate) path: String,
}

impl<'a> Place<'a> {
    pub(crate) fn new(path: impl Into<String>, value: &'a Value) -> Place<'a> {
        Place { value, path: path.into() }
    }

    /// Returns a field that is present and not null.
    pub(crate) fn get(&self, name: &str) -> Option<Place<'a>> {
        let value = self.value.get(name).filter(|value| !value.is_null())?;
        Some(Place::new(format!("{}.{name}", self.path), value))
    }

    /// Returns a required field.
    pub(crate) fn need(&self, name: &str) -> Result<Place<'a>> {
        if !self.value.is_object() {
            return Err(self.wrong("an object"));
        }
        self.get(name).ok_or_else(|| self.at(name, "is missing"))
    }

    /// Returns the text of a required field.
    pub(crate) fn need_text(&self, name: &str) -> Result<&'a str> {
        self.need(name)?.text()
    }

    pub(crate) fn text(&self) -> Result<&'a str> {
        self.value.as_str().ok_or_else(|| self.wrong("a string"))
    }

    /// Returns the whole number that it is; some clients send it as a float.
    pub(crate) fn whole(&self) -> Result<i64> {
        whole_number(self.value).ok_or_else(|| self.wrong("a whole number"))
    }

    pub(crate) fn bool(&self) -> Result<bool> {
        self.value.as_bool().ok_or_else(|| self.wrong("a boolean"))
    }

    /// Iterates over the entries of an array.
    pub(crate) fn items(&self) -> Result<impl ExactSizeIterator<Item = Place<'a>> + use<'a>> {
        let items = self.value.as_array().ok_or_else(|| self.wrong("an array"))?;
        let path = self.path.clone();
        Ok(items.iter().enumerate().map(move |(i, item)| Place::new(format!("{path}[{i}]"), item)))
    }

    /// Returns a note for each field of the object that is not in `known`.
    pub(crate) fn auxiliary(&self, known: &[&str]) -> Result<impl Iterator<Item = String>> {
        let object = self.value.as_object().ok_or_else(|| self.wrong("an object"))?;
        let others =
            object.iter().filter(|(name, value)| !value.is_null() && !known.contains(&name.as_str()));
        Ok(others.map(|(name, _)| unknown(&format!("{}.{name}", self.path))))
    }

    /// Returns an error about the field `name`; `text` is the end of the sentence.
    pub(crate) fn at(&self, name: &str, text: &str) -> ApiError {
        let path = format!("{}.{name}", self.path);
        ApiError::field(&path, format!("`{path}` {text}"))
    }

    /// Returns an error about the value; `text` is the end of the sentence.
    pub(crate) fn error(&self, text: &str) -> ApiError {
        ApiError::field(&self.path, format!("`{}` {text}", self.path))
    }

    /// Returns an error about the type of the value.
    pub(crate) fn wrong(&self, expected: &str) -> ApiError {
        wrong(self.path.as_str(), expected, self.value)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_complaint_names_its_place() {
        let value = json!({"a": [{"b": 1, "c": null}], "d": "x"});
        let place = Place::new("messages[0]", &value);
        let item = place.need("a").unwrap().items().unwrap().next().unwrap();
        let param = |error: ApiError| error.param().unwrap().to_owned();
        assert_eq!(param(item.need("c").unwrap_err()), "messages[0].a[0].c");
        assert_eq!(param(item.need_text("b").unwrap_err()), "messages[0].a[0].b");
        assert_eq!(param(place.need("d").unwrap().auxiliary(&[]).err().unwrap()), "messages[0].d");
        let notes: Vec<String> = item.auxiliary(&["c"]).unwrap().collect();
        assert_eq!(notes, ["`messages[0].a[0].b` is not known here and was ignored"]);
        assert_eq!(param(place.need("d").unwrap().need("x").unwrap_err()), "messages[0].d");
        assert_eq!(place.need_text("d").unwrap(), "x");
        assert_eq!(item.auxiliary(&["b"]).unwrap().count(), 0, "what is null is absent");
    }
}

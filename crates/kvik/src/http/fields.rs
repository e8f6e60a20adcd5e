//! Reads the fields of a JSON request body and names the field in every complaint.
//!
//! Hand-written rather than derived: a wrong value is answered with the path of the field, what it
//! may be and what it was, in words that are the same for every endpoint.
//! An explicit `null` counts as absent, and fields that nobody asks for are ignored, as OpenAI does:
//! a field of the body is built when it is asked for, the others never are.

use std::{collections::BTreeMap, ops::RangeInclusive};

use axum::body::Bytes;
use serde_json::{Map, Value};

use super::{
    error::ApiError,
    json::{Budget, JsonError, split},
    readers::Presence,
};

type Result<T> = std::result::Result<T, ApiError>;

/// The object at `path` of the request body.
#[derive(Debug)]
pub(crate) struct Fields {
    /// Empty for the body itself.
    path: String,
    object: Map<String, Value>,
    /// Fields that are not built yet, by their text.
    unread: BTreeMap<String, Bytes>,
    /// For building them.
    budget: Budget,
    presence: Presence,
}

impl Fields {
    /// The text of a request's body, which must be an object.
    pub(crate) fn parse(body: &Bytes) -> Result<Fields> {
        let whole = |error: JsonError| ApiError::bad_request(format!("the body {error}"));
        if let Some(other) = body.trim_ascii_start().first().filter(|&&first| first != b'{') {
            // Building a long array would cost more than the name of its kind is worth.
            let value = if *other == b'[' {
                Value::Array(Vec::new())
            } else {
                Budget::new().build(body).map_err(whole)?
            };
            return Fields::of_body(value);
        }
        let unread = split(body).map_err(whole)?;
        Ok(Fields { unread, ..Fields::new(String::new(), Map::new()) })
    }

    /// The body of a request, which must be an object.
    pub(crate) fn of_body(body: Value) -> Result<Fields> {
        match body {
            Value::Object(object) => Ok(Fields::new(String::new(), object)),
            other => {
                Err(ApiError::bad_request(format!("the body must be a JSON object, not {}", kind(&other))))
            }
        }
    }

    /// The object `value`, which stands at `path`.
    pub(crate) fn of(path: String, value: Value) -> Result<Fields> {
        match value {
            Value::Object(object) => Ok(Fields::new(path, object)),
            other => Err(wrong(path, "an object", &other)),
        }
    }

    /// The same, as long as somebody waits for what is made of them.
    pub(crate) fn wanted_by(self, presence: Presence) -> Fields {
        Fields { presence, ..self }
    }

    /// An error once the client has left, to be asked before long work.
    pub(crate) fn still_wanted(&self) -> Result<()> {
        self.presence.check()
    }

    fn new(path: String, object: Map<String, Value>) -> Fields {
        Fields { path, object, unread: BTreeMap::new(), budget: Budget::new(), presence: Presence::default() }
    }

    /// Path of the field `name` from the body: `response_format.type`.
    pub(crate) fn path(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// Whether a field is there.
    pub(crate) fn has(&self, name: &str) -> bool {
        let unread = self.unread.get(name).is_some_and(|text| &text[..] != b"null");
        unread || self.object.get(name).is_some_and(|value| !value.is_null())
    }

    /// A copy of these fields, as far as they are there and have not been taken yet.
    pub(crate) fn copy(&mut self, names: &[&str]) -> Result<Value> {
        names.iter().try_for_each(|name| self.build(name))?;
        let field = |name: &&str| Some(((*name).to_owned(), self.object.get(*name)?.clone()));
        Ok(Value::Object(names.iter().filter_map(field).collect()))
    }

    /// Removes and returns a field of any type.
    pub(crate) fn take(&mut self, name: &str) -> Result<Option<Value>> {
        self.build(name)?;
        Ok(self.object.get_mut(name).map(Value::take).filter(|value| !value.is_null()))
    }

    /// Builds a field of which there is only the text.
    fn build(&mut self, name: &str) -> Result<()> {
        if let Some(text) = self.unread.remove(name) {
            self.still_wanted()?;
            let value = self.budget.build(&text);
            let value = value.map_err(|error| self.error(name, error.to_string()))?;
            self.object.insert(name.to_owned(), value);
        }
        Ok(())
    }

    /// A complaint about the field `name`.
    pub(crate) fn error(&self, name: &str, message: impl AsRef<str>) -> ApiError {
        let path = self.path(name);
        ApiError::field(path.clone(), format!("`{path}` {}", message.as_ref()))
    }

    /// A field that has to be there.
    pub(crate) fn required<T>(&self, name: &str, value: Option<T>) -> Result<T> {
        value.ok_or_else(|| self.error(name, "is missing"))
    }

    /// Refuses fields that are not among `known`; for objects that nobody but kvik defines.
    pub(crate) fn refuse_unknown(&self, known: &[&str]) -> Result<()> {
        match self.object.keys().find(|name| !known.contains(&name.as_str())) {
            None => Ok(()),
            Some(name) => Err(self.error(name, format!("is not known; kvik knows {}", known.join(", ")))),
        }
    }

    pub(crate) fn bool(&mut self, name: &str) -> Result<Option<bool>> {
        self.typed(name, "true or false", |value| value.as_bool())
    }

    pub(crate) fn string(&mut self, name: &str) -> Result<Option<String>> {
        match self.take(name)? {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong(self.path(name), "a string", &other)),
        }
    }

    pub(crate) fn array(&mut self, name: &str) -> Result<Option<Vec<Value>>> {
        match self.take(name)? {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(other) => Err(wrong(self.path(name), "an array", &other)),
        }
    }

    pub(crate) fn object(&mut self, name: &str) -> Result<Option<Fields>> {
        self.take(name)?.map(|value| Fields::of(self.path(name), value)).transpose()
    }

    /// A number inside `range`.
    pub(crate) fn number(&mut self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f64>> {
        let number = self.typed(name, "a number", Value::as_f64)?;
        match number {
            Some(x) if !range.contains(&x) => {
                let (low, high) = (range.start(), range.end());
                let allowed = if high.is_finite() {
                    format!("from {low} to {high}")
                } else {
                    format!("at least {low}")
                };
                Err(self.error(name, format!("must be {allowed}, not {x}")))
            }
            other => Ok(other),
        }
    }

    /// A whole number inside `range`; `4.0` counts as one, because some clients send floats.
    pub(crate) fn integer(&mut self, name: &str, range: RangeInclusive<i64>) -> Result<Option<i64>> {
        let number = self.typed(name, "a whole number", whole)?;
        match number {
            Some(x) if !range.contains(&x) => {
                let (low, high) = (*range.start(), *range.end());
                let allowed =
                    if high < i64::MAX { format!("from {low} to {high}") } else { format!("at least {low}") };
                Err(self.error(name, format!("must be {allowed}, not {x}")))
            }
            other => Ok(other),
        }
    }

    fn typed<T>(
        &mut self,
        name: &str,
        expected: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>> {
        match self.take(name)? {
            None => Ok(None),
            Some(value) => match read(&value) {
                Some(read) => Ok(Some(read)),
                None => Err(wrong(self.path(name), expected, &value)),
            },
        }
    }
}

/// "`path` must be `expected`, not ...".
pub(crate) fn wrong(path: String, expected: &str, found: &Value) -> ApiError {
    let message = format!("`{path}` must be {expected}, not {}", kind(found));
    ApiError::field(path, message)
}

/// What a value is, in words, with the value itself where it is short.
fn kind(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(b) => b.to_string(),
        Value::Number(n) => n.to_string(),
        Value::String(s) if s.len() <= 40 => format!("the string {s:?}"),
        Value::String(_) => "a string".to_owned(),
        Value::Array(_) => "an array".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

/// A whole number, written as an integer or as a float without a fraction.
pub(crate) fn whole(value: &Value) -> Option<i64> {
    let from_float = |x: f64| (x.fract() == 0.0 && x.abs() < 9.0e15).then_some(x as i64);
    value.as_i64().or_else(|| value.as_f64().and_then(from_float))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn message(error: &ApiError) -> (String, String) {
        let body = error.body();
        (
            body["error"]["param"].as_str().unwrap_or("").to_owned(),
            body["error"]["message"].as_str().unwrap().to_owned(),
        )
    }

    #[test]
    fn complaints_name_the_field_and_the_value() {
        let check = |body: Value, read: fn(&mut Fields) -> Result<()>, param: &str, text: &str| {
            let error = read(&mut Fields::of_body(body).unwrap()).unwrap_err();
            assert_eq!(message(&error), (param.to_owned(), text.to_owned()));
        };
        check(
            json!({"temperature": "hot"}),
            |f| f.number("temperature", 0.0..=2.0).map(drop),
            "temperature",
            "`temperature` must be a number, not the string \"hot\"",
        );
        check(
            json!({"temperature": -1}),
            |f| f.number("temperature", 0.0..=2.0).map(drop),
            "temperature",
            "`temperature` must be from 0 to 2, not -1",
        );
        check(
            json!({"n": 1.5}),
            |f| f.integer("n", 1..=8).map(drop),
            "n",
            "`n` must be a whole number, not 1.5",
        );
        check(
            json!({"n": 0}),
            |f| f.integer("n", 1..=i64::MAX).map(drop),
            "n",
            "`n` must be at least 1, not 0",
        );
        check(
            json!({"stream_options": {"include_usage": 1}}),
            |f| f.object("stream_options")?.unwrap().bool("include_usage").map(drop),
            "stream_options.include_usage",
            "`stream_options.include_usage` must be true or false, not 1",
        );
        check(
            json!({"messages": {}}),
            |f| f.array("messages").map(drop),
            "messages",
            "`messages` must be an array, not an object",
        );
    }

    #[test]
    fn null_is_absent_and_whole_floats_are_integers() {
        let mut fields = Fields::of_body(json!({"a": null, "b": 4.0, "c": 1e300})).unwrap();
        assert_eq!(fields.integer("a", 0..=9), Ok(None));
        assert_eq!(fields.integer("b", 0..=9), Ok(Some(4)));
        assert!(fields.integer("c", 0..=9).is_err());
        assert_eq!(fields.integer("missing", 0..=9), Ok(None));
    }

    #[test]
    fn a_body_is_an_object() {
        let check = |text: &'static str, message: &str| {
            let error = Fields::parse(&Bytes::from_static(text.as_bytes())).unwrap_err().body();
            assert_eq!(
                (&error["error"]["param"], &error["error"]["message"]),
                (&json!(null), &json!(message))
            );
        };
        check(" [1]", "the body must be a JSON object, not an array");
        check("7", "the body must be a JSON object, not 7");
        check("seven", "the body is not valid JSON: expected value at line 1 column 1");
    }

    #[test]
    fn nothing_is_read_for_a_client_that_has_left() {
        let presence = Presence::default();
        let client = presence.client();
        let body = Bytes::from_static(br#"{"a": 1, "b": 2}"#);
        let mut fields = Fields::parse(&body).unwrap().wanted_by(presence);
        assert_eq!(fields.integer("a", 0..=9), Ok(Some(1)));
        drop(client);
        assert!(fields.integer("b", 0..=9).is_err() && fields.still_wanted().is_err());
    }

    #[test]
    fn a_field_is_built_when_it_is_read() {
        let deep = "[".repeat(100_000) + &"]".repeat(100_000);
        let body = format!(r#"{{"deep": {deep}, "a": {{"b": [1]}}, "none": null, "odd": "\ud800"}}"#);
        let mut fields = Fields::parse(&Bytes::from(body)).unwrap();
        assert!(fields.has("a") && fields.has("deep") && !fields.has("none") && !fields.has("b"));
        assert_eq!(fields.copy(&["a", "c"]), Ok(json!({"a": {"b": [1]}})));
        assert_eq!(fields.take("a"), Ok(Some(json!({"b": [1]}))));
        assert_eq!(fields.take("a"), Ok(None));
        assert_eq!(fields.take("none"), Ok(None));
        for name in ["deep", "odd"] {
            assert_eq!(message(&fields.take(name).unwrap_err()).0, name);
        }
    }
}

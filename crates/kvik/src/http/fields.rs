//! Reads the fields of a JSON request body and names the field in every complaint.
//!
//! Hand-written rather than derived: a wrong value is answered with the path of the field, what it
//! may be and what it was, in words that are the same for every endpoint.
//! An explicit `null` counts as absent, and fields that nobody asks for are ignored, as OpenAI does.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use super::error::ApiError;

type Result<T> = std::result::Result<T, ApiError>;

/// The object at `path` of the request body.
#[derive(Debug)]
pub(crate) struct Fields {
    /// Empty for the body itself.
    path: String,
    object: Map<String, Value>,
}

impl Fields {
    /// The body of a request, which must be an object.
    pub(crate) fn of_body(body: Value) -> Result<Fields> {
        match body {
            Value::Object(object) => Ok(Fields { path: String::new(), object }),
            other => {
                Err(ApiError::bad_request(format!("the body must be a JSON object, not {}", kind(&other))))
            }
        }
    }

    /// The object `value`, which stands at `path`.
    pub(crate) fn of(path: String, value: Value) -> Result<Fields> {
        match value {
            Value::Object(object) => Ok(Fields { path, object }),
            other => Err(wrong(path, "an object", &other)),
        }
    }

    /// Path of the field `name` from the body: `response_format.type`.
    pub(crate) fn path(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// Whether a field is there.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.object.get(name).is_some_and(|value| !value.is_null())
    }

    /// All that has not been taken yet.
    pub(crate) fn rest(&self) -> Value {
        Value::Object(self.object.clone())
    }

    /// Removes and returns a field of any type.
    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.object.get_mut(name).map(Value::take).filter(|value| !value.is_null())
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
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong(self.path(name), "a string", &other)),
        }
    }

    pub(crate) fn array(&mut self, name: &str) -> Result<Option<Vec<Value>>> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(other) => Err(wrong(self.path(name), "an array", &other)),
        }
    }

    pub(crate) fn object(&mut self, name: &str) -> Result<Option<Fields>> {
        self.take(name).map(|value| Fields::of(self.path(name), value)).transpose()
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
        match self.take(name) {
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
        assert!(Fields::of_body(json!([1])).unwrap_err().body()["error"]["param"].is_null());
    }
}

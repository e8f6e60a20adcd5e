//! JSON request bodies, read into types: field by field, within a memory budget, while the client waits.
//!
//! [`Body`] only finds where each field begins and ends. A struct then reads the fields that it declares, in the order
//! in which it declares them; undeclared fields are never built, and are noted. An explicit `null` counts as absent,
//! and the last of several fields with one name wins, at every depth. The error for a wrong value has the path of its
//! field, the allowed values and the value itself.

mod complaint;
mod notes;
mod text;
mod weigh;

use std::{borrow::Cow, collections::BTreeMap, fmt, slice, sync::Arc};

use axum::body::Bytes;
use kvik_text::{arguments::whole_surrogates, measure::json_bytes};
use serde::{
    Deserialize, Deserializer,
    de::{self, DeserializeOwned, IgnoredAny, MapAccess, Visitor},
};
use serde_json::{Map, Value, value::RawValue};

use self::{
    complaint::Complaint,
    notes::Notes,
    text::{Text, Whole},
    weigh::Budget,
};
pub(crate) use self::{complaint::wrong, notes::unknown, text::OR_ARRAY};
use super::{error::ApiError, readers::Presence};

type Result<T> = std::result::Result<T, ApiError>;

/// Maximum number of fields of a body, known and unknown.
const FIELDS_MAX: usize = 1024;

/// Memory limit for the values of one body, without their strings.
pub(crate) const VALUES_BYTES_MAX: usize = weigh::BYTES_MAX;

/// True if the values are within the memory limit of one body.
pub(crate) fn fit_in_a_body(values: &[Value]) -> bool {
    Budget::default().charge_items(values).is_ok()
}

/// Bytes that a value which was read takes in memory, with its texts.
pub(crate) fn bytes_taken(value: &Value) -> u64 {
    let budget = Budget::default();
    // What does not fit in a body's budget counts as all of it.
    let slots = budget.charge_items(slice::from_ref(value)).map_or(VALUES_BYTES_MAX, |()| budget.charged());
    (slots + json_bytes(value)) as u64
}

/// Reasons why a text was not read.
#[derive(Debug, Clone, PartialEq)]
enum JsonError {
    /// The text is not valid JSON, or nested too deeply to be built.
    Syntax(String),
    /// The text is nested more deeply than any request needs.
    TooDeep,
    /// The body has more fields than any request needs.
    TooManyFields,
    /// The values need more memory than one body may take.
    OverBudget,
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JsonError::Syntax(reason) => write!(f, "is not valid JSON: {reason}"),
            JsonError::TooDeep => f.write_str("is nested too deeply"),
            JsonError::TooManyFields => write!(f, "has more than {FIELDS_MAX} fields"),
            JsonError::OverBudget => {
                write!(f, "holds more values than fit in {} MiB; send fewer", weigh::BYTES_MAX >> 20)
            }
        }
    }
}

fn syntax(error: impl fmt::Display) -> JsonError {
    JsonError::Syntax(error.to_string())
}

/// State that all readers of one body share.
#[derive(Debug, Default)]
struct Reading {
    budget: Budget,
    presence: Presence,
    notes: Notes,
}

/// The texts of a body's fields, which share its bytes.
#[derive(Debug, Clone)]
pub(crate) struct BodyFields(Arc<BTreeMap<String, Bytes>>);

/// BodyFields of a request body, as text.
#[derive(Debug)]
pub(crate) struct Body {
    fields: BodyFields,
    reading: Reading,
}

impl BodyFields {
    /// Splits a body, which must be an object.
    pub(crate) fn of(text: &Bytes) -> Result<BodyFields> {
        let whole = |error: JsonError| ApiError::bad_request(format!("the body {error}"));
        let first = text.trim_ascii_start().first();
        if first.is_some_and(|&first| first != b'{') {
            let found = complaint::found(text).map_err(whole)?;
            return Err(ApiError::bad_request(format!("the body must be a JSON object, not {found}")));
        }
        Ok(BodyFields(Arc::new(split(&whole_characters(text)).map_err(whole)?)))
    }
}

impl From<BodyFields> for Body {
    fn from(fields: BodyFields) -> Body {
        Body { fields, reading: Reading::default() }
    }
}

impl Body {
    /// Splits a body, which must be an object, into its fields.
    pub(crate) fn parse(text: &Bytes) -> Result<Body> {
        BodyFields::of(text).map(Body::from)
    }

    /// Wraps a body of any shape as the field `name`.
    pub(crate) fn wrap(name: &str, text: &Bytes) -> Result<Body> {
        let text = whole_characters(text);
        serde_json::from_slice::<&RawValue>(&text)
            .map_err(|error| ApiError::bad_request(format!("the body {}", syntax(error))))?;
        Ok(BodyFields(Arc::new(BTreeMap::from([(name.to_owned(), text)]))).into())
    }

    /// Parses a stored body.
    pub(crate) fn of(body: &Value) -> Result<Body> {
        Body::parse(&body.to_string().into())
    }

    /// Aborts reading when the client of `presence` leaves.
    pub(crate) fn wanted_by(mut self, presence: Presence) -> Body {
        self.reading.presence = presence;
        self
    }

    /// Returns an error once the client has left; to be called before long work.
    pub(crate) fn still_wanted(&self) -> Result<()> {
        self.reading.presence.check()
    }

    /// True if the field is present and not null.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.fields.0.get(name).is_some_and(|text| !text::is_null(text))
    }

    /// Names of the fields that are not null.
    fn names(&self) -> impl Iterator<Item = &str> {
        self.fields.0.iter().filter(|(_, text)| !text::is_null(text)).map(|(name, _)| name.as_str())
    }

    /// Adds a note that a part of the request is not obeyed.
    pub(crate) fn note(&self, text: String) {
        self.reading.notes.note(text);
    }

    /// Notes on what was not read or is not obeyed; complete once all readers have run.
    pub(crate) fn notes(&self) -> Vec<String> {
        self.reading.notes.with(self.names())
    }

    /// Reads the fields that a struct declares.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Result<T> {
        read("", Whole(self))
    }

    /// Copies those of these fields that are present.
    pub(crate) fn copy(&self, names: &[&str]) -> Result<Value> {
        let mut copy = Map::new();
        let reading = Reading::default();
        for &name in names {
            let Some(text) = self.fields.0.get(name) else { continue };
            let Json(value) = read(name, Text::new(text, &reading))?;
            copy.insert(name.to_owned(), value);
        }
        Ok(Value::Object(copy))
    }
}

/// Reads the value at `path`.
fn read<'de, T, D>(path: &str, from: D) -> Result<T>
where
    T: Deserialize<'de>,
    D: Deserializer<'de, Error = Complaint>,
{
    serde_path_to_error::deserialize(from).map_err(|error| {
        let place = error.path().to_string();
        let place = match (path, place.as_str()) {
            (path, ".") => path.to_owned(),
            ("", place) => place.to_owned(),
            (path, place) if place.starts_with('[') => format!("{path}{place}"),
            (path, place) => format!("{path}.{place}"),
        };
        error.into_inner().at(&place)
    })
}

/// A value of any shape, built within the budget of its body.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Json(pub(crate) Value);

impl Json {
    /// Reads a type out of the value, whose path is `path`.
    pub(crate) fn read<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        let text = self.0.to_string();
        read(path, Text::new(text.as_bytes(), &Reading::default()))
    }

    /// Parses a text that is itself JSON; the error is the end of a sentence.
    pub(crate) fn parse(text: &str) -> std::result::Result<Json, String> {
        let built = Budget::default().charge_all(text.as_bytes());
        built.and_then(|()| serde_json::from_str(text).map_err(syntax)).map(Json).map_err(|e| e.to_string())
    }
}

/// The deserializer of a body returns the text of a value as bytes, after charging it to the budget.
impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Json, D::Error> {
        struct Built;
        impl Visitor<'_> for Built {
            type Value = Json;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("any JSON value")
            }

            fn visit_bytes<E: de::Error>(self, text: &[u8]) -> std::result::Result<Json, E> {
                serde_json::from_slice(text).map(Json).map_err(E::custom)
            }
        }
        deserializer.deserialize_bytes(Built)
    }
}

/// Any value: the schema is given where the field is declared.
#[cfg(test)]
impl schemars::JsonSchema for Json {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Json".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::Schema::default()
    }
}

/// The body with U+FFFD in place of each half of a surrogate pair: JavaScript writes one where a text was cut, and the
/// message stays in the conversation.
fn whole_characters(body: &Bytes) -> Bytes {
    match str::from_utf8(body).map(whole_surrogates) {
        Ok(Cow::Owned(whole)) => whole.into(),
        // What is no text is refused where it is read.
        Ok(Cow::Borrowed(_)) | Err(_) => body.clone(),
    }
}

/// Splits `body` into the texts of its fields, which share its bytes. The last of several with one name wins.
fn split(body: &Bytes) -> std::result::Result<BTreeMap<String, Bytes>, JsonError> {
    let mut parser = serde_json::Deserializer::from_slice(body);
    let fields = parser.deserialize_map(Split { body }).and_then(|fields| parser.end().map(|()| fields));
    fields.map_err(syntax)?.ok_or(JsonError::TooManyFields)
}

struct Split<'a> {
    body: &'a Bytes,
}

impl<'de> Visitor<'de> for Split<'_> {
    /// `None` if there are too many.
    type Value = Option<BTreeMap<String, Bytes>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Self::Value, A::Error> {
        let mut fields = BTreeMap::new();
        while let Some(name) = map.next_key::<String>()? {
            let text = map.next_value::<&RawValue>()?.get();
            fields.insert(name, self.body.slice_ref(text.as_bytes()));
            if fields.len() > FIELDS_MAX {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                return Ok(None);
            }
        }
        Ok(Some(fields))
    }
}

#[cfg(test)]
mod tests;

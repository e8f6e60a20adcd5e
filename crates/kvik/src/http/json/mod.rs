//! JSON of a request body, read into types: field by field, within a budget, while somebody waits.
//!
//! [`Body`] only finds where each field begins and ends. A struct then reads the fields that it declares, in
//! the order in which it declares them; what no struct declares is never built, and noted. An explicit `null` counts as
//! absent, and the last of several fields with one name wins, at every depth.
//! A wrong value is answered with the path of its field, what it may be and what it was.

mod complaint;
mod notes;
mod text;
mod weigh;

use std::{collections::BTreeMap, fmt};

use axum::body::Bytes;
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

/// Fields of one body at most, known and unknown.
const FIELDS_MAX: usize = 1024;

/// Memory that the values of one body may take, beside their strings.
pub(crate) const VALUES_BYTES_MAX: usize = weigh::BYTES_MAX;

/// Whether values take no more memory than those of one body may.
pub(crate) fn fit_in_a_body(values: &[Value]) -> bool {
    Budget::default().charge_items(values).is_ok()
}

/// Why a text was not read.
#[derive(Debug, Clone, PartialEq)]
enum JsonError {
    /// It is not valid JSON, or nested too deeply to be built.
    Syntax(String),
    /// It is nested more deeply than any request needs.
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

/// What everything that is read from one body has in common.
#[derive(Debug, Default)]
struct Reading {
    budget: Budget,
    presence: Presence,
    notes: Notes,
}

/// The fields of a request body, by their text.
#[derive(Debug)]
pub(crate) struct Body {
    fields: BTreeMap<String, Bytes>,
    reading: Reading,
}

impl Body {
    /// The text of a request's body, which must be an object.
    pub(crate) fn parse(text: &Bytes) -> Result<Body> {
        let whole = |error: JsonError| ApiError::bad_request(format!("the body {error}"));
        let first = text.trim_ascii_start().first();
        if first.is_some_and(|&first| first != b'{') {
            let found = complaint::found(text).map_err(whole)?;
            return Err(ApiError::bad_request(format!("the body must be a JSON object, not {found}")));
        }
        let fields = split(text).map_err(whole)?;
        Ok(Body { fields, reading: Reading::default() })
    }

    /// The text of a body that may be of any shape, as the field `name`.
    pub(crate) fn wrap(name: &str, text: &Bytes) -> Result<Body> {
        serde_json::from_slice::<&RawValue>(text)
            .map_err(|error| ApiError::bad_request(format!("the body {}", syntax(error))))?;
        let fields = BTreeMap::from([(name.to_owned(), text.clone())]);
        Ok(Body { fields, reading: Reading::default() })
    }

    /// A body that was written down.
    pub(crate) fn of(body: &Value) -> Result<Body> {
        Body::parse(&body.to_string().into())
    }

    /// The same, as long as somebody waits for what is made of it.
    pub(crate) fn wanted_by(mut self, presence: Presence) -> Body {
        self.reading.presence = presence;
        self
    }

    /// An error once the client has left, to be asked before long work.
    pub(crate) fn still_wanted(&self) -> Result<()> {
        self.reading.presence.check()
    }

    /// Whether a field is there.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.fields.get(name).is_some_and(|text| !text::is_null(text))
    }

    /// The names of its fields, those that are null excepted.
    fn names(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().filter(|(_, text)| !text::is_null(text)).map(|(name, _)| name.as_str())
    }

    /// Notes what of it is not obeyed, in a sentence.
    pub(crate) fn note(&self, text: String) {
        self.reading.notes.note(text);
    }

    /// What of it was not read or is not obeyed, once everything that is wanted of it has been read.
    pub(crate) fn notes(&self) -> Vec<String> {
        self.reading.notes.with(self.names())
    }

    /// Reads the fields that a struct declares.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Result<T> {
        read("", Whole(self))
    }

    /// A copy of these fields, as far as they are there.
    pub(crate) fn copy(&self, names: &[&str]) -> Result<Value> {
        let mut copy = Map::new();
        let reading = Reading::default();
        for &name in names {
            let Some(text) = self.fields.get(name) else { continue };
            let Json(value) = read(name, Text::new(text, &reading))?;
            copy.insert(name.to_owned(), value);
        }
        Ok(Value::Object(copy))
    }
}

/// Reads what stands at `path`.
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
    /// Reads a type out of the value, which stands at `path`.
    pub(crate) fn read<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        let text = self.0.to_string();
        read(path, Text::new(text.as_bytes(), &Reading::default()))
    }

    /// The value of a text that is JSON itself; what is wrong with it, as the end of a sentence.
    pub(crate) fn parse(text: &str) -> std::result::Result<Json, String> {
        let built = Budget::default().charge_all(text.as_bytes());
        built.and_then(|()| serde_json::from_str(text).map_err(syntax)).map(Json).map_err(|e| e.to_string())
    }
}

/// A body gives the text of a value where its bytes are asked for, and has charged it then.
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

/// A shape that is said where the field is declared.
#[cfg(test)]
impl schemars::JsonSchema for Json {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Json".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::Schema::default()
    }
}

/// The texts of the fields of `body`, whose bytes they share. The last of several with one name wins.
fn split(body: &Bytes) -> std::result::Result<BTreeMap<String, Bytes>, JsonError> {
    let mut parser = serde_json::Deserializer::from_slice(body);
    let fields = parser.deserialize_map(Split { body }).and_then(|fields| parser.end().map(|()| fields));
    fields.map_err(syntax)?.ok_or(JsonError::TooManyFields)
}

struct Split<'a> {
    body: &'a Bytes,
}

impl<'de> Visitor<'de> for Split<'_> {
    /// `None` when there are too many.
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

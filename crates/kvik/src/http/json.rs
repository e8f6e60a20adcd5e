//! JSON of a request body, built field by field and within a budget.
//!
//! A tree of JSON values takes up to a hundred times the bytes of its text: `[[1]]` is five bytes and
//! two allocations. So [`split`] only finds where each field of the body begins and ends, a field is
//! built when it is read, and what is built for one body is charged to one [`Budget`].
//! A field that nobody reads costs nothing but its name.

use std::{collections::BTreeMap, fmt};

use axum::body::Bytes;
use serde::{
    Deserializer,
    de::{self, DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Value, value::RawValue};

/// Fields of one body at most, known and unknown.
const FIELDS_MAX: usize = 1024;
/// Memory that the values of one body may take, beside their strings. A conversation of thousands of
/// messages takes a few MiB.
const TREE_BYTES_MAX: usize = 64 << 20;

/// A place in an array.
const ITEM_BYTES: usize = size_of::<Value>();
/// A place in an object: the key, the value, the hash and the index. The key's text is extra.
const ENTRY_BYTES: usize = size_of::<String>() + size_of::<Value>() + 2 * size_of::<usize>();
/// Places that the first element of a container allocates.
const FIRST_PLACES: usize = 4;

/// Why a text was not read.
#[derive(Debug, PartialEq)]
pub(crate) enum JsonError {
    /// It is not valid JSON, or nested too deeply.
    Syntax(String),
    /// The body has more fields than any request needs.
    TooManyFields,
    /// The values need more memory than one body may take.
    OverBudget,
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JsonError::Syntax(reason) => write!(f, "is not valid JSON: {reason}"),
            JsonError::TooManyFields => write!(f, "has more than {FIELDS_MAX} fields"),
            JsonError::OverBudget => {
                write!(f, "holds more values than fit in {} MiB; send fewer", TREE_BYTES_MAX >> 20)
            }
        }
    }
}

/// The texts of the fields of `body`, whose bytes they share. The last of several with one name wins.
pub(crate) fn split(body: &Bytes) -> Result<BTreeMap<String, Bytes>, JsonError> {
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

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
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

fn syntax(error: serde_json::Error) -> JsonError {
    JsonError::Syntax(error.to_string())
}

/// Memory that may still be spent on the values of one body.
#[derive(Debug)]
pub(crate) struct Budget {
    bytes_left: usize,
    spent: bool,
}

impl Budget {
    pub(crate) fn new() -> Budget {
        Budget { bytes_left: TREE_BYTES_MAX, spent: false }
    }

    /// Builds the value of a text.
    pub(crate) fn build(&mut self, text: &[u8]) -> Result<Value, JsonError> {
        self.read(text, |parser, budget| Building(budget).deserialize(parser))
    }

    /// Reads a text by `read`, which charges what it builds.
    pub(crate) fn read<'t, T>(
        &mut self,
        text: &'t [u8],
        read: impl FnOnce(&mut Parser<'t>, &mut Budget) -> Result<T, serde_json::Error>,
    ) -> Result<T, JsonError> {
        let mut parser = serde_json::Deserializer::from_slice(text);
        let read = read(&mut parser, self).and_then(|value| parser.end().map(|()| value));
        read.map_err(|error| if self.spent { JsonError::OverBudget } else { syntax(error) })
    }

    pub(crate) fn charge<E: de::Error>(&mut self, bytes: usize) -> Result<(), E> {
        match self.bytes_left.checked_sub(bytes) {
            Some(left) => self.bytes_left = left,
            None => {
                self.spent = true;
                return Err(E::custom("over budget"));
            }
        }
        Ok(())
    }

    /// Charges the place with this index in a container that doubles as it grows.
    fn charge_place<E: de::Error>(&mut self, index: usize, bytes: usize) -> Result<(), E> {
        match index {
            0 => self.charge(FIRST_PLACES * bytes),
            1..FIRST_PLACES => Ok(()),
            _ => self.charge(2 * bytes),
        }
    }
}

pub(crate) type Parser<'t> = serde_json::Deserializer<serde_json::de::SliceRead<'t>>;

/// Builds one value and charges it.
struct Building<'b>(&'b mut Budget);

impl<'de> DeserializeSeed<'de> for Building<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Building<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(Building(&mut *self.0))? {
            self.0.charge_place(items.len(), ITEM_BYTES)?;
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            self.0.charge_place(object.len(), ENTRY_BYTES)?;
            let value = map.next_value_seed(Building(&mut *self.0))?;
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_are_found_and_not_built() {
        let body = Bytes::from_static(br#" {"a": [[1], "]}"], "b": {"c": 1e2}, "a": null, "\u0065": 7} "#);
        let fields = split(&body).unwrap();
        let texts: Vec<(&str, &[u8])> = fields.iter().map(|(name, text)| (&**name, &**text)).collect();
        assert_eq!(texts, [("a", &b"null"[..]), ("b", br#"{"c": 1e2}"#), ("e", b"7")]);
    }

    #[test]
    fn what_is_no_object_or_no_json_is_refused() {
        let check = |text: &'static str| {
            let error = split(&Bytes::from_static(text.as_bytes())).unwrap_err();
            assert!(matches!(error, JsonError::Syntax(_)), "{text}: {error}");
        };
        ["", "{", "[1]", "{\"a\": }", "{\"a\": 1} 2", "{\"a\": [1}", "{1: 2}"].into_iter().for_each(check);
    }

    #[test]
    fn a_crowd_of_fields_is_refused() {
        let body = |count: usize| {
            let fields: Vec<String> = (0..count).map(|i| format!("\"{i}\":0")).collect();
            Bytes::from(format!("{{{}}}", fields.join(",")))
        };
        assert_eq!(split(&body(FIELDS_MAX)).unwrap().len(), FIELDS_MAX);
        assert_eq!(split(&body(FIELDS_MAX + 1)), Err(JsonError::TooManyFields));
    }

    #[test]
    fn values_are_built_as_serde_json_builds_them() {
        let value = json!({"a": [null, true, -1, 1.5, u64::MAX, "\u{1F98A} \n"], "b": {"c": [[], {}]}});
        let text = value.to_string();
        assert_eq!(Budget::new().build(text.as_bytes()), Ok(value));
        for text in ["", "[1", "1 2", "\"\\ud800\"", &"[".repeat(200)] {
            assert!(matches!(Budget::new().build(text.as_bytes()), Err(JsonError::Syntax(_))), "{text}");
        }
    }

    #[test]
    fn the_budget_covers_what_small_values_really_take() {
        let check = |unit: &str, least_bytes: usize| {
            let count = TREE_BYTES_MAX / least_bytes + FIRST_PLACES;
            let text = format!("[{}]", vec![unit; count].join(","));
            assert!(
                Budget::new().build(text.as_bytes()).is_err_and(|e| e == JsonError::OverBudget),
                "{unit}"
            );
        };
        check("1", 2 * ITEM_BYTES);
        check("[1]", FIRST_PLACES * ITEM_BYTES);
        check("{\"a\":1}", FIRST_PLACES * ENTRY_BYTES);
    }

    #[test]
    fn one_budget_is_for_all_fields_of_a_body() {
        let half =
            format!("[{}]", vec!["[1]"; TREE_BYTES_MAX / (FIRST_PLACES + 2) / ITEM_BYTES * 2 / 3].join(","));
        let mut budget = Budget::new();
        assert!(budget.build(half.as_bytes()).is_ok());
        assert!(budget.build(half.as_bytes()).is_err_and(|error| error == JsonError::OverBudget));
    }
}

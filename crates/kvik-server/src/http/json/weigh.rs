//! Memory that a JSON value will take, computed from its text before it is built.
//!
//! A tree of JSON values takes up to a hundred times the bytes of its text: `[[1]]` is five bytes and two
//! allocations. So everything built for one body is charged to one [`Budget`].

use std::{cell::Cell, fmt};

use serde::{
    Deserializer,
    de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor},
};
use serde_json::Value;

use super::{JsonError, syntax};

/// Memory limit for the values of one body, without their strings. A conversation of thousands of messages
/// takes a few MiB.
pub(super) const BYTES_MAX: usize = 64 << 20;

/// Size of an array's slot.
const ITEM_BYTES: usize = size_of::<Value>();
/// Size of a slot in an array of numbers.
const NUMBER_BYTES: usize = size_of::<u64>();
/// Size of an object's slot: key, value, hash and index, without the text of the key.
const ENTRY_BYTES: usize = size_of::<String>() + size_of::<Value>() + 2 * size_of::<usize>();
/// Slots that the first element of a container allocates.
const FIRST_PLACES: usize = 4;

/// Remaining memory for the values of one body.
#[derive(Debug)]
pub(super) struct Budget {
    bytes_left: Cell<usize>,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget { bytes_left: Cell::new(BYTES_MAX) }
    }
}

impl Budget {
    /// Charges the whole tree of a text.
    pub(super) fn charge_all(&self, text: &[u8]) -> Result<(), JsonError> {
        let mut parser = serde_json::Deserializer::from_slice(text);
        let mut over = false;
        let weighing = Weighing { budget: self, over: &mut over };
        let read = weighing.deserialize(&mut parser).and_then(|()| parser.end());
        read.map_err(|error| if over { JsonError::OverBudget } else { syntax(error) })
    }

    /// Charges existing values, as items of an array.
    pub(super) fn charge_items(&self, items: &[Value]) -> Result<(), JsonError> {
        items.iter().enumerate().try_for_each(|(index, item)| {
            self.charge_place(index, ITEM_BYTES)?;
            self.charge_built(item)
        })
    }

    fn charge_built(&self, value: &Value) -> Result<(), JsonError> {
        match value {
            Value::Array(items) => self.charge_items(items),
            Value::Object(entries) => entries.values().enumerate().try_for_each(|(index, value)| {
                self.charge_place(index, ENTRY_BYTES)?;
                self.charge_built(value)
            }),
            _ => Ok(()),
        }
    }

    /// Charges the item with this index and `text` in an array of a type.
    pub(super) fn charge_item(&self, index: usize, text: &[u8]) -> Result<(), JsonError> {
        let is_number = matches!(text.first(), Some(b'-' | b'0'..=b'9'));
        self.charge_place(index, if is_number { NUMBER_BYTES } else { ITEM_BYTES })
    }

    /// Bytes that were charged.
    pub(super) fn charged(&self) -> usize {
        BYTES_MAX - self.bytes_left.get()
    }

    fn charge(&self, bytes: usize) -> Result<(), JsonError> {
        let left = self.bytes_left.get().checked_sub(bytes).ok_or(JsonError::OverBudget)?;
        self.bytes_left.set(left);
        Ok(())
    }

    /// Charges the slot with this index in a container whose capacity doubles.
    fn charge_place(&self, index: usize, bytes: usize) -> Result<(), JsonError> {
        match index {
            0 => self.charge(FIRST_PLACES * bytes),
            1..FIRST_PLACES => Ok(()),
            _ => self.charge(2 * bytes),
        }
    }
}

/// Charges a value without building it.
struct Weighing<'b> {
    budget: &'b Budget,
    /// Set if the budget is exceeded.
    over: &'b mut bool,
}

impl Weighing<'_> {
    fn place<E: de::Error>(&mut self, index: usize, bytes: usize) -> Result<(), E> {
        self.budget.charge_place(index, bytes).map_err(|error| {
            *self.over = true;
            E::custom(error)
        })
    }

    fn inner(&mut self) -> Weighing<'_> {
        Weighing { budget: self.budget, over: self.over }
    }
}

impl<'de> DeserializeSeed<'de> for Weighing<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Weighing<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<(), A::Error> {
        let mut count = 0;
        while seq.next_element_seed(self.inner())?.is_some() {
            self.place(count, ITEM_BYTES)?;
            count += 1;
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        let mut count = 0;
        while map.next_key_seed(Weighing { budget: self.budget, over: self.over })?.is_some() {
            self.place(count, ENTRY_BYTES)?;
            map.next_value_seed(self.inner())?;
            count += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_weighed_as_serde_json_reads_them() {
        let check = |text: &str| {
            let (written, built) = (Budget::default(), Budget::default());
            let known = serde_json::from_str::<Value>(text).map_err(syntax);
            assert_eq!(written.charge_all(text.as_bytes()), known.clone().map(drop), "{text}");
            if let Ok(value) = known {
                assert_eq!(built.charge_built(&value), Ok(()));
                assert_eq!(built.bytes_left, written.bytes_left, "{text}");
            }
        };
        let deep = "[".repeat(200);
        let texts = [r#"{"a": [null, true, -1, 1.5, "\u00e9"], "b": {"c": [[], {}]}}"#, "", "[1", "1 2"];
        texts.into_iter().chain([r#""\ud800""#, "1e999", deep.as_str()]).for_each(check);
    }

    #[test]
    fn the_budget_covers_what_small_values_really_take() {
        let check = |unit: &str, least_bytes: usize| {
            let count = BYTES_MAX / least_bytes + FIRST_PLACES;
            let text = format!("[{}]", vec![unit; count].join(","));
            assert_eq!(Budget::default().charge_all(text.as_bytes()), Err(JsonError::OverBudget), "{unit}");
        };
        check("1", 2 * ITEM_BYTES);
        check("[1]", FIRST_PLACES * ITEM_BYTES);
        check("{\"a\":1}", FIRST_PLACES * ENTRY_BYTES);
    }

    #[test]
    fn one_budget_is_for_all_values_of_a_body() {
        let half =
            format!("[{}]", vec!["[1]"; BYTES_MAX / (FIRST_PLACES + 2) / ITEM_BYTES * 2 / 3].join(","));
        let budget = Budget::default();
        assert_eq!(budget.charge_all(half.as_bytes()), Ok(()));
        assert_eq!(budget.charge_all(half.as_bytes()), Err(JsonError::OverBudget));
    }
}

//! The text of a JSON value as serde's data format.
//!
//! Differs from serde_json for request bodies: objects are read into structs only, with the fields in the order of the
//! struct and the last of several with one name; `null` counts as an absent field; the bytes of a value are its text;
//! and arrays are charged to the body's budget.

use serde::{
    Deserializer,
    de::{
        DeserializeSeed, EnumAccess, Error, IntoDeserializer, MapAccess, SeqAccess, Unexpected, Visitor,
        value::StrDeserializer,
    },
    forward_to_deserialize_any,
};
use serde_json::{Value, value::RawValue};

use super::{Body, JsonError, Reading, complaint::Complaint, notes::Step, syntax};

type Result<T> = std::result::Result<T, Complaint>;

/// True if the text is `null`.
pub(super) fn is_null(text: &[u8]) -> bool {
    text == b"null"
}

/// Maximum number of undeclared names of an object that are reported to its type.
const UNKNOWN_MAX: usize = 16;

/// Maximum nesting of values read into types: the limit of serde_json for values.
const DEPTH_MAX: usize = 128;

/// Text of one value.
#[derive(Clone, Copy)]
pub(super) struct Text<'a> {
    text: &'a [u8],
    reading: &'a Reading,
    /// Number of enclosing arrays and objects.
    depth: usize,
}

impl<'a> Text<'a> {
    pub(super) fn new(text: &'a [u8], reading: &'a Reading) -> Text<'a> {
        Text { text, reading, depth: 0 }
    }

    /// Context of the values inside this array or object. Each level has its own parser, so no parser detects the total
    /// depth.
    fn within(&self) -> Result<Within<'a>> {
        if self.depth == DEPTH_MAX {
            return Err(JsonError::TooDeep.into());
        }
        Ok(Within { reading: self.reading, depth: self.depth + 1 })
    }

    fn first(&self) -> u8 {
        self.text.first().copied().unwrap_or_default()
    }

    fn array<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value> {
        let mut parser = serde_json::Deserializer::from_slice(self.text);
        let mut outcome = None;
        let parsed =
            parser.deserialize_seq(Elements { visitor, within: self.within()?, outcome: &mut outcome });
        match (outcome, parsed) {
            // A visitor that fails reads no further.
            (Some(Err(complaint)), _) => Err(complaint),
            (_, Err(error)) => Err(syntax(error).into()),
            (Some(Ok(value)), Ok(())) => Ok(value),
            (None, Ok(())) => Err(Complaint::invalid_type(Unexpected::Other("no array"), &"an array")),
        }
    }

    fn scalar<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value> {
        match serde_json::from_slice(self.text).map_err(syntax)? {
            Value::Bool(b) => visitor.visit_bool(b),
            Value::String(text) => visitor.visit_string(text),
            Value::Number(n) => match (n.as_u64(), n.as_i64()) {
                (Some(n), _) => visitor.visit_u64(n),
                (_, Some(n)) => visitor.visit_i64(n),
                _ => visitor.visit_f64(n.as_f64().unwrap_or(f64::NAN)),
            },
            Value::Null | Value::Array(_) | Value::Object(_) => visitor.visit_unit(),
        }
    }

    /// The last text of each field that a struct declares, and the undeclared names.
    fn fields(&self, declared: &'static [&'static str]) -> Result<Fields<'a>> {
        let mut parser = serde_json::Deserializer::from_slice(self.text);
        let split = parser.deserialize_map(Split { declared }).map_err(syntax)?;
        Ok(Fields::new(declared.iter().copied().zip(split.texts), split.unknown, self.within()?))
    }
}

/// Context inside an array or an object.
#[derive(Clone, Copy)]
struct Within<'a> {
    reading: &'a Reading,
    depth: usize,
}

impl<'a> Within<'a> {
    fn text(self, text: &'a [u8]) -> Text<'a> {
        Text { text, reading: self.reading, depth: self.depth }
    }

    /// Reads the text of the value at this step.
    fn read<S: DeserializeSeed<'a>>(self, step: Step, text: &'a [u8], seed: S) -> Result<S::Value> {
        self.reading.notes.within(step, || seed.deserialize(self.text(text)))
    }
}

/// Name of structs that may also be given as an array, which their visitor reads.
pub(crate) const OR_ARRAY: &str = "a struct or an array";

impl<'de> Deserializer<'de> for Text<'de> {
    type Error = Complaint;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        match self.first() {
            b'{' => Err(Complaint::invalid_type(Unexpected::Map, &visitor)),
            b'[' => self.array(visitor),
            _ => self.scalar(visitor),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        match self.first() {
            b'{' => visitor.visit_map(self.fields(fields)?),
            b'[' if name == OR_ARRAY => self.array(visitor),
            b'[' => Err(Complaint::invalid_type(Unexpected::Seq, &visitor)),
            _ => self.scalar(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        if is_null(self.text) { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        visitor.visit_enum(self)
    }

    /// Passes the text itself, after charging the value to the budget.
    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        self.reading.budget.charge_all(self.text)?;
        visitor.visit_borrowed_bytes(self.text)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string
        byte_buf unit unit_struct seq tuple tuple_struct map identifier
    }
}

/// The names of an enum's variants are strings.
impl<'a> EnumAccess<'a> for Text<'a> {
    type Error = Complaint;
    type Variant = UnitOnly;

    fn variant_seed<V: DeserializeSeed<'a>>(self, seed: V) -> Result<(V::Value, UnitOnly)> {
        struct Name;
        impl Visitor<'_> for Name {
            type Value = String;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string")
            }

            fn visit_str<E>(self, name: &str) -> std::result::Result<String, E> {
                Ok(name.to_owned())
            }
        }
        let name = self.deserialize_any(Name)?;
        let name: StrDeserializer<'_, Complaint> = name.as_str().into_deserializer();
        Ok((seed.deserialize(name)?, UnitOnly))
    }
}

/// The content of a variant: none.
pub(super) struct UnitOnly;

impl<'a> serde::de::VariantAccess<'a> for UnitOnly {
    type Error = Complaint;

    fn unit_variant(self) -> Result<()> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'a>>(self, _seed: T) -> Result<T::Value> {
        Err(Complaint::invalid_type(Unexpected::UnitVariant, &"newtype variant"))
    }

    fn tuple_variant<V: Visitor<'a>>(self, _len: usize, visitor: V) -> Result<V::Value> {
        Err(Complaint::invalid_type(Unexpected::UnitVariant, &visitor))
    }

    fn struct_variant<V: Visitor<'a>>(self, _: &'static [&'static str], visitor: V) -> Result<V::Value> {
        Err(Complaint::invalid_type(Unexpected::UnitVariant, &visitor))
    }
}

/// The whole body: its fields are already split, and undeclared ones belong to other readers.
pub(super) struct Whole<'a>(pub(super) &'a Body);

impl<'de> Deserializer<'de> for Whole<'de> {
    type Error = Complaint;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        Err(Complaint::invalid_type(Unexpected::Map, &visitor))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        self.0.reading.notes.declare(fields);
        let texts = fields.iter().map(|&name| (name, self.0.fields.0.get(name).map(|text| &text[..])));
        let within = Within { reading: &self.0.reading, depth: 0 };
        visitor.visit_map(Fields::new(texts, Vec::new(), within))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// The present fields of an object that a struct declares.
struct Fields<'a> {
    texts: std::vec::IntoIter<(&'static str, &'a [u8])>,
    /// Names that the struct does not declare.
    unknown: std::vec::IntoIter<String>,
    /// Field of the last key.
    field: Option<Field<'a>>,
    within: Within<'a>,
}

enum Field<'a> {
    Declared(&'static str, &'a [u8]),
    /// Its value is not read.
    Unknown(String),
}

impl<'a> Fields<'a> {
    fn new(
        texts: impl Iterator<Item = (&'static str, Option<&'a [u8]>)>,
        unknown: Vec<String>,
        within: Within<'a>,
    ) -> Fields<'a> {
        let there = |(name, text): (&'static str, Option<&'a [u8]>)| {
            text.filter(|text| !is_null(text)).map(|text| (name, text))
        };
        let texts: Vec<_> = texts.filter_map(there).collect();
        Fields { texts: texts.into_iter(), unknown: unknown.into_iter(), field: None, within }
    }
}

impl<'a> MapAccess<'a> for Fields<'a> {
    type Error = Complaint;

    fn next_key_seed<K: DeserializeSeed<'a>>(&mut self, seed: K) -> Result<Option<K::Value>> {
        self.within.reading.presence.check().map_err(Complaint::Left)?;
        if let Some(name) = self.unknown.next() {
            let key = seed.deserialize(name.as_str().into_deserializer());
            self.field = Some(Field::Unknown(name));
            return key.map(Some);
        }
        let Some((name, text)) = self.texts.next() else { return Ok(None) };
        self.field = Some(Field::Declared(name, text));
        seed.deserialize(name.into_deserializer()).map(Some)
    }

    /// A struct that denies unknown fields fails at their names; other structs ignore the value.
    fn next_value_seed<V: DeserializeSeed<'a>>(&mut self, seed: V) -> Result<V::Value> {
        match self.field.take() {
            Some(Field::Declared(name, text)) => self.within.read(Step::Field(name), text, seed),
            Some(Field::Unknown(name)) => {
                self.within.reading.notes.unread(&name);
                seed.deserialize(self.within.text(b"null"))
            }
            None => seed.deserialize(self.within.text(b"null")),
        }
    }
}

/// Splits an object into its fields.
struct Split {
    declared: &'static [&'static str],
}

struct Found<'a> {
    /// Texts of the declared fields, in their order.
    texts: Vec<Option<&'a [u8]>>,
    /// Names of undeclared fields that are not null.
    unknown: Vec<String>,
}

impl<'a> Visitor<'a> for Split {
    type Value = Found<'a>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> std::result::Result<Found<'a>, A::Error> {
        let mut found = Found { texts: vec![None; self.declared.len()], unknown: Vec::new() };
        while let Some(name) = map.next_key::<String>()? {
            match self.declared.iter().position(|declared| *declared == name) {
                Some(at) => found.texts[at] = Some(map.next_value::<&RawValue>()?.get().as_bytes()),
                None => {
                    let is_null = is_null(map.next_value::<&RawValue>()?.get().as_bytes());
                    if !is_null && found.unknown.len() < UNKNOWN_MAX {
                        found.unknown.push(name);
                    }
                }
            }
        }
        Ok(found)
    }
}

/// Connects a visitor of this format with the elements of an array that serde_json parses.
struct Elements<'a, 'o, V: Visitor<'a>> {
    visitor: V,
    within: Within<'a>,
    outcome: &'o mut Option<Result<V::Value>>,
}

impl<'a, V: Visitor<'a>> Visitor<'a> for Elements<'a, '_, V> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'a>>(self, elements: A) -> std::result::Result<(), A::Error> {
        *self.outcome = Some(self.visitor.visit_seq(Items { elements, index: 0, within: self.within }));
        Ok(())
    }
}

struct Items<'a, A> {
    elements: A,
    index: usize,
    within: Within<'a>,
}

impl<'a, A: SeqAccess<'a>> SeqAccess<'a> for Items<'a, A> {
    type Error = Complaint;

    fn next_element_seed<T: DeserializeSeed<'a>>(&mut self, seed: T) -> Result<Option<T::Value>> {
        let element =
            self.elements.next_element::<&RawValue>().map_err(|e| JsonError::Syntax(e.to_string()))?;
        let Some(element) = element else { return Ok(None) };
        let (text, index) = (element.get().as_bytes(), self.index);
        self.within.reading.budget.charge_item(index, text)?;
        self.index += 1;
        self.within.read(Step::Item(index), text, seed).map(Some)
    }
}

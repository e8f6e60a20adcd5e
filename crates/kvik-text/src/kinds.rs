//! The types that a schema allows for a value, for notations that do not state the type.
//!
//! Models of some families write arguments as plain text: only the schema decides whether `3` is a number or a
//! string, by `type`, by listed values, and through references and combinations.

use serde_json::{Map, Value};

/// The keywords of a schema.
pub(crate) type Fields = Map<String, Value>;

/// Maximum nesting of references and combinations, and maximum number of them.
const DEPTH_MAX: usize = 32;
const STEPS_MAX: usize = 2_000;
/// Listed values that are looked at in a step.
const VALUES_PER_STEP: usize = 64;

/// A set of types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kinds(u8);

impl Kinds {
    pub(crate) const NULL: Kinds = Kinds(1);
    pub(crate) const BOOLEAN: Kinds = Kinds(2);
    pub(crate) const INTEGER: Kinds = Kinds(4);
    /// A number that is not an integer.
    pub(crate) const FRACTION: Kinds = Kinds(8);
    pub(crate) const STRING: Kinds = Kinds(16);
    pub(crate) const ARRAY: Kinds = Kinds(32);
    pub(crate) const OBJECT: Kinds = Kinds(64);
    pub(crate) const ANY: Kinds = Kinds(127);
    const NONE: Kinds = Kinds(0);

    /// The types that `schema` allows; all of them if it excludes every value.
    #[cfg(any(test, feature = "grammars"))]
    pub(crate) fn of(root: &Value, schema: &Value) -> Kinds {
        Resolver { root, steps_left: STEPS_MAX }.kinds(schema, None, 0).or_any()
    }

    /// The types of a property of the objects that `schema` describes.
    pub(crate) fn of_property(schema: &Value, name: &str) -> Kinds {
        Resolver { root: schema, steps_left: STEPS_MAX }.kinds(schema, Some(name), 0).or_any()
    }

    /// The type of a JSON text.
    pub(crate) fn of_json(text: &str) -> Kinds {
        match text.as_bytes().first() {
            Some(b'n') => Kinds::NULL,
            Some(b't' | b'f') => Kinds::BOOLEAN,
            Some(b'"') => Kinds::STRING,
            Some(b'[') => Kinds::ARRAY,
            Some(b'{') => Kinds::OBJECT,
            _ if text.parse().is_ok_and(|number: f64| number.fract() != 0.0) => Kinds::FRACTION,
            _ => Kinds::INTEGER,
        }
    }

    /// Whether the sets intersect.
    pub(crate) fn allows(self, other: Kinds) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether the set is a subset of the other.
    #[cfg(feature = "grammars")]
    pub(crate) fn is_within(self, other: Kinds) -> bool {
        self.0 & !other.0 == 0
    }

    pub(crate) const fn or(self, other: Kinds) -> Kinds {
        Kinds(self.0 | other.0)
    }

    const fn and(self, other: Kinds) -> Kinds {
        Kinds(self.0 & other.0)
    }

    fn or_any(self) -> Kinds {
        if self == Kinds::NONE { Kinds::ANY } else { self }
    }

    fn union(kinds: impl Iterator<Item = Kinds>) -> Kinds {
        kinds.fold(Kinds::NONE, Kinds::or)
    }

    fn named(kind: &str) -> Kinds {
        match kind {
            "null" => Kinds::NULL,
            "boolean" => Kinds::BOOLEAN,
            "integer" => Kinds::INTEGER,
            "number" => Kinds::INTEGER.or(Kinds::FRACTION),
            "string" => Kinds::STRING,
            "array" => Kinds::ARRAY,
            "object" => Kinds::OBJECT,
            _ => Kinds::ANY,
        }
    }
}

struct Resolver<'a> {
    root: &'a Value,
    steps_left: usize,
}

impl<'a> Resolver<'a> {
    /// The types of values of a schema, or of a property of its objects.
    fn kinds(&mut self, schema: &'a Value, property: Option<&str>, depth: usize) -> Kinds {
        let Some(fields) = schema.as_object() else { return Kinds::ANY };
        if depth > DEPTH_MAX || self.steps_left == 0 {
            return Kinds::ANY;
        }
        self.steps_left = self.steps_left.saturating_sub(1 + listed(fields) / VALUES_PER_STEP);
        let mut kinds = match property {
            None => stated(fields),
            Some(name) => match property_schema(fields, name) {
                Some(schema) => self.kinds(schema, None, depth + 1),
                None => Kinds::ANY,
            },
        };
        let target = fields.get("$ref").and_then(Value::as_str);
        if let Some(target) = target.and_then(|reference| pointed(self.root, reference)) {
            kinds = kinds.and(self.kinds(target, property, depth + 1));
        }
        for part in fields.get("allOf").and_then(Value::as_array).into_iter().flatten() {
            kinds = kinds.and(self.kinds(part, property, depth + 1));
        }
        for keyword in ["anyOf", "oneOf"] {
            if let Some(options) = fields.get(keyword).and_then(Value::as_array) {
                let options = options.iter().map(|option| self.kinds(option, property, depth + 1));
                kinds = kinds.and(Kinds::union(options));
            }
        }
        kinds
    }
}

/// The schema that an object's fields assign to a property.
fn property_schema<'a>(fields: &'a Fields, name: &str) -> Option<&'a Value> {
    let properties = fields.get("properties").and_then(Value::as_object);
    properties.and_then(|properties| properties.get(name)).or_else(|| fields.get("additionalProperties"))
}

/// The types that a schema states by itself, or implies by its keywords.
fn stated(fields: &Fields) -> Kinds {
    let mut kinds = match fields.get("type") {
        Some(Value::String(kind)) => Kinds::named(kind),
        Some(Value::Array(kinds)) => Kinds::union(kinds.iter().filter_map(Value::as_str).map(Kinds::named)),
        _ => Kinds::ANY,
    };
    if fields.get("nullable") == Some(&Value::Bool(true)) {
        kinds = kinds.or(Kinds::NULL);
    }
    if let Some(value) = fields.get("const") {
        return kinds.and(of_value(value));
    }
    if let Some(values) = fields.get("enum").and_then(Value::as_array) {
        return kinds.and(Kinds::union(values.iter().map(of_value)));
    }
    match implied_type(fields) {
        Some(implied) if kinds == Kinds::ANY => Kinds::named(implied),
        _ => kinds,
    }
}

/// Number of types and values that a schema lists.
fn listed(fields: &Fields) -> usize {
    let lists = ["type", "enum"].iter().filter_map(|keyword| fields.get(*keyword)?.as_array());
    lists.map(Vec::len).sum()
}

fn of_value(value: &Value) -> Kinds {
    match value {
        Value::Null => Kinds::NULL,
        Value::Bool(_) => Kinds::BOOLEAN,
        Value::Number(number) if number.as_f64().is_some_and(|number| number.fract() != 0.0) => {
            Kinds::FRACTION
        }
        Value::Number(_) => Kinds::INTEGER,
        Value::String(_) => Kinds::STRING,
        Value::Array(_) => Kinds::ARRAY,
        Value::Object(_) => Kinds::OBJECT,
    }
}

/// The schema that a reference within `root` names: a JSON pointer as the fragment of a URI, which may be
/// percent-encoded.
pub(crate) fn pointed<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    let pointer = reference.strip_prefix('#')?;
    // A name may contain the percent sign itself, unencoded.
    root.pointer(pointer).or_else(|| root.pointer(&without_percent_codes(pointer)?))
}

fn without_percent_codes(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (code, rest) = part.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(code, 16).ok()?);
        bytes.extend(rest.as_bytes());
    }
    String::from_utf8(bytes).ok()
}

/// The type that the keywords of a schema without `type` imply.
pub(crate) fn implied_type(fields: &Fields) -> Option<&'static str> {
    const OBJECT: [&str; 7] = [
        "properties",
        "required",
        "additionalProperties",
        "patternProperties",
        "propertyNames",
        "minProperties",
        "maxProperties",
    ];
    const KEYWORDS: [(&str, &[&str]); 4] = [
        ("object", &OBJECT),
        ("array", &["items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains"]),
        ("string", &["pattern", "format", "minLength", "maxLength"]),
        ("number", &["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"]),
    ];
    let has = |keyword: &&str| fields.get(*keyword).is_some_and(|rule| !rule.is_null());
    let implied = |(_, keywords): &(_, &[&str])| keywords.iter().any(has);
    KEYWORDS.into_iter().find(implied).map(|(kind, _)| kind)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn types_are_found_however_a_schema_says_them() {
        let root = json!({"$defs": {
            "text": {"type": "string"}, "50%": {"type": "boolean"}, "a b": {"type": "null"},
            "loop": {"$ref": "#/$defs/loop"}, "either": {"anyOf": [{"$ref": "#/$defs/text"}, {"type": "null"}]},
        }});
        let text_or_null = Kinds::STRING.or(Kinds::NULL);
        let number = Kinds::INTEGER.or(Kinds::FRACTION);
        for (schema, expect) in [
            (json!({"type": "string"}), Kinds::STRING),
            (json!({"type": ["string", "null"]}), text_or_null),
            (json!({"type": "string", "nullable": true}), text_or_null),
            (json!({"type": "number"}), number),
            (json!({"enum": ["1", "2"]}), Kinds::STRING),
            (json!({"enum": [1, null]}), Kinds::INTEGER.or(Kinds::NULL)),
            (json!({"const": "3"}), Kinds::STRING),
            (json!({"const": 1.5}), Kinds::FRACTION),
            (json!({"$ref": "#/$defs/text"}), Kinds::STRING),
            (json!({"$ref": "#/$defs/50%25"}), Kinds::BOOLEAN),
            (json!({"$ref": "#/$defs/a%20b"}), Kinds::NULL),
            (json!({"$ref": "#/$defs/either"}), text_or_null),
            (json!({"anyOf": [{"type": "string"}, {"type": "null"}]}), text_or_null),
            (json!({"oneOf": [{"type": "integer"}, {"const": "x"}]}), Kinds::INTEGER.or(Kinds::STRING)),
            (
                json!({"allOf": [{"type": ["string", "integer"]}, {"type": ["string", "null"]}]}),
                Kinds::STRING,
            ),
            (json!({"allOf": [{"$ref": "#/$defs/either"}], "type": "string"}), Kinds::STRING),
            (json!({"pattern": "^[0-9]+$"}), Kinds::STRING),
            (json!({"format": "date"}), Kinds::STRING),
            (json!({"minProperties": 1}), Kinds::OBJECT),
            (json!({"description": "anything"}), Kinds::ANY),
            (json!({"pattern": null, "enum": null}), Kinds::ANY),
            (json!({"pattern": null, "minimum": 1}), number),
            (json!({"$ref": "#/$defs/loop"}), Kinds::ANY),
            (json!({"type": "string", "const": 1}), Kinds::ANY),
            (json!(true), Kinds::ANY),
        ] {
            assert_eq!(Kinds::of(&root, &schema), expect, "{schema}");
        }
    }

    #[test]
    fn a_propertys_types_are_found_through_the_objects_schema() {
        let schema = json!({
            "$ref": "#/$defs/arguments",
            "allOf": [{"properties": {"b": {"type": ["boolean", "string"]}}}],
            "additionalProperties": {"type": "integer"},
            "$defs": {"arguments": {"properties": {"a": {"type": "string"}, "b": {"type": ["boolean", "null"]}},
                "anyOf": [{"properties": {"c": {"type": "null"}}}, {"properties": {"c": {"type": "array"}}}]}},
        });
        let strict =
            json!({"properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "integer"}});
        assert_eq!(Kinds::of_property(&strict, "a"), Kinds::STRING);
        assert_eq!(Kinds::of_property(&strict, "other"), Kinds::INTEGER);
        let open = json!({"allOf": schema["allOf"], "$ref": schema["$ref"], "$defs": schema["$defs"]});
        assert_eq!(Kinds::of_property(&open, "a"), Kinds::STRING);
        assert_eq!(Kinds::of_property(&open, "b"), Kinds::BOOLEAN);
        assert_eq!(Kinds::of_property(&open, "c"), Kinds::NULL.or(Kinds::ARRAY));
        assert_eq!(Kinds::of_property(&open, "d"), Kinds::ANY);
    }

    /// A list is not read through at each of thousands of references to it.
    #[test]
    fn long_lists_take_steps() {
        let references = |count: usize| json!({"anyOf": vec![json!({"$ref": "#/$defs/list"}); count]});
        let root = json!({"$defs": {"list": {"enum": vec![1; 50_000]}}});
        assert_eq!(Kinds::of(&root, &references(1)), Kinds::INTEGER);
        assert_eq!(Kinds::of(&root, &references(10)), Kinds::ANY);
    }

    /// Exponential recursion is abandoned, not followed.
    #[test]
    fn a_hostile_schema_ends() {
        let twice = |i: usize| json!({"anyOf": vec![json!({"$ref": format!("#/$defs/a{i}")}); 2]});
        let definitions: Fields = (0..40).map(|i| (format!("a{i}"), twice((i + 1) % 40))).collect();
        let root = json!({"$defs": definitions, "properties": {"a": {"$ref": "#/$defs/a0"}}});
        assert_eq!(Kinds::of_property(&root, "a"), Kinds::ANY);
    }
}

//! The objects that a normalised schema allows, for notations that write an object property by property.

use std::borrow::Cow;
use std::collections::HashSet;

use serde_json::{Value, json};

use crate::kinds::Kinds;

static ANYTHING: Value = Value::Bool(true);

/// An alternative of a schema that describes objects.
pub(super) struct ObjectSchema<'s> {
    /// The names and schemas of its properties, in order.
    pub(super) properties: Vec<(&'s str, Cow<'s, Value>)>,
    /// The names of those that an object must have.
    pub(super) required: HashSet<&'s str>,
    /// The names that no property has.
    pub(super) excluded: Vec<&'s str>,
    /// The schema of properties with other names; `None` if an object has no others.
    pub(super) others: Option<&'s Value>,
}

/// The alternatives of a normalised schema that allow an object.
pub(super) fn object_schemas(root: &Value) -> Vec<ObjectSchema<'_>> {
    let (mut objects, mut seen, mut open) = (Vec::new(), HashSet::new(), vec![root]);
    while let Some(schema) = open.pop() {
        let schema = target(root, schema);
        // An alternative may refer to what it is an alternative of.
        if !seen.insert(std::ptr::from_ref(schema)) {
            continue;
        }
        if let Some(options) = schema["anyOf"].as_array() {
            open.extend(options.iter().rev());
        } else if let Some(values) = listed(schema) {
            objects.extend(values.iter().filter_map(ObjectSchema::of_value));
        } else if Kinds::of(root, schema).allows(Kinds::OBJECT) {
            objects.extend(ObjectSchema::of(schema));
        }
    }
    objects
}

impl<'s> ObjectSchema<'s> {
    /// `None` if no object satisfies the schema.
    fn of(schema: &'s Value) -> Option<ObjectSchema<'s>> {
        let others = match (&schema["additionalProperties"], &schema["patternProperties"]) {
            // Which names a pattern matches is not enforced here, so there are none.
            (_, Value::Object(_)) | (Value::Bool(false), _) => None,
            // Most schemas are open because nobody closed them, also those of tools without parameters: a model that
            // has to call one is not to make up arguments.
            (Value::Null, _) => None,
            (others, _) => Some(others),
        };
        let names = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let required: HashSet<&str> = names.clone().collect();
        let listed = schema["properties"].as_object().into_iter().flatten();
        let listed = listed.map(|(name, schema)| (name.as_str(), Cow::Borrowed(schema)));
        let mut properties: Vec<(&str, Cow<'s, Value>)> = listed.collect();
        let mut named: HashSet<&str> = properties.iter().map(|(name, _)| *name).collect();
        let unnamed = names.filter(|name| named.insert(*name));
        properties.extend(unnamed.map(|name| (name, Cow::Borrowed(others.unwrap_or(&ANYTHING)))));
        let excludes_all = |schema: &Value| *schema == Value::Bool(false);
        let excluded: Vec<&str> =
            properties.iter().filter(|(_, schema)| excludes_all(schema)).map(|(name, _)| *name).collect();
        if excludes_all(schema) || excluded.iter().any(|name| required.contains(name)) {
            return None;
        }
        properties.retain(|(_, schema)| !excludes_all(schema));
        Some(ObjectSchema { properties, required, excluded, others })
    }

    /// The object that a listed value is.
    fn of_value(value: &'s Value) -> Option<ObjectSchema<'s>> {
        let entries = value.as_object()?;
        let constant =
            |(name, value): (&'s String, &Value)| (name.as_str(), Cow::Owned(json!({"const": value})));
        let (properties, required) =
            (entries.iter().map(constant).collect(), entries.keys().map(String::as_str).collect());
        Some(ObjectSchema { properties, required, excluded: Vec::new(), others: None })
    }
}

/// The schema that a reference names, or the schema itself.
pub(super) fn target<'s>(root: &'s Value, schema: &'s Value) -> &'s Value {
    let target = schema["$ref"].as_str().and_then(|reference| reference.strip_prefix('#'));
    target.and_then(|pointer| root.pointer(pointer)).unwrap_or(schema)
}

/// The values that a normalised schema lists, if it lists any.
pub(super) fn listed(schema: &Value) -> Option<&[Value]> {
    let values = schema["enum"].as_array().map(Vec::as_slice);
    values.or_else(|| schema.get("const").map(std::slice::from_ref))
}

#[cfg(test)]
mod tests {
    use kvik_cache::Token;

    use super::super::tests::{CONTROL, accepted_tokens, accepts, compiler};
    use super::*;
    use crate::forms::{ArgumentsForm, CallForm, CallStart, Calls, Constraint};

    fn notations() -> [ArgumentsForm; 3] {
        let parameters = ArgumentsForm::Parameters { key: "<".into(), value: ">".into(), end: "</>".into() };
        [parameters, ArgumentsForm::Python, ArgumentsForm::Dict { quote: "'".into() }]
    }

    /// Arguments in one of these notations.
    fn written(form: &ArgumentsForm, arguments: &Value) -> String {
        let text = |value: &Value, quote: &str| match value {
            Value::String(text) => [quote, text, quote].concat(),
            other => other.to_string(),
        };
        let entry = |(key, value): (&String, &Value)| match form {
            ArgumentsForm::Parameters { .. } => format!("<{key}>{}</>", text(value, "")),
            ArgumentsForm::Python | ArgumentsForm::Json => format!("{key}={value}"),
            ArgumentsForm::Dict { quote } => format!("{key}:{}", text(value, quote)),
        };
        let entries: Vec<String> = arguments.as_object().unwrap().iter().map(entry).collect();
        match form {
            ArgumentsForm::Parameters { .. } => entries.concat(),
            ArgumentsForm::Python | ArgumentsForm::Json => format!("({})", entries.join(", ")),
            ArgumentsForm::Dict { .. } => format!("{{{}}}", entries.join(",")),
        }
    }

    /// A call with arguments of this schema, between `f` and `!`.
    fn call(form: &ArgumentsForm, schema: &Value) -> Constraint {
        let (arguments, schema) = (form.clone(), schema.clone());
        Constraint::Calls(Calls {
            start: CallStart::Forced { after: None, instead: None },
            tools: vec![CallForm { begin: "f".into(), arguments, schema, end: "!".into() }],
            opening: String::new(),
            separator: String::new(),
            closing: String::new(),
            calls_max: 1,
            reasoning: None,
        })
    }

    /// In every notation, a call may have the arguments that are right for a schema and not those that are wrong.
    fn check(schema: Value, right: &[Value], wrong: &[Value]) {
        for form in notations() {
            let constraint = call(&form, &schema);
            for (objects, expect) in [(right, true), (wrong, false)] {
                for object in objects {
                    let text = format!("f{}!", written(&form, object));
                    assert_eq!(accepts(&constraint, &text), expect, "{schema}: {text}");
                }
            }
        }
    }

    #[test]
    fn arguments_are_those_of_one_alternative() {
        let text = json!({"type": "string"});
        check(
            json!({"type": "object", "properties": {"op": text, "a": text, "b": text}, "required": ["op"],
                   "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}),
            &[
                json!({"op": "x", "a": "y"}),
                json!({"op": "x", "b": "y"}),
                json!({"op": "x", "a": "y", "b": "z"}),
            ],
            &[json!({}), json!({"op": "x"}), json!({"a": "y"}), json!({"op": "x", "c": "y"})],
        );
        let tagged = |kind: &str, key: &str| {
            let properties = json!({"kind": {"const": kind}, key: {"type": "integer"}});
            json!({"properties": properties, "required": ["kind", key]})
        };
        check(
            json!({"oneOf": [{"$ref": "#/$defs/one"}, tagged("two", "b"), {"type": "null"}],
                   "$defs": {"one": tagged("one", "a")}}),
            &[json!({"kind": "one", "a": 1}), json!({"kind": "two", "b": 2})],
            &[json!({}), json!({"kind": "one", "b": 1}), json!({"kind": "two"}), json!({"kind": "x"})],
        );
        check(
            json!({"enum": [{"a": "x"}, {"b": 1}, 3]}),
            &[json!({"a": "x"}), json!({"b": 1})],
            &[json!({}), json!({"a": "y"}), json!({"b": 2}), json!({"a": "x", "b": 1})],
        );
        let without = json!({"properties": {"a": text, "b": false}});
        check(without, &[json!({}), json!({"a": "x"})], &[json!({"b": "x"})]);
    }

    /// Names that a schema does not list are behind those that it does.
    #[test]
    fn an_object_may_have_other_names_where_their_schema_is_given() {
        for open in [json!({}), json!({"type": "object"}), json!({"additionalProperties": true})] {
            check(open, &[json!({})], &[json!({"a": 1})]);
        }
        let text = json!({"type": "string"});
        check(
            json!({"additionalProperties": text}),
            &[json!({}), json!({"a": "1"}), json!({"größe": "x", "max results": "3"})],
            &[json!({" a": "1"}), json!({"a  b": "1"})],
        );
        check(
            json!({"additionalProperties": {"type": "integer"}}),
            &[json!({}), json!({"n": 3, "m": -4})],
            &[json!({"n": "x"}), json!({"n": 3, "m": "x"})],
        );
        check(
            json!({"properties": {"a": {"type": "integer"}}, "required": ["q"], "additionalProperties": text}),
            &[json!({"q": "x"}), json!({"a": 1, "q": "x"}), json!({"q": "1", "z": "x", "ab": "2"})],
            &[
                json!({}),
                json!({"a": 1}),
                json!({"z": 1}),
                json!({"a": "x", "q": "1"}),
                json!({"q": "1", "a": 2}),
            ],
        );
        let without =
            json!({"properties": {"a": {}, "b": false}, "additionalProperties": {"type": "integer"}});
        check(without, &[json!({"a": 1, "bb": 2})], &[json!({"b": 1}), json!({"a": 1, "b": 2})]);
        check(json!({"required": ["q"]}), &[json!({"q": 1})], &[json!({}), json!({"q": 1, "z": 2})]);
    }

    /// A control token in the text around a name stands for itself.
    #[test]
    fn other_names_may_be_between_control_tokens() {
        let (key, value) = ("\n<|x|>".to_owned(), ":<|x|>".to_owned());
        let form = ArgumentsForm::Parameters { key, value, end: "</>".into() };
        let schema =
            json!({"properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}});
        let constraint = call(&form, &schema);
        let bytes = |text: &str| text.bytes().map(Token::from).collect::<Vec<_>>();
        let entry = |(key, value): &(&str, &str)| {
            let (key, value) = (bytes(&format!("{key}:")), bytes(&format!("{value}</>")));
            [bytes("\n"), vec![CONTROL], key, vec![CONTROL], value].concat()
        };
        for (entries, expect) in [
            (&[("b", "x")][..], true),
            (&[], true),
            (&[("a", "1"), ("b", "x"), ("c d", "y")], true),
            (&[("a", "x")], false),
            (&[("b", "x"), ("a", "x")], false),
        ] {
            let entries: Vec<Token> = entries.iter().flat_map(entry).collect();
            let tokens = [bytes("f"), entries, bytes("!")].concat();
            assert_eq!(accepted_tokens(&constraint, &tokens), expect, "{tokens:?}");
        }
    }

    #[test]
    fn a_schema_that_no_object_satisfies_is_refused() {
        for schema in [
            json!({"type": "string"}),
            json!({"enum": [1, "x"]}),
            json!({"required": ["a"], "properties": {"a": false}}),
        ] {
            for form in notations() {
                let error = compiler().compile(&call(&form, &schema)).err().map(|error| error.to_string());
                let error = error.unwrap_or_default();
                assert!(error.contains("the schema of the tool excludes"), "{schema}: {error}");
            }
        }
    }
}

//! The grammar of arguments in notations other than JSON, from the schema of a tool.
//!
//! Properties are in the order of the schema, and optional ones may be missing; those that it does not name come last. A
//! string is free up to its end marker; nested values have their form but not their types enforced unless they are JSON.

use std::collections::HashMap;
use std::fmt::Write;

use regex_syntax::escape;
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_128;

use super::literals::{ControlTokens, Text, lead, quoted};
use super::objects::{ObjectSchema, listed, object_schemas, target};
use super::{checked_schema, json_rule, limits};
use crate::forms::ArgumentsForm;
use crate::kinds::Kinds;

/// Maximum nesting of alternatives whose values are distinguished.
const ALTERNATIVES_DEPTH_MAX: usize = 8;

/// Rules of one tool's arguments; the start rule is `name`.
pub(super) fn rules(
    name: &str,
    form: &ArgumentsForm,
    schema: &Value,
    controls: &ControlTokens<'_>,
) -> Result<String, String> {
    let normal = checked_schema(schema)?;
    let objects = object_schemas(&normal);
    if objects.is_empty() {
        return Err("the arguments of a call are an object, which the schema of the tool excludes".to_owned());
    }
    let (rules, known) = (String::new(), HashMap::new());
    let mut grammar = Grammar { name, form, schema: &normal, controls, rules, known, literals_bytes: 0 };
    for (index, object) in objects.iter().enumerate() {
        grammar.object(&format!("{name}_o{index}"), object)?;
    }
    let ways: Vec<String> = (0..objects.len()).map(|index| format!("{name}_o{index}_first_0")).collect();
    let Marks { open, close, .. } = grammar.marks();
    grammar.rule(name, &format!("{open} ({}) {close}", ways.join(" | ")));
    if let ArgumentsForm::Dict { quote } = form {
        grammar.values(quote)?;
    }
    Ok(grammar.rules)
}

struct Grammar<'a> {
    name: &'a str,
    form: &'a ArgumentsForm,
    /// The normalised schema: properties refer to its definitions.
    schema: &'a Value,
    controls: &'a ControlTokens<'a>,
    /// At most as long as a grammar may be: a definition is written at each of its uses.
    rules: String,
    /// Rules of properties, by digests of their names and schemas: alternatives have many in common.
    known: HashMap<u128, String>,
    /// Bytes of the listed values of parameters, which are written once all alternatives of their property are known.
    literals_bytes: usize,
}

/// The literals around and between properties.
struct Marks {
    open: &'static str,
    separator: &'static str,
    close: &'static str,
}

impl<'a> Grammar<'a> {
    /// Writing to a string cannot fail.
    fn rule(&mut self, name: &str, body: &str) {
        let _ = writeln!(self.rules, "{name}: {body}");
    }

    fn marks(&self) -> Marks {
        let (open, separator, close) = match self.form {
            ArgumentsForm::Python => ("\"(\"", "\", \"", "\")\""),
            ArgumentsForm::Dict { .. } => ("\"{\"", "\",\"", "\"}\""),
            ArgumentsForm::Parameters { .. } | ArgumentsForm::Json => ("", "", ""),
        };
        Marks { open, separator, close }
    }

    /// Writes the rules of an alternative, named from `name` on.
    fn object(&mut self, name: &str, object: &ObjectSchema<'_>) -> Result<(), String> {
        let mut entries = Vec::new();
        for (index, (key, schema)) in object.properties.iter().enumerate() {
            let entry = self.property(format!("{name}_{index}"), key, schema)?;
            entries.push((entry, object.required.contains(key)));
        }
        let other = match object.others {
            Some(schema) => Some(self.other(&format!("{name}_other"), object, schema)?),
            None => None,
        };
        self.sequence(name, &entries, other.as_deref());
        limits::check_generated(self.rules.len())
    }

    /// The rule of a property with its name.
    fn property(&mut self, rule: String, key: &str, property: &Value) -> Result<String, String> {
        let digest = xxh3_128(format!("{key:?}: {property}").as_bytes());
        if let Some(known) = self.known.get(&digest) {
            return Ok(known.clone());
        }
        let (before, after) = self.around_key();
        let head = [before, key, after].concat();
        let head = match self.form {
            ArgumentsForm::Parameters { .. } => self.controls.lark(&head),
            ArgumentsForm::Python | ArgumentsForm::Dict { .. } => quoted(&head),
            ArgumentsForm::Json => String::new(),
        };
        self.entry(&rule, &head, property)?;
        self.known.insert(digest, rule.clone());
        Ok(rule)
    }

    /// The rule of a property with a name that is none of the object's.
    fn other(&mut self, rule: &str, object: &ObjectSchema<'_>, property: &Value) -> Result<String, String> {
        let (before, after) = self.around_key();
        let (lead, text_before) = before.split_at(before.len() - self.controls.text_at_end(before).len());
        let (text_after, rest) = after.split_at(self.controls.text_at_start(after).len());
        // The name is a terminal with the text next to it, with which other entries may begin as well.
        let named = |key: &str| quoted(&[text_before, key, text_after].concat());
        let known = object.properties.iter().map(|(key, _)| key).chain(&object.excluded);
        let known: Vec<String> = known.map(|key| named(key)).collect();
        let but = if known.is_empty() { String::new() } else { format!(" & ~({})", known.join(" | ")) };
        let terminal = rule.to_uppercase();
        let key = self.free_key();
        let body = format!("{} {key} {}{but}", quoted(text_before), quoted(text_after));
        self.rule(&terminal, &body);
        let head = [&*self.controls.lark(lead), &*terminal, &*self.controls.lark(rest)].join(" ");
        self.entry(rule, &head, property)?;
        Ok(rule.to_owned())
    }

    /// The texts before and after a key.
    fn around_key(&self) -> (&'a str, &'a str) {
        match self.form {
            ArgumentsForm::Parameters { key, value, .. } => (key, value),
            ArgumentsForm::Python => ("", "="),
            ArgumentsForm::Dict { .. } => ("", ":"),
            ArgumentsForm::Json => ("", ""),
        }
    }

    /// The expression of a key in the language of the tool's author, which ends where the parser of the notation ends it.
    fn free_key(&self) -> String {
        let ends: String = match self.form {
            ArgumentsForm::Parameters { value, .. } => {
                value.trim().chars().take(1).chain(['"', '<']).collect()
            }
            ArgumentsForm::Python => "=,()\"'".to_owned(),
            ArgumentsForm::Dict { .. } | ArgumentsForm::Json => ":,{}\"".to_owned(),
        };
        let letter = format!(r"[^{}\s]", escape(&ends).replace('/', r"\/"));
        format!("/{letter}+( {letter}+)*/")
    }

    /// Writes the rule of a property, of which `head` is its name with the text around it.
    fn entry(&mut self, rule: &str, head: &str, property: &Value) -> Result<(), String> {
        let value = match self.form {
            ArgumentsForm::Parameters { end, .. } => self.parameter(rule, property, end)?,
            ArgumentsForm::Python | ArgumentsForm::Json => self.json(rule, property)?,
            ArgumentsForm::Dict { quote } => self.dict_value(rule, property, quote)?,
        };
        self.rule(rule, &format!("{head} {value}"));
        limits::check_generated(self.rules.len())
    }

    /// A value as text, with its end. If it may be any string, no other type is enforced.
    fn parameter(&mut self, rule: &str, property: &Value, end: &str) -> Result<String, String> {
        let mut written = Vec::new();
        if self.written(rule, property, &mut written, 0)? {
            return Ok(format!("({}) {}", written.join(" | "), self.controls.lark(end)));
        }
        self.free(&format!("{rule}_text"), end)
    }

    /// Adds the ways in which a value may be written; `false` if it may be any text.
    fn written(
        &mut self,
        rule: &str,
        property: &Value,
        ways: &mut Vec<String>,
        depth: usize,
    ) -> Result<bool, String> {
        let schema = self.schema;
        let property = target(schema, property);
        if let (Some(options), true) = (property["anyOf"].as_array(), depth < ALTERNATIVES_DEPTH_MAX) {
            for option in options {
                if !self.written(rule, option, ways, depth + 1)? {
                    return Ok(false);
                }
            }
            return Ok(true);
        }
        if let Some(values) = listed(property) {
            for value in values {
                ways.push(self.listed_literal(value)?);
            }
            return Ok(true);
        }
        if Kinds::of(schema, property).allows(Kinds::STRING) {
            return Ok(false);
        }
        let way = self.json(&format!("{rule}_{}", ways.len()), property)?;
        ways.push(way);
        Ok(true)
    }

    /// The literal of a listed value, counted as one of several alternatives.
    fn listed_literal(&mut self, value: &Value) -> Result<String, String> {
        let literal = match value {
            Value::String(text) => self.literal(text),
            other => self.literal(&other.to_string()),
        };
        self.literals_bytes += literal.len() + " | ".len();
        limits::check_generated(self.literals_bytes)?;
        Ok(literal)
    }

    /// A value in Gemma's notation.
    fn dict_value(&mut self, rule: &str, property: &Value, quote: &str) -> Result<String, String> {
        let property = target(self.schema, property);
        let kinds = Kinds::of(self.schema, property);
        let scalars = Kinds::NULL.or(Kinds::BOOLEAN).or(Kinds::INTEGER).or(Kinds::FRACTION);
        if kinds.is_within(scalars) {
            return self.json(rule, property);
        }
        if kinds != Kinds::STRING {
            return Ok(format!("{}_value", self.name));
        }
        let Some(texts) = listed(property) else { return Ok(format!("{}_text", self.name)) };
        let quoted = |text: &Value| self.literal(&[quote, text.as_str().unwrap_or_default(), quote].concat());
        Ok(format!("({})", texts.iter().map(quoted).collect::<Vec<_>>().join(" | ")))
    }

    fn literal(&self, text: &str) -> String {
        if text.is_empty() { "\"\"".to_owned() } else { self.controls.lark(text) }
    }

    /// Free text up to and including its end.
    fn free(&mut self, rule: &str, end: &str) -> Result<String, String> {
        let text = lead(rule, &Text::free(), end, self.controls)?;
        self.rules.push_str(&text.rules);
        Ok(format!("{} {}", text.reference, self.controls.lark(&end[text.skipped..])))
    }

    fn json(&mut self, rule: &str, property: &Value) -> Result<String, String> {
        let mut schema = property.clone();
        if let (Some(fields), Some(definitions)) = (schema.as_object_mut(), self.schema.get("$defs")) {
            // The definitions that a property refers to are siblings of the properties.
            fields.insert("$defs".to_owned(), definitions.clone());
        }
        let name = format!("{rule}_json");
        self.rule(&name, &json_rule(&schema)?);
        limits::check_generated(self.rules.len())?;
        Ok(name)
    }

    /// All properties in order, each with a flag whether it is required, and any number of others, with the text between
    /// them.
    fn sequence(&mut self, name: &str, entries: &[(String, bool)], other: Option<&str>) {
        let Marks { separator, .. } = self.marks();
        // `first_i`: no property before `i` has been written; `more_i`: at least one has.
        for (index, (entry, is_required)) in entries.iter().enumerate() {
            let next = index + 1;
            let skip = if *is_required { String::new() } else { format!(" | {name}_first_{next}") };
            self.rule(&format!("{name}_first_{index}"), &format!("{entry} {name}_more_{next}{skip}"));
            let optional = if *is_required { "" } else { "?" };
            self.rule(
                &format!("{name}_more_{index}"),
                &format!("({separator} {entry}){optional} {name}_more_{next}"),
            );
        }
        let end = entries.len();
        let (first, more) = match other {
            Some(other) => (format!("({other} {name}_more_{end})?"), format!("({separator} {other})*")),
            None => ("\"\"".to_owned(), "\"\"".to_owned()),
        };
        self.rule(&format!("{name}_first_{end}"), &first);
        self.rule(&format!("{name}_more_{end}"), &more);
    }

    /// Values of any type in Gemma's notation.
    fn values(&mut self, quote: &str) -> Result<(), String> {
        let name = self.name;
        let text = self.free(&format!("{name}_quoted"), quote)?;
        self.rule(&format!("{name}_text"), &format!("{} {text}", self.controls.lark(quote)));
        let several = |item: &str| format!("({name}_{item} (\",\" {name}_{item})*)?");
        let (entries, values) = (several("entry"), several("value"));
        let key = self.free_key();
        self.rule(&format!("{name}_entry"), &format!("{key} \":\" {name}_value"));
        let plain = "/-?[0-9]+(\\.[0-9]+)?/ | \"true\" | \"false\" | \"null\"";
        let nested = format!("\"{{\" {entries} \"}}\" | \"[\" {values} \"]\"");
        self.rule(&format!("{name}_value"), &format!("{name}_text | {plain} | {nested}"));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::super::tests::{accepts, compiler};
    use super::*;
    use crate::forms::{CallForm, CallStart, Calls, Constraint};

    fn forced(arguments: ArgumentsForm, begin: &str, end: &str) -> Constraint {
        let schema = json!({"type": "object", "required": ["t", "k"], "properties": {
            "n": {"type": "integer"},
            "t": {"type": "string"},
            "k": {"type": "string", "enum": ["a", "b"]},
            "o": {"$ref": "#/$defs/pair"},
        }, "$defs": {"pair": {"type": "array", "items": {"type": "boolean"}}}});
        Constraint::Calls(Calls {
            start: CallStart::Forced { after: None, instead: None },
            tools: vec![CallForm { begin: begin.into(), arguments, schema, end: end.into() }],
            opening: "[".into(),
            separator: ",".into(),
            closing: "]".into(),
            calls_max: 2,
            reasoning: None,
        })
    }

    fn check(constraint: &Constraint, right: &[&str], wrong: &[&str]) {
        for text in right {
            assert!(accepts(constraint, text), "{text}");
        }
        for text in wrong {
            assert!(!accepts(constraint, text), "{text}");
        }
    }

    #[test]
    fn parameters_have_the_types_of_the_schema() {
        let form = ArgumentsForm::Parameters {
            key: "\n<parameter=".into(),
            value: ">\n".into(),
            end: "\n</parameter>".into(),
        };
        let call = |inside: &str| format!("[<function=f>{inside}\n</function>]");
        let text = |name: &str, value: &str| format!("\n<parameter={name}>\n{value}\n</parameter>");
        let least = call(&[text("t", "any <text>\n"), text("k", "b")].concat());
        let all = call(&[text("n", "3"), text("t", ""), text("k", "a"), text("o", "[true]")].concat());
        let missing = call(&text("t", "x"));
        let other = call(&[text("t", "x"), text("k", "c")].concat());
        let typed = call(&[text("n", "x"), text("t", "x"), text("k", "a")].concat());
        let constraint = forced(form, "<function=f>", "\n</function>");
        check(&constraint, &[&least, &all], &[&missing, &other, &typed, "no"]);
    }

    /// A string is written unquoted, however the schema states its type, because it is parsed so.
    #[test]
    fn a_text_is_written_as_it_is_however_its_schema_says_that_it_is_one() {
        let form = ArgumentsForm::Parameters { key: "<".into(), value: ">".into(), end: "</>".into() };
        let check = |property: Value, right: &[&str], wrong: &[&str]| {
            let schema = json!({"type": "object", "required": ["p"], "properties": {"p": property},
                "$defs": {"text": {"type": "string"}, "unit": {"enum": ["c", "f"]}}});
            let constraint = Constraint::Calls(Calls {
                start: CallStart::Forced { after: None, instead: None },
                tools: vec![CallForm { begin: "f".into(), arguments: form.clone(), schema, end: "!".into() }],
                opening: String::new(),
                separator: String::new(),
                closing: String::new(),
                calls_max: 1,
                reasoning: None,
            });
            for (texts, expect) in [(right, true), (wrong, false)] {
                for text in texts {
                    assert_eq!(
                        accepts(&constraint, &format!("f<p>{text}</>!")),
                        expect,
                        "{property}: {text}"
                    );
                }
            }
        };
        let free: &[&str] = &["any text", "3", "null", "\"x\"", ""];
        for property in [
            json!({"type": "string"}),
            json!({"type": ["string", "null"]}),
            json!({"anyOf": [{"type": "string"}, {"type": "null"}]}),
            json!({"oneOf": [{"type": "integer"}, {"$ref": "#/$defs/text"}]}),
            json!({"$ref": "#/$defs/text"}),
            json!({"allOf": [{"$ref": "#/$defs/text"}], "minLength": 0}),
            json!({}),
        ] {
            check(property, free, &[]);
        }
        let units: (&[&str], &[&str]) = (&["c", "f"], &["\"c\"", "k", ""]);
        check(json!({"$ref": "#/$defs/unit"}), units.0, units.1);
        check(json!({"allOf": [{"$ref": "#/$defs/unit"}]}), units.0, units.1);
        check(json!({"const": "3"}), &["3"], &["\"3\"", "4"]);
        check(
            json!({"anyOf": [{"$ref": "#/$defs/unit"}, {"type": "null"}]}),
            &["c", "null"],
            &["\"c\"", "nil"],
        );
        check(json!({"enum": ["", 3, "x"]}), &["", "3", "x"], &["\"x\"", "4"]);
        check(json!({"type": ["integer", "null"]}), &["3", "null"], &["x", "\"3\""]);
        check(json!({"anyOf": [{"type": "boolean"}, {"type": "array"}]}), &["true", "[1]"], &["x", "True"]);
    }

    /// The grammar of a list is refused before it is written at each of its uses.
    #[test]
    fn a_list_that_is_used_often_is_refused_early() {
        let list: Vec<String> = (0..10_000).map(|i| format!("value-{i}")).collect();
        let use_of_list = |i: usize| (format!("p{i}"), json!({"$ref": "#/$defs/list"}));
        let properties: Map<String, Value> = (0..200).map(use_of_list).collect();
        let schema = json!({"properties": properties, "$defs": {"list": {"enum": list}}});
        let compiler = compiler();
        let controls = ControlTokens::of(&compiler.vocabulary);
        let parameters = ArgumentsForm::Parameters { key: "<".into(), value: ">".into(), end: "</>".into() };
        for form in [parameters, ArgumentsForm::Python, ArgumentsForm::Dict { quote: "'".into() }] {
            let error = rules("f", &form, &schema, &controls).unwrap_err();
            assert!(error.contains("bytes as a grammar"), "{form:?}: {error}");
        }
    }

    #[test]
    fn pythons_notation_has_the_types_of_the_schema() {
        check(
            &forced(ArgumentsForm::Python, "f", ""),
            &["[f(t=\"x\", k=\"a\")]", "[f(n=1, t=\"\", k=\"b\", o=[false]),f(t=\"x\", k=\"a\")]"],
            &[
                "[f()]",
                "[f(t=\"x\")]",
                "[f(k=\"a\", t=\"x\")]",
                "[f(t=\"x\", k=\"c\")]",
                "[f(, t=\"x\", k=\"a\")]",
            ],
        );
    }

    #[test]
    fn gemmas_notation_has_the_types_of_the_schema() {
        let form = ArgumentsForm::Dict { quote: "<|\"|>".into() };
        check(
            &forced(form, "call:f", "<end>"),
            &[
                "[call:f{t:<|\"|>x}<|\"|>,k:<|\"|>a<|\"|>}<end>]",
                "[call:f{n:-1,t:<|\"|><|\"|>,k:<|\"|>b<|\"|>,o:[true,{a:<|\"|>x<|\"|>}]}<end>]",
                "[call:f{t:<|\"|>x<|\"|>,k:<|\"|>a<|\"|>,o:[{城市:1,größe:2,first-name:{max results:3}}]}<end>]",
            ],
            &[
                "[call:f{}<end>]",
                "[call:f{t:x,k:<|\"|>a<|\"|>}<end>]",
                "[call:f{t:<|\"|>x<|\"|>,k:<|\"|>c<|\"|>}<end>]",
                "[call:f{t:<|\"|>x<|\"|>,k:<|\"|>a<|\"|>,o:[{:1}]}<end>]",
                "[call:f{t:<|\"|>x<|\"|>,k:<|\"|>a<|\"|>,o:[{城,市:1}]}<end>]",
            ],
        );
    }
}

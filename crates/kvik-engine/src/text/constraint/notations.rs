//! The grammar of arguments that are not written as JSON, by the schema of a tool.
//!
//! Properties come in the order of the schema, those that are not required may be missing. A text is free up to what
//! ends it; values within values have their form and not their types where they are not JSON.

use std::fmt::Write;

use serde_json::{Map, Value};

use super::checked_schema;
use super::literals::{ControlTokens, Text, lead, quoted};
use crate::api::ArgumentsForm;

/// Rules of one tool's arguments, which begin with the rule of this name.
pub(super) fn rules(
    name: &str,
    form: &ArgumentsForm,
    schema: &Value,
    controls: &ControlTokens<'_>,
) -> Result<String, String> {
    let mut grammar = Grammar { name, form, schema, controls, rules: String::new() };
    let properties = schema["properties"].as_object().cloned().unwrap_or_default();
    for (index, (key, property)) in properties.iter().enumerate() {
        grammar.property(index, key, property)?;
    }
    grammar.sequence(&properties);
    if let ArgumentsForm::Dict { quote } = form {
        grammar.values(quote)?;
    }
    Ok(grammar.rules)
}

struct Grammar<'a> {
    name: &'a str,
    form: &'a ArgumentsForm,
    schema: &'a Value,
    controls: &'a ControlTokens<'a>,
    rules: String,
}

impl Grammar<'_> {
    /// Writing to a string cannot fail.
    fn rule(&mut self, name: &str, body: &str) {
        let _ = writeln!(self.rules, "{name}: {body}");
    }

    /// One property with its name.
    fn property(&mut self, index: usize, key: &str, property: &Value) -> Result<(), String> {
        let rule = format!("{}_{index}", self.name);
        let body = match self.form {
            ArgumentsForm::Parameters { key: before, value, end } => {
                let named = self.controls.lark(&[before, key, value].concat());
                format!("{named} {}", self.parameter(&rule, property, end)?)
            }
            ArgumentsForm::Python => {
                format!("{} {}", quoted(&format!("{key}=")), self.json(&rule, property)?)
            }
            ArgumentsForm::Dict { quote } => {
                let value = match kind(property) {
                    "string" => {
                        match literals(property, |text| self.controls.lark(&[quote, text, quote].concat())) {
                            Some(literals) => literals,
                            None => format!("{}_text", self.name),
                        }
                    }
                    "integer" | "number" | "boolean" | "null" => self.json(&rule, property)?,
                    _ => format!("{}_value", self.name),
                };
                format!("{} {value}", quoted(&format!("{key}:")))
            }
            ArgumentsForm::Json => self.json(&rule, property)?,
        };
        self.rule(&rule, &body);
        Ok(())
    }

    /// A value as text, and what ends it.
    fn parameter(&mut self, rule: &str, property: &Value, end: &str) -> Result<String, String> {
        if kind(property) != "string" {
            return Ok(format!("{} {}", self.json(rule, property)?, self.controls.lark(end)));
        }
        if let Some(literals) = literals(property, |text| self.controls.lark(text)) {
            return Ok(format!("{literals} {}", self.controls.lark(end)));
        }
        self.free(&format!("{rule}_text"), end)
    }

    /// Free text up to and with its end.
    fn free(&mut self, rule: &str, end: &str) -> Result<String, String> {
        let text = lead(rule, &Text::free(), end, self.controls)?;
        self.rules.push_str(&text.rules);
        Ok(format!("{} {}", text.reference, self.controls.lark(&end[text.skipped..])))
    }

    fn json(&mut self, rule: &str, property: &Value) -> Result<String, String> {
        let mut schema = property.clone();
        if let Some(fields) = schema.as_object_mut() {
            // What a property refers to is defined beside the properties.
            for name in ["$defs", "definitions"] {
                if let Some(definitions) = self.schema.get(name) {
                    fields.entry(name).or_insert(definitions.clone());
                }
            }
        }
        let name = format!("{rule}_json");
        self.rule(&name, &format!("%json {}", checked_schema(&schema)?));
        Ok(name)
    }

    /// All properties in their order, with what stands around and between them.
    fn sequence(&mut self, properties: &Map<String, Value>) {
        let (open, separator, close) = match self.form {
            ArgumentsForm::Python => ("\"(\"", "\", \"", "\")\""),
            ArgumentsForm::Dict { .. } => ("\"{\"", "\",\"", "\"}\""),
            ArgumentsForm::Parameters { .. } | ArgumentsForm::Json => ("", "", ""),
        };
        let required = self.schema["required"].as_array().cloned().unwrap_or_default();
        let name = self.name;
        // `first_i`: nothing has been written of the properties before `i`; `more_i`: something has.
        for (index, key) in properties.keys().enumerate() {
            let next = index + 1;
            let is_required = required.iter().any(|required| required == key);
            let skip = if is_required { String::new() } else { format!(" | {name}_first_{next}") };
            self.rule(&format!("{name}_first_{index}"), &format!("{name}_{index} {name}_more_{next}{skip}"));
            let optional = if is_required { "" } else { "?" };
            self.rule(
                &format!("{name}_more_{index}"),
                &format!("({separator} {name}_{index}){optional} {name}_more_{next}"),
            );
        }
        let end = properties.len();
        self.rule(&format!("{name}_first_{end}"), "\"\"");
        self.rule(&format!("{name}_more_{end}"), "\"\"");
        self.rule(name, &format!("{open} {name}_first_0 {close}"));
    }

    /// Values of any type in Gemma's notation.
    fn values(&mut self, quote: &str) -> Result<(), String> {
        let name = self.name;
        let text = self.free(&format!("{name}_quoted"), quote)?;
        self.rule(&format!("{name}_text"), &format!("{} {text}", self.controls.lark(quote)));
        let several = |item: &str| format!("({name}_{item} (\",\" {name}_{item})*)?");
        let (entries, values) = (several("entry"), several("value"));
        self.rule(&format!("{name}_entry"), &format!("/[A-Za-z0-9_]+/ \":\" {name}_value"));
        let plain = "/-?[0-9]+(\\.[0-9]+)?/ | \"true\" | \"false\" | \"null\"";
        let nested = format!("\"{{\" {entries} \"}}\" | \"[\" {values} \"]\"");
        self.rule(&format!("{name}_value"), &format!("{name}_text | {plain} | {nested}"));
        Ok(())
    }
}

/// The type of a property; empty where it may have several.
fn kind(property: &Value) -> &str {
    property["type"].as_str().unwrap_or_default()
}

/// The texts that a property may be, where its schema lists them.
fn literals(property: &Value, written: impl Fn(&str) -> String) -> Option<String> {
    let texts = property["enum"].as_array()?;
    let texts: Option<Vec<String>> = texts.iter().map(|text| text.as_str().map(&written)).collect();
    Some(format!("({})", texts.filter(|texts| !texts.is_empty())?.join(" | ")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::accepts;
    use super::*;
    use crate::api::{CallForm, CallStart, Calls, Constraint};

    fn forced(arguments: ArgumentsForm, begin: &str, end: &str) -> Constraint {
        let schema = json!({"type": "object", "required": ["t", "k"], "properties": {
            "n": {"type": "integer"},
            "t": {"type": "string"},
            "k": {"type": "string", "enum": ["a", "b"]},
            "o": {"$ref": "#/$defs/pair"},
        }, "$defs": {"pair": {"type": "array", "items": {"type": "boolean"}}}});
        Constraint::Calls(Calls {
            start: CallStart::Forced { after: None },
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
            ],
            &[
                "[call:f{}<end>]",
                "[call:f{t:x,k:<|\"|>a<|\"|>}<end>]",
                "[call:f{t:<|\"|>x<|\"|>,k:<|\"|>c<|\"|>}<end>]",
            ],
        );
    }
}

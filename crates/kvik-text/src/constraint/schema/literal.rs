//! `const` and `enum`: the listed values that all sibling keywords allow.

use serde_json::{Value, json};

use super::merge::is_annotation;
use super::valid::Validator;
use super::{Fields, Normaliser, Result, UnderStrict, excluded, failed};

impl Normaliser<'_> {
    /// The listed values that satisfy the rest of the schema; `None` if it lists none. Keywords that cannot be
    /// checked are noted.
    pub(super) fn literal(&mut self, fields: &Fields, at: &str) -> Result<Option<Value>> {
        let (keyword, values) = match (fields.get("const"), fields.get("enum")) {
            (Some(value), _) => ("const", std::slice::from_ref(value)),
            (None, Some(Value::Array(values))) => ("enum", &values[..]),
            (None, Some(_)) => return Err(failed(&format!("{at}.enum"), "must be an array of values")),
            (None, None) => return Ok(None),
        };
        let rules: Fields =
            fields.iter().filter(|(key, _)| *key != keyword && !is_annotation(key)).map(owned).collect();
        super::types(&rules, at)?;
        let mut validator = Validator::new(self.root);
        let allowed: Vec<&Value> =
            values.iter().filter(|value| validator.allows(&rules, value) != Some(false)).collect();
        for keyword in validator.unknown {
            let why = "of the values beside it, not all could be checked";
            self.drop_keyword(at, &keyword, why, UnderStrict::Tolerated)?;
        }
        match (keyword, allowed.first()) {
            (_, None) => {
                Err(excluded(&format!("{at}.{keyword}"), "has no value that the keywords beside it allow"))
            }
            ("const", Some(value)) => Ok(Some(json!({ "const": value }))),
            _ => Ok(Some(json!({ "enum": allowed }))),
        }
    }
}

fn owned((key, value): (&String, &Value)) -> (String, Value) {
    (key.clone(), value.clone())
}

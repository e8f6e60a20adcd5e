//! `const` and `enum`: the listed values that all sibling keywords allow.

use std::collections::BTreeSet;

use serde_json::Value;

use super::merge::is_annotation;
use super::valid::Validator;
use super::{Fields, Normaliser, Result, UnderStrict, excluded, failed, object_of};

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
        let rules = self.copy_fields(fields, |key| key != keyword && !is_annotation(key), at)?;
        super::types(&rules, at)?;
        let (allowed, unknown) = self.allowed(values, &rules);
        for keyword in unknown {
            let why = "of the values beside it, not all could be checked";
            self.drop_keyword(at, &keyword, why, UnderStrict::Tolerated)?;
        }
        if allowed.is_empty() {
            let message = "has no value that the keywords beside it allow";
            return Err(excluded(&format!("{at}.{keyword}"), message));
        }
        let mut copies =
            allowed.into_iter().map(|value| self.copy(value, at)).collect::<Result<Vec<Value>>>()?;
        let literal = if keyword == "const" { copies.remove(0) } else { Value::Array(copies) };
        Ok(Some(object_of(keyword, literal)))
    }

    /// The values that the rules allow, and the keywords of which some could not be checked.
    fn allowed<'v>(&mut self, values: &'v [Value], rules: &Fields) -> (Vec<&'v Value>, BTreeSet<String>) {
        let mut validator = Validator::new(self.root, &mut self.effort);
        let is_allowed = |value: &&Value| validator.allows(rules, value) != Some(false);
        let allowed = values.iter().filter(is_allowed).collect();
        (allowed, validator.unknown)
    }
}

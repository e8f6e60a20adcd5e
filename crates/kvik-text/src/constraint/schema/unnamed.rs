//! Keywords that apply to what their siblings do not name: `additionalProperties` and `items`, and `unevaluatedProperties`
//! and `unevaluatedItems`, whose siblings include the parts of the same schema.
//!
//! In a combination, siblings are those of one part. Merged, a keyword would have those of all parts as well, and would no
//! longer apply to what another part names; so its schema is added there before. Programs that close each class by itself
//! and combine it with others (zod, valibot, NSwag) do not mean that: nothing would satisfy what they print.

use std::collections::HashSet;

use serde_json::Value;

use super::merge::add_part;
use super::valid::Validator;
use super::{Fields, Normaliser, Result, UnderStrict};

/// The keywords that name properties.
const NAMING: [&str; 2] = ["properties", "patternProperties"];

/// The keywords of what its siblings do not name, each with that of what the parts of its schema do not name either.
const REST: [(&str, &str); 2] =
    [("additionalProperties", "unevaluatedProperties"), ("items", "unevaluatedItems")];

/// The keywords that may name more, depending on the value.
const CONDITIONAL: [&str; 6] = ["anyOf", "oneOf", "if", "dependentSchemas", "dependencies", "contains"];

/// Whether a keyword applies to what neither its siblings nor the parts of its schema name.
pub(super) fn is_unevaluated(keyword: &str) -> bool {
    REST.iter().any(|(_, unevaluated)| *unevaluated == keyword)
}

/// For each name or pattern of a part, whether another part names none of its properties; `None` if that is not certain.
type Unnamed = Vec<Option<bool>>;

impl Normaliser<'_> {
    /// Makes what `part`, whose own parts are resolved, says of the unevaluated apply to what it does not name itself: it
    /// does not see what the other parts of a combination name.
    pub(super) fn close_unevaluated(&mut self, part: &mut Fields, at: &str) -> Result<()> {
        let is_conditional = CONDITIONAL.iter().any(|keyword| part.contains_key(*keyword));
        for (rest, unevaluated) in REST {
            if !is_conditional {
                if let Some(schema) = part.remove(unevaluated) {
                    part.entry(rest).or_insert(schema);
                }
            } else if part.get(unevaluated).is_some_and(|schema| *schema != Value::Bool(true)) {
                let why = "what other parts name is allowed, because its own part may name it depending on the value";
                self.drop_keyword(at, unevaluated, why, UnderStrict::Tolerated)?;
            }
        }
        Ok(())
    }

    /// Adds what `part` says of all that it does not name to what `other` names, another part of the same combination.
    pub(super) fn restrict_unnamed(&mut self, part: &Fields, other: &mut Fields, at: &str) -> Result<()> {
        self.restrict_properties(part, other, at)?;
        self.restrict_items(part, other, at)
    }

    fn restrict_properties(&mut self, part: &Fields, other: &mut Fields, at: &str) -> Result<()> {
        let rest = part.get("additionalProperties").filter(|rest| **rest != Value::Bool(true));
        let Some(rest) = rest else { return Ok(()) };
        let unnamed = [self.unnamed(part, other, NAMING[0], at)?, self.unnamed(part, other, NAMING[1], at)?];
        if *rest == Value::Bool(false) && self.is_extended(part, other, &unnamed, at)? {
            let why = "another part lists properties that it excludes, and is closed as well or needs them";
            return self.drop_keyword(at, "additionalProperties", why, UnderStrict::Tolerated);
        }
        let mut is_certain = true;
        for (keyword, unnamed) in NAMING.into_iter().zip(unnamed) {
            let schemas = other.get_mut(keyword).and_then(Value::as_object_mut);
            for (schema, is_unnamed) in schemas.into_iter().flat_map(Fields::values_mut).zip(unnamed) {
                match is_unnamed {
                    Some(true) => add_part(schema, self.copy(rest, at)?),
                    Some(false) => {}
                    None => is_certain = false,
                }
            }
        }
        if is_certain {
            return Ok(());
        }
        let why = "not all properties that a pattern of another part matches are known";
        self.drop_keyword(at, "additionalProperties", why, UnderStrict::Refused)
    }

    /// What of a keyword of `other` is unnamed by `part`.
    fn unnamed(&mut self, part: &Fields, other: &Fields, keyword: &str, at: &str) -> Result<Unnamed> {
        let Some(schemas) = other.get(keyword).and_then(Value::as_object) else { return Ok(Vec::new()) };
        self.charge(schemas.len(), at)?;
        let mut validator = Validator::new(self.root, &mut self.effort);
        let is_unnamed = |name: &String| match keyword {
            "properties" => validator.is_additional(part, name),
            _ => is_unnamed_pattern(&mut validator, part, name),
        };
        Ok(schemas.keys().map(is_unnamed).collect())
    }

    /// Whether `part`, which is closed, and `other` each describe some properties of the same object: one of those that
    /// are excluded is required, or `other` is closed as well.
    fn is_extended(
        &mut self,
        part: &Fields,
        other: &Fields,
        unnamed: &[Unnamed; 2],
        at: &str,
    ) -> Result<bool> {
        if unnamed.iter().flatten().all(|is_unnamed| *is_unnamed != Some(true)) {
            return Ok(false);
        }
        if other.get("additionalProperties") == Some(&Value::Bool(false)) {
            return Ok(true);
        }
        let names = other.get("properties").and_then(Value::as_object).into_iter().flat_map(Fields::keys);
        let excluded = names.zip(&unnamed[0]).filter(|(_, is_unnamed)| **is_unnamed == Some(true));
        let excluded: HashSet<&str> = excluded.map(|(name, _)| name.as_str()).collect();
        let lists = [part, other].map(|fields| fields.get("required").and_then(Value::as_array));
        let required: Vec<&Value> = lists.into_iter().flatten().flatten().collect();
        self.charge(required.len(), at)?;
        Ok(required.into_iter().filter_map(Value::as_str).any(|name| excluded.contains(name)))
    }

    fn restrict_items(&mut self, part: &Fields, other: &mut Fields, at: &str) -> Result<()> {
        // In earlier drafts an array of `items` is a tuple.
        let rest = part.get("items").filter(|rest| !rest.is_array() && **rest != Value::Bool(true));
        let Some(rest) = rest else { return Ok(()) };
        let named = part.get("prefixItems").and_then(Value::as_array).map_or(0, Vec::len);
        let prefix = other.get_mut("prefixItems").and_then(Value::as_array_mut);
        for item in prefix.into_iter().flatten().skip(named) {
            add_part(item, self.copy(rest, at)?);
        }
        Ok(())
    }
}

/// Whether `part` names no property that a pattern matches; `None` if it does, or may.
fn is_unnamed_pattern(validator: &mut Validator<'_>, part: &Fields, pattern: &str) -> Option<bool> {
    let names =
        |keyword: &str| part.get(keyword).and_then(Value::as_object).into_iter().flat_map(Fields::keys);
    if names("patternProperties").next().is_some() {
        // It is the same pattern, or there are several, of which none is enforced.
        return Some(false);
    }
    names("properties").all(|name| validator.matches(pattern, name) == Some(false)).then_some(true)
}

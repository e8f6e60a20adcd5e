//! llama-server's list of samplers: those that are missing from it are switched off.

use std::fmt;

use kvik_engine::api::Sampling;
use serde::{
    Deserialize, Deserializer,
    de::{self, SeqAccess},
};

use super::parts::Part;
use crate::{described::JsonSchema, http::json::unknown};

/// Maximum number of unknown names that are noted.
const UNKNOWN_MAX: usize = 8;

/// llama-server's names and letters.
const KNOWN: [(&str, char, ListedSampler); 13] = [
    ("penalties", 'e', ListedSampler::Penalties),
    ("top_k", 'k', ListedSampler::TopK),
    ("top_p", 'p', ListedSampler::TopP),
    ("min_p", 'm', ListedSampler::MinP),
    ("temperature", 't', ListedSampler::Temperature),
    ("temp", 't', ListedSampler::Temperature),
    ("infill", 'i', ListedSampler::Infill),
    ("dry", 'd', ListedSampler::Off),
    ("top_n_sigma", 's', ListedSampler::Off),
    ("typ_p", 'y', ListedSampler::Off),
    ("typical_p", 'y', ListedSampler::Off),
    ("xtc", 'x', ListedSampler::Off),
    ("adaptive_p", 'a', ListedSampler::Off),
];

/// The samplers of a request.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct SamplerFields {
    /// The samplers that apply, by llama-server's names or letters. Those that are missing are switched off: an empty
    /// list samples from the model's own distribution. They apply in kvik's order: penalties, top_k, top_p, min_p,
    /// temperature.
    #[schemars(schema_with = "list_schema")]
    samplers: Option<SamplerList>,
}

impl Part for SamplerFields {}

#[cfg(test)]
fn list_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let array = serde_json::json!({"type": "array", "items": {"type": "string"}});
    schemars::json_schema!({"anyOf": [array, {"type": "string"}, {"type": "null"}]})
}

/// A sampler that llama-server has, in kvik's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ListedSampler {
    Penalties,
    TopK,
    TopP,
    MinP,
    Temperature,
    /// Not in kvik.
    Infill,
    /// Not in kvik either: a request that sets its parameters is refused, and without them it changes nothing.
    Off,
}

/// The samplers in the request's order.
#[derive(Debug, Default)]
struct SamplerList {
    listed: Vec<ListedSampler>,
    /// The first names that nobody knows.
    unknown: Vec<String>,
}

impl SamplerFields {
    /// The settings of these samplers; those that are missing have their neutral values.
    pub(super) fn apply(&self, mut sampling: Sampling) -> Sampling {
        let Some(SamplerList { listed, .. }) = &self.samplers else { return sampling };
        let lacks = |sampler| !listed.contains(&sampler);
        let neutral = Sampling { temperature: 1.0, ..Sampling::GREEDY };
        if lacks(ListedSampler::Penalties) {
            sampling.repetition_penalty = neutral.repetition_penalty;
            sampling.presence_penalty = neutral.presence_penalty;
            sampling.frequency_penalty = neutral.frequency_penalty;
        }
        if lacks(ListedSampler::TopK) {
            sampling.top_k = neutral.top_k;
        }
        if lacks(ListedSampler::TopP) {
            sampling.top_p = neutral.top_p;
        }
        if lacks(ListedSampler::MinP) {
            sampling.min_p = neutral.min_p;
        }
        if lacks(ListedSampler::Temperature) {
            sampling.temperature = neutral.temperature;
        }
        sampling
    }

    /// What of the list kvik does not do.
    pub(super) fn notes(&self) -> Vec<String> {
        let Some(list) = &self.samplers else { return Vec::new() };
        let mut notes: Vec<String> =
            list.unknown.iter().map(|name| unknown(&format!("samplers.{name}"))).collect();
        if list.listed.contains(&ListedSampler::Infill) {
            notes.push("`samplers` names `infill`, which kvik does not have and leaves out".to_owned());
        }
        let applied = list.listed.iter().filter(|sampler| **sampler <= ListedSampler::Temperature);
        if !applied.is_sorted() {
            let order = "penalties, top_k, top_p, min_p, temperature";
            notes.push(format!("`samplers` apply in kvik's order, whatever that of the list: {order}"));
        }
        notes
    }
}

impl SamplerList {
    fn add(&mut self, sampler: Option<ListedSampler>, name: &str) {
        match sampler {
            Some(sampler) => self.listed.push(sampler),
            None if self.unknown.len() < UNKNOWN_MAX => self.unknown.push(name.to_owned()),
            None => {}
        }
    }
}

fn by_name(name: &str) -> Option<ListedSampler> {
    KNOWN.iter().find(|(known, ..)| *known == name).map(|&(.., sampler)| sampler)
}

fn by_letter(letter: char) -> Option<ListedSampler> {
    KNOWN.iter().find(|(_, known, _)| *known == letter).map(|&(.., sampler)| sampler)
}

impl<'de> Deserialize<'de> for SamplerList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<SamplerList, D::Error> {
        deserializer.deserialize_any(ListVisitor)
    }
}

struct ListVisitor;

impl<'de> de::Visitor<'de> for ListVisitor {
    type Value = SamplerList;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of names or a string of letters")
    }

    fn visit_str<E>(self, letters: &str) -> Result<SamplerList, E> {
        let mut list = SamplerList::default();
        letters.chars().for_each(|letter| list.add(by_letter(letter), &letter.to_string()));
        Ok(list)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<SamplerList, A::Error> {
        let mut list = SamplerList::default();
        while let Some(name) = seq.next_element::<String>()? {
            list.add(by_name(&name.replace('-', "_")), &name);
        }
        Ok(list)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::http::json::Body;

    /// Settings with every sampler on.
    fn all() -> Sampling {
        Sampling {
            temperature: 0.25,
            top_k: 3,
            top_p: 0.5,
            min_p: 0.125,
            repetition_penalty: 1.5,
            presence_penalty: 0.5,
            frequency_penalty: 0.75,
            ..Sampling::GREEDY
        }
    }

    fn read(samplers: Value) -> SamplerFields {
        Body::of(&json!({"samplers": samplers})).unwrap().read().unwrap()
    }

    #[test]
    fn samplers_that_are_missing_are_switched_off() {
        let check = |samplers: Value, expect: Sampling| {
            assert_eq!(read(samplers.clone()).apply(all()), expect, "{samplers}");
        };
        let plain = || Sampling { temperature: 1.0, ..Sampling::GREEDY };
        check(Value::Null, all());
        check(json!("edskypmxt"), all());
        check(json!(["penalties", "dry", "top-k", "typical_p", "top_p", "min_p", "temp"]), all());
        check(json!([]), plain());
        check(json!(""), plain());
        check(json!(["top_k", "top_p", "infill"]), Sampling { top_k: 3, top_p: 0.5, ..plain() });
        check(json!("mt"), Sampling { min_p: 0.125, temperature: 0.25, ..plain() });
        check(json!(["penalties"]), Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, ..all() });
    }

    #[test]
    fn what_is_not_done_is_noted() {
        let check = |samplers: Value, expect: &[&str]| {
            let notes = read(samplers.clone()).notes();
            assert_eq!(notes.len(), expect.len(), "{samplers}: {notes:?}");
            notes.iter().zip(expect).for_each(|(note, word)| assert!(note.contains(word), "{note}"));
        };
        check(Value::Null, &[]);
        check(json!([]), &[]);
        check(json!("edskypmxta"), &[]);
        check(json!(["top_k", "top_p", "infill"]), &["`infill`"]);
        check(json!("tk"), &["order"]);
        check(json!(["temperature", "magic", "top_p"]), &["`samplers.magic`", "order"]);
        check(json!(vec!["x"; 100]), &["`samplers.x`"; UNKNOWN_MAX]);
    }

    #[test]
    fn a_list_is_of_names_or_letters() {
        let check = |samplers: Value, param: &str| {
            let body = Body::of(&json!({"samplers": samplers})).unwrap();
            let error = body.read::<SamplerFields>().unwrap_err();
            assert_eq!(error.body()["error"]["param"], param, "{samplers}");
        };
        check(json!(5), "samplers");
        check(json!({"top_k": 1}), "samplers");
        check(json!(["top_k", 1]), "samplers[1]");
    }
}

//! The fields that say how the cache treats a prompt: `cache_prompt` and `kvik`.

use std::time::Duration;

use kvik_cache::Retain;
use serde_json::Value;

use crate::http::{
    error::ApiError,
    fields::{Fields, whole, wrong},
};

type Result<T> = std::result::Result<T, ApiError>;

/// Longest time to live that can be asked for, seconds: a year.
const TTL_MAX_S: f64 = 31_536_000.0;
/// Priorities that have names.
const PRIORITIES: [(&str, i8); 3] = [("low", -50), ("normal", 0), ("high", 50)];

/// What a request asks of the cache.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Keep {
    /// Look for the prompt in the cache and leave it there.
    pub(crate) reuse: bool,
    /// How long what it leaves there is kept.
    pub(crate) retain: Retain,
}

impl Keep {
    /// Reads them. `kvik` is a field of kvik's own, so a key that it does not know is a mistake.
    pub(crate) fn read(fields: &mut Fields) -> Result<Keep> {
        let cache_prompt = fields.bool("cache_prompt")?;
        let Some(mut own) = fields.object("kvik")? else {
            return Ok(Keep { reuse: cache_prompt.unwrap_or(true), retain: Retain::default() });
        };
        own.refuse_unknown(&["ttl_s", "priority", "pin", "cache"])?;
        let shared = match own.string("cache")?.as_deref() {
            None => None,
            Some("shared") => Some(true),
            Some("private") => Some(false),
            Some(other) => {
                return Err(
                    own.error("cache", format!("is {other:?}; kvik knows \"shared\" and \"private\""))
                );
            }
        };
        if let (Some(prompt), Some(shared)) = (cache_prompt, shared)
            && prompt != shared
        {
            return Err(own.error("cache", "and `cache_prompt` say opposite things; send one of them"));
        }
        let retain = Retain {
            ttl: own.number("ttl_s", 1.0..=TTL_MAX_S)?.map(Duration::from_secs_f64),
            priority: priority(&mut own)?,
            pin: own.bool("pin")?.unwrap_or(false),
        };
        let reuse = shared.or(cache_prompt).unwrap_or(true);
        if retain.pin && !reuse {
            return Err(own.error("pin", "keeps a prompt in the cache, and this one is to stay out of it"));
        }
        Ok(Keep { reuse, retain })
    }
}

/// A number from -100 to 100, or its name.
fn priority(own: &mut Fields) -> Result<i8> {
    let path = own.path("priority");
    let expected = "a whole number from -100 to 100, or \"low\", \"normal\" or \"high\"";
    let Some(priority) = own.take("priority")? else { return Ok(0) };
    let read = match &priority {
        Value::String(name) => PRIORITIES.iter().find(|(known, _)| known == name).map(|&(_, n)| n),
        number => whole(number).filter(|n| (-100..=100).contains(n)).map(|n| n as i8),
    };
    read.ok_or_else(|| wrong(path, expected, &priority))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(body: Value) -> Result<Keep> {
        Keep::read(&mut Fields::of_body(body).unwrap())
    }

    #[test]
    fn every_field_in_every_form() {
        let shared = Keep { reuse: true, retain: Retain::default() };
        let check = |body: Value, expect: Keep| assert_eq!(read(body.clone()), Ok(expect), "{body}");
        check(json!({}), shared);
        check(json!({"kvik": {}}), shared);
        check(json!({"cache_prompt": false}), Keep { reuse: false, ..shared });
        check(json!({"kvik": {"cache": "private"}}), Keep { reuse: false, ..shared });
        check(json!({"cache_prompt": false, "kvik": {"pin": false}}), Keep { reuse: false, ..shared });
        check(json!({"cache_prompt": true, "kvik": {"cache": "shared"}}), shared);
        let retained = |retain| Keep { retain, ..shared };
        let ttl = Some(Duration::from_millis(1500));
        check(json!({"kvik": {"ttl_s": 1.5}}), retained(Retain { ttl, ..Retain::default() }));
        check(json!({"kvik": {"pin": true}}), retained(Retain { pin: true, ..Retain::default() }));
        for (asked, priority) in
            [(json!(-100), -100), (json!(7.0), 7), (json!("low"), -50), (json!("high"), 50), (json!(null), 0)]
        {
            check(json!({"kvik": {"priority": asked}}), retained(Retain { priority, ..Retain::default() }));
        }
    }

    #[test]
    fn wrong_values_name_their_field() {
        let check = |body: Value, at: &str| {
            let error = read(body.clone()).expect_err(&body.to_string()).body();
            assert_eq!(error["error"]["param"], at, "{error}");
        };
        check(json!({"kvik": "pin"}), "kvik");
        check(json!({"kvik": {"ttl": 5}}), "kvik.ttl");
        check(json!({"kvik": {"ttl_s": 0}}), "kvik.ttl_s");
        check(json!({"kvik": {"ttl_s": 1e10}}), "kvik.ttl_s");
        check(json!({"kvik": {"ttl_s": "long"}}), "kvik.ttl_s");
        check(json!({"kvik": {"priority": 101}}), "kvik.priority");
        check(json!({"kvik": {"priority": 0.5}}), "kvik.priority");
        check(json!({"kvik": {"priority": "urgent"}}), "kvik.priority");
        check(json!({"kvik": {"pin": 1}}), "kvik.pin");
        check(json!({"kvik": {"pin": true, "cache": "private"}}), "kvik.pin");
        check(json!({"cache_prompt": false, "kvik": {"pin": true}}), "kvik.pin");
        check(json!({"kvik": {"cache": "public"}}), "kvik.cache");
        check(json!({"cache_prompt": true, "kvik": {"cache": "private"}}), "kvik.cache");
    }
}

//! The fields that control the caching of a prompt: `cache_prompt` and `kvik`.

use std::{fmt, time::Duration};

use kvik_cache::Lifetime;
use serde::{
    Deserialize, Deserializer,
    de::{self, Unexpected},
};

use super::{
    kept_prefix::KeptPrefixField,
    number::{TtlSeconds, whole},
    parts::Part,
    retain::RetainField,
};
use crate::{app::kept_prefix::KeptPrefix, described::JsonSchema, http::error::ApiError};
use kvik_serving::settings::retain::RetainChoice;

/// What a request asks of the cache.
#[derive(Debug, Default, Deserialize, JsonSchema)]
pub(crate) struct CacheFields {
    /// Look for the prompt in the cache and leave it there; true where nothing is said.
    cache_prompt: Option<bool>,
    kvik: Option<KvikFields>,
}

impl Part for CacheFields {}

/// What a request asks of kvik alone, so that a key which it does not know is a mistake.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct KvikFields {
    /// Seconds without a use after which the prompt is forgotten; for ever when absent.
    ttl_s: Option<TtlSeconds>,
    /// Lower ones are evicted first.
    priority: Option<Priority>,
    /// Never evict the prompt; not together with `private`.
    pin: Option<bool>,
    cache: Option<CacheMode>,
    /// Which tokens are kept and read on; the server's default when absent.
    retain: Option<RetainField>,
    /// The name of a kept prompt with which this one begins: what is kept of it is read instead of all of it. With true:
    /// what is kept of any prefix, by `--retain-idle` or a prompt of the server, where less of it is known exactly.
    kept_prefix: Option<KeptPrefixField>,
    /// Answer a conversation that is longer than the context from a summary of its beginning and its recent messages; the
    /// server's default when absent.
    memory: Option<bool>,
    /// The name or id of a conversation that the server keeps: the messages of the request are what is new in it. A name
    /// that none has begins one.
    conversation: Option<String>,
    /// With `conversation` and `stream`: the answer goes on when the client leaves, and
    /// `GET /v1/conversations/{id}/answer` follows it.
    #[serde(default)]
    resume: bool,
    /// End an answer that only repeats itself: its `finish_reason` is then `stop`, and `kvik.loop` says where it began.
    #[serde(default)]
    stop_loops: bool,
    /// Move what changes between the requests of a client from the system message behind what is said before the first
    /// answer: `kvik.settled` shows it. The server's `--settle-prompts` when absent.
    settle: Option<bool>,
}

/// Whether the cache takes part.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum CacheMode {
    /// The same as `cache_prompt: true`.
    Shared,
    /// Neither look for the prompt in the cache nor leave it there.
    Private,
}

/// The cache settings of a request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Keep {
    /// Look up the prompt in the cache and leave it there.
    pub(crate) reuse: bool,
    /// How long the cached prefix is kept.
    pub(crate) lifetime: Lifetime,
    /// True if the request says so in kvik's own fields, whatever that is: then no hint counts.
    pub(crate) says_lifetime: bool,
    /// Retention of the request's sequences, if the request sets it.
    pub(crate) retain: Option<RetainChoice>,
    /// True if the answer lists the retained positions.
    pub(crate) show_kept: bool,
    /// The pinned prompt whose compressed prefix the request reads.
    pub(crate) kept_prefix: Option<KeptPrefix>,
    /// Whether the conversation is remembered beyond the context, if the request sets it.
    pub(crate) memory: Option<bool>,
    /// The stored conversation that the messages continue.
    pub(crate) conversation: Option<String>,
    /// Whether the answer goes on without its client.
    pub(crate) resume: bool,
    /// Whether an answer that repeats itself ends.
    pub(crate) stop_loops: bool,
    /// Whether the prompt is settled, if the request sets it.
    pub(crate) settle: Option<bool>,
}

impl CacheFields {
    /// Combines the fields.
    pub(crate) fn keep(self) -> Result<Keep, ApiError> {
        let mut own = self.kvik.unwrap_or_default();
        let shared = own.cache.map(|mode| mode == CacheMode::Shared);
        if let (Some(prompt), Some(shared)) = (self.cache_prompt, shared)
            && prompt != shared
        {
            let message = "`kvik.cache` and `cache_prompt` say opposite things; send one of them";
            return Err(ApiError::field("kvik.cache", message));
        }
        let says_lifetime = own.ttl_s.is_some() || own.priority.is_some() || own.pin.is_some();
        let lifetime = Lifetime {
            ttl: own.ttl_s.map(|ttl| Duration::from_secs_f64(ttl.into())),
            priority: own.priority.map_or(0, |Priority(priority)| priority),
            raised: None,
            pin: own.pin.unwrap_or(false),
        };
        let reuse = shared.or(self.cache_prompt).unwrap_or(true);
        if lifetime.pin && !reuse {
            let message = "`kvik.pin` keeps a prompt in the cache, and this one is to stay out of it";
            return Err(ApiError::field("kvik.pin", message));
        }
        let show_kept = own.retain.as_mut().map_or(Ok(false), |field| field.take_show(RETAIN))?;
        let retain = own.retain.as_ref().map(|field| field.choice(RETAIN)).transpose()?;
        let kept_prefix = own.kept_prefix.and_then(|field| field.0);
        if kept_prefix.is_some() {
            let other = (retain.is_some().then_some("retain"))
                .or((!reuse).then_some("cache"))
                .or(lifetime.pin.then_some("pin"));
            other.map_or(Ok(()), |other| Err(not_beside(other)))?;
        }
        if own.memory == Some(true) && !reuse {
            let message =
                "`kvik.memory` keeps a summary of the conversation, and this one is to leave nothing behind";
            return Err(ApiError::field("kvik.memory", message));
        }
        if own.conversation.is_some() && !reuse {
            let message = "`kvik.conversation` is written down, and this request is to leave nothing behind; leave one of them out";
            return Err(ApiError::field("kvik.cache", message));
        }
        if own.resume && own.conversation.is_none() {
            let message = "`kvik.resume` is for answers of conversations that the server keeps; send `kvik.conversation` too";
            return Err(ApiError::field("kvik.resume", message));
        }
        let KvikFields { memory, conversation, resume, stop_loops, settle, .. } = own;
        Ok(Keep {
            reuse,
            lifetime,
            says_lifetime,
            retain,
            show_kept,
            kept_prefix,
            memory,
            conversation,
            resume,
            stop_loops,
            settle,
        })
    }
}

/// Path of the retention field in a body.
pub(super) const RETAIN: &str = "kvik.retain";

/// Returns the error for a request that reads a compressed prefix and sets the conflicting field `other` of
/// `kvik`.
fn not_beside(other: &str) -> ApiError {
    let because = match other {
        "retain" => "says itself which tokens are read, as the prompt was kept; send one of them",
        "cache" => "reads from the cache, and this request is to stay out of it",
        _ => {
            "reads a prompt that is pinned already, and leaves nothing behind it that could be; leave `kvik.pin` out"
        }
    };
    ApiError::field("kvik.kept_prefix", format!("`kvik.kept_prefix` beside `kvik.{other}`: it {because}"))
}

/// Named priorities.
const PRIORITIES: [(&str, i8); 3] = [("low", -50), ("normal", 0), ("high", 50)];

/// A number from -100 to 100, or its name.
#[derive(Debug, Clone, Copy)]
struct Priority(i8);

impl<'de> Deserialize<'de> for Priority {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Priority, D::Error> {
        deserializer.deserialize_any(PriorityVisitor)
    }
}

struct PriorityVisitor;

impl PriorityVisitor {
    fn number<E: de::Error>(self, number: Option<i64>, found: Unexpected<'_>) -> Result<Priority, E> {
        let number = number.filter(|n| (-100..=100).contains(n));
        number.map(|n| Priority(n as i8)).ok_or_else(|| E::invalid_type(found, &self))
    }
}

impl de::Visitor<'_> for PriorityVisitor {
    type Value = Priority;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number from -100 to 100, or \"low\", \"normal\" or \"high\"")
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<Priority, E> {
        let known = PRIORITIES.iter().find(|(known, _)| *known == name);
        known.map(|&(_, n)| Priority(n)).ok_or_else(|| E::invalid_type(Unexpected::Str(name), &self))
    }

    fn visit_i64<E: de::Error>(self, n: i64) -> Result<Priority, E> {
        self.number(Some(n), Unexpected::Signed(n))
    }

    fn visit_u64<E: de::Error>(self, n: u64) -> Result<Priority, E> {
        self.number(i64::try_from(n).ok(), Unexpected::Unsigned(n))
    }

    fn visit_f64<E: de::Error>(self, x: f64) -> Result<Priority, E> {
        self.number(whole(x), Unexpected::Float(x))
    }
}

#[cfg(test)]
impl JsonSchema for Priority {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Priority".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let names = PRIORITIES.map(|(name, _)| name);
        schemars::json_schema!({
            "anyOf": [{"type": "integer", "minimum": -100, "maximum": 100}, {"enum": names}],
            "default": 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::http::json::Body;

    fn read(body: Value) -> Result<Keep, ApiError> {
        Body::of(&body)?.read::<CacheFields>()?.keep()
    }

    #[test]
    fn every_field_in_every_form() {
        let shared = Keep {
            reuse: true,
            lifetime: Lifetime::default(),
            says_lifetime: false,
            retain: None,
            show_kept: false,
            kept_prefix: None,
            memory: None,
            conversation: None,
            resume: false,
            stop_loops: false,
            settle: None,
        };
        let check = |body: Value, expect: Keep| assert_eq!(read(body.clone()), Ok(expect), "{body}");
        check(json!({}), shared.clone());
        let name =
            |name: &str| Keep { kept_prefix: Some(KeptPrefix::Named(name.to_owned())), ..shared.clone() };
        let any = Keep { kept_prefix: Some(KeptPrefix::Any), ..shared.clone() };
        check(json!({"kvik": {"kept_prefix": true}}), any);
        check(json!({"kvik": {"kept_prefix": false}}), shared.clone());
        check(json!({"kvik": {"kept_prefix": "notify"}}), name("notify"));
        check(json!({"kvik": {"kept_prefix": null}}), shared.clone());
        check(json!({"kvik": {"priority": null, "ttl_s": null, "pin": null}}), shared.clone());
        check(json!({"kvik": {}}), shared.clone());
        check(json!({"cache_prompt": false}), Keep { reuse: false, ..shared.clone() });
        check(json!({"kvik": {"cache": "private"}}), Keep { reuse: false, ..shared.clone() });
        check(
            json!({"cache_prompt": false, "kvik": {"pin": false}}),
            Keep { reuse: false, says_lifetime: true, ..shared.clone() },
        );
        check(json!({"cache_prompt": true, "kvik": {"cache": "shared"}}), shared.clone());
        let lasting = |lifetime| Keep { lifetime, says_lifetime: true, ..shared.clone() };
        let ttl = Some(Duration::from_millis(1500));
        check(json!({"kvik": {"ttl_s": 1.5}}), lasting(Lifetime { ttl, ..Lifetime::default() }));
        check(json!({"kvik": {"pin": true}}), lasting(Lifetime { pin: true, ..Lifetime::default() }));
        let retain = |text: &str| Keep { retain: Some(text.parse().unwrap()), ..shared.clone() };
        check(json!({"kvik": {"retain": "none"}}), retain("none"));
        check(json!({"kvik": {"retain": "snapkv:0.5"}}), retain("snapkv:0.5"));
        check(json!({"kvik": {"retain": {"policy": "snapkv", "keep": 0.5}}}), retain("snapkv:0.5"));
        check(json!({"kvik": {"retain": null}}), shared.clone());
        check(json!({"kvik": {"stop_loops": true}}), Keep { stop_loops: true, ..shared.clone() });
        check(json!({"kvik": {"settle": false}}), Keep { settle: Some(false), ..shared.clone() });
        for (asked, priority) in [
            (json!(-100), -100),
            (json!(7.0), 7),
            (json!("low"), -50),
            (json!("normal"), 0),
            (json!("high"), 50),
        ] {
            check(
                json!({"kvik": {"priority": asked}}),
                lasting(Lifetime { priority, ..Lifetime::default() }),
            );
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
        check(json!({"kvik": {"resume": true}}), "kvik.resume");
        check(json!({"kvik": {"stop_loops": "yes"}}), "kvik.stop_loops");
        check(json!({"kvik": {"pin": true, "cache": "private"}}), "kvik.pin");
        check(json!({"cache_prompt": false, "kvik": {"pin": true}}), "kvik.pin");
        check(json!({"kvik": {"cache": "public"}}), "kvik.cache");
        check(json!({"kvik": {"retain": []}}), "kvik.retain");
        check(json!({"kvik": {"retain": {"policy": "snapkv", "keep": 2.5}}}), "kvik.retain.keep");
        check(json!({"cache_prompt": true, "kvik": {"cache": "private"}}), "kvik.cache");
        check(json!({"kvik": {"cache": "private", "conversation": "x"}}), "kvik.cache");
        check(json!({"kvik": {"conversation": 7}}), "kvik.conversation");
        check(json!({"kvik": {"kept_prefix": 5}}), "kvik.kept_prefix");
        for auxiliary in [json!({"retain": "none"}), json!({"cache": "private"}), json!({"pin": true})] {
            let mut fields = auxiliary;
            fields["kept_prefix"] = json!("notify");
            check(json!({"kvik": fields}), "kvik.kept_prefix");
        }
    }
}

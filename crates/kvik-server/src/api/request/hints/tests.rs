use serde_json::json;

use super::*;
use crate::api::request::cache::CacheFields;

fn read(body: &Value) -> (Hints, Vec<String>) {
    let body = Body::of(body).unwrap();
    (Hints::of(&body), body.notes())
}

/// What a request asks of the cache in these fields of kvik's own.
fn own(kvik: &Value) -> Keep {
    Body::of(&json!({"kvik": kvik})).unwrap().read::<CacheFields>().unwrap().keep().unwrap()
}

fn raised(priority: i8, secs: u64) -> Hints {
    let lasts = Duration::from_secs(secs);
    Hints { raised: Some(RaisedPriority { priority, lasts }), ..Hints::default() }
}

/// One row for each row of docs/hints.md that has an effect.
#[test]
fn every_hint_is_read_into_one_value() {
    let expected = |next_turn| Hints { next_turn: Some(next_turn), ..Hints::default() };
    let directives = json!([
        {"start": 0, "end": 16, "priority": 90, "duration": 300},
        {"start": 16, "priority": 70, "duration": 12.5},
    ]);
    for (body, hints) in [
        (json!({}), Hints::default()),
        (json!({"prompt_cache_retention": "24h"}), raised(50, 86400)),
        (json!({"prompt_cache_retention": "in_memory"}), Hints::default()),
        (json!({"service_tier": "flex"}), Hints::low()),
        (json!({"service_tier": "auto"}), Hints::default()),
        (json!({"cache_control": {"type": "ephemeral"}}), raised(25, 300)),
        (json!({"cache_control": {"type": "ephemeral", "ttl": "1h"}}), raised(50, 3600)),
        (json!({"retention_directives": directives}), raised(45, 300)),
        (json!({"retention_directives": [{"start": 0, "priority": 1}]}), raised(1, 86400)),
        (json!({"retention_directives": [{"start": 0, "priority": 1.0}]}), raised(1, 86400)),
        (json!({"retention_directives": [{"start": 0, "priority": 0}]}), Hints::default()),
        (json!({"agent_hint": {"cache_control": {"type": "ephemeral", "ttl": 60.0}}}), raised(25, 60)),
        (json!({"nvext": {"cache_control": {"type": "ephemeral", "ttl": "1h"}}}), raised(50, 3600)),
        (json!({"nvext": {"agent_hints": {"priority": 5}}}), raised(5, 300)),
        (json!({"nvext": {"agent_hints": {"priority": 5.0}}}), raised(5, 300)),
        (json!({"nvext": {"agent_hints": {"priority": -1}}}), Hints::low()),
        (json!({"nvext": {"agent_hints": {"speculative_prefill": true}}}), expected(true)),
        (json!({"nvext": {"agent_hints": {"speculative_prefill": false}}}), expected(false)),
        (
            json!({"service_tier": "flex", "cache_control": {"type": "ephemeral", "ttl": "2h"}}),
            Hints { is_low: true, ..raised(50, 7200) },
        ),
    ] {
        assert_eq!(read(&body), (hints, vec![]), "{body}");
    }
}

#[test]
fn no_hint_goes_beyond_high_or_a_day() {
    for body in [
        json!({"nvext": {"agent_hints": {"priority": i64::MAX}}}),
        json!({"retention_directives": [{"priority": 100, "duration": 1e12}]}),
        json!({"agent_hint": {"cache_control": {"type": "ephemeral", "ttl": "4294967295h"}}}),
    ] {
        let lifetime = read(&body).0.lifetime(&own(&json!({})));
        let raised = lifetime.raised.unwrap();
        assert!(raised.priority <= HIGH && raised.lasts <= DAY, "{body}: {raised:?}");
        assert!(!lifetime.pin && lifetime.ttl.is_none(), "{body}");
    }
}

#[test]
fn what_is_not_understood_is_noted_and_ignored() {
    let wrong =
        [json!(null), json!(true), json!(-7), json!("?"), json!([{}]), json!({"type": 3}), json!({"x": []})];
    for field in [
        "prompt_cache_retention",
        "service_tier",
        "cache_control",
        "retention_directives",
        "agent_hint",
        "nvext",
    ] {
        for value in &wrong {
            let (hints, notes) = read(&json!({field: value}));
            assert_eq!(hints, Hints::default(), "{field}: {value}");
            assert_eq!(notes.is_empty(), value.is_null(), "{field}: {value}: {notes:?}");
        }
    }
    for (body, note) in [
        (json!({"nvext": {"agent_hints": {"osl": 9}}}), "`nvext.agent_hints.osl` is not known here"),
        (json!({"agent_hint": {"session_id": "a"}}), "`agent_hint.session_id` is not known here"),
        (json!({"priority": 3}), "`priority` is not known here"),
        (
            json!({"nvext": {"agent_hints": {"priority": "urgent"}}}),
            "`nvext` is a hint that is not understood",
        ),
        (
            json!({"agent_hint": {"cache_control": {"type": "ephemeral", "ttl": -1}}}),
            "`agent_hint` is a hint",
        ),
        (json!({"cache_control": {"type": "ephemeral", "ttl": "é"}}), "`cache_control` is a hint"),
    ] {
        let (hints, notes) = read(&body);
        assert_eq!(hints, Hints::default(), "{body}");
        assert!(notes.len() == 1 && notes[0].starts_with(note), "{body}: {notes:?}");
    }
}

#[test]
fn messages_and_their_parts_have_hints() {
    let control = json!({"type": "ephemeral"});
    let part = json!({"type": "text", "text": "x", "cache_control": {"type": "ephemeral", "ttl": "1h"}});
    let wrong = json!({"role": "user", "content": [3, {"cache_control": "?"}], "cache_control": {"type": 7}});
    for (messages, hints, ignored) in [
        (json!([{"role": "user", "content": "x"}]), Hints::default(), None),
        (json!([{"role": "user", "content": "x", "cache_control": control}]), raised(25, 300), None),
        (json!([{"role": "system", "content": [part]}, {"role": "user"}]), raised(50, 3600), None),
        (
            json!([{"role": "user", "content": [3, {"cache_control": "?"}]}, null]),
            Hints::default(),
            Some("`messages[0].content[1].cache_control`"),
        ),
        (
            json!([null, {"content": [part]}, wrong, wrong]),
            raised(50, 3600),
            Some("`messages[2].cache_control`"),
        ),
    ] {
        let mut notes = Vec::new();
        let found = Hints::in_messages(messages.as_array().unwrap(), &mut |note| notes.push(note));
        assert_eq!(found, hints, "{messages}");
        assert_eq!(notes.len(), ignored.iter().count(), "one note says it: {messages}: {notes:?}");
        assert!(notes.iter().zip(ignored).all(|(note, at)| note.starts_with(at)), "{messages}: {notes:?}");
    }
}

#[test]
fn kviks_own_fields_win() {
    let hints = Hints::low().and(raised(50, 60));
    for kvik in [
        json!({"ttl_s": 9}),
        json!({"priority": 3}),
        json!({"priority": "normal"}),
        json!({"pin": false}),
        json!({"pin": true}),
    ] {
        let own = own(&kvik);
        assert_eq!(hints.lifetime(&own), own.lifetime, "{kvik}");
    }
    for kvik in [json!({}), json!({"memory": false, "priority": null})] {
        let own = own(&kvik);
        assert_eq!(
            hints.lifetime(&own),
            Lifetime { priority: LOW, raised: hints.raised, ..own.lifetime },
            "{kvik}"
        );
        assert_eq!(Hints::default().lifetime(&own), own.lifetime);
    }
}

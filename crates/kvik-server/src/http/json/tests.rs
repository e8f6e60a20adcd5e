use serde::Deserialize;
use serde_json::json;

use super::*;

#[derive(Debug, PartialEq, Deserialize)]
struct Inner {
    #[serde(default)]
    on: bool,
    kind: Option<Kind>,
    free: Option<Json>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Red,
    Blue,
}

#[derive(Debug, PartialEq, Deserialize)]
struct Outer {
    name: Option<String>,
    inner: Option<Inner>,
    names: Option<Vec<String>>,
    ids: Option<Vec<u32>>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Own {
    known: Option<bool>,
}

#[derive(Debug, PartialEq, Deserialize)]
struct Needs {
    own: Option<Own>,
    text: String,
}

fn body(text: &str) -> Body {
    Body::parse(&Bytes::from(text.to_owned())).unwrap()
}

fn complaint<T: DeserializeOwned + fmt::Debug>(text: &str) -> (String, String) {
    let error = body(text).read::<T>().expect_err(text).body();
    let part = |name: &str| error["error"][name].as_str().unwrap_or("").to_owned();
    (part("param"), part("message"))
}

#[test]
fn half_a_character_is_replaced() {
    for (text, name) in [
        (r#"{"name": "cut \ud83d"}"#, "cut \u{fffd}"),
        (r#"{"name": "\ude00, \\ud83d and \ud83d\ude00"}"#, "\u{fffd}, \\ud83d and \u{1f600}"),
    ] {
        assert_eq!(body(text).read::<Outer>().unwrap().name.as_deref(), Some(name));
        let wrapped = Body::wrap("inner", &Bytes::from(text)).unwrap().copy(&["inner"]).unwrap();
        assert_eq!(wrapped["inner"]["name"], name);
    }
}

#[test]
fn structs_take_their_fields_and_leave_the_others() {
    let deep = "[".repeat(100_000) + &"]".repeat(100_000);
    let text = format!(
        r#"{{"deep": {deep}, "ids": [1, 2], "inner": {{"free": [1, {{}}], "deep": {deep}, "kind": "blue"}},
            "name": null, "names": ["a"]}}"#
    );
    let inner = Inner { on: false, kind: Some(Kind::Blue), free: Some(Json(json!([1, {}]))) };
    let names = Some(vec!["a".to_owned()]);
    let expect = Outer { name: None, inner: Some(inner), names, ids: Some(vec![1, 2]) };
    let body = body(&text);
    assert_eq!(body.read::<Outer>(), Ok(expect));
    assert!(body.has("deep") && !body.has("name") && !body.has("kind"));
    assert_eq!(body.copy(&["ids", "missing"]), Ok(json!({"ids": [1, 2]})));
}

#[test]
fn the_last_of_several_fields_with_one_name_wins_at_every_depth() {
    let read = body(r#"{"name": 5, "inner": {"on": 7, "on": true}, "name": "x"}"#).read::<Outer>().unwrap();
    assert_eq!((read.name.as_deref(), read.inner.unwrap().on), (Some("x"), true));
}

#[test]
fn complaints_name_the_field_and_the_value() {
    let check = |text: &str, param: &str, message: &str| {
        assert_eq!(complaint::<Outer>(text), (param.to_owned(), message.to_owned()));
    };
    check(r#"{"name": 7.5}"#, "name", "`name` must be a string, not 7.5");
    check(
        r#"{"inner": {"on": "yes"}}"#,
        "inner.on",
        "`inner.on` must be true or false, not the string \"yes\"",
    );
    check(r#"{"inner": [1]}"#, "inner", "`inner` must be an object, not an array");
    check(
        r#"{"inner": {"kind": "x"}}"#,
        "inner.kind",
        "`inner.kind` is \"x\"; kvik knows \"red\" and \"blue\"",
    );
    check(r#"{"inner": {"kind": 3}}"#, "inner.kind", "`inner.kind` must be a string, not 3");
    check(r#"{"names": {}}"#, "names", "`names` must be an array, not an object");
    check(r#"{"names": ["a", null]}"#, "names[1]", "`names[1]` must be a string, not null");
    let long = format!(r#"{{"inner": "{}"}}"#, "x".repeat(41));
    check(&long, "inner", "`inner` must be an object, not a string");
    let own = complaint::<Needs>(r#"{"text": "x", "own": {"odd": 1}}"#);
    assert_eq!(own, ("own.odd".to_owned(), "`own.odd` is not known; kvik knows known".to_owned()));
    assert_eq!(complaint::<Needs>(r#"{"text": null}"#), ("text".to_owned(), "`text` is missing".to_owned()));
}

#[test]
fn what_is_no_json_or_too_much_is_said_of_the_whole_field() {
    let deep = "[".repeat(200) + &"]".repeat(200);
    let many = format!("[{}]", vec!["[[1]]"; 1_000_000].join(","));
    for free in [deep, many, "1e999".to_owned()] {
        let (param, message) = complaint::<Outer>(&format!(r#"{{"inner": {{"free": {free}}}}}"#));
        assert_eq!(param, "inner", "{message}");
    }
    let empty = format!("{{\"names\": [{}]}}", vec!["\"\""; 2_000_000].join(","));
    assert_eq!(complaint::<Outer>(&empty).0, "names");
    let ids = format!("{{\"ids\": [{}]}}", vec!["7"; 2_000_000].join(","));
    assert_eq!(body(&ids).read::<Outer>().unwrap().ids.unwrap().len(), 2_000_000);
}

#[test]
fn fields_are_found_and_not_built() {
    let body = Bytes::from_static(br#" {"a": [[1], "]}"], "b": {"c": 1e2}, "a": null, "\u0065": 7} "#);
    let fields = split(&body).unwrap();
    let texts: Vec<(&str, &[u8])> = fields.iter().map(|(name, text)| (&**name, &**text)).collect();
    assert_eq!(texts, [("a", &b"null"[..]), ("b", br#"{"c": 1e2}"#), ("e", b"7")]);
}

#[test]
fn what_is_no_object_or_no_json_is_refused() {
    let check = |text: &'static str| {
        let error = split(&Bytes::from_static(text.as_bytes())).unwrap_err();
        assert!(matches!(error, JsonError::Syntax(_)), "{text}: {error}");
    };
    ["", "{", "[1]", "{\"a\": }", "{\"a\": 1} 2", "{\"a\": [1}", "{1: 2}"].into_iter().for_each(check);
}

#[test]
fn a_crowd_of_fields_is_refused() {
    let body = |count: usize| {
        let fields: Vec<String> = (0..count).map(|i| format!("\"{i}\":0")).collect();
        Bytes::from(format!("{{{}}}", fields.join(",")))
    };
    assert_eq!(split(&body(FIELDS_MAX)).unwrap().len(), FIELDS_MAX);
    assert_eq!(split(&body(FIELDS_MAX + 1)), Err(JsonError::TooManyFields));
}

#[test]
fn a_body_is_an_object() {
    let check = |text: &'static str, message: &str| {
        let error = Body::parse(&Bytes::from_static(text.as_bytes())).unwrap_err().body();
        assert_eq!((&error["error"]["param"], &error["error"]["message"]), (&json!(null), &json!(message)));
    };
    check(" [1]", "the body must be a JSON object, not an array");
    check("7", "the body must be a JSON object, not 7");
    check("seven", "the body is not valid JSON: expected value at line 1 column 1");
}

#[test]
fn nothing_is_read_for_a_client_that_has_left() {
    let presence = Presence::default();
    let client = presence.client();
    let body = body(r#"{"name": "a"}"#).wanted_by(presence);
    assert!(body.read::<Outer>().is_ok());
    drop(client);
    assert!(body.read::<Outer>().is_err() && body.still_wanted().is_err());
}

/// A recursive type, which would exhaust the stack.
#[test]
fn what_is_nested_too_deeply_is_refused_whatever_its_type() {
    #[derive(Debug)]
    struct Nested;

    impl<'de> Deserialize<'de> for Nested {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Nested, D::Error> {
            struct Any;
            impl<'de> Visitor<'de> for Any {
                type Value = Nested;

                fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str("arrays")
                }

                fn visit_seq<A: de::SeqAccess<'de>>(
                    self,
                    mut seq: A,
                ) -> std::result::Result<Nested, A::Error> {
                    while seq.next_element::<Nested>()?.is_some() {}
                    Ok(Nested)
                }
            }
            deserializer.deserialize_any(Any)
        }
    }

    #[derive(Debug, Deserialize)]
    struct Field {
        #[expect(dead_code, reason = "read for its depth")]
        deep: Nested,
    }

    let nested = |levels: usize| format!(r#"{{"deep": {}{}}}"#, "[".repeat(levels), "]".repeat(levels));
    body(&nested(100)).read::<Field>().unwrap();
    for levels in [200, 100_000] {
        let (_, message) = complaint::<Field>(&nested(levels));
        assert!(message.contains("nested too deeply"), "{message}");
    }
}

/// Unused fields are noted by their path, at every depth; null fields count as absent.
#[test]
fn what_is_not_read_is_noted() {
    let text = r#"{"name": "a", "odd": 1, "none": null, "inner": {"on": true, "deep": [1], "nothing": null},
        "ids": [1], "strange": {}}"#;
    let body = body(text);
    body.read::<Outer>().unwrap();
    body.note("it was late".to_owned());
    let expect = [
        "`inner.deep` is not known here and was ignored",
        "it was late",
        "`odd` is not known here and was ignored",
        "`strange` is not known here and was ignored",
    ];
    assert_eq!(body.notes(), expect);
    let many: String = (0..100).map(|i| format!("\"f{i}\": 0, ")).collect();
    let notes = self::body(&format!("{{{many}\"name\": \"a\"}}")).notes();
    assert_eq!((notes.len(), notes[32].as_str()), (33, "and 69 more"));
    let body = self::body(&format!("{{{many}\"name\": \"a\"}}"));
    (0..50).for_each(|i| body.note(format!("part {i}")));
    let notes = body.notes();
    assert_eq!((notes.len(), notes[31].as_str(), notes[32].as_str()), (33, "part 31", "and 119 more"));
}

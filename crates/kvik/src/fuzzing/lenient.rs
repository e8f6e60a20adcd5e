//! Tests that unknown, null and empty fields change nothing: in every dialect, at every depth, by the bodies' schemas
//! in the OpenAPI document.

use serde_json::{Map, Value, json};

use super::{fields::Bodies, *};

/// A field name that no dialect has.
const UNKNOWN: &str = "field_of_tomorrow";
/// Fields in which null or an empty value has a meaning, and which.
const EMPTY_SAYS: [(&str, &str); 7] = [
    ("messages", "there is nothing to answer"),
    ("input", "likewise"),
    ("prompt", "likewise"),
    ("documents", "likewise, of /v1/rerank: there is nothing to rank"),
    ("texts", "likewise"),
    ("guided_choice", "no text may be said"),
    ("context_management", "of /v1/chat/completions it is a list, of /v1/messages an object"),
];
/// Objects of kvik's own, in which a misspelt field is refused: ignoring it would retain or drop something else than
/// was meant.
const STRICT: [&str; 1] = ["kvik"];

/// Maximum attempts for a body that is not answered in time.
const TRIES: usize = 20;

/// A valid body for each tested route.
fn bases() -> Vec<(&'static str, Value)> {
    let said = json!([{"role": "user", "content": "Hi"}]);
    let chat = json!({"messages": said, "max_tokens": 2});
    let text = json!({"prompt": "Once", "max_tokens": 2});
    vec![
        ("POST /v1/chat/completions", chat.clone()),
        ("POST /v1/chat/completions/input_tokens", chat.clone()),
        ("POST /v1/completions", text.clone()),
        ("POST /v1/responses", json!({"input": "Hi", "max_output_tokens": 16})),
        ("POST /v1/responses/input_tokens", json!({"input": "Hi"})),
        ("POST /v1/messages", chat.clone()),
        ("POST /v1/messages/count_tokens", json!({"messages": said})),
        ("POST /api/chat", json!({"messages": said, "options": {"num_predict": 2}, "stream": false})),
        ("POST /api/generate", json!({"prompt": "Once", "options": {"num_predict": 2}, "stream": false})),
        ("POST /api/embed", json!({"input": ["one"]})),
        ("POST /api/embeddings", json!({"prompt": "one"})),
        ("POST /completion", json!({"prompt": "Once", "n_predict": 2})),
        ("POST /tokenize", json!({"content": "one"})),
        ("POST /detokenize", json!({"tokens": [300]})),
        ("POST /apply-template", chat),
        ("POST /v1/embeddings", json!({"input": "one"})),
        ("POST /v1/rerank", json!({"query": "a", "documents": ["b"]})),
        ("POST /v1/conversations", json!({"items": said})),
    ]
}

/// A varied body, and the note that the answer must contain.
struct Variation {
    body: Value,
    noted: Option<String>,
}

/// Variations of the body that must have no effect.
fn variations(bodies: &Bodies, schema: &Value, base: &Value) -> Vec<Variation> {
    let with = |name: &str, value: Value, noted: Option<String>| {
        let mut body = base.clone();
        body[name] = value;
        Variation { body, noted }
    };
    let mut all = vec![
        with(UNKNOWN, json!({"deep": [1, {"a": null}]}), Some(UNKNOWN.to_owned())),
        with(UNKNOWN, json!(null), None),
        with(UNKNOWN, json!(""), Some(UNKNOWN.to_owned())),
    ];
    for (name, field, needed) in bodies.fields(schema) {
        let says_something = EMPTY_SAYS.iter().any(|(known, _)| *known == name);
        if !needed && !says_something {
            all.push(with(name, Value::Null, None));
        }
        let kinds = bodies.kinds(field);
        for kind in &kinds {
            let may_be_empty = !needed && !says_something;
            let empty = match kind["type"].as_str() {
                Some("array") => json!([]),
                Some("object") if bodies.fields(kind).iter().all(|(_, _, needed)| !needed) => json!({}),
                Some("string") if kind["enum"].is_null() && kind["const"].is_null() => json!(""),
                _ => continue,
            };
            if may_be_empty {
                all.push(with(name, empty, None));
            }
            let inner = bodies.fields(kind);
            if !inner.is_empty() && inner.iter().all(|(_, _, needed)| !needed) && !STRICT.contains(&name) {
                let object = Map::from_iter([(UNKNOWN.to_owned(), json!([1]))]);
                all.push(with(name, Value::Object(object), Some(format!("{name}.{UNKNOWN}"))));
            }
        }
    }
    all
}

/// Whether a note mentions this path.
fn says(notes: &Value, path: &str) -> bool {
    let notes = notes.as_array().into_iter().flatten().filter_map(Value::as_str);
    notes.into_iter().any(|note| note.contains(&format!("`{path}`")))
}

#[test]
fn what_is_unknown_or_null_or_empty_is_never_refused_and_what_is_ignored_is_said() {
    let (bodies, server) = (Bodies::new(), Server::shared());
    let routes = bodies.routes();
    let mut wrong = Vec::new();
    let mut tried = 0;
    for (head, base) in bases() {
        let (_, schema) = routes.iter().find(|(route, _)| route == head).unwrap_or_else(|| panic!("{head}"));
        let (method, path) = head.split_once(' ').unwrap();
        let send = |body: &Value| {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            let text = body.to_string();
            // The timeout is short, and the machine may be busy.
            let answer = (0..TRIES).find_map(|_| server.send(method.clone(), path, text.as_bytes()));
            let (status, _, text) = answer.unwrap_or_else(|| panic!("{head} {body} has no answer"));
            (status, serde_json::from_slice::<Value>(&text).unwrap_or_default())
        };
        let (status, answer) = send(&base);
        assert_eq!(status, 200, "{head} {base}: {answer}");
        for Variation { body, noted } in variations(&bodies, schema, &base) {
            let (status, answer) = send(&body);
            tried += 1;
            if status != 200 {
                wrong.push(format!("{head} {body}: {status} {answer}"));
            } else if let Some(path) = noted.filter(|_| answer["kvik"]["cache"].is_object())
                && !says(&answer["kvik"]["notes"], &path)
                && answer["object"] != "list"
            {
                wrong.push(format!("{head} {body}: `{path}` is not noted in {}", answer["kvik"]["notes"]));
            }
        }
    }
    println!("{tried} bodies");
    assert!(wrong.is_empty(), "{} of {tried}:\n{}", wrong.len(), wrong.join("\n"));
}

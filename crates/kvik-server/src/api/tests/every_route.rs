//! Runs every operation of the document with the real engine and the embedded model: [`super::described`]
//! checks each answer against the document, and this module checks that no operation is omitted and that no
//! answer schema is empty.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{
    described::{DOCUMENT, conforms},
    kept::Server,
};

/// Operations that this server refuses, with the reasons. Other tests run them where they succeed.
const REFUSED: [(&str, &str, &str); 9] = [
    ("post", "/infill", "the embedded model has no tokens for it"),
    ("post", "/v1/responses/compact", "there is nothing to summarise; `responses` asks it"),
    ("get", "/v1/cache/tree/{id}", "its id is not known beforehand; `tree` asks"),
    ("post", "/v1/conversations/{id}/memory", "nothing is remembered yet; `memory` corrects it"),
    ("get", "/v1/conversations/{id}/answer", "no answer runs there; `running_answers` follows one"),
    ("post", "/v1/shelf/reload", "there is one model; `shelf` asks it, and the next three"),
    ("post", "/api/pull", "likewise"),
    ("post", "/api/copy", "likewise"),
    ("delete", "/api/delete", "likewise"),
];

/// `METHOD path`, the route if it differs from the path, and a body.
type Ask = (&'static str, &'static str, Value);

/// Requests of the dialects with conversations.
fn openai_and_anthropic() -> Vec<Ask> {
    let hello = json!([{"role": "user", "content": "Say hello to Ann."}]);
    let chat = json!({"messages": hello, "max_tokens": 4});
    let asked = json!({"input": "Say hello to Ann.", "max_output_tokens": 4});
    let none = Value::Null;
    vec![
        ("POST /v1/chat/completions", "", chat.clone()),
        ("POST /chat/completions", "", chat.clone()),
        ("POST /v1/chat/completions/input_tokens", "", chat.clone()),
        ("POST /chat/completions/input_tokens", "", chat.clone()),
        ("POST /v1/chat/completions/render", "", chat.clone()),
        ("POST /v1/completions/render", "", json!({"prompt": ["a", "b"]})),
        ("POST /v1/completions", "", json!({"prompt": ["a", "b"], "max_tokens": 2, "logprobs": 1})),
        ("GET /v1/models", "", none.clone()),
        ("GET /models", "", none.clone()),
        ("GET /v1/models/kvik-tiny", "/v1/models/{id}", none.clone()),
        ("GET /models/kvik-tiny", "/models/{id}", none.clone()),
        ("POST /v1/responses", "", asked.clone()),
        ("POST /responses", "", asked.clone()),
        ("POST /v1/responses/input_tokens", "", json!({"input": "Hello"})),
        ("POST /v1/messages", "", chat.clone()),
        ("POST /v1/messages/count_tokens", "", json!({"messages": hello})),
    ]
}

/// Requests of the dialects of other servers.
fn ollama_and_llama() -> Vec<Ask> {
    let hello = json!([{"role": "user", "content": "Say hello to Ann."}]);
    let chat = json!({"messages": hello, "max_tokens": 4});
    let none = Value::Null;
    vec![
        ("POST /api/chat", "", json!({"messages": hello, "options": {"num_predict": 3}, "stream": false})),
        (
            "POST /api/generate",
            "",
            json!({"prompt": "Hello", "options": {"num_predict": 3}, "stream": false}),
        ),
        ("POST /api/embed", "", json!({"input": ["one", "two"]})),
        ("POST /api/embeddings", "", json!({"prompt": "one"})),
        ("GET /api/tags", "", none.clone()),
        ("GET /api/ps", "", none.clone()),
        ("POST /api/show", "", json!({})),
        ("GET /api/version", "", none.clone()),
        ("POST /completion", "", json!({"prompt": "Once", "n_predict": 2, "id_slot": 0, "n_probs": 1})),
        ("POST /completions", "", json!({"prompt": ["Once", "Now"], "n_predict": 2})),
        ("POST /tokenize", "", json!({"content": "Grüße", "with_pieces": true})),
        ("POST /detokenize", "", json!({"tokens": [300, 301]})),
        ("POST /apply-template", "", chat.clone()),
        ("GET /lora-adapters", "", none.clone()),
        ("POST /lora-adapters", "", json!([])),
        ("GET /props", "", none.clone()),
        ("GET /slots", "", none.clone()),
        ("POST /slots/0?action=save", "/slots/{id}", json!({"filename": "one"})),
    ]
}

/// Requests for vectors.
fn vectors() -> Vec<Ask> {
    vec![
        ("POST /v1/embeddings", "", json!({"input": "one"})),
        ("POST /embeddings", "", json!({"input": ["one", "two"], "encoding_format": "base64"})),
        ("POST /embedding", "", json!({"content": "one"})),
        ("POST /v1/rerank", "", json!({"query": "a", "documents": ["b"], "return_documents": true})),
        ("POST /rerank", "", json!({"query": "a", "documents": ["b", "c"]})),
        ("POST /v1/reranking", "", json!({"query": "a", "documents": ["b"]})),
        (
            "POST /reranking",
            "",
            json!({"query": "a", "texts": ["b", "c"], "return_text": true, "raw_scores": true}),
        ),
    ]
}

/// Requests of the cache, ordered so that there is something to show.
fn cache_and_prompts() -> Vec<Ask> {
    let text = json!({"prompt": "Once upon a time there was a bird", "max_tokens": 2});
    let none = Value::Null;
    vec![
        ("GET /v1/cache", "", none.clone()),
        ("POST /v1/cache/explain", "", text.clone()),
        (
            "POST /v1/cache/pin",
            "",
            json!({"prompt": "Once upon a time there was a bird that could not fly."}),
        ),
        ("GET /v1/cache/pins", "", none.clone()),
        ("DELETE /v1/cache/pins", "", none.clone()),
        ("GET /v1/cache/tree", "", none.clone()),
        ("POST /v1/cache/evict", "", text.clone()),
        ("PUT /v1/prompts/notes", "/v1/prompts/{name}", text.clone()),
        ("GET /v1/prompts/notes", "/v1/prompts/{name}", none.clone()),
        ("POST /v1/prompts/notes/check", "/v1/prompts/{name}/check", text.clone()),
        ("GET /v1/prompts", "", none.clone()),
        ("DELETE /v1/prompts/notes", "/v1/prompts/{name}", none.clone()),
    ]
}

/// Requests for tenants' records and for the server itself.
fn records_and_operation() -> Vec<Ask> {
    let hello = json!([{"role": "user", "content": "Say hello to Ann."}]);
    let named = json!({"name": "trip"});
    let none = Value::Null;
    vec![
        ("POST /v1/conversations", "", json!({"name": "trip", "messages": hello})),
        ("GET /v1/conversations?search=Ann", "/v1/conversations", none.clone()),
        ("GET /v1/conversations/trip", "/v1/conversations/{id}", none.clone()),
        ("POST /v1/conversations/trip", "/v1/conversations/{id}", named.clone()),
        ("GET /v1/conversations/trip/items?order=asc", "/v1/conversations/{id}/items", none.clone()),
        ("POST /v1/conversations/trip/items", "/v1/conversations/{id}/items", json!({"items": hello})),
        ("GET /v1/conversations/trip/memory", "/v1/conversations/{id}/memory", none.clone()),
        ("GET /v1/conversations/trip/export", "/v1/conversations/{id}/export", none.clone()),
        ("DELETE /v1/conversations/trip/answer", "/v1/conversations/{id}/answer", none.clone()),
        ("DELETE /v1/conversations/trip/messages?from=0", "/v1/conversations/{id}/messages", none.clone()),
        ("DELETE /v1/conversations/trip", "/v1/conversations/{id}", none.clone()),
        ("DELETE /v1/cache", "", none.clone()),
        ("GET /v1/usage", "", none.clone()),
        ("GET /v1/stats", "", none.clone()),
        ("GET /model_info", "", none.clone()),
        ("GET /get_model_info", "", none.clone()),
        ("GET /server_info", "", none.clone()),
        ("GET /get_server_info", "", none.clone()),
        ("GET /get_load", "", none.clone()),
        ("GET /v1/shelf", "", none.clone()),
        ("GET /v1/shelf/short-names", "", none.clone()),
        ("POST /v1/shelf/load", "", json!({"model": "kvik"})),
        ("POST /v1/shelf/unload", "", json!({"model": "kvik"})),
        ("POST /models/load", "", json!({"model": "kvik"})),
        ("POST /models/unload", "", json!({"model": "kvik"})),
        ("GET /v1/retention", "", none.clone()),
        ("GET /health", "", none.clone()),
        ("GET /v1/health", "", none.clone()),
        ("GET /ready", "", none.clone()),
        ("GET /v1/ready", "", none.clone()),
        ("GET /metrics", "", none.clone()),
        ("GET /openapi.json", "", none.clone()),
    ]
}

/// Returns the successful operations of the document, as `method path`.
fn described() -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for (path, item) in DOCUMENT["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap().iter().filter(|(key, _)| *key != "parameters") {
            if !operation["responses"]["200"].is_null() && operation["tags"] != json!(["page"]) {
                all.insert(format!("{method} {path}"));
            }
        }
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn every_operation_answers_as_it_is_described() {
    let server = Server::new("");
    let mut left = described();
    for (method, path, _reason) in REFUSED {
        assert!(left.remove(&format!("{method} {path}")), "{method} {path} is not described");
    }
    let asked = left.len();
    let all =
        [openai_and_anthropic(), ollama_and_llama(), vectors(), cache_and_prompts(), records_and_operation()];
    for (request, route, body) in all.concat() {
        let (method, path) = request.split_once(' ').unwrap();
        let (status, answer) = server.send_text_of("", method, path, body).await;
        let route = if route.is_empty() { path } else { route };
        if status == 200 {
            left.remove(&format!("{} {route}", method.to_lowercase()));
        } else {
            println!("{request}: {status} {answer}");
        }
    }
    responses(&server, &mut left).await;
    items(&server, &mut left).await;
    unpins_one(&server, &mut left).await;
    assert!(left.is_empty(), "of {asked} operations these did not answer: {left:#?}");
}

/// Covers the routes of a stored response.
async fn responses(server: &Server, left: &mut BTreeSet<String>) {
    let body = json!({"input": "Say hello to Ann.", "max_output_tokens": 4, "instructions": "Be brief."});
    let id = server.done("", "POST", "/v1/responses", body).await["id"].as_str().unwrap().to_owned();
    for (method, path) in [
        ("GET", "/v1/responses/{id}"),
        ("GET", "/v1/responses/{id}/input_items"),
        ("DELETE", "/v1/responses/{id}"),
    ] {
        server.done("", method, &path.replace("{id}", &id), Value::Null).await;
        left.remove(&format!("{} {path}", method.to_lowercase()));
    }
}

/// Covers the routes of an item of a conversation, whose id is not known beforehand.
async fn items(server: &Server, left: &mut BTreeSet<String>) {
    let begun = json!({"items": [{"role": "user", "content": "Say hello to Ann."}]});
    let id = server.done("", "POST", "/v1/conversations", begun).await["id"].as_str().unwrap().to_owned();
    let items = format!("/v1/conversations/{id}/items");
    let listed = server.done("", "GET", &items, Value::Null).await;
    let item = listed["data"][0]["id"].as_str().unwrap();
    for method in ["GET", "DELETE"] {
        server.done("", method, &format!("{items}/{item}"), Value::Null).await;
        left.remove(&format!("{} /v1/conversations/{{id}}/items/{{item_id}}", method.to_lowercase()));
    }
}

/// Covers the removal of a single pin, which is identified by its number.
async fn unpins_one(server: &Server, left: &mut BTreeSet<String>) {
    let prompt = json!({"prompt": "Once upon a time there was a bird that could not fly at all."});
    server.done("", "POST", "/v1/cache/pin", prompt).await;
    let pins = server.done("", "GET", "/v1/cache/pins", Value::Null).await;
    let id = pins["data"][0]["id"].as_u64().unwrap();
    server.done("", "DELETE", &format!("/v1/cache/pins/{id}"), Value::Null).await;
    left.remove("delete /v1/cache/pins/{id}");
}

/// Places in answers where any value is valid, with its source.
const OPEN: [(&str, &str); 13] = [
    ("/components/schemas/ContentBlock/anyOf/3/properties/input", "the model: arguments of a call"),
    ("/components/schemas/LlamaChosen", "the request: paths in an answer, which are looked up there"),
    ("/components/schemas/OllamaCall/properties/function/properties/arguments", "likewise"),
    ("/components/schemas/OllamaDone", "nobody: it has no fields"),
    (
        "/components/schemas/OllamaShown/properties/model_info",
        "the model's file: one name is made of another",
    ),
    ("/components/schemas/Response/properties/metadata", "the request, which is given it back"),
    ("/components/schemas/Response/properties/reasoning", "likewise"),
    ("/components/schemas/Response/properties/text", "likewise"),
    ("/components/schemas/Response/properties/tool_choice", "likewise"),
    ("/components/schemas/Response/properties/tools/items", "likewise"),
    ("/components/schemas/InputItems/properties/data/items", "likewise: items as the request brought them"),
    (
        "/paths/~1v1~1conversations~1{id}~1items~1{item_id}/get/responses/200/content/application~1json/schema",
        "likewise",
    ),
    ("/paths/~1openapi.json/get/responses/200/content/application~1json/schema", "this document: OpenAPI's"),
];

/// Collects the places below `place` whose schemas accept any value.
fn open(schema: &Value, place: &str, found: &mut BTreeSet<String>) {
    let Value::Object(keywords) = schema else {
        found.insert(place.to_owned());
        return;
    };
    let says = ["$ref", "anyOf", "oneOf", "allOf", "enum", "const", "properties", "items", "prefixItems"];
    let says = says.iter().any(|name| keywords.contains_key(*name));
    let is_plain = keywords.get("type").is_some_and(|kind| {
        let names = kind.as_array().cloned().unwrap_or_else(|| vec![kind.clone()]);
        names.iter().all(|name| name != "object" && name != "array")
    });
    let is_map = keywords.get("additionalProperties").is_some_and(Value::is_object);
    let is_empty_list = keywords.get("maxItems") == Some(&json!(0));
    if !(says || is_plain || is_map || is_empty_list) {
        found.insert(place.to_owned());
    }
    for (keyword, said) in keywords {
        match said {
            Value::Object(named) if keyword == "properties" => {
                for (name, schema) in named {
                    open(schema, &format!("{place}/properties/{name}"), found);
                }
            }
            Value::Array(schemas)
                if ["anyOf", "oneOf", "allOf", "prefixItems"].contains(&keyword.as_str()) =>
            {
                for (index, schema) in schemas.iter().enumerate() {
                    open(schema, &format!("{place}/{keyword}/{index}"), found);
                }
            }
            schema if keyword == "items" => open(schema, &format!("{place}/items"), found),
            schema if keyword == "additionalProperties" && schema.is_object() => {
                open(schema, &format!("{place}/additionalProperties"), found);
            }
            _ => {}
        }
    }
}

/// Collects the names of the schemas that are reachable from a value of the document.
fn reached(value: &Value, names: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let schema = value.as_str().filter(|_| name == "$ref");
                let schema = schema.and_then(|place| place.strip_prefix("#/components/schemas/"));
                if let Some(schema) = schema.filter(|schema| names.insert((*schema).to_owned())) {
                    reached(&DOCUMENT["components"]["schemas"][schema], names);
                }
                reached(value, names);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| reached(item, names)),
        _ => {}
    }
}

#[test]
fn no_schema_of_an_answer_is_empty() {
    let (mut found, mut names) = (BTreeSet::new(), BTreeSet::new());
    for (path, item) in DOCUMENT["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap().iter().filter(|(key, _)| *key != "parameters") {
            for (status, response) in operation["responses"].as_object().unwrap() {
                reached(response, &mut names);
                for (kind, content) in response["content"].as_object().unwrap() {
                    let [path, kind] = [path, kind].map(|text| text.replace('/', "~1"));
                    let place = format!("/paths/{path}/{method}/responses/{status}/content/{kind}/schema");
                    open(&content["schema"], &place, &mut found);
                }
            }
        }
    }
    for name in &names {
        let place = format!("/components/schemas/{name}");
        open(DOCUMENT.pointer(&place).unwrap(), &place, &mut found);
    }
    let messages = |place: &String| {
        ["messages", "answering"]
            .iter()
            .any(|field| place.ends_with(&format!("Conversation/properties/{field}/items")))
    };
    let found: BTreeSet<&str> = found.iter().filter(|place| !messages(place)).map(String::as_str).collect();
    let expect: BTreeSet<&str> = OPEN.iter().map(|(place, _)| *place).collect();
    assert_eq!(found, expect);
    assert!(names.len() > 60, "{names:?}");
}

/// Recorded answers of a built server match the document: generated values differ between processors, their
/// structure does not.
#[test]
fn recorded_answers_are_as_they_are_described() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/recorded/base.jsonl");
    let text = std::fs::read_to_string(path).unwrap();
    let mut checked = 0;
    for line in text.lines() {
        let recorded: Value = serde_json::from_str(line).unwrap();
        let Some((method, path)) = asked(recorded["name"].as_str().unwrap()) else { continue };
        let (status, body) = (recorded["status"].as_u64().unwrap(), &recorded["body"]);
        let operation = &DOCUMENT["paths"][path][method.to_lowercase()];
        let responses = &operation["responses"];
        let response = if status == 200 { &responses["200"] } else { &responses["default"] };
        let schema = &response["content"]["application/json"]["schema"];
        // Other methods of a route are tested elsewhere, and metrics are recorded as a list of names.
        if schema.is_null() || !body.is_object() {
            continue;
        }
        let found = conforms(&DOCUMENT, schema, body);
        assert!(found.is_ok(), "{}: {found:?}: {body}", recorded["name"]);
        checked += 1;
    }
    assert!(checked > 300, "{checked}");
}

/// Returns method and path of a recorded request, whose name begins with them.
fn asked(name: &str) -> Option<(&str, &str)> {
    let (request, _) = name.split_once(':').unwrap_or((name, ""));
    let (method, path) = request.split_once(' ')?;
    Some((method, path.split('?').next()?))
}

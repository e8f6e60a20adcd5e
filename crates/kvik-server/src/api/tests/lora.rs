//! LoRA adapters over the routes, with the real engine and the embedded model.

use std::{collections::HashMap, path::Path};

use kvik_testing::mix;
use serde_json::{Value, json};

use super::{config, kept::Server};
use crate::app::AppConfig;
use kvik_serving::settings::{
    lora::{LoraArgs, ScaledFile},
    model::{CacheArgs, ModelArgs},
    size::ByteSize,
};

#[path = "../../../../kvik-model/tests/it/random_adapter/mod.rs"]
mod random_adapter;

use random_adapter::RandomAdapter;

/// A server with the adapters `one` and `two`, which apply only to requests that name them.
fn server(dir: &Path, tenants: &str) -> Server {
    configured(dir, tenants, config())
}

/// A server with the same adapters and this configuration.
pub(super) fn configured(dir: &Path, tenants: &str, config: AppConfig) -> Server {
    let model = ModelArgs::embedded().load().unwrap().config;
    let write = |name: &str, seed, rank| {
        let path = dir.join(format!("{name}.gguf"));
        std::fs::write(&path, RandomAdapter::new(seed, rank).file(&model)).unwrap();
        path
    };
    let lora = LoraArgs {
        lora: vec![write("one", 1, 4)],
        lora_scaled: vec![ScaledFile { path: write("two", 2, 8), scale: 0.5 }],
        lora_init_without_apply: true,
    };
    let cache = CacheArgs { lora, ..CacheArgs::in_ram(512, ByteSize(16 << 20)) };
    Server::configured(tenants, cache, config)
}

/// Returns the text and log-probabilities of the answer to `prompt`, and the number of cached tokens.
async fn ask(server: &Server, prompt: &[u32], fields: &Value) -> (Value, u64) {
    let mut body =
        json!({"prompt": prompt, "max_tokens": 4, "temperature": 0, "logprobs": 5, "ignore_eos": true});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let answer = server.done("", "POST", "/v1/completions", body).await;
    let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    (answer["choices"][0].clone(), cached)
}

fn prompt(seed: u64, tokens: u64) -> Vec<u32> {
    (0..tokens).map(|index| 20 + (mix(seed ^ mix(index)) % 4000) as u32).collect()
}

/// Adapter settings of requests; those in one row are equivalent.
fn mixes() -> Vec<Vec<Value>> {
    vec![
        vec![json!({}), json!({"lora": []}), json!({"lora": null}), json!({"lora": [{"id": 1, "scale": 0}]})],
        vec![
            json!({"model": "one"}),
            json!({"lora": [{"id": 0}]}),
            json!({"model": "two", "lora": [{"name": "one", "scale": 1}]}),
        ],
        vec![json!({"model": "two"}), json!({"lora": [{"name": "two", "scale": 0.5}]})],
        vec![json!({"lora": [{"id": 1, "scale": 1}]})],
        vec![
            json!({"lora": [{"id": 0, "scale": 0.5}, {"id": 1, "scale": 0.25}]}),
            json!({"lora": [{"name": "two", "scale": 0.25}, {"id": 0.0, "scale": 0.5}]}),
        ],
    ]
}

/// An answer depends on prompt and adapters alone, whatever was asked before or is asked concurrently. A
/// prompt is found in the cache by requests with the same adapters and by no others.
#[tokio::test(flavor = "multi_thread")]
async fn every_mix_of_adapters_has_its_own_answers_and_prefixes() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(dir.path(), "");
    let (mixes, prompts) = (mixes(), [prompt(1, 70), prompt(2, 40)]);
    let mut known: HashMap<(usize, usize), Value> = HashMap::new();
    for round in 0..40u64 {
        let pick = |salt: u64, bound: usize| (mix(round ^ (salt << 40)) % bound as u64) as usize;
        let one = |salt: u64| {
            let (row, which) = (pick(salt, mixes.len()), pick(salt + 1, prompts.len()));
            (row, which, &mixes[row][pick(salt + 2, mixes[row].len())])
        };
        let (first, second) = (one(10), one(20));
        let same = (first.0, first.1) == (second.0, second.1);
        let answers = tokio::join!(
            ask(&server, &prompts[first.1], first.2),
            ask(&server, &prompts[second.1], second.2)
        );
        for ((row, which, fields), (answer, cached)) in [(first, answers.0), (second, answers.1)] {
            let before = known.entry((row, which)).or_insert_with(|| {
                assert!(cached == 0 || same, "{fields} finds what others computed");
                answer.clone()
            });
            assert_eq!(*before, answer, "{fields}, prompt {which}, in round {round}");
        }
    }
    assert_eq!(known.len(), mixes.len() * prompts.len(), "every pair is asked");
    let mut answers: Vec<String> = known.values().map(Value::to_string).collect();
    answers.sort_unstable();
    answers.dedup();
    assert_eq!(answers.len(), known.len(), "every mix answers otherwise");
    let (_, cached) = ask(&server, &prompts[0], &json!({"model": "one"})).await;
    assert_eq!(cached, 69);
}

/// Vectors are computed with the adapters that a body names, on every route that returns some.
#[tokio::test(flavor = "multi_thread")]
async fn vectors_are_computed_with_the_adapters_of_their_request() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(dir.path(), "");
    for (route, body, field) in [
        ("/v1/embeddings", json!({"input": "a licence"}), "data"),
        ("/embedding", json!({"content": "a licence"}), "embedding"),
        ("/api/embed", json!({"model": "", "input": "a licence"}), "embeddings"),
        ("/v1/rerank", json!({"query": "a licence", "documents": ["a permit", "a ship"]}), "results"),
    ] {
        let mut vectors = Vec::new();
        for fields in [json!({}), json!({"model": "two"}), json!({"lora": [{"name": "two", "scale": 0.5}]})] {
            let mut body = body.clone();
            body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            let mut answer = server.done("", "POST", route, body).await;
            vectors.push(if answer.is_array() { answer[0].take() } else { answer[field].take() });
        }
        assert!(!vectors[0].is_null(), "{route}");
        assert_ne!(vectors[0], vectors[1], "{route}");
        assert_eq!(vectors[1], vectors[2], "{route}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_scales_that_apply_to_all_can_be_set() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(dir.path(), "");
    let prompt = prompt(3, 50);
    let scales = |answer: &Value| -> Vec<(u64, f64)> {
        let row = |card: &Value| (card["id"].as_u64().unwrap(), card["scale"].as_f64().unwrap());
        answer.as_array().unwrap().iter().map(row).collect()
    };
    let list = server.done("", "GET", "/lora-adapters", Value::Null).await;
    assert_eq!(scales(&list), [(0, 0.0), (1, 0.0)]);
    assert_eq!((&list[0]["name"], &list[1]["task_name"]), (&json!("one"), &json!("")));
    assert!(list[0]["path"].as_str().unwrap().ends_with("one.gguf"));
    let (plain, _) = ask(&server, &prompt, &json!({})).await;
    let (other, _) = ask(&server, &prompt, &json!({"lora": [{"id": 1, "scale": 2}]})).await;
    assert_ne!(plain, other);

    let changed = json!([{"id": 1.0, "scale": 2}]);
    assert_eq!(server.done("", "POST", "/lora-adapters", changed).await, json!({"success": true}));
    let list = server.done("", "GET", "/lora-adapters", Value::Null).await;
    assert_eq!(scales(&list), [(0, 0.0), (1, 2.0)]);
    let (usual, cached) = ask(&server, &prompt, &json!({})).await;
    assert_eq!((usual, cached), (other, 49));
    assert_eq!(ask(&server, &prompt, &json!({"lora": []})).await, (plain, 49));
    let body = json!({"prompt": prompt, "max_tokens": 4});
    let explained = server.done("", "POST", "/v1/cache/explain", body).await;
    assert_eq!(explained["kvik"]["cache"]["cached_tokens"], 49);
    server.done("", "POST", "/lora-adapters", json!([])).await;
    let list = server.done("", "GET", "/lora-adapters", Value::Null).await;
    assert_eq!(scales(&list), [(0, 0.0), (1, 0.0)]);
}

/// Pinned prompts are computed with the default adapters, and are found by requests that name none.
#[tokio::test(flavor = "multi_thread")]
async fn kept_prompts_are_computed_with_what_applies_to_all() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(dir.path(), "");
    server.done("", "POST", "/lora-adapters", json!([{"id": 0, "scale": 1}])).await;
    let prompt = prompt(4, 64);
    server.done("", "PUT", "/v1/prompts/x", json!({"prompt": prompt})).await;
    let longer: Vec<u32> = prompt.iter().copied().chain([30, 31]).collect();
    assert_eq!(ask(&server, &longer, &json!({"lora": []})).await.1, 0);
    assert_eq!(ask(&server, &longer, &json!({})).await.1, 64);
    let kept = server.done("", "GET", "/v1/prompts/x", Value::Null).await;
    assert_eq!((&kept["cached"], &kept["pinned"]), (&json!(true), &json!(true)), "{kept}");
    server.done("", "DELETE", "/v1/prompts/x", Value::Null).await;
    server.settles(0, None).await;
}

/// The adapters of a prompt are recorded with it, so that it is found and released after the default adapters
/// change.
#[tokio::test(flavor = "multi_thread")]
async fn a_kept_prompt_is_found_and_released_with_the_adapters_it_was_computed_with() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(dir.path(), "");
    let usual = async |scale: f32| {
        server.done("", "POST", "/lora-adapters", json!([{"id": 0, "scale": scale}])).await;
    };
    for retain in [json!("none"), json!("keydiff:0.25")] {
        let body = json!({"prompt": prompt(4, 64), "retain": retain});
        usual(0.3).await;
        server.done("", "PUT", "/v1/prompts/x", body.clone()).await;
        let pinned = server.app.serving.engine.stats().cache.pinned;
        usual(0.7).await;
        let kept = server.done("", "GET", "/v1/prompts/x", Value::Null).await;
        assert_eq!((&kept["cached"], &kept["pinned"]), (&json!(true), &json!(true)), "{retain}: {kept}");
        let again = server.done("", "PUT", "/v1/prompts/x", body).await;
        assert_eq!(again["built"], true, "what applies to all has changed: {again}");
        server.has_pinned(pinned).await;
        usual(0.1).await;
        server.done("", "DELETE", "/v1/prompts/x", Value::Null).await;
        server.has_pinned(0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn adapters_are_models_with_a_parent() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(dir.path(), "");
    let models = server.done("", "GET", "/v1/models", Value::Null).await;
    let own = &models["data"][0]["id"];
    let rows: Vec<(&str, &Value)> = models["data"].as_array().unwrap()[1..]
        .iter()
        .map(|model| (model["id"].as_str().unwrap(), &model["parent"]))
        .collect();
    assert_eq!(rows, [("one", own), ("two", own)]);
    let two = server.done("", "GET", "/v1/models/two", Value::Null).await;
    assert_eq!(two, models["data"][2]);
    let (status, _) = server.send("", "GET", "/v1/models/three", Value::Null).await;
    assert_eq!(status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_names_no_adapter_is_refused_by_its_path() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(dir.path(), "");
    for (lora, path) in [
        (json!([{"id": 2}]), "lora[0]"),
        (json!([{"id": 0}, {"name": "three"}]), "lora[1]"),
        (json!([{"id": 0, "name": "one"}]), "lora[0]"),
        (json!([{}]), "lora[0]"),
        (json!([{"id": 0}, {"name": "one"}]), "lora[1]"),
        (json!([{"id": 0, "scale": 1e9}]), "lora[0].scale"),
        (json!([{"id": -1}]), "lora[0]"),
        (json!([{"id": 0.5}]), "lora[0]"),
        (json!([{"id": 0, "scale": "x"}]), "lora[0].scale"),
        (json!([0]), "lora[0]"),
        (json!({"id": 0}), "lora"),
        (json!("one"), "lora"),
    ] {
        let body = json!({"prompt": "x", "lora": lora});
        let (status, answer) = server.send("", "POST", "/v1/completions", body).await;
        assert_eq!((status.as_u16(), &answer["error"]["param"]), (400, &json!(path)), "{lora}: {answer}");
        let (status, answer) = server.send("", "POST", "/lora-adapters", lora.clone()).await;
        assert_eq!(status, 400, "{lora}: {answer}");
    }
    for odd in ["[{]", "[] []", ""] {
        let (status, answer) = server.send_text("POST", "/lora-adapters", odd).await;
        assert_eq!(status, 400, "{odd}: {answer}");
    }
    let none = Server::new("");
    let body = json!({"prompt": "x", "lora": [{"id": 0}]});
    let (status, answer) = none.send("", "POST", "/v1/completions", body).await;
    assert_eq!((status.as_u16(), &answer["error"]["param"]), (400, &json!("lora")), "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("--lora"));
    assert_eq!(none.done("", "GET", "/lora-adapters", Value::Null).await, json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_admin_sets_what_applies_to_all_tenants() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(dir.path(), "[tenant.acme]\nKEY:acme;\n");
    let scales = json!([{"id": 0, "scale": 1}]);
    let (status, _) = server.send("acme", "POST", "/lora-adapters", scales.clone()).await;
    assert_eq!(status, 403);
    server.done("root", "POST", "/lora-adapters", scales).await;
    let list = server.done("acme", "GET", "/lora-adapters", Value::Null).await;
    assert_eq!(list[0]["scale"], 1.0);
    assert_eq!((&list[0]["path"], &list[1]["path"]), (&json!("one"), &json!("two")), "not where files lie");
    let list = server.done("root", "GET", "/lora-adapters", Value::Null).await;
    assert!(list[0]["path"].as_str().unwrap().starts_with(dir.path().to_str().unwrap()), "{list}");
}

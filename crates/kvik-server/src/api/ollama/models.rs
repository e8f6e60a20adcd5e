//! The models of this server, in Ollama's format.

use std::{sync::Arc, time::Duration};

use axum::{Extension, Json, extract::State};
use kvik_model::load::SamplingDefaults;
use kvik_text::template::may_reason;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::{
    api::{request::parts::Part, sampling::SamplingInForce},
    app::{
        App,
        body::JsonBody,
        keys::Caller,
        shelf::{self, Described, ModelFile, Shelf},
    },
    clock::{rfc3339, unix_seconds},
    described::JsonSchema,
    http::error::ApiError,
};
use kvik_serving::ModelCard;

/// The implemented version of Ollama's API; clients require a minimum.
const SPOKEN: &str = "0.13.0";
/// Expiry time of a model that stays loaded until the server stops.
const FOREVER: &str = "9999-12-31T23:59:59Z";

/// Which version is spoken.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Version {
    version: &'static str,
    kvik: &'static str,
}

/// Models.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OllamaModels")]
pub(super) struct Listed {
    models: Vec<Model>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OllamaModel")]
struct Model {
    name: String,
    model: String,
    modified_at: String,
    /// Bytes of its file; of a model that runs, of the memory that it takes now; for a tenant of its weights.
    size: u64,
    digest: String,
    details: Details,
    #[serde(flatten)]
    running: Option<Running>,
}

/// Of a model that runs.
#[derive(Debug, Serialize, JsonSchema)]
struct Running {
    expires_at: String,
    size_vram: u64,
    context_length: usize,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Details {
    parent_model: &'static str,
    format: &'static str,
    family: String,
    families: [String; 1],
    parameter_size: &'static str,
    quantization_level: &'static str,
}

/// The model.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OllamaShown")]
pub(super) struct Shown {
    modelfile: String,
    /// The sampling of requests that set none, as lines of a Modelfile.
    parameters: String,
    template: String,
    details: Details,
    /// Numbers and names of its file; one is named by its architecture.
    model_info: Map<String, Value>,
    capabilities: Vec<&'static str>,
    modified_at: String,
    /// kvik's own: the same sampling, and where each value comes from.
    sampling_defaults: SamplingInForce,
}

/// `GET /api/version`
pub(super) async fn version() -> Json<Version> {
    Json(Version { version: SPOKEN, kvik: env!("CARGO_PKG_VERSION") })
}

/// `GET /api/tags`
pub(super) async fn tags(
    State(shelf): State<Arc<Shelf>>,
    Extension(caller): Extension<Caller>,
) -> Json<Listed> {
    if let Some(app) = shelf.only() {
        return Json(Listed { models: vec![listed(&app.serving.model, None)] });
    }
    Json(Listed { models: shelf.list(&caller).iter().map(|model| on_shelf(model, None)).collect() })
}

/// `GET /api/ps`. How much is stored, and until when a model stays, tells of the requests of others: it is for the admin.
pub(super) async fn running(
    State(shelf): State<Arc<Shelf>>,
    Extension(caller): Extension<Caller>,
) -> Json<Listed> {
    let running = |expires_at: String, context_length| Running { expires_at, size_vram: 0, context_length };
    if let Some(app) = shelf.only() {
        let running = running(FOREVER.to_owned(), app.serving.model.context);
        let model = listed(&app.serving.model, Some(running));
        return Json(Listed { models: vec![Model { size: told_bytes(&app, &caller), ..model }] });
    }
    let of = |model: &shelf::Listed| {
        let card = model.card.as_ref().filter(|_| matches!(model.status, "loaded" | "unloading"))?;
        let expires = |left: Duration| rfc3339(unix_seconds().saturating_add(left.as_secs()), 0);
        let told = model.expires_in.filter(|_| caller.admin);
        let expires_at = told.map_or_else(|| FOREVER.to_owned(), expires);
        let size = model.app.as_deref().map_or(model.file.bytes, |app| told_bytes(app, &caller));
        Some(Model { size, ..on_shelf(model, Some(running(expires_at, card.context))) })
    };
    Json(Listed { models: shelf.list(&caller).iter().filter_map(of).collect() })
}

/// The bytes that a running model takes, as far as a caller is told.
fn told_bytes(app: &App, caller: &Caller) -> u64 {
    if caller.admin { app.bytes_used() } else { app.serving.model.bytes }
}

/// Describes a model of the shelf by its file, whether it is loaded or not. Its family is known once it was
/// loaded.
fn on_shelf(model: &shelf::Listed, running: Option<Running>) -> Model {
    let ModelFile { bytes, modified_s, digest } = model.file.clone();
    Model {
        name: model.name.clone(),
        model: model.name.clone(),
        modified_at: rfc3339(modified_s, 0),
        size: bytes,
        digest,
        details: model.card.as_ref().map_or_else(|| details_of(String::new()), details),
        running,
    }
}

/// The body of `/api/show`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct ShowFields {
    /// The one model that runs here answers for any name, unless the server is strict.
    #[serde(default)]
    model: String,
    /// The same, as older clients write it.
    #[serde(default)]
    name: String,
}

impl Part for ShowFields {}

/// `POST /api/show`
pub(super) async fn show(State(shelf): State<Arc<Shelf>>, body: JsonBody) -> Result<Json<Shown>, ApiError> {
    let caller = body.caller.clone();
    let ShowFields { model, name } = shelf.server.read(body).await?;
    let name = if model.is_empty() { name } else { model };
    if let Some(app) = shelf.only() {
        app.accept_model(&name)?;
    }
    let (listed, described) = (shelf.get(&name, &caller)?, shelf.describe(&name, &caller).await?);
    let loaded_s = listed.card.as_ref().map_or(0, |card| card.loaded);
    let modified_s = if shelf.has_one() { loaded_s } else { listed.file.modified_s };
    let template = described.template.clone().unwrap_or_default();
    let mut capabilities = vec!["completion"];
    // Templates that support tools mention them.
    capabilities.extend(template.contains("tools").then_some("tools"));
    capabilities.extend(may_reason(&template).then_some("thinking"));
    let source = listed.card.as_ref().map_or(&listed.source, |card| &card.source);
    Ok(Json(Shown {
        modelfile: format!("FROM {}\n", source.for_caller(caller.admin, &listed.name)),
        parameters: parameters(&described.sampling),
        template,
        details: details_of(described.family.clone()),
        model_info: model_info(&described, &name),
        capabilities,
        modified_at: rfc3339(modified_s, 0),
        sampling_defaults: SamplingInForce::of(&described.sampling),
    }))
}

/// Settings of the sampler as lines of a Modelfile; a penalty that is off is left out.
fn parameters(sampling: &SamplingDefaults) -> String {
    let repetition = sampling.repetition_penalty.value;
    let settings = [
        Some(("temperature", sampling.temperature.value.to_string())),
        Some(("top_k", sampling.top_k.value.to_string())),
        Some(("top_p", sampling.top_p.value.to_string())),
        Some(("min_p", sampling.min_p.value.to_string())),
        (repetition != 1.0).then(|| ("repeat_penalty", repetition.to_string())),
    ];
    let lines = settings.iter().flatten().map(|(name, value)| format!("{name:<30} {value}"));
    lines.collect::<Vec<_>>().join("\n")
}

fn model_info(described: &Described, name: &str) -> Map<String, Value> {
    let Described { own_name, family, vocabulary, .. } = described;
    Map::from_iter([
        ("general.architecture".to_owned(), json!(family)),
        ("general.basename".to_owned(), json!(own_name)),
        (format!("{family}.context_length"), json!(described.context_under(name))),
        ("tokenizer.ggml.vocab_size".to_owned(), json!(vocabulary)),
    ])
}

fn listed(model: &ModelCard, running: Option<Running>) -> Model {
    Model {
        name: model.name.clone(),
        model: model.name.clone(),
        modified_at: rfc3339(model.loaded, 0),
        size: model.bytes,
        digest: blake3::Hash::from_bytes(model.digest).to_hex().to_string(),
        details: details(model),
        running,
    }
}

fn details(model: &ModelCard) -> Details {
    details_of(model.family.clone())
}

fn details_of(family: String) -> Details {
    Details {
        parent_model: "",
        format: "gguf",
        families: [family.clone()],
        family,
        parameter_size: "",
        quantization_level: "",
    }
}

//! The adapters of a request: those of its field `lora`, else the adapter that it names as its model, else
//! the server's default mix.

use kvik_engine::api::AdapterMix;
use serde::Deserialize;

use crate::{
    described::JsonSchema,
    http::{error::ApiError, json::Body},
};
use kvik_serving::{lora::LoraAdapters, settings::lora::SCALE_MAX};

type Result<T> = std::result::Result<T, ApiError>;

/// The adapters that a body names.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct LoraFields {
    /// The adapters that apply to this request, instead of those that the server applies; with an empty list none.
    lora: Option<Vec<LoraUse>>,
}

/// An adapter with its scale.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct LoraUse {
    /// Its number in `GET /lora-adapters`.
    #[schemars(with = "Option<u64>")]
    id: Option<f64>,
    /// Its name, instead of `id`.
    name: Option<String>,
    /// Multiplies what it adds; 1 where nothing is said.
    scale: Option<f64>,
}

/// The model that a body names.
#[derive(Debug, Deserialize)]
struct ModelField {
    model: Option<String>,
}

/// The adapters of a body that was already read, whose `model` is one that the server runs or accepts.
pub(crate) fn adapters(body: &Body, adapters: &LoraAdapters) -> Result<Option<AdapterMix>> {
    if let Some(uses) = body.read::<LoraFields>()?.lora {
        return Ok(adapters.mix(&scales("lora", &uses, adapters)?));
    }
    if adapters.cards().is_empty() {
        return Ok(None);
    }
    let named = body.read::<ModelField>()?.model;
    match named.and_then(|name| adapters.find(&name)) {
        Some(number) => Ok(adapters.alone(number)),
        None => Ok(adapters.usual()),
    }
}

/// The scale of every adapter by number, 0 for those that the field `path` does not list.
pub(crate) fn scales(path: &str, uses: &[LoraUse], adapters: &LoraAdapters) -> Result<Vec<f32>> {
    if adapters.cards().is_empty() && !uses.is_empty() {
        let message = format!("`{path}` names an adapter and none are loaded; start kvik with --lora FILE");
        return Err(ApiError::field(path, message));
    }
    let mut scales = vec![None; adapters.cards().len()];
    for (index, used) in uses.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let number = number(&path, used, adapters)?;
        if scales[number].replace(scale(&path, used)?).is_some() {
            let name = &adapters.cards()[number].name;
            return Err(ApiError::field(&path, format!("`{path}` is adapter {number}, `{name}`, once more")));
        }
    }
    Ok(scales.into_iter().map(Option::unwrap_or_default).collect())
}

fn number(path: &str, used: &LoraUse, adapters: &LoraAdapters) -> Result<usize> {
    let count = adapters.cards().len();
    let found = match (used.id, &used.name) {
        // Some clients send whole numbers as floats.
        (Some(id), None) => (0..count).find(|&number| number as f64 == id),
        (None, Some(name)) => adapters.find(name),
        _ => {
            let message = format!("`{path}` needs either `id` or `name`");
            return Err(ApiError::field(path, message));
        }
    };
    found.ok_or_else(|| {
        let known: Vec<&str> = adapters.cards().iter().map(|card| card.name.as_str()).collect();
        ApiError::field(path, format!("`{path}` is no adapter; there are, from 0: {}", known.join(", ")))
    })
}

fn scale(path: &str, used: &LoraUse) -> Result<f32> {
    let scale = used.scale.unwrap_or(1.0);
    match scale.abs() <= f64::from(SCALE_MAX) {
        true => Ok(scale as f32),
        false => {
            let path = format!("{path}.scale");
            let message = format!("`{path}` must be from -{SCALE_MAX} to {SCALE_MAX}, not {scale}");
            Err(ApiError::field(&path, message))
        }
    }
}

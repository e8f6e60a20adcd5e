//! `/v1/shelf/short-names`: models of the hub that may be pulled by short names, with their sizes.

use std::sync::Arc;

use axum::{Json, extract::State};
use kvik_shelf::ShortName;
use serde::Serialize;

use super::conversation_answers::List;
use crate::{app::shelf::Shelf, described::JsonSchema};

/// Models by short names.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ShortNames {
    object: List,
    data: Vec<ShownShortName>,
    /// Bytes that the file of a pulled model may have, where its quantisation is left open: a share of the memory that
    /// was free; null where that is unknown, or nothing can be pulled.
    memory_bytes: Option<u64>,
}

/// A model by its short name.
#[derive(Debug, Serialize, JsonSchema)]
struct ShownShortName {
    name: &'static str,
    /// `owner/repo` on the hub.
    repository: &'static str,
    licence: &'static str,
    parameters: u64,
    /// The quantisation that a pull prefers among those that fit, by the number of parameters.
    quantisation: &'static str,
    /// About as many bytes has its file, and its weights in memory.
    bytes: u64,
    /// Whether they are within `memory_bytes`.
    fits: bool,
}

impl ShownShortName {
    fn of(row: &'static ShortName, memory_bytes: Option<u64>) -> ShownShortName {
        let (quantisation, bytes) = row.expected(memory_bytes);
        ShownShortName {
            name: row.name,
            repository: row.repository,
            licence: row.licence,
            parameters: u64::from(row.parameters_m) * 1_000_000,
            quantisation,
            bytes,
            fits: memory_bytes.is_none_or(|memory| bytes <= memory),
        }
    }
}

/// `GET /v1/shelf/short-names`
pub(super) async fn list(State(shelf): State<Arc<Shelf>>) -> Json<ShortNames> {
    let memory_bytes = shelf.pulled_bytes_max();
    let data = ShortName::all().iter().map(|row| ShownShortName::of(row, memory_bytes)).collect();
    Json(ShortNames { object: List, data, memory_bytes })
}

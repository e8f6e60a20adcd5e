//! `GET /v1/usage`: the usage of the caller's tenant; the administrator sees all tenants.

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::{Query as Parameters, State, rejection::QueryRejection},
};
use serde::{Deserialize, Serialize};

use crate::{
    accounts::ledger::{Bill, Day, Query, UsageRow},
    app::{keys::Caller, shelf::Shelf},
    described::JsonSchema,
    http::{answer::words, error::ApiError},
};

words! {
    List = "list";
}

/// The bill as this route and `kvik usage --json` give it.
#[derive(Debug, Serialize, JsonSchema)]
pub struct UsageList {
    object: List,
    /// One row per day, tenant and model.
    data: Vec<UsageRow>,
    /// Rows of the records that could not be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unreadable: Vec<String>,
}

/// The parameters `tenant`, `since` and `until`; days have the format 2026-11-21.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Wanted {
    tenant: Option<String>,
    since: Option<String>,
    until: Option<String>,
}

/// The parameters, as the OpenAPI document describes them.
pub(super) const PARAMETERS: [(&str, &str); 3] = [
    ("tenant", "Whose usage; with the admin's key"),
    ("since", "The first day, as 2026-11-21"),
    ("until", "The last day"),
];

/// Answers with one row per day, tenant and model.
pub(crate) async fn route(
    State(shelf): State<Arc<Shelf>>,
    Extension(caller): Extension<Caller>,
    wanted: Result<Parameters<Wanted>, QueryRejection>,
) -> Result<Json<UsageList>, ApiError> {
    let Parameters(wanted) = wanted.map_err(|error| ApiError::bad_request(error.body_text()))?;
    let query = wanted.query(&caller)?;
    // Reading the ledger blocks on the disk.
    let lines = tokio::task::spawn_blocking(move || shelf.server.ledger.rows(&query)).await;
    match lines {
        Ok(Ok(bill)) => Ok(Json(listing(&bill))),
        Ok(Err(error)) => Err(error.into()),
        Err(panic) => Err(ApiError::panicked("reading the accounts", &panic)),
    }
}

/// Formats a bill as the answer of this route.
pub fn listing(bill: &Bill) -> UsageList {
    let data = bill.rows.iter().map(|(row, totals)| totals.shown(row)).collect();
    UsageList { object: List, data, unreadable: bill.unreadable.clone() }
}

impl Wanted {
    /// Returns the query that the caller may run: a tenant sees only its own usage.
    fn query(&self, caller: &Caller) -> Result<Query, ApiError> {
        let own = &caller.tenant.name;
        if let Some(other) = self.tenant.as_ref().filter(|name| !caller.admin && *name != own) {
            let message =
                format!("this key is not the admin's and sees the usage of `{own}` only, not of `{other}`");
            return Err(ApiError::admins_only().because(message).at("tenant"));
        }
        Ok(Query {
            tenant: if caller.admin { self.tenant.clone() } else { Some(own.clone()) },
            since: day("since", self.since.as_deref())?,
            until: day("until", self.until.as_deref())?,
        })
    }
}

fn day(name: &str, text: Option<&str>) -> Result<Option<Day>, ApiError> {
    text.map(str::parse)
        .transpose()
        .map_err(|error: String| ApiError::field(name, format!("`{name}`: {error}")))
}

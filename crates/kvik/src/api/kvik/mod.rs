//! kvik's own endpoints: the cache, kept prompts, usage.

pub(crate) mod cache;
pub(crate) mod explain;
pub(crate) mod prompts;
pub(crate) mod usage;

use axum::routing::{delete, get, post};

use super::routes::{Route, at};

/// The routes of this dialect.
pub(super) fn routes() -> Vec<Route> {
    vec![
        at(&["/v1/cache"], get(cache::list).delete(cache::clear)),
        at(&["/v1/cache/explain"], post(explain::route)),
        at(&["/v1/cache/evict"], post(cache::evict)),
        at(&["/v1/cache/pin"], post(cache::pin)),
        at(&["/v1/cache/pins"], get(cache::pins).delete(cache::unpin_all)),
        at(&["/v1/cache/pins/{id}"], delete(cache::unpin)),
        at(&["/v1/prompts"], get(prompts::list)),
        at(&["/v1/prompts/{name}"], get(prompts::get).put(prompts::put).delete(prompts::delete)),
        at(&["/v1/prompts/{name}/check"], post(prompts::check)),
        at(&["/v1/usage"], get(usage::route)),
    ]
}

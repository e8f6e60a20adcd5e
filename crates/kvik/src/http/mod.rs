//! HTTP: OpenAI's API, llama-server's beside it, health and metrics.
//!
//! Every route is the same three steps: read the body off the async threads (parse, check,
//! template, tokenize), submit to the engine, word the events. Never holds model or cache state.

mod app;
mod body;
mod cache_report;
mod cache_view;
mod chat;
mod chat_answer;
mod closing;
mod completions;
mod connections;
mod continuation;
mod diagnostics;
mod disk_metrics;
mod error;
mod exchange;
mod explain;
mod fields;
mod generation;
mod guard;
mod half_open;
mod json;
mod keep;
mod keys;
mod limits;
mod listen;
mod llama;
mod llama_answer;
mod loading;
mod messages;
mod metrics;
mod options;
mod origins;
mod prompt;
mod prompts;
mod readers;
mod room;
mod routes;
#[cfg(test)]
mod situations;
mod tab;
mod tenant_usage;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_bodies;
#[cfg(test)]
mod tests_connections;
#[cfg(test)]
mod tests_doors;
#[cfg(test)]
mod tests_kept;
#[cfg(test)]
mod tests_tenants;
#[cfg(test)]
mod tests_tools;
mod text_answer;
mod tools;
mod unsupported;
mod usage;

pub(crate) use app::{App, AppConfig};
pub(crate) use chat::conversation_prompt;
pub(crate) use keys::Keys;
pub(crate) use listen::{ConnectionLimits, Front, serve};
pub(crate) use loading::router as loading_router;
pub(crate) use origins::{AllowedHost, AllowedOrigin, Hosts, Senders};
pub(crate) use prompts::restore as restore_prompts;
pub(crate) use routes::router;
pub(crate) use tab::Clock;
pub(crate) use tenant_usage::listing as usage_listing;

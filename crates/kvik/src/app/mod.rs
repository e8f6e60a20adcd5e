//! The server without the wording of its APIs: admission of requests, their way to the engine, and the report
//! at the end of every answer. It knows no dialect; those are in [`crate::api`].

mod answer_memory;
pub(crate) mod body;
mod config;
pub(crate) mod conversations;
pub(crate) mod generation;
pub(crate) mod guard;
pub(crate) mod kept_answer;
pub(crate) mod kept_prefix;
pub(crate) mod keys;
pub(crate) mod life;
pub(crate) mod loading;
pub(crate) mod lora;
pub(crate) mod memory;
pub(crate) mod metrics;
pub(crate) mod node_ids;
pub(crate) mod prompt_log;
pub(crate) mod prompts;
pub(crate) mod rate_limits;
pub(crate) mod report;
pub(crate) mod requests;
pub(crate) mod responses;
pub(crate) mod seal;
pub(crate) mod server;
pub(crate) mod shelf;
pub(crate) mod slots;
pub(crate) mod spans;
pub(crate) mod state;
pub(crate) mod supervisor;
pub(crate) mod tally;
pub(crate) mod upkeep;
pub(crate) mod usage_account;
pub(crate) mod vectors;
pub(crate) mod watchdog;
pub(crate) mod wire;

pub(crate) use config::AppConfig;
pub(crate) use state::App;

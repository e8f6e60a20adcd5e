//! The server without the wording of its APIs: admission of requests, their way to the engine, and the report
//! at the end of every answer. It knows no dialect; those are in [`crate::api`].

mod answer_memory;
pub(crate) mod body;
mod cache_folders;
pub(crate) mod chat_text;
mod config;
pub(crate) mod conversations;
pub(crate) mod generation;
pub(crate) mod guard;
pub(crate) mod kept_answer;
pub(crate) mod kept_prefix;
pub mod keys;
pub(crate) mod life;
pub mod loading;
pub(crate) mod lora;
pub(crate) mod memory;
pub(crate) mod metrics;
pub(crate) mod next_turn;
pub(crate) mod node_ids;
pub(crate) mod prompt_log;
pub(crate) mod prompts;
pub(crate) mod rate_limits;
pub mod report;
pub(crate) mod requests;
pub(crate) mod responses;
pub(crate) mod running_answers;
pub(crate) mod seal;
pub mod server;
pub(crate) mod settled;
pub mod shelf;
pub(crate) mod slots;
pub mod spans;
pub(crate) mod state;
pub mod supervisor;
pub(crate) mod tally;
pub mod upkeep;
pub(crate) mod usage_account;
pub(crate) mod vectors;
pub mod watchdog;
pub(crate) mod wire;

pub use config::AppConfig;
pub use state::App;

//! From a model with its weights to a running engine.

use std::sync::Arc;

use kvik_cache::CacheConfig;
use kvik_engine::engine::{Attached, Engine, EngineConfig, StartError};
use kvik_engine::retain::repeat::RepeatPrompt;
use kvik_kernels::{KvLayout, Pool};
use kvik_model::Adapters;
use kvik_model::load::SamplingDefaults;

use crate::budget::KvBudget;
use crate::chat::TemplateVariables;
use crate::opened::{Embedder, OpenedModel};
use crate::placed::{RunnerError, RunnerRoom};
use crate::texts::Texts;

/// An open model.
pub struct Session {
    /// Computes its requests.
    pub engine: Engine,
    /// Encodes its prompts.
    pub texts: Arc<Texts>,
    /// Embeds and ranks.
    pub embedder: Embedder,
    /// Sampling of requests that set none.
    pub sampling: SamplingDefaults,
}

/// The parts that an engine is started with.
pub struct Start {
    /// Threads that compute.
    pub pool: Arc<Pool>,
    /// Formats of keys and values.
    pub layout: KvLayout,
    /// The cache, of the blocks of a budget.
    pub cache: CacheConfig,
    /// Settings, from [`OpenedModel::engine_config`].
    pub engine: EngineConfig,
    /// Adapters that requests may name.
    pub adapters: Adapters,
    /// Variables of the chat template where a chat sets none.
    pub variables: TemplateVariables,
    /// Tiers, draft model, listeners.
    pub attached: Attached,
}

/// Why a model cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// It does not get its memory.
    #[error(transparent)]
    Runner(#[from] RunnerError),
    /// Its engine refuses the settings.
    #[error(transparent)]
    Engine(#[from] StartError),
}

impl OpenedModel {
    /// The usual settings of an engine for this model, with the blocks of `budget` and a context of so many tokens.
    pub fn engine_config(&self, layout: &KvLayout, budget: &KvBudget, context: usize) -> EngineConfig {
        EngineConfig {
            block_bytes: budget.block_bytes,
            auxiliary: budget.auxiliary,
            repeat: RepeatPrompt::new(&self.tokenizer, self.template.as_ref()),
            ..EngineConfig::new(layout, self.model.blocks_digest(context), context)
        }
    }

    /// Starts its engine.
    ///
    /// # Errors
    /// If there is no memory for the blocks, or a setting cannot be used.
    pub fn start(self, start: Start) -> Result<Session, SessionError> {
        let Start { pool, layout, cache, engine: config, adapters, variables, attached } = start;
        let OpenedModel { model, tokenizer, template, embedder, sampling } = self;
        // The runner's buffers have the size of a step.
        Engine::check_config(&config)?;
        let context = config.context_tokens;
        let states = config.auxiliary.states_max(cache.blocks);
        let (blocks, step) = (cache.blocks, config.step_size());
        let room = RunnerRoom { pool, layout, blocks, context, adapters, states, step, resident: true };
        let engine = Engine::start_with(model.runner(room)?, &tokenizer, cache, config, attached)?;
        let texts = Texts { variables, ..Texts::new(tokenizer, template, context) };
        Ok(Session { engine, texts: Arc::new(texts), embedder, sampling })
    }
}

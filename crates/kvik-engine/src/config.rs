//! Settings of an engine.

use std::sync::Arc;

use kvik_cache::retain::{HeadImportance, ModelShape};
use kvik_cache::{AuxiliaryState, Namespaces};
use kvik_kernels::{KvLayout, KvValues};
use kvik_model::batch::StepSize;
use kvik_model::gates::Gates;

use crate::retain::repeat::RepeatPrompt;
use crate::retain::{kv_heads, tile_heads};
use crate::stats::{DraftSource, DraftSources};

/// Minimum number of rows for which a kernel reads the weights once: a step with this many rows takes hardly longer
/// than with two.
pub(crate) const ROWS_AT_A_TIME: usize = 4;
/// The background gets one row for this many foreground rows.
const BACKGROUND_PART: usize = 16;
/// Maximum number of additional row groups for the background, where they hardly cost time.
pub(crate) const BACKGROUND_GROUPS: usize = 3;

/// Sizes that suit most deployments.
pub mod usual {
    /// Prompt rows of a step while no stream decodes: enough for the matrix kernels' full speed.
    pub const PREFILL_ROWS: usize = 512;
    /// Maximum prompt rows of a step while streams decode: they delay each stream's next token.
    pub const PREFILL_ROWS_MIXED: usize = 192;
    /// Maximum number of waiting requests.
    pub const WAITING: usize = 256;
    /// Maximum of [`EngineConfig::parallel_max`](super::EngineConfig::parallel_max): each sequence has a row in a step.
    pub const PARALLEL_MAX: usize = 1024;
    /// Maximum rows of a step that drafts add.
    pub const DRAFT_ROWS: usize = 16;
    /// Maximum positions of one sequence that a step stores.
    pub const STEP_ROWS: usize = PREFILL_ROWS + PREFILL_ROWS_MIXED + DRAFT_ROWS;
    /// At the start, one part in this many of the RAM budget is filled with the most used prefixes of the previous run.
    pub const WARM_SHARE: usize = 2;
    /// Ghost entries of evicted blocks, which explain misses and inform the policies: 2 MiB.
    pub const GHOSTS: usize = 1 << 16;
}

/// Settings of an engine, without those of its cache.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineConfig {
    /// Maximum positions of a sequence.
    pub context_tokens: usize,
    /// Maximum sequences that run at the same time.
    pub parallel_max: usize,
    /// Maximum requests that wait.
    pub waiting_max: usize,
    /// Maximum choices of one request.
    pub choices_max: u32,
    /// Maximum prefill rows of a step without decode rows.
    pub prefill_rows_max: usize,
    /// Maximum prefill rows of a step with decode rows: bounds how long a stream stalls. Reduced to as little as a
    /// third if such a step takes long, or if requests wait for an admission slot.
    pub prefill_rows_mixed_max: usize,
    /// Maximum rows of a step that drafts add; 0 disables drafts.
    pub draft_rows_max: usize,
    /// The sources of drafts.
    pub draft_sources: DraftSources,
    /// Bytes of one KV block, for reports.
    pub block_bytes: usize,
    /// Digest of the model's weights and configuration.
    pub model_digest: [u8; 32],
    /// Name of the KV format, keys and values, as `q8/q4`.
    pub kv_format: String,
    /// KV heads of each layer.
    pub kv_heads: Vec<usize>,
    /// KV heads of each group of layers whose tiles are interchangeable.
    pub tile_heads: Vec<usize>,
    /// Auxiliary state that sequences hold in addition to blocks: empty if every layer stores keys and values of all
    /// positions.
    pub auxiliary: AuxiliaryState,
    /// Whether layers of the model have latent attention.
    pub latent: bool,
    /// The prompt that asks the model to repeat its input, for policies that observe that.
    pub repeat: RepeatPrompt,
    /// Measured importance of each KV head, if available.
    pub calibration: Option<HeadImportance>,
    /// Trained gates of each KV head, if available; they fit the layout.
    pub gates: Option<Arc<Gates>>,
}

impl EngineConfig {
    /// Settings for one sequence at a time of a model that stores KV in `layout`, in steps of the [`usual`] sizes, and
    /// without auxiliary state.
    pub fn new(layout: &KvLayout, model_digest: [u8; 32], context_tokens: usize) -> EngineConfig {
        EngineConfig {
            context_tokens,
            parallel_max: 1,
            waiting_max: usual::WAITING,
            choices_max: 1,
            prefill_rows_max: usual::PREFILL_ROWS,
            prefill_rows_mixed_max: usual::PREFILL_ROWS_MIXED,
            draft_rows_max: usual::DRAFT_ROWS,
            draft_sources: DraftSources::ALL,
            block_bytes: layout.block_bytes(),
            model_digest,
            kv_format: layout.format_name(),
            kv_heads: kv_heads(layout),
            tile_heads: tile_heads(layout),
            auxiliary: AuxiliaryState::default(),
            latent: layout.layers().iter().any(|layer| layer.values == KvValues::OfKeys),
            repeat: RepeatPrompt::default(),
            calibration: None,
            gates: None,
        }
    }

    /// The properties of its model on which it depends whether a retention can be used.
    pub fn model_shape(&self) -> ModelShape<'_> {
        ModelShape {
            kv_heads: &self.kv_heads,
            windows: !self.auxiliary.is_nothing(),
            latent: self.latent,
            heads: self.calibration.as_ref(),
            gated: self.gates.is_some(),
        }
    }

    /// Whether drafts from a source are enabled.
    pub(crate) fn drafts_from(&self, source: DraftSource) -> bool {
        self.draft_rows_max > 0 && self.draft_sources.has(source)
    }

    /// The namespaces of this engine's model and KV format: requests share blocks within one.
    pub fn namespaces(&self) -> Namespaces<'_> {
        Namespaces { model: self.model_digest, kv_format: &self.kv_format, adapter: None }
    }

    /// Maximum rows of a batch: a decode row for each sequence, prefill rows, draft rows, and the background's rows.
    pub fn batch_rows_max(&self) -> usize {
        let mixed = self.prefill_rows_mixed_max + self.draft_rows_max;
        let others = self.parallel_max + self.prefill_rows_max.max(mixed);
        others + background_rows_max(others)
    }

    /// The largest step: each sequence has an output at most, and each draft row one more.
    pub fn step_size(&self) -> StepSize {
        StepSize { rows: self.batch_rows_max(), outputs: self.parallel_max + self.draft_rows_max }
    }

    /// Maximum rows that drafts add to a step of `rows` rows, `decoding` of which decode. In a step with prompts they
    /// get what the background gets: a sixteenth, and the rows that fill the step's last group.
    pub(crate) fn draft_rows_beside(&self, rows: usize, decoding: usize) -> usize {
        match rows > decoding {
            true => self.draft_rows_max.min(background_rows(rows)),
            false => self.draft_rows_max,
        }
    }
}

/// Rows of the background in a step with `others` other rows, which is not 0, whatever they cost.
pub(crate) fn background_rows(others: usize) -> usize {
    let part = (others / BACKGROUND_PART).max(1);
    (others + part).next_multiple_of(ROWS_AT_A_TIME) - others
}

/// Maximum rows of the background in a step with at most `others` other rows.
pub(crate) fn background_rows_max(others: usize) -> usize {
    others / BACKGROUND_PART + ROWS_AT_A_TIME * (1 + BACKGROUND_GROUPS)
}

//! Settings of an engine.

use kvik_cache::retain::HeadImportance;
use kvik_cache::{Beside, Namespaces};
use kvik_kernels::{KvLayout, KvValues};

use crate::retain::repeat::RepeatPrompt;
use crate::stats::{DraftSource, DraftSources};

/// Rows for which a kernel reads the weights once, the fewest: a step takes hardly longer with as many as with two.
pub(crate) const ROWS_AT_A_TIME: usize = 4;
/// The background gets one row beside so many of others.
const BACKGROUND_PART: usize = 16;
/// Groups of rows that it gets besides where they hardly cost time, at most.
pub(crate) const BACKGROUND_GROUPS: usize = 3;

/// Sizes that are right for most.
pub mod usual {
    /// Prompt rows of a step while no stream decodes: enough for the matrix kernels' full speed.
    pub const PREFILL_ROWS: usize = 512;
    /// Prompt rows of a step while streams decode, at most: they delay each stream's next token.
    pub const PREFILL_ROWS_MIXED: usize = 192;
    /// Requests that wait.
    pub const WAITING: usize = 256;
    /// Rows of a step that drafts add.
    pub const DRAFT_ROWS: usize = 16;
    /// Positions of one sequence that a step stores, at most.
    pub const STEP_ROWS: usize = PREFILL_ROWS + PREFILL_ROWS_MIXED + DRAFT_ROWS;
    /// The start fills one part in this many of the RAM budget with what was used most before.
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
    /// Maximum prefill rows of a step with decode rows: bounds how long a stream stalls. Down to a third of them where
    /// such a step takes long, and where requests wait for a place.
    pub prefill_rows_mixed_max: usize,
    /// Maximum rows of a step that drafts add; 0 where nothing is drafted.
    pub draft_rows_max: usize,
    /// What drafts are made from.
    pub draft_sources: DraftSources,
    /// Bytes of one KV block, for reports.
    pub block_bytes: usize,
    /// Digest of the model's weights and configuration.
    pub model_digest: [u8; 32],
    /// Name of the KV format, keys and values, as `q8/q4`.
    pub kv_format: String,
    /// KV heads of each layer.
    pub kv_heads: Vec<usize>,
    /// What sequences hold beside blocks: nothing where every layer of the model keeps keys and values of all positions.
    pub beside: Beside,
    /// Whether layers of the model have latent attention.
    pub latent: bool,
    /// How the model is asked to repeat a prompt, for policies that observe that.
    pub repeat: RepeatPrompt,
    /// How much each KV head matters, where it was measured.
    pub calibration: Option<HeadImportance>,
}

impl EngineConfig {
    /// One sequence at a time of a model that stores KV in `layout`, in steps of the [`usual`] sizes, and nothing beside
    /// blocks.
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
            kv_heads: layout.layers().iter().map(|layer| layer.kv_heads).collect(),
            beside: Beside::default(),
            latent: layout.layers().iter().any(|layer| layer.values == KvValues::OfKeys),
            repeat: RepeatPrompt::default(),
            calibration: None,
        }
    }

    /// Whether anything is drafted from a source.
    pub(crate) fn drafts_from(&self, source: DraftSource) -> bool {
        self.draft_rows_max > 0 && self.draft_sources.has(source)
    }

    /// The namespaces of this engine's model and KV format: requests share blocks within one.
    pub fn namespaces(&self) -> Namespaces<'_> {
        Namespaces { model: self.model_digest, kv_format: &self.kv_format, adapter: None }
    }

    /// Maximum rows of a batch: a decode row for each sequence, prefill, drafts of those that decode beside it, and what
    /// the background gets beside them.
    pub fn batch_rows_max(&self) -> usize {
        let mixed = self.prefill_rows_mixed_max + self.draft_rows_max;
        let others = self.parallel_max + self.prefill_rows_max.max(mixed);
        others + background_rows_max(others)
    }

    /// Maximum rows that drafts add to a step of `rows` rows, `decoding` of which decode. Beside prompts of others they get
    /// what the background gets beside others: a sixteenth, and what fills the step's last group.
    pub(crate) fn draft_rows_beside(&self, rows: usize, decoding: usize) -> usize {
        match rows > decoding {
            true => self.draft_rows_max.min(background_rows(rows)),
            false => self.draft_rows_max,
        }
    }
}

/// Rows of the background beside so many of others, which are not none, whatever they cost.
pub(crate) fn background_rows(others: usize) -> usize {
    let part = (others / BACKGROUND_PART).max(1);
    (others + part).next_multiple_of(ROWS_AT_A_TIME) - others
}

/// The most of them beside at most so many of others.
pub(crate) fn background_rows_max(others: usize) -> usize {
    others / BACKGROUND_PART + ROWS_AT_A_TIME * (1 + BACKGROUND_GROUPS)
}

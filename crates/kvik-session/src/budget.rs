//! Memory for keys and values: how many blocks it holds, and how long a context.

use kvik_cache::{AuxiliaryState, CacheConfig, Policy};
use kvik_engine::config::usual::{GHOSTS, STEP_ROWS};
use kvik_engine::free_memory::default_kv_bytes;
use kvik_kernels::KvLayout;
use kvik_model::{ModelConfig, ModelRunner};

use crate::placed::Placed;

/// Pinned prompts take one part in this many of the budget where nothing else is asked, so that running requests always
/// have room.
const PINNED_SHARE: usize = 2;

/// Memory for keys and values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvBudget {
    /// Blocks of 16 positions.
    pub blocks: usize,
    /// Bytes of a block, without the part of layers with windows.
    pub block_bytes: usize,
    /// Bytes of a block on disk, with that part.
    pub stored_bytes: usize,
    /// Memory that sequences hold in addition to blocks.
    pub auxiliary: AuxiliaryState,
    /// Bytes of a block of the draft model, which has as many; 0 without one.
    pub draft_bytes: usize,
    /// Formats of keys and values, as `f16` or `q8/f16`.
    pub kv: String,
}

/// Why a budget is refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BudgetError {
    /// It holds no block.
    #[error("{kv_bytes} bytes of keys and values hold no block of this model, which takes {block_bytes}")]
    TooSmall {
        /// The budget.
        kv_bytes: u64,
        /// Bytes of a block.
        block_bytes: usize,
    },
    /// It does not hold the context that was asked for.
    #[error(
        "a context of {context_tokens} tokens takes {needed_bytes} bytes of keys and values, and the budget of {kv_bytes} \
         holds {fits_tokens}"
    )]
    ContextTooLarge {
        /// Tokens asked for.
        context_tokens: usize,
        /// Tokens that fit.
        fits_tokens: usize,
        /// Bytes of the context.
        needed_bytes: u64,
        /// Bytes of the budget.
        kv_bytes: u64,
    },
}

impl KvBudget {
    /// The blocks of `asked` bytes; or of the default share of the free memory, but no more than the model's device takes. A
    /// draft model adds `draft_bytes` to each.
    ///
    /// # Errors
    /// If that is no block.
    pub fn new(
        model: &Placed,
        layout: &KvLayout,
        asked: Option<u64>,
        draft_bytes: usize,
    ) -> Result<KvBudget, BudgetError> {
        let kv_bytes = asked.unwrap_or_else(|| default_kv_bytes(model.budgets()));
        let budget = KvBudget::of(model.auxiliary(layout), layout, kv_bytes, draft_bytes)?;
        let blocks =
            if asked.is_some() { budget.blocks } else { budget.blocks.min(model.blocks_max(layout)) };
        Ok(KvBudget { blocks, ..budget })
    }

    /// The blocks of `kv_bytes` for a model on the processor, which need not be loaded. A draft model adds
    /// `draft_bytes` to each.
    ///
    /// # Errors
    /// If that is no block.
    pub fn on_processor(
        config: &ModelConfig,
        layout: &KvLayout,
        kv_bytes: u64,
        draft_bytes: usize,
    ) -> Result<KvBudget, BudgetError> {
        let auxiliary = ModelRunner::auxiliary(config, layout, STEP_ROWS);
        KvBudget::of(auxiliary, layout, kv_bytes, draft_bytes)
    }

    fn of(
        auxiliary: AuxiliaryState,
        layout: &KvLayout,
        kv_bytes: u64,
        draft_bytes: usize,
    ) -> Result<KvBudget, BudgetError> {
        let block_bytes = auxiliary.block_bytes;
        let both_bytes = block_bytes + draft_bytes;
        let blocks = usize::try_from(kv_bytes / both_bytes as u64).unwrap_or(usize::MAX);
        if blocks == 0 {
            return Err(BudgetError::TooSmall { kv_bytes, block_bytes: both_bytes });
        }
        let (stored_bytes, kv) = (layout.block_bytes(), layout.format_name());
        Ok(KvBudget { blocks, block_bytes, stored_bytes, auxiliary, draft_bytes, kv })
    }

    /// Bytes of all blocks.
    pub fn bytes(&self) -> u64 {
        self.blocks as u64 * self.block_bytes as u64
    }

    /// Tokens of one sequence that fit.
    pub fn tokens(&self) -> usize {
        self.auxiliary.positions_that_fit(self.blocks)
    }

    /// The cache of these blocks. `pinned` bytes of them may be pinned, half of all where that is not said.
    pub fn cache(&self, policy: Policy, pinned: Option<u64>) -> CacheConfig {
        let pinned = pinned.map(|bytes| bytes / self.block_bytes as u64);
        let pinned = pinned.map(|blocks| usize::try_from(blocks).unwrap_or(usize::MAX).min(self.blocks));
        let pinned_max = pinned.unwrap_or(self.blocks / PINNED_SHARE);
        CacheConfig { blocks: self.blocks, policy, ghosts: GHOSTS, pinned_max }
    }

    /// The context that was asked for, if it fits; else the model's own, or as much of it as fits. Where requests drop
    /// positions unless they say otherwise, a context need not fit whole: prompts are thinned while they are read.
    ///
    /// # Errors
    /// If what was asked for does not fit.
    pub fn context(&self, asked: Option<usize>, own: usize, is_thinned: bool) -> Result<usize, BudgetError> {
        let fits_tokens = self.tokens();
        match asked {
            Some(context_tokens) if context_tokens > fits_tokens && !is_thinned => {
                let needed_bytes = self.auxiliary.needed(context_tokens) as u64 * self.block_bytes as u64;
                let kv_bytes = self.bytes();
                Err(BudgetError::ContextTooLarge { context_tokens, fits_tokens, needed_bytes, kv_bytes })
            }
            Some(asked) => {
                if asked > own {
                    tracing::warn!("the model was trained for {own} tokens; answers beyond may be poor");
                }
                Ok(asked)
            }
            None if is_thinned => Ok(own),
            None => Ok(own.min(fits_tokens)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(blocks: usize) -> KvBudget {
        let auxiliary = AuxiliaryState::default();
        let block_bytes = 48 << 10;
        let (stored_bytes, kv) = (block_bytes, "f16".to_owned());
        KvBudget { blocks, block_bytes, stored_bytes, auxiliary, draft_bytes: 0, kv }
    }

    #[test]
    fn the_context_fits_the_budget() {
        let check = |asked, own, blocks, expect| {
            assert_eq!(budget(blocks).context(asked, own, false), Ok(expect));
        };
        check(None, 2048, 1000, 2048);
        check(None, 40_960, 1000, 16_000);
        check(Some(512), 2048, 1000, 512);
        check(Some(4096), 2048, 1000, 4096);
    }

    #[test]
    fn a_context_that_is_thinned_on_the_way_need_not_fit() {
        let check = |asked, expect| assert_eq!(budget(1000).context(asked, 40_960, true), Ok(expect));
        check(None, 40_960);
        check(Some(32_768), 32_768);
    }

    #[test]
    fn a_context_that_does_not_fit_is_refused_with_the_numbers() {
        let refused = budget(1000).context(Some(32_768), 40_960, false);
        let (kv_bytes, needed_bytes) = (1000 * (48 << 10), 2048 * (48 << 10));
        let expect = BudgetError::ContextTooLarge {
            context_tokens: 32_768,
            fits_tokens: 16_000,
            needed_bytes,
            kv_bytes,
        };
        assert_eq!(refused, Err(expect));
    }

    #[test]
    fn half_of_the_budget_may_be_pinned_by_default() {
        let check = |asked: Option<u64>, blocks| {
            assert_eq!(budget(1000).cache(Policy::default(), asked).pinned_max, blocks, "{asked:?}");
        };
        check(None, 500);
        check(Some(1), 0);
        check(Some(300 * (48 << 10)), 300);
        check(Some(u64::MAX), 1000);
    }
}

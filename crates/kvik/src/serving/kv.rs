//! From flags to what a block stores: the formats of every layer of a model.

use anyhow::Context;
use kvik_engine::model::{ModelConfig, ModelRunner};
use kvik_kernels::KvLayout;

use crate::settings::kv::KvArgs;

/// What the layers of a model store.
pub(crate) fn layout(args: &KvArgs, config: &ModelConfig) -> anyhow::Result<KvLayout> {
    ModelRunner::layout(config, &args.map()?).context(args.flag())
}

//! From flags to the formats of keys and values, layer by layer.

use anyhow::Context;
use kvik_engine::eval::choice::{Choice, choose};
use kvik_kernels::KvLayout;
use kvik_model::{KvMap, Model, ModelConfig, ModelRunner};

use crate::{
    measured::{Measured, MeasuredSensitivity},
    settings::kv::{KvArgs, KvChoice},
};

/// The KV layout of a model.
pub fn layout(args: &KvArgs, model: &Model) -> anyhow::Result<KvLayout> {
    layout_of(args, model.config(), || model.digest())
}

/// The KV layout of a model that need not be loaded; `digest` is called only if the formats depend on measurements.
pub fn layout_of(
    args: &KvArgs,
    config: &ModelConfig,
    digest: impl FnOnce() -> [u8; 32],
) -> anyhow::Result<KvLayout> {
    match args.choice()? {
        KvChoice::Map(map) => of_map(args, config, &map),
        KvChoice::Auto(bits) => {
            auto(config, &digest(), bits, &Measured::open()?).with_context(|| format!("--kv auto:{bits}"))
        }
    }
}

/// The KV layout of a model, unless its formats depend on measurements.
pub fn stated_layout(args: &KvArgs, config: &ModelConfig) -> anyhow::Result<Option<KvLayout>> {
    match args.choice()? {
        KvChoice::Map(map) => of_map(args, config, &map).map(Some),
        KvChoice::Auto(_) => Ok(None),
    }
}

fn of_map(args: &KvArgs, config: &ModelConfig, map: &KvMap) -> anyhow::Result<KvLayout> {
    ModelRunner::layout(config, map).context(args.flag())
}

/// The layout of least measured loss.
fn auto(config: &ModelConfig, model: &[u8; 32], bits: f64, measured: &Measured) -> anyhow::Result<KvLayout> {
    let kept: Option<MeasuredSensitivity> = measured.load(model);
    let sensitivity = kept.and_then(|kept| kept.sensitivity()).context(
        "what formats cost this model was not measured yet; `kvik eval --sensitivity` with the same model and \
         --weights measures it, once",
    )?;
    let Choice { map, expected } = choose(config, &sensitivity, bits)?;
    tracing::info!(
        "keys and values are stored as {map}; the losses measured for its parts add up to {expected:.2e} nats"
    );
    Ok(ModelRunner::layout(config, &map)?)
}

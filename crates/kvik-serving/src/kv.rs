//! From flags to the formats of keys and values, layer by layer.

use anyhow::Context;
use kvik_engine::eval::choice::{Choice, choose};
use kvik_kernels::{KvFormat, KvFormats, KvLayout};
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

/// The largest bias, by magnitude, that keys in fewer than 8 bits leave room beside. The layers of Qwen2.5-Coder-0.5B
/// whose keys lose by far most in them are those with biases of 34 to 211; all others have less than 22.
const BIAS_MAX: f32 = 30.0;

/// Warns if formats that were not chosen by measurement store keys with large biases, `[layers]`, in fewer than 8 bits.
pub(crate) fn warn_of_biases(args: &KvArgs, biases: &[f32]) -> anyhow::Result<()> {
    let KvChoice::Map(map) = args.choice()? else { return Ok(()) };
    if let Some(better) = beside_biases(&map.layers(biases.len())?, biases) {
        let largest = biases.iter().fold(0.0, |largest: f32, bias| bias.max(largest));
        tracing::warn!(
            "keys of this model have biases of up to {largest:.0}, beside which fewer than 8 bits hold little else; \
             --kv {better} gives their layers 8 bits"
        );
    }
    Ok(())
}

/// The map in which layers with large biases have keys of 8 bits, unless these layers have as many already.
fn beside_biases(formats: &[KvFormats], biases: &[f32]) -> Option<KvMap> {
    let with_bits = |(formats, bias): (&KvFormats, &f32)| match formats.k {
        KvFormat::Q6 | KvFormat::Q5 | KvFormat::Q4 | KvFormat::Q3 if *bias > BIAS_MAX => {
            KvFormats { k: KvFormat::Q8, ..*formats }
        }
        _ => *formats,
    };
    let better: Vec<KvFormats> = formats.iter().zip(biases).map(with_bits).collect();
    (better != formats).then(|| KvMap::by_layer(better))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn formats(map: &str, layers: usize) -> Vec<KvFormats> {
        map.parse::<KvMap>().unwrap().layers(layers).unwrap()
    }

    #[test]
    fn layers_with_large_biases_keep_eight_bits_for_keys() {
        let biases = [145.0, 158.0, 21.0, 0.0, 34.5];
        let better = |map: &str| beside_biases(&formats(map, 5), &biases).map(|map| map.to_string());
        for format in ["f16", "q8/q4", "q8/q3"] {
            assert_eq!(better(format), None);
        }
        assert_eq!(better("q5/q4").unwrap(), "0-1:q8/q4,2-3:q5/q4,4:q8/q4");
        assert_eq!(better("0-1:f16,2-4:q4").unwrap(), "0-1:f16,2-3:q4,4:q8/q4");
        assert_eq!(better("0-1:f16,2-3:q3,4:q8"), None);
        assert_eq!(beside_biases(&formats("q3", 2), &[0.0, 12.0]), None);
    }
}

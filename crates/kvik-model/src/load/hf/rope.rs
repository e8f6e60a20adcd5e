//! The RoPE settings of a model in `config.json`.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{ConfigError, HfConfig};
use crate::RopeScaling;
use crate::metadata::{Key, WINDOWED_PART, WINDOWED_THETA};

#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct HfRope {
    rope_type: Option<String>,
    /// The name of `rope_type` in older files; some have both.
    #[serde(rename = "type")]
    older_type: Option<String>,
    pub(super) rope_theta: Option<f32>,
    factor: Option<f32>,
    low_freq_factor: Option<f32>,
    high_freq_factor: Option<f32>,
    original_max_position_embeddings: Option<usize>,
    beta_fast: Option<f32>,
    beta_slow: Option<f32>,
    attention_factor: Option<f32>,
    truncate: Option<bool>,
    long_factor: Option<Vec<f32>>,
    short_factor: Option<Vec<f32>>,
    pub(super) partial_rotary_factor: Option<f32>,
    /// Newer files of Gemma: the settings of layers that see all positions, and those of windowed layers.
    full_attention: Option<Box<HfRope>>,
    sliding_attention: Option<Box<HfRope>>,
    #[serde(flatten)]
    pub(super) others: Map<String, Value>,
}

/// The RoPE type in which only a part of the dimensions rotates.
const PROPORTIONAL: &str = "proportional";

/// Settings beside the scaling, which another scaling does not replace.
const BESIDE_SCALING: [&str; 2] = ["llama_4_scaling_beta", "mrope_section"];

impl HfRope {
    fn kind(&self) -> &str {
        self.rope_type.as_deref().or(self.older_type.as_deref()).unwrap_or("default")
    }

    /// The fraction of each head that rotates, unless the RoPE type uses it differently.
    pub(super) fn part(&self) -> Option<f32> {
        self.partial_rotary_factor.filter(|_| self.kind() != PROPORTIONAL)
    }

    /// An optional number.
    fn number(&self, key: &str) -> Result<Option<f32>, ConfigError> {
        match self.others.get(key).filter(|value| !value.is_null()) {
            None => Ok(None),
            Some(value) => {
                let number = value.as_f64().ok_or_else(|| ConfigError::new(key, value, "a number"))?;
                Ok(Some(number as f32))
            }
        }
    }

    /// Whether these parameters say that the rotation is scaled, or how.
    fn scales(&self) -> bool {
        self.rope_type.is_some() || self.older_type.is_some() || self.factor.is_some()
    }

    /// These parameters without their scaling.
    fn unscaled(mut self) -> HfRope {
        self.others.retain(|key, _| BESIDE_SCALING.contains(&key.as_str()));
        HfRope {
            rope_theta: self.rope_theta,
            partial_rotary_factor: self.part(),
            others: self.others,
            ..HfRope::default()
        }
    }

    /// These parameters, of which others replace those that they have too.
    fn updated_by(self, new: HfRope) -> HfRope {
        let mut others = self.others;
        others.extend(new.others.into_iter().filter(|(_, value)| !value.is_null()));
        HfRope {
            rope_type: new.rope_type.or(new.older_type).or(self.rope_type).or(self.older_type),
            rope_theta: new.rope_theta.or(self.rope_theta),
            factor: new.factor.or(self.factor),
            low_freq_factor: new.low_freq_factor.or(self.low_freq_factor),
            high_freq_factor: new.high_freq_factor.or(self.high_freq_factor),
            original_max_position_embeddings: new
                .original_max_position_embeddings
                .or(self.original_max_position_embeddings),
            beta_fast: new.beta_fast.or(self.beta_fast),
            beta_slow: new.beta_slow.or(self.beta_slow),
            attention_factor: new.attention_factor.or(self.attention_factor),
            truncate: new.truncate.or(self.truncate),
            long_factor: new.long_factor.or(self.long_factor),
            short_factor: new.short_factor.or(self.short_factor),
            partial_rotary_factor: new.partial_rotary_factor.or(self.partial_rotary_factor),
            others,
            ..HfRope::default()
        }
    }

    /// The RoPE parameters, and those of windowed layers if they have their own, under the names of older files.
    fn of_kinds_of_layers(self) -> (HfRope, Map<String, Value>) {
        let mut windowed = Map::new();
        if let Some(rope) = &self.sliding_attention {
            let mut add = |key: Key, value: Option<f32>| {
                windowed.extend(value.map(|value| (key.hf[key.hf.len() - 1].to_owned(), value.into())));
            };
            add(WINDOWED_THETA, rope.rope_theta);
            add(WINDOWED_PART, rope.part());
        }
        (self.full_attention.clone().map_or(self, |full| *full), windowed)
    }
}

/// The RoPE parameters, and those of windowed layers if they have their own, under the names of older files. A scaling
/// that was added to the parameters of a newer file counts, as in transformers, for layers without a window: it updates
/// their parameters if they have their own, and otherwise takes the place of the scaling among those of all layers.
pub(super) fn of_kinds_of_layers(
    parameters: Option<HfRope>,
    scaling: Option<HfRope>,
) -> (HfRope, Map<String, Value>) {
    match (parameters, scaling) {
        (Some(parameters), Some(scaling)) => {
            let is_update = parameters.full_attention.is_some();
            let (rope, windowed) = parameters.of_kinds_of_layers();
            let scaling = scaling.of_kinds_of_layers().0;
            let rope = if scaling.scales() && !is_update { rope.unscaled() } else { rope };
            (rope.updated_by(scaling), windowed)
        }
        (parameters, scaling) => parameters.or(scaling).unwrap_or_default().of_kinds_of_layers(),
    }
}

/// The scaling of the rotation of heads with `head_dim` dimensions.
pub(super) fn scaling(rope: &HfRope, hf: &HfConfig, head_dim: usize) -> Result<RopeScaling, ConfigError> {
    let context = hf.max_position_embeddings;
    let original_context = rope.original_max_position_embeddings.unwrap_or(context);
    match rope.kind() {
        "default" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor: needed("factor", rope.factor)? }),
        "llama3" => Ok(RopeScaling::Llama3 {
            factor: needed("factor", rope.factor)?,
            low_freq_factor: needed("low_freq_factor", rope.low_freq_factor)?,
            high_freq_factor: needed("high_freq_factor", rope.high_freq_factor)?,
            original_context,
        }),
        "yarn" => Ok(RopeScaling::Yarn {
            factor: needed("factor", rope.factor)?,
            original_context,
            beta_fast: rope.beta_fast.unwrap_or(32.0),
            beta_slow: rope.beta_slow.unwrap_or(1.0),
            attention_factor: match rope.attention_factor {
                None => yarn_factor(rope)?,
                given => given,
            },
            truncate: rope.truncate.unwrap_or(true),
        }),
        "longrope" => long(rope, hf),
        PROPORTIONAL => proportional(rope, head_dim),
        other => {
            let expected = "default, linear, llama3, yarn, longrope or proportional";
            Err(ConfigError::new("rope_type", other, expected))
        }
    }
}

/// The factor on cosines and sines: the scale by `mscale` over that by `mscale_all_dim`; `None` without the latter.
fn yarn_factor(rope: &HfRope) -> Result<Option<f32>, ConfigError> {
    let all = rope.number("mscale_all_dim")?.filter(|&all| all != 0.0);
    let (Some(all), Some(factor)) = (all, rope.factor.filter(|&factor| factor > 1.0)) else {
        return Ok(None);
    };
    let scale = |multiplier: f32| 0.1 * multiplier * factor.ln() + 1.0;
    Ok(Some(scale(rope.number("mscale")?.unwrap_or(1.0)) / scale(all)))
}

/// Proportional scaling: only a part of the pairs of a head rotates, with frequencies as if all did.
fn proportional(rope: &HfRope, head_dim: usize) -> Result<RopeScaling, ConfigError> {
    if let Some(factor) = rope.factor.filter(|&factor| factor != 1.0) {
        return Err(ConfigError::new("rope factor", factor, "1 where rope_type is proportional"));
    }
    let part = rope.partial_rotary_factor.unwrap_or(1.0);
    Ok(RopeScaling::Proportional { pairs: (head_dim as f32 * part / 2.0) as usize })
}

/// LongRoPE (arXiv 2402.13753): divisors for prompts within the original context, and for longer ones.
fn long(rope: &HfRope, hf: &HfConfig) -> Result<RopeScaling, ConfigError> {
    let divisors = |field: &str, list: &Option<Vec<f32>>| {
        list.clone()
            .ok_or_else(|| ConfigError::new(&format!("longrope {field}"), "missing", "an array of numbers"))
    };
    // Phi-3 stores the original context outside of the scaling settings.
    let outside = hf.settings.get("original_max_position_embeddings").and_then(Value::as_u64);
    let original = rope.original_max_position_embeddings.or(outside.map(|original| original as usize));
    let original = original.unwrap_or(hf.max_position_embeddings).max(2) as f32;
    let stretch = rope.factor.unwrap_or(hf.max_position_embeddings as f32 / original).max(1.0);
    Ok(RopeScaling::Long {
        factor: 1.0,
        long: divisors("long_factor", &rope.long_factor)?,
        short: divisors("short_factor", &rope.short_factor)?,
        original_context: original as usize,
        attention_factor: rope.attention_factor.unwrap_or((1.0 + stretch.ln() / original.ln()).sqrt()),
    })
}

fn needed(field: &str, value: Option<f32>) -> Result<f32, ConfigError> {
    value.ok_or_else(|| ConfigError::new(&format!("rope {field}"), "missing", "a number"))
}

/// The context of a model: with YaRN the file may still declare the trained context.
pub(super) fn context(declared: usize, scaling: &RopeScaling) -> usize {
    match *scaling {
        RopeScaling::Yarn { factor, original_context, .. } => {
            declared.max((original_context as f32 * factor) as usize)
        }
        _ => declared,
    }
}

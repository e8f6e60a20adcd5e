//! LFM2: short convolutions in most layers, attention with norms of heads in the others.

use super::metadata::{Key, Metadata};
use super::{Architecture, LayerShape, Presence, QkNorm, recurrence, windows};
use crate::model::recurrent::{RecurrentShape, ShortConvShape};
use crate::model::{ConfigError, Extras, ModelConfig, RopeStyle};

const WIDTH: Key = Key::gguf("shortconv.l_cache");

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "lfm2",
    hf_names: &[],
    hf_modules: &[],
    gguf_rope: RopeStyle::HalfSplit,
    extras,
    layer,
};

pub(super) fn extras(metadata: &dyn Metadata, config: &ModelConfig) -> Result<Extras, ConfigError> {
    let layers = recurrence::without_kv(metadata, config)?;
    let mut window = windows::read(metadata, config, 0)?;
    if let Some(window) = &mut window {
        // All layers with attention have it.
        window.layers = vec![true; config.layers];
    }
    let recurrence = recurrence::convolution(metadata, layers, WIDTH)?;
    Ok(Extras { window, recurrence: Some(recurrence), ..Extras::default() })
}

pub(super) fn layer(config: &ModelConfig, index: usize) -> LayerShape {
    let shape = LayerShape { qk_norm: QkNorm::Head(Presence::Required), ..LayerShape::plain(config, index) };
    recurrence::layer(config, index, shape, |recurrence| {
        RecurrentShape::ShortConv(ShortConvShape { channels: config.d_model, width: recurrence.conv_width })
    })
}

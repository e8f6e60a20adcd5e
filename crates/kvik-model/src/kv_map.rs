//! The formats in which each layer stores its keys and values.
//!
//! ```text
//! f16                       all layers
//! q8/q4                     all layers: keys, values
//! 0-3:f16,4-27:q8/q4        layers from 0, every one of them once
//! ```
//!
//! A file may have a run on each line, and comments from `#` to the end of a line.

use std::fmt;
use std::str::FromStr;

use kvik_kernels::{KvFormats, UnknownKvFormat, in_runs};

/// Maximum number of layers of a model, and so of a map.
pub const LAYERS_MAX: usize = 1024;

/// Formats of keys and values by layer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct KvMap(Formats);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Formats {
    /// Equal in all layers, however many there are.
    Same(KvFormats),
    /// `[layers]`
    ByLayer(Vec<KvFormats>),
}

impl KvMap {
    /// A map for models of as many layers as `layers` has.
    pub fn by_layer(layers: Vec<KvFormats>) -> KvMap {
        KvMap(Formats::ByLayer(layers))
    }

    /// Reads a file: runs separated by commas or ends of lines, with comments.
    pub fn from_lines(text: &str) -> Result<KvMap, KvMapError> {
        let code =
            |line: &str| line.split('#').next().unwrap_or_default().trim().trim_end_matches(',').to_owned();
        let lines: Vec<String> = text.lines().map(code).filter(|line| !line.is_empty()).collect();
        lines.join(",").parse()
    }

    /// The formats of each of the `layers` layers of a model.
    ///
    /// # Errors
    /// When the map is for another number of layers.
    pub fn layers(&self, layers: usize) -> Result<Vec<KvFormats>, KvMapError> {
        match &self.0 {
            Formats::Same(formats) => Ok(vec![*formats; layers]),
            Formats::ByLayer(map) if map.len() == layers => Ok(map.clone()),
            Formats::ByLayer(map) => Err(KvMapError::OtherLayers { map: map.len(), model: layers }),
        }
    }

    /// The formats, if the map gives one for all layers without naming them.
    pub fn same(&self) -> Option<KvFormats> {
        match self.0 {
            Formats::Same(formats) => Some(formats),
            Formats::ByLayer(_) => None,
        }
    }
}

impl<T: Into<KvFormats>> From<T> for KvMap {
    fn from(formats: T) -> KvMap {
        KvMap(Formats::Same(formats.into()))
    }
}

impl fmt::Display for KvMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Formats::Same(formats) => formats.fmt(f),
            Formats::ByLayer(layers) => f.pad(&in_runs(layers)),
        }
    }
}

/// Why a text is not a valid map, or a map does not fit a model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KvMapError {
    /// A format does not exist.
    #[error(transparent)]
    Format(#[from] UnknownKvFormat),
    /// The text names no layer.
    #[error(
        "a KV map is a format for all layers, such as f16 or q8/q4, or names layers, as 0-3:f16,4-27:q8/q4"
    )]
    Empty,
    /// A run has no format.
    #[error(
        "the run {run:?} of the KV map names no format; write layers, a colon and formats, as 4-27:q8/q4"
    )]
    NoFormat {
        /// The run.
        run: String,
    },
    /// The layers of a run are not numbers, or missing.
    #[error("{layers:?} in the KV map is no range of layers; write 4 or 4-27, with layers counted from 0")]
    NoLayers {
        /// The text before the colon.
        layers: String,
    },
    /// More layers than a model may have.
    #[error("layer {layer} of the KV map does not exist: models have at most {LAYERS_MAX} layers")]
    LayerTooHigh {
        /// The layer.
        layer: usize,
    },
    /// A layer has two formats.
    #[error("layer {layer} stands in the KV map twice")]
    Overlap {
        /// The layer.
        layer: usize,
    },
    /// A layer between others has no format.
    #[error("layer {layer} is missing in the KV map; every layer needs a format")]
    Gap {
        /// The layer.
        layer: usize,
    },
    /// The map is for another model.
    #[error(
        "the KV map is for other layers: it names {}, and the model has {}",
        range(*map),
        range(*model)
    )]
    OtherLayers {
        /// Layers of the map.
        map: usize,
        /// Layers of the model.
        model: usize,
    },
}

/// `layers 0-27`
fn range(layers: usize) -> String {
    if layers == 1 { "layer 0".to_owned() } else { format!("layers 0-{}", layers.saturating_sub(1)) }
}

impl FromStr for KvMap {
    type Err = KvMapError;

    fn from_str(text: &str) -> Result<KvMap, KvMapError> {
        match text.trim() {
            "" => Err(KvMapError::Empty),
            formats if !formats.contains([':', ',']) => Ok(formats.parse::<KvFormats>()?.into()),
            runs => by_runs(runs),
        }
    }
}

fn by_runs(text: &str) -> Result<KvMap, KvMapError> {
    let mut layers: Vec<Option<KvFormats>> = Vec::new();
    for run in text.split(',').map(str::trim) {
        let (numbers, formats) =
            run.split_once(':').ok_or_else(|| KvMapError::NoFormat { run: run.to_owned() })?;
        let (first, last) = numbers_of(numbers.trim())?;
        let formats = formats.trim().parse()?;
        layers.resize(layers.len().max(last + 1), None);
        for (layer, place) in layers.iter_mut().enumerate().take(last + 1).skip(first) {
            if place.replace(formats).is_some() {
                return Err(KvMapError::Overlap { layer });
            }
        }
    }
    let layer = |(layer, formats): (usize, Option<KvFormats>)| formats.ok_or(KvMapError::Gap { layer });
    Ok(KvMap::by_layer(layers.into_iter().enumerate().map(layer).collect::<Result<_, _>>()?))
}

/// The first and the last layer of `4` or `4-27`.
fn numbers_of(text: &str) -> Result<(usize, usize), KvMapError> {
    let wrong = || KvMapError::NoLayers { layers: text.to_owned() };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let number = |digits: &str| match digits.bytes().all(|byte| byte.is_ascii_digit()) {
        true => digits.parse::<usize>().map_err(|_| wrong()),
        false => Err(wrong()),
    };
    match (number(first)?, number(last)?) {
        (first, last) if first > last => Err(wrong()),
        (_, layer) if layer >= LAYERS_MAX => Err(KvMapError::LayerTooHigh { layer }),
        layers => Ok(layers),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test may fail where it stands
mod tests {
    use kvik_kernels::KvFormat;
    use proptest::prelude::*;

    use super::*;

    fn any_formats() -> impl Strategy<Value = KvFormats> {
        let format = || prop::sample::select(KvFormat::ALL.to_vec());
        (format(), format()).prop_map(|(k, v)| KvFormats { k, v })
    }

    fn any_map() -> impl Strategy<Value = KvMap> {
        let by_layer = prop::collection::vec(any_formats(), 1..40).prop_map(KvMap::by_layer);
        prop_oneof![any_formats().prop_map(KvMap::from), by_layer]
    }

    proptest! {
        #[test]
        fn a_map_is_read_back_from_its_text(map in any_map()) {
            prop_assert_eq!(map.to_string().parse(), Ok(map.clone()));
            let lines = format!("# layers\n{}  # the rest\n\n", map.to_string().replace(',', ",\n\t"));
            prop_assert_eq!(KvMap::from_lines(&lines), Ok(map));
        }

        #[test]
        fn runs_may_stand_in_any_order(layers in prop::collection::vec(any_formats(), 2..40), seed: u64) {
            let mut runs: Vec<String> = layers.iter().enumerate().map(|(i, formats)| format!("{i}:{formats}")).collect();
            runs.rotate_left(seed as usize % layers.len());
            prop_assert_eq!(runs.join(" , ").parse(), Ok(KvMap::by_layer(layers)));
        }

        #[test]
        fn no_text_panics(text in "[0-9:,/# \n-]{0,20}|\\PC{0,40}|[0-9]{1,2}(-[0-9]{1,2})?:(q8|f16)(,[0-9]{1,3}:q4){0,3}") {
            if let Ok(map) = KvMap::from_lines(&text) {
                prop_assert_eq!(map.to_string().parse(), Ok(map));
            }
        }
    }

    #[test]
    fn errors_name_the_layer() {
        let check = |text: &str, expect: KvMapError| assert_eq!(text.parse::<KvMap>(), Err(expect), "{text}");
        let format = |text: &str| KvMapError::Format(text.parse::<KvFormat>().unwrap_err());
        check(" ", KvMapError::Empty);
        check("q7", format("q7"));
        check("0-3:f16,4:q7/q8", format("q7"));
        check("0-3:f16,5-6:q8", KvMapError::Gap { layer: 4 });
        check("1-3:f16", KvMapError::Gap { layer: 0 });
        check("0-3:f16,2-6:q8", KvMapError::Overlap { layer: 2 });
        check("0-3:f16,", KvMapError::NoFormat { run: String::new() });
        check("0-3:f16,q8", KvMapError::NoFormat { run: "q8".to_owned() });
        for layers in ["", "3-1", "a", "-", "1-", "-1", "+1", "0-3-4", "99999999999999999999"] {
            check(&format!("{layers}:f16"), KvMapError::NoLayers { layers: layers.to_owned() });
        }
        check("0-4294967295:f16", KvMapError::LayerTooHigh { layer: 4_294_967_295 });
        assert_eq!(KvMap::from_lines("# nothing\n\n"), Err(KvMapError::Empty));
    }

    #[test]
    fn a_map_for_other_layers_is_refused() {
        let map: KvMap = "0-3:f16,4-5:q8".parse().unwrap();
        assert_eq!(map.layers(6).unwrap()[4], KvFormat::Q8.into());
        let error = map.layers(28).unwrap_err().to_string();
        assert_eq!(
            error,
            "the KV map is for other layers: it names layers 0-5, and the model has layers 0-27"
        );
        assert_eq!("q8".parse::<KvMap>().unwrap().layers(28).unwrap(), [KvFormat::Q8.into(); 28]);
    }
}

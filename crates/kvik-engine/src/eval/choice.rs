//! The map with the minimum loss for an average number of bits.
//!
//! The losses of layers are assumed to add up. Each layer's keys and each layer's values take one of the formats: a
//! multiple-choice knapsack (Sinha and Zoltners, "The Multiple-Choice Knapsack Problem", 1979), solved exactly by
//! dynamic programming over the Pareto-optimal combinations of bytes and loss. Tiles are whole cache lines, so the sums
//! of bytes, and with them the combinations, are few.

use kvik_kernels::{KvFormat, KvFormats, KvLayer};
use kvik_model::{KvMap, ModelConfig, ModelRunner};

use super::FORMATS;
use super::sensitivity::Sensitivity;

/// A map chosen for a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// The formats by layer.
    pub map: KvMap,
    /// The sum of the losses measured for the layers, in nats.
    pub expected: f64,
}

/// Why no map can be chosen.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ChoiceError {
    /// The coarsest format takes more bits.
    #[error(
        "{asked} bits a number are too few: {coarsest}, the coarsest format, takes {least} in this model; ask for more"
    )]
    TooFewBits {
        /// Bits asked for.
        asked: f64,
        /// Its name.
        coarsest: KvFormat,
        /// Bits that it takes.
        least: f64,
    },
    /// The measurement is of a model with other layers.
    #[error("the sensitivity was measured for {measured} layers, and the model has {model}")]
    OtherLayers {
        /// Layers measured.
        measured: usize,
        /// Layers of the model.
        model: usize,
    },
}

/// Among the maps of [`FORMATS`] with at most `bits` bits a number on average, scales and padding included, the one
/// with the minimum total loss. Ties go to the smallest map, then to the one more precise in the first layers.
///
/// # Errors
/// If `bits` are too few for any map, or `sensitivity` is of another model.
pub fn choose(config: &ModelConfig, sensitivity: &Sensitivity, bits: f64) -> Result<Choice, ChoiceError> {
    let measured = sensitivity.keys.len();
    if (measured, sensitivity.values.len()) != (config.layers, config.layers) {
        return Err(ChoiceError::OtherLayers { measured, model: config.layers });
    }
    let layouts = FORMATS.map(|format| ModelRunner::uniform_layout(config, format));
    let numbers: usize = layouts[0].layers().iter().flat_map(KvLayer::part_numbers).sum();
    let stored: Vec<usize> = config.kv_layers().collect();
    let options = |layer: usize, part: usize, losses: &[f64; FORMATS.len()]| -> Vec<Stored> {
        // A layer that reads what another one stores takes no bytes in any format.
        let Ok(layer) = stored.binary_search(&layer) else { return vec![Stored { bytes: 0, loss: 0.0 }] };
        let bytes = layouts.iter().map(|layout| layout.layers()[layer].part_bytes()[part]);
        bytes.zip(losses).map(|(bytes, &loss)| Stored { bytes, loss }).collect()
    };
    let parts: Vec<Vec<Stored>> = (0..config.layers)
        .flat_map(|layer| {
            [options(layer, 0, &sensitivity.keys[layer]), options(layer, 1, &sensitivity.values[layer])]
        })
        .collect();
    // A tolerance of less than a bit in a million numbers: 5.0 must allow a map of exactly 5 bits.
    let bytes_max = ((bits + 1e-9) * numbers as f64 / 8.0) as usize;
    let Some((chosen, expected)) = least_loss(&parts, bytes_max) else {
        let [.., coarsest] = layouts;
        let least = coarsest.bits_per_number();
        return Err(ChoiceError::TooFewBits { asked: bits, coarsest: FORMATS[FORMATS.len() - 1], least });
    };
    let formats = |kv: &[usize]| KvFormats { k: FORMATS[kv[0]], v: FORMATS[kv[1]] };
    Ok(Choice { map: KvMap::by_layer(chosen.chunks_exact(2).map(formats).collect()), expected })
}

/// An option for storing a part of a layer.
#[derive(Debug, Clone, Copy)]
struct Stored {
    bytes: usize,
    loss: f64,
}

/// A combination of options for the first parts.
#[derive(Debug, Clone, Copy)]
struct Combination {
    bytes: usize,
    loss: f64,
    /// The option of the last of these parts.
    option: usize,
    /// The index of the combination of the previous parts.
    before: usize,
}

/// The options, one for each of `parts`, with the minimum total loss among those of at most `bytes_max` bytes; and that
/// loss.
fn least_loss(parts: &[Vec<Stored>], bytes_max: usize) -> Option<(Vec<usize>, f64)> {
    let mut stages: Vec<Vec<Combination>> =
        vec![vec![Combination { bytes: 0, loss: 0.0, option: 0, before: 0 }]];
    for options in parts {
        let last = stages.last().expect("there is a first stage");
        // Of equal combinations the first one stays: that with more bytes in the earlier parts.
        let extended = last.iter().enumerate().rev().flat_map(|(before, combination)| {
            options.iter().enumerate().map(move |(option, stored)| Combination {
                bytes: combination.bytes + stored.bytes,
                loss: combination.loss + stored.loss,
                option,
                before,
            })
        });
        stages.push(unbeaten(extended.filter(|combination| combination.bytes <= bytes_max).collect()));
    }
    // Sums of bytes ascend and losses descend, so the last combination has the least loss.
    let last = stages.last().expect("there is a first stage");
    let (mut at, loss) = (last.len().checked_sub(1)?, last.last()?.loss);
    let mut chosen = Vec::new();
    for stage in stages[1..].iter().rev() {
        chosen.push(stage[at].option);
        at = stage[at].before;
    }
    chosen.reverse();
    Some((chosen, loss))
}

/// The Pareto-optimal combinations, by their bytes: no other one is smaller and at most as lossy, or as small and less
/// lossy. Of equal ones the first is retained.
fn unbeaten(mut combinations: Vec<Combination>) -> Vec<Combination> {
    combinations.sort_by(|a, b| a.bytes.cmp(&b.bytes).then(a.loss.total_cmp(&b.loss)));
    let mut least = f64::INFINITY;
    combinations.retain(|combination| {
        let is_unbeaten = combination.loss < least;
        least = least.min(combination.loss);
        is_unbeaten
    });
    combinations
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The best combination by exhaustive search.
    fn brute_force(parts: &[Vec<Stored>], bytes_max: usize) -> Option<(f64, usize)> {
        let mut all = vec![(0.0, 0)];
        for options in parts {
            let extended = |&(loss, bytes): &(f64, usize)| {
                options.iter().map(move |stored| (loss + stored.loss, bytes + stored.bytes))
            };
            all = all.iter().flat_map(extended).collect();
        }
        let fits = all.into_iter().filter(|(_, bytes)| *bytes <= bytes_max);
        fits.min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)))
    }

    fn any_parts() -> impl Strategy<Value = Vec<Vec<Stored>>> {
        // Small numbers make ties; sums of halves are exact.
        let stored =
            (0..12_usize, 0..9_u32).prop_map(|(bytes, loss)| Stored { bytes, loss: f64::from(loss) / 2.0 });
        prop::collection::vec(prop::collection::vec(stored, 1..5), 1..7)
    }

    proptest! {
        #[test]
        fn no_combination_is_better(parts in any_parts(), bytes_max in 0..50_usize) {
            let found = least_loss(&parts, bytes_max).map(|(options, loss)| {
                let stored = || options.iter().zip(&parts).map(|(&option, part)| part[option]);
                assert_eq!(stored().map(|stored| stored.loss).sum::<f64>(), loss);
                (loss, stored().map(|stored| stored.bytes).sum())
            });
            prop_assert_eq!(found, brute_force(&parts, bytes_max));
        }
    }

    #[test]
    fn equal_combinations_are_precise_in_the_first_parts() {
        let part = vec![Stored { bytes: 2, loss: 1.0 }, Stored { bytes: 1, loss: 3.0 }];
        let check = |bytes, expect: &[usize]| {
            assert_eq!(
                least_loss(&vec![part.clone(); 3], bytes).map(|(options, _)| options).as_deref(),
                Some(expect)
            );
        };
        check(3, &[1, 1, 1]);
        check(4, &[0, 1, 1]);
        check(5, &[0, 0, 1]);
        check(99, &[0, 0, 0]);
        assert_eq!(least_loss(&[part], 0), None);
    }
}

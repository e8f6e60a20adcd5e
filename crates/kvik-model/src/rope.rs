//! Frequencies of rotary position embedding, with all scaling methods.
//!
//! The frequency of pair `i` is `theta^(-2i/dims)`; scaling changes the frequencies once, at load,
//! so that positions are rotated the same way whether the model was stretched or not.
//! They are rounded to f32 in the end, because that is what models were trained with.

use std::f64::consts::PI;
use std::sync::{Arc, Mutex, PoisonError};

use kvik_kernels::RopeTable;

use super::{RopeConfig, RopeScaling};

/// A rotation of a model, with one table that all runners of the model share.
pub(super) struct Rotation {
    /// The rotation for contexts within the original one, and the length of that, if longer contexts have a separate
    /// one.
    short: Option<(usize, Turning)>,
    turning: Turning,
}

/// Frequencies and their shared table.
struct Turning {
    frequencies: RopeFrequencies,
    table: Mutex<Option<Arc<RopeTable>>>,
}

impl Rotation {
    /// The rotation of `rope`; `divisors` is the tensor `rope_freqs.weight`, shape `[dims / 2]`.
    pub(super) fn new(rope: &RopeConfig, divisors: Option<&[f32]>) -> Rotation {
        let turning = |divisors: Option<&[f32]>| Turning {
            frequencies: frequencies(rope, divisors),
            table: Mutex::default(),
        };
        match &rope.scaling {
            RopeScaling::Long { long, short, original_context, .. } => Rotation {
                short: Some((*original_context, turning(Some(short)))),
                turning: turning(Some(long)),
            },
            _ => Rotation { short: None, turning: turning(divisors) },
        }
    }

    /// The table for contexts of up to `positions`, with at least that many positions.
    pub(super) fn table(&self, positions: usize) -> Arc<RopeTable> {
        match &self.short {
            Some((original, short)) if positions <= *original => short.table(positions),
            _ => self.turning.table(positions),
        }
    }
}

impl Turning {
    /// The table, with at least `positions` positions. Computed at the first call, and again only if more positions are
    /// needed: a context may be much shorter than the trained one.
    fn table(&self, positions: usize) -> Arc<RopeTable> {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        match &*table {
            Some(table) if table.positions() >= positions => table.clone(),
            _ => table.insert(Arc::new(self.frequencies.table(positions))).clone(),
        }
    }
}

/// Frequencies of every pair, and the factor on cos and sin.
#[derive(Debug, Clone, PartialEq)]
struct RopeFrequencies {
    /// Radians per position, shape `[dims / 2]`.
    radians: Vec<f32>,
    /// Multiplies cos and sin (YaRN's attention factor; 1 otherwise).
    attention_factor: f32,
}

impl RopeFrequencies {
    fn table(&self, positions: usize) -> RopeTable {
        RopeTable::new(&self.radians, positions, self.attention_factor)
    }
}

fn frequencies(rope: &RopeConfig, divisors: Option<&[f32]>) -> RopeFrequencies {
    let base = |pair: usize| f64::from(rope.theta).powf(-2.0 * pair as f64 / rope.dims as f64);
    let radians = (0..rope.dims / 2)
        .map(|pair| {
            let divisor = divisors.map_or(1.0, |d| f64::from(d[pair]));
            scaled(rope, pair, base(pair) / divisor) as f32
        })
        .collect();
    RopeFrequencies { radians, attention_factor: attention_factor(&rope.scaling) as f32 }
}

fn scaled(rope: &RopeConfig, pair: usize, frequency: f64) -> f64 {
    match rope.scaling {
        RopeScaling::None => frequency,
        RopeScaling::Proportional { pairs } => {
            if pair < pairs {
                frequency
            } else {
                0.0
            }
        }
        RopeScaling::Linear { factor } | RopeScaling::Long { factor, .. } => frequency / f64::from(factor),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
            let turns = original_context as f64 * frequency / (2.0 * PI);
            let (low, high) = (f64::from(low_freq_factor), f64::from(high_freq_factor));
            let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
            mix(frequency, f64::from(factor), kept)
        }
        RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow, truncate, .. } => {
            let pair_that_turns = |turns: f32| {
                let wavelengths = original_context as f64 / (f64::from(turns) * 2.0 * PI);
                rope.dims as f64 * wavelengths.ln() / (2.0 * f64::from(rope.theta).ln())
            };
            let (first, last) = (pair_that_turns(beta_fast), pair_that_turns(beta_slow));
            let (first, last) = if truncate { (first.floor(), last.ceil()) } else { (first, last) };
            let (first, last) = (first.max(0.0), last.min(rope.dims as f64 - 1.0));
            let kept = 1.0 - ((pair as f64 - first) / (last - first).max(0.001)).clamp(0.0, 1.0);
            mix(frequency, f64::from(factor), kept)
        }
    }
}

/// `kept` of 1 leaves the frequency, 0 divides it by `factor`.
fn mix(frequency: f64, factor: f64, kept: f64) -> f64 {
    frequency * kept + frequency / factor * (1.0 - kept)
}

fn attention_factor(scaling: &RopeScaling) -> f64 {
    match *scaling {
        RopeScaling::Yarn { attention_factor: Some(given), .. } => f64::from(given),
        RopeScaling::Yarn { factor, .. } if factor > 1.0 => 0.1 * f64::from(factor).ln() + 1.0,
        RopeScaling::Long { attention_factor, .. } => f64::from(attention_factor),
        _ => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RopeStyle;

    fn rope(scaling: RopeScaling) -> RopeConfig {
        RopeConfig { theta: 10_000.0, dims: 64, style: RopeStyle::HalfSplit, scaling }
    }

    #[test]
    fn unscaled_frequencies_fall_from_one() {
        let plain = frequencies(&rope(RopeScaling::None), None);
        assert_eq!(plain.radians[0], 1.0);
        assert!((plain.radians[16] - 0.01).abs() < 1e-9);
        assert_eq!(plain.attention_factor, 1.0);
    }

    #[test]
    fn linear_and_divisors_divide() {
        let plain = frequencies(&rope(RopeScaling::None), None).radians;
        let linear = frequencies(&rope(RopeScaling::Linear { factor: 4.0 }), None).radians;
        let divided = frequencies(&rope(RopeScaling::None), Some(&[4.0; 32])).radians;
        assert_eq!(linear, divided);
        assert!(plain.iter().zip(&linear).all(|(p, l)| (p / l - 4.0).abs() < 1e-5));
    }

    #[test]
    fn pairs_beyond_a_part_do_not_rotate() {
        let plain = frequencies(&rope(RopeScaling::None), None).radians;
        let part = frequencies(&rope(RopeScaling::Proportional { pairs: 8 }), None).radians;
        assert_eq!((&part[..8], &part[8..]), (&plain[..8], &[0.0; 24][..]));
    }

    #[test]
    fn llama3_and_yarn_keep_fast_pairs_and_stretch_slow_ones() {
        let plain = frequencies(&rope(RopeScaling::None), None).radians;
        let llama3 = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context: 8192,
        };
        let yarn = RopeScaling::Yarn {
            factor: 8.0,
            original_context: 8192,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor: None,
            truncate: true,
        };
        for scaling in [llama3, yarn] {
            let stretched = frequencies(&rope(scaling), None).radians;
            assert_eq!(stretched[0], plain[0]);
            assert!((plain[31] / stretched[31] - 8.0).abs() < 1e-5);
            assert!(stretched.iter().zip(&plain).all(|(s, p)| *s <= p * (1.0 + 1e-6) && *s >= p / 8.0001));
        }
    }

    /// The formula of transformers, with the settings of gpt-oss: its transition begins at pair 8.09 and ends at 17.40.
    #[test]
    fn yarn_rounds_its_transition_unless_the_model_was_trained_without() {
        let found = |truncate: bool| {
            let scaling = RopeScaling::Yarn {
                factor: 32.0,
                original_context: 4096,
                beta_fast: 32.0,
                beta_slow: 1.0,
                attention_factor: None,
                truncate,
            };
            frequencies(&RopeConfig { theta: 150_000.0, ..rope(scaling) }, None).radians
        };
        let check = |truncate: bool, first: f64, last: f64| {
            for (pair, found) in found(truncate).into_iter().enumerate() {
                let plain = 150_000f64.powf(-(pair as f64) / 32.0);
                let stretched = ((pair as f64 - first) / (last - first)).clamp(0.0, 1.0);
                let expect = plain * (1.0 - stretched) + plain / 32.0 * stretched;
                assert!(
                    (f64::from(found) / expect - 1.0).abs() < 1e-6,
                    "{truncate} {pair}: {found} {expect}"
                );
            }
        };
        let pair = |turns: f64| 64.0 * (4096.0 / (turns * 2.0 * PI)).ln() / (2.0 * 150_000f64.ln());
        check(true, 8.0, 18.0);
        check(false, pair(32.0), pair(1.0));
        assert!((pair(32.0) - 8.09).abs() < 0.01 && (pair(1.0) - 17.40).abs() < 0.01);
        assert_ne!(found(true), found(false));
    }

    #[test]
    fn a_table_is_made_again_only_for_more_positions() {
        let rotation = Rotation::new(&rope(RopeScaling::None), None);
        let first = rotation.table(100);
        assert_eq!((first.dims(), first.positions()), (64, 100));
        assert!([0, 7, 100].iter().all(|&fewer| Arc::ptr_eq(&first, &rotation.table(fewer))));
        let longer = rotation.table(101);
        assert_eq!(longer.positions(), 101);
        assert!(Arc::ptr_eq(&longer, &rotation.table(100)));
    }

    #[test]
    fn long_rope_has_other_frequencies_within_the_original_context() {
        let long = RopeScaling::Long {
            factor: 1.0,
            long: vec![4.0; 32],
            short: vec![2.0; 32],
            original_context: 100,
            attention_factor: 1.0,
        };
        let rotation = Rotation::new(&rope(long), None);
        let plain = frequencies(&rope(RopeScaling::None), None).radians;
        let mean = |context: usize| rotation.table(context).mean_rotation(1..2);
        let angle = |divisor: f32| [(plain[0] / divisor).cos(), (plain[0] / divisor).sin()];
        assert_eq!((mean(1)[0], mean(100)[0]), (angle(2.0), angle(2.0)));
        assert_eq!((mean(101)[0], mean(5000)[0]), (angle(4.0), angle(4.0)));
    }

    #[test]
    fn yarn_scales_attention() {
        let yarn = |given| RopeScaling::Yarn {
            factor: 4.0,
            original_context: 32768,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor: given,
            truncate: true,
        };
        assert!((frequencies(&rope(yarn(None)), None).attention_factor - 1.138_629).abs() < 1e-5);
        assert_eq!(frequencies(&rope(yarn(Some(1.0))), None).attention_factor, 1.0);
    }
}

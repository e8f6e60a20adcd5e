//! Loss against bits: the choice of `--kv auto` compared with uniform formats, and with formats that have random layers
//! in f16.

use std::{cmp::Ordering, io};

use kvik_engine::engine::perplexity::Windows;
use kvik_engine::eval::{
    FORMATS,
    baseline::with_layers_at_random,
    choice::{ChoiceError, choose},
    divergence::{Divergence, measure},
    sensitivity::Sensitivity,
};
use kvik_kernels::{KvFormat, KvLayout};
use kvik_model::{KvMap, ModelConfig, ModelRunner};
use serde_json::{Value, json};

/// Random draws of layers for each point.
const SEEDS: u64 = 5;
/// The bits at which the choice is judged.
const BITS: f64 = 5.0;
/// The base formats of the random baselines.
const BASES: [KvFormat; 2] = [KvFormat::Q4, KvFormat::Q3];

/// Layouts to compare, and their divergence.
pub(super) struct Curve {
    config: ModelConfig,
    points: Vec<Point>,
    uniform: Vec<Entry>,
}

/// The layouts that fit a number of bits.
struct Point {
    /// Maximum bits a number.
    bits: f64,
    auto: Entry,
    /// Random baselines by base format: `SEEDS` draws of as many layers in f16 as fit.
    random: Vec<(KvFormat, Vec<Entry>)>,
}

/// A layout with its divergence, once measured.
struct Entry {
    layout: KvLayout,
    divergence: Option<Divergence>,
}

impl Entry {
    fn new(config: &ModelConfig, map: &KvMap) -> Entry {
        let layout = ModelRunner::layout(config, map).expect("the map was made for the model");
        Entry { layout, divergence: None }
    }

    fn bits(&self) -> f64 {
        self.layout.bits_per_number()
    }

    fn kl(&self) -> f64 {
        self.divergence.as_ref().map_or(f64::NAN, Divergence::mean)
    }

    fn summary(&self) -> Value {
        let by_distance = self.divergence.as_ref().map(Divergence::by_distance);
        json!({"kv": self.layout.format_name(), "bits": self.bits(), "kl": self.kl(), "by_distance": by_distance})
    }
}

impl Curve {
    /// The layouts of all points.
    pub(super) fn plan(config: &ModelConfig, sensitivity: &Sensitivity) -> Result<Curve, ChoiceError> {
        let point = |bits: f64| {
            let auto = Entry::new(config, &choose(config, sensitivity, bits)?.map);
            let random = BASES.iter().filter_map(|&base| Some((base, at_random(config, base, bits)?)));
            Ok(Point { bits, auto, random: random.collect() })
        };
        let points = bits_of_points(config).into_iter().map(point).collect::<Result<_, _>>()?;
        let uniform = KvFormat::ALL.iter().map(|&format| Entry::new(config, &format.into())).collect();
        Ok(Curve { config: config.clone(), points, uniform })
    }

    /// Number of times that measuring computes each window.
    pub(super) fn computations(&self) -> usize {
        1 + self.layouts().len()
    }

    /// Measures all layouts on `windows`; `progress` is called [`Curve::computations`] times a window.
    pub(super) fn measure(
        mut self,
        runner: &mut ModelRunner,
        windows: &Windows,
        progress: &mut dyn FnMut(),
    ) -> io::Result<Curve> {
        let layouts = self.layouts();
        let found = measure(runner, windows, &layouts, progress)?;
        let known = |entry: &mut Entry| {
            let measured = layouts.iter().zip(&found).find(|(layout, _)| **layout == entry.layout);
            entry.divergence = measured.map(|(_, divergence)| divergence.clone());
        };
        self.uniform.iter_mut().for_each(known);
        for Point { auto, random, .. } in &mut self.points {
            known(auto);
            random.iter_mut().flat_map(|(_, entries)| entries).for_each(known);
        }
        Ok(self)
    }

    /// All layouts, without duplicates.
    fn layouts(&self) -> Vec<KvLayout> {
        let of_point = |point: &Point| -> Vec<KvLayout> {
            let random = point.random.iter().flat_map(|(_, entries)| entries);
            random.chain([&point.auto]).map(|entry| entry.layout.clone()).collect()
        };
        let uniform = self.uniform.iter().map(|entry| entry.layout.clone());
        let mut layouts: Vec<KvLayout> = Vec::new();
        for layout in uniform.chain(self.points.iter().flat_map(of_point)) {
            if !layouts.contains(&layout) {
                layouts.push(layout);
            }
        }
        layouts
    }

    /// The curve as text.
    pub(super) fn table(&self) -> String {
        let mut text = format!(
            "loss against bits, on windows that nothing was chosen on (mean KL divergence in nats)\n\n\
             {:>6}  {:>9}  {:>9}",
            "bits", "auto", "uniform"
        );
        BASES
            .iter()
            .for_each(|base| text += &format!("  {:>30}", format!("{base}, layers at random in f16")));
        for point in &self.points {
            text += &format!(
                "\n{:>6.2}  {:>9.2e}  {:>9}",
                point.bits,
                point.auto.kl(),
                self.uniform_at(point.bits)
            );
            BASES.iter().for_each(|base| text += &format!("  {:>30}", point.random_with(*base)));
        }
        text += "\n\nuniform";
        for entry in &self.uniform {
            text += &format!("   {} {:.2e}", entry.layout.format_name(), entry.kl());
        }
        text += "\n";
        self.points.iter().for_each(|point| {
            text += &format!("auto:{:.2}  {}\n", point.bits, point.auto.layout.format_name())
        });
        text + &self.verdict()
    }

    /// The smallest loss of a uniform format of exactly these bits.
    fn uniform_at(&self, bits: f64) -> String {
        let same = self.uniform.iter().filter(|entry| (entry.bits() - bits).abs() < 1e-6);
        let least = same.map(Entry::kl).min_by(f64::total_cmp);
        least.map_or("-".to_owned(), |kl| format!("{kl:.2e}"))
    }

    /// Whether the choice beats the baselines, at 5 bits and at all points.
    fn verdict(&self) -> String {
        let mut text = String::new();
        let [.., least] =
            FORMATS.map(|format| ModelRunner::uniform_layout(&self.config, format).bits_per_number());
        match self.points.iter().find(|point| point.bits == BITS) {
            Some(point) => text += &point.verdict(),
            None => {
                text += &format!(
                    "\nauto:{BITS:.1} is not possible: heads of {} take at least {least} bits a number; \
                     at equal bits from there on:\n",
                    self.config.head_dim
                );
                self.points.iter().for_each(|point| text += &point.verdict());
            }
        }
        let beaten = self.points.iter().filter(|point| point.beats_random()).count();
        text + &format!(
            "auto loses at most as much as the mean of random layers at {beaten} of {} points\n",
            self.points.len()
        )
    }

    /// The curve as JSON.
    pub(super) fn summary(&self) -> Value {
        let entries = |entries: &[Entry]| entries.iter().map(Entry::summary).collect::<Vec<_>>();
        let random =
            |(base, random): &(KvFormat, Vec<Entry>)| json!({"base": base.name(), "draws": entries(random)});
        let point = |point: &Point| {
            let random: Vec<Value> = point.random.iter().map(random).collect();
            json!({"bits": point.bits, "auto": point.auto.summary(), "random": random})
        };
        json!({
            "points": self.points.iter().map(point).collect::<Vec<_>>(),
            "uniform": entries(&self.uniform),
        })
    }
}

impl Point {
    /// Mean and smallest loss of the random layers over `base`, and their bits.
    fn random_with(&self, base: KvFormat) -> String {
        match self.random.iter().find(|(other, _)| *other == base) {
            Some((_, entries)) => {
                let (mean, least) = mean_and_least(entries);
                format!("{mean:.2e}, best {least:.2e} ({:.2})", entries[0].bits())
            }
            None => "-".to_owned(),
        }
    }

    /// The smallest of the mean losses of random layers.
    fn random_mean(&self) -> f64 {
        self.random.iter().map(|(_, entries)| mean_and_least(entries).0).fold(f64::INFINITY, f64::min)
    }

    fn beats_random(&self) -> bool {
        self.auto.kl() <= self.random_mean()
    }

    fn verdict(&self) -> String {
        let ratio = self.random_mean() / self.auto.kl();
        let word = match self.auto.kl().total_cmp(&self.random_mean()) {
            Ordering::Less => "beats",
            Ordering::Equal => "is no better than",
            Ordering::Greater => "does not beat",
        };
        format!(
            "auto:{:.2} ({:.2} bits) {word} layers at random within the same bits: {:.2e} to {:.2e} nats, {ratio:.2} to 1\n",
            self.bits,
            self.auto.bits(),
            self.auto.kl(),
            self.random_mean()
        )
    }
}

fn mean_and_least(entries: &[Entry]) -> (f64, f64) {
    let sum: f64 = entries.iter().map(Entry::kl).sum();
    (sum / entries.len() as f64, entries.iter().map(Entry::kl).fold(f64::INFINITY, f64::min))
}

/// `base` with as many random layers in f16 as fit; `None` if `base` alone does not fit.
fn at_random(config: &ModelConfig, base: KvFormat, bits: f64) -> Option<Vec<Entry>> {
    let draw =
        |exact: usize, seed: u64| Entry::new(config, &with_layers_at_random(config, base, exact, seed));
    let fits = |exact: &usize| draw(*exact, 0).bits() <= bits + 1e-9;
    let exact = (0..=config.layers).take_while(fits).last()?;
    let mut entries: Vec<Entry> = Vec::new();
    for entry in (0..SEEDS).map(|seed| draw(exact, seed)) {
        // The same layers drawn twice count once.
        if !entries.iter().any(|other| other.layout == entry.layout) {
            entries.push(entry);
        }
    }
    Some(entries)
}

/// Five bits, those of uniform formats and between the coarsest, and those of q4 with one to five sixths of the
/// layers in f16; only those that the coarsest format fits. Ascending.
fn bits_of_points(config: &ModelConfig) -> Vec<f64> {
    let uniform = FORMATS.map(|format| ModelRunner::uniform_layout(config, format).bits_per_number());
    let [_, q8, q6, q5, q4, q3] = uniform;
    let with_exact = |sixths: usize| {
        let exact = (config.layers * sixths).div_ceil(6);
        Entry::new(config, &with_layers_at_random(config, KvFormat::Q4, exact, 0)).bits()
    };
    let mut bits = vec![BITS, q3, (q3 + q4) / 2.0, q4, (q4 + q5) / 2.0, q5, q6, q8];
    bits.extend((1..=5).map(with_exact));
    bits.retain(|bits| *bits >= q3);
    bits.sort_by(f64::total_cmp);
    bits.dedup_by(|a, b| (*a - *b).abs() < 1e-9);
    bits
}

#[cfg(test)]
#[cfg(feature = "embedded-model")]
mod tests {
    use super::*;
    use kvik_serving::settings::model::ModelArgs;

    /// A curve of the embedded model's shape with heads of another length, and losses that differ by layer.
    fn plan(head_dim: usize) -> Curve {
        let config = ModelConfig { head_dim, ..ModelArgs::embedded().load().unwrap().config };
        let losses = |layer: usize| [0.0, 0.1, 0.3, 0.6, 1.0, 2.0].map(|loss| loss * (1 + layer % 4) as f64);
        let layers: Vec<_> = (0..config.layers).map(losses).collect();
        let sensitivity = Sensitivity { positions: 1, keys: layers.clone(), values: layers };
        Curve::plan(&config, &sensitivity).unwrap()
    }

    #[test]
    fn everything_at_a_point_fits_its_bits_and_one_more_layer_would_not() {
        for head_dim in [8, 64, 128] {
            let curve = plan(head_dim);
            let of = |format| ModelRunner::uniform_layout(&curve.config, format).bits_per_number();
            assert!(curve.points.iter().all(|point| point.bits >= of(KvFormat::Q3)));
            assert_eq!(curve.points.iter().any(|point| point.bits == BITS), head_dim > 8);
            for Point { bits, auto, random } in &curve.points {
                assert!(auto.bits() <= bits + 1e-6);
                for (base, entries) in random {
                    let layer = (of(KvFormat::F16) - of(*base)) / curve.config.layers as f64;
                    let room = bits - entries[0].bits();
                    assert!((-1e-6..layer).contains(&room), "{bits} {base}: {room}");
                    assert!(entries.iter().all(|entry| (entry.bits() - entries[0].bits()).abs() < 1e-9));
                }
            }
        }
    }

    #[test]
    fn a_layout_is_computed_once() {
        let layouts = plan(64).layouts();
        for (i, layout) in layouts.iter().enumerate() {
            assert!(!layouts[..i].contains(layout), "{}", layout.format_name());
        }
        assert!(KvFormat::ALL.len() < layouts.len());
    }

    /// The verdict if every choice loses `auto` nats, and all random layers `random`.
    fn verdict(head_dim: usize, [auto, random]: [f64; 2]) -> String {
        let divergence = |nats| {
            let mut divergence = Divergence::default();
            divergence.add(0, nats);
            Some(divergence)
        };
        let mut curve = plan(head_dim);
        for point in &mut curve.points {
            point.auto.divergence = divergence(auto);
            let entries = point.random.iter_mut().flat_map(|(_, entries)| entries);
            entries.for_each(|entry| entry.divergence = divergence(random));
        }
        curve.verdict()
    }

    #[test]
    fn the_verdict_compares_at_five_bits_or_says_how_many_heads_need() {
        let check = |losses, expect: &str| {
            let text = verdict(64, losses);
            assert!(text.starts_with("auto:5.00 (") && text.contains(expect), "{text}");
        };
        check([1.0, 2.0], "bits) beats layers at random");
        check([1.0, 1.0], "bits) is no better than layers at random");
        check([2.0, 1.0], "bits) does not beat layers at random");
        let text = verdict(8, [1.0, 2.0]);
        assert!(text.contains("auto:5.0 is not possible: heads of 8 take at least 5.5 bits"), "{text}");
        assert!(text.contains("auto:5.50 (5.50 bits) beats"), "{text}");
    }
}

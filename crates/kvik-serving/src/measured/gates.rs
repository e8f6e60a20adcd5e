//! The gates of a model's KV heads, as needed by the policy `gated`.

use kvik_kernels::KvLayout;
use kvik_model::gates::{Gates, HeadGate};
use serde::{Deserialize, Serialize};

use super::Measurement;

/// Fewest positions from which gates are trained: several for each weight.
pub const GATE_POSITIONS_MIN: usize = 1000;

/// [`Gates`] in a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeasuredGates {
    /// `[layers][kv_heads]`
    layers: Vec<Vec<MeasuredGate>>,
    /// Positions from which they were trained.
    positions: usize,
    /// Unix time, seconds.
    date: u64,
    /// The command that trained them.
    command: String,
}

/// [`HeadGate`] in a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct MeasuredGate {
    weights: Vec<f32>,
    bias: f32,
}

impl Measurement for MeasuredGates {
    const KIND: &'static str = "gates";
    const VERSION: u32 = 1;

    fn check(&self) -> anyhow::Result<()> {
        let MeasuredGates { positions, .. } = self;
        anyhow::ensure!(
            *positions >= GATE_POSITIONS_MIN,
            "gates were trained from {positions} positions, fewer than {GATE_POSITIONS_MIN}; run \
             `kvik eval --calibrate` with more --cases or a longer --text"
        );
        Ok(())
    }
}

impl MeasuredGates {
    /// The gates as trained from `positions` positions.
    pub fn new(gates: &Gates, positions: usize, date: u64, command: String) -> MeasuredGates {
        let kept = |gate: &HeadGate| MeasuredGate { weights: gate.weights.clone(), bias: gate.bias };
        let layers = gates.layers.iter().map(|heads| heads.iter().map(kept).collect());
        MeasuredGates { layers: layers.collect(), positions, date, command }
    }

    /// The gates; `None` if they do not fit the keys and values of a layout, or contain invalid weights.
    pub fn gates(&self, layout: &KvLayout) -> Option<Gates> {
        let gate = |gate: &MeasuredGate| HeadGate { weights: gate.weights.clone(), bias: gate.bias };
        let layers = self.layers.iter().map(|heads| heads.iter().map(gate).collect());
        Some(Gates { layers: layers.collect() }).filter(|gates| gates.fits(layout))
    }
}

#[cfg(test)]
mod tests {
    use kvik_kernels::{KvFormat, KvLayer};
    use kvik_model::gates;

    use super::*;

    fn layout() -> KvLayout {
        KvLayout::uniform(2, KvLayer::full(2, 8, KvFormat::F32, KvFormat::F32))
    }

    fn trained() -> Gates {
        let weights = (0..gates::width(&layout(), 0)).map(|index| index as f32 / 8.0 - 1.0).collect();
        Gates { layers: vec![vec![HeadGate { weights, bias: -2.5 }; 2]; 2] }
    }

    #[test]
    fn what_is_kept_is_what_was_trained() {
        let kept = MeasuredGates::new(&trained(), GATE_POSITIONS_MIN, 1, "kvik eval --calibrate".to_owned());
        let text = serde_json::to_string(&kept).unwrap();
        let read: MeasuredGates = serde_json::from_str(&text).unwrap();
        assert_eq!(read.gates(&layout()), Some(trained()));
        let check = |change: &dyn Fn(&mut MeasuredGates)| {
            let mut wrong = kept.clone();
            change(&mut wrong);
            assert_eq!(wrong.gates(&layout()), None, "{wrong:?}");
        };
        check(&|kept| kept.layers.clear());
        check(&|kept| kept.layers.push(kept.layers[0].clone()));
        check(&|kept| kept.layers[1].clear());
        check(&|kept| kept.layers[0][1].weights.push(0.0));
        check(&|kept| kept.layers[0][1].weights[2] = f32::INFINITY);
        check(&|kept| kept.layers[1][0].bias = f32::NAN);
    }

    #[test]
    fn gates_trained_from_little_are_not_used_and_say_so() {
        let check = |positions| MeasuredGates::new(&trained(), positions, 1, String::new()).check();
        assert!(check(GATE_POSITIONS_MIN).is_ok());
        let error = check(GATE_POSITIONS_MIN - 1).unwrap_err().to_string();
        assert!(error.contains("999 positions") && error.contains("--calibrate"), "{error}");
    }
}

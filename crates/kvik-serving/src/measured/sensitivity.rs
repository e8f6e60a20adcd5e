//! The sensitivity of a model to KV formats, as needed by `--kv auto`.

use kvik_engine::eval::{FORMATS, sensitivity::Sensitivity};
use kvik_model::LAYERS_MAX;
use serde::{Deserialize, Serialize};

use super::Measurement;

/// Fewest positions from which a sensitivity follows: half of a window of the usual size.
const POSITIONS_MIN: usize = 256;

/// [`Sensitivity`] in a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeasuredSensitivity {
    /// Tokens of a window.
    window_tokens: usize,
    positions: usize,
    /// Names of the columns of `keys` and `values`.
    formats: Vec<String>,
    /// Divergence in nats, `[layers][formats]`.
    keys: Vec<Vec<f64>>,
    values: Vec<Vec<f64>>,
}

impl Measurement for MeasuredSensitivity {
    const KIND: &'static str = "sensitivity";
    const VERSION: u32 = 1;

    fn check(&self) -> anyhow::Result<()> {
        MeasuredSensitivity::check_positions(self.positions)
    }
}

impl MeasuredSensitivity {
    /// Checks that something follows from a measurement at so many positions.
    ///
    /// # Errors
    /// If they are too few: how to measure more.
    pub fn check_positions(positions: usize) -> anyhow::Result<()> {
        anyhow::ensure!(
            positions >= POSITIONS_MIN,
            "nothing follows from what formats cost at {positions} positions, fewer than {POSITIONS_MIN}; run \
             `kvik eval --sensitivity` with more --windows or a longer --text"
        );
        Ok(())
    }

    /// The positions that it was measured at.
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// The sensitivity as measured on windows of `window_tokens` tokens.
    pub fn new(sensitivity: &Sensitivity, window_tokens: usize) -> MeasuredSensitivity {
        let rows = |layers: &[[f64; FORMATS.len()]]| layers.iter().map(|losses| losses.to_vec()).collect();
        MeasuredSensitivity {
            window_tokens,
            positions: sensitivity.positions,
            formats: formats(),
            keys: rows(&sensitivity.keys),
            values: rows(&sensitivity.values),
        }
    }

    /// The measurement; `None` if it is not for the formats that this kvik chooses among, or contains invalid
    /// divergences.
    pub fn sensitivity(&self) -> Option<Sensitivity> {
        let losses = |row: &Vec<f64>| {
            let losses: [f64; FORMATS.len()] = row.as_slice().try_into().ok()?;
            losses.iter().all(|loss| loss.is_finite() && *loss >= 0.0).then_some(losses)
        };
        let layers = |rows: &[Vec<f64>]| rows.iter().map(losses).collect::<Option<Vec<_>>>();
        let (keys, values) = (layers(&self.keys)?, layers(&self.values)?);
        let fits = self.formats == formats() && keys.len() == values.len() && keys.len() <= LAYERS_MAX;
        fits.then_some(Sensitivity { positions: self.positions, keys, values })
    }
}

fn formats() -> Vec<String> {
    FORMATS.iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_what_was_measured() {
        let sensitivity = Sensitivity {
            positions: 7,
            keys: vec![[0.0, 1e-9, 0.125, 0.25, 0.5, 1.0]; 3],
            values: vec![[0.0, 0.0, 1e-7, 0.5, 1.0, 2.0]; 3],
        };
        let kept = MeasuredSensitivity::new(&sensitivity, 512);
        let text = serde_json::to_string(&kept).unwrap();
        let read: MeasuredSensitivity = serde_json::from_str(&text).unwrap();
        assert_eq!(read.sensitivity(), Some(sensitivity));

        let check = |change: &dyn Fn(&mut MeasuredSensitivity)| {
            let mut wrong = kept.clone();
            change(&mut wrong);
            assert_eq!(wrong.sensitivity(), None, "{wrong:?}");
        };
        check(&|kept| kept.formats.reverse());
        check(&|kept| kept.keys[1][2] = -1.0);
        check(&|kept| kept.values[0][0] = f64::NAN);
        check(&|kept| kept.values[2].push(0.0));
        check(&|kept| drop(kept.keys.pop()));
        check(&|kept| (kept.keys, kept.values) = (vec![vec![0.0; 6]; 5000], vec![vec![0.0; 6]; 5000]));
    }

    #[test]
    fn a_sensitivity_at_few_positions_is_not_used_and_says_so() {
        let check = |positions| {
            let sensitivity = Sensitivity { positions, keys: Vec::new(), values: Vec::new() };
            MeasuredSensitivity::new(&sensitivity, 64).check()
        };
        assert!(check(POSITIONS_MIN).is_ok());
        let error = check(POSITIONS_MIN - 1).unwrap_err().to_string();
        assert!(error.contains("255 positions") && error.contains("--windows"), "{error}");
    }
}

//! The importance of a model's KV heads, as needed by the calibrated budget.

use kvik_cache::retain::HeadImportance;
use serde::{Deserialize, Serialize};

use super::{Measurement, RIGHT_CASES_MIN};

/// [`HeadImportance`] in a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeasuredHeads {
    /// Loss without the head, as a share of the loss without the most important one, `[layers][kv_heads]`.
    layers: Vec<Vec<f32>>,
    /// Cases answered correctly, the only ones that count.
    cases: usize,
    /// Unix time, seconds.
    date: u64,
    /// The command that measured.
    command: String,
}

impl Measurement for MeasuredHeads {
    const KIND: &'static str = "calibration";
    const VERSION: u32 = 2;

    fn check(&self) -> anyhow::Result<()> {
        let MeasuredHeads { cases, .. } = self;
        anyhow::ensure!(
            *cases >= RIGHT_CASES_MIN,
            "it was calibrated on {cases} cases with a right answer, and nothing follows from fewer than \
             {RIGHT_CASES_MIN}; run `kvik eval --calibrate` with more --cases"
        );
        Ok(())
    }
}

impl MeasuredHeads {
    /// The importance as measured on `cases` cases.
    pub fn new(importance: &HeadImportance, cases: usize, date: u64, command: String) -> MeasuredHeads {
        MeasuredHeads { layers: importance.layers.clone(), cases, date, command }
    }

    /// The measurement; `None` if it does not match a model with `shape[layer]` KV heads, or contains invalid losses.
    pub fn importance(&self, shape: &[usize]) -> Option<HeadImportance> {
        let fits = self.layers.iter().map(Vec::len).eq(shape.iter().copied());
        let is_loss = |loss: &f32| loss.is_finite() && *loss >= 0.0;
        let usable = fits && self.layers.iter().flatten().all(is_loss);
        usable.then(|| HeadImportance { layers: self.layers.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_what_was_measured() {
        let importance = HeadImportance { layers: vec![vec![0.0, 2.5], vec![0.125, 0.0]] };
        let kept = MeasuredHeads::new(&importance, 20, 1, "kvik eval --calibrate".to_owned());
        let text = serde_json::to_string(&kept).unwrap();
        let read: MeasuredHeads = serde_json::from_str(&text).unwrap();
        assert_eq!(read.importance(&[2, 2]), Some(importance));
        assert_eq!(read.importance(&[2, 1]), None);
        assert_eq!(MeasuredHeads { layers: vec![vec![f32::NAN, 0.0]; 2], ..kept }.importance(&[2, 2]), None);
    }

    #[test]
    fn a_calibration_on_few_right_answers_is_not_used_and_says_so() {
        let check = |cases| {
            let heads = MeasuredHeads::new(&HeadImportance::default(), cases, 1, String::new());
            heads.check().map_err(|error| error.to_string())
        };
        assert_eq!(check(RIGHT_CASES_MIN), Ok(()));
        for cases in [0, 5, RIGHT_CASES_MIN - 1] {
            let error = check(cases).unwrap_err();
            assert!(error.contains(&format!("{cases} cases")) && error.contains("--calibrate"), "{error}");
            assert!(error.contains("fewer than 20"), "{error}");
        }
    }
}

//! Measured importance of the KV heads of a model.

/// The importance of each KV head: the higher, the more is lost without it. Only ratios count.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HeadImportance {
    /// `[layers][kv_heads]`
    pub layers: Vec<Vec<f32>>,
}

/// The weight of the most important head.
pub(super) const WEIGHT_MAX: u32 = 1000;
/// The minimum weight: retaining a little for an unimportant head is cheap, and the measurement is a sample.
pub(super) const WEIGHT_MIN: u32 = 100;
/// The weight is the fifth root of the importance, so a head with twice the share is 32 times as important: the
/// losses of heads differ by orders of magnitude, and the last positions of an important head are worth less than
/// the first ones of an unimportant one.
const ROOT: f64 = 5.0;

impl HeadImportance {
    /// The weights by which heads share the retained positions, in the order of the heads of a model of this shape,
    /// `[layers]` KV heads. They are integers, so that every machine divides alike.
    pub(super) fn weights(&self, shape: &[usize]) -> Vec<u32> {
        let of = |layer: usize, head: usize| {
            let value = self.layers.get(layer).and_then(|heads| heads.get(head)).copied();
            f64::from(value.filter(|value| value.is_finite()).unwrap_or(0.0).max(0.0))
        };
        let heads =
            shape.iter().enumerate().flat_map(|(layer, &heads)| (0..heads).map(move |head| (layer, head)));
        let values: Vec<f64> = heads.map(|(layer, head)| of(layer, head)).collect();
        let most = values.iter().copied().fold(0.0, f64::max);
        if most == 0.0 {
            return vec![WEIGHT_MAX; values.len()];
        }
        let weight = |value: f64| (f64::from(WEIGHT_MAX) * (value / most).powf(1.0 / ROOT)).round() as u32;
        values.into_iter().map(|value| weight(value).max(WEIGHT_MIN)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_ratios_of_what_was_measured() {
        let weights = |layers: &[&[f32]], shape: &[usize]| {
            HeadImportance { layers: layers.iter().map(|heads| heads.to_vec()).collect() }.weights(shape)
        };
        assert_eq!(weights(&[&[32.0, 1.0], &[0.0, 16.0]], &[2, 2]), [1000, 500, 100, 871]);
        assert_eq!(weights(&[&[0.32, 0.01], &[0.0, 0.16]], &[2, 2]), [1000, 500, 100, 871]);
        assert_eq!(weights(&[&[1.0, f32::NAN], &[-1.0]], &[2, 2]), [1000, 100, 100, 100]);
        assert_eq!(
            weights(&[&[0.0, 0.0], &[0.0, 0.0]], &[2, 2]),
            [1000; 4],
            "nothing measured to matter: all alike"
        );
    }
}

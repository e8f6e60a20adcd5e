//! Normalisation of embeddings, and their similarity.

/// Normalisation of an embedding, by llama-server's numbers (`embd_normalize`).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::api) enum Scale {
    /// No scaling.
    None,
    /// The largest absolute value becomes 32760.
    Largest,
    /// The p-norm becomes 1: 1 is the taxicab norm, 2 the Euclidean norm.
    Norm(u32),
}

impl Scale {
    /// The Euclidean norm.
    pub(in crate::api) const EUCLIDEAN: Scale = Scale::Norm(2);

    /// Scales `vector`; a zero vector is unchanged. Sums are computed in `f64`, so that the result has the
    /// accuracy of `f32`.
    pub(in crate::api) fn apply(self, vector: &mut [f32]) {
        let values = vector.iter().map(|&x| f64::from(x).abs());
        let size = match self {
            Scale::None => return,
            Scale::Largest => values.fold(0.0, f64::max) / 32_760.0,
            Scale::Norm(2) => values.map(|x| x * x).sum::<f64>().sqrt(),
            Scale::Norm(p) => values.map(|x| x.powi(p as i32)).sum::<f64>().powf(1.0 / f64::from(p)),
        };
        if size > 0.0 {
            vector.iter_mut().for_each(|x| *x = (f64::from(*x) / size) as f32);
        }
    }
}

impl From<i64> for Scale {
    fn from(number: i64) -> Scale {
        match number {
            0 => Scale::Largest,
            number => u32::try_from(number).map_or(Scale::None, Scale::Norm),
        }
    }
}

/// Returns the cosine of the angle between two vectors of equal length; 0 if either is zero.
pub(super) fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
    let norms = (dot(a, a) * dot(b, b)).sqrt();
    if norms > 0.0 { dot(a, b) / norms } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn vector() -> impl Strategy<Value = Vec<f32>> {
        prop::collection::vec(-1e3_f32..1e3, 1..40)
            .prop_filter("not near zero", |vector| vector.iter().any(|x| x.abs() > 1e-3))
    }

    proptest! {
        /// The norm becomes 1, the direction is unchanged, and scaling again changes nothing beyond rounding.
        #[test]
        fn scaled_vectors_have_their_norm(vector in vector(), p in 1..6_u32) {
            let mut scaled = vector.clone();
            Scale::Norm(p).apply(&mut scaled);
            let norm: f64 = scaled.iter().map(|&x| f64::from(x).abs().powi(p as i32)).sum();
            prop_assert!((norm - 1.0).abs() < 1e-5, "{norm}");
            prop_assert!((cosine(&vector, &scaled) - 1.0).abs() < 1e-5);
            let mut again = scaled.clone();
            Scale::Norm(p).apply(&mut again);
            prop_assert!(again.iter().zip(&scaled).all(|(a, b)| (a - b).abs() < 1e-6));
        }

        #[test]
        fn a_cosine_is_symmetric_and_within_its_bounds(a in vector(), b in vector()) {
            let len = a.len().min(b.len());
            let (a, b) = (&a[..len], &b[..len]);
            prop_assert_eq!(cosine(a, b), cosine(b, a));
            prop_assert!(cosine(a, b).abs() <= 1.0 + 1e-9);
            let back: Vec<f32> = a.iter().map(|x| -x).collect();
            prop_assert!((cosine(a, &back) + 1.0).abs() < 1e-9 || a.iter().all(|&x| x == 0.0));
        }
    }

    #[test]
    fn the_numbers_of_llama_server() {
        let check = |number: i64, expect: [f32; 2]| {
            let mut vector = [3.0, -4.0];
            Scale::from(number).apply(&mut vector);
            assert_eq!(vector, expect, "{number}");
        };
        check(-1, [3.0, -4.0]);
        check(0, [24_570.0, -32_760.0]);
        check(1, [3.0 / 7.0, -4.0 / 7.0]);
        check(2, [0.6, -0.8]);
        let mut zeros = [0.0; 3];
        Scale::EUCLIDEAN.apply(&mut zeros);
        assert_eq!((zeros, cosine(&zeros, &[1.0; 3])), ([0.0; 3], 0.0));
    }
}

//! What a comparison of numbers comes to.

/// The largest of errors, none of which is negative; a NaN counts as larger than all others.
pub fn largest<T: Copy + Default + PartialOrd>(errors: impl IntoIterator<Item = T>) -> T {
    errors.into_iter().fold(T::default(), |largest, error| {
        // `f32::max` passes over a NaN, and every bound would hold.
        let is_nan = error.partial_cmp(&error).is_none();
        if error > largest || is_nan { error } else { largest }
    })
}

#[cfg(test)]
mod tests {
    use super::largest;

    #[test]
    fn a_nan_is_the_largest_error_wherever_it_stands() {
        assert_eq!(largest([0.5_f32, 2.0, 1.0]).to_bits(), 2.0_f32.to_bits());
        assert_eq!(largest(Vec::<f64>::new()).to_bits(), 0);
        for errors in [[0.0, f32::NAN], [f32::NAN, 1.0]] {
            assert!(largest(errors).is_nan(), "{errors:?}");
        }
        assert!(largest([1.0, f64::NAN, f64::INFINITY]).is_nan());
    }
}

//! The interval of a share that was counted on some cases.

/// Standard deviations of a normal distribution within which 95% lie.
const DEVIATIONS: f64 = 1.959_963_984_540_054;

/// The interval of 95% of a share of which `right` of `cases` cases are a sample (Wilson's score interval), from 0 to 1.
/// It holds also near 0 and 1 and for few cases, where the normal approximation does not; without a case it is 0 to 1.
pub(crate) fn wilson(right: f64, cases: usize) -> (f64, f64) {
    if cases == 0 {
        return (0.0, 1.0);
    }
    let (count, square) = (cases as f64, DEVIATIONS * DEVIATIONS);
    let share = right / count;
    let middle = share + square / (2.0 * count);
    let half = DEVIATIONS * (share * (1.0 - share) / count + square / (4.0 * count * count)).sqrt();
    let scale = 1.0 + square / count;
    (((middle - half) / scale).max(0.0), ((middle + half) / scale).min(1.0))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The examples of Newcombe (1998), "Two-sided confidence intervals for the single proportion", and some by hand.
    #[test]
    fn intervals_are_those_of_the_literature() {
        let check = |right: f64, cases: usize, low: f64, high: f64| {
            let found = wilson(right, cases);
            let near = (found.0 - low).abs() < 5e-5 && (found.1 - high).abs() < 5e-5;
            assert!(near, "{right} of {cases}: {found:?}, not {low} to {high}");
        };
        check(81.0, 263, 0.2553, 0.3662);
        check(15.0, 148, 0.0624, 0.1605);
        check(0.0, 20, 0.0, 0.1611);
        check(1.0, 29, 0.0061, 0.1718);
        check(29.0, 29, 0.8830, 1.0);
        check(8.0, 10, 0.4902, 0.9433);
        check(0.0, 0, 0.0, 1.0);
    }

    proptest! {
        #[test]
        fn an_interval_holds_its_share_and_shrinks_with_cases(right in 0.0..=1.0_f64, cases in 1..5000_usize) {
            let (low, high) = wilson(right * cases as f64, cases);
            prop_assert!(0.0 <= low && low <= right + 1e-12 && right <= high + 1e-12 && high <= 1.0);
            let (lower, higher) = wilson((1.0 - right) * cases as f64, cases);
            prop_assert!((low - (1.0 - higher)).abs() < 1e-9 && (high - (1.0 - lower)).abs() < 1e-9, "wrong is the mirror of right");
            let more = wilson(right * 2.0 * cases as f64, 2 * cases);
            prop_assert!(more.1 - more.0 < high - low);
        }
    }
}

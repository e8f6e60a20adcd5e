//! The choice of retention in a flag or a request: keep everything, a policy, or the best measured one.

use std::str::FromStr;

use clap::Args;
use kvik_cache::retain::{Retention, RetentionError};

/// Default percentage of right answers and of perplexity that `auto` may lose.
const LOSS_DEFAULT: f64 = 2.0;

/// Which tokens sequences go on reading.
#[derive(Debug, Clone, Default, Args)]
pub struct RetainArgs {
    /// Which tokens are kept and read on where a request does not say: a policy as snapkv:0.5 or
    /// kvzip:0.25,budget=all, the best measured one with auto or auto:LOSS, or none [default: none, all are kept]
    #[arg(long, value_name = "POLICY")]
    pub retain: Option<RetainChoice>,
    /// Percent of right answers and of perplexity that a policy may lose: one that `kvik eval` measured to lose more of
    /// either, or did not measure, is refused
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub retain_max_loss: Option<f64>,
    /// In idle time keep a part, as this policy says, of prefixes that are used often or about to be evicted, for
    /// requests that allow it with "kept_prefix": true
    #[arg(long, value_name = "POLICY")]
    pub retain_idle: Option<Retention>,
}

fn percent(text: &str) -> Result<f64, String> {
    let percent = text.strip_suffix('%').unwrap_or(text).parse().ok();
    let percent = percent.filter(|percent| (0.0..=100.0).contains(percent));
    percent.ok_or_else(|| format!("`{text}` is not a percentage from 0 to 100"))
}

/// The positions of a sequence that are retained.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RetainChoice {
    /// All of them.
    Everything,
    /// Positions by the measured policy that keeps the fewest within a maximum loss.
    Auto {
        /// Maximum loss of right answers and of perplexity, in percent.
        loss_max: f64,
    },
    /// Positions by this policy.
    Chosen(Retention),
}

impl RetainChoice {
    /// The text of [`RetainChoice::Everything`].
    pub const EVERYTHING: &str = "none";
    /// The text of [`RetainChoice::Auto`].
    pub const AUTO: &str = "auto";

    /// The best measured policy with at most the loss of the text `loss`.
    pub fn auto(loss: Option<&str>) -> Result<RetainChoice, RetentionError> {
        let Some(text) = loss else { return Ok(RetainChoice::Auto { loss_max: LOSS_DEFAULT }) };
        let fault = |_| RetentionError::Value {
            field: "loss",
            value: text.to_owned(),
            expected: "a percentage from 0 to 100".to_owned(),
        };
        percent(text).map(|loss_max| RetainChoice::Auto { loss_max }).map_err(fault)
    }
}

impl FromStr for RetainChoice {
    type Err = RetentionError;

    /// Parses `none`, `auto[:LOSS]`, or a retention such as `snapkv:0.5,budget=all`.
    fn from_str(text: &str) -> Result<RetainChoice, RetentionError> {
        match text.trim().split_once(':') {
            None if text.trim() == RetainChoice::EVERYTHING => Ok(RetainChoice::Everything),
            None if text.trim() == RetainChoice::AUTO => RetainChoice::auto(None),
            Some((RetainChoice::AUTO, loss)) => RetainChoice::auto(Some(loss)),
            _ => text.parse().map(RetainChoice::Chosen),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_a_percentage() {
        for (text, expect) in
            [("2", Some(2.0)), ("0.5%", Some(0.5)), ("NaN", None), ("-1", None), ("101", None)]
        {
            assert_eq!(percent(text).ok(), expect, "{text}");
        }
    }

    #[test]
    fn a_choice_is_nothing_the_best_or_a_policy() {
        let check = |text: &str, expect: RetainChoice| assert_eq!(text.parse(), Ok(expect), "{text}");
        check("none", RetainChoice::Everything);
        check("auto", RetainChoice::Auto { loss_max: 2.0 });
        check(" auto:0.5%", RetainChoice::Auto { loss_max: 0.5 });
        check("auto:0", RetainChoice::Auto { loss_max: 0.0 });
        check("snapkv:0.3,window=16", RetainChoice::Chosen("snapkv:0.3,window=16".parse().unwrap()));
        for (text, field) in [
            ("auto:101", "loss"),
            ("auto:-1", "loss"),
            ("auto:NaN", "loss"),
            ("auto:", "loss"),
            ("none:1", "policy"),
            ("", "policy"),
            ("snapkv:0", "keep"),
        ] {
            let error = text.parse::<RetainChoice>().unwrap_err();
            assert_eq!(error.field(), field, "{text}: {error}");
        }
    }
}

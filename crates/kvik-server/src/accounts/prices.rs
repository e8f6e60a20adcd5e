//! Prices of tokens and costs of answers, in integers.
//!
//! A price is an integer number of pico-units (10⁻¹² of the operator's currency) per token and a cost one
//! of pico-units, so sums over any number of requests are exact. A price that is not an integer number
//! of pico-units per token is refused instead of rounded.

use std::{fmt, iter::Sum, num::NonZeroU32, ops::AddAssign, str::FromStr};

use kvik_engine::api::Report;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Decimals of a cost, which is counted in 10⁻¹².
const DECIMALS: u32 = 12;
/// Upper bound of a price; larger ones are typing errors, and their sums would overflow.
const PRICE_LIMIT: u128 = 1_000_000_000;

/// Prices per token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prices {
    /// Pico-units per prompt token that was computed.
    input: u128,
    /// Pico-units per prompt token that came from the cache.
    cached: u128,
    /// Pico-units per generated token.
    output: u128,
}

/// Prices as written in flags and files, for `per` tokens. An absent price is 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PriceList {
    /// Price of computed prompt tokens.
    pub input: Option<Decimal>,
    /// Price of reused prompt tokens.
    pub cached: Option<Decimal>,
    /// Price of generated tokens.
    pub output: Option<Decimal>,
    /// Number of tokens that the prices are for [default: 1].
    pub per: Option<NonZeroU32>,
}

/// A cost in pico-units.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cost(u128);

/// A decimal number, not negative, of at most 12 decimals; exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decimal(u128);

impl PriceList {
    /// The prices per token, if any is set.
    pub fn prices(&self) -> Result<Option<Prices>, String> {
        if [self.input, self.cached, self.output].iter().all(Option::is_none) {
            return Ok(None);
        }
        let per = self.per.map_or(1, |per| u128::from(per.get()));
        let price = |decimal: Option<Decimal>| {
            let pico = decimal.map_or(0, |decimal| decimal.0);
            let fits = pico.is_multiple_of(per);
            fits.then(|| pico / per).ok_or_else(|| {
                format!("{} per {per} tokens is finer than 0.000000000001 per token; round it", Cost(pico))
            })
        };
        let [input, cached, output] = [price(self.input)?, price(self.cached)?, price(self.output)?];
        Ok(Some(Prices { input, cached, output }))
    }
}

impl Prices {
    /// The cost of a request, from the tokens of its report.
    pub(crate) fn cost(&self, report: &Report) -> Cost {
        let tokens = |count: usize, price: u128| count as u128 * price;
        Cost(
            tokens(report.computed_tokens, self.input)
                + tokens(report.cached_tokens, self.cached)
                + tokens(report.generated_tokens, self.output),
        )
    }
}

impl<'de> Deserialize<'de> for Prices {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Prices, D::Error> {
        let list = PriceList::deserialize(deserializer)?;
        let prices = list.prices().map_err(de::Error::custom)?;
        prices.ok_or_else(|| de::Error::custom("prices need at least one of input, cached and output"))
    }
}

impl Cost {
    /// The cost as in answers: the nearest double, which prints all digits of an exact cost of up to 15
    /// digits.
    pub(crate) fn nearest(self) -> f64 {
        self.to_string().parse().unwrap_or(f64::MAX)
    }

    /// The cost as a double, for metrics.
    pub(crate) fn as_f64(self) -> f64 {
        self.0 as f64 / 10f64.powi(DECIMALS as i32)
    }
}

impl fmt::Display for Cost {
    /// Prints all decimals except trailing zeros.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = 10u128.pow(DECIMALS);
        let decimals = format!("{:0width$}", self.0 % unit, width = DECIMALS as usize);
        match decimals.trim_end_matches('0') {
            "" => write!(f, "{}", self.0 / unit),
            decimals => write!(f, "{}.{decimals}", self.0 / unit),
        }
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Cost) {
        self.0 = self.0.saturating_add(other.0);
    }
}

impl Sum for Cost {
    fn sum<I: Iterator<Item = Cost>>(costs: I) -> Cost {
        costs.fold(Cost::default(), |mut sum, cost| {
            sum += cost;
            sum
        })
    }
}

impl Serialize for Cost {
    /// Serializes as text, so that no reader rounds it.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Cost {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Cost, D::Error> {
        let text = String::deserialize(deserializer)?;
        pico(&text).map(Cost).ok_or_else(|| de::Error::custom(format!("`{text}` is not a cost")))
    }
}

/// Pico-units of a decimal number; `None` for another text or more than 12 decimals.
fn pico(text: &str) -> Option<u128> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let missing = (DECIMALS as usize).checked_sub(decimals.len())?;
    if (whole.is_empty() && decimals.is_empty()) || !digits(whole) || !digits(decimals) {
        return None;
    }
    format!("0{whole}{decimals}{}", "0".repeat(missing)).parse().ok()
}

impl FromStr for Decimal {
    type Err = String;

    fn from_str(text: &str) -> Result<Decimal, String> {
        let pico = pico(text.trim()).ok_or_else(|| {
            format!("`{text}` is not a price; write a number like 2.5, not negative, with at most {DECIMALS} decimals")
        })?;
        if pico >= PRICE_LIMIT * 10u128.pow(DECIMALS) {
            return Err(format!("`{text}` is not a price: it must be below {PRICE_LIMIT}"));
        }
        Ok(Decimal(pico))
    }
}

impl<'de> Deserialize<'de> for Decimal {
    /// Accepts a number, or a text if a number would lose digits.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Decimal, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Decimal;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a price like 2.5")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Decimal, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Decimal, E> {
                // The shortest digits of this double are those in the file.
                self.visit_str(&number.to_string())
            }
            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Decimal, E> {
                self.visit_str(&number.to_string())
            }
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Decimal, E> {
                self.visit_str(&number.to_string())
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prices(toml: &str) -> Result<Prices, String> {
        toml::from_str(toml).map_err(|error| error.to_string())
    }

    fn report(computed_tokens: usize, cached_tokens: usize, generated_tokens: usize) -> Report {
        Report { computed_tokens, cached_tokens, generated_tokens, ..Report::default() }
    }

    #[test]
    fn costs_are_exact_to_the_last_digit() {
        let check = |list: &str, (computed, cached, generated), text: &str| {
            let cost = prices(list).unwrap().cost(&report(computed, cached, generated));
            assert_eq!(cost.to_string(), text, "{list}");
            assert_eq!(Some(cost.nearest()), text.parse().ok(), "{list}");
        };
        let multipliers = "input = 2.5\ncached = 0.1\noutput = 5";
        check(multipliers, (40, 160, 10), "166");
        check(multipliers, (1, 1, 0), "2.6");
        check(multipliers, (0, 3, 0), "0.3");
        check("input = 2.5\ncached = 0.25\noutput = 10\nper = 1000000", (1234, 100_000, 7), "0.028155");
        check("input = 0.075\nper = 1_000_000", (1, 0, 0), "0.000000075");
        check("input = \"0.000000000001\"", (7, 9, 9), "0.000000000007");
        check("output = 3", (9, 9, 2), "6");
    }

    /// Ten million additions of a tenth: doubles would be off in the ninth digit.
    #[test]
    fn sums_do_not_drift() {
        let prices = prices("cached = 0.1").unwrap();
        let sum: Cost = (0..10_000_000).map(|_| prices.cost(&report(0, 1, 0))).sum();
        assert_eq!(sum.to_string(), "1000000");
    }

    #[test]
    fn costs_read_back_as_written() {
        for pico in [0, 1, 999_999_999_999, 10u128.pow(12), 123_456_789_012_345_678_901_234] {
            let text = serde_json::to_string(&Cost(pico)).unwrap();
            assert_eq!(serde_json::from_str::<Cost>(&text).unwrap(), Cost(pico), "{text}");
        }
    }

    #[test]
    fn invalid_prices_are_refused() {
        for list in [
            "",
            "per = 5",
            "input = -1",
            "input = nan",
            "input = inf",
            "input = \"\"",
            "input = \".\"",
            "input = \"1e3\"",
            "input = 1e300",
            "input = 1000000000",
            "input = \"0.0000000000001\"",
            "input = 0.0000001\nper = 1000000000",
            "input = 1\nper = 0",
            "input = 1\nper = 3",
            "inptu = 1",
        ] {
            assert!(prices(list).is_err(), "{list}");
        }
        assert_eq!(prices("input = 3\nper = 3"), prices("input = 1"));
    }
}

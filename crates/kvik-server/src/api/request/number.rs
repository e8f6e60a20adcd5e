//! Numbers with bounds, checked where they are read.

use std::fmt;

use kvik_cache::Token;
use serde::{Deserialize, Deserializer, de};
use serde_json::Value;

use crate::described::JsonSchema;

/// An integer from `MIN` to `MAX`; `i64::MIN` and `i64::MAX` mean no bound. `4.0` is accepted, because some clients
/// send floats.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Whole<const MIN: i64, const MAX: i64>(i64);

impl<const MIN: i64, const MAX: i64> Whole<MIN, MAX> {
    pub(crate) fn get(self) -> i64 {
        self.0
    }

    /// Returns the number as a count; none if it is negative.
    pub(crate) fn count(self) -> Option<usize> {
        usize::try_from(self.0).ok()
    }
}

impl<'de, const MIN: i64, const MAX: i64> Deserialize<'de> for Whole<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match deserializer.deserialize_any(WholeVisitor)? {
            n if (MIN..=MAX).contains(&n) => Ok(Whole(n)),
            n if MAX == i64::MAX => Err(out_of_range(MIN, None, n)),
            n => Err(out_of_range(MIN, Some(MAX), n)),
        }
    }
}

#[cfg(test)]
impl<const MIN: i64, const MAX: i64> JsonSchema for Whole<MIN, MAX> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Whole".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let mut schema = schemars::json_schema!({"type": "integer"});
        for (name, end, none) in [("minimum", MIN, i64::MIN), ("maximum", MAX, i64::MAX)] {
            if end != none {
                schema.insert(name.to_owned(), end.into());
            }
        }
        schema
    }
}

/// Formats the error for a number out of bounds, such as "must be from 1 to 64, not 65".
pub(crate) fn out_of_range<E: de::Error, T: fmt::Display>(min: T, max: Option<T>, found: T) -> E {
    E::custom(match max {
        Some(max) => format!("must be from {min} to {max}, not {found}"),
        None => format!("must be at least {min}, not {found}"),
    })
}

struct WholeVisitor;

impl de::Visitor<'_> for WholeVisitor {
    type Value = i64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number")
    }

    fn visit_i64<E>(self, n: i64) -> Result<i64, E> {
        Ok(n)
    }

    fn visit_u64<E: de::Error>(self, n: u64) -> Result<i64, E> {
        i64::try_from(n).map_err(|_| E::invalid_type(de::Unexpected::Unsigned(n), &self))
    }

    fn visit_f64<E: de::Error>(self, x: f64) -> Result<i64, E> {
        whole(x).ok_or_else(|| E::invalid_type(de::Unexpected::Float(x), &self))
    }
}

/// Converts a float without a fraction to an integer.
pub(crate) fn whole(x: f64) -> Option<i64> {
    (x.fract() == 0.0 && x.abs() < 9.0e15).then_some(x as i64)
}

/// The integer that a value is, also as a float without a fraction.
pub(crate) fn whole_number(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| value.as_f64().and_then(whole))
}

/// A token that some vocabulary may have.
#[derive(Debug, Clone, Copy, PartialEq, JsonSchema)]
#[schemars(inline)]
pub(crate) struct TokenId(pub(crate) Token);

impl<'de> Deserialize<'de> for TokenId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<TokenId, D::Error> {
        deserializer.deserialize_any(TokenVisitor { expected: "a token id" })
    }
}

/// Reads a token id; `expected` describes the value in errors.
pub(super) struct TokenVisitor {
    pub(super) expected: &'static str,
}

impl de::Visitor<'_> for TokenVisitor {
    type Value = TokenId;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_u64<E: de::Error>(self, id: u64) -> Result<TokenId, E> {
        Token::try_from(id).map(TokenId).map_err(|_| E::invalid_type(de::Unexpected::Unsigned(id), &self))
    }

    fn visit_i64<E: de::Error>(self, id: i64) -> Result<TokenId, E> {
        Err(E::invalid_type(de::Unexpected::Signed(id), &self))
    }

    fn visit_f64<E: de::Error>(self, x: f64) -> Result<TokenId, E> {
        let id = whole(x).and_then(|id| Token::try_from(id).ok());
        id.map(TokenId).ok_or_else(|| E::invalid_type(de::Unexpected::Float(x), &self))
    }
}

struct RealVisitor;

impl de::Visitor<'_> for RealVisitor {
    type Value = f64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number")
    }

    fn visit_i64<E>(self, n: i64) -> Result<f64, E> {
        Ok(n as f64)
    }

    fn visit_u64<E>(self, n: u64) -> Result<f64, E> {
        Ok(n as f64)
    }

    fn visit_f64<E>(self, x: f64) -> Result<f64, E> {
        Ok(x)
    }
}

/// Largest number of the sampler, which computes with single floats.
const FLOAT_MAX: f64 = f32::MAX as f64;

/// Defines types of bounded numbers. [`FLOAT_MAX`] is named only to those who exceed it.
macro_rules! reals {
    ($($(#[$doc:meta])* $name:ident = $min:expr, $max:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq)]
        pub(crate) struct $name(f64);

        impl $name {
            const MIN: f64 = $min;
            const MAX: f64 = $max;
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let x = deserializer.deserialize_any(RealVisitor)?;
                if (Self::MIN..=Self::MAX).contains(&x) {
                    return Ok($name(x));
                }
                let max = (Self::MAX < FLOAT_MAX || x > Self::MAX).then_some(Self::MAX);
                Err(out_of_range(Self::MIN, max, x))
            }
        }

        impl From<$name> for f64 {
            fn from(number: $name) -> f64 {
                number.0
            }
        }

        #[cfg(test)]
        impl schemars::JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                let mut schema = schemars::json_schema!({"type": "number"});
                for (name, end) in [("minimum", Self::MIN), ("maximum", Self::MAX)] {
                    if end.abs() < FLOAT_MAX {
                        schema.insert(name.to_owned(), end.into());
                    }
                }
                schema
            }
        }
    )*};
}

reals! {
    /// A fraction of a whole.
    Fraction = 0.0, 1.0;
    /// Range of OpenAI's penalties.
    Penalty = -2.0, 2.0;
    /// Divisor of the logits of tokens that occurred already.
    Repetition = 0.01, 100.0;
    /// Sampling temperature; 0 is greedy.
    Temperature = 0.0, FLOAT_MAX;
    /// Temperature in llama-server's range: negative values are greedy as well.
    AnyTemperature = -FLOAT_MAX, FLOAT_MAX;
    /// Time to live of up to a year.
    TtlSeconds = 1.0, 31_536_000.0;
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::json;

    use super::*;
    use crate::http::json::Json;

    fn read<T: DeserializeOwned>(value: Value) -> Result<T, String> {
        Json(value).read("x").map_err(|error| error.body()["error"]["message"].as_str().unwrap().to_owned())
    }

    #[test]
    fn whole_numbers_within_bounds() {
        let check = |value: Value, expect: Result<i64, &str>| {
            assert_eq!(read::<Whole<1, 8>>(value).map(Whole::get), expect.map_err(str::to_owned));
        };
        check(json!(8), Ok(8));
        check(json!(4.0), Ok(4));
        check(json!(9), Err("`x` must be from 1 to 8, not 9"));
        check(json!(-1), Err("`x` must be from 1 to 8, not -1"));
        check(json!(1.5), Err("`x` must be a whole number, not 1.5"));
        check(json!(1e300), Err("`x` must be a whole number, not 1e+300"));
        check(json!("1"), Err("`x` must be a whole number, not the string \"1\""));
        check(json!(u64::MAX), Err("`x` must be a whole number, not 18446744073709551615"));
        let least = read::<Whole<1, { i64::MAX }>>(json!(0));
        assert_eq!(least, Err("`x` must be at least 1, not 0".to_owned()));
    }

    #[test]
    fn numbers_within_bounds() {
        assert_eq!(read::<Fraction>(json!(1)).map(f64::from), Ok(1.0));
        assert_eq!(read::<Penalty>(json!(-3)), Err("`x` must be from -2 to 2, not -3".to_owned()));
        assert_eq!(read::<Temperature>(json!(-0.5)), Err("`x` must be at least 0, not -0.5".to_owned()));
        assert_eq!(
            read::<Temperature>(json!("hot")),
            Err("`x` must be a number, not the string \"hot\"".to_owned())
        );
        assert_eq!(read::<AnyTemperature>(json!(-1)).map(f64::from), Ok(-1.0));
        assert!(read::<Temperature>(json!(3.4e38)).is_ok(), "a float holds it");
        for beyond in [json!(1e39), json!(f64::MAX)] {
            let error = read::<Temperature>(beyond.clone()).unwrap_err();
            assert!(error.starts_with("`x` must be from 0 to 34028"), "{error}");
            assert!(read::<AnyTemperature>(beyond.clone()).is_err(), "{beyond}");
        }
        assert!(read::<AnyTemperature>(json!(-1e39)).is_err());
    }
}

//! Strings and numbers.

use std::cmp::Ordering;

use serde_json::{Value, json};

use super::super::limits::{check_classes, unicode_classes};
use super::valid::order;
use super::{Fields, Normaliser, Result, UnderStrict, datetime, excluded, failed, pattern, text};

/// Counts above this are unreachable: the context is shorter.
const COUNT_MAX: u64 = 10_000_000;
/// Maximum states of the automaton of `multipleOf`, one for each remainder.
const REMAINDERS_MAX: f64 = 1000.0;
/// Bounds from here on are too large for llguidance, which computes with whole numbers of 64 bits.
const COMPUTED_MAX: f64 = 9_223_372_036_854_775_808.0;
/// Maximum product of a pattern's states and the length that it is combined with.
const PATTERN_LENGTHS_MAX: u64 = 20_000;
/// Maximum bytes of all patterns of a schema.
const PATTERNS_BYTES_MAX: usize = 16 * 1024;
/// Maximum states of one pattern that are counted.
const STATES_MAX: usize = 100;
/// The formats that llguidance supports.
const FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];

impl Normaliser<'_> {
    pub(super) fn string(&mut self, fields: &Fields, out: &mut Fields, at: &str) -> Result<()> {
        let pattern = self.pattern(fields, at)?;
        let format = self.format(fields, at, pattern.is_some())?;
        let min = count(fields, "minLength", at)?.filter(|min| *min > 0);
        let max = count(fields, "maxLength", at)?;
        let why_not = match (&pattern, max.or(min)) {
            (Some(pattern), Some(length)) if !self.combines_with_length(pattern, length) => {
                Some("the pattern is enforced, and both together need too large an automaton")
            }
            _ => format.map(|_| "the format is enforced instead"),
        };
        let is_empty = match &pattern {
            Some(pattern) if why_not.is_none() => self.patterns.is_empty(pattern, min.unwrap_or(0), max),
            _ => max.is_some_and(|max| min > Some(max)),
        };
        if is_empty {
            return Err(excluded(at, "no text has the pattern and the length"));
        }
        if let Some(pattern) = pattern {
            out.insert("pattern".to_owned(), json!(pattern));
        }
        if let Some(format) = format {
            match datetime::pattern(format) {
                Some(pattern) => out.insert("pattern".to_owned(), json!(pattern)),
                None => out.insert("format".to_owned(), json!(format)),
            };
        }
        for (keyword, length) in [("minLength", min), ("maxLength", max)] {
            let Some(length) = length else { continue };
            match why_not {
                None => insert(out, keyword, Some(&json!(length))),
                Some(why) => self.drop_keyword(at, keyword, why, UnderStrict::Tolerated)?,
            }
        }
        Ok(())
    }

    /// Whether a pattern can be enforced together with a length, which needs an automaton with a state for
    /// each pair of both.
    fn combines_with_length(&mut self, pattern: &str, length: u64) -> bool {
        let states = self.patterns.states(pattern, STATES_MAX.min(self.states_left));
        self.states_left -= states.unwrap_or(STATES_MAX).min(self.states_left);
        states.is_some_and(|states| states as u64 * length <= PATTERN_LENGTHS_MAX)
    }

    /// The part of the pattern that can be enforced.
    fn pattern(&mut self, fields: &Fields, at: &str) -> Result<Option<String>> {
        let Some(pattern) = fields.get("pattern") else { return Ok(None) };
        let pattern = text(pattern, at, "pattern")?;
        self.count_pattern(pattern, &format!("{at}.pattern"))?;
        let (without, looks) = pattern::without_lookaheads(pattern);
        match self.patterns.check(&without) {
            Ok(()) => {
                if looks {
                    let why = "it has lookaheads; the rest of the pattern is enforced";
                    self.drop_keyword(at, "pattern", why, UnderStrict::Tolerated)?;
                }
                Ok(Some(without))
            }
            Err(_) if !pattern::is_closed(pattern) => {
                Err(failed(&format!("{at}.pattern"), "has a group or a class that is not closed"))
            }
            Err(why) => {
                self.drop_keyword(at, "pattern", &why, UnderStrict::Tolerated)?;
                Ok(None)
            }
        }
    }

    /// Counts a pattern, and refuses more than a schema may have.
    pub(super) fn count_pattern(&mut self, pattern: &str, at: &str) -> Result<()> {
        self.patterns_bytes += pattern.len();
        self.classes += unicode_classes(pattern);
        check_classes(self.classes).map_err(|error| failed(at, format!("all patterns together: {error}")))?;
        if self.patterns_bytes <= PATTERNS_BYTES_MAX {
            return Ok(());
        }
        Err(failed(
            at,
            format!("all patterns of the schema together have more than {PATTERNS_BYTES_MAX} bytes"),
        ))
    }

    fn format(&mut self, fields: &Fields, at: &str, has_pattern: bool) -> Result<Option<&'static str>> {
        let Some(format) = fields.get("format") else { return Ok(None) };
        let format = text(format, at, "format")?;
        let known = match format {
            "uuid1" | "uuid3" | "uuid4" | "uuid5" => Some("uuid"),
            "url" => Some("uri"),
            _ => FORMATS.into_iter().find(|known| *known == format),
        };
        let why = match known {
            Some(known) if !has_pattern => return Ok(Some(known)),
            Some(_) => "the pattern is enforced instead".to_owned(),
            None => format!("{format:?} describes no form of text that kvik knows"),
        };
        self.drop_keyword(at, "format", &why, UnderStrict::Tolerated)?;
        Ok(None)
    }

    pub(super) fn number(&mut self, fields: &Fields, out: &mut Fields, at: &str) -> Result<()> {
        for (bound, exclusive) in [("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")] {
            let value = number(fields, bound, at)?;
            match fields.get(exclusive) {
                // The notation of draft 4.
                Some(Value::Bool(true)) => insert(out, exclusive, value),
                Some(Value::Bool(false)) | None => insert(out, bound, value),
                Some(_) => {
                    insert(out, bound, value);
                    insert(out, exclusive, number(fields, exclusive, at)?);
                }
            }
        }
        if excludes_all(out) {
            return Err(excluded(at, "no number is within both bounds"));
        }
        self.divisor(fields, out, at)?;
        // Such a schema is left to llguidance.
        if out.contains_key("multipleOf") || self.options_of_compiler().is_some() {
            self.computed_bounds(out, at)?;
        }
        Ok(())
    }

    fn divisor(&mut self, fields: &Fields, out: &mut Fields, at: &str) -> Result<()> {
        let Some(divisor) = number(fields, "multipleOf", at)? else { return Ok(()) };
        match remainders(divisor) {
            None => Err(failed(&format!("{at}.multipleOf"), "must be above 0")),
            Some(states) if states <= REMAINDERS_MAX => {
                insert(out, "multipleOf", Some(divisor));
                Ok(())
            }
            Some(_) => {
                let why = format!("it needs an automaton with more than {REMAINDERS_MAX} states");
                self.drop_keyword(at, "multipleOf", &why, UnderStrict::Refused)
            }
        }
    }

    /// Drops bounds that hardly any number is beyond, and refuses those that hardly any is within, if llguidance cannot
    /// compute with them.
    fn computed_bounds(&mut self, out: &mut Fields, at: &str) -> Result<()> {
        let outwards =
            [("minimum", -1.0), ("exclusiveMinimum", -1.0), ("maximum", 1.0), ("exclusiveMaximum", 1.0)];
        for (keyword, outwards) in outwards {
            let bound = out.get(keyword).and_then(Value::as_f64).unwrap_or(0.0) * outwards;
            if bound <= -COMPUTED_MAX {
                let message = "is too large for its schema; leave out `multipleOf` and `x-guidance`";
                return Err(failed(&format!("{at}.{keyword}"), message));
            }
            if bound >= COMPUTED_MAX {
                out.remove(keyword);
                let why = "it is beyond the whole numbers of 64 bits, and the schema has `multipleOf` or `x-guidance`";
                self.drop_keyword(at, keyword, why, UnderStrict::Tolerated)?;
            }
        }
        self.close_bounds(out, at)
    }

    /// Closes the open bounds that llguidance would include: the first multiple beyond one is a bound that it may
    /// include. Notes those of which it is not known.
    fn close_bounds(&mut self, out: &mut Fields, at: &str) -> Result<()> {
        for (open, closed, sign) in
            [("exclusiveMinimum", "minimum", 1.0), ("exclusiveMaximum", "maximum", -1.0)]
        {
            let Some(whole) = included_bound(out, open, closed, sign) else { continue };
            let divisor = out.get("multipleOf").and_then(Value::as_f64);
            match divisor.and_then(|divisor| multiple_beyond(whole, divisor)) {
                Some(multiple) => {
                    out.remove(open);
                    out.insert(closed.to_owned(), json!(multiple * sign));
                }
                None => {
                    let why = "the other bound is near, and beside `multipleOf` or `x-guidance` this one may be allowed";
                    self.drop_keyword(at, open, why, UnderStrict::Tolerated)?;
                }
            }
        }
        if excludes_all(out) {
            return Err(excluded(at, "no multiple is within both bounds"));
        }
        Ok(())
    }
}

/// Whether the lower bounds are above the upper ones.
fn excludes_all(out: &Fields) -> bool {
    let order_of = |low: &str, high: &str| Some(order(out.get(low)?, out.get(high)?));
    order_of("minimum", "maximum").is_some_and(Ordering::is_gt)
        || [
            ("minimum", "exclusiveMaximum"),
            ("exclusiveMinimum", "maximum"),
            ("exclusiveMinimum", "exclusiveMaximum"),
        ]
        .iter()
        .any(|(low, high)| order_of(low, high).is_some_and(Ordering::is_ge))
}

/// The magnitude of an open bound that llguidance includes: it allows the whole number before a fraction that is limited
/// on both sides. `sign` is that of the direction from zero in which the bound limits numbers.
fn included_bound(out: &Fields, open: &str, closed: &str, sign: f64) -> Option<f64> {
    let bound = |keyword: &str| Some(out.get(keyword)?.as_f64()? * sign);
    let whole = bound(open).filter(|whole| *whole >= 0.0 && whole.fract() == 0.0)?;
    let others = if sign > 0.0 { ["maximum", "exclusiveMaximum"] } else { ["minimum", "exclusiveMinimum"] };
    let is_near = others.into_iter().filter_map(bound).any(|other| other < whole + 1.0);
    let is_narrower = bound(closed).is_none_or(|closed| closed <= whole);
    (is_near && is_narrower).then_some(whole)
}

/// The first multiple of a divisor beyond a whole number; `None` if no number of 64 bits is exactly that.
fn multiple_beyond(whole: f64, divisor: f64) -> Option<f64> {
    // Numbers are written without exponents here.
    let text = divisor.to_string();
    let (digits, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let places = fraction.len();
    let scale = 10_u128.checked_pow(places as u32)?;
    let divisor: u128 = [digits, fraction].concat().parse().ok()?;
    let multiple = ((whole as u128).checked_mul(scale)?.checked_div(divisor)? + 1).checked_mul(divisor)?;
    let text = format!("{}.{:0places$}", multiple / scale, multiple % scale);
    let number: f64 = text.parse().ok()?;
    let is_exact = number.to_string() == text.trim_end_matches('0').trim_end_matches('.');
    is_exact.then_some(number)
}

/// Number of remainders of a division, in units of the divisor's last digit.
fn remainders(divisor: &Value) -> Option<f64> {
    let mut divisor = divisor.as_f64().map(f64::abs).filter(|divisor| *divisor > 0.0)?;
    // Computed like in llguidance: a fraction without a short decimal form ends far above the limit.
    while divisor.fract() != 0.0 && divisor <= REMAINDERS_MAX {
        divisor *= 10.0;
    }
    Some(if divisor.fract() == 0.0 { divisor } else { f64::INFINITY })
}

fn insert(out: &mut Fields, keyword: &str, value: Option<&Value>) {
    if let Some(value) = value {
        out.insert(keyword.to_owned(), value.clone());
    }
}

fn number<'f>(fields: &'f Fields, keyword: &str, at: &str) -> Result<Option<&'f Value>> {
    match fields.get(keyword) {
        Some(value) if !value.is_number() => Err(failed(&format!("{at}.{keyword}"), "must be a number")),
        value => Ok(value),
    }
}

/// A minimum or maximum count; a maximum that no answer can reach is dropped.
pub(super) fn count(fields: &Fields, keyword: &str, at: &str) -> Result<Option<u64>> {
    let Some(value) = fields.get(keyword) else { return Ok(None) };
    let whole = value.as_f64().filter(|count| count.fract() == 0.0 && *count >= 0.0);
    let count =
        whole.ok_or_else(|| failed(&format!("{at}.{keyword}"), "must be a whole number from 0 on"))?;
    if count <= COUNT_MAX as f64 {
        return Ok(Some(count as u64));
    }
    if keyword.starts_with("max") {
        return Ok(None);
    }
    Err(failed(&format!("{at}.{keyword}"), format!("is above {COUNT_MAX}, which no answer can reach")))
}

/// Copies the minimum and the maximum count.
pub(super) fn counts(fields: &Fields, out: &mut Fields, min: &str, max: &str, at: &str) -> Result<()> {
    for keyword in [min, max] {
        if let Some(count) = count(fields, keyword, at)? {
            out.insert(keyword.to_owned(), json!(count));
        }
    }
    Ok(())
}

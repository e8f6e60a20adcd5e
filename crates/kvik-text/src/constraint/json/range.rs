//! Numbers within bounds, as expressions of their digits.
//!
//! A bound may be any number that JSON has. Nothing is computed with it, so that nothing is rounded or too large.

use std::cmp::Ordering;

use serde_json::{Number, Value};

use super::Fields;

/// The keywords of bounds.
pub(super) const BOUNDS: [&str; 4] = ["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"];

/// The numbers within the bounds of a schema, as the body of a terminal; `None` if there are none.
pub(super) fn numbers(is_whole: bool, fields: &Fields) -> Option<String> {
    let ways: Vec<String> = ways(is_whole, fields).iter().map(Way::lark).collect();
    (!ways.is_empty()).then(|| ways.join(" | "))
}

/// Numbers of one sign.
struct Way {
    is_negative: bool,
    /// Expressions for what is behind the sign, and whether it matches each.
    conditions: Vec<(String, bool)>,
}

impl Way {
    fn lark(&self) -> String {
        let condition = |(expression, holds): &(String, bool)| match holds {
            true => format!("/{expression}/"),
            false => format!("~/{expression}/"),
        };
        let conditions: Vec<String> = self.conditions.iter().map(condition).collect();
        let conditions = conditions.join(" & ");
        if self.is_negative { format!("\"-\" ({conditions})") } else { conditions }
    }
}

fn ways(is_whole: bool, fields: &Fields) -> Vec<Way> {
    let bounds = Bounds::of(fields);
    let way = |is_negative: bool, bounds: &Bounds| {
        bounds.conditions(is_whole).map(|conditions| Way { is_negative, conditions })
    };
    let mut ways = Vec::from_iter(way(false, &bounds));
    if bounds.low.as_ref().is_none_or(|low| low.is_negative) {
        ways.extend(way(true, &bounds.mirrored()));
    }
    ways
}

/// The bounds of numbers.
struct Bounds {
    low: Option<Bound>,
    high: Option<Bound>,
}

impl Bounds {
    fn of(fields: &Fields) -> Bounds {
        let bound = |keyword: &str, is_open: bool| match fields.get(keyword) {
            Some(Value::Number(number)) => Some(Bound::of(number, is_open)),
            _ => None,
        };
        // Where both are the same number, the open one counts.
        let narrower = |open: Option<Bound>, closed: Option<Bound>, wider: Ordering| match (open, closed) {
            (Some(open), Some(closed)) => Some(if open.order(&closed) == wider { closed } else { open }),
            (open, closed) => open.or(closed),
        };
        let low = (bound("exclusiveMinimum", true), bound("minimum", false));
        let high = (bound("exclusiveMaximum", true), bound("maximum", false));
        Bounds {
            low: narrower(low.0, low.1, Ordering::Less),
            high: narrower(high.0, high.1, Ordering::Greater),
        }
    }

    /// The bounds of the negated numbers.
    fn mirrored(&self) -> Bounds {
        let mirrored = |bound: &Option<Bound>| bound.as_ref().map(Bound::mirrored);
        Bounds { low: mirrored(&self.high), high: mirrored(&self.low) }
    }

    /// What holds for the numbers without a minus sign; `None` if there are none.
    fn conditions(&self, is_whole: bool) -> Option<Vec<(String, bool)>> {
        let low = self.low.clone().filter(|low| !low.is_negative).unwrap_or_else(Bound::zero);
        let high = self.high.clone();
        let (low, high) = match is_whole {
            true => (low.whole(true), high.map(|high| high.whole(false))),
            false => (low, high),
        };
        if high.as_ref().is_some_and(|high| high.is_negative || excludes_all(&low, high, is_whole)) {
            return None;
        }
        let tail = if is_whole { "" } else { r"(?:\.[0-9]+)?" };
        let mut conditions = Vec::new();
        if high.is_none() || low.is_open || !low.magnitude.is_zero() {
            conditions.push((low.magnitude.at_least(tail), true));
        }
        conditions.extend(high.as_ref().map(|high| (high.magnitude.at_most(tail), true)));
        let open = [Some(low), high].into_iter().flatten().filter(|bound| bound.is_open);
        conditions.extend(open.map(|bound| (bound.magnitude.equal(tail), false)));
        Some(conditions)
    }
}

/// Whether no number is within two bounds that are not negative.
fn excludes_all(low: &Bound, high: &Bound, is_whole: bool) -> bool {
    match low.magnitude.cmp(&high.magnitude) {
        Ordering::Greater => true,
        Ordering::Equal => low.is_open || high.is_open,
        Ordering::Less => {
            let follows = || successor(&low.magnitude.whole) == high.magnitude.whole;
            is_whole && low.is_open && high.is_open && follows()
        }
    }
}

/// The whole number after the one with these digits.
fn successor(digits: &str) -> String {
    let kept = digits.trim_end_matches('9');
    let zeros = "0".repeat(digits.len() - kept.len());
    match kept.as_bytes().split_last() {
        Some((last, _)) => format!("{}{}{zeros}", &kept[..kept.len() - 1], char::from(last + 1)),
        None => format!("1{zeros}"),
    }
}

/// A bound of numbers.
#[derive(Debug, Clone)]
struct Bound {
    magnitude: Magnitude,
    /// Never of zero.
    is_negative: bool,
    /// Whether the bound itself is excluded.
    is_open: bool,
}

impl Bound {
    fn of(number: &Number, is_open: bool) -> Bound {
        let text = number.to_string();
        let magnitude = Magnitude::of(text.trim_start_matches('-'));
        let is_negative = text.starts_with('-') && !magnitude.is_zero();
        Bound { magnitude, is_negative, is_open }
    }

    fn zero() -> Bound {
        Bound { magnitude: Magnitude::of("0"), is_negative: false, is_open: false }
    }

    fn mirrored(&self) -> Bound {
        Bound { is_negative: !self.is_negative && !self.magnitude.is_zero(), ..self.clone() }
    }

    /// The bound of whole numbers, of which a fraction is none.
    fn whole(self, is_low: bool) -> Bound {
        let is_open = if self.magnitude.fraction.is_empty() { self.is_open } else { is_low };
        let magnitude = Magnitude { fraction: String::new(), ..self.magnitude };
        Bound { magnitude, is_open, ..self }
    }

    fn order(&self, other: &Bound) -> Ordering {
        match (self.is_negative, other.is_negative) {
            (false, false) => self.magnitude.cmp(&other.magnitude),
            (true, true) => other.magnitude.cmp(&self.magnitude),
            (is_negative, is_other_negative) => is_other_negative.cmp(&is_negative),
        }
    }
}

/// The digits of a number without its sign. As the fields are in order, so are the numbers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Magnitude {
    /// Number of digits before the point.
    length: usize,
    /// Digits before the point, without zeros that could be left out.
    whole: String,
    /// Digits behind the point, without zeros that could be left out.
    fraction: String,
}

impl Magnitude {
    /// Reads a number of JSON without a sign.
    fn of(text: &str) -> Magnitude {
        let (digits, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let zeros = |count: isize| "0".repeat(usize::try_from(count).unwrap_or(0));
        let digits = [whole, fraction].concat();
        let point = whole.len() as isize + exponent.parse::<isize>().unwrap_or(0);
        let digits = [&*zeros(-point), &*digits, &*zeros(point - digits.len() as isize)].concat();
        let (whole, fraction) = digits.split_at(usize::try_from(point).unwrap_or(0));
        let whole = whole.trim_start_matches('0');
        let whole = if whole.is_empty() { "0" } else { whole }.to_owned();
        Magnitude { length: whole.len(), whole, fraction: fraction.trim_end_matches('0').to_owned() }
    }

    fn is_zero(&self) -> bool {
        self.whole == "0" && self.fraction.is_empty()
    }

    /// Numbers from this one on; `tail` is the fraction that a number may have.
    fn at_least(&self, tail: &str) -> String {
        let (whole, length) = (&self.whole, self.length);
        // Behind the last digit that counts, numbers with the same digits are as large or larger.
        let counts = if self.fraction.is_empty() { whole.trim_end_matches('0').len() } else { length };
        let mut ways = vec![format!("[1-9][0-9]{{{length},}}{tail}")];
        for (at, digit) in whole[..counts].bytes().enumerate().filter(|(_, digit)| *digit < b'9') {
            let (same, larger, rest) = (spelled(&whole[..at]), char::from(digit + 1), length - at - 1);
            ways.push(format!("{same}[{larger}-9][0-9]{{{rest}}}{tail}"));
        }
        let same = spelled(&whole[..counts]);
        ways.push(match self.fraction.is_empty() {
            true => format!("{same}[0-9]{{{}}}{tail}", length - counts),
            false => format!("{same}\\.(?:{})", self.fractions_from()),
        });
        format!("(?:{})", ways.join("|"))
    }

    /// Fractions from that of this number on.
    fn fractions_from(&self) -> String {
        let larger = runs(&self.fraction).into_iter().filter(|run| run.digit < b'9').map(|run| {
            let (digit, larger) = (char::from(run.digit), char::from(run.digit + 1));
            let same = spelled(&self.fraction[..run.start]);
            format!("{same}{digit}{{0,{}}}[{larger}-9][0-9]*", run.length - 1)
        });
        let same = format!("{}[0-9]*", spelled(&self.fraction));
        larger.chain([same]).collect::<Vec<_>>().join("|")
    }

    /// Numbers up to this one; `tail` is the fraction that a number may have.
    fn at_most(&self, tail: &str) -> String {
        let (whole, length) = (&self.whole, self.length);
        let mut ways = Vec::new();
        if let Some(digits) = length.checked_sub(2) {
            ways.push(format!("(?:0|[1-9][0-9]{{0,{digits}}}){tail}"));
        }
        for (at, digit) in whole.bytes().enumerate() {
            let lowest = if at == 0 && length > 1 { b'1' } else { b'0' };
            if digit > lowest {
                let (lowest, smaller) = (char::from(lowest), char::from(digit - 1));
                let (same, rest) = (spelled(&whole[..at]), length - at - 1);
                ways.push(format!("{same}[{lowest}-{smaller}][0-9]{{{rest}}}{tail}"));
            }
        }
        ways.push(match self.fraction.is_empty() {
            true => self.equal(tail),
            false => format!("{}(?:\\.(?:{}))?", spelled(whole), self.fractions_to()),
        });
        format!("(?:{})", ways.join("|"))
    }

    /// Fractions up to that of this number.
    fn fractions_to(&self) -> String {
        let mut ways = vec![format!("{}0*", spelled(&self.fraction))];
        for run in runs(&self.fraction) {
            let (same, digit) = (spelled(&self.fraction[..run.start]), char::from(run.digit));
            if run.digit > b'0' {
                let (smaller, most) = (char::from(run.digit - 1), run.length - 1);
                ways.push(format!("{same}{digit}{{0,{most}}}[0-{smaller}][0-9]*"));
            }
            // The fraction ends early; as a whole it is there already.
            let is_last = run.start + run.length == self.fraction.len();
            let most = run.length - usize::from(is_last);
            if most > 0 {
                ways.push(format!("{same}{digit}{{1,{most}}}"));
            }
        }
        ways.join("|")
    }

    /// This number, which may have more zeros; `tail` is the fraction that a number may have.
    fn equal(&self, tail: &str) -> String {
        let whole = spelled(&self.whole);
        match (self.fraction.is_empty(), tail.is_empty()) {
            (true, true) => whole,
            (true, false) => format!("{whole}(?:\\.0+)?"),
            (false, _) => format!("{whole}\\.{}0*", spelled(&self.fraction)),
        }
    }
}

/// Equal digits behind each other.
struct Run {
    start: usize,
    length: usize,
    digit: u8,
}

fn runs(digits: &str) -> Vec<Run> {
    let mut end = 0;
    let run = |same: &[u8]| {
        let start = end;
        end += same.len();
        Run { start, length: same.len(), digit: same[0] }
    };
    digits.as_bytes().chunk_by(|a, b| a == b).map(run).collect()
}

/// Digits as an expression, in which long runs are counted: a number may have hundreds of zeros.
fn spelled(digits: &str) -> String {
    const COUNTED: usize = 8;
    let part = |run: Run| match run.length {
        COUNTED.. => format!("{}{{{}}}", char::from(run.digit), run.length),
        length => char::from(run.digit).to_string().repeat(length),
    };
    runs(digits).into_iter().map(part).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use regex_automata::meta::Regex;
    use serde_json::json;

    use super::*;

    /// The ways of a schema, to be asked about texts.
    struct Reader(Vec<(bool, Vec<(Regex, bool)>)>);

    impl Reader {
        fn of(is_whole: bool, schema: &Value) -> Reader {
            let condition = |(expression, holds): &(String, bool)| {
                (Regex::new(&format!("^(?:{expression})$")).unwrap(), *holds)
            };
            let way = |way: &Way| (way.is_negative, way.conditions.iter().map(condition).collect());
            Reader(ways(is_whole, schema.as_object().unwrap()).iter().map(way).collect())
        }

        fn allows(&self, text: &str) -> bool {
            let (is_negative, digits) = text.strip_prefix('-').map_or((false, text), |digits| (true, digits));
            self.0.iter().filter(|way| way.0 == is_negative).any(|(_, conditions)| {
                conditions.iter().all(|(expression, holds)| expression.is_match(digits) == *holds)
            })
        }
    }

    fn check(is_whole: bool, schema: Value, allowed: &[&str], refused: &[&str]) {
        let reader = Reader::of(is_whole, &schema);
        for (texts, expect) in [(allowed, true), (refused, false)] {
            for text in texts {
                assert_eq!(reader.allows(text), expect, "{schema} on {text}");
            }
        }
    }

    #[test]
    fn bounds_include_themselves_unless_they_are_open() {
        let half = json!({"exclusiveMinimum": 0, "maximum": 0.5});
        check(false, half, &["0.1", "0.5", "0.500"], &["0", "0.0", "-0", "-1", "0.51", "1"]);
        let below = json!({"minimum": -0.5, "exclusiveMaximum": 0});
        check(false, below, &["-0.1", "-0.5"], &["0", "-0", "-0.0", "0.1", "-0.51"]);
        let both = json!({"minimum": 2, "exclusiveMinimum": 2, "maximum": 3, "exclusiveMaximum": 4.5});
        check(false, both, &["2.01", "3", "3.0"], &["2", "2.0", "3.01", "1"]);
        check(
            true,
            json!({"exclusiveMinimum": -1.5, "maximum": 10}),
            &["-1", "0", "10"],
            &["-2", "11", "1.0"],
        );
        check(true, json!({"minimum": 1.2, "exclusiveMaximum": 3}), &["2"], &["1", "3"]);
        check(false, json!({"maximum": 0}), &["0", "-7", "-0.1"], &["0.1", "1"]);
    }

    #[test]
    fn bounds_may_be_of_any_size() {
        let (nines, zeros) = ("9".repeat(308), "0".repeat(292));
        let (largest, beyond) = (format!("17976931348623157{zeros}"), format!("17976931348623158{zeros}"));
        let schema = json!({"minimum": 0, "maximum": f64::MAX});
        check(false, schema, &["0", "0.5", &nines, &largest], &["-1", &beyond, &format!("{largest}.1")]);
        let least = json!({"minimum": i64::MIN});
        check(true, least, &["-9223372036854775808", "-1", "5", &nines], &["-9223372036854775809"]);
        let most = json!({"minimum": u64::MAX});
        check(true, most, &["18446744073709551615", &nines], &["18446744073709551614", "-1"]);
        let small = |zeros: usize, digits: &str| format!("0.{}{digits}", "0".repeat(zeros));
        let schema = json!({"exclusiveMinimum": 1e-300, "maximum": 2.5e-300});
        let allowed = [small(299, "10001"), small(299, "2"), small(299, "25")];
        let refused = [small(299, "1"), small(299, "26"), small(298, "1"), small(300, "9"), "0".to_owned()];
        check(
            false,
            schema,
            &allowed.each_ref().map(|text| &**text),
            &refused.each_ref().map(|text| &**text),
        );
    }

    #[test]
    fn bounds_that_exclude_every_number_are_known() {
        let excludes = |is_whole: bool, schema: Value| {
            assert_eq!(numbers(is_whole, schema.as_object().unwrap()), None, "{schema}");
        };
        excludes(true, json!({"minimum": 1.2, "maximum": 1.8}));
        excludes(true, json!({"exclusiveMinimum": 999, "exclusiveMaximum": 1000}));
        excludes(true, json!({"exclusiveMinimum": -3, "exclusiveMaximum": -2}));
        excludes(false, json!({"minimum": 2, "maximum": 1}));
        excludes(false, json!({"minimum": 2, "exclusiveMaximum": 2}));
    }

    /// A number of up to three places.
    fn decimal(most: i32) -> impl Strategy<Value = String> {
        (-most..most, 0_usize..4).prop_map(|(units, places)| {
            let (sign, units) = (if units < 0 { "-" } else { "" }, units.unsigned_abs());
            let unit = 10_u32.pow(places as u32);
            match places {
                0 => format!("{sign}{units}"),
                _ => format!("{sign}{}.{:0places$}", units / unit, units % unit),
            }
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(kvik_testing::effort(100, 2_000)))]

        #[test]
        fn numbers_are_within_their_bounds(
            bounds in prop::collection::vec(prop::option::of(decimal(300)), 4),
            texts in prop::collection::vec(decimal(1_200), 40),
            is_whole: bool,
        ) {
            let bound = |text: &Option<String>| text.as_ref().map(|text| serde_json::from_str::<Value>(text).unwrap());
            let bounds: Vec<Option<Value>> = bounds.iter().map(bound).collect();
            let given = BOUNDS.iter().zip(&bounds).filter_map(|(key, bound)| Some(((*key).to_owned(), bound.clone()?)));
            let reader = Reader::of(is_whole, &Value::Object(given.collect()));
            let limit = |at: usize, usual: f64| bounds[at].as_ref().and_then(Value::as_f64).unwrap_or(usual);
            for text in texts.iter().filter(|text| !is_whole || !text.contains('.')) {
                let number: f64 = text.parse().unwrap();
                let expect = number >= limit(0, f64::NEG_INFINITY) && number > limit(1, f64::NEG_INFINITY)
                    && number <= limit(2, f64::INFINITY) && number < limit(3, f64::INFINITY);
                prop_assert_eq!(reader.allows(text), expect, "{} within {:?}", text, &bounds);
            }
        }
    }
}

//! Patterns of existing dates and times, in the form that every common parser accepts.
//!
//! RFC 3339 also allows years before 1000, leap seconds, lower-case letters and fractions of any length.
//! Common parsers refuse some of these, and a model that has begun a fraction may never end it.

/// Two digits below 24, 60 and 60, and at most microseconds.
const CLOCK: &str = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?";
const ZONE: &str = r"(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
/// Days that every year has, or the leap day of a leap year.
const DAY: &str = concat!(
    r"(?:[1-9][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])",
    r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)",
    r"|02-(?:0[1-9]|1[0-9]|2[0-8]))",
    r"|(?:[1-9][0-9](?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26])00)-02-29)",
);

/// The pattern of a date or time format.
pub(super) fn pattern(format: &str) -> Option<String> {
    match format {
        "date" => Some(format!("^{DAY}$")),
        "time" => Some(format!("^{CLOCK}{ZONE}$")),
        "date-time" => Some(format!("^{DAY}T{CLOCK}{ZONE}$")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use regex_automata::meta::Regex;

    use super::*;

    fn check(format: &str, text: &str, expect: bool) {
        let regex = Regex::new(&pattern(format).unwrap()).unwrap();
        assert_eq!(regex.is_match(text), expect, "{format} {text}");
    }

    #[test]
    fn only_days_that_exist() {
        for year in [1000, 1600, 1900, 2000, 2023, 2024, 2100, 2400, 9996, 9999] {
            let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            for (month, days) in
                [31, 28 + i32::from(leap), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31].iter().enumerate()
            {
                for day in 0..=32 {
                    let text = format!("{year}-{:02}-{day:02}", month + 1);
                    check("date", &text, (1..=*days).contains(&day));
                }
            }
        }
        for text in ["0000-01-01", "0999-01-01", "2024-00-01", "2024-13-01", "24-01-01"] {
            check("date", text, false);
        }
    }

    #[test]
    fn times_end_and_have_a_zone() {
        for text in ["00:00:00Z", "23:59:59.123456+01:30", "12:00:00.5-23:59"] {
            check("time", text, true);
            check("date-time", &format!("2024-02-29T{text}"), true);
        }
        for text in [
            "24:00:00Z",
            "12:60:00Z",
            "12:00:60Z",
            "12:00:00",
            "12:00:00z",
            "12:00:00.1234567Z",
            "12:00:00.Z",
        ] {
            check("time", text, false);
            check("date-time", &format!("2024-02-29T{text}"), false);
        }
    }
}

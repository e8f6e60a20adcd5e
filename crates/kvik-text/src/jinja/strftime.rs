//! `strftime` in UTC, for the directives that chat templates use. The offset of the machine's time zone takes `unsafe`, or a
//! crate that is larger than this one.

use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

/// Bytes that a byte of a format becomes at most, until the year has ten digits: `%B` is as long as `September`.
pub(super) const GROWTH: usize = 8;

/// Formats a time; unknown directives stay unchanged.
pub(super) fn format(now: SystemTime, format: &str) -> String {
    let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let date = Date::new(seconds);
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let directive = chars.next();
        let (bare, directive) = match directive {
            Some('-') => (true, chars.next()),
            other => (false, other),
        };
        match directive.and_then(|directive| date.field(directive)) {
            Some(field) if bare => out.push_str(trim_zeros(&field)),
            Some(field) => out.push_str(&field),
            None => {
                out.push_str(if bare { "%-" } else { "%" });
                out.extend(directive);
            }
        }
    }
    out
}

fn trim_zeros(field: &str) -> &str {
    match field.trim_start_matches(['0', ' ']) {
        "" => "0",
        trimmed => trimmed,
    }
}

struct Date {
    year: u64,
    /// From 0.
    month: usize,
    day: u64,
    day_of_year: u64,
    /// Days since Thursday.
    weekday: usize,
    hour: u64,
    minute: u64,
    second: u64,
}

impl Date {
    fn new(seconds: u64) -> Date {
        let days = seconds / 86_400;
        let (mut year, mut left) = (1970, days);
        while left >= days_in_year(year) {
            left -= days_in_year(year);
            year += 1;
        }
        let day_of_year = left;
        let mut month = 0;
        while left >= days_in_month(year, month) {
            left -= days_in_month(year, month);
            month += 1;
        }
        Date {
            year,
            month,
            day: left + 1,
            day_of_year: day_of_year + 1,
            weekday: (days % 7) as usize,
            hour: seconds / 3600 % 24,
            minute: seconds / 60 % 60,
            second: seconds % 60,
        }
    }

    fn field(&self, directive: char) -> Option<String> {
        let hour12 = (self.hour + 11) % 12 + 1;
        Some(match directive {
            'Y' => self.year.to_string(),
            'y' => format!("{:02}", self.year % 100),
            'm' => format!("{:02}", self.month + 1),
            'B' => MONTHS[self.month].into(),
            'b' => MONTHS[self.month][..3].into(),
            'd' => format!("{:02}", self.day),
            'e' => format!("{:2}", self.day),
            'j' => format!("{:03}", self.day_of_year),
            'A' => DAYS[self.weekday].into(),
            'a' => DAYS[self.weekday][..3].into(),
            'H' => format!("{:02}", self.hour),
            'I' => format!("{hour12:02}"),
            'M' => format!("{:02}", self.minute),
            'S' => format!("{:02}", self.second),
            'p' => if self.hour < 12 { "AM" } else { "PM" }.into(),
            'F' => format!("{}-{:02}-{:02}", self.year, self.month + 1, self.day),
            'T' => format!("{:02}:{:02}:{:02}", self.hour, self.minute, self.second),
            '%' => "%".into(),
            _ => return None,
        })
    }
}

fn leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn days_in_year(year: u64) -> u64 {
    365 + u64::from(leap(year))
}

fn days_in_month(year: u64, month: usize) -> u64 {
    const DAYS: [u64; 12] = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    DAYS[month] + u64::from(month == 1 && leap(year))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn formats_match_python() {
        let check = |seconds: u64, text: &str, expect: &str| {
            assert_eq!(format(UNIX_EPOCH + Duration::from_secs(seconds), text), expect);
        };
        check(0, "%Y-%m-%d %H:%M:%S %A %j", "1970-01-01 00:00:00 Thursday 001");
        check(1_709_210_096, "%d %b %Y, %I:%M %p", "29 Feb 2024, 12:34 PM");
        check(1_709_210_096, "%B %-d %y %a %F %T %%", "February 29 24 Thu 2024-02-29 12:34:56 %");
        check(1_735_689_599, "%-m/%-d/%Y", "12/31/2024");
        check(0, "%Q %-Q %", "%Q %-Q %");
        assert_eq!(format(UNIX_EPOCH - Duration::from_secs(9), "%Y"), "1970");
    }
}

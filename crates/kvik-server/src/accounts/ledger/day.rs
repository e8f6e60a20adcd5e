//! UTC days, the unit of the ledger.

use std::{fmt, str::FromStr, time::SystemTime};

const SECONDS_PER_DAY: u64 = 24 * 3600;

/// A day, counted from 1970-01-01; prints as `2026-11-21`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Day(u32);

impl Day {
    /// The day of a point in time. A time before 1970 or after 9999 gives the first or last day.
    pub fn of(time: SystemTime) -> Day {
        let seconds = time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs());
        Day(u32::try_from(seconds / SECONDS_PER_DAY).unwrap_or(u32::MAX).min(Day::LAST))
    }

    /// 9999-12-31: later years would not sort as text.
    const LAST: u32 = 2_932_896;
}

impl fmt::Display for Day {
    /// Counts in eras of 400 years that begin on 1 March, so that the leap day is an era's last.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let days = u64::from(self.0) + 719_468;
        let (era, day) = (days / 146_097, days % 146_097);
        let year_of_era = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
        let day_of_year = day - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month = (5 * day_of_year + 2) / 153;
        let day_of_month = day_of_year - (153 * month + 2) / 5 + 1;
        let (month, next_year) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
        write!(f, "{:04}-{month:02}-{day_of_month:02}", era * 400 + year_of_era + next_year)
    }
}

impl FromStr for Day {
    type Err = String;

    fn from_str(text: &str) -> Result<Day, String> {
        let bad = || format!("`{text}` is not a day; write it like 2026-11-21");
        let number =
            |range| text.get(range).and_then(|digits: &str| digits.parse::<u32>().ok()).ok_or_else(bad);
        let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
        if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
            return Err(bad());
        }
        let (year, shifted) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
        let (era, of_era) = (year / 400, year % 400);
        let day_of_era = of_era * 365 + of_era / 4 - of_era / 100 + (153 * shifted + 2) / 5 + day - 1;
        let days = Day((era * 146_097 + day_of_era).checked_sub(719_468).ok_or_else(bad)?);
        // The calculation takes 31 April for 1 May and accepts "2026-1-1x"; formatting it back detects both.
        if days.to_string() == text { Ok(days) } else { Err(bad()) }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        // `date -u -d @SECONDS +%F`
        let check = |seconds: u64, text: &str| {
            assert_eq!(Day::of(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)).to_string(), text);
        };
        check(0, "1970-01-01");
        check(86_399, "1970-01-01");
        check(86_400, "1970-01-02");
        check(951_782_400, "2000-02-29");
        check(951_868_800, "2000-03-01");
        check(1_795_267_432, "2026-11-21");
        check(4_107_542_400, "2100-03-01");
        check(253_402_300_799, "9999-12-31");
        check(u64::MAX / 1_000_000_000, "2554-07-21");
    }

    #[test]
    fn a_clock_before_1970_is_the_first_day() {
        let before = SystemTime::UNIX_EPOCH - Duration::from_secs(86_400);
        assert_eq!(Day::of(before).to_string(), "1970-01-01");
    }

    #[test]
    fn every_day_reads_back_and_sorts_as_text() {
        let mut before = String::new();
        for day in (0..Day::LAST).step_by(13).chain([Day::LAST]) {
            let text = Day(day).to_string();
            assert_eq!(text.parse(), Ok(Day(day)));
            assert!(before < text);
            before = text;
        }
    }

    #[test]
    fn invalid_texts_are_refused() {
        for text in [
            "",
            "today",
            "2026-11",
            "2026-13-01",
            "2026-02-29",
            "2026-04-31",
            "1969-12-31",
            "2026-11-021",
            "20261121",
            "2026-11-2é",
        ] {
            assert!(text.parse::<Day>().is_err(), "{text}");
        }
    }
}

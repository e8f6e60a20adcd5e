//! Bytes written to a disk: today, and since they are counted.

use crate::tier::clock::{CLOCKS_FROM, DAY_S, is_set, was_ahead};

/// Days of a year.
const YEAR_DAYS: f64 = 365.25;

/// Bytes written, as of the last write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wear {
    /// The day of the last write, in days since 1970.
    pub day: u64,
    /// Bytes written on that day.
    pub day_bytes: u64,
    /// The first day that is counted, in days since 1970.
    pub first_day: u64,
    /// Bytes written since then.
    pub bytes: u64,
}

impl Wear {
    /// Counts bytes that are written now, in seconds since 1970. A clock that was set back counts on the later day.
    pub fn add(&mut self, bytes: u64, now_s: u64) {
        let day = now_s / DAY_S;
        *self = self.at(now_s);
        if self.first_day < CLOCKS_FROM {
            // Nothing was counted yet, or only by a clock that was not set.
            let day_bytes = self.today(now_s);
            *self = Wear { day: self.day.max(day), day_bytes, first_day: day, bytes: day_bytes };
        }
        if day > self.day {
            (self.day, self.day_bytes) = (day, 0);
        }
        self.day_bytes = self.day_bytes.saturating_add(bytes);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// What of the counts can be right at this time: the day of a clock that was far ahead was not that day.
    #[must_use]
    pub fn at(&self, now_s: u64) -> Wear {
        if !was_ahead(self.day.saturating_mul(DAY_S), now_s) {
            return *self;
        }
        let day = now_s / DAY_S;
        Wear { day, day_bytes: 0, first_day: self.first_day.min(day), bytes: self.bytes }
    }

    /// Bytes written today.
    pub fn today(&self, now_s: u64) -> u64 {
        let Wear { day, day_bytes, .. } = self.at(now_s);
        if now_s / DAY_S > day { 0 } else { day_bytes }
    }

    /// Bytes that a year would come to at the mean rate of the days so far, today included.
    pub fn year(&self, now_s: u64) -> u64 {
        let Wear { day, first_day, bytes, .. } = self.at(now_s);
        let days = (now_s / DAY_S).max(day) - first_day.min(day) + 1;
        (bytes as f64 / days as f64 * YEAR_DAYS) as u64
    }

    /// The sum of two counts of one disk, as of this time. The clock may have been set back between them, so each has a
    /// day of its own.
    #[must_use]
    pub fn plus(&self, other: &Wear, now_s: u64) -> Wear {
        let both = [self.at(now_s), other.at(now_s)];
        let latest = both[0].day.max(both[1].day);
        let day = if is_set(now_s) { latest.min(now_s / DAY_S) } else { latest };
        let counted = both.iter().filter(|wear| wear.bytes > 0);
        let first = counted.map(|wear| wear.first_day).filter(|&day| day >= CLOCKS_FROM).min();
        Wear {
            day,
            day_bytes: both[0].today(now_s).saturating_add(both[1].today(now_s)),
            first_day: first.map_or(day, |first| first.min(day)),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }

    /// Reads what [`Display`](std::fmt::Display) writes; `None` for anything else.
    pub fn parse(text: &str) -> Option<Wear> {
        let mut numbers = text.split_ascii_whitespace().map(|number| number.parse::<u64>().ok());
        let mut next = || numbers.next()?;
        let wear = Wear { day: next()?, day_bytes: next()?, first_day: next()?, bytes: next()? };
        (wear.first_day <= wear.day && wear.day_bytes <= wear.bytes && numbers.next().is_none())
            .then_some(wear)
    }
}

impl std::fmt::Display for Wear {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Wear { day, day_bytes, first_day, bytes } = self;
        write!(f, "{day} {day_bytes} {first_day} {bytes}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Some day.
    const DAY: u64 = 20_000;

    /// The beginning of the day so many days later.
    fn after(days: u64) -> u64 {
        (DAY + days) * DAY_S
    }

    #[test]
    fn a_day_is_counted_until_the_next_begins() {
        let mut wear = Wear::default();
        wear.add(10, after(0));
        wear.add(5, after(1) - 1);
        assert_eq!((wear.today(after(1) - 1), wear.today(after(1))), (15, 0));
        wear.add(1, after(1));
        assert_eq!((wear.today(after(1)), wear.bytes, wear.first_day), (1, 16, DAY));
        wear.add(2, after(0));
        assert_eq!(
            (wear.today(after(1)), wear.today(after(0))),
            (3, 3),
            "a clock that was set back frees no budget"
        );
    }

    #[test]
    fn a_clock_that_was_wrong_leaves_no_day_behind() {
        let mut ahead = Wear::default();
        ahead.add(7, after(400));
        assert_eq!((ahead.today(after(0)), ahead.today(after(400))), (0, 7));
        ahead.add(1, after(0));
        assert_eq!(ahead, Wear { day: DAY, day_bytes: 1, first_day: DAY, bytes: 8 });
        ahead.add(3, 60);
        assert_eq!((ahead.today(60), ahead.today(after(0))), (4, 4), "a clock that is not set yet");
        let mut unset = Wear::default();
        unset.add(5, 60);
        assert_eq!((unset.today(60), unset.today(after(0))), (5, 0));
        unset.add(2, after(0));
        assert_eq!((unset.first_day, unset.year(after(0))), (DAY, 730));
    }

    #[test]
    fn a_year_goes_on_as_the_days_so_far() {
        let mut wear = Wear::default();
        assert_eq!(wear.year(9 * DAY_S), 0);
        wear.add(100, after(0));
        assert_eq!(wear.year(after(0)), 36_525);
        assert_eq!(wear.year(after(1)), 18_262, "two days, one of them without a write");
    }

    #[test]
    fn counts_add_up() {
        let of = |day, day_bytes, first_day, bytes| Wear {
            day: DAY + day,
            day_bytes,
            first_day: DAY + first_day,
            bytes,
        };
        let now_s = after(9);
        let sum = of(9, 5, 3, 50).plus(&of(9, 2, 4, 20), now_s);
        assert_eq!(sum, of(9, 7, 3, 70));
        let yesterday = of(8, 5, 3, 50);
        assert_eq!(yesterday.plus(&of(9, 2, 9, 2), now_s), of(9, 2, 3, 52), "yesterday's are not today's");
        assert_eq!(Wear::default().plus(&of(9, 2, 4, 20), now_s), of(9, 2, 4, 20));
        let unset = Wear { first_day: 0, ..of(9, 1, 0, 3) };
        let sum = unset.plus(&of(9, 2, 4, 20), now_s);
        assert_eq!(sum, of(9, 3, 4, 23), "a clock that was not set tells no day");
        let sum = of(9, 5, 3, 50).plus(&of(9, 2, 4, 20), 60);
        assert_eq!(sum, of(9, 7, 3, 70), "nor does one that is not set yet");
    }

    /// The clock of one store was set back by hours over midnight: its bytes count today, and so do those of the others.
    #[test]
    fn a_count_of_tomorrow_hides_none_of_today() {
        let of = |day, bytes| Wear { day: DAY + day, day_bytes: bytes, first_day: DAY + day, bytes };
        let (today, tomorrow, later) = (of(9, 50), of(10, 2), of(400, 9));
        let sums = [[today, tomorrow, later], [tomorrow, later, today], [later, today, tomorrow]];
        for [a, b, c] in sums {
            let sum = a.plus(&b, after(9)).plus(&c, after(9));
            assert_eq!((sum.today(after(9)), sum.bytes), (52, 61));
            let sum = a.plus(&b, after(10)).plus(&c, after(10));
            assert_eq!((sum.today(after(10)), sum.bytes), (2, 61));
        }
    }

    #[test]
    fn the_state_is_read_as_written_and_nothing_else() {
        let wear = Wear { day: 20_786, day_bytes: 7, first_day: 20_001, bytes: u64::MAX };
        assert_eq!(Wear::parse(&wear.to_string()), Some(wear));
        for bad in ["", "1 2 3", "1 2 3 4 5", "1 2 1 1", "1 0 2 0", "a b c d", "-1 0 0 0", "9e9 0 0 0"] {
            assert_eq!(Wear::parse(bad), None, "{bad:?}");
        }
    }
}

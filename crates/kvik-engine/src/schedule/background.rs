//! The background's share of a step. In steps with other sequences it gets as many rows as hardly lengthen the step; in
//! a step of its own, as many as keep the step short.
//!
//! ```text
//!   rows of others │ rows that fill their last group │ further groups, while a step with them is measured
//!                  │ and a sixteenth                 │ to take less than a tenth longer
//! ```
//!
//! Decoding is bound by memory bandwidth: reading the weights takes about as long for a few rows as for one, so on most
//! machines a group or two cost little; where they do not, the measured steps show it. A row is a token of a prompt,
//! the next token of an answer, or a draft token after that; only rows that the foreground could not have used are
//! taken.
//!
//! A background request that lags behind its [pace](crate::api::Pace) also takes time from other sequences. For a
//! prompt, the step gets as many rows as lengthen it by that share, and there are steps for the background alone in
//! between; an answer gets one token per step, however many rows the step has.

use std::time::Duration;

use super::cost::Cost;
use super::plan::{Kind, Plan};
use super::running::Running;
use super::sequence::Sequence;
use crate::config::{BACKGROUND_GROUPS, ROWS_AT_A_TIME, background_rows, background_rows_max};

/// Further groups must keep a step below this factor of its time without them.
const LONGER: f64 = 1.1;
/// A step without further groups is measured once in this many steps, and halfway between two of these one with an
/// additional group.
const COMPARED: usize = 16;
/// A number of groups that made steps too long is tried again after this many steps.
const TRY_AGAIN: usize = 128;
/// Target time of a step of the background alone; a request that arrives then waits at most this long.
const ALONE: Duration = Duration::from_millis(150);
/// Minimum rows of such a step: with fewer it would hardly be shorter.
const ALONE_ROWS_MIN: usize = 2 * ROWS_AT_A_TIME;
/// Prompt rows of a background step that the foreground owes: with fewer its rows cost more, with more the foreground
/// waits long.
const OWN_ROWS: usize = 4 * ROWS_AT_A_TIME;
/// Maximum debt in seconds, so that the steps of the foreground are lengthened evenly.
const OWED_MAX: f64 = 0.25;

/// Measured times of steps with background rows.
#[derive(Debug, Default)]
pub(super) struct BackgroundShare {
    /// Of steps in which the foreground decodes.
    cost: Cost,
    /// Steps in which the foreground decodes together with background rows.
    steps: usize,
    /// Seconds per row in steps of the background alone.
    alone: Option<f64>,
    /// Seconds of foreground time that the urgent background is still owed.
    owed: f64,
}

impl BackgroundShare {
    /// Gives the background its rows in addition to `rows` of the foreground and `drafted` draft tokens; returns how
    /// many it leaves.
    pub(super) fn share(&mut self, running: &Running, rows: &mut [usize], drafted: usize) -> usize {
        let foreground = running.foreground();
        let own: usize = rows[..foreground].iter().sum();
        if own == 0 || foreground == rows.len() {
            return 0;
        }
        let all_decode = rows[..foreground].iter().all(|&rows| rows <= 1);
        let urgent = self.urgent_rows(own + drafted, all_decode, running.urgency());
        let mut left = self.rows(own + drafted, all_decode).max(urgent);
        for (index, rows) in rows.iter_mut().enumerate().skip(foreground) {
            *rows = running.due(index).min(left);
            left -= *rows;
        }
        left
    }

    /// Background rows next to `others`, which is not 0; `all_decode` if none of those is of a prompt.
    fn rows(&mut self, others: usize, all_decode: bool) -> usize {
        let least = background_rows(others);
        if !all_decode {
            return least;
        }
        self.steps += 1;
        least + ROWS_AT_A_TIME * self.groups(others + least)
    }

    /// Rows that lengthen a step with `others` foreground rows by the share `urgency`; a prompt row costs as much as
    /// another.
    fn urgent_rows(&self, others: usize, all_decode: bool, urgency: f64) -> usize {
        let as_long = match self.alone {
            Some(row) if all_decode && self.cost.is_measured() => self.cost.of(others) / row,
            _ => others as f64,
        };
        ((urgency * as_long) as usize).min(background_rows_max(others))
    }

    /// Prompt rows of a step for the urgent background alone, if the foreground owes it one.
    pub(super) fn own_step(&self, running: &Running) -> Option<usize> {
        if self.owed == 0.0 || running.iter().any(Sequence::is_suspect) {
            return None;
        }
        let due = || (running.foreground()..running.len()).map(move |index| running.due(index));
        let answers = due().filter(|&due| due == 1).count();
        let prompts = due().any(|due| due > 1);
        match self.alone.filter(|_| prompts && answers == 0) {
            Some(row) => (self.owed >= OWN_ROWS as f64 * row).then_some(OWN_ROWS),
            None => (answers > 0 && self.owed >= self.cost.of(answers)).then_some(0),
        }
    }

    /// Further groups in a step with `plain` rows.
    fn groups(&self, plain: usize) -> usize {
        let most = self.groups_max(plain);
        let more = plain + ROWS_AT_A_TIME * (most + 1);
        let is_due = self.steps % TRY_AGAIN == COMPARED / 2 || self.cost.measured(more).is_none();
        match self.steps % COMPARED {
            0 => 0,
            at if at == COMPARED / 2 && is_due => (most + 1).min(BACKGROUND_GROUPS),
            _ => most,
        }
    }

    /// The largest number of groups that is measured to cost hardly anything.
    fn groups_max(&self, plain: usize) -> usize {
        let Some(time) = self.cost.measured(plain) else { return 0 };
        let costs_little = |groups: &usize| {
            let longer = self.cost.measured(plain + ROWS_AT_A_TIME * groups);
            longer.is_some_and(|longer| longer < LONGER * time)
        };
        (1..=BACKGROUND_GROUPS).take_while(costs_little).last().unwrap_or(0)
    }

    /// Rows of a step of the background alone, at most `most`.
    pub(super) fn alone(&self, most: usize) -> usize {
        let Some(row) = self.alone else { return most };
        let rows = (ALONE.as_secs_f64() / row) as usize;
        let whole = rows - rows % ROWS_AT_A_TIME;
        whole.max(ALONE_ROWS_MIN).min(most)
    }

    /// Records how long a step took.
    pub(super) fn note(&mut self, plan: &Plan, running: &Running, elapsed: Duration) {
        let (rows, time, foreground) = (plan.rows.len(), elapsed.as_secs_f64(), running.foreground());
        let mut others = plan.spans.iter().take_while(|span| span.index < foreground).peekable();
        self.owe(plan, running, time);
        if others.peek().is_none() {
            let row = time / rows as f64;
            if rows >= ALONE_ROWS_MIN && time > 0.0 {
                self.alone = Some(self.alone.map_or(row, |mean| (mean + row) / 2.0));
            }
        } else if others.all(|span| span.rows - span.draft.tokens.len() == 1 && span.kind == Kind::Tokens) {
            self.cost.note(rows, elapsed);
        }
    }

    /// Adds the urgent background's share of the foreground's time to the debt, and subtracts the time it has had.
    fn owe(&mut self, plan: &Plan, running: &Running, time: f64) {
        let (urgency, foreground) = (running.urgency(), running.foreground());
        if urgency == 0.0 {
            self.owed = 0.0;
            return;
        }
        let of_others = plan.spans.iter().take_while(|span| span.index < foreground);
        let others: usize = of_others.map(|span| span.rows).sum();
        let own = match others {
            0 => 0.0,
            _ if self.cost.is_measured() && others <= ROWS_AT_A_TIME => self.cost.of(others).min(time),
            _ => time * others as f64 / plan.rows.len() as f64,
        };
        self.owed = (self.owed + urgency * own - (time - own)).clamp(0.0, OWED_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates `count` steps in which the background runs next to one foreground row and a step takes `millis(rows)`;
    /// returns the background's rows.
    fn steps(background: &mut BackgroundShare, count: usize, millis: impl Fn(usize) -> u64) -> Vec<usize> {
        let step = |_| {
            let rows = background.rows(1, true);
            background.cost.note(1 + rows, Duration::from_millis(millis(1 + rows)));
            rows
        };
        (0..count).map(step).collect()
    }

    #[test]
    fn groups_that_cost_nothing_are_filled() {
        let mut background = BackgroundShare::default();
        let rows = steps(&mut background, 100, |_| 40);
        assert_eq!((rows[0], rows[90]), (3, 3 + 4 * BACKGROUND_GROUPS));
        assert!(
            rows.windows(2).all(|pair| pair[1] <= pair[0] + 4 || pair[0] == 3),
            "one more at a time: {rows:?}"
        );
        let wide: Vec<usize> =
            steps(&mut BackgroundShare::default(), 400, |rows| if rows <= 8 { 40 } else { 80 });
        let tried = wide.iter().filter(|&&rows| rows > 7).count();
        assert!((1..=4).contains(&tried), "a larger group is tried seldom: {tried} times");
        assert_eq!(
            wide.iter().filter(|&&rows| rows == 7).count(),
            400 - tried - wide.iter().filter(|&&rows| rows == 3).count()
        );
    }

    #[test]
    fn what_is_urgent_makes_steps_longer_by_its_share() {
        let mut background = BackgroundShare::default();
        assert_eq!(background.urgent_rows(20, false, 0.5), 10, "a row of a prompt takes what another does");
        assert_eq!(background.urgent_rows(1, true, 0.5), 0, "nothing was measured");
        background.cost.note(1, Duration::from_millis(30));
        background.alone = Some(0.002);
        let rows = [0.0, 0.1, 0.2, 0.5, 1.0].map(|urgency| background.urgent_rows(1, true, urgency));
        assert_eq!(rows, [0, 1, 3, 7, 15]);
        assert_eq!(
            background.urgent_rows(512, false, 4.0),
            background_rows_max(512),
            "the batch has room for no more"
        );
    }

    #[test]
    fn groups_that_cost_time_are_left_out_and_found_again_when_they_do_not() {
        let mut background = BackgroundShare::default();
        let rows = steps(&mut background, 400, |rows| 30 + 10 * rows.div_ceil(4) as u64);
        assert!(rows.iter().filter(|&&rows| rows > 3).count() <= 4, "{rows:?}");
        let rows = steps(&mut background, 4000, |_| 40);
        assert_eq!(rows[3900], 3 + 4 * BACKGROUND_GROUPS);
        let rows = steps(&mut background, 400, |rows| 30 + 10 * rows.div_ceil(4) as u64);
        assert_eq!(rows[390], 3, "and left out again");
        assert_eq!(background.rows(64, false), 4, "beside a prompt it gets its part alone");
    }

    #[test]
    fn alone_it_takes_steps_that_are_short() {
        let mut background = BackgroundShare::default();
        assert_eq!(background.alone(64), 64);
        let mut rows = 64;
        for _ in 0..30 {
            let row = (0.030 + 0.005 * rows as f64) / rows as f64;
            background.alone = Some(background.alone.map_or(row, |mean| (mean + row) / 2.0));
            rows = background.alone(64);
        }
        assert!((20..=24).contains(&rows), "{rows}");
        background.alone = Some(10.0);
        assert_eq!(background.alone(64), ALONE_ROWS_MIN);
        background.alone = Some(1e-6);
        assert_eq!((background.alone(64), background.alone(4)), (64, 4));
    }
}

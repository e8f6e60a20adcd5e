//! How likely a conversation goes on, by its number of turns and by how long it has paused: life tables (Kaplan and
//! Meier, 1958) over pauses whose lengths are powers of two. Most prompts are asked once, and a conversation that went
//! on goes on again.
//!
//! Ends that have neither gone on nor been dropped yet count for the lengths that they have reached.

use std::time::Duration;

/// Classes of pauses: under 1 s, under 3 s, under 7 s, and so on; the last one begins after 97 days.
const CLASSES: usize = 24;
/// Life tables: of first turns, of second and third ones, of those up to the seventh, and of later ones.
const TABLES: usize = 4;
/// The chance that is predicted looks this many classes ahead: until a pause four times as long. What is further off
/// is seen too rarely to be known.
const AHEAD: usize = 2;
/// Observations that an assumption weighs in each class.
const ASSUMED: f64 = 2.0;
/// Observations after which older ones count half.
const MEMORY: f64 = 1024.0;

/// The pauses seen so far.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Returns([LifeTable; TABLES]);

/// Assumption about pauses that were never seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Assumption {
    /// A quarter of the ends goes on in each class: what is not written is lost.
    GoOn,
    /// One end of forty does: it can still be seen to come back.
    Stay,
}

impl Assumption {
    /// How many of the assumed observations go on.
    fn returns(self) -> f64 {
        match self {
            Assumption::GoOn => ASSUMED / 4.0,
            Assumption::Stay => ASSUMED / 40.0,
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct LifeTable {
    /// Ends that paused through a class, or went on within it.
    reached: [f64; CLASSES],
    /// Ends that went on within a class.
    returned: [f64; CLASSES],
}

impl Returns {
    /// The class of a pause.
    pub(super) fn class(pause: Duration) -> usize {
        let class = pause.as_secs().saturating_add(1).ilog2() as usize;
        class.min(CLASSES - 1)
    }

    /// Notes that the end of this turn, counted from 1, has paused through these classes.
    pub(super) fn passed(&mut self, turn: u32, classes: std::ops::Range<usize>) {
        let table = self.table_mut(turn);
        table.reached[classes].iter_mut().for_each(|reached| *reached += 1.0);
        table.forget_slowly();
    }

    /// Notes that the end of this turn, which has paused through the classes before this one, went on within it.
    pub(super) fn went_on(&mut self, turn: u32, class: usize) {
        let table = self.table_mut(turn);
        table.reached[class] += 1.0;
        table.returned[class] += 1.0;
        table.forget_slowly();
    }

    /// The chance that the end of this turn, which has paused for so long, goes on before its pause is four times as long.
    pub(super) fn chance(&self, turn: u32, pause: Duration, assumed: Assumption) -> f64 {
        let (table, first) = (&self.0[table_index(turn)], Returns::class(pause));
        let classes = first..(first + AHEAD).min(CLASSES);
        let stays = classes.map(|class| {
            1.0 - (table.returned[class] + assumed.returns()) / (table.reached[class] + ASSUMED)
        });
        1.0 - stays.product::<f64>()
    }

    fn table_mut(&mut self, turn: u32) -> &mut LifeTable {
        &mut self.0[table_index(turn)]
    }
}

fn table_index(turn: u32) -> usize {
    (turn.max(1).ilog2() as usize).min(TABLES - 1)
}

impl LifeTable {
    fn forget_slowly(&mut self) {
        for (reached, returned) in self.reached.iter_mut().zip(&mut self.returned) {
            if *reached > MEMORY {
                (*reached, *returned) = (*reached / 2.0, *returned / 2.0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn pauses_fall_into_classes() {
        let classes = [0, 1, 2, 3, 6, 7, 14, 15, u64::MAX].map(|pause| Returns::class(seconds(pause)));
        assert_eq!(classes, [0, 1, 1, 2, 2, 3, 3, 4, CLASSES - 1]);
    }

    #[test]
    fn nothing_known_is_worth_a_try_and_what_never_came_back_is_not() {
        let mut returns = Returns::default();
        let chance = |returns: &Returns, turn, pause| returns.chance(turn, seconds(pause), Assumption::GoOn);
        assert!(chance(&returns, 1, 0) > 0.4 && chance(&returns, 1, 1 << 40) > 0.2);
        assert!(returns.chance(1, seconds(0), Assumption::Stay) < 0.1);
        for _ in 0..100 {
            returns.passed(1, 0..4);
            returns.went_on(1, 4);
            returns.passed(1, 0..12);
        }
        assert!(chance(&returns, 1, 10) > 0.45, "half of them went on within 30 s");
        assert!(chance(&returns, 1, 60) < 0.05, "none after a minute, of those seen for an hour");
        assert!(chance(&returns, 1, 1 << 20) > 0.4, "nobody knows about two weeks");
        assert!(chance(&returns, 2, 60) > 0.4, "nor about the pause after another turn");
    }

    #[test]
    fn habits_change() {
        let mut returns = Returns::default();
        (0..5000).for_each(|_| returns.went_on(1, 6));
        (0..5000).for_each(|_| returns.passed(1, 0..9));
        assert!(returns.chance(1, seconds(100), Assumption::GoOn) < 0.05);
        assert!(returns.0[0].reached.iter().all(|&reached| reached <= MEMORY + 1.0));
    }
}

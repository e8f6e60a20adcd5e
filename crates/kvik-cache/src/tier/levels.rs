//! The tiers below RAM, as one ordered list, and numbers of blocks or tokens in each of them.

use std::iter::Sum;
use std::ops::{AddAssign, Index, IndexMut};

/// A tier below RAM; the faster one is less.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Host memory, where the blocks in use are in device memory.
    Host,
    /// The disk of this node.
    Disk,
    /// The store that nodes share.
    Remote,
}

impl Level {
    /// All of them, the fastest first.
    pub const ALL: [Level; 3] = [Level::Host, Level::Disk, Level::Remote];

    /// Its name in reports and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Level::Host => "host",
            Level::Disk => "disk",
            Level::Remote => "remote",
        }
    }
}

/// A number of blocks or of tokens in each tier below RAM.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ByLevel<T = usize>([T; Level::ALL.len()]);

impl<T: Copy> ByLevel<T> {
    /// The same number in each tier.
    pub const fn each(count: T) -> ByLevel<T> {
        ByLevel([count; Level::ALL.len()])
    }

    /// The numbers as another type.
    pub fn map<U>(self, convert: impl FnMut(T) -> U) -> ByLevel<U> {
        ByLevel(self.0.map(convert))
    }

    /// The sum.
    pub fn total(self) -> T
    where
        T: Sum,
    {
        self.0.into_iter().sum()
    }
}

impl ByLevel {
    /// All in one tier.
    pub fn of(level: Level, count: usize) -> ByLevel {
        let mut all = ByLevel::default();
        all[level] = count;
        all
    }

    /// Each tier that has any, the fastest first.
    pub fn iter(self) -> impl DoubleEndedIterator<Item = (Level, usize)> {
        Level::ALL.into_iter().zip(self.0).filter(|&(_, count)| count > 0)
    }

    /// The slowest tier that has any, for which a reader of all of them waits.
    pub fn slowest(self) -> Option<Level> {
        self.iter().next_back().map(|(level, _)| level)
    }

    /// The part that is at most `most`, of the slowest tiers first.
    pub fn at_most(self, mut most: usize) -> ByLevel {
        let mut part = ByLevel::default();
        for (level, count) in self.iter().rev() {
            part[level] = count.min(most);
            most -= part[level];
        }
        part
    }

    /// `total` in the same proportions; the slowest tier gets what rounding leaves.
    pub fn scaled(self, total: usize) -> ByLevel {
        let Some(slowest) = self.slowest() else { return ByLevel::default() };
        let mut part = self.map(|count| total * count / self.total());
        part[slowest] += total - part.total();
        part
    }
}

impl<T: Copy + AddAssign> AddAssign for ByLevel<T> {
    fn add_assign(&mut self, other: ByLevel<T>) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, more)| *sum += more);
    }
}

impl<T> Index<Level> for ByLevel<T> {
    type Output = T;

    fn index(&self, level: Level) -> &T {
        &self.0[level as usize]
    }
}

impl<T> IndexMut<Level> for ByLevel<T> {
    fn index_mut(&mut self, level: Level) -> &mut T {
        &mut self.0[level as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers in the fastest and in the slowest tier.
    fn ends(fastest: usize, slowest: usize) -> ByLevel {
        let mut all = ByLevel::of(Level::ALL[0], fastest);
        all[Level::Remote] = slowest;
        all
    }

    #[test]
    fn the_slowest_tiers_count_first() {
        let all = ends(3, 5);
        assert_eq!((all.total(), all.slowest()), (8, Some(Level::Remote)));
        assert_eq!(
            [0, 4, 6, 9].map(|most| all.at_most(most)),
            [ends(0, 0), ends(0, 4), ends(1, 5), ends(3, 5)]
        );
        assert_eq!([0, 4, 8].map(|total| all.scaled(total)), [ends(0, 0), ends(1, 3), ends(3, 5)]);
        assert_eq!(ByLevel::default().scaled(4), ByLevel::default());
        assert_eq!(ByLevel::of(Level::Disk, 2).iter().collect::<Vec<_>>(), [(Level::Disk, 2)]);
        assert_eq!(ByLevel::default().slowest(), None);
        let numbers: Vec<usize> = Level::ALL.iter().map(|&level| level as usize).collect();
        assert!(Level::ALL.is_sorted() && numbers == (0..Level::ALL.len()).collect::<Vec<_>>());
    }
}

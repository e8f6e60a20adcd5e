//! The rhythm of a block: the octave of its last pause between two uses, which tells the next one.
//!
//! A session uses its blocks together, and what it adds pauses as what came before it did. So a new block takes the
//! rhythm of the block before it.

/// The octave of a block's last pause, or of the last pause of the blocks before it; 0 where there was none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Rhythm(u8);

/// Number of rhythms: none, and pauses of up to half a second, one, two and so on up to two hours, in milliseconds.
pub(crate) const RHYTHMS: usize = 16;
/// The shortest octave that has a rhythm of its own.
const OCTAVE_MIN: u32 = 9;

impl Rhythm {
    /// The rhythm of a block that was used again after `pause`.
    pub(crate) fn of(pause: u64) -> Rhythm {
        let octave = pause.max(1).ilog2().saturating_sub(OCTAVE_MIN - 1);
        Rhythm(1 + octave.min(RHYTHMS as u32 - 2) as u8)
    }

    pub(crate) fn index(self) -> usize {
        self.0.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rhythm_is_an_octave_of_pauses() {
        let of = |pause| Rhythm::of(pause).index();
        assert_eq!([0, 1, 511, 512, 1023, 1024, 60_000].map(of), [1, 1, 1, 2, 2, 3, 8]);
        assert_eq!([1 << 21, 1 << 40].map(of), [14, RHYTHMS - 1]);
        assert_eq!(Rhythm::default().index(), 0);
    }
}

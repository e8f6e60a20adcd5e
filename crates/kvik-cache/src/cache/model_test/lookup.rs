//! Lookups, of whole prompts and for sequences that may reuse a part: the reason why a match ends, compared with the
//! twin's.

use super::{GHOSTS_FOR_ALL, World};
use crate::admission::Match;
use crate::explain::StopReason;
use crate::ids::{NamespaceId, Token};

impl World {
    pub(super) fn lookup(&mut self) {
        let (namespace, prompt) = self.some_place();
        let reuse_max = match self.random.below(3) {
            0 => self.random.below(prompt.len() + 1),
            1 => prompt.len().saturating_sub(1),
            _ => prompt.len(),
        };
        let known = self.cache.lookup_up_to(namespace, &prompt, reuse_max);
        let expected = self.naive.lookup_up_to(namespace, &prompt, reuse_max);
        assert_eq!(known.tokens, expected.tokens, "lookup of {prompt:?} up to {reuse_max}");
        self.assert_stop(namespace, &prompt, (known, expected));
        self.note_stop(known.stop);
    }

    /// The reason equals that of the twin, which remembers every loss; the cache may have dropped the ghost.
    fn assert_stop(&mut self, namespace: NamespaceId, prompt: &[Token], (known, expected): (Match, Match)) {
        if (known.stop, known.evicted) == (expected.stop, expected.evicted) {
            self.seen.note("evicted: when", u64::from(known.evicted.is_some()));
        } else if known.stop != expected.stop {
            assert_ne!(
                self.ghosts, GHOSTS_FOR_ALL,
                "there is room to remember every eviction: {known:?} {expected:?}"
            );
            let was_lost = matches!(expected.stop, StopReason::Evicted | StopReason::Expired);
            assert!(was_lost, "explained by {known:?}: {prompt:?}");
            self.seen.note("forgotten", 1);
        } else {
            // The ghost of the longest was displaced, and a shorter one explains the miss, with its own time.
            let explained = self.naive.losses(namespace, prompt).any(|loss| *loss == known.evicted);
            assert!(explained, "no loss of {prompt:?} explains {known:?}");
            self.seen.note("displaced", 1);
        }
    }

    fn note_stop(&mut self, stop: StopReason) {
        let all = [
            ("complete", StopReason::Complete),
            ("first seen", StopReason::FirstSeen),
            ("diverged", StopReason::Diverged),
            ("evicted: reason", StopReason::Evicted),
            ("expired: reason", StopReason::Expired),
            ("window dropped", StopReason::WindowDropped),
            ("no state kept", StopReason::NoStateKept),
        ];
        all.into_iter().for_each(|(what, reason)| self.seen.note(what, u64::from(stop == reason)));
    }
}

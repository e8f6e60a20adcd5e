//! What happened in all worlds: a simulator that does not reach a corner says nothing about it.

use crate::depot::Happened;

/// Counts of events over all worlds: the simulator must reach every corner case.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Coverage {
    pub(crate) finished: u64,
    pub(crate) cancelled: u64,
    pub(crate) poisoned: u64,
    pub(crate) refused: u64,
    /// Answers that ended because pins left no more room.
    pub(crate) cut: u64,
    pub(crate) preemptions: u64,
    pub(crate) drafted: u64,
    pub(crate) accepted: u64,
    /// Of these, tokens that were drafted from other requests of the namespace.
    pub(crate) from_tree: u64,
    /// Of these, tokens that were drafted by a draft model.
    pub(crate) from_model: u64,
    /// Of these, tokens that the model's prediction head drafted.
    pub(crate) from_head: u64,
    /// Of these, tokens that a grammar left as the only way to go on.
    pub(crate) from_grammar: u64,
    /// Answers under a grammar.
    pub(crate) constrained: u64,
    pub(crate) evicted: u64,
    pub(crate) restarts: u64,
    pub(crate) from_disk: u64,
    pub(crate) from_host: u64,
    /// Answers whose `cached_tokens` and reason the naive twin predicts exactly.
    pub(crate) exact: u64,
    /// The same after a restart, from disk.
    pub(crate) exact_after_restart: u64,
    pub(crate) expired: u64,
    pub(crate) private: u64,
    pub(crate) public: u64,
    pub(crate) pins: u64,
    /// Answers of sequences that have forgotten something.
    pub(crate) forgetful: u64,
    /// Answers in the background.
    pub(crate) background: u64,
    /// Requests that found what is kept of their prefix, and those that did after a restart, maybe on disk.
    pub(crate) kept_found: u64,
    pub(crate) kept_after_restart: u64,
    /// Times that memory was short and a sequence forgot for that.
    pub(crate) tightened: u64,
    /// Passes that panicked.
    pub(crate) recovered: u64,
    /// Tokens reused by models with windows, and with states; and of these, tokens from disk.
    pub(crate) windows: [u64; 2],
    pub(crate) states: [u64; 2],
    /// Events of the cache.
    pub(crate) told: u64,
    /// Tokens reused from the store that nodes share; and of these, tokens of models with windows.
    pub(crate) from_remote: u64,
    pub(crate) remote_windows: u64,
    /// Requests that read the beginning of their prompt from disk and more of it from that store.
    pub(crate) remote_beyond_disk: u64,
    /// Requests that reused no more because of it.
    pub(crate) remote_down: u64,
    pub(crate) remote_failed: u64,
    pub(crate) remote_slower: u64,
    /// Runs that two nodes have read and a third has written.
    pub(crate) read_by_two: u64,
    /// Prompts that were evicted explicitly.
    pub(crate) dropped_prompts: u64,
    /// Conversations that were deleted.
    pub(crate) deleted_prompts: u64,
    /// Nodes that were restarted while others went on.
    pub(crate) node_restarts: u64,
    /// Faults of the store, and what came of them.
    pub(crate) store: Happened,
}

impl Coverage {
    pub(crate) fn add(&mut self, other: &Coverage) {
        for (sum, (_, count)) in self.fields_mut().into_iter().zip(other.fields()) {
            *sum += count;
        }
    }

    /// Checks that every kind of event occurred, at least once in a thousand seeds on average.
    pub(crate) fn check(&self, seeds: u64) {
        for (name, count) in self.fields() {
            assert!(count * 1000 >= seeds, "too little happened: {count} times {name} in {seeds} seeds");
        }
    }

    fn fields(&self) -> [(&'static str, u64); 55] {
        [
            ("finished", self.finished),
            ("cancelled", self.cancelled),
            ("poisoned", self.poisoned),
            ("refused", self.refused),
            ("cut short by pins", self.cut),
            ("preempted", self.preemptions),
            ("drafted", self.drafted),
            ("drafted and drawn", self.accepted),
            ("drafted from the tree and drawn", self.from_tree),
            ("drafted by a model and drawn", self.from_model),
            ("drafted by a head and drawn", self.from_head),
            ("drafted by a grammar and drawn", self.from_grammar),
            ("under a grammar", self.constrained),
            ("evicted", self.evicted),
            ("restarted", self.restarts),
            ("from disk", self.from_disk),
            ("from the host's memory", self.from_host),
            ("predicted exactly", self.exact),
            ("predicted exactly after a restart", self.exact_after_restart),
            ("expired", self.expired),
            ("private", self.private),
            ("public", self.public),
            ("pinned", self.pins),
            ("forgetful", self.forgetful),
            ("in the background", self.background),
            ("kept prefixes found", self.kept_found),
            ("kept prefixes found after a restart", self.kept_after_restart),
            ("tightened", self.tightened),
            ("passes that panicked", self.recovered),
            ("reused by windows", self.windows[0]),
            ("reused by windows, from disk", self.windows[1]),
            ("reused by states", self.states[0]),
            ("reused by states, from disk", self.states[1]),
            ("events of the cache", self.told),
            ("from the store that nodes share", self.from_remote),
            ("by windows, from that store", self.remote_windows),
            ("from disk and from that store", self.remote_beyond_disk),
            ("not found because it is down", self.remote_down),
            ("not found because it failed", self.remote_failed),
            ("not found because it is slower", self.remote_slower),
            ("read by two nodes and written by a third", self.read_by_two),
            ("prompts dropped on a node", self.dropped_prompts),
            ("conversations deleted", self.deleted_prompts),
            ("nodes restarted", self.node_restarts),
            ("late lookups of the store", self.store.late_lookups),
            ("late fetches of the store", self.store.late_fetches),
            ("refusals of the store", self.store.refusals),
            ("partitions of the store", self.store.partitions),
            ("deaths of the store", self.store.deaths),
            ("holes of the store", self.store.holes),
            ("surplus of the store", self.store.surplus),
            ("after cancel of the store", self.store.after_cancel),
            ("lies of the store", self.store.lies),
            ("dropped of the store", self.store.dropped),
            ("out of order of the store", self.store.out_of_order),
        ]
    }

    fn fields_mut(&mut self) -> [&mut u64; 55] {
        let ([windows, windows_from_disk], [states, states_from_disk]) =
            (&mut self.windows, &mut self.states);
        [
            &mut self.finished,
            &mut self.cancelled,
            &mut self.poisoned,
            &mut self.refused,
            &mut self.cut,
            &mut self.preemptions,
            &mut self.drafted,
            &mut self.accepted,
            &mut self.from_tree,
            &mut self.from_model,
            &mut self.from_head,
            &mut self.from_grammar,
            &mut self.constrained,
            &mut self.evicted,
            &mut self.restarts,
            &mut self.from_disk,
            &mut self.from_host,
            &mut self.exact,
            &mut self.exact_after_restart,
            &mut self.expired,
            &mut self.private,
            &mut self.public,
            &mut self.pins,
            &mut self.forgetful,
            &mut self.background,
            &mut self.kept_found,
            &mut self.kept_after_restart,
            &mut self.tightened,
            &mut self.recovered,
            windows,
            windows_from_disk,
            states,
            states_from_disk,
            &mut self.told,
            &mut self.from_remote,
            &mut self.remote_windows,
            &mut self.remote_beyond_disk,
            &mut self.remote_down,
            &mut self.remote_failed,
            &mut self.remote_slower,
            &mut self.read_by_two,
            &mut self.dropped_prompts,
            &mut self.deleted_prompts,
            &mut self.node_restarts,
            &mut self.store.late_lookups,
            &mut self.store.late_fetches,
            &mut self.store.refusals,
            &mut self.store.partitions,
            &mut self.store.deaths,
            &mut self.store.holes,
            &mut self.store.surplus,
            &mut self.store.after_cancel,
            &mut self.store.lies,
            &mut self.store.dropped,
            &mut self.store.out_of_order,
        ]
    }
}

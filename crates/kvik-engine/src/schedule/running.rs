//! The running set: the sequences that hold blocks, oldest first, and the choices that are about to start
//! as copies of one of them.
//!
//! Age is the order of preemption: the youngest releases its blocks first, so the oldest always makes progress.
//! Background sequences come after all others.

use std::ops::{Index, IndexMut};

use kvik_cache::{SeqId, TenantId};

use super::job::JobId;
use super::sequence::Sequence;

/// The running sequences.
#[derive(Debug, Default)]
pub(super) struct Running {
    /// Oldest first.
    sequences: Vec<Sequence>,
    /// Choices that start as copies of a running sequence, at the next steps.
    forks: Vec<Fork>,
}

/// A choice that continues from where `parent` is.
#[derive(Debug)]
pub(super) struct Fork {
    pub(super) parent: SeqId,
    pub(super) child: Sequence,
}

impl Running {
    pub(super) fn len(&self) -> usize {
        self.sequences.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sequences.is_empty()
    }

    /// Number of foreground sequences; they come first.
    pub(super) fn foreground(&self) -> usize {
        self.sequences.partition_point(|sequence| !sequence.is_background())
    }

    /// Number of background sequences; they come last.
    pub(super) fn background(&self) -> usize {
        self.len() - self.foreground()
    }

    /// Share by which the background may lengthen the steps of the foreground.
    pub(super) fn urgency(&self) -> f64 {
        self.iter().skip(self.foreground()).map(Sequence::urgency).fold(0.0, f64::max)
    }

    /// Whether the time that this sequence takes delays no other one.
    pub(super) fn delays_nobody(&self, sequence: &Sequence) -> bool {
        let waits = |other: &Sequence| sequence.is_background() || !other.is_background();
        !self.iter().any(|other| other.id != sequence.id && waits(other))
    }

    /// Whether sequences of other requests run that clients wait for.
    pub(super) fn serves_others(&self, job: JobId) -> bool {
        self.iter().any(|sequence| sequence.job != job && !sequence.is_background())
    }

    /// Number of rows that the sequence at `index` may compute now: none while choices are still to be copied from it,
    /// which begin at the end of its prompt.
    pub(super) fn due(&self, index: usize) -> usize {
        let sequence = &self.sequences[index];
        let is_parent = self.forks.iter().any(|fork| fork.parent == sequence.id);
        if is_parent { 0 } else { sequence.due() }
    }

    /// Maximum number of draft tokens for the sequence at `index`.
    pub(super) fn draft_max(&self, index: usize) -> usize {
        if self.due(index) == 1 { self.sequences[index].draft_max() } else { 0 }
    }

    /// Whether choices of foreground requests are still to start, which need places and blocks.
    pub(super) fn starts_more(&self) -> bool {
        self.forks.iter().any(|fork| !fork.child.is_background())
    }

    /// Whether there is anything to compute or to start.
    pub(super) fn is_due(&self) -> bool {
        !self.sequences.is_empty() || !self.forks.is_empty()
    }

    /// All sequences, oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Sequence> {
        self.sequences.iter()
    }

    /// All sequences, oldest first.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Sequence> {
        self.sequences.iter_mut()
    }

    /// The oldest sequences that the model's prediction head may draft for, `most` at most.
    pub(super) fn followed(&self, most: usize) -> impl Iterator<Item = &Sequence> {
        self.iter().filter(|sequence| sequence.is_followed()).take(most)
    }

    pub(super) fn find(&self, id: SeqId) -> Option<&Sequence> {
        self.sequences.iter().find(|sequence| sequence.id == id)
    }

    pub(super) fn find_mut(&mut self, id: SeqId) -> Option<&mut Sequence> {
        self.sequences.iter_mut().find(|sequence| sequence.id == id)
    }

    /// Adds a sequence in the order of age.
    pub(super) fn insert(&mut self, sequence: Sequence) {
        let index = self.sequences.partition_point(|other| other.by_age(&sequence).is_lt());
        self.sequences.insert(index, sequence);
    }

    /// Removes the sequence that is preempted first.
    pub(super) fn pop_youngest(&mut self) -> Option<Sequence> {
        self.sequences.pop()
    }

    /// Removes the youngest background sequence.
    pub(super) fn pop_background(&mut self) -> Option<Sequence> {
        self.sequences.pop_if(|youngest| youngest.is_background())
    }

    /// Removes a sequence; its forks wait for it to come back, or start alone.
    pub(super) fn take(&mut self, id: SeqId) -> Option<Sequence> {
        self.pop(|sequence| sequence.id == id)
    }

    /// Removes the oldest sequence that has ended.
    pub(super) fn pop_ended(&mut self) -> Option<Sequence> {
        self.pop(|sequence| sequence.ended.is_some())
    }

    /// Removes a sequence of a request; its forks do not start.
    pub(super) fn pop_of(&mut self, job: JobId) -> Option<Sequence> {
        self.forks.retain(|fork| fork.child.job != job);
        self.pop(|sequence| sequence.job == job)
    }

    fn pop(&mut self, fits: impl Fn(&Sequence) -> bool) -> Option<Sequence> {
        let index = self.sequences.iter().position(fits)?;
        Some(self.sequences.remove(index))
    }

    /// Registers a choice that starts as a copy of `parent`, at the next step or, where that copies too much, a later one.
    pub(super) fn fork(&mut self, parent: SeqId, child: Sequence) {
        self.forks.push(Fork { parent, child });
    }

    /// Removes the choices that are to start.
    pub(super) fn take_forks(&mut self) -> Vec<Fork> {
        std::mem::take(&mut self.forks)
    }

    /// Number of rows that the foreground sequences of a tenant still have to compute. Background sequences do not
    /// count: it is not known when they will.
    pub(super) fn missing(&self, tenant: TenantId) -> usize {
        let foreground = &self.sequences[..self.foreground()];
        foreground.iter().filter(|sequence| sequence.tenant == tenant).map(Sequence::missing).sum()
    }

    /// Number of blocks to leave free so that at least one sequence can compress under memory pressure, among the
    /// running ones and a `newcomer`. `None` if none may.
    pub(super) fn reserve(&self, newcomer: Option<&Sequence>) -> Option<usize> {
        self.iter().chain(newcomer).filter_map(Sequence::blocks_to_tighten).min()
    }
}

impl Index<usize> for Running {
    type Output = Sequence;

    fn index(&self, index: usize) -> &Sequence {
        &self.sequences[index]
    }
}

impl IndexMut<usize> for Running {
    fn index_mut(&mut self, index: usize) -> &mut Sequence {
        &mut self.sequences[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::FinishReason;

    fn sequence(job: u64, choice: u32) -> Sequence {
        let mut sequence = Sequence::fake(TenantId(job as u32 % 2), vec![7; 5]);
        (sequence.id, sequence.job, sequence.choice) =
            (SeqId(100 * job + u64::from(choice)), JobId(job), choice);
        sequence
    }

    fn ages(running: &Running) -> Vec<(u64, u32)> {
        running.iter().map(|sequence| (sequence.job.0, sequence.choice)).collect()
    }

    /// Whatever the order of insertion, they are sorted by age, and the youngest is preempted first.
    #[test]
    fn sequences_stand_by_age() {
        let all: Vec<(u64, u32)> = (0..4).flat_map(|job| (0..3).map(move |choice| (job, choice))).collect();
        for stride in [1, 5, 7, 11] {
            let mut running = Running::default();
            for index in 0..all.len() {
                let (job, choice) = all[index * stride % all.len()];
                running.insert(sequence(job, choice));
                assert!(ages(&running).is_sorted());
            }
            assert_eq!(ages(&running), all);
            for expect in all.iter().rev() {
                let youngest = running.pop_youngest().unwrap();
                assert_eq!((youngest.job.0, youngest.choice), *expect);
            }
            assert!(running.pop_youngest().is_none() && !running.is_due());
        }
    }

    #[test]
    fn a_request_goes_with_all_its_choices() {
        let mut running = Running::default();
        (0..3)
            .flat_map(|job| [(job, 0), (job, 1)])
            .for_each(|(job, choice)| running.insert(sequence(job, choice)));
        running.fork(SeqId(100), sequence(1, 2));
        running.fork(SeqId(200), sequence(2, 2));
        while running.pop_of(JobId(1)).is_some() {}
        assert_eq!(ages(&running), [(0, 0), (0, 1), (2, 0), (2, 1)]);
        let forks: Vec<u64> = running.take_forks().iter().map(|fork| fork.child.job.0).collect();
        assert_eq!(forks, [2]);
        running[2].ended = Some(FinishReason::Length);
        let ended = running.pop_ended().unwrap();
        assert_eq!((ended.job.0, ended.choice), (2, 0));
        assert!(running.pop_ended().is_none());
    }

    #[test]
    fn the_background_is_preempted_first_and_nobody_waits_for_it() {
        let mut running = Running::default();
        for job in 0..6 {
            let fake = Sequence::fake_in(job % 2 == 0, TenantId(0), vec![7; 5]);
            running.insert(Sequence { id: SeqId(job), job: JobId(job), ..fake });
        }
        assert_eq!(ages(&running).iter().map(|age| age.0).collect::<Vec<_>>(), [1, 3, 5, 0, 2, 4]);
        assert_eq!((running.foreground(), running.background(), running.missing(TenantId(0))), (3, 3, 15));
        for job in [4, 2, 0] {
            assert!(!running.delays_nobody(&running[0]) && !running.delays_nobody(&running[3]));
            assert_eq!(running.pop_background().map(|sequence| sequence.job.0), Some(job));
        }
        assert!(running.pop_background().is_none());
    }

    #[test]
    fn a_tenant_is_still_to_get_what_its_sequences_miss() {
        let mut running = Running::default();
        (0..3).for_each(|job| running.insert(sequence(job, 0)));
        running[0].stored = 4;
        assert_eq!([0, 1, 2].map(|tenant| running.missing(TenantId(tenant))), [6, 5, 0]);
    }
}

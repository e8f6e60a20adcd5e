//! Runs one target on mutated inputs.

use std::fs;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::mutate::Random;
use crate::checkout::repository;

/// Default seed.
const SEED: u64 = 7;
/// Maximum memory of the process.
const MEMORY_KIB_MAX: u64 = 2 << 20;
/// Maximum number of mutants that are kept as further starting points.
const KEPT_MAX: usize = 256;

/// Makes a mutant of one input, mixed with parts of another.
pub type Mutate<'a> = dyn Fn(&[u8], &[u8], &mut Random) -> Vec<u8> + 'a;

/// A fuzzing run.
pub struct Campaign<'a> {
    /// Name of the target and of its corpus.
    pub name: &'a str,
    /// A reader of untrusted bytes, which returns for any input.
    pub target: &'a dyn Fn(&[u8]),
    /// Initial inputs, each of which is tried.
    pub corpus: Vec<Vec<u8>>,
    /// Makes further inputs.
    pub mutate: &'a Mutate<'a>,
    /// Maximum time for an input, with a margin for a busy machine.
    pub input_max: Duration,
    /// How long mutants are tried unless `FUZZ_SECONDS` is set.
    pub duration: Duration,
}

/// Reads all files of `fuzz/corpus/NAME`, in order.
///
/// # Errors
/// If they cannot be read.
pub fn corpus(name: &str) -> io::Result<Vec<Vec<u8>>> {
    let entries = fs::read_dir(repository().join("fuzz/corpus").join(name))?;
    let mut paths: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    paths.sort();
    paths.iter().map(fs::read).collect()
}

impl Campaign<'_> {
    /// Tries all inputs of the corpus, and then mutants until the time is over, at least one.
    ///
    /// # Panics
    /// If an input fails: it is shown, and written to `failure-NAME.bin`.
    pub fn run(self) {
        if std::env::var("FUZZ").is_ok_and(|only| only != self.name) {
            return;
        }
        assert!(!self.corpus.is_empty(), "{} has no seeds", self.name);
        let name = self.name;
        let (executions, slowest, failure) = self.search();
        println!("{name}: {executions} executions, slowest {slowest:?}");
        if let Some((input, reason)) = failure {
            fs::write(format!("failure-{name}.bin"), &input).expect("the input that failed can be written");
            let text = String::from_utf8_lossy(&input[..input.len().min(2000)]).into_owned();
            panic!("{name}: an input of {} bytes {reason}: {text:?}", input.len());
        }
    }

    /// Returns the number of inputs tried, the time of the slowest one, and an input that failed, with the
    /// reason.
    fn search(mut self) -> (usize, Duration, Option<(Vec<u8>, String)>) {
        let (seeds, mut corpus) = (self.corpus.len(), std::mem::take(&mut self.corpus));
        let duration = number("FUZZ_SECONDS").map_or(self.duration, Duration::from_secs);
        let mut random = Random::new(number("FUZZ_SEED").unwrap_or(SEED));
        let (mut executions, mut slowest, mut start) = (0, Duration::ZERO, Instant::now());
        while executions <= seeds || start.elapsed() < duration {
            let input = match executions {
                first if first < seeds => corpus[first].clone(),
                _ => {
                    let (one, other) = (random.below(corpus.len()), random.below(corpus.len()));
                    (self.mutate)(&corpus[one], &corpus[other], &mut random)
                }
            };
            executions += 1;
            if let Some(reason) = self.failure_of(&input, &mut slowest) {
                return (executions, slowest, Some((input, reason)));
            }
            keep(&mut corpus, seeds, input, &mut random);
            // The seeds alone may take longer than that.
            if executions == seeds {
                start = Instant::now();
            }
        }
        (executions, slowest, None)
    }

    fn failure_of(&self, input: &[u8], slowest: &mut Duration) -> Option<String> {
        let start = Instant::now();
        let result = panic::catch_unwind(AssertUnwindSafe(|| (self.target)(input)));
        let took = start.elapsed();
        *slowest = took.max(*slowest);
        match (result, peak_kib()) {
            (Err(_), _) => Some("panicked".to_owned()),
            _ if took > self.input_max => Some(format!("took {took:?}")),
            (_, Some(kib)) if kib > MEMORY_KIB_MAX => Some(format!("the process has used {} MiB", kib >> 10)),
            _ => None,
        }
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// Keeps some mutants as starting points, so that changes accumulate; the seeds always stay.
fn keep(corpus: &mut Vec<Vec<u8>>, seeds: usize, mutant: Vec<u8>, random: &mut Random) {
    if mutant.len() > 1 << 16 || random.below(64) != 0 {
        return;
    }
    if corpus.len() - seeds < KEPT_MAX {
        corpus.push(mutant);
    } else {
        let at = seeds + random.below(KEPT_MAX);
        corpus[at] = mutant;
    }
}

/// Peak memory of the process, if the system reports it.
fn peak_kib() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mutant_is_tried_however_long_the_seeds_take() {
        let campaign = Campaign {
            name: "any",
            target: &|_| {},
            corpus: vec![vec![1; 8]; 3],
            mutate: &crate::fuzz::mutate,
            input_max: Duration::from_secs(60),
            duration: Duration::ZERO,
        };
        let (executions, _, failure) = campaign.search();
        assert!(executions > 3 && failure.is_none(), "{executions} executions of 3 seeds: {failure:?}");
    }
}

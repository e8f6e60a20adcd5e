//! Runs one target on mutated inputs: no panic, no hang, no growth.

use std::fs;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kvik_engine::files::bytes::FileBytes;
use kvik_engine::files::gguf::Gguf;

use super::mutate::{Random, mutate};

/// A fuzzing run to do.
pub(crate) struct Campaign {
    /// The target.
    pub(crate) target: fn(&[u8]),
    /// Inputs to start from.
    pub(crate) corpus: Vec<Vec<u8>>,
    /// Duration of the run.
    pub(crate) duration: Duration,
    /// Seed of the random numbers.
    pub(crate) seed: u64,
}

/// Result of a run.
pub(crate) struct Outcome {
    /// Inputs tried.
    pub(crate) executions: u64,
    /// The slowest one.
    pub(crate) slowest: Duration,
    /// An input that failed, and the reason.
    pub(crate) failure: Option<(Vec<u8>, String)>,
}

/// Maximum time of an input, and maximum memory of the process.
const INPUT_MAX: Duration = Duration::from_secs(5);
const MEMORY_KIB_MAX: u64 = 2 << 20;

/// Maximum mutants that are kept as further starting points.
const KEPT_MAX: usize = 256;

/// All files of a corpus directory. That of GGUF also has the headers of the small models of every architecture
/// in `golden`.
pub(crate) fn read_corpus(directory: &Path, golden: &Path) -> io::Result<Vec<Vec<u8>>> {
    let mut corpus: Vec<Vec<u8>> = files(directory)?.iter().map(fs::read).collect::<io::Result<_>>()?;
    if directory.ends_with("gguf") {
        let is_model = |path: &&PathBuf| path.extension().is_some_and(|extension| extension == "gguf");
        let models = files(golden)?;
        let headers = models.iter().filter(is_model).map(|path| fs::read(path).map(header_of));
        corpus.extend(headers.collect::<io::Result<Vec<_>>>()?);
    }
    Ok(corpus)
}

fn files(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    paths.sort();
    Ok(paths)
}

/// A model without the data of its tensors.
fn header_of(mut model: Vec<u8>) -> Vec<u8> {
    let file = Gguf::from_bytes(FileBytes::Owned(model.clone()));
    let start = file.ok().and_then(|file| file.tensors().iter().map(|tensor| tensor.data.start).min());
    model.truncate(start.unwrap_or(model.len()));
    model
}

/// Runs all seeds, and then mutants until the time is over; or until an input fails.
pub(crate) fn run(campaign: Campaign) -> Outcome {
    let Campaign { target, mut corpus, duration, seed } = campaign;
    let seeds = corpus.len();
    let mut random = Random::new(seed);
    let mut outcome = Outcome { executions: 0, slowest: Duration::ZERO, failure: None };
    let start = Instant::now();
    let is_over = |executions: u64| executions as usize >= seeds && start.elapsed() >= duration;
    while outcome.failure.is_none() && !is_over(outcome.executions) {
        let input = &corpus[random.below(corpus.len())];
        let other = &corpus[random.below(corpus.len())];
        let mutant = match outcome.executions {
            first if (first as usize) < seeds => corpus[first as usize].clone(),
            _ => mutate(input, other, &mut random),
        };
        outcome.failure = run_one(target, &mutant, &mut outcome.slowest);
        outcome.executions += 1;
        keep(&mut corpus, seeds, mutant, &mut random);
    }
    outcome
}

fn run_one(target: fn(&[u8]), input: &[u8], slowest: &mut Duration) -> Option<(Vec<u8>, String)> {
    let start = Instant::now();
    let result = panic::catch_unwind(AssertUnwindSafe(|| target(input)));
    let took = start.elapsed();
    *slowest = (*slowest).max(took);
    let reason = match (result, memory_kib()) {
        (Err(_), _) => "panicked".to_owned(),
        _ if took > INPUT_MAX => format!("took {took:?}"),
        (_, Some(kib)) if kib > MEMORY_KIB_MAX => format!("the process has used {} MiB", kib >> 10),
        _ => return None,
    };
    Some((input.to_vec(), reason))
}

/// Keeps some mutants as starting points, so that changes accumulate; the seeds always stay.
fn keep(corpus: &mut Vec<Vec<u8>>, seeds: usize, mutant: Vec<u8>, random: &mut Random) {
    if mutant.len() > 1 << 16 || random.below(64) != 0 {
        return;
    }
    match corpus.len() - seeds < KEPT_MAX {
        true => corpus.push(mutant),
        false => {
            let at = seeds + random.below(KEPT_MAX);
            corpus[at] = mutant;
        }
    }
}

/// Peak memory of the process, if the system reports it.
fn memory_kib() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse().ok()
}

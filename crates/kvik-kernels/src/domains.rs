//! Memory domains: parts of a machine's memory with the processors next to them, NUMA nodes in Linux' words.
//!
//! A machine with two sockets has two of them, or more where a socket is divided. A processor reads the memory of its own
//! domain about twice as fast as that of another, so a process may be told to stay in one
//! (`docs/decisions/2026-11-26-memory-domains.md`). Nothing here divides a computation between domains.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

mod policy;

pub use policy::bound_memory_domains;

use crate::threads::{allowed_cpus, stay_on};

/// Domains and processors that are counted; what the system names beyond is not used. Linux on x86-64 has as many at most.
const NUMBER_MAX: usize = 1024;
/// A list of a thousand processors, none next to another, is shorter.
const LIST_BYTES_MAX: u64 = 16 << 10;

/// A part of the memory, and the processors next to it that this process may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryDomain {
    /// As the system counts them; numbers may be missing.
    pub number: usize,
    /// In rising order, hyperthreads included; at least one.
    pub cpus: Vec<usize>,
}

/// Why a process does not stay in a memory domain.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DomainError {
    /// The system has no such folder as Linux has.
    #[error("this system does not tell its memory domains; leave the memory domain out")]
    Unknown,
    /// There is none of this number, or none of its processors may be used.
    #[error(
        "memory domain {number} has no processor that this process may use; those that have some are {}",
        list(.found)
    )]
    Missing {
        /// The domain that was asked for.
        number: usize,
        /// Those there are.
        found: Vec<MemoryDomain>,
    },
    /// The system does not let this process choose its processors.
    #[error("the system does not keep threads on the processors of memory domain {number}: {source}")]
    Processors {
        /// The domain that was asked for.
        number: usize,
        /// What it says.
        source: io::Error,
    },
    /// The system does not let this process choose where its memory is, as containers do not.
    #[error(
        "the system does not take memory from domain {number} only: {source}; start the process there instead, in a container by cpuset-cpus and cpuset-mems, or allow it SYS_NICE"
    )]
    Memory {
        /// The domain that was asked for.
        number: usize,
        /// What it says.
        source: io::Error,
    },
}

/// The memory domains of this machine whose processors this process may use, in the order of their numbers; none where the
/// system does not tell.
pub fn memory_domains() -> Vec<MemoryDomain> {
    allowed_cpus().map_or_else(Vec::new, |allowed| MemoryDomain::read(Path::new("/sys"), &allowed))
}

/// From now on the calling thread, and those that it starts, run on the processors of this domain and take new memory from
/// it. Threads that run already stay where they are, so a process calls this before it has any.
///
/// Memory that the domain does not have is not taken from another one: the system would otherwise leave the weights to
/// another domain as soon as this one is full of files that it has cached, and nobody would be told.
///
/// # Errors
/// When there is no such domain, or the system refuses.
pub fn stay_in_memory_domain(number: usize) -> Result<MemoryDomain, DomainError> {
    let domain = MemoryDomain::choose(memory_domains(), number)?;
    stay_on(&domain.cpus).map_err(|source| DomainError::Processors { number, source })?;
    policy::bind(number).map_err(|source| DomainError::Memory { number, source })?;
    Ok(domain)
}

impl MemoryDomain {
    /// The domains that the system describes under `sys` which have any of the processors `allowed`.
    ///
    /// One whose description is missing or makes no sense is left out.
    fn read(sys: &Path, allowed: &[usize]) -> Vec<MemoryDomain> {
        let folder = sys.join("devices/system/node");
        let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
        let number = |name: &str| name.strip_prefix("node").and_then(decimal);
        let mut numbers: Vec<usize> =
            entries.filter_map(|entry| number(entry.file_name().to_str()?)).collect();
        numbers.sort_unstable();
        let read = |number: usize| {
            let mut cpus = numbers_of(&read_short(&folder.join(format!("node{number}/cpulist")))?)?;
            cpus.retain(|cpu| allowed.contains(cpu));
            (!cpus.is_empty()).then_some(MemoryDomain { number, cpus })
        };
        numbers.into_iter().filter_map(read).collect()
    }

    fn choose(found: Vec<MemoryDomain>, number: usize) -> Result<MemoryDomain, DomainError> {
        if found.is_empty() {
            return Err(DomainError::Unknown);
        }
        let domain = found.iter().find(|domain| domain.number == number).cloned();
        domain.ok_or(DomainError::Missing { number, found })
    }
}

/// As `1 (processors 2-3,6-7)`.
impl std::fmt::Display for MemoryDomain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let runs = self.cpus.chunk_by(|cpu, next| cpu + 1 == *next);
        let run = |run: &[usize]| match run {
            [first, .., last] => format!("{first}-{last}"),
            _ => run.iter().map(usize::to_string).collect(),
        };
        write!(f, "{} (processors {})", self.number, runs.map(run).collect::<Vec<_>>().join(","))
    }
}

/// Domains, for people.
fn list(domains: &[MemoryDomain]) -> String {
    domains.iter().map(MemoryDomain::to_string).collect::<Vec<_>>().join(", ")
}

/// A file's text; `None` where it is longer than a list, or none.
fn read_short(path: &Path) -> Option<String> {
    let mut text = String::new();
    let bytes = File::open(path).ok()?.take(LIST_BYTES_MAX).read_to_string(&mut text).ok()?;
    ((bytes as u64) < LIST_BYTES_MAX).then_some(text)
}

/// The numbers of a list as `0-3,8,10-11`, rising, each once; `None` where it is none. A domain without processors has an
/// empty list.
fn numbers_of(list: &str) -> Option<Vec<usize>> {
    let parts = list.trim().split(',').filter(|part| !part.is_empty());
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(decimal(first)?..=decimal(last)?)
    };
    let ranges: Vec<_> = parts.map(range).collect::<Option<_>>()?;
    let mut numbers: Vec<usize> = ranges.into_iter().flatten().collect();
    numbers.sort_unstable();
    numbers.dedup();
    Some(numbers)
}

/// A number that may be a domain's or a processor's.
fn decimal(text: &str) -> Option<usize> {
    // `parse` would take a sign.
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|&number| is_plain && number < NUMBER_MAX)
}

#[cfg(test)]
mod tests;

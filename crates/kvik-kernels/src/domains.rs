//! Memory domains: parts of a machine's memory with their local processors, called NUMA nodes in Linux.
//!
//! A machine with two sockets has two domains, or more where a socket is divided. A processor reads the memory of
//! its own domain about twice as fast as that of another, so a process can be bound to one
//! (`docs/decisions/2026-11-26-memory-domains.md`). No computation is split across domains.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

mod policy;

pub use policy::bound_memory_domains;

use crate::threads::{allowed_cpus, stay_on};

/// Limit of domain and processor numbers; higher ones are ignored. It is the limit of Linux on x86-64.
const NUMBER_MAX: usize = 1024;
/// Limit of a list file: a list of a thousand processors, no two adjacent, is shorter.
const LIST_BYTES_MAX: u64 = 16 << 10;

/// A part of the memory, and its local processors that this process may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryDomain {
    /// The system's number of the domain; numbers may be missing.
    pub number: usize,
    /// Ascending, hyperthreads included; at least one.
    pub cpus: Vec<usize>,
}

/// The reason why a process cannot be bound to a memory domain.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DomainError {
    /// The system has no NUMA folder as Linux has.
    #[error("this system does not tell its memory domains; leave the memory domain out")]
    Unknown,
    /// No domain has this number, or this process may use none of its processors.
    #[error(
        "memory domain {number} has no processor that this process may use; those that have some are {}",
        list(.found)
    )]
    Missing {
        /// The requested domain.
        number: usize,
        /// The existing domains.
        found: Vec<MemoryDomain>,
    },
    /// The system does not let this process choose its processors.
    #[error("the system does not keep threads on the processors of memory domain {number}: {source}")]
    Processors {
        /// The requested domain.
        number: usize,
        /// The system's error.
        source: io::Error,
    },
    /// The system does not let this process choose its memory's domain, for example in a container.
    #[error(
        "the system does not take memory from domain {number} only: {source}; start the process there instead, in a container by cpuset-cpus and cpuset-mems, or allow it SYS_NICE"
    )]
    Memory {
        /// The requested domain.
        number: usize,
        /// The system's error.
        source: io::Error,
    },
}

/// The memory domains of this machine whose processors this process may use, ascending by number; empty where the
/// system does not expose them.
pub fn memory_domains() -> Vec<MemoryDomain> {
    allowed_cpus().map_or_else(Vec::new, |allowed| MemoryDomain::read(Path::new("/sys"), &allowed))
}

/// Binds the calling thread, and the threads that it starts later, to the processors and the memory of this
/// domain. Running threads keep their processors and memory, so a process calls this before it starts any.
///
/// Memory is never allocated from another domain: otherwise the system would silently place weights in another
/// domain as soon as this one is full of cached files.
///
/// # Errors
/// If there is no such domain, or the system refuses.
pub fn stay_in_memory_domain(number: usize) -> Result<MemoryDomain, DomainError> {
    let domain = MemoryDomain::choose(memory_domains(), number)?;
    stay_on(&domain.cpus).map_err(|source| DomainError::Processors { number, source })?;
    policy::bind(number).map_err(|source| DomainError::Memory { number, source })?;
    Ok(domain)
}

impl MemoryDomain {
    /// The domains that the system describes under `sys` which have any of the processors `allowed`.
    ///
    /// Domains whose description is missing or malformed are skipped.
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

/// Formats as `1 (processors 2-3,6-7)`.
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

/// Formats domains for messages.
fn list(domains: &[MemoryDomain]) -> String {
    domains.iter().map(MemoryDomain::to_string).collect::<Vec<_>>().join(", ")
}

/// A file's text; `None` if it cannot be read or is longer than a list can be.
fn read_short(path: &Path) -> Option<String> {
    let mut text = String::new();
    let bytes = File::open(path).ok()?.take(LIST_BYTES_MAX).read_to_string(&mut text).ok()?;
    ((bytes as u64) < LIST_BYTES_MAX).then_some(text)
}

/// The numbers of a list like `0-3,8,10-11`, ascending and distinct; `None` if it is malformed. A domain without
/// processors has an empty list.
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

/// Parses the number of a domain or a processor.
fn decimal(text: &str) -> Option<usize> {
    // `parse` would accept a sign.
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|&number| is_plain && number < NUMBER_MAX)
}

#[cfg(test)]
mod tests;

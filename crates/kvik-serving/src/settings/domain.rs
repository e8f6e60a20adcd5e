//! The memory domain (NUMA node) that a process stays in.

use anyhow::Context;
use clap::{ArgMatches, Args};
use kvik_kernels::{MemoryDomain, stay_in_memory_domain};

/// The memory domain of all threads and all memory of this process.
#[derive(Debug, Clone, Copy, Default, Args)]
#[command(next_help_heading = "Machine")]
pub struct DomainArgs {
    /// Compute on the processors of this memory domain (NUMA node) and keep weights, keys and values in its memory, as one
    /// of several processes on a machine with two sockets; `kvik doctor` lists them [default: all of them]
    #[arg(long, value_name = "N")]
    pub memory_domain: Option<usize>,
}

impl DomainArgs {
    /// Binds this process to its domain, if the flag names one. Must be called before other threads start, which would
    /// not be bound.
    pub fn stay(self) -> anyhow::Result<Option<MemoryDomain>> {
        let stay =
            |number| stay_in_memory_domain(number).with_context(|| format!("--memory-domain {number}"));
        self.memory_domain.map(stay).transpose()
    }

    /// The flag of any command that has it.
    pub fn of(flags: &ArgMatches) -> DomainArgs {
        let memory_domain = flags.try_get_one("memory_domain").ok().flatten().copied();
        DomainArgs { memory_domain }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_that_is_not_there_is_an_error_that_names_the_flag() {
        let error = DomainArgs { memory_domain: Some(1000) }.stay().unwrap_err();
        assert!(format!("{error:#}").starts_with("--memory-domain 1000: "), "{error:#}");
        assert!(DomainArgs::default().stay().unwrap().is_none());
    }
}

//! How many threads pay: physical cores, and of a hybrid processor only the fast ones.

/// The number of physical performance cores that this process may use: the default number of threads.
///
/// Two hyperthreads of a core share the units that kernels saturate, and an efficiency core makes
/// every job wait for it, so neither is counted. Never more than the system makes available
/// (affinity mask, container limits); exactly that where the topology is unknown.
pub fn performance_cores() -> usize {
    let available = std::thread::available_parallelism().map_or(1, usize::from);
    physical_cores().map_or(available, |cores| cores.clamp(1, available))
}

#[cfg(not(target_os = "linux"))]
fn physical_cores() -> Option<usize> {
    None
}

#[cfg(target_os = "linux")]
fn physical_cores() -> Option<usize> {
    let allowed = rustix::thread::sched_getaffinity(None).ok()?;
    let cpus = (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
    let cores: Vec<Core> = cpus.map(Core::read).collect::<Option<_>>()?;
    Some(count_fast(cores))
}

/// A processor as its core: the hyperthreads of one core are equal.
#[cfg(any(target_os = "linux", test))]
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Core {
    siblings: String,
    /// Relative speed; equal for all cores unless the processor is a hybrid.
    capacity: u64,
}

#[cfg(target_os = "linux")]
impl Core {
    fn read(cpu: usize) -> Option<Core> {
        let read = |name: &str| {
            let text = std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu{cpu}/{name}")).ok()?;
            Some(text.trim().to_owned())
        };
        // Arm states a capacity; on Intel's hybrids the highest frequency tells the kinds apart.
        let capacity = read("cpu_capacity").or_else(|| read("cpufreq/cpuinfo_max_freq"));
        let capacity = capacity.and_then(|text| text.parse().ok()).unwrap_or(0);
        Some(Core { siblings: read("topology/thread_siblings_list")?, capacity })
    }
}

/// Counts distinct cores that reach three quarters of the fastest one's capacity:
/// favoured cores of a uniform processor differ by less, efficiency cores by more.
#[cfg(any(target_os = "linux", test))]
fn count_fast(mut cores: Vec<Core>) -> usize {
    cores.sort();
    cores.dedup_by(|a, b| a.siblings == b.siblings);
    let fastest = cores.iter().map(|core| core.capacity).max().unwrap_or(0);
    cores.iter().filter(|core| 4 * core.capacity >= 3 * fastest).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_fast_physical_cores() {
        let check = |cores: &[(&str, u64)], expect: usize| {
            let core = |&(siblings, capacity): &(&str, u64)| Core { siblings: siblings.to_owned(), capacity };
            assert_eq!(count_fast(cores.iter().map(core).collect()), expect, "{cores:?}");
        };
        check(&[], 0);
        check(&[("0", 0), ("1", 0)], 2);
        check(&[("0-1", 0), ("0-1", 0), ("2-3", 0), ("2-3", 0)], 2);
        // Favoured cores of one kind all count; efficiency cores do not.
        check(&[("0", 5_100_000), ("1", 5_300_000)], 2);
        check(&[("0-1", 5_200_000), ("0-1", 5_200_000), ("2", 3_800_000), ("3", 3_800_000)], 1);
        check(&[("0", 1024), ("1", 1024), ("2", 446), ("3", 446)], 2);
    }

    #[test]
    fn this_machine_has_a_core() {
        let available = std::thread::available_parallelism().map_or(1, usize::from);
        assert!((1..=available).contains(&performance_cores()));
    }
}

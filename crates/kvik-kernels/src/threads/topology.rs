//! Processor topology: the useful number of threads, and their placement on physical cores, of hybrids only
//! the fast ones.

use std::path::Path;

pub(crate) use system::{allowed_cpus, stay_on};

/// The number of physical performance cores that this process may use: the default number of threads.
///
/// Two hyperthreads of a core share the units that kernels saturate, and an efficiency core makes
/// every job wait for it, so neither is counted. Never more than the system makes available
/// (affinity mask, container limits); exactly that where the topology is unknown.
pub fn performance_cores() -> usize {
    let available = std::thread::available_parallelism().map_or(1, usize::from);
    Fast::here().map_or(available, |fast| fast.cores.clamp(1, available))
}

/// The processors that `threads` threads sharing jobs are bound to, off slow cores, which all others would wait
/// for. `None` if all cores are equal, or if there are more threads than fast cores.
pub(super) fn fast_cpus(threads: usize) -> Option<Vec<usize>> {
    // Loom creates thousands of pools.
    let fast = if cfg!(loom) { None } else { Fast::here() };
    fast.filter(|fast| fast.is_part && threads <= fast.cores).map(|fast| fast.cpus)
}

/// The fast processors among those that this thread may use.
#[derive(Debug, PartialEq, Eq)]
struct Fast {
    cores: usize,
    /// The processors, hyperthreads included.
    cpus: Vec<usize>,
    /// Whether there are slow processors as well.
    is_part: bool,
}

/// A processor's core: the hyperthreads of one core are equal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Core {
    siblings: String,
    /// Relative speed; equal for all cores unless the processor is a hybrid.
    capacity: u64,
}

impl Fast {
    fn here() -> Option<Fast> {
        Fast::of(Path::new("/sys"), &allowed_cpus()?)
    }

    /// The fast ones of these processors, as the system describes them under `sys`.
    fn of(sys: &Path, cpus: &[usize]) -> Option<Fast> {
        let cores: Vec<Core> = cpus.iter().map(|&cpu| Core::read(sys, cpu)).collect::<Option<_>>()?;
        let fastest = cores.iter().map(|core| core.capacity).max()?;
        let is_fast = |core: &Core| is_fast(core.capacity, fastest);
        let fast: Vec<usize> =
            cpus.iter().zip(&cores).filter(|(_, core)| is_fast(core)).map(|(&cpu, _)| cpu).collect();
        let mut distinct: Vec<Core> = cores.into_iter().filter(is_fast).collect();
        distinct.sort();
        distinct.dedup_by(|a, b| a.siblings == b.siblings);
        Some(Fast { cores: distinct.len(), is_part: fast.len() < cpus.len(), cpus: fast })
    }
}

impl Core {
    fn read(sys: &Path, cpu: usize) -> Option<Core> {
        let folder = sys.join(format!("devices/system/cpu/cpu{cpu}"));
        let read = |name: &str| {
            let text = std::fs::read_to_string(folder.join(name)).ok()?;
            Some(text.trim().to_owned())
        };
        // Arm reports a capacity; on Intel hybrids the maximum frequency distinguishes the kinds.
        let capacity = read("cpu_capacity").or_else(|| read("cpufreq/cpuinfo_max_freq"));
        let capacity = capacity.and_then(|text| text.parse().ok());
        let siblings = read("topology/thread_siblings_list");
        // Some files may be hidden from an app; hybrid processors where that happens have no hyperthreads.
        let siblings = siblings.or_else(|| capacity.map(|_: u64| cpu.to_string()))?;
        Some(Core { siblings, capacity: capacity.unwrap_or(0) })
    }
}

/// Whether a core reaches three quarters of the fastest core's capacity: favoured cores of a uniform processor
/// differ by less, efficiency cores by more.
fn is_fast(capacity: u64, fastest: u64) -> bool {
    4 * capacity >= 3 * fastest
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod system {
    use std::io;

    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    /// The processors that the calling thread may use.
    pub(crate) fn allowed_cpus() -> Option<Vec<usize>> {
        let allowed = sched_getaffinity(None).ok()?;
        Some((0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect())
    }

    /// Binds the calling thread to these processors.
    pub(crate) fn stay_on(cpus: &[usize]) -> io::Result<()> {
        let mut set = CpuSet::new();
        cpus.iter().for_each(|&cpu| set.set(cpu));
        Ok(sched_setaffinity(None, &set)?)
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod system {
    use std::io;

    /// Unknown on this system.
    pub(crate) fn allowed_cpus() -> Option<Vec<usize>> {
        None
    }

    /// Unsupported where processors are unknown.
    pub(crate) fn stay_on(_: &[usize]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Creates a tree as the system shows it: the files of each processor with their texts.
    fn tree(name: &str, cpus: &[&[(&str, &str)]]) -> std::path::PathBuf {
        let sys = std::env::temp_dir().join(format!("kvik-topology-{}-{name}", std::process::id()));
        for (cpu, files) in cpus.iter().enumerate() {
            for (file, text) in *files {
                let path = sys.join(format!("devices/system/cpu/cpu{cpu}")).join(file);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, format!("{text}\n")).unwrap();
            }
        }
        sys
    }

    /// Checks the fast cores and their processors, for processors with these siblings and this capacity in `file`.
    fn check(name: &str, file: &str, cpus: &[(&str, &str)], expect: Option<(usize, &[usize])>) {
        let files = cpus.iter().map(|&(siblings, capacity)| {
            let files = [("topology/thread_siblings_list", siblings), (file, capacity)];
            files.into_iter().filter(|(_, text)| !text.is_empty()).collect::<Vec<_>>()
        });
        let files: Vec<Vec<(&str, &str)>> = files.collect();
        let sys = tree(name, &files.iter().map(Vec::as_slice).collect::<Vec<_>>());
        let all: Vec<usize> = (0..cpus.len()).collect();
        let expect =
            expect.map(|(cores, fast)| Fast { cores, cpus: fast.to_vec(), is_part: fast.len() < cpus.len() });
        assert_eq!(Fast::of(&sys, &all), expect, "{name}");
        let _ = fs::remove_dir_all(sys);
    }

    #[test]
    fn fast_cores_of_many_machines() {
        let (capacity, frequency) = ("cpu_capacity", "cpufreq/cpuinfo_max_freq");
        check("plain", capacity, &[("0", ""), ("1", "")], Some((2, &[0, 1])));
        check(
            "hyperthreads",
            capacity,
            &[("0,2", ""), ("1,3", ""), ("0,2", ""), ("1,3", "")],
            Some((2, &[0, 1, 2, 3])),
        );
        // Favoured cores of one kind all count; efficiency cores do not.
        check("favoured", frequency, &[("0", "5100000"), ("1", "5300000")], Some((2, &[0, 1])));
        let hybrid = [("0-1", "5200000"), ("0-1", "5200000"), ("2", "3800000"), ("3", "3800000")];
        check("hybrid", frequency, &hybrid, Some((1, &[0, 1])));
        // Phones: four small and four large, and 4 + 3 + 1 with one that is a little faster.
        let small = |cpu| (cpu, "325");
        let phone = [small("0"), small("1"), ("2", "1024"), ("3", "1024")];
        check("phone", capacity, &phone, Some((2, &[2, 3])));
        let prime = [small("0"), small("1"), ("2", "828"), ("3", "828"), ("4", "828"), ("5", "1024")];
        check("prime", capacity, &prime, Some((4, &[2, 3, 4, 5])));
        let frequencies = [("0", "1804800"), ("1", "1804800"), ("2", "2841600"), ("3", "2841600")];
        check("older phone", frequency, &frequencies, Some((2, &[2, 3])));
    }

    #[test]
    fn an_app_that_is_shown_less_knows_less() {
        check("no siblings", "cpu_capacity", &[("", "325"), ("", "1024")], Some((1, &[1])));
        check("nothing", "cpu_capacity", &[("", ""), ("", "")], None);
        // In the background a phone restricts an app to its small cores: they count as fast then.
        let sys = tree("background", &[&[("cpu_capacity", "325")], &[("cpu_capacity", "1024")]]);
        assert_eq!(Fast::of(&sys, &[0]), Some(Fast { cores: 1, cpus: vec![0], is_part: false }));
        assert_eq!(Fast::of(&sys, &[]), None);
        let _ = fs::remove_dir_all(sys);
    }

    #[test]
    fn this_machine_has_a_core() {
        let available = std::thread::available_parallelism().map_or(1, usize::from);
        assert!((1..=available).contains(&performance_cores()));
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    #[test]
    fn a_thread_stays_where_it_is_told_and_others_do_not() {
        let before = allowed_cpus().unwrap();
        let last = *before.last().unwrap();
        let stays = std::thread::spawn(move || {
            stay_on(&[last]).unwrap();
            allowed_cpus().unwrap()
        });
        assert_eq!(stays.join().unwrap(), [last]);
        assert_eq!(allowed_cpus().unwrap(), before);
    }
}

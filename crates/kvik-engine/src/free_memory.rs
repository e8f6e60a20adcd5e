//! The memory that this process may still allocate, and the default size of the KV budget.

use std::{fs, path::Path};

use kvik_kernels::bound_memory_domains;

/// Default KV budget if the free memory is unknown.
const BUDGET_BLIND: u64 = 2 << 30;
/// Maximum default KV budget; a larger one must be configured.
const BUDGET_DEFAULT_MAX: u64 = 8 << 30;

/// The memory of a machine, as far as it is available to this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MachineMemory {
    /// Bytes of the machine, or of the memory domains that this thread is bound to.
    pub total_bytes: u64,
    /// Bytes that may still be allocated: the system's figure, or less if a container or memory domains limit it.
    pub available_bytes: u64,
    /// The limit of the container or service that this process is in.
    pub limit_bytes: Option<u64>,
}

/// Default bytes for keys and values, if so many budgets take of this memory before it is filled: together half of what is
/// free, at most 8 GiB each.
pub fn default_kv_bytes(budgets: u64) -> u64 {
    default_kv_bytes_of(available_bytes(), budgets)
}

/// [`default_kv_bytes`] where so many bytes are free; `None` if the system does not report them.
pub fn default_kv_bytes_of(free: Option<u64>, budgets: u64) -> u64 {
    free.map_or(BUDGET_BLIND / budgets, |free| (free / (2 * budgets)).min(BUDGET_DEFAULT_MAX))
}

/// Free memory in bytes; `None` if the system does not report it.
pub fn available_bytes() -> Option<u64> {
    MachineMemory::read(Path::new("/")).map(|memory| memory.available_bytes)
}

impl MachineMemory {
    /// Maximum bytes of this process: those of the machine, or of the container or service that it is in.
    pub fn most_bytes(&self) -> u64 {
        self.limit_bytes.map_or(self.total_bytes, |limit| limit.min(self.total_bytes))
    }

    /// Reads the figures of the system under `root`; `None` if it has none.
    pub fn read(root: &Path) -> Option<MachineMemory> {
        MachineMemory::within(root, bound_memory_domains().as_deref())
    }

    /// As [`read`](Self::read), restricted to these memory domains, if any are given.
    fn within(root: &Path, domains: Option<&[usize]>) -> Option<MachineMemory> {
        let meminfo = fs::read_to_string(root.join("proc/meminfo")).ok()?;
        let machine =
            Free { total: kib_line(&meminfo, "MemTotal:")?, available: kib_line(&meminfo, "MemAvailable:")? };
        let domains =
            domains.and_then(|domains| domains.iter().map(|&domain| Free::of_domain(root, domain)).sum());
        let system = domains.map_or(machine, |domains: Free| domains.at_most(machine));
        let groups: Vec<Group> = [UNIFIED, LEGACY].iter().flat_map(|version| version.groups(root)).collect();
        let left = groups.iter().map(|group| group.limit_bytes.saturating_sub(group.used_bytes)).min();
        Some(MachineMemory {
            total_bytes: system.total,
            available_bytes: left.map_or(system.available, |left| system.available.min(left)),
            limit_bytes: groups.iter().map(|group| group.limit_bytes).min(),
        })
    }
}

/// Bytes of the machine or of a part of it.
#[derive(Debug, Clone, Copy)]
struct Free {
    total: u64,
    available: u64,
}

impl Free {
    /// The figures of one domain. The system does not report its available memory, which is estimated as its free
    /// memory and its cached files.
    fn of_domain(root: &Path, domain: usize) -> Option<Free> {
        let path = root.join(format!("sys/devices/system/node/node{domain}/meminfo"));
        let text = fs::read_to_string(path).ok()?;
        let bytes = |name: &str| kib_line(&text, &format!("Node {domain} {name}:"));
        let files = bytes("Active(file)").unwrap_or(0).saturating_add(bytes("Inactive(file)").unwrap_or(0));
        Some(Free { total: bytes("MemTotal")?, available: bytes("MemFree")?.saturating_add(files) })
    }

    fn at_most(self, other: Free) -> Free {
        Free { total: self.total.min(other.total), available: self.available.min(other.available) }
    }
}

impl std::iter::Sum for Free {
    fn sum<I: Iterator<Item = Free>>(all: I) -> Free {
        all.fold(Free { total: 0, available: 0 }, |sum, part| Free {
            total: sum.total.saturating_add(part.total),
            available: sum.available.saturating_add(part.available),
        })
    }
}

/// The memory controller in one version of control groups: where its groups are, and the names of their files.
struct Controller {
    folder: &'static str,
    limits: &'static [&'static str],
    used: &'static str,
    /// Lines of `memory.stat` with cached files, which the system drops for whoever needs the memory.
    cached: [&'static str; 2],
}

const UNIFIED: Controller = Controller {
    folder: "sys/fs/cgroup",
    limits: &["memory.max", "memory.high"],
    used: "memory.current",
    cached: ["active_file", "inactive_file"],
};

/// Version 1, which older systems have, some beside version 2.
const LEGACY: Controller = Controller {
    folder: "sys/fs/cgroup/memory",
    limits: &["memory.limit_in_bytes"],
    used: "memory.usage_in_bytes",
    cached: ["total_active_file", "total_inactive_file"],
};

/// Version 1 has no word for the absence of a limit, but the largest number of whole pages.
const LIMIT_MAX: u64 = 1 << 62;

impl Controller {
    /// The control groups with a limit that contain this process: its own and its ancestors. Inside a container its own
    /// is the root; a service of systemd is some levels below.
    fn groups(&self, root: &Path) -> Vec<Group> {
        let own = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        let inside = Path::new(own.lines().find_map(|line| self.own_group(line)).unwrap_or_default());
        // A group outside of this namespace is shown as `/../x`.
        let is_plain = inside.components().all(|part| matches!(part, std::path::Component::Normal(_)));
        let inside = if is_plain { inside } else { Path::new("") };
        let base = root.join(self.folder);
        inside.ancestors().filter_map(|group| self.read(&base.join(group))).collect()
    }

    /// The group in a line of `/proc/self/cgroup`, if that is about this controller: `0::/a` in version 2,
    /// `4:cpu,memory:/a` in version 1.
    fn own_group<'a>(&self, line: &'a str) -> Option<&'a str> {
        let mut parts = line.splitn(3, ':');
        let (number, controllers) = (parts.next()?, parts.next()?);
        let is_own = match self.folder == UNIFIED.folder {
            true => number == "0" && controllers.is_empty(),
            false => controllers.split(',').any(|controller| controller == "memory"),
        };
        parts.next().filter(|_| is_own)?.strip_prefix('/')
    }

    /// Reads a control group; `None` if it sets no limit.
    fn read(&self, folder: &Path) -> Option<Group> {
        let text = |name: &str| fs::read_to_string(folder.join(name)).ok();
        let number = |name: &str| text(name)?.trim().parse::<u64>().ok();
        let limits = self.limits.iter().filter_map(|name| number(name));
        let limit_bytes = limits.filter(|&limit| limit < LIMIT_MAX).min()?;
        let stat = text("memory.stat").unwrap_or_default();
        let cached = self.cached.iter().filter_map(|name| stat_line(&stat, name));
        let used_bytes = cached.fold(number(self.used).unwrap_or(0), u64::saturating_sub);
        Some(Group { limit_bytes, used_bytes })
    }
}

/// The memory figures of a control group.
struct Group {
    limit_bytes: u64,
    /// Bytes in use, without cached files.
    used_bytes: u64,
}

/// Parses a line such as `inactive_file 4096` of `memory.stat`.
fn stat_line(stat: &str, name: &str) -> Option<u64> {
    stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// Parses a line such as `MemAvailable:   12345 kB` of `/proc/meminfo`, in bytes.
fn kib_line(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1 << 10)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test may fail where it stands
mod tests {
    use super::*;

    #[test]
    fn budgets_in_one_memory_take_half_of_it_together() {
        let gib = |count: u64| count << 30;
        let check = |free: Option<u64>, expect: [u64; 2]| {
            assert_eq!([1, 2].map(|budgets| default_kv_bytes_of(free, budgets)), expect, "{free:?}");
        };
        check(Some(gib(12)), [gib(6), gib(3)]);
        check(Some(gib(100)), [gib(8); 2]);
        check(None, [gib(2), gib(1)]);
    }

    #[test]
    fn reads_meminfo() {
        let check = |text: &str, expect: Option<u64>| assert_eq!(kib_line(text, "MemAvailable:"), expect);
        check("MemTotal: 9 kB\nMemAvailable:    2048 kB\nBuffers: 1 kB\n", Some(2 << 20));
        check("MemTotal: 9 kB\n", None);
        check("MemAvailable: many kB\n", None);
    }

    /// A system root with these files.
    fn system(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let meminfo = ("proc/meminfo", "MemTotal: 4096 kB\nMemAvailable: 2048 kB\n");
        for (path, text) in [meminfo].iter().chain(files) {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn every_group_around_the_process_limits_it() {
        let check = |files: &[(&str, &str)], available_kib: u64, limit_kib: Option<u64>| {
            let memory = MachineMemory::read(system(files).path()).unwrap();
            assert_eq!(memory.total_bytes, 4 << 20);
            assert_eq!(memory.available_bytes, available_kib << 10, "{files:?}");
            assert_eq!(memory.limit_bytes, limit_kib.map(|kib| kib << 10), "{files:?}");
        };
        let own = ("proc/self/cgroup", "0::/system.slice/kvik.service\n");
        let limit = |kib: u64| (kib << 10).to_string();
        check(&[], 2048, None);
        check(&[own], 2048, None);
        check(&[("sys/fs/cgroup/memory.max", &limit(1024))], 1024, Some(1024));
        check(&[("sys/fs/cgroup/memory.max", "max\n")], 2048, None);
        let (max, current) = (
            "sys/fs/cgroup/system.slice/kvik.service/memory.max",
            "sys/fs/cgroup/system.slice/kvik.service/memory.current",
        );
        check(&[own, (max, &limit(1000)), (current, &limit(400))], 600, Some(1000));
        check(
            &[own, (max, &limit(1000)), ("sys/fs/cgroup/system.slice/memory.max", &limit(300))],
            300,
            Some(300),
        );
        // More in use than allowed, a limit above the machine, and a group of another namespace.
        check(&[own, (max, &limit(100)), (current, &limit(400))], 0, Some(100));
        check(&[own, (max, &limit(9000))], 2048, Some(9000));
        // A limit at which the system slows the group down.
        let high = "sys/fs/cgroup/system.slice/kvik.service/memory.high";
        check(&[own, (max, &limit(1000)), (high, &limit(700)), (current, &limit(400))], 300, Some(700));
        check(&[own, (max, "max\n"), (high, &limit(700))], 700, Some(700));
        // Cached files count as free.
        let stat = |[active, inactive]: [u64; 2], prefix: &str| {
            format!(
                "anon 1\n{prefix}active_file {}\n{prefix}inactive_file {}\n",
                active << 10,
                inactive << 10
            )
        };
        let stat_path = "sys/fs/cgroup/system.slice/kvik.service/memory.stat";
        for (cached, available_kib) in [([0, 0], 600), ([100, 250], 950), ([300, 300], 1000)] {
            let text = stat(cached, "");
            check(
                &[own, (max, &limit(1000)), (current, &limit(400)), (stat_path, &text)],
                available_kib,
                Some(1000),
            );
        }
        // Version 1, alone and beside version 2; in a container the path is that of the host.
        let own = ("proc/self/cgroup", "9:name=systemd:/x\n4:cpu,memory:/docker/1a\n0::/init.scope\n");
        for folder in ["sys/fs/cgroup/memory", "sys/fs/cgroup/memory/docker/1a"] {
            let [max, used, stat_path] = ["memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat"]
                .map(|name| format!("{folder}/{name}"));
            let text = format!("inactive_file 9\n{}", stat([60, 40], "total_"));
            check(&[own, (&max, &limit(1000)), (&used, &limit(400)), (&stat_path, &text)], 700, Some(1000));
            check(&[own, (&max, "9223372036854771712\n"), (&used, &limit(400))], 2048, None);
        }
        let outside = ("proc/self/cgroup", "0::/../other\n");
        check(&[outside, ("sys/fs/cgroup/memory.max", &limit(512))], 512, Some(512));
    }

    #[test]
    fn a_process_of_one_domain_has_what_is_free_there() {
        let node = |number: usize, total: u64, free: u64, files: u64| {
            let line = |name: &str, kib: u64| format!("Node {number} {name}:  {kib} kB\n");
            line("MemTotal", total)
                + &line("MemFree", free)
                + &line("Active(file)", files)
                + &line("Inactive(file)", 1)
        };
        let path = |number: usize| format!("sys/devices/system/node/node{number}/meminfo");
        let (first, second) = (node(0, 1096, 100, 200), node(1, 3000, 1500, 0));
        let files: &[(&str, &str)] =
            &[(&path(0), &first), (&path(1), &second), (&path(2), "Node 2 MemTotal: x kB\n")];
        let check = |domains: Option<&[usize]>, total_kib: u64, available_kib: u64| {
            let memory = MachineMemory::within(system(files).path(), domains).unwrap();
            let found = (memory.total_bytes >> 10, memory.available_bytes >> 10);
            assert_eq!(found, (total_kib, available_kib), "{domains:?}");
        };
        check(None, 4096, 2048);
        check(Some(&[0]), 1096, 301);
        check(Some(&[0, 1]), 4096, 1802);
        // For a domain that the system does not report, or reports invalidly, the machine's figures apply.
        check(Some(&[2]), 4096, 2048);
        check(Some(&[0, 7]), 4096, 2048);
    }

    #[test]
    fn a_system_that_says_nothing_has_no_figure() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(MachineMemory::read(root.path()), None);
    }
}

//! The memory that this process may still allocate, and how much of it keys and values get where nobody says.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The default KV budget where the free memory is unknown.
const BUDGET_BLIND: u64 = 2 << 30;
/// The default KV budget at most; a larger one has to be asked for.
const BUDGET_DEFAULT_MAX: u64 = 8 << 30;

/// The memory of a machine, as far as this process has any of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MachineMemory {
    /// Bytes of the machine.
    pub total_bytes: u64,
    /// Bytes that may still be allocated: the system's figure, or less where a container limits it.
    pub available_bytes: u64,
    /// The limit of the container or service that this process is in.
    pub limit_bytes: Option<u64>,
}

/// Bytes for keys and values where nobody says how many: half of the free memory, at most 8 GiB.
pub fn default_kv_bytes() -> u64 {
    available_bytes().map_or(BUDGET_BLIND, |free| (free / 2).min(BUDGET_DEFAULT_MAX))
}

/// Free memory in bytes; `None` where the system has no such figure.
pub fn available_bytes() -> Option<u64> {
    MachineMemory::read(Path::new("/")).map(|memory| memory.available_bytes)
}

impl MachineMemory {
    /// What the system under `root` says; `None` where it says nothing.
    pub fn read(root: &Path) -> Option<MachineMemory> {
        let meminfo = fs::read_to_string(root.join("proc/meminfo")).ok()?;
        let system = kib_line(&meminfo, "MemAvailable:")?;
        let groups: Vec<Group> = groups(root).iter().filter_map(|folder| Group::read(folder)).collect();
        let left = groups.iter().map(|group| group.limit_bytes.saturating_sub(group.used_bytes)).min();
        Some(MachineMemory {
            total_bytes: kib_line(&meminfo, "MemTotal:")?,
            available_bytes: left.map_or(system, |left| system.min(left)),
            limit_bytes: groups.iter().map(|group| group.limit_bytes).min(),
        })
    }
}

/// The folders of the control groups that this process is in: its own and those around it. Seen from a container its own
/// is the root; a service of systemd is some levels below.
fn groups(root: &Path) -> Vec<PathBuf> {
    let base = root.join("sys/fs/cgroup");
    let own = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let own = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    let inside = Path::new(own);
    // A group outside of this namespace is shown as `/../x`.
    let is_plain = inside.components().all(|part| matches!(part, std::path::Component::Normal(_)));
    let inside = if is_plain { inside } else { Path::new("") };
    inside.ancestors().map(|group| base.join(group)).collect()
}

/// What a control group says of memory.
struct Group {
    limit_bytes: u64,
    used_bytes: u64,
}

impl Group {
    /// `None` where the group sets no limit.
    fn read(folder: &Path) -> Option<Group> {
        let number = |name| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
        Some(Group { limit_bytes: number("memory.max")?, used_bytes: number("memory.current").unwrap_or(0) })
    }
}

/// A line as `MemAvailable:   12345 kB` of `/proc/meminfo`, in bytes.
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
    fn reads_meminfo() {
        let check = |text: &str, expect: Option<u64>| assert_eq!(kib_line(text, "MemAvailable:"), expect);
        check("MemTotal: 9 kB\nMemAvailable:    2048 kB\nBuffers: 1 kB\n", Some(2 << 20));
        check("MemTotal: 9 kB\n", None);
        check("MemAvailable: many kB\n", None);
    }

    /// A system that says these things, each in a file under its root.
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
        let outside = ("proc/self/cgroup", "0::/../other\n");
        check(&[outside, ("sys/fs/cgroup/memory.max", &limit(512))], 512, Some(512));
    }

    #[test]
    fn a_system_that_says_nothing_has_no_figure() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(MachineMemory::read(root.path()), None);
    }
}

//! The memory that this process may still allocate, and how much of it keys and values get where nobody says.

use std::fs;

/// The default KV budget where the free memory is unknown.
const BUDGET_BLIND: u64 = 2 << 30;
/// The default KV budget at most; a larger one has to be asked for.
const BUDGET_DEFAULT_MAX: u64 = 8 << 30;

/// Bytes for keys and values where nobody says how many: half of the free memory, at most 8 GiB.
pub fn default_kv_bytes() -> u64 {
    available_bytes().map_or(BUDGET_BLIND, |free| (free / 2).min(BUDGET_DEFAULT_MAX))
}

/// Free memory in bytes: the system's figure of available memory, or less where a container limits it.
/// `None` where the system has no such figure.
pub fn available_bytes() -> Option<u64> {
    let read = |path: &str| fs::read_to_string(path).ok();
    let system = mem_available(&read("/proc/meminfo")?)?;
    let limit = read("/sys/fs/cgroup/memory.max").and_then(|text| text.trim().parse::<u64>().ok());
    let used = read("/sys/fs/cgroup/memory.current").and_then(|text| text.trim().parse::<u64>().ok());
    let container = limit.map(|limit| limit.saturating_sub(used.unwrap_or(0)));
    Some(container.map_or(system, |container| system.min(container)))
}

/// The line `MemAvailable:   12345 kB` of `/proc/meminfo`.
fn mem_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1 << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_meminfo() {
        let check = |text: &str, expect: Option<u64>| assert_eq!(mem_available(text), expect);
        check("MemTotal: 9 kB\nMemAvailable:    2048 kB\nBuffers: 1 kB\n", Some(2 << 20));
        check("MemTotal: 9 kB\n", None);
        check("MemAvailable: many kB\n", None);
    }
}

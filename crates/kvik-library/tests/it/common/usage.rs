//! What this process takes from the system.

use std::fs;
use std::time::{Duration, Instant};

/// Memory of the process in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Usage {
    /// In RAM.
    pub(crate) resident: usize,
    /// The same, where what several processes share is divided among them.
    pub(crate) proportional: usize,
    /// Of these, what no other process has.
    pub(crate) private: usize,
}

impl Usage {
    /// As the system counts it, page by page.
    pub(crate) fn now() -> Usage {
        let text = fs::read_to_string("/proc/self/smaps_rollup").unwrap();
        let kib = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap()
        };
        Usage {
            resident: kib("Rss:") << 10,
            proportional: kib("Pss:") << 10,
            private: (kib("Private_Clean:") + kib("Private_Dirty:")) << 10,
        }
    }
}

/// Entries of a folder of `/proc/self`, once there are at most `expected`: the system takes a moment to forget a thread
/// that has been waited for.
pub(crate) fn settled(folder: &str, expected: usize) -> usize {
    let count = || fs::read_dir(format!("/proc/self/{folder}")).unwrap().count();
    let deadline = Instant::now() + Duration::from_secs(2);
    while count() > expected && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    count()
}

pub(crate) fn mib(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

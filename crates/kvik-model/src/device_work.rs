//! What a runner's device was given to do, for measurements.

use std::time::Duration;

/// Work of a device since its runner was made; all zero for runners without a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceWork {
    /// Time spent preparing batches while the device was idle.
    pub preparing: Duration,
    /// Time spent waiting for results.
    pub waiting: Duration,
    /// Calls that hand recorded work to the driver.
    pub submissions: u64,
    /// Runs of kernels, each after those before it.
    pub dispatches: u64,
    /// Work groups of these.
    pub groups: u64,
    /// Writes from the machine's memory.
    pub uploads: u64,
    /// Buffers allocated.
    pub allocations: u64,
    /// Bytes of matrices read, without those of experts, and of the same matrices read once each in every step.
    pub weight_bytes: [u64; 2],
    /// Bytes of keys and values read, and of each sequence's visible positions read once in every step.
    pub kv_bytes: [u64; 2],
}

/// Runs of one kernel, timed by the device's own clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelTime {
    /// Its name.
    pub kernel: String,
    /// Number of runs.
    pub runs: u64,
    /// Work groups of all runs.
    pub groups: u64,
    /// Nanoseconds of all runs.
    pub ns: u64,
}

impl DeviceWork {
    /// The work since `before`.
    pub fn since(&self, before: &DeviceWork) -> DeviceWork {
        let both = |now: [u64; 2], then: [u64; 2]| [now[0] - then[0], now[1] - then[1]];
        DeviceWork {
            preparing: self.preparing - before.preparing,
            waiting: self.waiting - before.waiting,
            submissions: self.submissions - before.submissions,
            dispatches: self.dispatches - before.dispatches,
            groups: self.groups - before.groups,
            uploads: self.uploads - before.uploads,
            allocations: self.allocations - before.allocations,
            weight_bytes: both(self.weight_bytes, before.weight_bytes),
            kv_bytes: both(self.kv_bytes, before.kv_bytes),
        }
    }
}

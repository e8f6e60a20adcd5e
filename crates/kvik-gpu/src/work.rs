//! Counters of the work that a device was given, and times of kernels by the device's own clock.

use std::collections::BTreeMap;

use crate::kernel::Kernel;
use crate::{Device, DeviceError};

/// Work since a device was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Work {
    /// Calls that hand recorded work to the driver.
    pub submissions: u64,
    /// Runs of kernels: each waits for those before it.
    pub dispatches: u64,
    /// Work groups of these.
    pub groups: u64,
    /// Writes from the machine's memory.
    pub uploads: u64,
    /// Buffers allocated.
    pub allocations: u64,
    /// Bytes of matrices that products read, without those of experts, and the bytes of the same matrices read once each.
    pub weight_bytes: u64,
    /// See `weight_bytes`.
    pub weight_bytes_least: u64,
    /// Bytes of keys and values that attention reads, and the bytes of each sequence's visible positions read once.
    pub kv_bytes: u64,
    /// See `kv_bytes`.
    pub kv_bytes_least: u64,
}

/// Runs of one kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelTime {
    /// The piece with its entry point, the weight format if it reads one, and the number of inputs that share a read of it.
    pub kernel: String,
    /// Number of runs.
    pub runs: u64,
    /// Work groups of all runs.
    pub groups: u64,
    /// Nanoseconds of all runs, by the clock of the device.
    pub ns: u64,
}

/// Queries of a set, of which each timed run takes two.
const QUERIES: u32 = 4096;

/// The timed runs of a step.
pub(crate) struct Timing {
    set: wgpu::QuerySet,
    /// Name and work groups of each.
    runs: Vec<(String, u64)>,
}

impl Timing {
    pub(crate) fn new(device: &wgpu::Device) -> Timing {
        let descriptor =
            wgpu::QuerySetDescriptor { label: None, ty: wgpu::QueryType::Timestamp, count: QUERIES };
        Timing { set: device.create_query_set(&descriptor), runs: Vec::new() }
    }

    /// The time stamps around the next run, of which the first 2,048 of a step are timed.
    pub(crate) fn around(
        &mut self,
        kernel: &Kernel,
        groups: u64,
    ) -> Option<wgpu::ComputePassTimestampWrites<'_>> {
        let first = 2 * self.runs.len() as u32;
        if first >= QUERIES {
            return None;
        }
        self.runs.push((kernel.short_name(), groups));
        Some(wgpu::ComputePassTimestampWrites {
            query_set: &self.set,
            beginning_of_pass_write_index: Some(first),
            end_of_pass_write_index: Some(first + 1),
        })
    }

    /// Adds a copy of the time stamps to a buffer.
    pub(crate) fn resolve(&self, device: &wgpu::Device, encoder: &mut wgpu::CommandEncoder) -> wgpu::Buffer {
        let descriptor = wgpu::BufferDescriptor {
            label: Some("time stamps"),
            size: self.bytes().max(16),
            usage: wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC,
            mapped_at_creation: false,
        };
        let buffer = device.create_buffer(&descriptor);
        if !self.runs.is_empty() {
            encoder.resolve_query_set(&self.set, 0..2 * self.runs.len() as u32, &buffer, 0);
        }
        buffer
    }

    /// Bytes of all time stamps.
    pub(crate) fn bytes(&self) -> u64 {
        16 * self.runs.len() as u64
    }

    /// Adds the runs to the times of their kernels; `stamps` are pairs of ticks of `tick_ns` nanoseconds.
    pub(crate) fn add_to(&self, times: &mut BTreeMap<String, KernelTime>, stamps: &[u64], tick_ns: f32) {
        for ((name, groups), ticks) in self.runs.iter().zip(stamps.chunks_exact(2)) {
            let time = times.entry(name.clone()).or_insert_with(|| KernelTime {
                kernel: name.clone(),
                runs: 0,
                groups: 0,
                ns: 0,
            });
            time.runs += 1;
            time.groups += groups;
            time.ns += (ticks[1].saturating_sub(ticks[0]) as f64 * f64::from(tick_ns)) as u64;
        }
    }
}

impl Device {
    /// The work since it was opened.
    pub fn work(&self) -> Work {
        self.work.get()
    }

    pub(crate) fn count(&self, count: impl FnOnce(&mut Work)) {
        let mut work = self.work.get();
        count(&mut work);
        self.work.set(work);
    }

    /// Begins to time each kernel by itself, which makes a step slower, or ends it. Forgets earlier times.
    ///
    /// # Errors
    /// If the device has no clock that kernels can be timed by.
    pub fn time_kernels(&mut self, on: bool) -> Result<(), DeviceError> {
        if on && !self.info().timestamps {
            return Err(DeviceError::Lacks { device: self.info().name.clone(), feature: "time stamps" });
        }
        self.times = on.then(BTreeMap::new);
        Ok(())
    }

    /// The times of kernels since [`Device::time_kernels`], the longest first.
    pub fn kernel_times(&self) -> Vec<KernelTime> {
        let mut times: Vec<_> = self.times.iter().flat_map(BTreeMap::values).cloned().collect();
        times.sort_by_key(|time| std::cmp::Reverse(time.ns));
        times
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_one_kernel_are_added_up() {
        let Ok(mut device) = Device::open(crate::Choice::Index(0)) else {
            return kvik_testing::skip("no GPU, nor one of software");
        };
        if device.time_kernels(true).is_err() {
            return kvik_testing::skip("the driver has no time stamps");
        }
        let mut timing = Timing::new(device.raw());
        timing.runs = vec![("a".to_owned(), 1), ("b".to_owned(), 2), ("a".to_owned(), 4)];
        let mut times = BTreeMap::new();
        timing.add_to(&mut times, &[0, 10, 10, 11, 20, 25], 2.0);
        let of = |name: &str| (times[name].runs, times[name].groups, times[name].ns);
        assert_eq!((of("a"), of("b")), ((2, 5, 30), (1, 2, 2)));
    }
}

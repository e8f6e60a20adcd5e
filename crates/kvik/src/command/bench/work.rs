//! What a step of a GPU consists of: submissions, kernels, bytes, and the time of each kernel.

use kvik_model::device_work::{DeviceWork, KernelTime};
use serde::Serialize;

/// Means over the steps of a test.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct StepWork {
    n_steps: usize,
    /// Nanoseconds of a step in which the processor waited for the GPU.
    step_waiting_ns: f64,
    step_preparing_ns: f64,
    /// Calls of the driver, kernels, their work groups, writes from memory, and buffers allocated.
    step_submissions: f64,
    step_kernels: f64,
    step_groups: f64,
    step_uploads: f64,
    step_allocations: f64,
    /// Bytes of matrices, without those of experts, and of keys and values that kernels read; and the least, each once.
    step_weight_bytes: f64,
    step_weight_bytes_least: f64,
    step_kv_bytes: f64,
    step_kv_bytes_least: f64,
}

/// A kernel of a repetition, by the clock of the GPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct KernelRow {
    pub(super) kernel: String,
    pub(super) runs: u64,
    pub(super) groups: u64,
    pub(super) ns: u64,
}

impl StepWork {
    /// The work of `steps` steps; `None` if no device did any.
    pub(super) fn of(work: &DeviceWork, steps: usize) -> Option<StepWork> {
        let mean = |count: u64| count as f64 / steps as f64;
        let [weight, weight_least] = work.weight_bytes.map(mean);
        let [kv, kv_least] = work.kv_bytes.map(mean);
        (work.dispatches > 0 && steps > 0).then(|| StepWork {
            n_steps: steps,
            step_waiting_ns: mean(work.waiting.as_nanos() as u64),
            step_preparing_ns: mean(work.preparing.as_nanos() as u64),
            step_submissions: mean(work.submissions),
            step_kernels: mean(work.dispatches),
            step_groups: mean(work.groups),
            step_uploads: mean(work.uploads),
            step_allocations: mean(work.allocations),
            step_weight_bytes: weight,
            step_weight_bytes_least: weight_least,
            step_kv_bytes: kv,
            step_kv_bytes_least: kv_least,
        })
    }

    /// A line below the row of the table.
    pub(super) fn line(&self) -> String {
        let times = |read: f64, least: f64| if least > 0.0 { read / least } else { 0.0 };
        let weights = times(self.step_weight_bytes, self.step_weight_bytes_least);
        let kv = times(self.step_kv_bytes, self.step_kv_bytes_least);
        format!(
            "  a step: {:.1} submissions, {:.1} kernels of {:.0} work groups, {:.1} uploads, {:.1} allocations; weights \
             read {weights:.2} times, keys and values {kv:.2} times; {:.2} ms prepared, {:.2} ms waited",
            self.step_submissions,
            self.step_kernels,
            self.step_groups / self.step_kernels,
            self.step_uploads,
            self.step_allocations,
            self.step_preparing_ns / 1e6,
            self.step_waiting_ns / 1e6,
        )
    }
}

impl From<KernelTime> for KernelRow {
    fn from(KernelTime { kernel, runs, groups, ns }: KernelTime) -> KernelRow {
        KernelRow { kernel, runs, groups, ns }
    }
}

/// Lines of the kernels of a test, the longest first, with their share of the time of all.
pub(super) fn kernel_lines(kernels: &[KernelRow]) -> Vec<String> {
    let all = kernels.iter().map(|kernel| kernel.ns).sum::<u64>().max(1) as f64;
    let line = |KernelRow { kernel, runs, groups, ns }: &KernelRow| {
        let (ns, runs_of) = (*ns as f64, (*runs).max(1));
        let (share, each) = (100.0 * ns / all, ns / 1e3 / runs_of as f64);
        format!("  {share:5.1} %  {runs:6} x {each:9.1} us  {:7} groups  {kernel}", groups / runs_of)
    };
    kernels.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn work_is_told_as_means_of_a_step() {
        let work = DeviceWork {
            waiting: Duration::from_millis(8),
            submissions: 4,
            dispatches: 400,
            groups: 8_000,
            weight_bytes: [2_000, 1_000],
            ..DeviceWork::default()
        };
        assert_eq!(StepWork::of(&DeviceWork::default(), 4), None);
        assert_eq!(StepWork::of(&work, 0), None);
        let line = StepWork::of(&work, 4).unwrap().line();
        for part in
            ["1.0 submissions", "100.0 kernels of 20 work groups", "read 2.00 times", "2.00 ms waited"]
        {
            assert!(line.contains(part), "{line}");
        }
    }

    #[test]
    fn kernels_are_told_with_their_share() {
        let kernel = |name: &str, ns| KernelRow { kernel: name.to_owned(), runs: 2, groups: 6, ns };
        let lines = kernel_lines(&[kernel("long", 3_000), kernel("short", 1_000)]);
        assert!(lines[0].contains("75.0 %") && lines[0].contains("1.5 us") && lines[0].ends_with("long"));
        assert!(lines[1].contains("25.0 %") && lines[1].contains("3 groups"));
    }
}

//! A step: work that is recorded and then runs as a whole.

use bytemuck::Pod;

use crate::buffer::append;
use crate::kernel::Kernel;
use crate::work::Timing;
use crate::{Buffer, Device, DeviceError, Part, Reading};

/// Recorded work. Each operation sees the results of those before it.
pub struct Step<'a> {
    device: &'a mut Device,
    encoder: wgpu::CommandEncoder,
    pass: Option<wgpu::ComputePass<'static>>,
    /// Time stamps around each kernel, if kernels are timed.
    timing: Option<Timing>,
}

impl<'a> Step<'a> {
    pub(crate) fn new(device: &'a mut Device) -> Step<'a> {
        let encoder = device.raw().create_command_encoder(&Default::default());
        let timing = device.times.is_some().then(|| Timing::new(device.raw()));
        Step { device, encoder, pass: None, timing }
    }

    /// The device that it runs on.
    pub fn device(&self) -> &Device {
        self.device
    }

    /// Adds a kernel; `buffers` are indexed by the number of the binding.
    pub(crate) fn dispatch(
        &mut self,
        kernel: &Kernel,
        buffers: &[&wgpu::Buffer],
        params: &impl Pod,
        grid: [u32; 3],
    ) -> Result<(), DeviceError> {
        assert_eq!(buffers.len(), kernel.buffers.len(), "buffers of {kernel:?}");
        let params = bytemuck::bytes_of(params);
        assert_eq!(params.len(), kernel.params, "params of {kernel:?}");
        if grid.contains(&0) {
            return Ok(());
        }
        let pipeline = self.device.pipeline(kernel)?;
        let entries = (0..).zip(buffers);
        let entries: Vec<_> = entries
            .map(|(binding, buffer)| wgpu::BindGroupEntry { binding, resource: buffer.as_entire_binding() })
            .collect();
        let descriptor =
            wgpu::BindGroupDescriptor { label: None, layout: &pipeline.bindings, entries: &entries };
        let group = self.device.raw().create_bind_group(&descriptor);
        let groups = grid.iter().map(|&size| u64::from(size)).product();
        self.device.count(|work| {
            work.dispatches += 1;
            work.groups += groups;
        });
        if let Some(timing) = &mut self.timing {
            // A timed kernel has a pass of its own.
            self.pass = None;
            let timestamp_writes = timing.around(kernel, groups);
            let descriptor = wgpu::ComputePassDescriptor { label: None, timestamp_writes };
            self.pass = Some(self.encoder.begin_compute_pass(&descriptor).forget_lifetime());
        }
        let begin = || self.encoder.begin_compute_pass(&Default::default()).forget_lifetime();
        let pass = self.pass.get_or_insert_with(begin);
        pass.set_pipeline(&pipeline.pipeline);
        pass.set_bind_group(0, &group, &[]);
        pass.set_immediates(0, params);
        pass.dispatch_workgroups(grid[0], grid[1], grid[2]);
        Ok(())
    }

    /// Adds a copy of `words` words from one buffer to another, or to another place in the same buffer.
    pub(crate) fn copy(&mut self, from: (&Buffer<u32>, u64), to: (&Buffer<u32>, u64), words: u64) {
        // A pass must end before a copy.
        self.pass = None;
        let [source, target] = [from.1, to.1].map(|word| word * 4);
        self.encoder.copy_buffer_to_buffer(from.0.raw(), source, to.0.raw(), target, words * 4);
    }

    /// Submits the work to the device without waiting for it.
    ///
    /// # Errors
    /// If the device is lost or refuses it.
    pub fn submit(self) -> Result<(), DeviceError> {
        let reading = self.submit_reading(&[])?;
        debug_assert!(reading.is_empty());
        Ok(())
    }

    /// Submits the work, and after it a copy of these parts of buffers to the machine's memory, which
    /// [`Device::finish_reading`] waits for: one submission for both.
    ///
    /// # Errors
    /// If the device is lost or refuses it, or there is no memory for the parts.
    pub fn submit_reading(mut self, parts: &[Part<'_>]) -> Result<Reading, DeviceError> {
        drop(self.pass.take());
        self.device.check()?;
        let reading = self.device.record_reading(&mut self.encoder, parts)?;
        let stamps = self.timing.as_ref().map(|timing| timing.resolve(self.device.raw(), &mut self.encoder));
        self.device.count(|work| work.submissions += 1);
        self.device.queue().submit([self.encoder.finish()]);
        self.device.check()?;
        if let Some((timing, stamps)) = self.timing.zip(stamps) {
            let (mut ticks, tick_ns) = (Vec::new(), self.device.queue().get_timestamp_period());
            let part = Part::new(&stamps, 0..timing.bytes());
            self.device.bytes(&[part], |bytes| append(&mut ticks, bytes))?;
            if let Some(times) = &mut self.device.times {
                timing.add_to(times, &ticks, tick_ns);
            }
        }
        Ok(reading)
    }
}

impl std::fmt::Debug for Step<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Step").field("device", &self.device).finish()
    }
}

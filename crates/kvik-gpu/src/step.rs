//! A step: work that is recorded and then runs as a whole.

use bytemuck::Pod;

use crate::kernel::Kernel;
use crate::{Buffer, Device, DeviceError};

/// Recorded work. Each operation sees the results of those before it.
pub struct Step<'a> {
    device: &'a mut Device,
    encoder: wgpu::CommandEncoder,
    pass: Option<wgpu::ComputePass<'static>>,
}

impl<'a> Step<'a> {
    pub(crate) fn new(device: &'a mut Device) -> Step<'a> {
        let encoder = device.raw().create_command_encoder(&Default::default());
        Step { device, encoder, pass: None }
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
        drop(self.pass);
        self.device.queue().submit([self.encoder.finish()]);
        self.device.check()
    }
}

impl std::fmt::Debug for Step<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Step").field("device", &self.device).finish()
    }
}

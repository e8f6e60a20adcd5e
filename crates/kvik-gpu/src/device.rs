//! Devices: their discovery, opening and faults.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::pin::pin;
use std::sync::{Arc, OnceLock, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::kernel::{Kernel, Pipeline};
use crate::step::Step;
use crate::{DeviceError, KernelTime, Work};

/// Timeout of the end of a device, after which it is left to its thread with the memory that it still holds.
const DROP_MAX: Duration = Duration::from_secs(10);

/// A GPU of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The number by which it is selected.
    pub index: usize,
    /// Its name.
    pub name: String,
    /// The kind of device.
    pub kind: DeviceKind,
    /// The API that reaches it: Vulkan, Metal, Dx12.
    pub backend: String,
    /// Name and version of the driver. Results are the same to the bit on one device and driver.
    pub driver: String,
    /// Maximum size of a buffer in bytes. wgpu does not expose the amount of memory.
    pub buffer_bytes_max: u64,
    /// Maximum size of a binding in bytes: no band of a tensor and no layer of an arena is larger.
    pub binding_bytes_max: u64,
    /// Bytes that the invocations of a work group share.
    pub shared_bytes_max: u32,
    /// Smallest and largest number of invocations of a subgroup; `None` if kernels cannot exchange numbers in them.
    pub subgroup: Option<[u32; 2]>,
    /// Whether kernels can be timed by the device's own clock.
    pub timestamps: bool,
}

/// The kind of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceKind {
    /// A card with memory of its own.
    Discrete,
    /// A part of the processor, whose memory it shares.
    Integrated,
    /// A virtual device of a virtual machine.
    Virtual,
    /// A software driver on the processor, for tests.
    Software,
    /// Unknown.
    Other,
}

/// The selection of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// The device that is probably the fastest; never a software device.
    Auto,
    /// The device of this number.
    Index(usize),
}

/// An open device, owned by one thread.
pub struct Device {
    info: DeviceInfo,
    device: wgpu::Device,
    /// `None` only while the device is dropped.
    queue: Option<wgpu::Queue>,
    pipelines: HashMap<Kernel, Pipeline>,
    /// Where results are copied to be read, if no read is in progress.
    pub(crate) read_room: Cell<Option<wgpu::Buffer>>,
    /// Small buffers of earlier steps.
    pub(crate) spare: RefCell<Vec<wgpu::Buffer>>,
    pub(crate) work: Cell<Work>,
    /// Times of kernels, if they are timed.
    pub(crate) times: Option<BTreeMap<String, KernelTime>>,
    /// Bytes uploaded since the last wait for uploads, or more.
    pub(crate) uploads: Cell<usize>,
    /// The first fault that no call has reported, or after which the device counts as lost.
    fault: Arc<OnceLock<DeviceError>>,
}

/// All devices, in the order of their numbers.
pub fn devices() -> Vec<DeviceInfo> {
    adapters().iter().enumerate().map(|(index, adapter)| DeviceInfo::of(index, adapter)).collect()
}

fn adapters() -> Vec<wgpu::Adapter> {
    // Allocations beyond this share of a device's memory are refused with an error; at the limit drivers fail
    // in other ways.
    const MEMORY_PERCENT_MAX: u8 = 95;
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle().with_env();
    descriptor.memory_budget_thresholds.for_resource_creation = Some(MEMORY_PERCENT_MAX);
    ready(wgpu::Instance::new(descriptor).enumerate_adapters(wgpu::Backends::PRIMARY))
}

impl DeviceInfo {
    fn of(index: usize, adapter: &wgpu::Adapter) -> DeviceInfo {
        let (info, limits) = (adapter.get_info(), adapter.limits());
        let features = adapter.features();
        let exchanges = features.contains(wgpu::Features::SUBGROUP);
        DeviceInfo {
            index,
            name: info.name,
            kind: match info.device_type {
                wgpu::DeviceType::DiscreteGpu => DeviceKind::Discrete,
                wgpu::DeviceType::IntegratedGpu => DeviceKind::Integrated,
                wgpu::DeviceType::VirtualGpu => DeviceKind::Virtual,
                wgpu::DeviceType::Cpu => DeviceKind::Software,
                wgpu::DeviceType::Other => DeviceKind::Other,
            },
            backend: format!("{:?}", info.backend),
            driver: format!("{} {}", info.driver, info.driver_info),
            buffer_bytes_max: limits.max_buffer_size,
            // Kernels compute byte offsets in 32 bits.
            binding_bytes_max: limits
                .max_storage_buffer_binding_size
                .min(limits.max_buffer_size)
                .min(1 << 31),
            shared_bytes_max: limits.max_compute_workgroup_storage_size,
            subgroup: exchanges.then_some([info.subgroup_min_size, info.subgroup_max_size]),
            timestamps: features.contains(wgpu::Features::TIMESTAMP_QUERY),
        }
    }
}

impl Choice {
    /// The number of the selected device.
    fn of(self, devices: &[DeviceInfo]) -> Result<usize, DeviceError> {
        let rank = |kind| match kind {
            DeviceKind::Discrete => 3,
            DeviceKind::Integrated => 2,
            DeviceKind::Virtual | DeviceKind::Other => 1,
            DeviceKind::Software => 0,
        };
        match self {
            Choice::Index(index) if index < devices.len() => Ok(index),
            Choice::Index(wanted) if !devices.is_empty() => {
                Err(DeviceError::NotFound { wanted, count: devices.len() })
            }
            Choice::Index(_) => Err(DeviceError::NoDevice),
            Choice::Auto => {
                // The first of equals: `max_by_key` returns the last.
                let fit = devices.iter().rev().filter(|device| rank(device.kind) > 0);
                let best = fit.max_by_key(|device| rank(device.kind));
                best.map(|device| device.index).ok_or(DeviceError::NoDevice)
            }
        }
    }
}

impl Device {
    /// Opens a device.
    ///
    /// # Errors
    /// If no device has that number, it lacks a required feature, or the driver does not open it.
    pub fn open(choice: Choice) -> Result<Device, DeviceError> {
        let adapters = adapters();
        let infos: Vec<_> =
            adapters.iter().enumerate().map(|(index, adapter)| DeviceInfo::of(index, adapter)).collect();
        let index = choice.of(&infos)?;
        let (adapter, info) = (&adapters[index], infos[index].clone());
        let lacks = |feature| DeviceError::Lacks { device: info.name.clone(), feature };
        if !adapter.features().contains(wgpu::Features::IMMEDIATES) {
            return Err(lacks("immediate data (push constants)"));
        }
        let limits = adapter.limits();
        if limits.max_compute_workgroup_storage_size < 16 << 10 || limits.max_immediate_size < 64 {
            return Err(lacks("workgroup memory of 16 KiB and immediate data of 64 bytes"));
        }
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("kvik"),
            // Time stamps are for measurements.
            required_features: wgpu::Features::IMMEDIATES
                | (adapter.features() & wgpu::Features::TIMESTAMP_QUERY),
            required_limits: limits,
            ..Default::default()
        };
        let opened = ready(adapter.request_device(&descriptor));
        let (device, queue) = opened
            .map_err(|error| DeviceError::Open { device: info.name.clone(), reason: error.to_string() })?;
        let fault = Arc::new(OnceLock::new());
        watch(&device, &fault);
        Ok(Device {
            info,
            device,
            queue: Some(queue),
            pipelines: HashMap::new(),
            read_room: Cell::default(),
            spare: RefCell::default(),
            work: Cell::default(),
            times: None,
            uploads: Cell::new(0),
            fault,
        })
    }

    /// The properties of the device.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Begins a step, to which work is added, and which then runs as a whole.
    pub fn step(&mut self) -> Step<'_> {
        Step::new(self)
    }

    /// Checks that the device still works.
    ///
    /// # Errors
    /// If it is lost, or a call failed whose result was never read.
    pub fn check(&self) -> Result<(), DeviceError> {
        self.fault.get().map_or(Ok(()), |fault| Err(fault.clone()))
    }

    /// Destroys the device: its contents are lost, and every later call fails.
    pub fn destroy(&self) {
        self.device.destroy();
        // The driver reports it at the next poll.
        self.device.poll(wgpu::PollType::Poll).ok();
    }

    pub(crate) fn raw(&self) -> &wgpu::Device {
        &self.device
    }

    pub(crate) fn queue(&self) -> &wgpu::Queue {
        self.queue.as_ref().expect("it is there until the device is dropped")
    }

    /// Counts the device as lost from here on; returns its first fault.
    pub(crate) fn lose(&self, reason: String) -> DeviceError {
        self.fault.get_or_init(|| DeviceError::Lost { reason }).clone()
    }

    /// The pipeline of a kernel, compiled at its first use.
    pub(crate) fn pipeline(&mut self, kernel: &Kernel) -> Result<Pipeline, DeviceError> {
        if let Some(pipeline) = self.pipelines.get(kernel) {
            return Ok(pipeline.clone());
        }
        let pipeline = kernel.compile(self)?;
        self.pipelines.insert(kernel.clone(), pipeline.clone());
        Ok(pipeline)
    }

    /// Runs `work` and returns the driver's error, if any.
    pub(crate) fn caught<T>(&self, work: impl FnOnce() -> T) -> (T, Option<wgpu::Error>) {
        use wgpu::ErrorFilter::{Internal, OutOfMemory, Validation};
        let scopes = [Internal, Validation, OutOfMemory].map(|filter| self.device.push_error_scope(filter));
        let done = work();
        // Scopes are popped in reverse order.
        let errors = scopes.into_iter().rev().map(|scope| ready(scope.pop()));
        (done, errors.fold(None, Option::or))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // The end of a queue waits for its work, without bound where a device does not answer.
        if let Some(queue) = self.queue.take() {
            drop_apart(queue, DROP_MAX);
        }
    }
}

/// Drops `held` in a thread of its own, which is waited for as long as `patience`.
fn drop_apart<T: Send + 'static>(held: T, patience: Duration) {
    let (ends, ended) = mpsc::channel::<()>();
    let end = move || {
        drop(held);
        drop(ends);
    };
    // If there is no thread, what it would have held was dropped here.
    let Ok(thread) = std::thread::Builder::new().name("kvik-gpu-drop".to_owned()).spawn(end) else { return };
    if ended.recv_timeout(patience) == Err(mpsc::RecvTimeoutError::Disconnected) {
        // A driver has something to do at the end of each thread that called it, for which it must still be loaded.
        thread.join().ok();
    }
}

/// Records the first fault that no call reports.
fn watch(device: &wgpu::Device, fault: &Arc<OnceLock<DeviceError>>) {
    let lost = fault.clone();
    device.set_device_lost_callback(move |_, reason| {
        // Later faults follow from the first one.
        lost.set(DeviceError::Lost { reason }).ok();
    });
    let refused = fault.clone();
    device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
        refused.set(DeviceError::Refused { message: error.to_string() }).ok();
    }));
}

/// The result of a wgpu future, which outside of browsers is ready at once.
pub(crate) fn ready<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return result;
        }
        std::thread::yield_now();
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device").field("info", &self.info).field("pipelines", &self.pipelines.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(index: usize, kind: DeviceKind) -> DeviceInfo {
        let text = String::new;
        let (buffer_bytes_max, binding_bytes_max, shared_bytes_max) = (1, 1, 1);
        DeviceInfo {
            index,
            name: text(),
            kind,
            backend: text(),
            driver: text(),
            buffer_bytes_max,
            binding_bytes_max,
            shared_bytes_max,
            subgroup: None,
            timestamps: false,
        }
    }

    /// What ends when the test says so, and tells when it has ended.
    struct Held {
        may_end: mpsc::Receiver<()>,
        ended: mpsc::Sender<()>,
    }

    impl Drop for Held {
        fn drop(&mut self) {
            self.may_end.recv().ok();
            self.ended.send(()).ok();
        }
    }

    #[test]
    fn what_does_not_end_in_time_is_left_to_its_thread() {
        for may_end_before in [false, true] {
            let ((end, may_end), (ended, has_ended)) = (mpsc::channel(), mpsc::channel());
            let patience = if may_end_before { Duration::from_secs(600) } else { Duration::ZERO };
            if may_end_before {
                end.send(()).unwrap();
            }
            drop_apart(Held { may_end, ended }, patience);
            assert_eq!(has_ended.try_recv().is_ok(), may_end_before);
            if !may_end_before {
                end.send(()).unwrap();
                assert_eq!(has_ended.recv(), Ok(()));
            }
        }
    }

    #[test]
    fn auto_takes_the_first_of_the_best_and_no_software() {
        use DeviceKind::{Discrete, Integrated, Other, Software, Virtual};
        let chosen = |kinds: &[DeviceKind]| {
            let devices: Vec<_> = kinds.iter().enumerate().map(|(i, &kind)| device(i, kind)).collect();
            Choice::Auto.of(&devices)
        };
        assert_eq!(chosen(&[Software, Integrated, Discrete, Discrete]), Ok(2));
        assert_eq!(chosen(&[Other, Virtual, Software]), Ok(0));
        assert_eq!(chosen(&[Integrated, Virtual]), Ok(0));
        assert_eq!(chosen(&[Software]), Err(DeviceError::NoDevice));
        assert_eq!(chosen(&[]), Err(DeviceError::NoDevice));
    }

    #[test]
    fn a_number_takes_any_device_that_there_is() {
        let devices = [device(0, DeviceKind::Software)];
        assert_eq!(Choice::Index(0).of(&devices), Ok(0));
        assert_eq!(Choice::Index(3).of(&devices), Err(DeviceError::NotFound { wanted: 3, count: 1 }));
        assert_eq!(Choice::Index(0).of(&[]), Err(DeviceError::NoDevice));
    }
}

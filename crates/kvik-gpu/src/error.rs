//! Errors of a device: each names its object and a remedy.

/// The reason why a device cannot do what was requested.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The machine has no GPU.
    #[error("no GPU was found: install its Vulkan driver, or compute on the processor")]
    NoDevice,
    /// No GPU has the number.
    #[error("no GPU {wanted}: there are {count}, numbered from 0")]
    NotFound {
        /// The requested number.
        wanted: usize,
        /// Number of GPUs.
        count: usize,
    },
    /// The driver does not open the device.
    #[error("{device} cannot be opened: {reason}")]
    Open {
        /// The device's name.
        device: String,
        /// The driver's message.
        reason: String,
    },
    /// The device lacks a feature that the kernels need.
    #[error("{device} has no {feature}: choose another device, or a newer driver")]
    Lacks {
        /// The device's name.
        device: String,
        /// The missing feature.
        feature: &'static str,
    },
    /// Something is larger than the device allows.
    #[error("{what} takes {bytes} bytes and the device allows {limit}: use fewer blocks, or another device")]
    Limit {
        /// The object that is too large.
        what: String,
        /// Its size.
        bytes: u64,
        /// The largest size allowed.
        limit: u64,
    },
    /// The memory of the device is full.
    #[error("no memory on the device for {what} of {bytes} bytes: use fewer blocks or layers on it")]
    Memory {
        /// The purpose of the allocation.
        what: String,
        /// Its size.
        bytes: u64,
    },
    /// The host memory is full, where a part of the work is done.
    #[error(
        "no memory of the machine for {what}, {bytes} bytes: use fewer blocks, or more layers on the GPU"
    )]
    HostMemory {
        /// The purpose of the allocation.
        what: String,
        /// Its size.
        bytes: u64,
    },
    /// No kernel supports the request.
    #[error("the GPU has no kernel for {what}: compute it on the processor")]
    Unsupported {
        /// The unsupported request.
        what: String,
    },
    /// The driver does not compile a kernel.
    #[error("the driver refuses the kernel {kernel}: {message}")]
    Shader {
        /// The pieces of the kernel.
        kernel: String,
        /// The driver's message.
        message: String,
    },
    /// Results of a row depend on what else is in its batch.
    #[error(
        "{device} gives a row other bits among {rows} rows than alone: compute on the processor (--device cpu), or install a newer driver"
    )]
    Differs {
        /// The device's name.
        device: String,
        /// Rows of the batch.
        rows: usize,
    },
    /// The driver refuses a call; all later results are invalid.
    #[error("the driver refuses a call: {message}")]
    Refused {
        /// The driver's message.
        message: String,
    },
    /// The device is lost, with all its contents.
    #[error("the device is lost: {reason}; open it again, what it stored is gone")]
    Lost {
        /// The driver's message.
        reason: String,
    },
}

//! What can go wrong with a device: each error names the thing and what helps.

/// Why a device does not do what it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// There is no GPU.
    #[error("no GPU was found: install its Vulkan driver, or compute on the processor")]
    NoDevice,
    /// There is no GPU of that number.
    #[error("no GPU {wanted}: there are {count}, numbered from 0")]
    NotFound {
        /// The number asked for.
        wanted: usize,
        /// How many there are.
        count: usize,
    },
    /// The driver does not open it.
    #[error("{device} cannot be opened: {reason}")]
    Open {
        /// Its name.
        device: String,
        /// What the driver said.
        reason: String,
    },
    /// It has not what the kernels need.
    #[error("{device} has no {feature}: choose another device, or a newer driver")]
    Lacks {
        /// Its name.
        device: String,
        /// What is missing.
        feature: &'static str,
    },
    /// Something is larger than the device allows.
    #[error("{what} takes {bytes} bytes and the device allows {limit}: use fewer blocks, or another device")]
    Limit {
        /// What is too large.
        what: String,
        /// Its size.
        bytes: u64,
        /// The largest size allowed.
        limit: u64,
    },
    /// The memory of the device is full.
    #[error("no memory on the device for {what} of {bytes} bytes: use fewer blocks or layers on it")]
    Memory {
        /// What it was for.
        what: String,
        /// Its size.
        bytes: u64,
    },
    /// The machine's own memory is full, where a part of the work is.
    #[error(
        "no memory of the machine for {what}, {bytes} bytes: use fewer blocks, or more layers on the GPU"
    )]
    HostMemory {
        /// What it was for.
        what: String,
        /// Its size.
        bytes: u64,
    },
    /// There is no kernel for it.
    #[error("the GPU has no kernel for {what}: compute it on the processor")]
    Unsupported {
        /// What was asked for.
        what: String,
    },
    /// The driver does not compile a kernel.
    #[error("the driver refuses the kernel {kernel}: {message}")]
    Shader {
        /// The pieces it is composed of.
        kernel: String,
        /// What the driver said.
        message: String,
    },
    /// The driver refuses a call; everything computed since is not to be trusted.
    #[error("the driver refuses a call: {message}")]
    Refused {
        /// What the driver said.
        message: String,
    },
    /// The device is lost, with all that it stored.
    #[error("the device is lost: {reason}; open it again, what it stored is gone")]
    Lost {
        /// What the driver said.
        reason: String,
    },
}

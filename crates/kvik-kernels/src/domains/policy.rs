//! The memory policy of a Linux thread, set by system calls that have no safe wrapper.

pub(super) use system::bind;
pub use system::bound_memory_domains;

#[cfg(target_os = "linux")]
mod system {
    use std::ffi::{c_int, c_long, c_ulong};
    use std::{io, ptr};

    use super::super::NUMBER_MAX;

    const BITS: usize = c_ulong::BITS as usize;
    /// A bit per domain.
    type Mask = [c_ulong; NUMBER_MAX / BITS];
    /// The system subtracts one from the number of bits that it is given.
    const MASK_BITS: c_ulong = NUMBER_MAX as c_ulong + 1;
    /// Mask of the mode without the policy flags, which are the higher bits.
    const MODE: c_int = 0xff;

    /// Binds the memory of the calling thread, and of threads that it starts, to this domain only.
    pub(in super::super) fn bind(number: usize) -> io::Result<()> {
        let mut mask: Mask = [0; NUMBER_MAX / BITS];
        mask[number / BITS] |= 1 << (number % BITS);
        // SAFETY: the call reads `MASK_BITS - 1` bits of the mask, which are all of it, and changes no memory of ours.
        let done = unsafe {
            libc::syscall(libc::SYS_set_mempolicy, c_long::from(libc::MPOL_BIND), mask.as_ptr(), MASK_BITS)
        };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// The domains that the calling thread's memory is bound to, by itself or by its parent, as
    /// `numactl --membind` does; `None` if it may come from any domain.
    pub fn bound_memory_domains() -> Option<Vec<usize>> {
        let mut mask: Mask = [0; NUMBER_MAX / BITS];
        let mut mode: c_int = 0;
        let no_address = ptr::null::<u8>();
        // SAFETY: the call writes a mode and `MASK_BITS - 1` bits of the mask, which are all of it.
        let done = unsafe {
            libc::syscall(
                libc::SYS_get_mempolicy,
                &raw mut mode,
                mask.as_mut_ptr(),
                MASK_BITS,
                no_address,
                0 as c_ulong,
            )
        };
        let is_set = |&number: &usize| mask[number / BITS] >> (number % BITS) & 1 == 1;
        (done == 0 && mode & MODE == libc::MPOL_BIND).then(|| (0..NUMBER_MAX).filter(is_set).collect())
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use std::io;

    /// Unsupported on other systems. Android has the call but kills an app that makes it.
    pub(in super::super) fn bind(_: usize) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Unknown here, treated as any domain.
    pub fn bound_memory_domains() -> Option<Vec<usize>> {
        None
    }
}

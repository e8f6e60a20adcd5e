//! Detection of usable matrix units: the processor has them, the system saves their registers, and it has granted
//! their use to this process.
//!
//! Linux grants the use on request. The registers are 8 KiB, and the signal frame of a thread grows by as much,
//! so Linux refuses if a thread's signal stack is too small.

use std::arch::x86_64::{__cpuid_count, _xgetbv};
use std::sync::OnceLock;

/// Bits of CPUID leaf 7 (EDX): products of bfloats, the registers, and products of bytes between them.
const AMX_BF16: u32 = 1 << 22;
const AMX_TILE: u32 = 1 << 24;
const AMX_INT8: u32 = 1 << 25;
/// State components that the system saves (XCR0): the shapes of the registers, number 17, and their contents,
/// number 18.
const TILE_STATES: u64 = 1 << 17 | 1 << 18;
/// The CPUID leaf with the sizes of the registers.
const TILE_LEAF: u32 = 0x1d;

/// Whether the matrix units may be used. Requests them once per process, before any thread uses them.
pub(crate) fn usable() -> bool {
    static USABLE: OnceLock<bool> = OnceLock::new();
    *USABLE.get_or_init(|| has_units() && are_saved() && permission())
}

/// Whether the processor multiplies bytes and bfloats in registers of the sizes that the kernels use.
fn has_units() -> bool {
    if __cpuid_count(0, 0).eax < TILE_LEAF {
        return false;
    }
    let features = __cpuid_count(7, 0).edx;
    let palette = __cpuid_count(TILE_LEAF, 1);
    let (row_bytes, registers, rows) = (palette.ebx & 0xffff, palette.ebx >> 16, palette.ecx & 0xffff);
    let needed = AMX_BF16 | AMX_TILE | AMX_INT8;
    features & needed == needed && (row_bytes, registers, rows) == (64, 8, 16)
}

/// Whether the system saves the registers on a context switch.
fn are_saved() -> bool {
    // `xgetbv` exists if the system has enabled XSAVE, which is checked here.
    // SAFETY: the processor has the instruction.
    std::arch::is_x86_feature_detected!("xsave") && unsafe { enabled_states() } & TILE_STATES == TILE_STATES
}

/// XCR0.
///
/// # Safety
/// The processor has XSAVE, and the system uses it.
#[target_feature(enable = "xsave")]
unsafe fn enabled_states() -> u64 {
    // SAFETY: the caller's promise; register 0 exists everywhere.
    unsafe { _xgetbv(0) }
}

/// Requests the use of the registers from the system.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn permission() -> bool {
    const ARCH_PRCTL: usize = 158;
    const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
    const XFEATURE_XTILEDATA: usize = 18;
    let mut result = ARCH_PRCTL;
    // SAFETY: this call of the system takes two numbers, touches no memory of ours, and changes the two
    // registers that every call does.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result == 0
}

/// On other systems no way to request the use is known.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn permission() -> bool {
    false
}

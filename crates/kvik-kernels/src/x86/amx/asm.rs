//! [`Tiles`] as instructions. Stable Rust has no intrinsics for them.
//!
//! No block has the `nomem` option, so the compiler stores their operands before them and loads their results
//! after them. The compiler itself does not use the registers.

use std::arch::asm;

use super::{Config, Tiles};

/// The matrix units of this thread, configured.
pub(crate) struct Amx(());

// SAFETY: every method is the instruction of its name.
unsafe impl Tiles for Amx {
    #[inline(always)]
    unsafe fn configured(config: &Config) -> Amx {
        // SAFETY: the machine has these units; a configuration is 64 readable bytes.
        unsafe {
            asm!("ldtilecfg [{config}]", config = in(reg) std::ptr::from_ref(config), options(nostack, preserves_flags));
        }
        Amx(())
    }

    #[inline(always)]
    unsafe fn load<const REGISTER: usize>(&mut self, from: *const u8, stride: usize) {
        // SAFETY: the rows are readable, as the caller promises.
        unsafe {
            asm!(
                "tileloadd tmm{register}, [{from} + {stride}]",
                register = const REGISTER,
                from = in(reg) from,
                stride = in(reg) stride,
                options(nostack, preserves_flags),
            );
        }
    }

    #[inline(always)]
    unsafe fn zero<const REGISTER: usize>(&mut self) {
        // SAFETY: the register is configured.
        unsafe {
            asm!("tilezero tmm{register}", register = const REGISTER, options(nostack, preserves_flags))
        };
    }

    #[inline(always)]
    unsafe fn dot<const C: usize, const A: usize, const B: usize>(&mut self) {
        const { assert!(C != A && C != B && A != B) };
        // SAFETY: the shapes fit, as the caller promises.
        unsafe {
            asm!(
                "tdpbssd tmm{c}, tmm{a}, tmm{b}",
                c = const C,
                a = const A,
                b = const B,
                options(nostack, preserves_flags),
            );
        }
    }

    #[inline(always)]
    unsafe fn dot_unsigned<const C: usize, const A: usize, const B: usize>(&mut self) {
        const { assert!(C != A && C != B && A != B) };
        // SAFETY: as above.
        unsafe {
            asm!(
                "tdpbusd tmm{c}, tmm{a}, tmm{b}",
                c = const C,
                a = const A,
                b = const B,
                options(nostack, preserves_flags),
            );
        }
    }

    #[inline(always)]
    unsafe fn dot_bf16<const C: usize, const A: usize, const B: usize>(&mut self) {
        const { assert!(C != A && C != B && A != B) };
        // SAFETY: as above.
        unsafe {
            asm!(
                "tdpbf16ps tmm{c}, tmm{a}, tmm{b}",
                c = const C,
                a = const A,
                b = const B,
                options(nostack, preserves_flags),
            );
        }
    }

    #[inline(always)]
    unsafe fn store<const REGISTER: usize>(&mut self, to: *mut u8, stride: usize) {
        // SAFETY: the rows are writable, as the caller promises.
        unsafe {
            asm!(
                "tilestored [{to} + {stride}], tmm{register}",
                register = const REGISTER,
                to = in(reg) to,
                stride = in(reg) stride,
                options(nostack, preserves_flags),
            );
        }
    }
}

impl Drop for Amx {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: the machine has these units, which `configured` was promised.
        unsafe { asm!("tilerelease", options(nostack, preserves_flags)) };
    }
}

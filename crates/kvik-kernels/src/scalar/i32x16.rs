//! Integer sums as an array: the specification of every operation.

use super::f32x16::Scalar;
use crate::f32x16::{F32x16, LANES};
use crate::i32x16::I32x16;

/// Sixteen sums, computed one after the other.
#[derive(Clone, Copy)]
pub(crate) struct ScalarSums([i32; LANES]);

impl I32x16 for ScalarSums {
    type Floats = Scalar;
    type Pairs = [(i16, i16); LANES];
    type Word = [u32; LANES];

    unsafe fn zero() -> ScalarSums {
        ScalarSums([0; LANES])
    }

    unsafe fn load(from: *const i32) -> ScalarSums {
        // SAFETY: the caller's promise.
        ScalarSums(unsafe { from.cast::<[i32; LANES]>().read_unaligned() })
    }

    unsafe fn splat_pair(from: *const i16) -> Self::Pairs {
        // SAFETY: the caller's promise.
        let [a, b] = unsafe { from.cast::<[i16; 2]>().read_unaligned() };
        [(a, b); LANES]
    }

    unsafe fn load_bytes(from: *const i8) -> Self::Pairs {
        // SAFETY: the caller's promise.
        let bytes = unsafe { from.cast::<[[i8; 2]; LANES]>().read_unaligned() };
        bytes.map(|[a, b]| (a.into(), b.into()))
    }

    unsafe fn load_word(from: *const u8) -> Self::Word {
        // SAFETY: the caller's promise.
        unsafe { from.cast::<[[u8; 4]; LANES]>().read_unaligned() }.map(u32::from_le_bytes)
    }

    unsafe fn load_halves(from: *const u8, shift: usize) -> Self::Word {
        // SAFETY: the caller's promise.
        let halves = unsafe { from.cast::<[[u8; 2]; LANES]>().read_unaligned() };
        halves.map(|[lower, upper]| u32::from(lower) << shift | u32::from(upper) << (16 + shift))
    }

    unsafe fn load_quarters(from: *const u8, shift: usize) -> Self::Word {
        // SAFETY: the caller's promise.
        let bytes = unsafe { from.cast::<[u8; LANES]>().read_unaligned() };
        bytes.map(|byte| u32::from(byte & 15) << shift | u32::from(byte >> 4) << (16 + shift))
    }

    fn fields(word: Self::Word, shift: usize, mask: i16) -> Self::Pairs {
        word.map(|word| ((word as u16 >> shift) as i16 & mask, ((word >> 16) as u16 >> shift) as i16 & mask))
    }

    fn join(a: Self::Pairs, b: Self::Pairs) -> Self::Pairs {
        std::array::from_fn(|i| (a[i].0 | b[i].0, a[i].1 | b[i].1))
    }

    unsafe fn turn_bytes(from: *const u8, to: *mut u8, stride: usize) {
        for row in 0..LANES {
            for column in 0..LANES {
                // SAFETY: the caller's promise: both are inside the matrix.
                unsafe {
                    let byte = from.add((row / 2 * LANES + column) * 2 + row % 2).read();
                    to.add(column / 2 * stride + row * 2 + column % 2).write(byte);
                }
            }
        }
    }

    fn add_products(self, a: Self::Pairs, b: Self::Pairs) -> ScalarSums {
        let product = |x: i16, y: i16| i32::from(x) * i32::from(y);
        let sum = |i: usize| self.0[i] + product(a[i].0, b[i].0) + product(a[i].1, b[i].1);
        ScalarSums(std::array::from_fn(sum))
    }

    fn to_floats(self) -> Scalar {
        let floats = self.0.map(|sum| sum as f32);
        // SAFETY: the array has 16 elements.
        unsafe { Scalar::load(floats.as_ptr()) }
    }

    unsafe fn store(self, to: *mut i32) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[i32; LANES]>().write_unaligned(self.0) };
    }
}

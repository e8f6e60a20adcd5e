//! Buffers aligned to cache lines, so that a vector or a row of a matrix register never straddles two.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

/// A cache line.
#[repr(align(64))]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Line(
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "only matrix units look inside"))]
    pub(crate) [u8; 64],
);

impl Line {
    pub(crate) const ZERO: Line = Line([0; 64]);

    /// Interleaves two rows: the 16 bits of each column of the first row precede those of the second.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(crate) fn pair_up(&mut self, [first, second]: [[u16; 16]; 2]) {
        for (i, to) in self.0.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            *to = (u32::from(first[i]) | u32::from(second[i]) << 16).to_le_bytes();
        }
    }
}

/// Numbers for which every bit pattern is valid.
///
/// # Safety
/// Every bit pattern is a valid number, and its alignment is at most that of a line.
pub(crate) unsafe trait Number: Copy {}

// SAFETY: every bit pattern of an integer or a float is valid.
unsafe impl Number for i8 {}
// SAFETY: as above.
unsafe impl Number for i32 {}
// SAFETY: as above.
unsafe impl Number for u32 {}
// SAFETY: as above.
unsafe impl Number for f32 {}

/// A buffer of numbers aligned to a cache line.
#[derive(Debug)]
pub(crate) struct Lines<T> {
    lines: Vec<Line>,
    len: usize,
    of: PhantomData<T>,
}

impl<T> Default for Lines<T> {
    fn default() -> Lines<T> {
        Lines { lines: Vec::new(), len: 0, of: PhantomData }
    }
}

impl<T: Number> Lines<T> {
    /// Sets the length to `len` numbers; those that were never written are zero.
    pub(crate) fn resize(&mut self, len: usize) {
        self.lines.resize((len * size_of::<T>()).div_ceil(size_of::<Line>()), Line::ZERO);
        self.len = len;
    }
}

impl<T: Number> Deref for Lines<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the lines hold as many bytes, all of them initialised, and any bit pattern is a valid number.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }
}

impl<T: Number> DerefMut for Lines<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_begin_on_a_line_and_stay_when_there_are_more() {
        let mut numbers = Lines::<i32>::default();
        numbers.resize(3);
        numbers.copy_from_slice(&[1, 2, 3]);
        numbers.resize(40);
        assert_eq!((numbers.as_ptr().addr() % 64, numbers.len()), (0, 40));
        assert_eq!((numbers[..3].to_vec(), numbers[3..].to_vec()), (vec![1, 2, 3], vec![0; 37]));
        numbers.resize(0);
        assert!(numbers.is_empty());
    }
}

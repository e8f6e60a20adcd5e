//! A slice of which different tasks write disjoint ranges.

use std::marker::PhantomData;

/// A mutable slice that tasks share by writing ranges that do not overlap.
///
/// For ranges that are equal chunks, [`super::Pool::run_chunks`] does the same without `unsafe`.
pub(crate) struct Disjoint<'a, T> {
    start: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: it represents a `&mut [T]`; sharing it passes parts of that slice to other threads, which `T: Send` allows.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Disjoint<'a, T> {
        Disjoint { start: slice.as_mut_ptr(), len: slice.len(), slice: PhantomData }
    }

    /// The elements `start..start + len`.
    ///
    /// # Panics
    /// If the range exceeds the slice.
    ///
    /// # Safety
    /// As long as the returned slice is used, no other range taken from this value may overlap it.
    pub(crate) unsafe fn range(&self, start: usize, len: usize) -> &'a mut [T] {
        let inside = start <= self.len && len <= self.len - start;
        assert!(inside, "range {start}+{len} leaves a slice of {}", self.len);
        // SAFETY: the range lies inside the slice that `new` borrowed for 'a; the caller keeps ranges disjoint.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "leaves a slice of 4")]
    fn a_range_outside_is_refused() {
        let mut values = [0; 4];
        let values = Disjoint::new(&mut values);
        // SAFETY: the only range taken.
        let _ = unsafe { values.range(3, 2) };
    }
}

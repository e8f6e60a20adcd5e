//! Elementwise operations on slices in lanes. The tail is computed in partly filled lanes whose rest is ignored.

use crate::f32x16::{F32x16, LANES, load_first, store_first};

/// `x = f(x)`, element by element.
///
/// # Safety
/// Inlined into a function with the features of `L`.
#[inline(always)]
pub(super) unsafe fn each<L: F32x16>(x: &mut [f32], f: impl Fn(L) -> L) {
    let (whole, tail) = x.as_chunks_mut::<LANES>();
    // SAFETY: 16 elements, or those of the tail.
    unsafe {
        for x in whole {
            f(L::load(x.as_ptr())).store(x.as_mut_ptr());
        }
        let x: L = load_first(tail.as_ptr(), tail.len());
        store_first(f(x), tail.as_mut_ptr(), tail.len());
    }
}

/// `x = f(x, y)`, element by element.
///
/// # Safety
/// Inlined into a function with the features of `L`.
#[inline(always)]
pub(super) unsafe fn update<L: F32x16>(x: &mut [f32], y: &[f32], f: impl Fn(L, L) -> L) {
    assert_eq!(x.len(), y.len());
    let (x, x_tail) = x.as_chunks_mut::<LANES>();
    let (y, y_tail) = y.as_chunks::<LANES>();
    // SAFETY: 16 elements of both, or those of the tails, which are equally long.
    unsafe {
        for (x, y) in x.iter_mut().zip(y) {
            f(L::load(x.as_ptr()), L::load(y.as_ptr())).store(x.as_mut_ptr());
        }
        let tail = f(load_first(x_tail.as_ptr(), x_tail.len()), load_first(y_tail.as_ptr(), x_tail.len()));
        store_first(tail, x_tail.as_mut_ptr(), x_tail.len());
    }
}

/// Elements `start..start + count` of `x`; the other lanes are 0.
///
/// # Safety
/// The elements exist, `count` is at most 16, and the machine has the lanes.
#[inline(always)]
pub(crate) unsafe fn part<L: F32x16>(x: &[f32], start: usize, count: usize) -> L {
    debug_assert!(start + count <= x.len());
    // SAFETY: the caller keeps the part inside the slice.
    unsafe {
        let from = x.as_ptr().add(start);
        if count == LANES { L::load(from) } else { load_first(from, count) }
    }
}

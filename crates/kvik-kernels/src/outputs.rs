//! Where a matrix product is written.

/// Outputs of some rows of inputs and some rows of weights, `[inputs, weights' rows]`; of all of them, or of a piece
/// that stands in room of its own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outputs {
    start: *mut f32,
    /// From one input to the next.
    stride: usize,
    /// The input and the row of weights whose output is at `start`.
    origin: [usize; 2],
}

impl Outputs {
    /// Those of all inputs and all `rows` rows of weights.
    pub(crate) fn whole(out: &mut [f32], rows: usize) -> Outputs {
        Outputs::piece(out.as_mut_ptr(), rows, [0, 0])
    }

    /// Those from the input and the row of weights of `origin` on, of `stride` rows of weights.
    pub(crate) fn piece(start: *mut f32, stride: usize, origin: [usize; 2]) -> Outputs {
        Outputs { start, stride, origin }
    }

    /// Where the output of `input` and of row `row` of the weights is.
    ///
    /// # Safety
    /// It is one of these outputs.
    #[inline(always)]
    pub(crate) unsafe fn at(&self, input: usize, row: usize) -> *mut f32 {
        // SAFETY: as the caller promises.
        unsafe { self.start.add((input - self.origin[0]) * self.stride + row - self.origin[1]) }
    }

    /// From the output of one input to that of the next.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn stride(&self) -> usize {
        self.stride
    }
}

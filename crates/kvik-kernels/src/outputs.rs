//! The destination of a matrix product.

/// Outputs of some input rows and some weight rows, `[inputs, weight rows]`: the whole product, or a piece in a
/// buffer of its own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outputs {
    start: *mut f32,
    /// Elements from one input to the next.
    stride: usize,
    /// The input and the weight row whose output is at `start`.
    origin: [usize; 2],
}

impl Outputs {
    /// The outputs of all inputs and all `rows` weight rows.
    pub(crate) fn whole(out: &mut [f32], rows: usize) -> Outputs {
        Outputs::piece(out.as_mut_ptr(), rows, [0, 0])
    }

    /// The outputs from input and weight row `origin` on, of `stride` weight rows.
    pub(crate) fn piece(start: *mut f32, stride: usize, origin: [usize; 2]) -> Outputs {
        Outputs { start, stride, origin }
    }

    /// Address of the output of input `input` and weight row `row`.
    ///
    /// # Safety
    /// The output is within this piece.
    #[inline(always)]
    pub(crate) unsafe fn at(&self, input: usize, row: usize) -> *mut f32 {
        // SAFETY: as the caller promises.
        unsafe { self.start.add((input - self.origin[0]) * self.stride + row - self.origin[1]) }
    }

    /// Elements from the output of one input to that of the next.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn stride(&self) -> usize {
        self.stride
    }
}

//! The vector operations that an instruction set must provide for the matrix kernels: sixteen lanes, one per
//! row of a tile.
//!
//! `matmul::kernel` is written once against [`Lanes`]; `x86` and `arm` implement it. Its operations are those of
//! quantised integers: bytes in lanes, dot products, shifts. `f32x16` has the crate's other sixteen lanes: floats
//! that plain Rust can execute too, which is how attention and the small operations are specified. The
//! specification of matrix products is written out in `scalar::matmul`, one value at a time, since packed planes
//! would obscure it.

/// Vectors of sixteen 32-bit lanes.
///
/// A value of the implementing type exists only where the machine has the instructions, and methods
/// are called only from functions compiled for them.
///
/// # Safety
/// Implementations must compute exactly what each method specifies, with one rounding where it specifies "fused".
pub(crate) unsafe trait Lanes: Copy {
    /// 16 integers, or 64 bytes.
    type Int: Copy;
    /// 16 floats.
    type Float: Copy;

    /// An accumulator of dot products that will end up in an `Int`.
    ///
    /// Without instructions that sum four products of bytes in 32 bits, they are summed in 16 bits
    /// for as long as those suffice.
    type Run: Copy;

    /// Number of vectors of sums that fit in registers together with their operands.
    const SUMS: usize;

    /// Whether two inputs are multiplied at a time, by `dot_two`, in sums of 32 bits.
    const TWO_INPUTS: bool = false;

    /// Whether `dot` reads quantised values as unsigned bytes. If not, values of types that use the full range
    /// of a byte are reduced by 128 first.
    const UNSIGNED: bool;

    /// 64 bytes.
    ///
    /// # Safety
    /// `from` is readable for them.
    unsafe fn load(self, from: *const u8) -> Self::Int;

    /// 16 unsigned bytes, widened.
    ///
    /// # Safety
    /// `from` is readable for them.
    unsafe fn load_u8(self, from: *const u8) -> Self::Int;

    /// 16 signed bytes, widened.
    ///
    /// # Safety
    /// `from` is readable for them.
    unsafe fn load_i8(self, from: *const u8) -> Self::Int;

    /// 16 floats.
    ///
    /// # Safety
    /// `from` is readable for 64 bytes.
    unsafe fn load_f32(self, from: *const u8) -> Self::Float;

    /// 16 half floats, widened.
    ///
    /// # Safety
    /// `from` is readable for 32 bytes.
    unsafe fn load_f16(self, from: *const u8) -> Self::Float;

    /// Prefetches the cache line of `from`, which need not be readable, into the second-level cache: more is
    /// prefetched than the first level holds, and more lines than it can track.
    fn prefetch(self, from: *const u8);

    /// `value` in all lanes.
    fn splat(self, value: i32) -> Self::Int;

    /// `value` in all lanes.
    fn splat_f32(self, value: f32) -> Self::Float;

    /// Bitwise and.
    fn and(self, a: Self::Int, b: Self::Int) -> Self::Int;

    /// Bitwise or.
    fn or(self, a: Self::Int, b: Self::Int) -> Self::Int;

    /// Bitwise exclusive or.
    fn xor(self, a: Self::Int, b: Self::Int) -> Self::Int;

    /// The bits of `a` where those of `mask` are set, and those of `b` elsewhere.
    fn blend(self, mask: Self::Int, a: Self::Int, b: Self::Int) -> Self::Int;

    /// Lanes shifted left by a constant.
    fn shift_left(self, a: Self::Int, by: i32) -> Self::Int;

    /// Lanes shifted right by a constant, filled with zeros.
    fn shift_right(self, a: Self::Int, by: i32) -> Self::Int;

    /// Signed 16-bit halves of lanes shifted right by a constant.
    fn shift_right_shorts(self, a: Self::Int, by: i32) -> Self::Int;

    /// Byte-wise `table[index]`, `index` in 0..16.
    fn lookup(self, table: &[u8; 16], index: Self::Int) -> Self::Int;

    /// Wrapping `a + b`.
    fn add(self, a: Self::Int, b: Self::Int) -> Self::Int;

    /// Wrapping `a + b * c`.
    fn mul_add(self, a: Self::Int, b: Self::Int, c: Self::Int) -> Self::Int;

    /// `a + b * c` where `b` is in `0..=32767` and `c` in `-32768..=32767`: products of 16 bits are one operation
    /// where those of 32 bits are several.
    #[inline(always)]
    fn mul_add_short(self, a: Self::Int, b: Self::Int, c: Self::Int) -> Self::Int {
        self.mul_add(a, b, c)
    }

    /// `a` plus the products of both signed 16-bit halves of `b` with those of `c`.
    fn dot_shorts(self, a: Self::Int, b: Self::Int, c: Self::Int) -> Self::Int;

    /// Begins a run of dot products that will be added to `acc`.
    fn begin(self, acc: Self::Int) -> Self::Run;

    /// Per lane, `run` plus the four products of `codes` (bytes, unsigned if `UNSIGNED`) and `x` (signed bytes,
    /// never -128). Unless `WIDE`, `codes` are small enough that the sum of two products of each step of a run
    /// fits in 16 bits.
    fn dot<const WIDE: bool>(self, run: Self::Run, codes: Self::Int, x: Self::Int) -> Self::Run;

    /// The sum of the run and of `acc`, with which it began.
    fn end<const WIDE: bool>(self, acc: Self::Int, run: Self::Run) -> Self::Int;

    /// Begins runs of two inputs that continue from `sums`. Only if `TWO_INPUTS`.
    fn begin_two(self, _sums: [Self::Int; 2]) -> [Self::Run; 2] {
        unreachable!("asked for only where `TWO_INPUTS`")
    }

    /// `runs` plus the products of two groups of quantised values with the eight bytes at each `x`, equal to two
    /// calls of [`Lanes::dot`]. Only if `TWO_INPUTS`.
    ///
    /// # Safety
    /// Eight bytes are readable at each `x`.
    unsafe fn dot_two(
        self,
        _runs: [Self::Run; 2],
        _codes: [Self::Int; 2],
        _x: [*const i8; 2],
    ) -> [Self::Run; 2] {
        unreachable!("asked for only where `TWO_INPUTS`")
    }

    /// The sums of two runs. Only if `TWO_INPUTS`.
    fn end_two(self, _runs: [Self::Run; 2]) -> [Self::Int; 2] {
        unreachable!("asked for only where `TWO_INPUTS`")
    }

    /// Integers as floats, rounded half to even.
    fn to_float(self, a: Self::Int) -> Self::Float;

    /// `a * b`.
    fn mul_f32(self, a: Self::Float, b: Self::Float) -> Self::Float;

    /// Fused `a * b + c`.
    fn fma(self, a: Self::Float, b: Self::Float, c: Self::Float) -> Self::Float;

    /// The lanes' bits as floats.
    fn as_float(self, a: Self::Int) -> Self::Float;

    /// Per lane, `acc` plus both products of two pairs of bfloats, the upper ones first, each sum fused. Where the
    /// machine has an instruction for it, subnormal numbers count as zero, before and after each sum.
    #[inline(always)]
    fn dot_bf16(self, acc: Self::Float, w: Self::Int, x: Self::Int) -> Self::Float {
        dot_pairs(self, acc, w, x)
    }

    /// Writes the lanes in order.
    ///
    /// # Safety
    /// `to` is writable for 16 floats.
    unsafe fn store(self, a: Self::Float, to: *mut f32);
}

/// [`Lanes::dot_bf16`] in terms of the other operations; keeps subnormal numbers.
#[inline(always)]
pub(crate) fn dot_pairs<L: Lanes>(lanes: L, acc: L::Float, w: L::Int, x: L::Int) -> L::Float {
    let upper = lanes.splat(0xffff_0000u32 as i32);
    let acc = lanes.fma(lanes.as_float(lanes.and(w, upper)), lanes.as_float(lanes.and(x, upper)), acc);
    let (w_lower, x_lower) = (lanes.shift_left(w, 16), lanes.shift_left(x, 16));
    lanes.fma(lanes.as_float(w_lower), lanes.as_float(x_lower), acc)
}

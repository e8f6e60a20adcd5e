//! The matrix units (AMX): eight registers of up to 16 rows of 64 bytes, and products between them.
//!
//! A register holds a matrix whose shape a configuration says, for each thread. [`Tiles`] are the words in which
//! `matmul::tiled`, `attention::tiled` and `attention::bfloats` use them. The instructions speak them ([`asm`]) and, in tests, plain
//! Rust that follows Intel's description step by step (`emulated`): the kernels run on machines without such units.
//!
//! A product takes `a`, rows of inputs in order, and `b`, in which a row of 64 bytes holds four consecutive
//! columns of 16 outputs. That is a vector of the packed weights, see `matrix::layout`.

mod asm;
#[cfg(test)]
mod emulated;
mod presence;
#[cfg(test)]
mod tests;

pub(crate) use asm::Amx;
#[cfg(test)]
pub(crate) use emulated::Emulated;
pub(crate) use presence::usable;

/// Registers.
const REGISTERS: usize = 8;
/// Bytes of a row of a register, at most.
#[cfg(test)]
const ROW_BYTES: usize = 64;
/// Rows of a register, at most.
#[cfg(test)]
const ROWS: usize = 16;

/// The shapes of the registers, as the processor reads them.
///
/// All of it is written before its address is given away: compilers have dropped stores into configurations that
/// nothing but the instruction reads.
#[repr(C, align(64))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

const _: () = assert!(size_of::<Config>() == 64);

impl Config {
    /// `[rows, bytes of a row]` for each register; those not named hold nothing.
    pub(crate) const fn new(shapes: &[[usize; 2]]) -> Config {
        assert!(shapes.len() <= REGISTERS);
        let mut config =
            Config { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        let mut register = 0;
        while register < shapes.len() {
            let [rows, bytes] = shapes[register];
            assert!(rows > 0 && rows <= 16 && bytes > 0 && bytes <= 64 && bytes.is_multiple_of(4));
            config.rows[register] = rows as u8;
            config.row_bytes[register] = bytes as u16;
            register += 1;
        }
        config
    }
}

/// The registers of a thread in a configuration. They are released when the value is dropped: the system then has
/// 8 KiB less to save.
///
/// # Safety
/// Implementations must compute exactly what each method says, and touch no other memory.
pub(crate) unsafe trait Tiles {
    /// Configures the registers, which become zero.
    ///
    /// # Safety
    /// The machine has these units, and this thread has no other such value that it goes on to use.
    unsafe fn configured(config: &Config) -> Self;

    /// Fills a register: row `i` from `i * stride` bytes behind `from`.
    ///
    /// # Safety
    /// So many bytes as the register's rows have are readable there. The register is configured.
    unsafe fn load<const REGISTER: usize>(&mut self, from: *const u8, stride: usize);

    /// Makes a register zero.
    ///
    /// # Safety
    /// The register is configured.
    unsafe fn zero<const REGISTER: usize>(&mut self);

    /// `c += a * b`, wrapping, in 32-bit numbers: signed bytes, four consecutive ones of a row of `a` with the four
    /// of a lane of `b`.
    ///
    /// # Safety
    /// The registers are three, and their shapes fit: `c` has the rows of `a` and the bytes of a row of `b`, which
    /// has a row for four bytes of a row of `a`.
    unsafe fn dot<const C: usize, const A: usize, const B: usize>(&mut self);

    /// [`Tiles::dot`] with unsigned bytes in `a`; those of `b` are signed.
    ///
    /// # Safety
    /// As [`Tiles::dot`].
    unsafe fn dot_unsigned<const C: usize, const A: usize, const B: usize>(&mut self);

    /// `c += a * b` in floats: pairs of bfloats of a row of `a` with those of a lane of `b`. The products of even and
    /// of odd columns are summed apart, each fused and from zero; both sums together are added to `c`. Numbers too
    /// small to be normal count as zero, before and after each step.
    ///
    /// # Safety
    /// As [`Tiles::dot`].
    unsafe fn dot_bf16<const C: usize, const A: usize, const B: usize>(&mut self);

    /// Writes a register: row `i` to `i * stride` bytes behind `to`.
    ///
    /// # Safety
    /// So many bytes as the register's rows have are writable there. The register is configured.
    unsafe fn store<const REGISTER: usize>(&mut self, to: *mut u8, stride: usize);
}

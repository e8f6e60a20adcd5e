//! The matrix units (AMX): eight registers of up to 16 rows of 64 bytes, and products between them.
//!
//! A register holds a matrix whose shape is set by a per-thread configuration. [`Tiles`] is the interface that
//! `matmul::tiled`, `attention::tiled` and `attention::bfloats` use. It is implemented by the instructions
//! ([`asm`]) and, in tests, by plain Rust that follows Intel's description (`emulated`), so the kernels can run
//! on machines without AMX.
//!
//! A product takes `a`, rows of inputs in order, and `b`, in which a row of 64 bytes holds four consecutive
//! columns of 16 outputs: a vector of the packed weights, see `matrix::layout`.

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

/// Number of registers.
const REGISTERS: usize = 8;
/// Maximum bytes of a row of a register.
#[cfg(test)]
const ROW_BYTES: usize = 64;
/// Maximum rows of a register.
#[cfg(test)]
const ROWS: usize = 16;

/// The shapes of the registers, as the processor reads them.
///
/// All of it is written before its address is taken: compilers have dropped stores into configurations that only
/// the instruction reads.
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
    /// Creates a configuration with `[rows, bytes of a row]` for each register; the remaining registers are
    /// unused.
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

/// The registers of a thread in a configuration. They are released when the value is dropped, which leaves the
/// system 8 KiB less to save.
///
/// # Safety
/// Implementations must compute exactly what each method states, and access no other memory.
pub(crate) unsafe trait Tiles {
    /// Configures the registers and zeroes them.
    ///
    /// # Safety
    /// The machine has these units, and this thread does not use another such value later.
    unsafe fn configured(config: &Config) -> Self;

    /// Loads a register: row `i` from `from + i * stride`.
    ///
    /// # Safety
    /// The bytes of the register's rows are readable there. The register is configured.
    unsafe fn load<const REGISTER: usize>(&mut self, from: *const u8, stride: usize);

    /// Zeroes a register.
    ///
    /// # Safety
    /// The register is configured.
    unsafe fn zero<const REGISTER: usize>(&mut self);

    /// `c += a * b`, wrapping, in 32-bit numbers: signed bytes, four consecutive ones of a row of `a` with the four
    /// of a lane of `b`.
    ///
    /// # Safety
    /// The three registers are distinct, and their shapes fit: `c` has the rows of `a` and the bytes of a row of
    /// `b`, which has a row for every four bytes of a row of `a`.
    unsafe fn dot<const C: usize, const A: usize, const B: usize>(&mut self);

    /// [`Tiles::dot`] with unsigned bytes in `a`; those of `b` are signed.
    ///
    /// # Safety
    /// As [`Tiles::dot`].
    unsafe fn dot_unsigned<const C: usize, const A: usize, const B: usize>(&mut self);

    /// `c += a * b` in floats: pairs of bfloats of a row of `a` with those of a lane of `b`. The products of even
    /// and of odd columns are summed separately, each fused and from zero; the sum of both is added to `c`.
    /// Subnormal numbers count as zero, before and after each step.
    ///
    /// # Safety
    /// As [`Tiles::dot`].
    unsafe fn dot_bf16<const C: usize, const A: usize, const B: usize>(&mut self);

    /// Stores a register: row `i` to `to + i * stride`.
    ///
    /// # Safety
    /// The bytes of the register's rows are writable there. The register is configured.
    unsafe fn store<const REGISTER: usize>(&mut self, to: *mut u8, stride: usize);
}

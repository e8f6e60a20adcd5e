//! [`Tiles`] in plain Rust, following Intel's description (Software Developer's Manual, volume 2, `LDTILECFG`,
//! `TILELOADD`, `TILEZERO`, `TDPBSSD`, `TDPBUSD`, `TDPBF16PS`, `TILESTORED`); a fault of an instruction is a
//! panic here.

use super::{Config, REGISTERS, ROW_BYTES, ROWS, Tiles};
use crate::narrow::flush;

/// The registers of one thread.
pub(crate) struct Emulated {
    config: Config,
    registers: [[[u8; ROW_BYTES]; ROWS]; REGISTERS],
}

/// Adds to a sum the products of four bytes of a row with four bytes of a column, for each of the pairs.
type Dot = fn([u8; 4], &mut dyn Iterator<Item = [[u8; 4]; 2]>) -> [u8; 4];

impl Emulated {
    /// `[rows, bytes of a row]` of a configured register.
    fn shape(&self, register: usize) -> [usize; 2] {
        let shape = [usize::from(self.config.rows[register]), usize::from(self.config.row_bytes[register])];
        assert!(shape[0] > 0, "register {register} is not configured");
        shape
    }

    /// Replaces a row of a register; bytes beyond the configured ones become zero.
    fn write_row_and_zero(&mut self, register: usize, row: usize, bytes: &[u8]) {
        let to = &mut self.registers[register][row];
        to[..bytes.len()].copy_from_slice(bytes);
        to[bytes.len()..].fill(0);
    }

    fn zero_upper_rows(&mut self, register: usize) {
        let [rows, _] = self.shape(register);
        self.registers[register][rows..].fill([0; ROW_BYTES]);
    }

    /// Computes a product, in which `dot` adds the products of a row of `a` and a column of `b`, four bytes
    /// each, to a sum.
    fn multiply<const C: usize, const A: usize, const B: usize>(&mut self, dot: Dot) {
        const { assert!(C != A && C != B && A != B) };
        let [[c_rows, c_bytes], [a_rows, a_bytes], [b_rows, b_bytes]] = [C, A, B].map(|r| self.shape(r));
        assert!([c_bytes, a_bytes, b_bytes].iter().all(|bytes| bytes % 4 == 0));
        assert_eq!((c_rows, c_bytes, a_bytes / 4), (a_rows, b_bytes, b_rows), "the shapes fit");
        for m in 0..c_rows {
            let mut row = self.registers[C][m];
            for (n, sum) in row.as_chunks_mut::<4>().0[..c_bytes / 4].iter_mut().enumerate() {
                *sum = dot(*sum, &mut (0..a_bytes / 4).map(|k| [self.dword(A, m, k), self.dword(B, k, n)]));
            }
            self.write_row_and_zero(C, m, &row[..c_bytes]);
        }
        self.zero_upper_rows(C);
    }

    fn dword(&self, register: usize, row: usize, index: usize) -> [u8; 4] {
        self.registers[register][row].as_chunks::<4>().0[index]
    }
}

/// Checks the fault conditions of `LDTILECFG`.
fn check(config: &Config) {
    assert!(config.palette == 1 && config.start_row == 0 && config.reserved == [0; 14]);
    for (register, (&rows, &bytes)) in config.rows.iter().zip(&config.row_bytes).enumerate() {
        assert!(usize::from(rows) <= ROWS && usize::from(bytes) <= ROW_BYTES, "register {register}");
        assert_eq!(rows == 0, bytes == 0, "register {register}");
        assert!(register < REGISTERS || rows == 0, "register {register}");
    }
}

// SAFETY: every method follows the description of its instruction.
unsafe impl Tiles for Emulated {
    unsafe fn configured(config: &Config) -> Emulated {
        check(config);
        Emulated { config: *config, registers: [[[0; ROW_BYTES]; ROWS]; REGISTERS] }
    }

    unsafe fn load<const REGISTER: usize>(&mut self, from: *const u8, stride: usize) {
        let [rows, bytes] = self.shape(REGISTER);
        for row in 0..rows {
            let mut read = [0; ROW_BYTES];
            // SAFETY: the caller's promise.
            unsafe { read.as_mut_ptr().copy_from_nonoverlapping(from.add(row * stride), bytes) };
            self.write_row_and_zero(REGISTER, row, &read[..bytes]);
        }
        self.zero_upper_rows(REGISTER);
    }

    unsafe fn zero<const REGISTER: usize>(&mut self) {
        self.shape(REGISTER);
        self.registers[REGISTER] = [[0; ROW_BYTES]; ROWS];
    }

    unsafe fn dot<const C: usize, const A: usize, const B: usize>(&mut self) {
        self.multiply::<C, A, B>(|c, pairs| {
            pairs.fold(c, |c, [a, b]| dpbd(c, a.map(|a| i32::from(a as i8)), b))
        });
    }

    unsafe fn dot_unsigned<const C: usize, const A: usize, const B: usize>(&mut self) {
        self.multiply::<C, A, B>(|c, pairs| pairs.fold(c, |c, [a, b]| dpbd(c, a.map(i32::from), b)));
    }

    unsafe fn dot_bf16<const C: usize, const A: usize, const B: usize>(&mut self) {
        self.multiply::<C, A, B>(|c, pairs| {
            let [even, odd] = pairs.fold([0.0; 2], |sums, [a, b]| {
                let ([a_even, a_odd], [b_even, b_odd]) = (bfloats(a), bfloats(b));
                [flush(a_even.mul_add(b_even, sums[0])), flush(a_odd.mul_add(b_odd, sums[1]))]
            });
            flush(flush(f32::from_le_bytes(c)) + flush(even + odd)).to_le_bytes()
        });
    }

    unsafe fn store<const REGISTER: usize>(&mut self, to: *mut u8, stride: usize) {
        let [rows, bytes] = self.shape(REGISTER);
        for row in 0..rows {
            let read = &self.registers[REGISTER][row];
            // SAFETY: the caller's promise.
            unsafe { to.add(row * stride).copy_from_nonoverlapping(read.as_ptr(), bytes) };
        }
    }
}

/// `c` plus four products with signed bytes, modulo 2^32.
fn dpbd(c: [u8; 4], a: [i32; 4], b: [u8; 4]) -> [u8; 4] {
    let products = a.into_iter().zip(b).map(|(a, b)| a * i32::from(b as i8));
    products.fold(i32::from_le_bytes(c), i32::wrapping_add).to_le_bytes()
}

/// Both bfloats of four bytes, with subnormal numbers flushed to zero.
fn bfloats([a, b, c, d]: [u8; 4]) -> [f32; 2] {
    [[0, 0, a, b], [0, 0, c, d]].map(|bytes| flush(f32::from_le_bytes(bytes)))
}

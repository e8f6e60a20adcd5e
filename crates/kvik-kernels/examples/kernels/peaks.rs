//! What the machine can do at most: read, multiply bytes, multiply floats.

use kvik_kernels::Pool;

/// Measures and prints the peaks of as many threads as `pool` has.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn print(pool: &Pool) {
    println!("{} threads: peaks are measured on x86-64 only", pool.threads());
}

/// Measures and prints the peaks of as many threads as `pool` has.
#[cfg(target_arch = "x86_64")]
pub(crate) fn print(pool: &Pool) {
    if !std::arch::is_x86_feature_detected!("avx512vnni") {
        return println!("{} threads: peaks are measured with AVX-512 VNNI only", pool.threads());
    }
    let (read, bytes, floats) = (x86::read(pool), x86::bytes(pool), x86::floats(pool));
    println!(
        "{} threads: reads {read:.1} GB/s, dot products of bytes {bytes:.0} GOPS, of floats {floats:.0} GFLOPS",
        pool.threads()
    );
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    use kvik_kernels::Pool;
    use rustix::mm;

    use crate::best;

    /// Independent sums, enough to hide the latency of an instruction.
    const SUMS: usize = 12;
    const ROUNDS: usize = 200_000;
    const READ_BYTES: usize = 512 << 20;
    const PIECE_BYTES: usize = 256 << 10;

    /// GB/s of reading memory in huge pages, with prefetch.
    pub(crate) fn read(pool: &Pool) -> f64 {
        let (protection, flags) = (mm::ProtFlags::READ | mm::ProtFlags::WRITE, mm::MapFlags::PRIVATE);
        // SAFETY: a new mapping, advised and filled before it is read; it lives until the process ends.
        let memory = unsafe {
            let start =
                mm::mmap_anonymous(std::ptr::null_mut(), READ_BYTES, protection, flags).expect("memory");
            let _ = mm::madvise(start, READ_BYTES, mm::Advice::LinuxHugepage);
            std::ptr::write_bytes(start.cast::<u8>(), 1, READ_BYTES);
            std::slice::from_raw_parts(start.cast::<u8>(), READ_BYTES)
        };
        let pieces: Vec<&[u8]> = memory.chunks_exact(PIECE_BYTES).collect();
        // SAFETY: the caller has found the features.
        let seconds = best(0.3, || pool.run(pieces.len(), &|piece| unsafe { read_piece(pieces[piece]) }));
        READ_BYTES as f64 / seconds / 1e9
    }

    #[target_feature(enable = "avx512f")]
    fn read_piece(piece: &[u8]) {
        let mut sums = [_mm512_setzero_si512(); 4];
        for lines in piece.chunks_exact(256) {
            for (i, sum) in sums.iter_mut().enumerate() {
                let from = lines[i * 64..].as_ptr();
                // SAFETY: `lines` holds four lines; a prefetch may go anywhere.
                unsafe {
                    _mm_prefetch::<_MM_HINT_T1>(from.wrapping_add(2048).cast());
                    *sum = _mm512_add_epi32(*sum, _mm512_loadu_si512(from.cast()));
                }
            }
        }
        black_box(sums);
    }

    /// GOPS of `vpdpbusd` on registers.
    pub(crate) fn bytes(pool: &Pool) -> f64 {
        // SAFETY: the caller has found the features.
        let seconds = best(0.1, || pool.run(pool.threads(), &|_| unsafe { multiply_bytes() }));
        (pool.threads() * ROUNDS * SUMS * 128) as f64 / seconds / 1e9
    }

    #[target_feature(enable = "avx512f,avx512vnni")]
    fn multiply_bytes() {
        let mut sums = [_mm512_setzero_si512(); SUMS];
        let (a, b) = black_box((_mm512_set1_epi8(3), _mm512_set1_epi8(5)));
        for _ in 0..ROUNDS {
            sums.iter_mut().for_each(|sum| *sum = _mm512_dpbusd_epi32(*sum, a, b));
        }
        black_box(sums);
    }

    /// GFLOPS of fused multiply-adds on registers.
    pub(crate) fn floats(pool: &Pool) -> f64 {
        // SAFETY: the caller has found the features.
        let seconds = best(0.1, || pool.run(pool.threads(), &|_| unsafe { multiply_floats() }));
        (pool.threads() * ROUNDS * SUMS * 32) as f64 / seconds / 1e9
    }

    #[target_feature(enable = "avx512f")]
    fn multiply_floats() {
        let mut sums = [_mm512_setzero_ps(); SUMS];
        let (a, b) = black_box((_mm512_set1_ps(0.5), _mm512_set1_ps(0.25)));
        for _ in 0..ROUNDS {
            sums.iter_mut().for_each(|sum| *sum = _mm512_fmadd_ps(*sum, a, b));
        }
        black_box(sums);
    }
}

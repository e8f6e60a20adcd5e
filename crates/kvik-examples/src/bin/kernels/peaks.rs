//! What the machine can do at most: read, multiply bytes, pairs of shorts and of bfloats, floats.

use kvik_kernels::Pool;

/// Rates a second of all threads; none where the instructions of a rate are not there.
#[derive(Debug)]
pub(crate) struct Peaks {
    /// Bytes of memory.
    pub(crate) read: Option<f64>,
    /// Multiplications and additions in products of bytes.
    pub(crate) bytes: Option<f64>,
    /// Of integers of 16 bits.
    pub(crate) shorts: Option<f64>,
    /// Of bfloats.
    pub(crate) bfloats: Option<f64>,
    /// Of floats.
    pub(crate) floats: Option<f64>,
}

impl Peaks {
    /// Of as many threads as `pool` has.
    pub(crate) fn measure(pool: &Pool) -> Peaks {
        let read = kvik_kernels::read_speed(pool, 512 << 20, std::time::Duration::from_millis(500)).ok();
        let none = Peaks { read, bytes: None, shorts: None, bfloats: None, floats: None };
        #[cfg(target_arch = "x86_64")]
        let none = x86::peaks(pool, none);
        none
    }

    /// For people.
    pub(crate) fn print(&self, pool: &Pool) {
        let rate = |rate: Option<f64>| rate.map_or("?".to_owned(), |rate| format!("{:.1}", rate / 1e9));
        let [read, bytes, shorts, bfloats, floats] =
            [self.read, self.bytes, self.shorts, self.bfloats, self.floats].map(rate);
        println!(
            "{} threads: reads {read} GB/s, products of bytes {bytes} GOPS, of shorts {shorts}, of bfloats {bfloats}, of floats {floats}",
            pool.threads()
        );
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    use kvik_kernels::Pool;

    use super::Peaks;
    use crate::samples::best;

    /// Independent sums, enough to hide the latency of an instruction.
    const SUMS: usize = 12;
    const ROUNDS: usize = 200_000;

    /// Adds what this machine has instructions for.
    pub(crate) fn peaks(pool: &Pool, peaks: Peaks) -> Peaks {
        let has_avx512 = std::arch::is_x86_feature_detected!("avx512f");
        let has_vnni = has_avx512 && std::arch::is_x86_feature_detected!("avx512vnni");
        let has_bf16 = has_avx512 && std::arch::is_x86_feature_detected!("avx512bf16");
        let rate = |has: bool, ops, work: fn()| has.then(|| rate(pool, ops, work));
        Peaks {
            // SAFETY: `rate` calls it where the features were found.
            bytes: rate(has_vnni, 128, || unsafe { multiply_bytes() }),
            // SAFETY: `rate` calls it where the features were found.
            shorts: rate(has_vnni, 64, || unsafe { multiply_shorts() }),
            // SAFETY: `rate` calls it where the features were found.
            bfloats: rate(has_bf16, 64, || unsafe { multiply_bfloats() }),
            // SAFETY: `rate` calls it where the features were found.
            floats: rate(has_avx512, 32, || unsafe { multiply_floats() }),
            ..peaks
        }
    }

    /// Operations a second of `work` on every thread, `ops` in each of its instructions.
    fn rate(pool: &Pool, ops: usize, work: fn()) -> f64 {
        let seconds = best(0.1, || pool.run(pool.threads(), &|_| work()));
        (pool.threads() * ROUNDS * SUMS * ops) as f64 / seconds
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

    #[target_feature(enable = "avx512f,avx512vnni")]
    fn multiply_shorts() {
        let mut sums = [_mm512_setzero_si512(); SUMS];
        let (a, b) = black_box((_mm512_set1_epi16(3), _mm512_set1_epi16(5)));
        for _ in 0..ROUNDS {
            sums.iter_mut().for_each(|sum| *sum = _mm512_dpwssd_epi32(*sum, a, b));
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx512f,avx512bf16")]
    fn multiply_bfloats() {
        let mut sums = [_mm512_setzero_ps(); SUMS];
        let ones = _mm512_set1_ps(1.0);
        let (a, b) = black_box((_mm512_cvtne2ps_pbh(ones, ones), _mm512_cvtne2ps_pbh(ones, ones)));
        for _ in 0..ROUNDS {
            sums.iter_mut().for_each(|sum| *sum = _mm512_dpbf16_ps(*sum, a, b));
        }
        black_box(sums);
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

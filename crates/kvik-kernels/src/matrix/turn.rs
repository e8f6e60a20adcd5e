//! Turning words around by AVX2: rows of eight become eight of all rows.

use std::arch::x86_64::*;

/// `[16][8]` as `[8][16]`.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn turned(rows: &[[u32; 8]; 16]) -> [[u32; 16]; 8] {
    let mut out = [[0; 16]; 8];
    for half in 0..2 {
        for (word, words) in turned_square(&rows[8 * half..]).into_iter().enumerate() {
            // SAFETY: half a row of `out` has eight words.
            unsafe { _mm256_storeu_si256(out[word][8 * half..].as_mut_ptr().cast(), words) };
        }
    }
    out
}

/// Of the first eight rows: pairs of words, then pairs of pairs, then halves of registers change places.
#[target_feature(enable = "avx2")]
#[inline]
fn turned_square(rows: &[[u32; 8]]) -> [__m256i; 8] {
    // SAFETY: a row has eight words.
    let load = |row: usize| unsafe { _mm256_loadu_si256(rows[row].as_ptr().cast()) };
    let mut pairs = [_mm256_setzero_si256(); 8];
    for two in 0..4 {
        let (a, b) = (load(2 * two), load(2 * two + 1));
        (pairs[2 * two], pairs[2 * two + 1]) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    }
    let mut fours = [_mm256_setzero_si256(); 8];
    for four in 0..2 {
        for part in 0..2 {
            let (a, b) = (pairs[4 * four + part], pairs[4 * four + part + 2]);
            let to = 4 * four + 2 * part;
            (fours[to], fours[to + 1]) = (_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
        }
    }
    let mut out = [_mm256_setzero_si256(); 8];
    for word in 0..4 {
        let (a, b) = (fours[word], fours[word + 4]);
        out[word] = _mm256_permute2x128_si256::<0x20>(a, b);
        out[word + 4] = _mm256_permute2x128_si256::<0x31>(a, b);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_where_it_belongs() {
        if !std::arch::is_x86_feature_detected!("avx2") {
            return kvik_testing::skip("this machine has no AVX2");
        }
        let rows: [[u32; 8]; 16] =
            std::array::from_fn(|row| std::array::from_fn(|word| (row * 8 + word) as u32));
        // SAFETY: just found.
        let out = unsafe { turned(&rows) };
        for (word, words) in out.iter().enumerate() {
            for (row, found) in words.iter().enumerate() {
                assert_eq!(*found, rows[row][word], "word {word} of row {row}");
            }
        }
    }
}

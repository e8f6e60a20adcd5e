//! The memory bandwidth of this machine, which bounds decoding: every weight is read once a token.

use std::hint::black_box;
use std::io;
use std::time::{Duration, Instant};

use crate::memory::Memory;
use crate::{Pool, vectorised};

/// Bytes that a thread reads at a time: enough that handing out the next piece costs nothing.
const PIECE_BYTES: usize = 256 << 10;

/// Measures the bytes per second at which the threads of `pool` read `bytes` of memory the way weights are read:
/// in huge pages where the system has them, in order, by every thread. Returns the best round within `time`; at
/// least one round is measured.
///
/// `bytes` should be several times the size of the last-level cache, or else the cache is measured.
///
/// # Errors
/// If the system does not have that much memory.
pub fn read_speed(pool: &Pool, bytes: usize, time: Duration) -> io::Result<f64> {
    let mut memory = Memory::new(bytes.max(1).next_multiple_of(PIECE_BYTES))?;
    // All pages that were never written are one page of zeros, which stays in the cache.
    pool.run_chunks(memory.bytes_mut(), PIECE_BYTES, |_, piece| piece.fill(1));
    let pieces: Vec<&[u8]> = memory.bytes().chunks_exact(PIECE_BYTES).collect();
    let (started, mut best) = (Instant::now(), Duration::MAX);
    loop {
        let round = Instant::now();
        pool.run(pieces.len(), &|piece| {
            black_box(sum(pieces[piece]));
        });
        best = best.min(round.elapsed());
        if started.elapsed() >= time {
            return Ok(memory.len() as f64 / best.as_secs_f64().max(f64::MIN_POSITIVE));
        }
    }
}

/// The sum of the words of some bytes. It is a single sum, which the compiler splits over as many registers as it
/// has: written as an array of sums it gathers single words, at a tenth of the speed.
fn sum(bytes: &[u8]) -> u64 {
    vectorised(
        #[inline(always)]
        || {
            let mut sum = 0_u64;
            for word in bytes.as_chunks::<8>().0 {
                sum = sum.wrapping_add(u64::from_le_bytes(*word));
            }
            sum
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_read() {
        let mut bytes = vec![0_u8; PIECE_BYTES];
        assert_eq!(sum(&bytes), 0);
        for (count, word) in [0, 8, 256, PIECE_BYTES / 2, PIECE_BYTES - 8].into_iter().enumerate() {
            bytes[word] = 1;
            assert_eq!(sum(&bytes), count as u64 + 1, "word at {word}");
        }
    }

    /// No memory takes ten nanoseconds to read a byte, and none reads a terabyte in a tenth of a second.
    #[test]
    fn a_speed_is_one_that_machines_have() {
        let speed = read_speed(&Pool::new(2), 8 << 20, Duration::from_millis(5)).unwrap();
        assert!((1e8..1e13).contains(&speed), "{speed} bytes per second");
    }

    #[test]
    fn memory_that_is_not_there_is_an_error() {
        assert!(read_speed(&Pool::new(1), usize::MAX / 4, Duration::ZERO).is_err());
    }
}

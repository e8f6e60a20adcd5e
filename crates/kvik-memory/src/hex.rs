//! Bytes as hexadecimal digits.

/// Returns two lower-case digits for each byte.
pub fn written(bytes: impl AsRef<[u8]>) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.as_ref().iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}

/// Parses exactly `2 * BYTES` digits, in upper or lower case.
pub fn read<const BYTES: usize>(text: &str) -> Option<[u8; BYTES]> {
    let digit = |digit: u8| char::from(digit).to_digit(16);
    let mut bytes = [0; BYTES];
    if text.len() != 2 * BYTES {
        return None;
    }
    for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = (digit(digits[0])? << 4 | digit(digits[1])?) as u8;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        assert_eq!(written([0, 1, 0x9a, 0xff]), "00019aff");
        assert_eq!(read("00019aff"), Some([0, 1, 0x9a, 0xff]));
        assert_eq!(read("00019AFF"), Some([0, 1, 0x9a, 0xff]));
        for text in ["", "00019af", "00019aff0", "+0019aff", "00019afg", "0001é9a"] {
            assert_eq!(read::<4>(text), None, "{text}");
        }
    }
}

//! Values of the caller: texts, lists, structures, and buffers of results. Null is an error that names the argument.

use std::ffi::{CStr, c_char};

use crate::status::{Failure, KvikStatus};

/// A text.
///
/// # Safety
/// `text` is null, or points to bytes that end with a nul and stay as they are for `'a`.
pub(crate) unsafe fn text<'a>(text: *const c_char, name: &str) -> Result<&'a str, Failure> {
    if text.is_null() {
        return Err(Failure::argument(name, "is null"));
    }
    // SAFETY: it is not null, and the caller promises the rest.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Failure::argument(name, "is not UTF-8"))
}

/// A text that may be missing.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn optional<'a>(at: *const c_char, name: &str) -> Result<Option<&'a str>, Failure> {
    if at.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller promises it.
    unsafe { text(at, name) }.map(Some)
}

/// Writes a text with a nul behind it into a buffer of `room` bytes, or nothing if it does not fit. Returns its size in
/// bytes.
///
/// # Safety
/// `to` is null, or a buffer of `room` bytes.
pub(crate) unsafe fn put_text(to: *mut c_char, room: usize, text: &str) -> usize {
    let bytes = text.len() + 1;
    if !to.is_null() && bytes <= room {
        // SAFETY: there is room for the text and its nul.
        unsafe {
            to.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), text.len());
            to.add(text.len()).write(0);
        }
    }
    bytes
}

/// Writes the values of a result to a list with room for `room`, and to `count` how many they are.
///
/// # Safety
/// `to` is null, or has room for `room` values; `count` is null, or writable.
pub(crate) unsafe fn put_list<T: Copy>(
    (to, room): (*mut T, usize),
    count: *mut usize,
    values: &[T],
    name: &str,
) -> Result<(), Failure> {
    // SAFETY: the caller promises it.
    unsafe { put(count, values.len()) };
    if room < values.len() {
        let message = format!("`{name}` has room for {room} numbers, and there are {}", values.len());
        return Err(Failure { status: KvikStatus::TooSmall, message });
    }
    if values.is_empty() {
        return Ok(());
    }
    if to.is_null() {
        return Err(Failure::argument(name, "is null"));
    }
    // SAFETY: it is not null and has room, as the caller promises and was checked.
    unsafe { to.copy_from_nonoverlapping(values.as_ptr(), values.len()) };
    Ok(())
}

/// A structure or handle.
///
/// # Safety
/// `at` is null, or points to a `T` that stays as it is for `'a`.
pub(crate) unsafe fn reference<'a, T>(at: *const T, name: &str) -> Result<&'a T, Failure> {
    // SAFETY: the caller promises it.
    unsafe { at.as_ref() }.ok_or_else(|| Failure::argument(name, "is null"))
}

/// A list of `count`; an empty one may be null.
///
/// # Safety
/// `at` is null, or points to `count` values that stay as they are for `'a`.
pub(crate) unsafe fn list<'a, T>(at: *const T, count: usize, name: &str) -> Result<&'a [T], Failure> {
    match (count, at.is_null()) {
        (0, _) => Ok(&[]),
        (_, true) => Err(Failure::argument(name, "is null")),
        // SAFETY: it is not null, and the caller promises the rest.
        (count, false) => Ok(unsafe { std::slice::from_raw_parts(at, count) }),
    }
}

/// A word in an array of its own, truncated if it does not fit, with a nul behind it.
pub(crate) fn word(text: &str) -> [c_char; 32] {
    let mut word = [0; 32];
    for (to, byte) in word[..31].iter_mut().zip(text.bytes()) {
        *to = byte as c_char;
    }
    word
}

/// Writes a result; nothing if `to` is null.
///
/// # Safety
/// `to` is null, or writable.
pub(crate) unsafe fn put<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: the caller promises it. What stood there needs no end: results are plain numbers and pointers.
        unsafe { to.write(value) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_and_other_encodings_are_errors_that_name_the_argument() {
        // SAFETY: null, or a literal of C.
        let read = |at: *const c_char| unsafe { text(at, "prompt") };
        assert_eq!(read(c"Gr\u{fc}n".as_ptr()).unwrap(), "Gr\u{fc}n");
        let failures = [std::ptr::null(), c"\xff".as_ptr()].map(|at| read(at).unwrap_err());
        assert_eq!(
            failures.map(|failure| (failure.status, failure.message)),
            [
                (KvikStatus::InvalidArgument, "`prompt` is null".to_owned()),
                (KvikStatus::InvalidArgument, "`prompt` is not UTF-8".to_owned()),
            ]
        );
    }

    #[test]
    fn a_list_is_written_where_it_fits_and_its_length_in_any_case() {
        let write = |room, values: &[u32]| {
            let (mut to, mut count) = ([9; 2], 0);
            // SAFETY: there is room for two numbers, and for their count.
            let written = unsafe { put_list((to.as_mut_ptr(), room), &raw mut count, values, "tokens") };
            (written.map_err(|failure| failure.status), to, count)
        };
        assert_eq!(write(2, &[7]), (Ok(()), [7, 9], 1));
        assert_eq!(write(1, &[7, 8]), (Err(KvikStatus::TooSmall), [9, 9], 2));
        let null = std::ptr::null_mut::<u32>();
        let unwanted = |values: &[u32]| {
            // SAFETY: nothing is written to null.
            unsafe { put_list((null, 2), std::ptr::null_mut(), values, "tokens") }
        };
        assert!(unwanted(&[]).is_ok());
        assert_eq!(unwanted(&[7]).unwrap_err().message, "`tokens` is null");
    }

    #[test]
    fn an_empty_list_may_be_null_and_results_may_be_unwanted() {
        // SAFETY: null, or an array of two.
        let read = |at: *const u8, count| unsafe { list(at, count, "stop") }.map(<[u8]>::to_vec);
        assert!(read(std::ptr::null(), 0).unwrap().is_empty());
        assert_eq!(read([7, 8].as_ptr(), 2).unwrap(), [7, 8]);
        assert!(read(std::ptr::null(), 1).is_err());
        let mut to = 7;
        // SAFETY: a place for a number, and null.
        unsafe { (put(&raw mut to, 8), put(std::ptr::null_mut(), 9)) };
        assert_eq!(to, 8);
    }
}

//! Opening and closing a model.

use std::ffi::c_char;
use std::fs::File;

use kvik_library::{DiskOptions, Model, Options, Source};

use crate::status::{Failure, KvikStatus, call};
use crate::text::{list, optional, put, reference, text};

/// An open model; its fields are private.
pub struct KvikModel(pub(crate) Model);

/// Options of a model. A field that is 0 or null has its default, which is in parentheses; a null pointer has all defaults.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct KvikOptions {
    /// Bytes of RAM for keys and values (half of the free memory, at most 8 GiB).
    pub kv_bytes: u64,
    /// Maximum tokens of a prompt and its answer together (the model's own, or what fits).
    pub context_tokens: u64,
    /// Compute threads (the number of fast cores).
    pub threads: u32,
    /// Maximum number of answers computed at the same time (4).
    pub parallel: u32,
    /// Directory in which computed blocks outlive the process (none).
    pub disk_dir: *const c_char,
    /// Maximum bytes in that directory, never more than a tenth of the free space (2 GiB).
    pub disk_bytes_max: u64,
    /// Directory where conversations are stored, which must not be a cache directory (none).
    pub conversations_dir: *const c_char,
    /// Fraction of time in which to compute, at most 1 (1): pauses keep a device cool, and answers do not change.
    pub time_share: f32,
}

/// Opens a GGUF file, or a directory in Hugging Face's layout.
///
/// # Safety
/// `path` and the directories of `options` are texts, `options` is null or valid options, `model` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvik_open_file(
    path: *const c_char,
    options: *const KvikOptions,
    model: *mut *mut KvikModel,
) -> KvikStatus {
    call(|| {
        // SAFETY: the caller promises it.
        unsafe { open(text(path, "path")?.into(), options, model) }
    })
}

/// Opens a GGUF file in memory, which is copied.
///
/// # Safety
/// `bytes` are `count` bytes; otherwise as `kvik_open_file`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvik_open_bytes(
    bytes: *const u8,
    count: usize,
    options: *const KvikOptions,
    model: *mut *mut KvikModel,
) -> KvikStatus {
    call(|| {
        // SAFETY: the caller promises it.
        unsafe { open(Source::Bytes(list(bytes, count, "bytes")?.to_vec()), options, model) }
    })
}

/// Opens a GGUF file inside an open file, which is mapped: `descriptor`, `offset` and `bytes` as a phone's asset manager
/// provides them; with 0 bytes the part extends to the end of the file. The caller keeps the descriptor and may close it
/// after the call.
///
/// # Safety
/// As `kvik_open_file`, and `descriptor` is an open file.
#[cfg(unix)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvik_open_part(
    descriptor: std::ffi::c_int,
    offset: u64,
    bytes: u64,
    options: *const KvikOptions,
    model: *mut *mut KvikModel,
) -> KvikStatus {
    use std::os::fd::BorrowedFd;
    call(|| {
        if descriptor < 0 {
            return Err(Failure::argument("descriptor", "is negative"));
        }
        // SAFETY: it is not -1, and open, as the caller promises.
        let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
        let owned = borrowed.try_clone_to_owned();
        let file =
            owned.map_err(|error| Failure::argument("descriptor", &format!("cannot be used: {error}")))?;
        let source =
            Source::Descriptor { file: File::from(file), offset, bytes: (bytes > 0).then_some(bytes) };
        // SAFETY: the caller promises it.
        unsafe { open(source, options, model) }
    })
}

/// Cancels all answers, waits up to two seconds until computed blocks are on disk, and stops all threads. Closing null
/// does nothing.
///
/// # Safety
/// `model` is null or a handle that was opened, not closed, and is used by no other thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvik_close(model: *mut KvikModel) -> KvikStatus {
    call(|| {
        if !model.is_null() {
            // SAFETY: it was made by `open`, and the caller promises that nobody uses it.
            let KvikModel(model) = *unsafe { Box::from_raw(model) };
            model.close()?;
        }
        Ok(())
    })
}

/// # Safety
/// As `kvik_open_file`.
unsafe fn open(
    source: Source,
    options: *const KvikOptions,
    model: *mut *mut KvikModel,
) -> Result<(), Failure> {
    if model.is_null() {
        return Err(Failure::argument("model", "is null"));
    }
    let usual = Options::new(source);
    let options = match options.is_null() {
        true => usual,
        // SAFETY: the caller promises it.
        false => unsafe { reference(options, "options")?.read(usual)? },
    };
    let opened = Box::new(KvikModel(Model::open(options)?));
    // SAFETY: it is not null, and a place for a handle.
    unsafe { put(model, Box::into_raw(opened)) };
    Ok(())
}

impl KvikOptions {
    /// # Safety
    /// `disk_dir` and `conversations_dir` are null or texts.
    unsafe fn read(&self, usual: Options) -> Result<Options, Failure> {
        if !(0.0..=1.0).contains(&self.time_share) {
            return Err(Failure::argument("time_share", "must be at least 0 and at most 1"));
        }
        let usual = match self.disk_dir.is_null() {
            true => usual,
            // SAFETY: the caller promises it.
            false => usual.with_disk(unsafe { text(self.disk_dir, "disk_dir")? }),
        };
        // SAFETY: the caller promises it.
        let conversations = unsafe { optional(self.conversations_dir, "conversations_dir")? };
        let disk = usual.disk.map(|disk| match self.disk_bytes_max {
            0 => disk,
            bytes_max => DiskOptions { bytes_max, ..disk },
        });
        let count = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let parallel = if self.parallel == 0 { usual.parallel } else { self.parallel as usize };
        Ok(Options {
            kv_bytes: (self.kv_bytes > 0).then_some(self.kv_bytes),
            context_tokens: (self.context_tokens > 0).then(|| count(self.context_tokens)),
            threads: (self.threads > 0).then_some(self.threads as usize),
            time_share: if self.time_share == 0.0 { usual.time_share } else { self.time_share },
            parallel,
            disk,
            conversations: conversations.map(Into::into),
            ..usual
        })
    }
}

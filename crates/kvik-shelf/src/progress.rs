//! Progress reports of a download, and its cancellation.

/// A receiver of progress reports, which come from several threads concurrently.
pub trait Progress: Sync {
    /// Reports the files to be downloaded: names, and sizes if the hub states them.
    fn begin(&self, _files: &[(String, Option<u64>)]) {}
    /// Reports that `done` bytes of the file with this index are present.
    fn bytes(&self, _file: usize, _done: u64, _total: Option<u64>) {}
    /// Reports that all bytes of the file are present, and its checksum is being computed.
    fn checking(&self, _file: usize) {}
    /// Reports that another process, described by `holder`, downloads this file and is waited for.
    fn waiting(&self, _file: usize, _holder: &str) {}
    /// Reports a remark, such as which of several files was chosen.
    fn note(&self, _text: &str) {}
    /// Returns whether the caller has cancelled; polled several times a second.
    fn cancelled(&self) -> bool {
        false
    }
}

/// Ignores all reports.
#[derive(Debug, Clone, Copy, Default)]
pub struct Quiet;

impl Progress for Quiet {}

//! What a download tells its caller, and the caller it.

/// Hears of a download, from several threads at once.
pub trait Progress: Sync {
    /// These files will be there: name, and bytes where the hub says how many.
    fn begin(&self, _files: &[(String, Option<u64>)]) {}
    /// So many bytes of the file with this index are there.
    fn bytes(&self, _file: usize, _done: u64, _total: Option<u64>) {}
    /// All bytes of the file are there, and its checksum is computed.
    fn checking(&self, _file: usize) {}
    /// Another process, described by `holder`, downloads this file; it is waited for.
    fn waiting(&self, _file: usize, _holder: &str) {}
    /// A remark, such as which of several files was chosen.
    fn note(&self, _text: &str) {}
    /// Whether the caller has lost interest; asked several times a second.
    fn cancelled(&self) -> bool {
        false
    }
}

/// Tells nobody.
#[derive(Debug, Clone, Copy, Default)]
pub struct Quiet;

impl Progress for Quiet {}

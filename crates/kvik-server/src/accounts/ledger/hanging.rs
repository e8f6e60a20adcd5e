//! A file on a file system that hangs, or is full, when a test requires it.

use std::{
    io,
    sync::{Arc, Condvar, Mutex},
};

use redb::{StorageBackend, backends::InMemoryBackend};

use kvik_memory::records::Records;

use crate::http::readers::give_way;

/// Gate in front of files: while it is shut, every call on them blocks.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gate(Arc<(Mutex<State>, Condvar)>);

#[derive(Debug, Default)]
struct State {
    is_shut: bool,
    is_full: bool,
    waiting: usize,
}

#[derive(Debug, Clone)]
struct HangingFile {
    memory: Arc<InMemoryBackend>,
    gate: Gate,
}

impl Gate {
    /// New records behind the gate.
    pub(crate) fn records(&self) -> Records {
        let file = HangingFile { memory: Arc::default(), gate: self.clone() };
        Records::over_again(move || file.clone()).unwrap().giving_way(give_way)
    }

    /// Sets whether the disk behind the gate is full.
    pub(crate) fn set_full(&self, is_full: bool) {
        self.0.0.lock().unwrap().is_full = is_full;
    }

    pub(crate) fn shut(&self) {
        self.0.0.lock().unwrap().is_shut = true;
    }

    pub(crate) fn open(&self) {
        self.0.0.lock().unwrap().is_shut = false;
        self.0.1.notify_all();
    }

    /// Number of calls that block.
    pub(crate) fn waiting(&self) -> usize {
        self.0.0.lock().unwrap().waiting
    }

    /// Waits until the gate is open.
    pub(crate) fn pass(&self) {
        let (state, opened) = &*self.0;
        let mut state = state.lock().unwrap();
        state.waiting += 1;
        state = opened.wait_while(state, |state| state.is_shut).unwrap();
        state.waiting -= 1;
    }

    /// Passes a call that needs disk space.
    fn pass_with_room(&self) -> io::Result<()> {
        self.pass();
        match self.0.0.lock().unwrap().is_full {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => Ok(()),
        }
    }
}

impl StorageBackend for HangingFile {
    fn len(&self) -> io::Result<u64> {
        self.gate.pass();
        self.memory.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.gate.pass();
        self.memory.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.gate.pass_with_room()?;
        self.memory.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.gate.pass_with_room()?;
        self.memory.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.gate.pass_with_room()?;
        self.memory.write(offset, data)
    }
}

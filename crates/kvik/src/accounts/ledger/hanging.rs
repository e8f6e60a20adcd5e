//! A file on a file system that hangs when a test wants it to.

use std::{
    io,
    sync::{Arc, Condvar, Mutex},
};

use redb::{StorageBackend, backends::InMemoryBackend};

use kvik_memory::records::Records;

use crate::http::readers::give_way;

/// Shut, every call on the files behind it waits until it is opened.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gate(Arc<(Mutex<State>, Condvar)>);

#[derive(Debug, Default)]
struct State {
    is_shut: bool,
    waiting: usize,
}

#[derive(Debug)]
struct HangingFile {
    memory: InMemoryBackend,
    gate: Gate,
}

impl Gate {
    /// New records behind it.
    pub(crate) fn records(&self) -> Records {
        let file = HangingFile { memory: InMemoryBackend::new(), gate: self.clone() };
        Records::over(file).unwrap().giving_way(give_way)
    }

    pub(crate) fn shut(&self) {
        self.0.0.lock().unwrap().is_shut = true;
    }

    pub(crate) fn open(&self) {
        self.0.0.lock().unwrap().is_shut = false;
        self.0.1.notify_all();
    }

    /// Calls that hang.
    pub(crate) fn waiting(&self) -> usize {
        self.0.0.lock().unwrap().waiting
    }

    fn pass(&self) {
        let (state, opened) = &*self.0;
        let mut state = state.lock().unwrap();
        state.waiting += 1;
        state = opened.wait_while(state, |state| state.is_shut).unwrap();
        state.waiting -= 1;
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
        self.gate.pass();
        self.memory.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.gate.pass();
        self.memory.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.gate.pass();
        self.memory.write(offset, data)
    }
}

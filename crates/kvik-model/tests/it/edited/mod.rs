//! A GGUF file taken apart, so that tests can write it with other keys and tensors.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "test support; every binary uses a part")]

use std::path::Path;

/// The file's alignment of tensor data.
const ALIGNMENT: usize = 32;

/// Metadata and tensors of a file, in its order.
#[derive(Clone)]
pub struct Edited {
    /// Keys with the number of their type and the bytes of their value.
    pub keys: Vec<(String, Vec<u8>)>,
    pub tensors: Vec<Tensor>,
}

#[derive(Clone, PartialEq)]
pub struct Tensor {
    pub name: String,
    /// The fastest first.
    pub dims: Vec<u64>,
    pub type_id: u32,
    pub data: Vec<u8>,
}

impl Tensor {
    /// Bytes of what one step of the slowest dimension holds.
    pub fn row_bytes(&self) -> usize {
        let dims: u64 = self.dims.iter().product();
        let rows = self.dims.last().unwrap();
        // Behind the last row may be zeros up to the alignment; types here have whole elements.
        let element = if self.type_id == 0 { 4 } else { 2 };
        (dims / rows) as usize * element
    }
}

/// Numbers of types of values.
mod kind {
    pub const U32: u32 = 4;
    pub const I32: u32 = 5;
    pub const F32: u32 = 6;
    pub const BOOL: u32 = 7;
    pub const STRING: u32 = 8;
    pub const ARRAY: u32 = 9;
    pub const U64: u32 = 10;
    /// Bytes of a value, by number; 0 for strings and arrays.
    pub const BYTES: [usize; 13] = [1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8];
}

impl Edited {
    pub fn read(path: &Path) -> Edited {
        let bytes = std::fs::read(path).unwrap();
        let mut at = Cursor { bytes: &bytes, at: 8 };
        let (tensors, keys) = (at.u64() as usize, at.u64() as usize);
        let keys = (0..keys).map(|_| (at.text(), at.value())).collect();
        let mut infos: Vec<(Tensor, usize)> = (0..tensors).map(|_| at.info()).collect();
        let data = &bytes[at.at.next_multiple_of(ALIGNMENT)..];
        let starts: Vec<usize> = infos.iter().map(|(_, start)| *start).collect();
        let end =
            |start: usize| starts.iter().copied().filter(|&other| other > start).min().unwrap_or(data.len());
        infos.iter_mut().for_each(|(tensor, start)| tensor.data = data[*start..end(*start)].to_vec());
        Edited { keys, tensors: infos.into_iter().map(|(tensor, _)| tensor).collect() }
    }

    /// Replaces a key or adds it; without a value it is removed.
    pub fn set(&mut self, key: &str, value: Option<Vec<u8>>) {
        let at = self.keys.iter().position(|(other, _)| other == key);
        match (at, value) {
            (Some(at), Some(value)) => self.keys[at].1 = value,
            (Some(at), None) => _ = self.keys.remove(at),
            (None, Some(value)) => self.keys.push((key.to_owned(), value)),
            (None, None) => {}
        }
    }

    pub fn has(&self, key: &str) -> bool {
        self.keys.iter().any(|(other, _)| other == key)
    }

    /// The whole file.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF\x03\0\0\0".to_vec();
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.keys.len() as u64).to_le_bytes());
        for (key, value) in &self.keys {
            put_text(&mut out, key);
            out.extend(value);
        }
        let mut data = Vec::new();
        for tensor in &self.tensors {
            put_text(&mut out, &tensor.name);
            out.extend((tensor.dims.len() as u32).to_le_bytes());
            tensor.dims.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
            out.extend(tensor.type_id.to_le_bytes());
            out.extend((data.len() as u64).to_le_bytes());
            data.extend(&tensor.data);
            data.resize(data.len().next_multiple_of(ALIGNMENT), 0);
        }
        out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
        out.extend(data);
        out
    }
}

/// Values as a file stores them, with the number of their type before them.
pub fn u32(value: u32) -> Vec<u8> {
    [kind::U32.to_le_bytes(), value.to_le_bytes()].concat()
}

pub fn u64(value: u64) -> Vec<u8> {
    [&kind::U64.to_le_bytes()[..], &value.to_le_bytes()].concat()
}

pub fn i32(value: i32) -> Vec<u8> {
    [kind::I32.to_le_bytes(), value.to_le_bytes()].concat()
}

pub fn f32(value: f32) -> Vec<u8> {
    [kind::F32.to_le_bytes(), value.to_le_bytes()].concat()
}

pub fn boolean(value: bool) -> Vec<u8> {
    [&kind::BOOL.to_le_bytes()[..], &[value.into()]].concat()
}

pub fn text(value: &str) -> Vec<u8> {
    let mut out = kind::STRING.to_le_bytes().to_vec();
    put_text(&mut out, value);
    out
}

/// An array of values that are all of the type of the first.
pub fn array(values: &[Vec<u8>]) -> Vec<u8> {
    let mut out = kind::ARRAY.to_le_bytes().to_vec();
    out.extend(values.first().map_or(&kind::U32.to_le_bytes()[..], |first| &first[..4]));
    out.extend((values.len() as u64).to_le_bytes());
    values.iter().for_each(|value| out.extend(&value[4..]));
    out
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, count: usize) -> &'a [u8] {
        let taken = &self.bytes[self.at..self.at + count];
        self.at += count;
        taken
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take(4).try_into().unwrap())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take(8).try_into().unwrap())
    }

    fn text(&mut self) -> String {
        let len = self.u64() as usize;
        String::from_utf8(self.take(len).to_vec()).unwrap()
    }

    fn value(&mut self) -> Vec<u8> {
        let start = self.at;
        let kind = self.u32();
        self.skip(kind);
        self.bytes[start..self.at].to_vec()
    }

    fn skip(&mut self, kind: u32) {
        match kind {
            kind::STRING => _ = self.text(),
            kind::ARRAY => {
                let (element, len) = (self.u32(), self.u64());
                (0..len).for_each(|_| self.skip(element));
            }
            other => _ = self.take(kind::BYTES[other as usize]),
        }
    }

    /// A tensor without its data, and where that starts.
    fn info(&mut self) -> (Tensor, usize) {
        let name = self.text();
        let dims = (0..self.u32()).map(|_| self.u64()).collect();
        let (type_id, start) = (self.u32(), self.u64() as usize);
        (Tensor { name, dims, type_id, data: Vec::new() }, start)
    }
}

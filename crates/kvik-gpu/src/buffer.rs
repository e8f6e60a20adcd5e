//! Arrays in the memory of a device.

use std::marker::PhantomData;
use std::ops::Range;
use std::time::Duration;

use bytemuck::Pod;

use crate::{Device, DeviceError};

/// An array of `T` on a device.
#[derive(Debug)]
pub struct Buffer<T> {
    raw: wgpu::Buffer,
    len: usize,
    of: PhantomData<T>,
}

/// Alignment of buffers: kernels bind vectors of four words.
const ALIGN: u64 = 16;
/// Maximum bytes per upload, which is copied on the way.
const UPLOAD_BYTES: usize = 64 << 20;
/// Timeout of a step, after which the device counts as hung.
const WAIT_MAX: Duration = Duration::from_secs(120);

impl<T: Pod> Buffer<T> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the array is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn raw(&self) -> &wgpu::Buffer {
        &self.raw
    }
}

impl Device {
    /// An array of zeros; `what` names it in errors.
    ///
    /// # Errors
    /// If it is larger than the device allows, or there is no memory left for it.
    pub fn zeros<T: Pod>(&self, what: &str, len: usize) -> Result<Buffer<T>, DeviceError> {
        self.check()?;
        let bytes = (len as u64 * size_of::<T>() as u64).next_multiple_of(ALIGN).max(ALIGN);
        let limit = self.info().buffer_bytes_max.min(self.info().binding_bytes_max);
        if bytes > limit {
            return Err(DeviceError::Limit { what: what.to_owned(), bytes, limit });
        }
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        let descriptor =
            wgpu::BufferDescriptor { label: Some(what), size: bytes, usage, mapped_at_creation: false };
        match self.caught(|| self.raw().create_buffer(&descriptor)) {
            (raw, None) => Ok(Buffer { raw, len, of: PhantomData }),
            (_, Some(wgpu::Error::OutOfMemory { .. })) => {
                Err(DeviceError::Memory { what: what.to_owned(), bytes })
            }
            (_, Some(error)) => Err(DeviceError::Refused { message: error.to_string() }),
        }
    }

    /// An array of `values`; `what` names it in errors.
    ///
    /// # Errors
    /// As [`Device::zeros`].
    pub fn upload<T: Pod>(&self, what: &str, values: &[T]) -> Result<Buffer<T>, DeviceError> {
        let buffer = self.zeros(what, values.len())?;
        self.put(&buffer, 0, bytemuck::cast_slice(values))?;
        Ok(buffer)
    }

    /// Replaces the elements from `start` on.
    ///
    /// # Errors
    /// If the device is lost.
    ///
    /// # Panics
    /// If they exceed the array, or are not aligned to whole words.
    pub fn write<T: Pod>(
        &self,
        buffer: &mut Buffer<T>,
        start: usize,
        values: &[T],
    ) -> Result<(), DeviceError> {
        assert!(start + values.len() <= buffer.len, "{start} and {} of {}", values.len(), buffer.len);
        self.put(buffer, (start * size_of::<T>()) as u64, bytemuck::cast_slice(values))
    }

    /// Writes bytes, padded with zeros to a whole word.
    pub(crate) fn put<T>(&self, buffer: &Buffer<T>, start: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let (whole, rest) = bytes.split_at(bytes.len() / 4 * 4);
        let mut at = start;
        for part in whole.chunks(UPLOAD_BYTES) {
            self.queue().write_buffer(&buffer.raw, at, part);
            at += part.len() as u64;
            self.limit_uploads(part.len())?;
        }
        if !rest.is_empty() {
            let mut word = [0; 4];
            word[..rest.len()].copy_from_slice(rest);
            self.queue().write_buffer(&buffer.raw, at, &word);
        }
        self.check()
    }

    /// Counts uploaded bytes that wait in memory for the next step, and submits them once they reach a limit: a
    /// model is uploaded without a step.
    fn limit_uploads(&self, bytes: usize) -> Result<(), DeviceError> {
        let waiting = self.uploads.get() + bytes;
        if waiting < UPLOAD_BYTES {
            self.uploads.set(waiting);
            return Ok(());
        }
        self.uploads.set(0);
        self.queue().submit([]);
        self.wait()
    }

    /// Reads all elements, after all previous work is done.
    ///
    /// # Errors
    /// If the device is lost, or refused previous work.
    pub fn read<T: Pod>(&self, buffer: &Buffer<T>) -> Result<Vec<T>, DeviceError> {
        let mut values = Vec::new();
        self.read_into(buffer, 0..buffer.len, &mut values)?;
        Ok(values)
    }

    /// Appends elements of a buffer to `values`, after all previous work is done.
    ///
    /// # Errors
    /// As [`Device::read`].
    ///
    /// # Panics
    /// If they exceed the array, or are not whole words.
    pub fn read_into<T: Pod>(
        &self,
        buffer: &Buffer<T>,
        part: Range<usize>,
        values: &mut Vec<T>,
    ) -> Result<(), DeviceError> {
        assert!(part.end <= buffer.len, "{part:?} of {}", buffer.len);
        let [start, end] = [part.start, part.end].map(|index| (index * size_of::<T>()) as u64);
        self.bytes(&[(&buffer.raw, start..end)], |bytes| {
            let before = values.len();
            values.resize(before + part.len(), T::zeroed());
            bytemuck::cast_slice_mut(&mut values[before..]).copy_from_slice(&bytes[..(end - start) as usize]);
        })
    }

    /// Passes the bytes of parts of buffers, concatenated, to `take`. Parts are whole words.
    pub(crate) fn bytes(
        &self,
        parts: &[(&wgpu::Buffer, Range<u64>)],
        take: impl FnOnce(&[u8]),
    ) -> Result<(), DeviceError> {
        self.check()?;
        let words = |part: &Range<u64>| (part.end - part.start).next_multiple_of(4);
        let len: u64 = parts.iter().map(|(_, part)| words(part)).sum();
        if len == 0 {
            take(&[]);
            return Ok(());
        }
        let descriptor = wgpu::BufferDescriptor {
            label: Some("what is read back"),
            size: len,
            usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        };
        let (room, error) = self.caught(|| self.raw().create_buffer(&descriptor));
        if error.is_some() {
            return Err(DeviceError::Memory { what: "what is read back".to_owned(), bytes: len });
        }
        let mut encoder = self.raw().create_command_encoder(&Default::default());
        let mut at = 0;
        for (buffer, part) in parts {
            encoder.copy_buffer_to_buffer(buffer, part.start, &room, at, words(part));
            at += words(part);
        }
        self.queue().submit([encoder.finish()]);
        room.map_async(wgpu::MapMode::Read, .., |_| {});
        self.wait()?;
        let view = room.get_mapped_range(..);
        take(&view.map_err(|error| DeviceError::Refused { message: error.to_string() })?);
        Ok(())
    }

    /// Waits until all previous work is done.
    pub(crate) fn wait(&self) -> Result<(), DeviceError> {
        let wait = wgpu::PollType::Wait { submission_index: None, timeout: Some(WAIT_MAX) };
        let waited = self.raw().poll(wait);
        self.check()?;
        match waited {
            Ok(_) => Ok(()),
            Err(error) => Err(DeviceError::Lost { reason: error.to_string() }),
        }
    }
}

//! Arrays in the memory of a device.

use std::marker::PhantomData;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
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

/// A part of a buffer that is to be read.
#[derive(Debug, Clone)]
pub struct Part<'a> {
    raw: &'a wgpu::Buffer,
    bytes: Range<u64>,
}

/// Parts of buffers that a submitted step copies to the machine's memory.
#[derive(Debug)]
#[must_use]
pub struct Reading {
    /// `None` if nothing is read.
    room: Option<wgpu::Buffer>,
    bytes: u64,
}

/// Alignment of buffers: kernels bind vectors of four words.
const ALIGN: u64 = 16;
/// Maximum bytes per upload, which is copied on the way.
const UPLOAD_BYTES: usize = 64 << 20;
/// Bytes of a buffer for reading that is reused.
const READ_ROOM_MAX: u64 = 64 << 20;
/// Bytes of the smallest buffer of a step that is reused.
const SPARE_MIN: u64 = 256;
/// Buffers that wait to be reused.
const SPARES_MAX: usize = 32;
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

    /// A range of elements, to be read with other ones.
    ///
    /// # Panics
    /// If they exceed the array.
    pub fn part(&self, elements: Range<usize>) -> Part<'_> {
        assert!(elements.end <= self.len, "{elements:?} of {}", self.len);
        let [start, end] = [elements.start, elements.end].map(|index| (index * size_of::<T>()) as u64);
        Part { raw: &self.raw, bytes: start..end }
    }

    pub(crate) fn raw(&self) -> &wgpu::Buffer {
        &self.raw
    }
}

impl Reading {
    /// Whether nothing is read.
    pub fn is_empty(&self) -> bool {
        self.room.is_none()
    }
}

impl<'a> Part<'a> {
    /// Bytes `bytes` of a buffer.
    pub(crate) fn new(raw: &'a wgpu::Buffer, bytes: Range<u64>) -> Part<'a> {
        Part { raw, bytes }
    }

    /// Its length in whole words.
    fn words_bytes(&self) -> u64 {
        (self.bytes.end - self.bytes.start).next_multiple_of(4)
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
        self.count(|work| work.allocations += 1);
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

    /// As [`Device::upload`], for one step: in a buffer that an earlier step had, if one of that size is left
    /// ([`Device::reuse`]). It may be longer than `values`.
    ///
    /// # Errors
    /// As [`Device::zeros`].
    pub fn upload_for_step<T: Pod>(&self, what: &str, values: &[T]) -> Result<Buffer<T>, DeviceError> {
        let bytes = (size_of_val(values) as u64).next_power_of_two().max(SPARE_MIN);
        let spare = {
            let mut spare = self.spare.borrow_mut();
            let place = spare.iter().position(|buffer| buffer.size() == bytes);
            place.map(|place| spare.swap_remove(place))
        };
        let buffer = match spare {
            Some(raw) => Buffer { raw, len: values.len(), of: PhantomData },
            None => {
                let Buffer { raw, .. } = self.zeros::<u32>(what, bytes as usize / 4)?;
                Buffer { raw, len: values.len(), of: PhantomData }
            }
        };
        self.put(&buffer, 0, bytemuck::cast_slice(values))?;
        Ok(buffer)
    }

    /// Leaves a buffer of a submitted step to a later one.
    pub fn reuse<T: Pod>(&self, buffer: Buffer<T>) {
        let mut spare = self.spare.borrow_mut();
        if spare.len() < SPARES_MAX {
            spare.push(buffer.raw);
        }
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
        self.count(|work| work.uploads += 1);
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
        self.count(|work| work.submissions += 1);
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
        let part = buffer.part(part);
        self.bytes(std::slice::from_ref(&part), |bytes| {
            append(values, &bytes[..(part.bytes.end - part.bytes.start) as usize])
        })
    }

    /// Passes the bytes of parts of buffers, concatenated, to `take`. Parts are whole words.
    pub(crate) fn bytes(&self, parts: &[Part<'_>], take: impl FnOnce(&[u8])) -> Result<(), DeviceError> {
        self.check()?;
        let mut encoder = self.raw().create_command_encoder(&Default::default());
        let reading = self.record_reading(&mut encoder, parts)?;
        if reading.room.is_some() {
            self.count(|work| work.submissions += 1);
            self.queue().submit([encoder.finish()]);
        }
        self.finish_reading(reading, take)
    }

    /// Adds a copy of parts of buffers to the machine's memory.
    pub(crate) fn record_reading(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        parts: &[Part<'_>],
    ) -> Result<Reading, DeviceError> {
        let bytes: u64 = parts.iter().map(Part::words_bytes).sum();
        if bytes == 0 {
            return Ok(Reading { room: None, bytes });
        }
        let room = self.room_to_read(bytes)?;
        let mut at = 0;
        for part in parts {
            encoder.copy_buffer_to_buffer(part.raw, part.bytes.start, &room, at, part.words_bytes());
            at += part.words_bytes();
        }
        Ok(Reading { room: Some(room), bytes })
    }

    /// A buffer of at least this size that the machine can read: that of the read before, if it is large enough.
    fn room_to_read(&self, bytes: u64) -> Result<wgpu::Buffer, DeviceError> {
        if let Some(room) = self.read_room.take().filter(|room| room.size() >= bytes) {
            return Ok(room);
        }
        let descriptor = wgpu::BufferDescriptor {
            label: Some("what is read back"),
            size: bytes,
            usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        };
        self.count(|work| work.allocations += 1);
        match self.caught(|| self.raw().create_buffer(&descriptor)) {
            (room, None) => Ok(room),
            (_, Some(_)) => Err(DeviceError::Memory { what: "what is read back".to_owned(), bytes }),
        }
    }

    /// Waits for a submitted step, and passes what it reads, concatenated, to `take`.
    ///
    /// # Errors
    /// If the device is lost, or refused previous work.
    pub fn finish_reading(&self, reading: Reading, take: impl FnOnce(&[u8])) -> Result<(), DeviceError> {
        let Some(room) = reading.room else {
            // Steps are timed by this wait, and without it they would pile up before the next that is read.
            self.wait()?;
            take(&[]);
            return Ok(());
        };
        room.map_async(wgpu::MapMode::Read, ..reading.bytes, |_| {});
        self.wait()?;
        let view = room.get_mapped_range(..reading.bytes);
        take(&view.map_err(|error| DeviceError::Refused { message: error.to_string() })?);
        room.unmap();
        if room.size() <= READ_ROOM_MAX {
            self.read_room.set(Some(room));
        }
        Ok(())
    }

    /// Waits until all previous work is done.
    pub(crate) fn wait(&self) -> Result<(), DeviceError> {
        let wait = wgpu::PollType::Wait { submission_index: None, timeout: Some(WAIT_MAX) };
        // Where the driver reports a lost device, wgpu calls back and then panics.
        self.waited(catch_unwind(AssertUnwindSafe(|| self.raw().poll(wait))).ok())
    }

    /// What a wait says of the device; `None` if it panicked.
    fn waited(&self, waited: Option<Result<wgpu::PollStatus, wgpu::PollError>>) -> Result<(), DeviceError> {
        self.check()?;
        let reason = match waited {
            Some(Ok(_)) => return Ok(()),
            Some(Err(error)) => error.to_string(),
            None => "the driver failed while it was waited for".to_owned(),
        };
        // Later calls fail at once, where each would wait as long again.
        Err(self.lose(reason))
    }
}

/// Appends the elements whose bytes these are.
pub(crate) fn append<T: Pod>(values: &mut Vec<T>, bytes: &[u8]) {
    let before = values.len();
    values.resize(before + bytes.len() / size_of::<T>(), T::zeroed());
    bytemuck::cast_slice_mut(&mut values[before..]).copy_from_slice(bytes);
}

/// Replaces the elements of `values` by those whose bytes these are.
///
/// # Panics
/// If the bytes are not whole elements.
pub fn replace_elements<T: Pod>(values: &mut Vec<T>, bytes: &[u8]) {
    values.clear();
    append(values, bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Choice;

    fn device() -> Option<Device> {
        let device = Device::open(Choice::Index(0)).ok();
        if device.is_none() {
            kvik_testing::skip("no GPU, nor one of software");
        }
        device
    }

    #[test]
    fn a_step_without_results_is_waited_for() {
        let Some(mut device) = device() else { return };
        let len = 1 << 20;
        let (mut x, y) = (device.zeros("sums", len).unwrap(), device.upload("one", &[1.0f32]).unwrap());
        let mut step = device.step();
        (0..50).for_each(|_| step.add(&mut x, len, (&y, 1)).unwrap());
        let reading = step.submit_reading(&[]).unwrap();
        let mut taken = None;
        device.finish_reading(reading, |bytes| taken = Some(bytes.len())).unwrap();
        assert_eq!(taken, Some(0));
        assert!(device.raw().poll(wgpu::PollType::Poll).unwrap().is_queue_empty());
    }

    #[test]
    fn a_device_that_does_not_answer_is_waited_for_once() {
        for (waited, told) in [(Some(Err(wgpu::PollError::Timeout)), "time"), (None, "driver failed")] {
            let Some(device) = device() else { return };
            let buffer = device.upload("numbers", &[1.0f32]).unwrap();
            let is_lost = |result: Result<(), DeviceError>| {
                let lost = matches!(&result, Err(DeviceError::Lost { reason }) if reason.contains(told));
                assert!(lost, "{result:?}");
            };
            is_lost(device.waited(waited));
            is_lost(device.check());
            is_lost(device.read(&buffer).map(|_| ()));
        }
    }
}

//! Fetches a file over one connection, from its first byte: for servers without ranges, or files of unknown size.

use std::io::{ErrorKind, Read};
use std::path::Path;

use super::{
    Wanted, Watch,
    part::{Part, state_path_of},
    write_error,
};
use crate::{
    Hub, ShelfError, disk,
    hub::{Answer, Retry},
};

/// Divisor of the free space that a file of unknown size may take.
const FREE_PART: u64 = 2;

/// Fetches all bytes. Returns their number and the checksum they should have.
pub(super) fn fetch(
    hub: &Hub,
    wanted: &Wanted,
    part: &Part,
    watch: Watch<'_>,
) -> Result<(u64, Option<String>), ShelfError> {
    let mut retry = Retry::new(hub.tuning.first_pause);
    loop {
        match receive(hub, wanted, part, watch) {
            Ok(received) => return Ok(received),
            Err(error) => retry.pause(error, watch.progress)?,
        }
    }
}

/// Receives the file over one connection.
fn receive(
    hub: &Hub,
    wanted: &Wanted,
    part: &Part,
    watch: Watch<'_>,
) -> Result<(u64, Option<String>), ShelfError> {
    let answer = hub.get_file(&wanted.url, &wanted.what, None)?;
    let whole = answer.whole();
    let announced = whole.flatten();
    let size = wanted.size.or(announced);
    let broke_off =
        |have| ShelfError::BrokeOff { file: wanted.what.clone(), have, size: size.unwrap_or(have) };
    if whole.is_none() || (announced.is_some() && announced != size) {
        // The file differs from the listed one, or something else has answered: what is present stays.
        return Err(broke_off(0));
    }
    let Answer { response, sha256 } = answer;
    let state = state_path_of(&part.target);
    disk::remove(&state).map_err(ShelfError::io(&state))?;
    part.file.set_len(0).map_err(ShelfError::io(&part.path))?;
    let free = hub.tuning.free_in(part.path.parent().unwrap_or(Path::new(".")));
    if let (Some(needed), Some(free)) = (size, free)
        && free < needed
    {
        return Err(ShelfError::NoRoom { path: wanted.target.clone(), needed, free: Some(free) });
    }
    let body = response.into_body().into_reader();
    let have = match size {
        Some(_) => copy(part, size, watch, body)?,
        None => copy_within(free.unwrap_or(u64::MAX) / FREE_PART, wanted, part, watch, body)?,
    };
    let Some(have) = have else { return Err(broke_off(0)) };
    match size.is_none_or(|size| size == have) {
        true => Ok((have, wanted.sha256.clone().or(sha256))),
        false => Err(broke_off(have)),
    }
}

/// Copies a file of unknown size; beyond `bytes_max` it is abandoned and its space is freed.
fn copy_within(
    bytes_max: u64,
    wanted: &Wanted,
    part: &Part,
    watch: Watch<'_>,
    bytes: impl Read,
) -> Result<Option<u64>, ShelfError> {
    let have = copy(part, None, watch, bytes.take(bytes_max.saturating_add(1)))?;
    if have.is_some_and(|have| have > bytes_max) {
        part.file.set_len(0).map_err(ShelfError::io(&part.path))?;
        return Err(ShelfError::TooLong { file: wanted.what.clone(), bytes_max });
    }
    Ok(have)
}

/// Writes bytes to the part until they end or exceed `size`; returns how many there were, or `None` if the
/// connection broke and it is unknown whether that was all.
fn copy(
    part: &Part,
    size: Option<u64>,
    watch: Watch<'_>,
    mut bytes: impl Read,
) -> Result<Option<u64>, ShelfError> {
    let mut buffer = vec![0; 128 << 10];
    let mut have = 0;
    loop {
        watch.check()?;
        let count = match bytes.read(&mut buffer) {
            Ok(0) => return Ok(Some(have)),
            Ok(count) => count as u64,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => return Ok(size.map(|_| have)),
        };
        if size.is_some_and(|size| have + count > size) {
            return Ok(Some(have));
        }
        let needed = size.map_or(count, |size| size - have);
        disk::write_at(&part.file, &buffer[..count as usize], have).map_err(write_error(part, needed))?;
        have += count;
        watch.progress.bytes(watch.file, have, size);
    }
}

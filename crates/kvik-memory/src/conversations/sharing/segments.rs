//! Messages in the store, cut into segments, of which a turn rewrites only the last.
//!
//! The position of a cut depends only on the messages before it, so a conversation keeps its earlier segments
//! as it grows.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Sharing;
use crate::conversations::fleet::record::{Content, SAID, Segment, SegmentHash, said_name};
use crate::conversations::fleet::store::TOGETHER;
use crate::conversations::head::ConversationKey;
use crate::random::random;
use crate::shared::SharedError;

/// Maximum number of messages in a segment.
const MESSAGES: usize = 64;
/// Bytes of messages at which a segment ends.
const BYTES: u64 = 64 << 10;
/// Maximum bytes of a record; a larger segment has several.
const PART_BYTES: usize = 8 << 20;

/// An encoded segment.
struct Cut {
    hash: SegmentHash,
    messages: usize,
    bytes: Vec<u8>,
}

/// Reasons why messages could not be read from the store.
pub(super) enum Unread {
    /// The segments were replaced concurrently.
    Replaced,
    Store(SharedError),
}

impl Sharing<'_> {
    /// Writes the segments that the store does not have yet. The first `systems` messages are the system
    /// messages.
    pub(super) fn put_said(
        &self,
        key: &ConversationKey,
        (messages, systems): (&[Value], usize),
        there: &[Segment],
    ) -> Result<Vec<Segment>, SharedError> {
        let there: BTreeMap<SegmentHash, &Segment> =
            there.iter().map(|segment| (segment.hash, segment)).collect();
        let put = |cut: Cut| match there.get(&cut.hash) {
            Some(&segment) => Ok(segment.clone()),
            None => self.put_segment(key, &cut),
        };
        cut(messages, systems).into_iter().map(put).collect()
    }

    fn put_segment(&self, key: &ConversationKey, cut: &Cut) -> Result<Segment, SharedError> {
        let generation = random();
        for (part, bytes) in cut.bytes.chunks(PART_BYTES).enumerate() {
            self.store.put_bytes(SAID, &said_name(key, generation, part), 0, bytes.to_vec())?;
        }
        Ok(Segment { generation, hash: cut.hash, messages: cut.messages, bytes: cut.bytes.len() as u64 })
    }

    /// Messages of the store's version; segments that the local copy has too are not fetched.
    pub(super) fn fetch_said(&self, key: &ConversationKey, content: &Content) -> Result<Vec<Value>, Unread> {
        let mut here = self.here(key);
        let missing: Vec<&Segment> =
            content.segments.iter().filter(|segment| !here.contains_key(&segment.hash)).collect();
        for some in missing.chunks(TOGETHER) {
            let fetched = self.store.ask_together(some, |segment| self.fetch_segment(key, segment));
            for (segment, bytes) in some.iter().zip(fetched) {
                here.insert(segment.hash, bytes.map_err(Unread::Store)?.ok_or(Unread::Replaced)?);
            }
        }
        let mut messages = Vec::new();
        for segment in &content.segments {
            let bytes = here.get(&segment.hash).map_or(&[][..], Vec::as_slice);
            messages.extend(read(bytes, segment.messages)?);
        }
        let head = &content.head;
        if messages.len() != head.messages || head.systems > head.messages {
            return Err(Unread::Store(unreadable("its messages are not those that its head counts")));
        }
        Ok(messages)
    }

    /// Segments of the local copy.
    fn here(&self, key: &ConversationKey) -> BTreeMap<SegmentHash, Vec<u8>> {
        let systems = self.shelf.heads().bases.get(key).map(|base| base.head.systems);
        let Some(systems) = systems else { return BTreeMap::new() };
        let said = self.shelf.said(key).unwrap_or_default();
        let cuts = if systems <= said.len() { cut(&said, systems) } else { Vec::new() };
        cuts.into_iter().map(|cut| (cut.hash, cut.bytes)).collect()
    }

    /// Bytes of a segment; `None` if it was replaced.
    fn fetch_segment(
        &self,
        key: &ConversationKey,
        segment: &Segment,
    ) -> Result<Option<Vec<u8>>, SharedError> {
        let mut bytes = Vec::new();
        for part in 0..parts(segment) {
            let name = said_name(key, segment.generation, part);
            let Some(found) = self.store.get_bytes(SAID, name, PART_BYTES as u64)? else { return Ok(None) };
            bytes.extend(found);
            if bytes.len() as u64 > segment.bytes {
                break;
            }
        }
        match SegmentHash::of(&bytes) == segment.hash {
            true => Ok(Some(bytes)),
            false => Err(unreadable("a segment is not the one that its head names")),
        }
    }

    /// Deletes segments that no head names any more.
    pub(super) fn sweep(&self, key: &ConversationKey, segments: &[Segment]) -> Result<(), SharedError> {
        for segment in segments {
            for part in 0..parts(segment) {
                self.store.delete(SAID, said_name(key, segment.generation, part))?;
            }
        }
        Ok(())
    }
}

fn parts(segment: &Segment) -> usize {
    usize::try_from(segment.bytes.div_ceil(PART_BYTES as u64)).unwrap_or(usize::MAX)
}

fn unreadable(why: &str) -> SharedError {
    SharedError::Failed(why.to_owned())
}

fn read(bytes: &[u8], count: usize) -> Result<Vec<Value>, Unread> {
    let read: Result<Vec<Value>, _> = serde_json::from_slice(bytes);
    let messages = read.map_err(|error| Unread::Store(unreadable(&error.to_string())))?;
    match messages.len() == count {
        true => Ok(messages),
        false => Err(Unread::Store(unreadable("a segment has other messages than its head says"))),
    }
}

/// Cuts messages into segments: one for the system messages, which are replaced together, and more for the
/// others.
fn cut(messages: &[Value], systems: usize) -> Vec<Cut> {
    let (own, said) = messages.split_at(systems);
    let mut cuts: Vec<Cut> =
        (!own.is_empty()).then(|| segment(own.iter().map(Value::to_string).collect())).into_iter().collect();
    let (mut texts, mut bytes) = (Vec::new(), 0);
    for message in said {
        let text = message.to_string();
        bytes += text.len() as u64;
        texts.push(text);
        if texts.len() == MESSAGES || bytes >= BYTES {
            cuts.push(segment(std::mem::take(&mut texts)));
            bytes = 0;
        }
    }
    if !texts.is_empty() {
        cuts.push(segment(texts));
    }
    cuts
}

fn segment(texts: Vec<String>) -> Cut {
    let bytes = format!("[{}]", texts.join(",")).into_bytes();
    Cut { hash: SegmentHash::of(&bytes), messages: texts.len(), bytes }
}

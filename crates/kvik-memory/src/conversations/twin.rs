//! A reference model for random operations: all messages by tenant and name. Each function does an operation on both
//! the store and the model, and compares their results.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::context::leading_systems;
use serde_json::{Value, json};

use super::{ConversationTurn, Conversations, Held};

pub(super) const TENANTS: [&str; 2] = ["a", "b"];
pub(super) const NAMES: [&str; 3] = ["x", "y", "z"];

/// Indexes of a tenant and a name.
pub(super) type Place = (usize, usize);
pub(super) type Twin = BTreeMap<Place, Vec<Value>>;

pub(super) fn said(role: &str, text: &str) -> Value {
    json!({"role": role, "content": text})
}

/// Messages that differ from those of every other step.
pub(super) fn new_messages(step: usize, systems: usize, others: usize) -> Vec<Value> {
    let own = (0..systems).map(|i| said("system", &format!("rule {step} {i}")));
    own.chain((0..others).map(|i| said("user", &format!("{step} {i}")))).collect()
}

/// Messages of a conversation after a turn: new system messages replace the old ones.
fn behind(known: &[Value], new: &[Value]) -> Vec<Value> {
    let own = leading_systems(new);
    let kept = if own > 0 { &known[leading_systems(known)..] } else { known };
    [&new[..own], kept, &new[own..]].concat()
}

/// Appends messages to a held conversation.
pub(super) fn append(held: &mut Held, twin: &mut Twin, place: Place, new: &[Value]) {
    held.append(new).unwrap();
    let known = twin.get(&place).cloned().unwrap_or_default();
    twin.insert(place, behind(&known, new));
}

/// Runs a turn.
pub(super) fn turn(store: &Arc<Conversations>, twin: &mut Twin, place: Place, new: &[Value]) {
    let previewed = ConversationTurn::preview(store, TENANTS[place.0], NAMES[place.1], new).unwrap();
    assert_eq!(previewed, behind(&twin.get(&place).cloned().unwrap_or_default(), new));
    let mut held = store.hold_or_begin(TENANTS[place.0], NAMES[place.1]).unwrap();
    assert_eq!(held.messages().unwrap(), twin.get(&place).cloned().unwrap_or_default());
    append(&mut held, twin, place, new);
}

pub(super) fn take_back(store: &Arc<Conversations>, twin: &mut Twin, place: Place, from: usize) {
    let taken = store.hold(TENANTS[place.0], NAMES[place.1]).and_then(|mut held| held.take_back(from));
    let known = twin.get_mut(&place);
    assert_eq!(taken.is_ok(), known.as_ref().is_some_and(|said| from <= said.len()), "{taken:?}");
    if taken.is_ok() {
        known.unwrap().truncate(from);
    }
}

pub(super) fn rename(store: &Arc<Conversations>, twin: &mut Twin, place: Place, other: usize) {
    let to = (place.0, other);
    let is_free = to == place || !twin.contains_key(&to);
    let held = store.hold(TENANTS[place.0], NAMES[place.1]);
    let renamed = held.and_then(|mut held| held.rename(NAMES[other]));
    assert_eq!(renamed.is_ok(), twin.contains_key(&place) && is_free, "{renamed:?}");
    if renamed.is_ok() {
        let said = twin.remove(&place).unwrap();
        twin.insert(to, said);
    }
}

pub(super) fn delete(store: &Arc<Conversations>, twin: &mut Twin, place: Place) {
    let deleted = store.hold(TENANTS[place.0], NAMES[place.1]).and_then(Held::delete);
    assert_eq!(deleted.is_ok(), twin.remove(&place).is_some(), "{deleted:?}");
}

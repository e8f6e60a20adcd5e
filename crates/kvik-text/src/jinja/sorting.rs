//! Sorting of values whose comparison may fail or exceed the budget.

use std::cmp::Ordering;
use std::rc::Rc;

use super::limits::{Meter, Result};
use super::operators::compare;
use super::value::Value;

/// Items with their sort keys.
pub(super) type Keyed = Vec<(Value, Value)>;

/// A stable merge sort whose comparison may fail, unlike the standard library's.
pub(super) fn sorted(mut items: Keyed, reverse: bool, meter: &Rc<Meter>) -> Result<Keyed> {
    if items.len() < 2 {
        return Ok(items);
    }
    let right = items.split_off(items.len() / 2);
    let mut right = sorted(right, reverse, meter)?.into_iter().peekable();
    let mut merged = Vec::new();
    for left in sorted(items, reverse, meter)? {
        while let Some(next) = right.peek() {
            let order = compare(&next.0, &left.0, meter)?.unwrap_or(Ordering::Equal);
            if order != if reverse { Ordering::Greater } else { Ordering::Less } {
                break;
            }
            merged.extend(right.next());
        }
        merged.push(left);
    }
    merged.extend(right);
    Ok(merged)
}

//! Interleaving of the floats of several rows.

use super::WIDE;

/// Interleaves the rows of a panel with room for `width` rows: from `[rows][cols]` to `[cols][width]`.
pub(super) fn interleave(x: &[f32], width: usize, out: &mut [f32]) {
    match width {
        1 => out.copy_from_slice(x),
        2 => interleave_rows::<2>(x, out),
        4 => interleave_rows::<4>(x, out),
        _ => interleave_rows::<WIDE>(x, out),
    }
}

/// From `[rows][cols]` to `[cols][R]`; missing rows are filled with the last one.
fn interleave_rows<const R: usize>(x: &[f32], out: &mut [f32]) {
    let (out, _) = out.as_chunks_mut::<R>();
    let last = x.len() / out.len() - 1;
    let rows: [&[f32]; R] = std::array::from_fn(|r| &x[r.min(last) * out.len()..][..out.len()]);
    for (k, out) in out.iter_mut().enumerate() {
        *out = std::array::from_fn(|r| rows[r][k]);
    }
}

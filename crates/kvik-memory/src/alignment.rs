//! The sentences that two texts have in common, in order: the longest common subsequence.

use std::ops::Range;

use crate::volatile;

/// Maximum pairs of sentences that are compared; longer texts count as different between their common beginning and
/// end.
const PAIRS_MAX: usize = 1 << 22;

/// The byte ranges of the sentences that differ, in each text; one of the two may be empty.
pub fn differences(left: &str, right: &str) -> Vec<[Range<usize>; 2]> {
    let texts = [left, right].map(ranges);
    let byte = |side: usize, sentence: usize| {
        let (text, ranges) = ([left, right][side], &texts[side]);
        ranges.get(sentence).map_or(text.len(), |range: &Range<usize>| range.start)
    };
    let bytes = |side: usize, range: &Range<usize>| byte(side, range.start)..byte(side, range.end);
    unlike(&[left, right].map(sentences)).into_iter().map(|[a, b]| [bytes(0, &a), bytes(1, &b)]).collect()
}

/// Number of common sentences.
pub fn common(left: &str, right: &str) -> usize {
    let texts = [left, right].map(sentences);
    texts[0].len() - unlike(&texts).iter().map(|[left, _]| left.len()).sum::<usize>()
}

/// The sentences of a text, which together are the text.
pub fn sentences(text: &str) -> Vec<&str> {
    ranges(text).into_iter().map(|range| &text[range]).collect()
}

fn ranges(text: &str) -> Vec<Range<usize>> {
    let ends = volatile::sentences(text);
    let starts = std::iter::once(0).chain(ends.iter().copied());
    starts.zip(ends.clone()).map(|(start, end)| start..end).collect()
}

/// The ranges of sentences between the common ones, in each of two texts.
pub fn unlike(texts: &[Vec<&str>; 2]) -> Vec<[Range<usize>; 2]> {
    let [left, right] = texts;
    let shortest = left.len().min(right.len());
    let before = (0..shortest).take_while(|&i| left[i] == right[i]).count();
    let from_end = |i: &usize| left[left.len() - 1 - i] == right[right.len() - 1 - i];
    let behind = (0..shortest - before).take_while(from_end).count();
    let (a, b) = (&left[before..left.len() - behind], &right[before..right.len() - behind]);
    let mut matched = if a.len().saturating_mul(b.len()) <= PAIRS_MAX { matches(a, b) } else { Vec::new() };
    matched.push((a.len(), b.len()));
    let (mut done, mut found) = ((0, 0), Vec::new());
    for (i, j) in matched {
        if done != (i, j) {
            found.push([before + done.0..before + i, before + done.1..before + j]);
        }
        done = (i + 1, j + 1);
    }
    found
}

/// The index pairs of a longest common subsequence.
fn matches(a: &[&str], b: &[&str]) -> Vec<(usize, usize)> {
    let width = b.len() + 1;
    // Length of the longest common subsequence from these indexes on.
    let mut common = vec![0_u32; (a.len() + 1) * width];
    for i in (0..a.len()).rev() {
        for j in (0..b.len()).rev() {
            common[i * width + j] = match a[i] == b[j] {
                true => common[(i + 1) * width + j + 1] + 1,
                false => common[(i + 1) * width + j].max(common[i * width + j + 1]),
            };
        }
    }
    let (mut i, mut j, mut matched) = (0, 0, Vec::new());
    while i < a.len() && j < b.len() {
        if a[i] == b[j] {
            matched.push((i, j));
            (i, j) = (i + 1, j + 1);
        } else if common[(i + 1) * width + j] >= common[i * width + j + 1] {
            i += 1;
        } else {
            j += 1;
        }
    }
    matched
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differing_sentences_are_told_apart_by_what_is_common() {
        let check = |left: &str, right: &str, expect: &[(&str, &str)]| {
            let found = differences(left, right);
            let texts: Vec<(&str, &str)> =
                found.iter().map(|[a, b]| (&left[a.clone()], &right[b.clone()])).collect();
            assert_eq!(texts, expect, "{left:?} {right:?}");
        };
        check("A. B. C.", "A. B. C.", &[]);
        check("A. B. C.", "A. X. C.", &[("B. ", "X. ")]);
        check("A. B. C. D.", "A. C. D.", &[("B. ", "")]);
        check("A. C.", "A. B. C.", &[("", "B. ")]);
        check(
            "in /a\nrules\nsee /a/x\nend",
            "in /b\nrules\nsee /b/y\nsee /b/z\nend",
            &[("in /a\n", "in /b\n"), ("see /a/x\n", "see /b/y\nsee /b/z\n")],
        );
        check("", "A.", &[("", "A.")]);
        assert_eq!((common("A. B. C.", "A. X. C."), common("A.", "B.")), (2, 0));
    }
}

//! Tasks of lines with numbers: chains of variables, sums, constants of a program.

use super::words::{ANIMALS, OBJECTS, PLACES};
use super::{Filler, scatter};
use crate::eval::draws::Draws;
use crate::eval::score::Expected;
use crate::eval::written::WrittenCase;

/// Names in the chain of assignments of a value.
const HOPS: usize = 4;

/// A chain of variable assignments between the sentences of a text, and a second chain as a distractor.
pub(super) fn variables(draws: &mut Draws, filler: &mut Filler<'_, '_>, _: usize) -> WrittenCase {
    let sentences = filler.sentences(draws);
    let values = draws.numbers(5, 2);
    let mut letters: Vec<char> = ('A'..='Z').collect();
    draws.shuffle(&mut letters);
    let chain = |names: &[char], value: &str| {
        let first = format!("VAR {} = {value}.", names[0]);
        let rest = names.windows(2).map(|pair| format!("VAR {} = VAR {}.", pair[1], pair[0]));
        [first].into_iter().chain(rest).collect::<Vec<_>>()
    };
    let asked = chain(&letters[..HOPS], &values[0]);
    let other = chain(&letters[HOPS..2 * HOPS], &values[1]);
    let text = scatter(draws, sentences, asked);
    let text = scatter(draws, text, other);
    let question = format!("\nWhat is the value of VAR {}?", letters[HOPS - 1]);
    let text = format!("Remember the values of the variables.\n{}{question}", text.join(" "));
    WrittenCase::single(text, &question, Expected::Contains(vec![values[0].clone()]), 40)
        .lead(format!("The value of VAR {} is", letters[HOPS - 1]))
}

/// Lines of sums, one of which is asked: it can be looked up, or computed.
pub(super) fn arithmetic(draws: &mut Draws, filler: &mut Filler<'_, '_>, _: usize) -> WrittenCase {
    let mut line = || {
        let (a, b) = (draws.number(3), draws.number(3));
        let line = (a, b, a + b);
        (line, format!("\n{a} + {b} = {}", a + b))
    };
    let (asked, _) = line();
    let mut lines = filler.pieces(line);
    lines.retain(|line| line.2 != asked.2);
    lines.insert(draws.below(lines.len() + 1), asked);
    let lines: Vec<String> = lines.into_iter().map(|(a, b, sum)| format!("{a} + {b} = {sum}")).collect();
    let (a, b, sum) = asked;
    let question = format!("\nWhat is {a} + {b}?");
    let text = format!("These sums are right.\n{}{question}", lines.join("\n"));
    WrittenCase::single(text, &question, Expected::Words(vec![sum.to_string()]), 40)
        .lead(format!("{a} + {b} ="))
}

/// A program of constants and functions, and the question for one constant.
pub(super) fn code(draws: &mut Draws, filler: &mut Filler<'_, '_>, _: usize) -> WrittenCase {
    let name = |draws: &mut Draws| {
        let words = [draws.pick(&OBJECTS), draws.pick(&ANIMALS), draws.pick(&PLACES)];
        words.map(|word| word.to_uppercase()).join("_")
    };
    let (asked, value) = (name(draws), draws.number(5));
    let mut lines = filler.pieces(|| {
        let (constant, number) = (name(draws), draws.number(5));
        let line = match draws.below(3) {
            0 => format!("def {}(x):\n    return x + {constant}", constant.to_lowercase()),
            _ => format!("{constant} = {number}"),
        };
        (line.clone(), format!("\n{line}"))
    });
    lines.retain(|line| !line.contains(&asked) && !line.contains(&value.to_string()));
    lines.insert(draws.below(lines.len() + 1), format!("{asked} = {value}"));
    let question = format!("\nWhat is the value of {asked}?");
    let text = format!("Read this program.\n{}\n{question}", lines.join("\n"));
    WrittenCase::single(text, &question, Expected::Words(vec![value.to_string()]), 40)
        .lead(format!("{asked} ="))
}

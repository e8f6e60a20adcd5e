//! Cases made up from a seed, for any model, at any length.
//!
//! A generator writes words; how long they are is asked of the model's tokenizer, so that a prompt has about the
//! length that was wanted.

mod counting;
mod lines;
mod needles;
mod recall;
#[cfg(test)]
mod tests;
mod triage;
mod words;

use super::draws::Draws;
use super::encode::Encoder;
use super::written::WrittenCase;

/// A generated task: its name, what it asks, and what writes a case.
pub(crate) struct GeneratedTask {
    /// Its name on the command line.
    pub(crate) name: &'static str,
    /// What it asks, in a few words.
    pub(crate) about: &'static str,
    /// Whether its prompts are as long as asked for; otherwise they have a length of their own.
    sized: bool,
    write: fn(&mut Draws, &mut Filler<'_, '_>, usize) -> WrittenCase,
}

/// All of them.
pub(crate) const TASKS: [GeneratedTask; 10] = [
    GeneratedTask {
        name: "recall",
        about: "a fact told in a conversation, at growing distance",
        sized: true,
        write: recall::recall,
    },
    GeneratedTask {
        name: "passkey",
        about: "a number hidden in a text, at all depths",
        sized: true,
        write: needles::passkey,
    },
    GeneratedTask {
        name: "needles",
        about: "one of six codes hidden in a text",
        sized: true,
        write: needles::needles,
    },
    GeneratedTask {
        name: "variables",
        about: "a value handed on through four names",
        sized: true,
        write: lines::variables,
    },
    GeneratedTask {
        name: "counting",
        about: "how often something happens in a text",
        sized: true,
        write: counting::counting,
    },
    GeneratedTask {
        name: "copying",
        about: "a list of words, repeated",
        sized: true,
        write: counting::copying,
    },
    GeneratedTask {
        name: "arithmetic",
        about: "the result on one of many lines of sums",
        sized: true,
        write: lines::arithmetic,
    },
    GeneratedTask { name: "code", about: "a constant defined in a program", sized: true, write: lines::code },
    GeneratedTask {
        name: "summary",
        about: "a conversation as a line of facts",
        sized: true,
        write: recall::summary,
    },
    GeneratedTask {
        name: "triage",
        about: "a notification sorted by a long system prompt",
        sized: false,
        write: triage::triage,
    },
];

impl GeneratedTask {
    /// Case `number` of a seed, of about `length` tokens.
    pub(crate) fn case(&self, encoder: &Encoder<'_>, seed: u64, number: usize, length: usize) -> WrittenCase {
        let draws = Draws::new(seed, &format!("{} {number}", self.name));
        let write = |tokens| (self.write)(&mut draws.clone(), &mut Filler { encoder, tokens }, number);
        let count = |case: &WrittenCase| encoder.encode(case).map_or(0, |split| split.len());
        let bare = write(0);
        if !self.sized {
            return bare;
        }
        // What the template adds to each piece of filler shows in a first attempt.
        let wanted = length.saturating_sub(count(&bare));
        let filled = count(&write(wanted)).saturating_sub(count(&bare));
        write(wanted * wanted / filled.max(1))
    }
}

/// Text that fills a case up to its length.
pub(crate) struct Filler<'a, 'b> {
    encoder: &'a Encoder<'b>,
    /// Tokens to fill.
    tokens: usize,
}

impl Filler<'_, '_> {
    /// Pieces made by `write`, each with the text that counts, until the length is reached.
    fn pieces<T>(&mut self, mut write: impl FnMut() -> (T, String)) -> Vec<T> {
        let (mut pieces, mut tokens) = (Vec::new(), 0);
        loop {
            let (piece, text) = write();
            tokens += self.encoder.count(&text);
            if tokens > self.tokens {
                return pieces;
            }
            pieces.push(piece);
        }
    }

    /// Sentences that say nothing of use.
    fn sentences(&mut self, draws: &mut Draws) -> Vec<String> {
        self.pieces(|| {
            let sentence = words::filler(draws);
            (sentence.clone(), format!(" {sentence}"))
        })
    }
}

/// Puts `needles` between `sentences`, in their order, at random places.
fn scatter(draws: &mut Draws, mut sentences: Vec<String>, needles: Vec<String>) -> Vec<String> {
    let mut places: Vec<usize> = needles.iter().map(|_| draws.below(sentences.len() + 1)).collect();
    places.sort_unstable();
    for (place, needle) in places.into_iter().zip(needles).rev() {
        sentences.insert(place, needle);
    }
    sentences
}

//! Answers as they were generated: where a prompt repeats one, its tokens are those that the model chose.
//!
//! ```text
//! request ──► GeneratedAnswers::as_generated ──► the prompt's tokens, and the place behind which its answer follows
//!               bytes     tokens as bytes, control tokens apart
//!               book      which answers followed which bytes, by owner
//!               splice    their tokens in the place of the tokenizer's, up to where the texts part
//! answer  ──► AnswerListener ──► GeneratedAnswers::remember ──► book, and the log beside the blocks on disk
//! ```
//!
//! A client sends an answer back as text. A tokenizer chooses one division of a text into tokens, and a model that samples
//! often chose another one: reuse of the cache would end there, although nothing of the text has changed. See
//! `docs/decisions/2026-11-29-answers-as-generated.md`.

mod book;
mod bytes;
mod listener;
mod memory;
mod splice;

pub(crate) use listener::AnswerListener;
pub(crate) use memory::GeneratedAnswers;

//! Layers that keep a state of constant size instead of keys and values of every position.

mod arena;

pub use arena::StateArena;

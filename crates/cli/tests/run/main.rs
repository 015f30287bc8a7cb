//! `dunlin run`, `tokenize` and `detokenize` as a user runs them: a tiny random model for what needs
//! no sense, the default model and its golden files where this machine has it.

mod bad_input;
mod batch;
mod real;
mod support;
mod terminal;
mod tiny;

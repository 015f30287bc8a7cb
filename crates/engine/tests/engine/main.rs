//! The engine over a toy backend, whose logits depend on every KV slot that is read.

mod flash;
mod record;
mod requests;
mod save;
mod sessions;
mod speculate;
mod support;
mod thread;

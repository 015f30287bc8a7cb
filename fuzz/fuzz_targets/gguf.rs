//! Bytes as a GGUF model.
#![no_main]
#![allow(dead_code, reason = "each target runs one of the entry functions")]

#[path = "../../crates/checkpoint/tests/common/entry.rs"]
mod entry;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    entry::gguf(data);
});

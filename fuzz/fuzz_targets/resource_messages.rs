//! `cargo +nightly fuzz run resource_messages`: see `meseta_fuzz::parsers`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| meseta_fuzz::parsers::resource_messages(data));

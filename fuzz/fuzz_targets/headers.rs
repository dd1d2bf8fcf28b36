//! `cargo +nightly fuzz run headers`: see `meseta_fuzz::parsers`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| meseta_fuzz::parsers::headers(data));

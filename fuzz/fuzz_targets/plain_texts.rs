//! `cargo +nightly fuzz run plain_texts`: see `meseta_fuzz::parsers`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| meseta_fuzz::parsers::plain_texts(data));

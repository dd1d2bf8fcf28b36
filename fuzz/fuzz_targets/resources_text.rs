//! `cargo +nightly fuzz run resources_text`: see `meseta_fuzz::parsers`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| meseta_fuzz::parsers::resources_text(data));

//! libFuzzer on `meseta_fuzz::parsers::headers`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| meseta_fuzz::parsers::headers(data));

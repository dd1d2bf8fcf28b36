//! libFuzzer on `meseta_fuzz::parsers::plain_texts`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| meseta_fuzz::parsers::plain_texts(data));

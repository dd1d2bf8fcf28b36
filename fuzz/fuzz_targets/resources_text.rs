//! libFuzzer on `meseta_fuzz::parsers::resources_text`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| meseta_fuzz::parsers::resources_text(data));

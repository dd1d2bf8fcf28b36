//! libFuzzer on `meseta_fuzz::parsers::resource_messages`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| meseta_fuzz::parsers::resource_messages(data));

//! libFuzzer on `meseta_fuzz::parsers::record_io`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| meseta_fuzz::parsers::record_io(data));

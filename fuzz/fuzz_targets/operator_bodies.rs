//! libFuzzer on `meseta_fuzz::parsers::operator_bodies`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| meseta_fuzz::parsers::operator_bodies(data));

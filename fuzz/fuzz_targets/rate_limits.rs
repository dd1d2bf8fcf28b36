//! libFuzzer on `meseta_fuzz::doors::rate_limits`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| meseta_fuzz::doors::rate_limits(data));

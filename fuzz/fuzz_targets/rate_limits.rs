//! libFuzzer on `meseta_fuzz::access_inputs::rate_limits`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| meseta_fuzz::access_inputs::rate_limits(data));

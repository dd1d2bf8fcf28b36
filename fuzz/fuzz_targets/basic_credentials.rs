//! libFuzzer on `meseta_fuzz::access_inputs::basic_credentials`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| meseta_fuzz::access_inputs::basic_credentials(data));

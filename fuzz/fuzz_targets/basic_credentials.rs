//! libFuzzer on `meseta_fuzz::doors::basic_credentials`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| meseta_fuzz::doors::basic_credentials(data));

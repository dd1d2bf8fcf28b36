//! libFuzzer on `meseta_fuzz::master_core::master_core`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| meseta_fuzz::master_core::master_core(data));

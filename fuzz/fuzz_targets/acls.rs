//! libFuzzer on `meseta_fuzz::access_inputs::acls`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| meseta_fuzz::access_inputs::acls(data));

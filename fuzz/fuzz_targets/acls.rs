//! libFuzzer on `meseta_fuzz::doors::acls`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| meseta_fuzz::doors::acls(data));

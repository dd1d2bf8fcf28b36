//! libFuzzer on `meseta_fuzz::specs::module_specs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| meseta_fuzz::specs::module_specs(data));

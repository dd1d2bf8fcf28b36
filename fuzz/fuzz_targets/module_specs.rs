//! `cargo +nightly fuzz run module_specs`: see `meseta_fuzz::specs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| meseta_fuzz::specs::module_specs(data));

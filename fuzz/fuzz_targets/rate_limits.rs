//! `cargo +nightly fuzz run rate_limits`: see `meseta_fuzz::doors`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| meseta_fuzz::doors::rate_limits(data));

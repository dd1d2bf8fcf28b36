//! `cargo +nightly fuzz run basic_credentials`: see `meseta_fuzz::doors`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| meseta_fuzz::doors::basic_credentials(data));

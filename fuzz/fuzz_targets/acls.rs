//! `cargo +nightly fuzz run acls`: see `meseta_fuzz::doors`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| meseta_fuzz::doors::acls(data));

//! `cargo +nightly fuzz run operator_bodies`: see `meseta_fuzz::parsers`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| meseta_fuzz::parsers::operator_bodies(data));

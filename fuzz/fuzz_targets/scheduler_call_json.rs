//! `cargo +nightly fuzz run scheduler_call_json`: see `meseta_fuzz::parsers`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| meseta_fuzz::parsers::scheduler_call_json(data));

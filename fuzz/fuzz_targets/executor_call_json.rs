//! `cargo +nightly fuzz run executor_call_json`: see `meseta_fuzz::parsers`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| meseta_fuzz::parsers::executor_call_json(data));

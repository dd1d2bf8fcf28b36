//! libFuzzer on `meseta_fuzz::parsers::scheduler_call_json`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| meseta_fuzz::parsers::scheduler_call_json(data));

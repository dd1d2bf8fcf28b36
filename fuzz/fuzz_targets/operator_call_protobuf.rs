//! `cargo +nightly fuzz run operator_call_protobuf`: see `meseta_fuzz::parsers`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| meseta_fuzz::parsers::operator_call_protobuf(data));

//! libFuzzer on `meseta_fuzz::parsers::operator_call_protobuf`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| meseta_fuzz::parsers::operator_call_protobuf(data));

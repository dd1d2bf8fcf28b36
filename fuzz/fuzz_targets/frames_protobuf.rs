//! libFuzzer on `meseta_fuzz::parsers::frames_protobuf`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| meseta_fuzz::parsers::frames_protobuf(data));

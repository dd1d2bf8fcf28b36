//! `cargo +nightly fuzz run frames_protobuf`: see `meseta_fuzz::parsers`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| meseta_fuzz::parsers::frames_protobuf(data));

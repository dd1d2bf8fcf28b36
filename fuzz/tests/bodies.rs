//! Each fuzz target's body on its seeds, on variations of them, and on its corpus: always the same, and a bounded number.
//!
//! libFuzzer finds more (see the README); its findings are seeds.

use std::collections::BTreeSet;
use std::path::Path;

use meseta_fuzz::{ALL, mutate};

/// The seed of the variations; changing it draws others.
const SEED: u64 = 20_250_801;

/// A test for each target, with the number of variations.
macro_rules! targets {
    ($($name:ident: $count:expr,)*) => {
        $(#[test]
        fn $name() {
            let target = ALL.iter().find(|target| target.name == stringify!($name));
            let target = target.expect("a target of this name");
            let seeds = (target.seeds)();
            assert!(!seeds.is_empty(), "nothing that means something is tried");
            mutate::run(target.body, &seeds, $count, SEED);
            let kept = meseta_fuzz::corpus::read(target.name).expect("the corpus");
            kept.iter().for_each(|input| (target.body)(input));
        })*

        const TESTED: &[&str] = &[$(stringify!($name)),*];
    };
}

targets! {
    scheduler_call_json: 10_000,
    scheduler_call_protobuf: 10_000,
    executor_call_json: 10_000,
    executor_call_protobuf: 10_000,
    operator_call_json: 10_000,
    operator_call_protobuf: 10_000,
    frames_protobuf: 10_000,
    operator_bodies: 10_000,
    resource_messages: 10_000,
    resources_text: 10_000,
    plain_texts: 10_000,
    record_io: 10_000,
    headers: 10_000,
    acls: 10_000,
    basic_credentials: 10_000,
    rate_limits: 10_000,
    module_specs: 10_000,
    master_core: 1_000,
}

#[test]
fn every_target_has_body_and_test() {
    let tested: BTreeSet<_> = TESTED.iter().map(|name| (*name).to_owned()).collect();
    let bodies: BTreeSet<_> = ALL.iter().map(|target| target.name.to_owned()).collect();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz_targets");
    let files = std::fs::read_dir(folder).expect("the targets");
    let files: BTreeSet<_> = files
        .map(|file| file.expect("readable").path())
        .map(|path| {
            path.file_stem()
                .expect("a name")
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    assert_eq!(tested, bodies);
    assert_eq!(tested, files);
}

/// The variations must be able to find a fault three changes away from the seed.
#[test]
#[should_panic(expected = "found")]
fn mutation_finds_fault_near_seed() {
    fn body(data: &[u8]) {
        let text = String::from_utf8_lossy(data);
        assert!(
            !(text.contains("}}") && text.contains("\"\"") && text.ends_with('9')),
            "found"
        );
    }
    let seeds = [&br#"{"a":{"b":"c"}}"#[..], br#"{"n":19}"#].map(<[u8]>::to_vec);
    mutate::run(body, &seeds, 20_000, SEED);
}

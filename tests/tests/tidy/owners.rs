//! Each type has one owner: its inherent methods stand in few files.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use regex::Regex;

use super::{assert_none, files, is_test_file, read, root};

/// The number of files with inherent methods of one type.
const FILES_MAX: usize = 3;

/// Types in more files, by crate. A change may lower a number, never raise it.
const EXCEPTIONS: &[(&str, &str, usize)] = &[
    ("agent", "Containerizer", 11),
    // Four types with this name, for four verbs.
    ("cli", "Options", 4),
    ("isolators", "Containers", 9),
    ("jobs", "State", 11),
    // Two types with this name: in the core and in a view.
    ("master", "Agent", 4),
    ("master", "Allocator", 15),
    ("master", "MasterCore", 39),
    ("resources", "Resources", 7),
];

/// The type of an `impl` block without a trait.
static INHERENT: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"^impl(?:<[^{]*?>)? ([A-Za-z_:]+)(?:<[^{]*>)? \{").expect("a pattern")
});

/// Returns the types with inherent methods in a source file, without the types of its tests.
fn types_with_methods(text: &str) -> BTreeSet<String> {
    let lines = text.lines().take_while(|line| *line != "#[cfg(test)]");
    let found = lines
        .filter(|line| !line.contains(" for "))
        .filter_map(|line| {
            let path = INHERENT.captures(line)?.get(1)?.as_str();
            path.rsplit("::").next().map(str::to_owned)
        });
    found.collect()
}

#[test]
fn methods_of_a_type_stay_together() {
    let mut spread = BTreeMap::<(String, String), usize>::new();
    for path in files("rs") {
        let place = path.strip_prefix(root()).expect("ours");
        if is_test_file(place) {
            continue;
        }
        let folder = place.iter().next().expect("a folder");
        for name in types_with_methods(&read(&path)) {
            let of_crate = folder.to_string_lossy().into_owned();
            *spread.entry((of_crate, name)).or_default() += 1;
        }
    }
    let mut wrong = Vec::new();
    for ((of_crate, name), count) in spread {
        let exception = EXCEPTIONS
            .iter()
            .find(|(crate_of, of, _)| *crate_of == of_crate && *of == name);
        let most = exception.map_or(FILES_MAX, |(_, _, most)| *most);
        if count > most {
            wrong.push(format!(
                "{of_crate}: {name} has methods in {count} files, at most {most}"
            ));
        }
    }
    assert_none("methods in too many files", wrong);
}

#[test]
fn inherent_methods_are_found() {
    let text = "impl Owner {\nimpl<'a> crate::core::Other<'a> {\nimpl Clone for Owner {\n#[cfg(test)]\nimpl Test {\n";
    let found: Vec<_> = types_with_methods(text).into_iter().collect();
    assert_eq!(found, ["Other", "Owner"]);
}

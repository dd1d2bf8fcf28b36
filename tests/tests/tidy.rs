//! The repository's own checks: layering, dependencies, first lines, lengths, links, leftovers.

#[path = "tidy/alerts.rs"]
mod alerts;
#[path = "tidy/dependencies.rs"]
mod dependencies;
#[path = "tidy/english.rs"]
mod english;
#[path = "tidy/mutants.rs"]
mod mutants;
#[path = "tidy/owners.rs"]
mod owners;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Lines of a file of tests; beyond this it has more than one subject.
const TEST_FILE_LINES_MAX: usize = 700;
/// Lines of a function, including its signature and closing brace.
const FUNCTION_LINES_MAX: usize = 100;

/// The permitted dependencies among our crates: down only.
const LAYERS: &[(&str, &[&str])] = &[
    ("meseta-resources", &[]),
    ("meseta-isolators", &["meseta-resources"]),
    ("meseta-estimators", &["meseta-resources"]),
    ("meseta-images", &[]),
    ("meseta-allocator", &["meseta-resources"]),
    ("meseta-access", &[]),
    ("meseta-proto", &["meseta-resources"]),
    (
        "meseta-daemon",
        &["meseta-access", "meseta-proto", "meseta-resources"],
    ),
    (
        "meseta-etcd",
        &[
            "meseta-access",
            "meseta-daemon",
            "meseta-proto",
            "meseta-resources",
        ],
    ),
    (
        "meseta-jobs",
        &[
            "meseta-access",
            "meseta-daemon",
            "meseta-etcd",
            "meseta-proto",
            "meseta-resources",
        ],
    ),
    (
        "meseta-master",
        &[
            "meseta-access",
            "meseta-allocator",
            "meseta-daemon",
            "meseta-etcd",
            "meseta-proto",
            "meseta-resources",
        ],
    ),
    (
        "meseta-agent",
        &[
            "meseta-access",
            "meseta-daemon",
            "meseta-estimators",
            "meseta-isolators",
            "meseta-proto",
            "meseta-resources",
        ],
    ),
    (
        "meseta",
        &[
            "meseta-access",
            "meseta-agent",
            "meseta-daemon",
            "meseta-estimators",
            "meseta-images",
            "meseta-jobs",
            "meseta-master",
            "meseta-proto",
            "meseta-resources",
        ],
    ),
    (
        "meseta-fuzz",
        &[
            "meseta-access",
            "meseta-estimators",
            "meseta-master",
            "meseta-daemon",
            "meseta-proto",
            "meseta-resources",
        ],
    ),
    (
        "meseta-tests",
        &[
            "meseta-access",
            "meseta-allocator",
            "meseta-isolators",
            "meseta-proto",
            "meseta-resources",
        ],
    ),
    (
        "meseta-simulation",
        &[
            "meseta-access",
            "meseta-agent",
            "meseta-allocator",
            "meseta-daemon",
            "meseta-estimators",
            "meseta-isolators",
            "meseta-jobs",
            "meseta-master",
            "meseta-proto",
            "meseta-resources",
        ],
    ),
];

/// Crates that decide and never act: they use no kernel, network or clock.
const PURE: &[&str] = &[
    "meseta-resources",
    "meseta-access",
    "meseta-estimators",
    "meseta-allocator",
];
const IMPURE_DEPENDENCIES: &[&str] = &[
    "tokio",
    "hyper",
    "axum",
    "tonic",
    "prost",
    "http",
    "nix",
    "libc",
    "rustix",
    "procfs",
    "caps",
    "redb",
    "tracing",
    "rand",
    "fastrand",
    "uuid",
    "meseta-daemon",
    "meseta-proto",
];
/// Crates that `isolators` must not use, because it only handles the kernel.
const NOT_IN_ISOLATORS: &[&str] = &["tokio", "hyper", "axum", "tonic", "prost", "http", "redb"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tests/ lies in the repository")
        .into()
}

/// Returns files with this extension under version control, or about to be.
fn files(ending: &str) -> Vec<PathBuf> {
    let listed = Command::new("git")
        .args([
            "ls-files",
            "--cached",
            "--others",
            "--exclude-standard",
            "--",
            &format!("*.{ending}"),
        ])
        .current_dir(root())
        .output()
        .expect("git runs");
    assert!(
        listed.status.success(),
        "git ls-files: {}",
        String::from_utf8_lossy(&listed.stderr)
    );
    let text = String::from_utf8(listed.stdout).expect("paths are UTF-8");
    let files: Vec<_> = text
        .lines()
        .map(|l| root().join(l))
        .filter(|p| p.is_file())
        .collect();
    assert!(
        !files.is_empty(),
        "no *.{ending} found: the check would pass on nothing"
    );
    files
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn assert_none(what: &str, found: Vec<String>) {
    assert!(found.is_empty(), "{what}:\n  {}", found.join("\n  "));
}

/// Returns direct dependencies by package, without those for tests.
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version=1", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    packages
        .iter()
        .map(|package| {
            let dependencies = package["dependencies"].as_array().expect("dependencies");
            let names = dependencies
                .iter()
                .filter(|d| d["kind"].as_str() != Some("dev"))
                .map(|d| d["name"].as_str().expect("a name").to_owned())
                .collect();
            (package["name"].as_str().expect("a name").to_owned(), names)
        })
        .collect()
}

#[test]
fn crates_depend_downwards_only() {
    let all = dependencies();
    let layers: BTreeMap<_, _> = LAYERS.iter().copied().collect();
    let known: Vec<_> = all.keys().map(String::as_str).collect();
    assert_eq!(
        known.len(),
        layers.len(),
        "a crate is missing from LAYERS: {known:?}"
    );
    let mut wrong = Vec::new();
    for (name, dependencies) in &all {
        let allowed = layers
            .get(name.as_str())
            .unwrap_or_else(|| panic!("{name} not in LAYERS"));
        for dependency in dependencies
            .iter()
            .filter(|d| layers.contains_key(d.as_str()))
        {
            if !allowed.contains(&dependency.as_str()) {
                wrong.push(format!("{name} -> {dependency}"));
            }
        }
    }
    assert_none("dependencies that do not point down", wrong);
}

#[test]
fn pure_crates_stay_pure() {
    let all = dependencies();
    let mut wrong = Vec::new();
    for (name, forbidden) in PURE
        .iter()
        .map(|name| (*name, IMPURE_DEPENDENCIES))
        .chain([("meseta-isolators", NOT_IN_ISOLATORS)])
    {
        let dependencies = all.get(name).unwrap_or_else(|| panic!("{name} is gone"));
        let found = forbidden.iter().filter(|f| dependencies.contains(**f));
        wrong.extend(found.map(|f| format!("{name} -> {f}")));
    }
    assert_none("dependencies that break a crate's purity", wrong);
}

#[test]
fn every_file_has_module_docs() {
    let silent = files("rs")
        .into_iter()
        .filter(|path| {
            let text = read(path);
            let first = text.lines().next().unwrap_or_default().to_owned();
            !(first.starts_with("//! ") && first.len() > 12)
        })
        .map(|path| path.display().to_string())
        .collect();
    assert_none("files whose first line is not `//! ...`", silent);
}

fn is_test_file(path: &Path) -> bool {
    path.components().any(|c| {
        ["tests", "benches", "examples"]
            .iter()
            .any(|t| c.as_os_str() == *t)
    }) || path.file_name().is_some_and(|n| n == "tests.rs")
}

#[test]
fn functions_fit() {
    let mut long = Vec::new();
    for path in files("rs")
        .iter()
        .filter(|p| !is_test_file(p.strip_prefix(root()).expect("ours")))
    {
        let text = read(path);
        let lines: Vec<_> = text.lines().take_while(|l| *l != "#[cfg(test)]").collect();
        long.extend(
            long_functions(&lines)
                .into_iter()
                .map(|f| format!("{}: {f}", path.display())),
        );
    }
    assert_none("too long", long);
}

#[test]
fn files_of_tests_fit() {
    let mut long = Vec::new();
    for path in files("rs")
        .iter()
        .filter(|p| is_test_file(p.strip_prefix(root()).expect("ours")))
    {
        let lines = read(path).lines().count();
        if lines > TEST_FILE_LINES_MAX {
            long.push(format!("{}: {lines} lines", path.display()));
        }
    }
    assert_none("too long", long);
}

/// Finds long functions in formatted code: from the opening line to the brace at the same indentation.
fn long_functions(lines: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let body = line.trim_start();
        let Some((before, words)) = body.split_once("fn ") else {
            continue;
        };
        let opens = before.split_whitespace().all(|word| {
            word.starts_with("pub")
                || ["async", "const", "unsafe", "extern", "\"C\""].contains(&word)
        });
        if !opens || body.ends_with('}') || body.ends_with(';') {
            continue;
        }
        let end = format!("{}}}", " ".repeat(line.len() - body.len()));
        let semicolon = lines[at..].iter().position(|l| l.ends_with(';'));
        let brace = lines[at..].iter().position(|l| l.ends_with('{'));
        if semicolon < brace && semicolon.is_some() {
            continue; // A signature without a body.
        }
        let length = lines[at..]
            .iter()
            .position(|l| **l == end)
            .map_or(0, |n| n + 1);
        if length > FUNCTION_LINES_MAX {
            found.push(format!("line {}: {length} lines: {words}", at + 1));
        }
    }
    found
}

/// Words that only we would understand, with their replacements; `docs/glossary.md` has the remaining ones.
const RETIRED_WORDS: &[(&str, &str)] = &[
    ("door", "authentication"),
    ("wish", "request"),
    ("wishes", "requests"),
    ("wished", "requested"),
    ("basket", "accept"),
    ("verdict", "decision"),
    ("doom", "termination"),
    ("shelf", "buffer pool"),
    ("stirred", "dirty"),
    ("habit", "learned profile"),
    ("habits", "learned profiles"),
    ("lent", "oversubscribed"),
    ("lends", "oversubscribes"),
    ("lending", "oversubscription"),
    ("he", "it, they"),
    ("him", "it, them"),
    ("his", "its, their"),
];
const RETIRED_PHRASES: &[(&str, &str)] = &[
    ("taken apart", "destroyed"),
    ("taking apart", "destroying"),
    ("those who look", "readers"),
    ("who may come in", "authentication"),
];

/// Returns the retired words and phrases of a line, which may be code.
fn retired(line: &str) -> Vec<String> {
    let line = line.to_lowercase();
    let words: BTreeSet<_> = line
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .collect();
    let found = RETIRED_WORDS
        .iter()
        .filter(|(word, _)| words.contains(word));
    let phrases = RETIRED_PHRASES
        .iter()
        .filter(|(words, _)| line.contains(words));
    found
        .chain(phrases)
        .map(|(word, instead)| format!("`{word}`: say {instead}"))
        .collect()
}

#[test]
fn retired_words_stay_retired() {
    let mut found = Vec::new();
    let itself = Path::new(file!()).file_name();
    for path in files("rs").iter().chain(&files("md")) {
        if path.file_name() == itself {
            continue;
        }
        for (number, line) in read(path).lines().enumerate() {
            for word in retired(line) {
                found.push(format!("{}:{}: {word}", path.display(), number + 1));
            }
        }
    }
    assert_none("retired words", found);
}

#[test]
fn a_retired_word_is_found() {
    assert_eq!(retired("/// Lends what is lent.").len(), 2);
    assert_eq!(
        retired("// It is taken apart."),
        ["`taken apart`: say destroyed"]
    );
    assert!(retired("fn what_is_lent() { the.other(); }").is_empty());
}

#[test]
fn nothing_is_left_for_later() {
    let marks = [
        "TO".to_owned() + "DO",
        "FIX".to_owned() + "ME",
        "X".repeat(3),
        "todo".to_owned() + "!(",
    ];
    let mut found = Vec::new();
    for path in files("rs")
        .iter()
        .chain(&files("md"))
        .chain(&files("proto"))
    {
        for (number, line) in read(path).lines().enumerate() {
            if marks.iter().any(|mark| line.contains(mark.as_str())) {
                found.push(format!(
                    "{}:{}: {}",
                    path.display(),
                    number + 1,
                    line.trim()
                ));
            }
        }
    }
    assert_none("unfinished", found);
}

#[test]
fn every_link_in_the_documents_resolves() {
    let mut broken = Vec::new();
    for path in files("md") {
        let text = read(&path);
        let prose: String = text.split("```").step_by(2).collect();
        for target in prose
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
        {
            let file = target.split('#').next().unwrap_or_default();
            if file.is_empty() || target.contains("://") {
                continue;
            }
            let base = path.parent().expect("a file lies in a folder");
            if !base.join(file).exists() {
                broken.push(format!("{} -> {target}", path.display()));
            }
        }
    }
    assert_none("links that lead nowhere", broken);
}

#[test]
fn every_decision_is_listed() {
    let folder = root().join("docs/decisions");
    let list = read(&folder.join("README.md"));
    let missing = files("md")
        .into_iter()
        .filter(|path| path.parent() == Some(&folder))
        .filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()))
        .filter(|name| name != "README.md" && !list.contains(&format!("({name})")))
        .collect();
    assert_none("docs/decisions/README.md does not list", missing);
}

/// A page that the summary omits is not in the book, and no search finds it there.
#[test]
fn every_page_is_in_the_book() {
    let folder = root().join("docs");
    let summary = read(&folder.join("SUMMARY.md"));
    let pages = files("md");
    let pages = pages
        .iter()
        .filter_map(|path| path.strip_prefix(&folder).ok());
    let pages = pages
        .filter_map(Path::to_str)
        .filter(|page| *page != "SUMMARY.md");
    let missing = pages.filter(|page| !summary.contains(&format!("]({page})")));
    let missing: Vec<String> = missing.map(str::to_owned).collect();
    assert_none("docs/SUMMARY.md does not list", missing);
}

#[test]
fn architecture_states_invariant_per_crate() {
    let text = read(&root().join("docs/ARCHITECTURE.md"));
    let mut missing = Vec::new();
    for (name, _) in LAYERS {
        let heading = format!("`{name}`");
        let Some(section) = text.split("\n### ").find(|s| {
            s.starts_with(&heading) || s.lines().next().is_some_and(|l| l.contains(&heading))
        }) else {
            missing.push(format!("{name}: no section"));
            continue;
        };
        if !section.contains("*Invariant*") {
            missing.push(format!("{name}: no *Invariant* line"));
        }
    }
    assert_none("docs/ARCHITECTURE.md", missing);
}

#[test]
fn length_check_detects_long_function() {
    let mut lines = vec!["    pub(crate) fn long(&self) -> u8 {"];
    lines.extend(std::iter::repeat_n(
        "        let x = 1;",
        FUNCTION_LINES_MAX,
    ));
    lines.push("    }");
    assert_eq!(long_functions(&lines).len(), 1);
    assert!(long_functions(&lines[..10]).is_empty());
}

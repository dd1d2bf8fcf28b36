//! The tables of scenarios in `tests/ledger/`: each listed name has a row, and each named test exists.
//!
//! A page contains one or more fenced lists ```` ```names ```` with one scenario a line, each followed by a table `|
//! scenario | proven by |`. The second cell names tests in backticks, `target::path::test_name`, or contains `non-goal:
//! why`, or `open: why` (at most a tenth of a page). The target is a package (its unit tests), a test target (`scenarios`,
//! `kernel`), or `package/target` where two packages have one of that name. A test that is missing, no test, or
//! `#[ignore]`d, fails here; CI proves that the tests run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The length below which a reason explains nothing.
const REASON_BYTES_MIN: usize = 15;
/// The divisor of a page's names that gives the maximum of open ones.
const OPEN_IN: usize = 10;

/// Tests of the allocator, each a transcript.
const TRANSCRIPTS: &str = "meseta-allocator/scenarios";
const TRANSCRIPTS_FOLDER: &str = "master/allocator/tests/scenarios";
/// The statements of the founding documents.
const STATEMENTS: &str = "docs/dev/seeds.md";
/// The table of faults, with their numbers.
const FAULTS: &str = "docs/faults.md";
const FAULT_NUMBERS: [std::ops::RangeInclusive<u32>; 6] =
    [1..=18, 20..=27, 30..=39, 40..=55, 60..=71, 80..=89];
/// The number of statements at the first count.
const STATEMENTS_MIN: usize = 247;

fn root() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().expect("in the repository").into()
}

/// A list of names with its table.
#[derive(Debug, Default)]
struct Suite {
    names: Vec<String>,
    rows: Vec<(String, String)>,
}

fn suites(page: &str) -> Vec<Suite> {
    let mut suites: Vec<Suite> = Vec::new();
    let mut in_list = false;
    for line in page.lines().map(str::trim) {
        match (line, in_list) {
            ("```names", _) => {
                suites.push(Suite::default());
                in_list = true;
            }
            ("```", true) => in_list = false,
            (_, true) => {
                let suite = suites.last_mut().expect("a list has begun");
                suite.names.extend((!line.is_empty()).then(|| line.into()));
            }
            _ => {
                let Some(suite) = suites.last_mut() else {
                    continue;
                };
                let cells: Vec<_> = line.trim_matches('|').split(" | ").collect();
                if let (true, [name, proof]) = (line.starts_with('|'), cells.as_slice()) {
                    suite.rows.push((name.trim().into(), proof.trim().into()));
                }
            }
        }
    }
    for suite in &mut suites {
        suite.rows.retain(|(name, _)| name != "scenario");
    }
    suites
}

/// The test targets and unit tests of the workspace: the prefix of their names, and their folders.
struct Targets(BTreeMap<String, Vec<(PathBuf, String)>>);

impl Targets {
    fn read() -> Self {
        let output = Command::new(env!("CARGO"))
            .args(["metadata", "--no-deps", "--format-version=1", "--offline"])
            .current_dir(root())
            .output()
            .expect("cargo runs");
        let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let mut found: BTreeMap<String, Vec<(PathBuf, String)>> = BTreeMap::new();
        for package in metadata["packages"].as_array().expect("packages") {
            let package_name = package["name"].as_str().expect("a name");
            for target in package["targets"].as_array().expect("targets") {
                let kind = target["kind"][0].as_str().expect("a kind");
                let path = Path::new(target["src_path"].as_str().expect("a path"));
                let dir = path.parent().expect("a file lies in a folder");
                let name = target["name"].as_str().expect("a name");
                match kind {
                    "lib" | "bin" => found
                        .entry(package_name.into())
                        .or_default()
                        .extend(tree(dir)),
                    "test" => {
                        let own = if path.ends_with("main.rs") {
                            dir.into()
                        } else {
                            dir.join(name)
                        };
                        let mut files = tree(&own);
                        files.push((
                            path.into(),
                            std::fs::read_to_string(path).expect("readable"),
                        ));
                        found.insert(format!("{package_name}/{name}"), files.clone());
                        found.entry(name.into()).or_default().extend(files);
                    }
                    _ => {}
                }
            }
        }
        Self(found)
    }

    /// Returns why this is not the name of a test, if so.
    fn refuse(&self, name: &str) -> Option<String> {
        let (target, path) = name.split_once("::")?;
        if target == TRANSCRIPTS {
            let file = format!("{TRANSCRIPTS_FOLDER}/{}.txt", path.replace("::", "/"));
            let known = root().join(&file).is_file();
            return (!known).then(|| format!("{name}: no {file}"));
        }
        let Some(files) = self.0.get(target) else {
            return Some(format!("{name}: no package or test target {target:?}"));
        };
        let mut modules: Vec<_> = path.split("::").collect();
        let function = modules.pop()?;
        let known = files.iter().any(|(file, text)| {
            // The cheap check comes first: it needs this file only.
            is_test(function, text)
                && modules
                    .iter()
                    .all(|module| is_in(module, file, text, files))
        });
        (!known).then(|| format!("{name}: no such test, or it is ignored"))
    }
}

/// Whether a module of that name is on the path to a file, in the file, or a group of trials.
fn is_in(module: &str, file: &Path, text: &str, files: &[(PathBuf, String)]) -> bool {
    file.with_extension("")
        .components()
        .any(|part| part.as_os_str() == module)
        || text.contains(&format!("mod {module} {{"))
        || files
            .iter()
            .any(|(_, text)| text.contains(&format!("\"{module}\"")))
}

/// Whether a file contains a test function of that name, or lists one.
fn is_test(function: &str, text: &str) -> bool {
    if text.contains(&format!("\"{function}\"")) || is_listed(function, text) {
        return true;
    }
    let opening = format!("fn {function}(");
    text.match_indices(&opening).any(|(at, _)| {
        let attributes = text[..at].rsplit("\n\n").next().unwrap_or_default();
        let attributes = attributes.rsplit("}\n").next().unwrap_or_default();
        attributes.contains("test]") && !attributes.contains("#[ignore")
            || attributes.contains("#[tokio::test(")
            || text.contains("proptest! {") && attributes.contains("#[test]")
    })
}

/// Whether a `scenarios!`, `tests!` or `targets!` of that file lists the function.
fn is_listed(function: &str, text: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let lists = |opening, end| {
        let lists = text.split(opening).skip(1);
        lists.filter_map(move |list: &str| list.split(end).next())
    };
    lists("scenarios! {\n", "\n}\n")
        .chain(lists("tests![", "];\n"))
        .chain(lists("targets! {\n", "\n}\n"))
        .any(|list| list.split(|c| !is_word(c)).any(|word| word == function))
}

fn tree(dir: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let text = std::fs::read_to_string(&path).expect("readable");
                found.push((path.strip_prefix(root()).unwrap_or(&path).into(), text));
            }
        }
    }
    found
}

/// Returns the errors of a page.
fn check_page(page: &str, targets: &Targets) -> Vec<String> {
    let mut wrong = Vec::new();
    let (mut total, mut open) = (0, 0);
    let suites = suites(page);
    if suites.is_empty() {
        wrong.push("no list of names".to_owned());
    }
    for suite in suites {
        total += suite.names.len();
        for name in &suite.names {
            match suite.rows.iter().filter(|(row, _)| row == name).count() {
                1 => {}
                count => wrong.push(format!("{name}: {count} rows instead of one")),
            }
        }
        for (name, proof) in &suite.rows {
            if name.starts_with("---") {
                continue;
            }
            if !suite.names.contains(name) {
                wrong.push(format!("{name}: a row that is not in the list"));
            }
            open += usize::from(proof.starts_with("open:"));
            wrong.extend(
                check_row(proof, targets)
                    .into_iter()
                    .map(|why| format!("{name}: {why}")),
            );
        }
    }
    if open * OPEN_IN > total {
        wrong.push(format!("{open} of {total} are open"));
    }
    wrong
}

fn check_row(proof: &str, targets: &Targets) -> Vec<String> {
    for mark in ["non-goal:", "open:"] {
        if let Some(reason) = proof.strip_prefix(mark) {
            let short = reason.trim().len() < REASON_BYTES_MIN;
            return short
                .then(|| format!("{mark} without a reason"))
                .into_iter()
                .collect();
        }
    }
    let quoted = proof.split('`').skip(1).step_by(2);
    let tests: Vec<_> = quoted.filter(|quoted| quoted.contains("::")).collect();
    if tests.is_empty() {
        return vec!["neither a test, nor `non-goal: why`, nor `open: why`".to_owned()];
    }
    tests
        .iter()
        .filter_map(|test| targets.refuse(test))
        .collect()
}

#[test]
fn scenario_has_test_or_reason() {
    let targets = Targets::read();
    let mut wrong = Vec::new();
    let mut pages = 0;
    for entry in std::fs::read_dir(root().join("tests/ledger")).expect("the folder is there") {
        let path = entry.expect("readable").path();
        let name = path
            .file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        if path.extension().is_none_or(|ending| ending != "md") || name == "README.md" {
            continue;
        }
        pages += 1;
        let page = std::fs::read_to_string(&path).expect("readable");
        wrong.extend(
            check_page(&page, &targets)
                .into_iter()
                .map(|why| format!("{name}: {why}")),
        );
    }
    assert!(pages > 0, "no page found: the check would pass on nothing");
    assert!(wrong.is_empty(), "tests/ledger:\n  {}", wrong.join("\n  "));
}

#[test]
fn missing_scenario_is_detected() {
    let targets = Targets::read();
    let page = |rows: &str| {
        format!("```names\nOne\nTwo\n```\n\n| scenario | proven by |\n|---|---|\n{rows}\n")
    };
    let sound = "| One | `scenario_tables::missing_scenario_is_detected` |\n\
                 | Two | non-goal: it cannot be here |";
    assert_eq!(check_page(&page(sound), &targets), Vec::<String>::new());
    for (rows, complaint) in [
        ("| One | non-goal: it cannot be here |", "Two: 0 rows"),
        ("| Three | non-goal: it cannot be here |", "not in the list"),
        ("| One | non-goal: no |", "without a reason"),
        ("| One | somehow |", "neither a test"),
        ("| One | open: comes with the next one |", "1 of 2 are open"),
        ("| One | `scenario_tables::judge` |", "no such test"),
        (
            "| One | `scenario_tables::elsewhere::missing_scenario_is_detected` |",
            "no such test",
        ),
        ("| One | `nowhere::at_all` |", "no package or test target"),
        (
            "| One | `meseta-isolators::cpu::tests::never_written` |",
            "no such test",
        ),
    ] {
        let found = check_page(&page(rows), &targets).join("\n");
        assert!(found.contains(complaint), "{rows}: {found}");
    }
    assert!(check_page("# nothing\n", &targets)[0].contains("no list of names"));
}

/// Returns the errors of the page of statements: gaps in the numbers, missing tests, unknown departures.
fn check_statements(page: &str, departures: &str, targets: &Targets) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut total = 0;
    for section in page.split("\n## ").skip(1) {
        let rows = section.lines().filter_map(|line| {
            let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
            let [number, statement, proof] = cells.as_slice() else {
                return None;
            };
            (*number != "#").then_some((*number, *statement, *proof))
        });
        for (at, (number, statement, proof)) in rows.enumerate() {
            total += 1;
            if number.get(1..) != Some((at + 1).to_string().as_str()) {
                wrong.push(format!("{number}: row {} of its table", at + 1));
            }
            if statement.is_empty() {
                wrong.push(format!("{number}: says nothing"));
            }
            let complaints = match proof.strip_prefix("departs: ") {
                Some(departure) => check_departure(departure, departures, targets),
                None => check_row(proof, targets),
            };
            wrong.extend(complaints.into_iter().map(|why| format!("{number}: {why}")));
        }
    }
    if total < STATEMENTS_MIN {
        wrong.push(format!(
            "{total} statements, where {STATEMENTS_MIN} were counted"
        ));
    }
    wrong
}

fn check_departure(departure: &str, departures: &str, targets: &Targets) -> Vec<String> {
    let (subject, tests) = match departure.split_once("; see ") {
        Some((subject, tests)) => (subject, Some(tests)),
        None => (departure, None),
    };
    let is_row = departures.contains(&format!("\n| {subject} |"));
    let flags = departures.split_once("\n## Flags of Mesos that are not here");
    let flags = flags.map_or("", |(_, section)| section);
    let is_flag = subject.starts_with("`--") && flags.contains(subject);
    let mut wrong = Vec::new();
    if !is_row && !is_flag {
        wrong.push(format!("no row {subject:?} in docs/departures.md"));
    }
    wrong.extend(
        tests
            .into_iter()
            .flat_map(|tests| check_row(tests, targets)),
    );
    wrong
}

#[test]
fn seed_statement_has_test_or_departure() {
    let read = |path: &str| std::fs::read_to_string(root().join(path)).expect("readable");
    let (page, departures) = (read(STATEMENTS), read("docs/departures.md"));
    let wrong = check_statements(&page, &departures, &Targets::read());
    assert!(wrong.is_empty(), "{STATEMENTS}:\n  {}", wrong.join("\n  "));
}

#[test]
fn untested_statement_is_detected() {
    let targets = Targets::read();
    let departures = "\n| a flag | theirs | ours | why |\n";
    for (row, complaint) in [
        (
            "| A2 | something | `scenario_tables::judge_row` |",
            "A2: row 1",
        ),
        (
            "| A1 | something | `scenario_tables::judge_row` |",
            "no such test",
        ),
        (
            "| A1 | something | `meseta-allocator/scenarios::seeds::Nothing` |",
            "no master/",
        ),
        ("| A1 | something | departs: another flag |", "no row"),
        ("| A1 | something | somehow |", "neither a test"),
    ] {
        let page =
            format!("# Page\n\n## One\n\n| # | statement | shown by |\n|---|---|---|\n{row}\n");
        let found = check_statements(&page, departures, &targets).join("\n");
        assert!(found.contains(complaint), "{row}: {found}");
    }
    let sound = "## One\n| A1 | something | departs: a flag |\n";
    let found = check_statements(&format!("\n{sound}"), departures, &targets);
    assert_eq!(found, ["1 statements, where 247 were counted"]);
}

/// Returns the errors in the table of faults: a number without a row or with two, and missing tests.
fn check_faults(page: &str, targets: &Targets) -> Vec<String> {
    let mut rows: BTreeMap<String, Vec<(&str, &str)>> = BTreeMap::new();
    for line in page.lines().filter(|line| line.starts_with("| E")) {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        if let [number, _, _, proof, rest] = cells.as_slice() {
            let row = rows.entry((*number).into()).or_default();
            row.push((proof, rest));
        }
    }
    let mut wrong = Vec::new();
    for number in FAULT_NUMBERS.into_iter().flatten() {
        let number = format!("E{number}");
        match rows.remove(&number).as_deref() {
            Some([(proof, rest)]) => {
                let complaints = check_fault(proof, rest, targets);
                wrong.extend(complaints.into_iter().map(|why| format!("{number}: {why}")));
            }
            found => wrong.push(format!("{number}: {} rows", found.map_or(0, <[_]>::len))),
        }
    }
    wrong.extend(
        rows.into_keys()
            .map(|number| format!("{number}: no such fault")),
    );
    wrong
}

fn check_fault(proof: &str, rest: &str, targets: &Targets) -> Vec<String> {
    let mut wrong = Vec::new();
    if rest != "–" && rest.len() < REASON_BYTES_MIN {
        wrong.push("what is not run is not said".to_owned());
    }
    let programs = proof.split('`').skip(1).step_by(2);
    let programs = programs.filter(|quoted| quoted.contains('/') && !quoted.contains("::"));
    let missing = programs.filter(|program| {
        let source = root().join(program);
        let is_machine = program.starts_with("tests/vm/") && source.exists();
        !is_machine && !source.is_file() && !source.join("main.rs").is_file()
    });
    wrong.extend(missing.map(|program| format!("{program}: no such program")));
    wrong.extend(check_row(proof, targets));
    wrong
}

#[test]
fn fault_has_test_or_explanation() {
    let page = std::fs::read_to_string(root().join(FAULTS)).expect("readable");
    let wrong = check_faults(&page, &Targets::read());
    assert!(wrong.is_empty(), "{FAULTS}:\n  {}", wrong.join("\n  "));
}

#[test]
fn untested_fault_is_detected() {
    let targets = Targets::read();
    let sound = "| E1 | a fault | all is well | `scenario_tables::missing_scenario_is_detected`, `tests/examples/idle.rs` | – |";
    let found = check_faults(sound, &targets);
    assert!(!found.iter().any(|why| why.starts_with("E1:")), "{found:?}");
    for (row, complaint) in [
        (format!("{sound}\n{sound}"), "E1: 2 rows"),
        (String::new(), "E1: 0 rows"),
        (sound.replace("E1 ", "E19 "), "E19: no such fault"),
        (sound.replace("missing", "there"), "no such test"),
        (sound.replace("idle", "busy"), "no such program"),
        (sound.replace("–", "much"), "what is not run"),
    ] {
        let found = check_faults(&row, &targets).join("\n");
        assert!(found.contains(complaint), "{row}: {found}");
    }
}

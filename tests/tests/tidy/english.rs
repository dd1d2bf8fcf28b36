//! The English of the repository in figures: openings of doc comments, phrases, names of tests and functions, subjects of
//! commits, lengths of sentences and table cells.
//!
//! [`CEILINGS`] holds the number of exceptions that remain. A change may lower a number, never raise it.
//! `cargo test -p meseta-tests --test tidy english -- --nocapture` prints the table.

#![expect(
    clippy::print_stdout,
    reason = "a test prints its table for the reader"
)]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

use regex::Regex;

use super::{files, is_test_file, read, root};

/// Words in the name of a test.
const TEST_NAME_WORDS_MAX: usize = 6;
/// Words in a sentence of a page.
const SENTENCE_WORDS_MAX: usize = 25;
/// Words in a table cell of a page.
const CELL_WORDS_MAX: usize = 60;
/// Commits that are read, newest first.
const COMMITS: usize = 50;
/// Function names that name no action.
const FUNCTION_NAMES: &[&str] = &[
    "again", "all", "both", "most", "none", "of", "one", "told", "within",
];

const RELATIVE_OPENINGS: &str = "doc comment that begins with What, Who, Which or Where";
const PRONOUN_OPENINGS: &str = "doc comment that begins with Of, One, It, Those or None";
const FREE_RELATIVES: &str = "`what is` in a doc comment";
const RELATIVE_NAMES: &str = "test name with a relative clause";

/// The maximum number of findings of each rule.
const CEILINGS: &[(&str, usize)] = &[
    ("function name without a verb", 57),
    ("phrase in a comment", 91),
    ("phrase in a page", 13),
    ("sentence of more than 25 words", 12),
    ("table cell of more than 60 words", 1),
];

/// Openings of a doc comment that make a relative clause its subject.
static RELATIVE_OPENING: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"^(What|Who|Whose|Which|Where)\b").expect("a pattern"));
/// Openings of a doc comment without a noun.
static PRONOUN_OPENING: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"^(Of|One|It|Its|Those|These|They|The same|None)\b").expect("a pattern")
});
/// A free relative clause in a doc comment.
static FREE_RELATIVE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(?i)\bwhat (is|was|are|were)\b").expect("a pattern"));
/// Phrases that hide the subject or the object of a sentence.
static PHRASE: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(concat!(
        r"(?i)\b(what|who) (is|are|was|were|has|had|asks|came|comes|may)\b",
        r"|\b(is|are|was|were) (told|said|asked|spoken)\b",
        r"|\b(is|are|was|were) none\b|\bwant of\b|\bfor want\b|\bthat one\b|\bof one's\b",
    ))
    .expect("a pattern")
});
/// Subjects of commits that are no instruction.
static SUBJECT: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(
        r"^[^:]+: (what|who|one|of|those|it|its|the|a|an|no|nothing|none|each|every|all)\b|\b(what|who) (is|are|was|were)\b",
    )
    .expect("a pattern")
});
static RELATIVE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(^|_)(that|which|who|whose|what)(_|$)").expect("a pattern"));
static LITERAL: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r#""((?:[^"\\]|\\.)*)""#).expect("a pattern"));
static FUNCTION: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\bfn (\w+)").expect("a pattern"));

/// Findings by rule, each with its place, and the totals that their shares refer to.
#[derive(Default)]
struct Findings {
    by_rule: BTreeMap<&'static str, Vec<String>>,
    doc_comments: usize,
    doc_words: usize,
    /// The words in the name of each test.
    test_names: Vec<usize>,
}

impl Findings {
    fn add(&mut self, rule: &'static str, place: impl Into<String>) {
        self.by_rule.entry(rule).or_default().push(place.into());
    }

    /// Adds the findings in a source file.
    fn read_source(&mut self, place: &str, text: &str, is_test: bool) {
        let tests_from = text.find("#[cfg(test)]").unwrap_or(text.len());
        let (mut at, mut in_doc, mut is_test_next) = (0, false, false);
        let mut in_list = false;
        for (number, line) in text.lines().enumerate() {
            let place = format!("{place}:{}", number + 1);
            let code = line.trim_start();
            let doc = ["/// ", "//! "].iter().find_map(|m| code.strip_prefix(m));
            if let Some(doc) = doc {
                self.read_doc(&place, doc, !in_doc);
            }
            in_doc = code.starts_with("///") || code.starts_with("//!");
            if let Some((_, comment)) = code.split_once("// ").or_else(|| doc.map(|d| ("", d))) {
                for found in PHRASE.find_iter(comment) {
                    self.add(
                        "phrase in a comment",
                        format!("{place}: {}", found.as_str()),
                    );
                }
            } else if !is_test && at < tests_from {
                for literal in LITERAL.captures_iter(code) {
                    for found in PHRASE.find_iter(&literal[1]) {
                        self.add(
                            "phrase in a message",
                            format!("{place}: {}", found.as_str()),
                        );
                    }
                }
            }
            if let Some(function) = FUNCTION.captures(code).filter(|_| !in_doc) {
                self.read_function(&place, &function[1], is_test_next);
                is_test_next = false;
            }
            is_test_next |= code.starts_with("#[test]") || code.starts_with("#[tokio::test");
            // The lists of scenarios, whose functions have no attribute.
            in_list = (in_list && line != "}") || line.ends_with("scenarios! {");
            if in_list && line.ends_with([',', ';']) {
                let path = code.split([' ', ',', ';']).next().unwrap_or_default();
                let name = path.rsplit("::").next().unwrap_or_default();
                self.read_function(&place, name, true);
            }
            at += line.len() + 1;
        }
    }

    /// Adds the findings in a line of a doc comment.
    fn read_doc(&mut self, place: &str, doc: &str, is_first: bool) {
        self.doc_words += doc.split_whitespace().count();
        for _ in FREE_RELATIVE.find_iter(doc) {
            self.add(FREE_RELATIVES, format!("{place}: {doc}"));
        }
        if !is_first {
            return;
        }
        self.doc_comments += 1;
        if RELATIVE_OPENING.is_match(doc) {
            self.add(RELATIVE_OPENINGS, format!("{place}: {doc}"));
        }
        if PRONOUN_OPENING.is_match(doc) {
            self.add(PRONOUN_OPENINGS, format!("{place}: {doc}"));
        }
    }

    fn read_function(&mut self, place: &str, name: &str, is_test: bool) {
        let place = format!("{place}: {name}");
        if !is_test {
            if FUNCTION_NAMES.contains(&name) {
                self.add("function name without a verb", place);
            }
            return;
        }
        let words = name.split('_').count();
        self.test_names.push(words);
        if words > TEST_NAME_WORDS_MAX {
            self.add("test name of more than six words", place.clone());
        }
        if RELATIVE.is_match(name) {
            self.add(RELATIVE_NAMES, place);
        }
    }

    /// Adds the findings in a page.
    fn read_page(&mut self, place: &str, text: &str) {
        let prose: String = text.split("```").step_by(2).collect();
        for found in PHRASE.find_iter(&prose) {
            self.add("phrase in a page", format!("{place}: {}", found.as_str()));
        }
        for paragraph in paragraphs(&prose) {
            if paragraph.starts_with('|') {
                for cell in paragraph.split(" | ") {
                    let words = cell.split_whitespace().count();
                    if words > CELL_WORDS_MAX {
                        self.add("table cell of more than 60 words", shortened(place, cell));
                    }
                }
                continue;
            }
            for sentence in sentences(&paragraph) {
                if sentence.split_whitespace().count() > SENTENCE_WORDS_MAX {
                    self.add("sentence of more than 25 words", shortened(place, sentence));
                }
            }
        }
    }

    fn read_subject(&mut self, subject: &str) {
        if SUBJECT.is_match(&subject.to_lowercase()) {
            self.add("commit subject without a verb", subject);
        }
    }
}

fn shortened(place: &str, text: &str) -> String {
    let start: Vec<_> = text.split_whitespace().take(8).collect();
    format!("{place}: {} ...", start.join(" "))
}

/// The paragraphs, items and table rows of a page, a line each.
fn paragraphs(prose: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    for line in prose.lines().map(str::trim) {
        let is_item = line.starts_with(['-', '*', '|', '#', '>'])
            || line
                .split_once(". ")
                .is_some_and(|(n, _)| n.parse::<u16>().is_ok());
        if line.is_empty() || is_item {
            found.push(String::new());
        }
        let last = found.last_mut().expect("at least one");
        last.push_str(line);
        last.push(' ');
    }
    found
}

/// The sentences of a paragraph; a colon or semicolon also ends one.
fn sentences(paragraph: &str) -> impl Iterator<Item = &str> {
    static END: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"[.!?:;][)*_`]*\s").expect("a pattern"));
    END.split(paragraph)
}

/// All findings in the repository.
fn findings() -> Findings {
    let mut findings = Findings::default();
    for path in files("rs") {
        let place = path.strip_prefix(root()).expect("ours");
        // This file names the phrases that it looks for.
        if !place.ends_with(Path::new("tidy/english.rs")) {
            findings.read_source(
                &place.display().to_string(),
                &read(&path),
                is_test_file(place),
            );
        }
    }
    for path in files("md") {
        let place = path.strip_prefix(root()).expect("ours");
        // The changelog keeps the words of its time.
        if !place.ends_with("CHANGELOG.md") {
            findings.read_page(&place.display().to_string(), &read(&path));
        }
    }
    let log = Command::new("git")
        .args(["log", "--format=%s", &format!("-{COMMITS}")])
        .current_dir(root())
        .output()
        .expect("git runs");
    for subject in String::from_utf8_lossy(&log.stdout).lines() {
        findings.read_subject(subject);
    }
    findings
}

#[test]
fn english_findings_only_shrink() {
    let findings = findings().by_rule;
    let ceilings: BTreeMap<_, _> = CEILINGS.iter().copied().collect();
    let mut wrong = Vec::new();
    for (rule, found) in &findings {
        let ceiling = ceilings.get(rule).copied().unwrap_or_default();
        println!("{:6} of {ceiling:6}  {rule}", found.len());
        if found.len() > ceiling {
            wrong.push(format!(
                "{rule}: {} findings, at most {ceiling}",
                found.len()
            ));
        }
        if std::env::var("MESETA_ENGLISH").as_deref() == Ok(*rule) {
            println!("{}", found.join("\n"));
        }
    }
    assert!(
        wrong.is_empty(),
        "{}\nMESETA_ENGLISH=\"RULE\" and --nocapture list the findings of a rule",
        wrong.join("\n")
    );
}

/// The shares that six admired code bases have, doubled: their worst, for each measure.
#[test]
fn english_is_close_to_admired_code() {
    let findings = findings();
    let share = |rule, total: usize| {
        let found = findings.by_rule.get(rule).map_or(0, Vec::len);
        (
            f64::from(u32::try_from(found).expect("few")),
            f64::from(u32::try_from(total).expect("few")),
        )
    };
    let mut lengths = findings.test_names.clone();
    lengths.sort_unstable();
    let median = lengths[lengths.len() / 2];
    let rows = [
        (
            RELATIVE_OPENINGS,
            share(RELATIVE_OPENINGS, findings.doc_comments),
            0.006,
        ),
        (
            PRONOUN_OPENINGS,
            share(PRONOUN_OPENINGS, findings.doc_comments),
            0.03,
        ),
        (
            FREE_RELATIVES,
            share(FREE_RELATIVES, findings.doc_words),
            0.000_38,
        ),
        (
            RELATIVE_NAMES,
            share(RELATIVE_NAMES, findings.test_names.len()),
            0.008,
        ),
    ];
    let mut wrong = Vec::new();
    for (measure, (found, total), limit) in rows {
        let row = format!(
            "{:.5} of at most {limit:.5}: {measure}, {found} of {total}",
            found / total
        );
        println!("{row}");
        if found > limit * total {
            wrong.push(row);
        }
    }
    println!("{median} words in the median name of a test");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(median <= TEST_NAME_WORDS_MAX);
}

#[test]
fn english_findings_are_found() {
    let source = r#"
/// What was kept.
fn of() { warn!("the id is none"); }
// Nothing is said of it.
#[test]
fn a_task_that_ends_is_told_of_once() {}
/// The quota.
fn quota() {}
"#;
    let page = "It is asked. One two three four five six seven eight nine ten eleven twelve thirteen fourteen \
                fifteen sixteen seventeen eighteen nineteen twenty one two three four five six.";
    let mut findings = Findings::default();
    findings.read_source("a.rs", source, false);
    findings.read_page("a.md", page);
    findings.read_subject("agent: what a check does");
    findings.read_subject("agent: end checks in time");
    let counts: Vec<_> = findings
        .by_rule
        .iter()
        .map(|(r, f)| (*r, f.len()))
        .collect();
    assert_eq!(
        counts,
        [
            (FREE_RELATIVES, 1),
            ("commit subject without a verb", 1),
            (RELATIVE_OPENINGS, 1),
            ("function name without a verb", 1),
            ("phrase in a comment", 2),
            ("phrase in a message", 1),
            ("phrase in a page", 1),
            ("sentence of more than 25 words", 1),
            ("test name of more than six words", 1),
            (RELATIVE_NAMES, 1),
        ]
    );
}

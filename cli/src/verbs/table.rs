//! Aligned tables on standard output.
//!
//! On a terminal a table is at most as wide as the terminal: first the common part of all ids is left out, then the common
//! prefix of all states, then empty columns; then the widest columns are cut, the first column last, which is the argument
//! of other verbs. Elsewhere, for programs, every cell is whole. Widths are those of a terminal: two columns for most
//! letters of East Asia, zero for combining characters. Invariant: no control character of a cell reaches the terminal:
//! names and messages belong to tenants, and could forge a row or change earlier output.

use std::borrow::Cow;
use std::collections::BTreeSet;

use meseta_daemon::untrusted;
use unicode_width::UnicodeWidthChar as _;

use crate::terminal::put;

/// The gap between two columns.
const GAP: &str = "  ";
/// The smallest width of a cut column, in characters.
const COLUMN_MIN: usize = 6;
/// The smallest width of a column that wraps.
const WRAPPED_MIN: usize = 24;
/// A cell without information.
const NOTHING: &str = "-";
/// The common prefixes of Mesos's states and reasons.
const BEGINNINGS: [&str; 2] = ["TASK_", "REASON_"];
/// The mark in place of omitted text.
const CUT: char = '…';

/// Prints a table without frames; only its headings when there are no rows.
pub(super) fn print(headings: &[&str], rows: Vec<Vec<String>>) {
    for line in lines(headings, rows, width()) {
        put(&line);
    }
}

/// Prints a table whose last column takes as many lines as its text needs: that column is what the user wants to read.
pub(super) fn print_wrapped(headings: &[&str], rows: Vec<Vec<String>>) {
    for line in wrapped_lines(headings, rows, width()) {
        put(&line);
    }
}

/// Returns the columns of the terminal, or of `COLUMNS`; `None` without a terminal.
fn width() -> Option<usize> {
    use std::io::IsTerminal as _;
    let said = std::env::var("COLUMNS")
        .ok()
        .and_then(|text| text.parse().ok());
    let asked = || {
        let stdout = std::io::stdout();
        let size = stdout
            .is_terminal()
            .then(|| rustix::termios::tcgetwinsize(&stdout));
        size?.ok().map(|size| usize::from(size.ws_col))
    };
    said.or_else(asked).filter(|width| *width > 0)
}

/// Returns the lines of a table, cut to a width if there is one.
fn lines(headings: &[&str], rows: Vec<Vec<String>>, width: Option<usize>) -> Vec<String> {
    let (all, mut widths) = measured(headings, rows, width);
    cut(&mut widths, width);
    all.iter().map(|row| line(row, &widths)).collect()
}

/// Returns the headings and the rows without the dispensable parts, and the widths of their columns.
fn measured(
    headings: &[&str],
    mut rows: Vec<Vec<String>>,
    width: Option<usize>,
) -> (Vec<Vec<String>>, Vec<usize>) {
    let mut headings: Vec<String> = headings.iter().map(|text| (*text).to_owned()).collect();
    for cell in rows.iter_mut().flatten() {
        if let Cow::Owned(escaped) = untrusted::escaped(cell, &[]) {
            *cell = escaped;
        }
    }
    if let Some(width) = width {
        make_narrower(&mut headings, &mut rows, width);
    }
    let widths = widths(&headings, &rows);
    rows.insert(0, headings);
    (rows, widths)
}

/// Returns the lines of a table whose last column is divided at words instead of cut.
fn wrapped_lines(headings: &[&str], rows: Vec<Vec<String>>, width: Option<usize>) -> Vec<String> {
    let (rows, mut widths) = measured(headings, rows, width);
    let Some((last, others)) = widths.split_last_mut() else {
        return Vec::new();
    };
    if let Some(width) = width {
        let left = width.saturating_sub(total(others) + GAP.len());
        *last = (*last).min(left.max(WRAPPED_MIN));
    }
    cut(&mut widths, width);
    let told = widths.last().copied().unwrap_or_default();
    let mut all = Vec::new();
    for mut row in rows {
        let text = row.pop().unwrap_or_default();
        let mut parts = divided(&text, told).into_iter();
        row.push(parts.next().unwrap_or_default());
        all.push(line(&row, &widths));
        let empty = vec![String::new(); row.len() - 1];
        all.extend(parts.map(|part| line(&[empty.clone(), vec![part]].concat(), &widths)));
    }
    all
}

/// Returns a text in parts of limited width, divided between words where possible.
fn divided(text: &str, width: usize) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    for word in text.split(' ') {
        let mut rest = word;
        loop {
            let (piece, more) = split_at_width(rest, width);
            let fits = |part: &&mut String| columns(part) + 1 + columns(piece) <= width;
            match parts.last_mut().filter(fits) {
                Some(part) => {
                    part.push(' ');
                    part.push_str(piece);
                }
                None => parts.push(piece.to_owned()),
            }
            if more.is_empty() {
                break;
            }
            rest = more;
        }
    }
    parts
}

/// Splits off the longest beginning within a width, at least one letter. Combining characters stay with their letter.
fn split_at_width(text: &str, width: usize) -> (&str, &str) {
    let mut taken = 0;
    let end = text.char_indices().find(|(at, letter)| {
        taken += letter.width().unwrap_or_default();
        *at > 0 && taken > width
    });
    text.split_at(end.map_or(text.len(), |(at, _)| at))
}

/// Narrows the widest columns until they fit, the first column last.
fn cut(widths: &mut [usize], width: Option<usize>) {
    while width.is_some_and(|width| total(widths) > width) {
        let (first, others) = widths.split_at_mut(1);
        let widest = others.iter_mut().max_by_key(|width| **width);
        match widest {
            Some(widest) if *widest > COLUMN_MIN => *widest -= 1,
            _ if first[0] > COLUMN_MIN => first[0] -= 1,
            _ => break,
        }
    }
}

/// Leaves out dispensable parts, step by step as far as needed.
fn make_narrower(headings: &mut Vec<String>, rows: &mut [Vec<String>], width: usize) {
    let columns = 0..headings.len();
    let is_wide =
        |headings: &[String], rows: &[Vec<String>]| total(&widths(headings, rows)) > width;
    if is_wide(headings, rows) {
        columns.clone().for_each(|column| shorten_ids(rows, column));
    }
    if is_wide(headings, rows) {
        for column in columns.clone() {
            shorten_beginnings(rows, column);
        }
    }
    for column in columns.rev() {
        if !is_wide(headings, rows) {
            return;
        }
        let says_nothing = |row: &Vec<String>| row.get(column).is_some_and(|cell| cell == NOTHING);
        if !rows.is_empty() && rows.iter().all(says_nothing) {
            headings.remove(column);
            rows.iter_mut().for_each(|row| drop(row.remove(column)));
        }
    }
}

fn widths(headings: &[String], rows: &[Vec<String>]) -> Vec<usize> {
    let widest = |column: usize| {
        let all = std::iter::once(headings).chain(rows.iter().map(Vec::as_slice));
        all.filter_map(|row| row.get(column))
            .map(|cell| columns(cell))
            .max()
            .unwrap_or_default()
    };
    (0..headings.len()).map(widest).collect()
}

/// Returns the columns of a text on a terminal: the sum of its letters, since terminals differ in how they join letters.
fn columns(text: &str) -> usize {
    let widths = text
        .chars()
        .map(|letter| letter.width().unwrap_or_default());
    widths.sum()
}

fn total(widths: &[usize]) -> usize {
    widths.iter().sum::<usize>() + GAP.len() * widths.len().saturating_sub(1)
}

fn line(row: &[String], widths: &[usize]) -> String {
    let cell = |(text, width): (&String, &usize)| {
        let length = columns(text);
        if length <= *width {
            return format!("{text}{}", " ".repeat(width - length));
        }
        let (kept, _) = split_at_width(text, width.saturating_sub(1));
        let left = width.saturating_sub(columns(kept) + 1);
        format!("{kept}{CUT}{}", " ".repeat(left))
    };
    let cells: Vec<String> = row.iter().zip(widths).map(cell).collect();
    cells.join(GAP).trim_end().to_owned()
}

/// Leaves out the common part of one master's ids, if they differ without it: every verb accepts `S3` and `0007` as ids.
fn shorten_ids(rows: &mut [Vec<String>], column: usize) {
    let whole: BTreeSet<String> = rows
        .iter()
        .filter_map(|row| row.get(column))
        .cloned()
        .collect();
    let short: BTreeSet<&str> = whole.iter().map(|id| short_id(id)).collect();
    if short.len() != whole.len() {
        return;
    }
    for cell in rows.iter_mut().filter_map(|row| row.get_mut(column)) {
        *cell = short_id(cell).to_owned();
    }
}

/// Leaves out a common prefix of all cells of a column, if it is a prefix of Mesos's names.
fn shorten_beginnings(rows: &mut [Vec<String>], column: usize) {
    let is_so = |cell: &String, start| cell == NOTHING || cell.starts_with(start);
    for start in BEGINNINGS {
        let mut cells = rows.iter().filter_map(|row| row.get(column));
        if !cells.all(|cell| is_so(cell, start)) {
            continue;
        }
        for cell in rows.iter_mut().filter_map(|row| row.get_mut(column)) {
            if let Some(rest) = cell.strip_prefix(start) {
                *cell = rest.to_owned();
            }
        }
    }
}

/// Returns the part of an id behind the master's own id: `<uuid>-S3` and `<uuid>-0007` are its agents and frameworks.
fn short_id(id: &str) -> &str {
    const UUID_BYTES: usize = 36;
    let Some((uuid, rest)) = id.split_at_checked(UUID_BYTES) else {
        return id;
    };
    let is_uuid = uuid.bytes().enumerate().all(|(at, byte)| match at {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    });
    match rest.strip_prefix('-') {
        Some(short) if is_uuid && !short.is_empty() => short,
        _ => id,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "0a1b2c3d-0011-2233-4455-66778899aabb";

    fn rows() -> Vec<Vec<String>> {
        let row = |number: usize| {
            vec![
                format!("execute-{number:04}"),
                "TASK_RUNNING".to_owned(),
                format!("{UUID}-{number:04}"),
                format!("{UUID}-S{number}"),
                "a message that goes on for longer than anybody wants to read on one line"
                    .to_owned(),
            ]
        };
        (0..3).map(row).collect()
    }

    const HEADINGS: [&str; 5] = ["ID", "STATE", "FRAMEWORK", "AGENT", "MESSAGE"];

    fn widest(lines: &[String]) -> usize {
        lines
            .iter()
            .map(|line| columns(line))
            .max()
            .unwrap_or_default()
    }

    #[test]
    fn a_table_fits_its_terminal() {
        for width in [40, 80, 120, 200] {
            let lines = lines(&HEADINGS, rows(), Some(width));
            assert!(widest(&lines) <= width, "{width}: {lines:#?}");
            let is_roomy = width >= 80;
            assert_eq!(lines[1].starts_with("execute-0000"), is_roomy, "{lines:#?}");
        }
        let narrow = lines(&HEADINGS, rows(), Some(80));
        assert!(
            narrow[2].contains(" 0001 ") && narrow[2].contains(" S1 "),
            "{narrow:#?}"
        );
        assert!(narrow[2].ends_with(CUT), "{narrow:#?}");
        let wide = lines(&HEADINGS, rows(), Some(200));
        assert!(
            wide[2].contains(UUID) && !wide[2].contains(CUT),
            "{wide:#?}"
        );
    }

    /// Regression: a framework's name coloured the operator's terminal, and made a second row.
    #[test]
    fn control_characters_never_reach_the_terminal() {
        let rows = vec![vec!["a\u{1b}[31mred\0\nF2 active\u{9b}K".to_owned()]];
        let told = lines(&["NAME"], rows.clone(), None);
        let expected = [r"NAME", r"a\u{1b}[31mred\u{0}\nF2 active\u{9b}K"];
        assert_eq!(told, expected);
        assert_eq!(wrapped_lines(&["NAME"], rows, Some(200)), expected);
    }

    /// The output of `meseta tasks` for many tasks at the minimum width of a terminal.
    #[test]
    fn tasks_differ_within_eighty_columns() {
        use super::super::tasks::HEADINGS as TASKS;
        let row = |number: usize, state: &str, reason: &str| -> Vec<String> {
            let id = format!("execute-{number:04}");
            let (framework, agent) = (format!("{UUID}-{number:04}"), format!("{UUID}-S0"));
            let cells = [
                &id, "execute", state, "0.1", "32", "3s", &framework, &agent, "-", reason,
            ];
            cells.map(str::to_owned).to_vec()
        };
        let rows = |reason: &str| {
            vec![
                row(1, "TASK_FINISHED", "-"),
                row(2, "TASK_RUNNING", "-"),
                row(3, "TASK_FAILED", reason),
            ]
        };
        let plain = lines(&TASKS, rows("-"), Some(80));
        assert!(widest(&plain) <= 80, "{plain:#?}");
        assert!(!plain.concat().contains(CUT), "{plain:#?}");
        assert!(plain[1].contains(" FINISHED "), "{plain:#?}");
        let reasons = lines(&TASKS, rows("REASON_CONTAINER_LIMITATION_MEMORY"), Some(80));
        assert!(widest(&reasons) <= 80, "{reasons:#?}");
        for (number, line) in reasons.iter().enumerate().skip(1) {
            let start = format!("execute-{number:04}  execute");
            assert!(line.starts_with(&start), "{reasons:#?}");
        }
        assert!(reasons[3].contains(" FAILED ") && reasons[3].contains(" CONT"));
    }

    #[test]
    fn reason_is_complete_in_eighty_columns() {
        let headings = ["FRAMEWORK", "ROLE", "AGENT", "WOULD BE OFFERED", "BECAUSE"];
        let why = "role 'eng' has 0.5 cpus of its limit of 1; left to offer: cpus:0.5; ports:[31000-32000]";
        let row = |offer: &str, why: &str| {
            let (framework, agent) = (format!("{UUID}-0004"), format!("{UUID}-S0"));
            let cells = [framework.as_str(), "eng", agent.as_str(), offer, why];
            cells.map(str::to_owned).to_vec()
        };
        let rows = vec![row("-", why), row("cpus:1", "-")];
        let lines = wrapped_lines(&headings, rows.clone(), Some(80));
        assert!(widest(&lines) <= 80, "{lines:#?}");
        assert!(!lines.concat().contains(CUT), "{lines:#?}");
        let start = lines[0].find("BECAUSE").expect("a heading");
        let told = lines[1..lines.len() - 1].iter();
        let told: Vec<&str> = told.map(|line| line[start..].trim()).collect();
        assert_eq!(told.join(" "), why);
        let wide = wrapped_lines(&headings, rows, None);
        assert_eq!(wide.len(), 3);
        assert!(wide[1].ends_with(why), "{wide:#?}");
        assert_eq!(divided("abcdef gh", 4), ["abcd", "ef", "gh"]);
    }

    #[test]
    fn programs_get_every_cell_whole() {
        let lines = lines(&HEADINGS, rows(), None);
        assert!(widest(&lines) > 160);
        assert!(lines.iter().all(|line| !line.contains(CUT)));
        assert!(lines[1].contains(&format!("{UUID}-S0")));
    }

    /// Regression: columns were aligned by characters, so that a Chinese name moved all later columns.
    #[test]
    fn columns_align_by_display_width() {
        let names = [
            "plain",
            "数据库服务",
            "ｗｉｄｅ",
            "e\u{301}te\u{301}",
            "👩\u{200d}🚀",
            "한국어",
            "",
        ];
        let rows = || {
            names
                .map(|name| vec![name.to_owned(), "x".to_owned()])
                .to_vec()
        };
        for width in [None, Some(80), Some(10), Some(9), Some(8)] {
            for told in [
                lines(&["NAME", "Y"], rows(), width),
                wrapped_lines(&["NAME", "Y"], rows(), width),
            ] {
                for line in &told {
                    let before = line.strip_suffix(['x', 'Y']).expect("the last column");
                    let first = told[0].find('Y').expect("a heading");
                    assert_eq!(columns(before), first, "{width:?}: {told:#?}");
                }
            }
        }
        let told = lines(&["NAME", "Y"], rows(), Some(9));
        assert_eq!(told[2], "数据…   x");
        assert_eq!(divided("数据库 服务 a", 4), ["数据", "库", "服务", "a"]);
        assert_eq!(divided("e\u{301}e\u{301}e", 2), ["e\u{301}e\u{301}", "e"]);
        assert_eq!(divided("数", 1), ["数"]);
    }

    #[test]
    fn ids_of_two_masters_stay_whole() {
        let other = UUID.replace('a', "b");
        let ids = [format!("{UUID}-S1"), format!("{other}-S1")];
        let mut rows: Vec<Vec<String>> = ids.iter().map(|id| vec![id.clone()]).collect();
        shorten_ids(&mut rows, 0);
        assert_eq!(rows.concat(), ids);
        assert_eq!(short_id("execute-0000"), "execute-0000");
        assert_eq!(short_id(&format!("{UUID}-")), format!("{UUID}-"));
    }
}
